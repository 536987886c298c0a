"""Iceberg by Spark: how a session is told of the catalog, how rows come to a branch, and a catalog that only Java has.

Who decides is the same as without a JVM (targets/iceberg.py). Rows go to the branch by a Spark job, which may make its commit
again on a newer branch, and nobody else has that branch. `main` is moved through the catalog: of a table on this host by
pyiceberg, which a SQL or REST catalog does not know from Java. On HDFS there is Iceberg's Hadoop catalog, in which a version
of the metadata is a file whose name only one writer can have, by the NameNode's rename: `JavaCatalog` hands requirements and
updates over as the REST protocol writes them, has Java check and apply them to the metadata that it has just read, and
commits what comes out in place of exactly that.

That a version's name is taken shows only while its file is there: who has stood still between look and commit while others
made ten versions, of which Iceberg then deletes the first, would take one of those names, and the table would be what it was.
So commits delete no version there, and we delete them by age.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from ..client.logs import get_logger
from ..conf.columns import BATCH_COLUMN, Column, ddl
from ..durable.files import CALLS, FileCalls, sync_path
from ..remoting.errors import UsageError
from .convert import Staged
from .errors import LoaderError
from .hdfs import HdfsPath, java_errors, java_kind, java_said, jvm_gone
from .hdfs import asked as asked_hdfs
from .iceberg_catalog import HADOOP, CatalogSpec, is_secret, local_path, merged
from .merging import FILES_LEAST, MergeBounds, SmallFile, merge_groups
from .plan import Plan
from .spark_writer import SparkWriter, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CATALOG_CLASS: Final = "org.apache.iceberg.spark.SparkCatalog"
BUSY_MS: Final = 60_000
"""How long a commit waits for a SQLite file that another one has locked."""
VERSIONS_LEAST: Final = 10
VERSIONS_KEPT_S: Final = 86_400.0
"""No commit takes that long from its look on."""
_VERSION: Final = re.compile(r"v(\d+)\.(?:gz\.)?metadata\.json")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_PYTHON_ONLY: Final = ("type", "uri", "warehouse", "py-io-impl", "py-catalog-impl", "init_catalog_tables", "echo")
_KINDS: Final = ("rest", "sql", HADOOP)


def session_conf(spec: CatalogSpec, kind: str, properties: Mapping[str, str], folder: str) -> dict[str, str]:
    """What a session has to know to write into the table's catalog, of pyiceberg's `properties`. `folder`: above the table.

    Raises UsageError for a catalog that Spark has not, or not by that name.
    """
    if kind not in _KINDS:
        raise UsageError(
            f"spark.options.type is {kind!r}, and spark.format = iceberg-spark takes sql or rest for a folder of this host,"
            " and hadoop for a table on HDFS; others by spark.format = iceberg"
        )
    if not _NAME.fullmatch(spec.name):
        raise UsageError(
            f"spark.options.catalog is {spec.name!r}, and Spark takes letters, digits, _ and - in a catalog's name"
        )
    of_kind = {"type": kind, "uri": properties.get("uri", ""), "warehouse": properties.get("warehouse", "")}
    if kind == "sql":
        of_kind |= jdbc_properties(properties.get("uri", "")) | {"type": "jdbc", "warehouse": f"file://{folder}"}
    passed_on = {name: value for name, value in properties.items() if name not in _PYTHON_ONLY}
    given = {
        **passed_on,
        **of_kind,
        "cache-enabled": "false",  # else a table that others have changed is what it was
    }
    named = f"spark.sql.catalog.{spec.name}"
    return {named: CATALOG_CLASS} | {f"{named}.{name}": value for name, value in given.items() if value}


def jdbc_properties(uri: str) -> dict[str, str]:
    """The database as Java names it: pyiceberg has a URI of SQLAlchemy. User and keys are no part of Java's: some drivers
    take them for the host's name there, and messages of Java quote it. Raises UsageError.
    """
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(uri)
    except (ArgumentError, ValueError):
        # Without the text, which may have a password.
        raise UsageError("spark.options.uri is no URI of a database, such as sqlite:////data/catalog.db") from None
    kind, database = url.get_backend_name(), url.database or ""
    if kind == "sqlite":
        if "?" in database:
            raise UsageError(f"spark.options.uri names the file {database!r}, and Java takes no ? in its name")
        return {"uri": f"jdbc:sqlite:{database}?busy_timeout={BUSY_MS}"}
    keys = {name: value for name, value in url.query.items() if name == "user" or is_secret(name, "")}
    asked = urlencode({name: value for name, value in url.query.items() if name not in keys}, doseq=True)
    host = f"[{url.host}]" if ":" in (url.host or "") else url.host or ""
    port = f":{url.port}" if url.port else ""
    given = {
        "uri": f"jdbc:{kind}://{host}{port}/{quote(database)}{'?' if asked else ''}{asked}",
        "jdbc.user": url.username or "",
        "jdbc.password": str(url.password or ""),
        **{f"jdbc.{name}": str(value) for name, value in keys.items()},
    }
    return {name: value for name, value in given.items() if value}


class SparkRows:
    """Appends a plan's rows to its branch by a Spark job, and makes what it has written survive a power failure."""

    def __init__(self, spec: CatalogSpec, folder: str, writer: SparkWriter, calls: FileCalls = CALLS) -> None:
        """`folder`: the one that the table is in."""
        self._spec = spec
        self._folder = folder
        self._writer = writer
        self._calls = calls

    def start(self) -> None:
        """Start Spark. Raises SparkStartError."""
        self._writer.start()

    def append(
        self, reload: Callable[[], Any], plan: Plan, staged: Staged, branch: str, marks: Mapping[str, str]
    ) -> int:
        """The rows become one snapshot of the branch, which is there; returns its id. `reload` gives the table anew.

        Raises pyiceberg's CommitFailedException when the branch was deleted meanwhile, as its number is gone.
        """
        name = quoted(self._spec)

        def append(rows: DataFrame) -> None:
            configure(rows.sparkSession, self._spec, self._folder)
            writing = with_all_columns(numbered(rows, plan.batch), name).writeTo(f"{name}.`branch_{branch}`")
            for mark, value in marks.items():
                writing = writing.option(f"snapshot-property.{mark}", value)
            writing.append()

        began = reload().refs().get(branch)
        if began is None:
            raise _conflict(f"the branch {branch} is gone")
        try:
            self._writer.run(staged.files, plan.columns, f"batch {plan.batch} to {self._spec.table}", append)
        except LoaderError as error:
            if type(error) is LoaderError and branch not in reload().refs():
                raise _conflict(f"the branch {branch} is gone") from None
            raise
        table = reload()
        found = table.refs().get(branch)
        if found is None or found.snapshot_id == began.snapshot_id:
            raise _conflict(f"the branch {branch} is gone, or has no rows")
        snapshot = int(found.snapshot_id)
        self._sync(table, snapshot)
        return snapshot

    def _sync(self, table: Any, snapshot: int) -> None:
        """Have the files of the snapshot on the disk before the catalog is asked to name them. On HDFS that is HDFS's."""
        if not table.location().startswith(("file:", "/")):
            return
        made = table.snapshot_by_id(snapshot)
        manifests = [one for one in made.manifests(table.io) if one.added_snapshot_id == snapshot]
        # A manifest that a commit has merged names the files of earlier commits too, which are theirs.
        entries = (entry for one in manifests for entry in one.fetch_manifest_entry(table.io))
        data = [entry.data_file.file_path for entry in entries if entry.snapshot_id == snapshot]
        files = [local_path(one) for one in (made.manifest_list, *(one.manifest_path for one in manifests), *data)]
        above = {
            folder for file in files for folder in file.parents if folder.is_relative_to(local_path(table.location()))
        }
        for path in (*files, *sorted(above, reverse=True)):
            sync_path(path, self._calls)


class SparkMerge:
    """Small files that Spark has made large ones of, in a snapshot of a branch; committed as `iceberg_merge.Merge` is."""

    def __init__(self, reload: Callable[[], Any], branch: str, files: int, made: int) -> None:
        """`files` of them are gone in the snapshot, and `made` are new."""
        import pyiceberg.table.update

        updates: Any = pyiceberg.table.update
        self._reload = reload
        self._branch = branch
        self.files = files
        self.made = made
        self.snapshot = int(reload().refs()[branch].snapshot_id)
        self.updates = (updates.RemoveSnapshotRefUpdate(ref_name=branch),)

    def was_made(self, table: Any) -> bool:
        """Whether `main` of `table`, as it is now, has come to the snapshot: the branch is taken away with that."""
        return self._branch not in table.refs()

    def discard(self) -> None:
        """Take the branch away. Its files are Iceberg's to delete, with the snapshot."""
        self._reload().manage_snapshots().remove_branch(self._branch).commit()


class SparkMerges:
    """Has Spark make large files of small ones, in the catalog on HDFS, whose manifests only Java reads.

    merging.py says whether, and up to which size. Then it is Iceberg's own action, which takes all files up to that size,
    those with deletes too; the rows keep their ids in format version 3. It commits to a branch, and `main` is the target's to
    move.
    """

    def __init__(self, spec: CatalogSpec, writer: SparkWriter, catalog: JavaCatalog) -> None:
        """`catalog`: in which the table is."""
        self._spec = spec
        self._writer = writer
        self._catalog = catalog

    def merged(
        self, reload: Callable[[], Any], branch: str, bounds: MergeBounds, marks: Mapping[str, str]
    ) -> SparkMerge | None:
        """Merge small files on the new branch `branch`, which begins at `main`; None where there is nothing to do."""
        self._writer.start()
        groups = merge_groups(self._files(bounds), bounds)
        if not groups:
            return None
        table = reload()
        table.manage_snapshots().create_branch(table.refs()["main"].snapshot_id, branch).commit()
        counts: list[int] = []

        def merge(_made: Any, session: SparkSession) -> None:
            action = self._action(session, branch, groups, bounds)
            for name, value in marks.items():
                action = action.snapshotProperty(name, value)
            found = action.execute()
            counts.extend((int(found.rewrittenDataFilesCount()), int(found.addedDataFilesCount())))

        try:
            self._writer.job(f"small files of {self._spec.table}", merge)
        except LoaderError:
            reload().manage_snapshots().remove_branch(branch).commit()
            raise
        made = SparkMerge(reload, branch, *counts)
        if made.snapshot == table.refs()["main"].snapshot_id:
            made.discard()
            return None
        return made

    def _files(self, bounds: MergeBounds) -> list[SmallFile]:
        found: list[SmallFile] = []

        def look(_made: Any, session: SparkSession) -> None:
            configure(session, self._spec, "")
            of_rows = session.table(f"{quoted(self._spec)}.data_files")
            partition = "to_json(partition)" if "partition" in of_rows.columns else "''"
            small = of_rows.where(f"file_size_in_bytes < {bounds.merged_bytes // 2} AND coalesce(sort_order_id, 0) = 0")
            rows = small.selectExpr(
                "file_path", "file_size_in_bytes", "record_count", f"concat(spec_id, ' ', {partition})"
            )
            found.extend(SmallFile(str(row[0]), int(row[1]), int(row[2]), str(row[3])) for row in rows.collect())

        self._writer.job(f"the files of {self._spec.table}", look)
        return found

    def _action(
        self, session: SparkSession, branch: str, groups: Sequence[Sequence[SmallFile]], bounds: MergeBounds
    ) -> Any:
        options = {
            "min-file-size-bytes": max(one.bytes for group in groups for one in group) + 1,
            "target-file-size-bytes": bounds.merged_bytes,
            "max-file-size-bytes": 1 << 60,  # large ones stay
            "min-input-files": min(FILES_LEAST, *map(len, groups)),
            "max-file-group-size-bytes": bounds.bytes_at_once,
            "max-files-to-rewrite": bounds.files_at_once,
        }
        configure(session, self._spec, "")
        java: Any = session  # whose JVM py4j's types know nothing of
        actions = java.sparkContext._jvm.org.apache.iceberg.spark.actions.SparkActions.get(java._jsparkSession)
        action = actions.rewriteDataFiles(self._catalog.java_table(self._spec.table)).toBranch(branch).binPack()
        for name, value in options.items():
            action = action.option(name, str(value))
        return action


def quoted(spec: CatalogSpec) -> str:
    """The table as Spark's SQL names it."""
    return ".".join(f"`{part}`" for part in (spec.name, *spec.table.split(".")))


def with_all_columns(rows: DataFrame, table: str) -> DataFrame:
    """The rows with nulls for columns that others have added to the table: Spark does not append without them."""
    from pyspark.sql.functions import lit

    there = {name.lower() for name in rows.columns}
    fields = rows.sparkSession.table(table).schema.fields
    return rows.withColumns({one.name: lit(None).cast(one.dataType) for one in fields if one.name.lower() not in there})


def configure(session: SparkSession, spec: CatalogSpec, folder: str) -> None:
    """Name the catalog to a session that runs, whoever has started it. Raises UsageError."""
    kind, properties = merged(spec)
    for name, value in session_conf(spec, kind, properties, folder).items():
        session.conf.set(name, value)


class JavaCatalog:
    """The Hadoop catalog on HDFS, with what `IcebergTarget` asks of a catalog of pyiceberg."""

    def __init__(self, spec: CatalogSpec, spark: Callable[[], SparkSession]) -> None:
        """`spark` gives the session; it may start one."""
        self._spec = spec
        self._spark = spark
        self._opened: Any = None
        self._jvm: Any = None

    @property
    def _java(self) -> Any:
        if self._opened is None:
            session: Any = self._spark()
            configure(session, self._spec, "")
            self._jvm = session.sparkContext._jvm
            manager = session._jsparkSession.sessionState().catalogManager()
            with asked():
                self._opened = manager.catalog(self._spec.name).icebergCatalog()
        return self._opened

    def java_table(self, name: str) -> Any:
        """Java's own table. Raises what Java throws."""
        catalog = self._java  # which makes the JVM's gateway known
        return catalog.loadTable(self._jvm.org.apache.iceberg.catalog.TableIdentifier.parse(name))

    def _operations(self, name: str) -> Any:
        return self.java_table(name).operations()

    def load_table(self, name: str) -> Any:
        """pyiceberg's table, with the metadata as Java has it. Raises NoSuchTableError."""
        from pyiceberg.table import Table

        with asked():
            metadata = self._operations(name).current()
            catalog: Any = self
            io: Any = None  # pyiceberg reads no file on HDFS
            return Table(
                tuple(name.split(".")), self._read(metadata), str(metadata.metadataFileLocation()), io, catalog
            )

    def _read(self, metadata: Any) -> Any:
        from pyiceberg.table.metadata import TableMetadataUtil

        return TableMetadataUtil.parse_raw(str(self._jvm.org.apache.iceberg.TableMetadataParser.toJson(metadata)))

    def commit_table(self, table: Any, requirements: Sequence[Any], updates: Sequence[Any]) -> Any:
        """Have Java make the commit. Raises CommitFailedException, also when others are faster."""
        name = ".".join(table.name())
        with asked():
            operations = self._operations(name)
            base, iceberg = operations.current(), self._jvm.org.apache.iceberg
            made = iceberg.TableMetadata.buildFrom(base)
            for one in requirements:
                if hasattr(one, "model_dump_json"):
                    iceberg.UpdateRequirementParser.fromJson(one.model_dump_json()).validate(base)
                else:
                    one.validate(self._read(base))
            for one in updates:
                iceberg.MetadataUpdateParser.fromJson(one.model_dump_json()).applyTo(made)
            operations.commit(base, made.build())
        return self.load_table(name)

    def create(self, columns: Sequence[Column], by: Sequence[str], properties: Mapping[str, str], tag: str,
               marks: Mapping[str, str], snapshot_property: str) -> None:  # fmt: skip
        """Make the table with an empty snapshot, which has `marks` and the tag, and whose id becomes a property.

        Raises TableAlreadyExistsError, CommitFailedException when another loader was first.
        """
        from pyiceberg.exceptions import TableAlreadyExistsError

        with asked():
            catalog, jvm = self._java, self._jvm
            iceberg = jvm.org.apache.iceberg
            name = iceberg.catalog.TableIdentifier.parse(self._spec.table)
            self._make_namespace(name.namespace())
            whole = ddl([*columns, Column(BATCH_COLUMN, "bigint")])
            schema = iceberg.spark.SparkSchemaUtil.convert(jvm.org.apache.spark.sql.types.StructType.fromDDL(whole))
            spec = iceberg.PartitionSpec.builderFor(schema)
            for column in by:
                spec = spec.identity(column)
            given = jvm.java.util.HashMap()
            for key, value in properties.items():
                given.put(key, value)
            making = catalog.buildTable(name, schema).withPartitionSpec(spec.build()).withProperties(given)
            try:
                making = making.createTransaction()
            except java_errors():
                # Java looks twice, and takes one that came in between for a wrong argument.
                if catalog.tableExists(name):
                    raise TableAlreadyExistsError(self._spec.table) from None
                raise
            empty = making.newFastAppend()
            for key, value in marks.items():
                empty.set(key, value)
            empty.commit()
            first = making.table().currentSnapshot().snapshotId()
            making.manageSnapshots().createTag(tag, first).commit()
            named = making.updateProperties().set(snapshot_property, str(first))
            for key, value in marks.items():
                named = named.set(key, value)
            named.commit()
            making.commitTransaction()

    def _make_namespace(self, name: Any) -> None:
        if not self._java.namespaceExists(name):
            try:
                self._java.createNamespace(name)
            except java_errors():  # another loader makes it in this moment
                if not self._java.namespaceExists(name):
                    raise

    @staticmethod
    def _delete_old_metadata(*_of: object) -> None:
        """Java has done it (pyiceberg's Table asks for this after a commit)."""

    def close(self) -> None:
        """Nothing is open: the session is the writer's."""


def delete_old_versions(table: HdfsPath, now_s: float) -> None:
    """Delete the files of old versions of the metadata. What fails is logged, and tried again later: the batch is in."""
    files = table.root.files
    try:
        with asked_hdfs(table):
            found = files.util().globStatus(table.root.path(f"{table}/metadata/v*.metadata.json")) or ()
            aged = [(one, _VERSION.fullmatch(str(one.getPath().getName()))) for one in found]
            versions = sorted(
                (int(match[1]), int(one.getModificationTime()) / 1000, one) for one, match in aged if match
            )
            for _, made_s, one in versions[:-VERSIONS_LEAST]:
                if made_s > now_s - VERSIONS_KEPT_S:
                    break
                files.delete(one.getPath(), False)
    except (LoaderError, FileNotFoundError) as error:
        get_logger().warning("iceberg_versions_not_deleted", table=str(table), error=str(error))


@contextmanager
def asked() -> Generator[None]:
    """What Java throws, as pyiceberg would have said it. Raises SparkDiedError without the JVM."""
    from py4j.protocol import Py4JError
    from pyiceberg.exceptions import CommitStateUnknownException, NoSuchTableError, TableAlreadyExistsError

    try:
        yield
    except java_errors() as error:
        kind, said = java_kind(error).rpartition(".")[2], java_said(error)
        if kind == "CommitFailedException":
            raise _conflict(said) from None
        if kind == "AlreadyExistsException":
            raise TableAlreadyExistsError(said) from None
        if kind in ("NoSuchTableException", "NoSuchNamespaceException"):
            raise NoSuchTableError(said) from None
        if kind == "CommitStateUnknownException":
            raise CommitStateUnknownException(said) from None
        raise RuntimeError(f"{kind}: {said}") from None
    except (Py4JError, ConnectionError) as error:
        raise jvm_gone("an Iceberg catalog was asked", error) from None


def _conflict(said: str) -> Exception:
    from pyiceberg.exceptions import CommitFailedException

    return CommitFailedException(said)
