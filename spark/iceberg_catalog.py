"""Where the catalog of an Iceberg table is, how it is asked, and what its `main` branch may be. Imports pyiceberg when used.

`spark.options` names the catalog as pyiceberg does, with two names of ours: `table` (`namespace.table`) and `catalog` (the
catalog's name). With neither `catalog`, `type` nor `uri` it is a SQLite file beside the table's folder. What was used is kept
in `TARGET/_rocketcrew/iceberg.json`, so that whoever reads the table needs its folder only; keys are never in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ..conf.redaction import masked_repr
from ..durable.files import make_folders
from ..remoting.errors import UsageError
from .errors import LoaderError, remedy
from .hdfs import HdfsPath
from .object_store import STATE_DIR, Place, write_whole

ICEBERG: Final = "iceberg"
ICEBERG_SPARK: Final = "iceberg-spark"
"""Values of `spark.format`: written by pyiceberg, and by Spark."""
HADOOP: Final = "hadoop"
"""The type of the catalog that is nothing but folders on HDFS, `warehouse/namespace/table`. pyiceberg has none."""
ICEBERG_FILE: Final = "iceberg.json"
CATALOG_NAME: Final = "rocketcrew"
SQLITE_FILE: Final = "catalog.db"
NAMESPACE: Final = "default"
_SECRET: Final = re.compile(r"token|secret|passw|credential|authorization|(?<!partition-)key|pwd", re.IGNORECASE)
_WITH_PASSWORD: Final = re.compile(r"://[^/@]*:[^/@]*@")
_PARAMETER: Final = re.compile(r"[?&;]([^=&;]+)=")
"""The names of a URI's query parameters."""
_IN_MEMORY: Final = re.compile(r"sqlite(?:\+\w+)?://(?:/?|/:memory:.*|.*[?&]mode=memory.*)")
_SQLITE: Final = re.compile(r"sqlite(?:\+\w+)?:///(.+)")
_FILE_URI: Final = "file:"
_NAME: Final = re.compile(r"[^.\s]+(?:\.[^.\s]+)+")
_NO_NAME: Final = re.compile(r"[.\s]")
_UNFIT: Final = re.compile(r"[%?#]")
FILES: Final = f"{__package__}.iceberg_files.SyncedFileIO"
"""What pyiceberg writes files with."""
EXPIRED_MAX: Final = 1000
"""Snapshots that are expired at once: what pyiceberg does for it grows with this number times that of all snapshots."""
GC: Final = "gc.enabled"
AGE_MAX: Final = "history.expire.max-snapshot-age-ms"
LEAST: Final = "history.expire.min-snapshots-to-keep"
"""Iceberg's own table properties: whether anything may be expired, the age up to which, and the number of which all stay."""
AGE_MAX_MS: Final = 432_000_000
"""Iceberg's default: five days."""
SAID_MAX: Final = 300
"""Characters of what a catalog says that are passed on."""


@dataclass(frozen=True, slots=True)
class CatalogSpec:
    """A table of a catalog: its full name there, the catalog's name, and the properties that pyiceberg is given."""

    table: str
    name: str
    properties: Mapping[str, str]

    def __repr__(self) -> str:
        return masked_repr(self)

    def __str__(self) -> str:
        return self.properties.get("uri") or self.name

    @property
    def sqlite(self) -> Path | None:
        """The catalog's file, where it is one."""
        uri = self.properties.get("uri", "")
        return Path(_database(uri)) if _SQLITE.fullmatch(uri) else None


def _database(uri: str) -> str:
    """The file that SQLAlchemy opens, which decodes percent signs; what is not installed opens none."""
    try:
        from sqlalchemy import make_url
    except ImportError:
        return uri.partition(":///")[2].partition("?")[0]
    return make_url(uri).database or ""


def catalog_of(folder: Path, options: Mapping[str, str]) -> CatalogSpec:
    """The catalog of the table in `folder` by `spark.options`. Nothing is asked. Raises UsageError."""
    folder = folder.absolute()
    if unfit := _UNFIT.search(str(folder)):
        raise UsageError(
            f"spark.target = {folder} has {unfit[0]!r} in it, and an Iceberg table's files are named by URLs: give a folder"
            " whose path has none of % ? #"
        )
    _refuse_secrets(options)
    if options.get("type") == HADOOP:
        raise UsageError(
            f"spark.options.type = {HADOOP} is the catalog of tables on HDFS, whose rename refuses a name that is there"
            " already. On a disk it does not, and two loaders could have the same commit: leave type out for a SQLite file,"
            " or give spark.target as hdfs://namenode/warehouse/namespace/table with spark.format = iceberg-spark"
        )
    if "py-io-impl" in options:
        raise UsageError(
            "spark.options.py-io-impl: rocketcrew has its own, which fsyncs the table's files: take it out"
        )
    if options.get("type") == "in-memory" or _IN_MEMORY.fullmatch(options.get("uri", "")):
        raise UsageError(
            "spark.options names a catalog in memory, which ends with this process, and the table with it: give a file"
            " (uri = sqlite:////path/catalog.db), or none of catalog, type and uri"
        )
    match = _SQLITE.fullmatch(options.get("uri", ""))
    if match and match[1].startswith(_FILE_URI):
        raise UsageError(
            f"spark.options.uri = {options['uri']} has a URI of SQLite in a URI: give the file by its path, as"
            " sqlite:////data/catalog.db"
        )
    table = options.get("table", f"{NAMESPACE}.{_NO_NAME.sub('_', folder.name)}")
    if not _NAME.fullmatch(table):
        raise UsageError(f"spark.options.table is {table!r}, not as namespace.table")
    given = {name: value for name, value in options.items() if name not in ("table", "catalog")}
    if not {"catalog", "type", "uri"} & options.keys():
        given |= {"type": "sql", "uri": f"sqlite:///{folder.parent / SQLITE_FILE}"}
    if match and not match[1].startswith("/"):  # whoever reads the table may be in another folder
        given["uri"] = f"{match[0][: match.start(1)]}{Path.cwd()}/{match[1]}"
    return CatalogSpec(table, options.get("catalog", CATALOG_NAME), given)


def hadoop_catalog_of(target: str, options: Mapping[str, str]) -> CatalogSpec:
    """The catalog of the table `hdfs://…/namespace/table`: the folder above them. Nothing is asked. Raises UsageError."""
    _refuse_secrets(options)
    for name, value in options.items():
        if name not in ("table", "catalog", "type", "warehouse") or (name == "type" and value != HADOOP):
            raise UsageError(
                f"spark.options.{name} = {value}: a table on HDFS is in Iceberg's Hadoop catalog, which is the folders"
                " themselves, and takes table and catalog only"
            )
    target = target.rstrip("/")
    scheme, _, path = target.partition("://")
    parts = path.split("/")[1:]
    table = options.get("table", ".".join(parts[-2:]))
    names = table.split(".")
    if not _NAME.fullmatch(table) or parts[-len(names) :] != names:
        raise UsageError(
            f"spark.target = {target} is not the folder of the Iceberg table {table!r}: in a Hadoop catalog that is"
            " hdfs://namenode/warehouse/namespace/table, and spark.options.table is namespace.table, without further dots"
        )
    warehouse = f"{scheme}://{path.removesuffix('/' + '/'.join(names))}"
    if options.get("warehouse", warehouse).rstrip("/") != warehouse:
        raise UsageError(
            f"spark.options.warehouse = {options['warehouse']}, and {target} is in {warehouse}: leave it out"
        )
    return CatalogSpec(table, options.get("catalog", CATALOG_NAME), {"type": HADOOP, "warehouse": warehouse})


def _refuse_secrets(options: Mapping[str, str]) -> None:
    for name, value in options.items():
        if is_secret(name, value):
            raise UsageError(
                f"spark.options.{name}: keys of a catalog do not go into settings, but into the environment, as pyiceberg"
                f" reads them: PYICEBERG_CATALOG__{options.get('catalog', CATALOG_NAME).upper()}__"
                f"{name.upper().replace('-', '_').replace('.', '__')}"
            )


def is_secret(name: str, value: str) -> bool:
    """Whether an option is a key or has one: in a URI before the host, or as a query parameter."""
    return any(map(_SECRET.search, (name, *_PARAMETER.findall(value)))) or _WITH_PASSWORD.search(value) is not None


def is_iceberg(table: Place) -> bool:
    """Whether it is an Iceberg table of ours."""
    return isinstance(table, Path | HdfsPath) and (table / STATE_DIR / ICEBERG_FILE).exists()


def read_spec(table: Path | HdfsPath) -> CatalogSpec:
    """The catalog that the table was last loaded through. Raises LoaderError."""
    path = table / STATE_DIR / ICEBERG_FILE
    try:
        data: dict[str, Any] = json.loads(path.read_bytes())
        properties = {str(name): str(value) for name, value in data["properties"].items()}
        return CatalogSpec(str(data["table"]), str(data["catalog"]), properties)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoaderError(
            f"{path} can't be used ({type(error).__name__}: {error}), so it is unknown in which catalog the table is: run a"
            " loader with its spark.options, which writes it anew"
        ) from None


def write_spec(table: Path | HdfsPath, spec: CatalogSpec) -> None:
    """Keep it beside the table's state, where it is not there already. Raises OSError."""
    path = table / STATE_DIR / ICEBERG_FILE
    data = {"table": spec.table, "catalog": spec.name, "properties": dict(spec.properties)}
    text = (json.dumps(data, indent=1) + "\n").encode()
    if not path.exists() or path.read_bytes() != text:
        write_whole(path, text)


def open_catalog(spec: CatalogSpec, folder: Path, *, known: bool) -> Any:
    """pyiceberg's catalog, for the table in `folder`. `known`: it has had the table, and nothing is made where it is missing.

    Raises UsageError when pyiceberg is not installed or refuses the configuration, LoaderError when it can't be asked.
    """
    if spec.sqlite is not None and not spec.sqlite.exists():
        if known:
            raise LoaderError(f"the Iceberg catalog {spec.sqlite} is gone: put the file back. The segments stay")
        make_folders(spec.sqlite.parent)
    try:
        from pyiceberg.exceptions import NoSuchPropertyException, NotInstalledError
    except ImportError as error:
        raise UsageError(
            f"Iceberg tables need the pyiceberg package ({error}): pip install 'rocketcrew[iceberg]'"
        ) from None
    from .iceberg_files import TABLE
    from .iceberg_nulls import keep_nulls

    keep_nulls()
    properties = {
        "init_catalog_tables": "false" if known else "true", "py-io-impl": FILES, TABLE: str(folder), **spec.properties,
    }  # fmt: skip
    with asked(spec):
        try:
            try:
                return _loaded(spec.name, properties)
            except failures():
                if known or spec.sqlite is None:
                    raise
                return _loaded(spec.name, properties)  # another loader has made its tables in the same moment
        except (NoSuchPropertyException, NotInstalledError, ValueError) as error:
            raise UsageError(
                f"spark.options does not name an Iceberg catalog: {short(error)}. For example type = rest and"
                " uri = http://host:8181; or none of catalog, type and uri, for a SQLite file"
            ) from None


def check_catalog(folder: Path, options: Mapping[str, str]) -> None:
    """Have the catalog answer, where it is no file of this host; nothing is made. Raises UsageError, LoaderError."""
    spec = catalog_of(folder, options)
    if spec.sqlite is None:
        open_catalog(spec, folder, known=True).close()


def _loaded(name: str, properties: Mapping[str, str]) -> Any:
    """What pyiceberg makes of the properties and of its own configuration of the catalog `name`; REST with our limit."""
    from pyiceberg.catalog import load_catalog

    kind, whole = merged(CatalogSpec("", name, properties))
    if kind == "rest" and "py-catalog-impl" not in whole and "uri" in whole:
        from .iceberg_rest import LimitedRestCatalog

        return LimitedRestCatalog(name, **whole)
    return load_catalog(name, **properties)


def merged(spec: CatalogSpec) -> tuple[str, Mapping[str, str]]:
    """The catalog's type, "" where none is said, and its properties with those of pyiceberg's own configuration."""
    from pyiceberg.catalog import infer_catalog_type
    from pyiceberg.utils.config import Config, merge_config

    whole: Any = merge_config(Config().get_catalog_config(spec.name) or {}, dict(spec.properties))
    kind = whole.get("type") or infer_catalog_type(spec.name, whole)
    return str(getattr(kind, "value", kind) or "").lower(), whole


def failures() -> tuple[type[Exception], ...]:
    """What pyiceberg raises when a catalog, or a file of a table, can't be used: each class stands by itself there."""
    import pyarrow
    import pyiceberg.exceptions as module

    found = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Exception)]
    try:
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        pass
    else:
        found.append(SQLAlchemyError)
    return (*found, OSError, ValueError, RuntimeError, pyarrow.ArrowException)  # RuntimeError: what a server has not


@contextmanager
def asked(spec: CatalogSpec) -> Generator[None]:
    """Whatever the catalog says, as LoaderError."""
    try:
        yield
    except failures() as error:
        raise LoaderError(
            f"the Iceberg table {spec.table} of the catalog {spec} can't be used: {short(error)}{_remedy(spec, error)}."
            " The segments stay"
        ) from None


def _remedy(spec: CatalogSpec, error: Exception) -> str:
    from pyiceberg.exceptions import AuthorizationExpiredError, ForbiddenError, OAuthError, UnauthorizedError

    if isinstance(error, AuthorizationExpiredError | ForbiddenError | OAuthError | UnauthorizedError):
        return (
            f". Its keys are read from the environment (PYICEBERG_CATALOG__{spec.name.upper()}__TOKEN, or __CREDENTIAL) or"
            " from ~/.pyiceberg.yaml: set them for the loader, with the rights to write the table"
        )
    return remedy(str(error))


def short(error: Exception) -> str:
    """What it says, in a line; of a failed request the first cause, which requests and urllib3 wrap several times."""
    while type(error).__module__.startswith(("requests.", "urllib3.")):
        cause = error.__cause__ or error.__context__
        if not isinstance(cause, Exception):
            break
        error = cause
    return f"{type(error).__name__}: {' '.join(str(error).split())[:SAID_MAX]}"


def location_of(folder: Path) -> str:
    """The folder as Iceberg names places."""
    return f"file://{folder}"


def local_path(location: str) -> Path:
    """The path of a place on this host's file system: `/a`, `file:/a` or `file:///a`."""
    return Path("/" + location.removeprefix("file:").lstrip("/"))


def partition_columns(table: Any) -> tuple[str, ...]:
    """The columns that the table is partitioned by, in their order."""
    return tuple(table.schema().find_column_name(field.source_id) for field in table.spec().fields)


def refuse_transforms(name: str, table: Any, wanted: Sequence[str], *, by_spark: bool) -> None:
    """Somebody has partitioned by more than whole columns, as `days(ts)`: goes on where such rows can be written, and
    spark.partition_by, which has no word for it, names the columns. Raises UsageError."""
    fields = [field for field in table.spec().fields if str(field.transform) not in ("identity", "void")]
    writable = by_spark or find_spec("pyiceberg_core") is not None
    if not fields or (writable and tuple(wanted) == partition_columns(table)):
        return
    said = ", ".join(f"{field.transform}({table.schema().find_column_name(field.source_id)})" for field in fields)
    drops = "; ".join(f"ALTER TABLE {name} DROP PARTITION FIELD {field.name}" for field in fields)
    why = f"spark.partition_by is {list(wanted)}" if writable else "pyiceberg writes that only with pyiceberg-core"
    raise UsageError(
        f"the Iceberg table {name} is partitioned by {said}, and {why}: {drops} in Spark, with Iceberg's SQL extensions, or"
        " the same by update_spec() of pyiceberg. Files that are there stay as they are"
    )


class Main(Enum):
    """What the branch `main` is to the snapshot of our last commit."""

    IN_ORDER = "it is that snapshot, or goes on from it: others may append, delete or merge files"
    ROLLED_BACK = "it does not have that snapshot's rows any more"
    MOVED_BY_HAND = "it has rows of a batch that the state does not know"
    UNKNOWN = "snapshots in between were expired"


def main_is(
    head: int | None, ours: int, batch: int, parents: Mapping[int, int | None], marks: Mapping[int, int]
) -> Main:
    """What `main`, at the snapshot `head`, is to our last commit, the snapshot `ours` of `batch`.

    `parents`: of each snapshot that is kept. `marks`: the batches that snapshots say they are.
    """
    at = head
    while at != ours:
        if at is None or marks.get(at, batch + 1) <= batch:
            return Main.ROLLED_BACK
        if at in marks:
            return Main.MOVED_BY_HAND
        if at not in parents:
            return Main.UNKNOWN
        at = parents[at]
    return Main.IN_ORDER


def last_in_order(
    log: Sequence[int], ours: int, batch: int, parents: Mapping[int, int | None], marks: Mapping[int, int]
) -> int:
    """Where `main` was last with our last commit `ours` and what others had committed on top of it. `log`: where it has been,
    in order; what else is given is as for `main_is`. `ours` where the log does not say.
    """
    kept = (one for one in reversed(log) if one in parents)
    return next((one for one in kept if main_is(one, ours, batch, parents, marks) is Main.IN_ORDER), ours)


@dataclass(frozen=True, slots=True)
class Kept:
    """A snapshot in a table's metadata: id, when it was made (ms since 1970), the batch that it says it is or came after, its
    parent."""

    id: int
    made_ms: int
    batch: int | None
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Branch:
    """What stays of a branch: the newest `least` snapshots from `head` back, and all since `since_ms` (ms since 1970)."""

    head: int
    least: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class Retention:
    """What a table keeps. `refs`: where its branches and tags are. `since_ms`: all snapshots made since then stay."""

    refs: frozenset[int]
    branches: tuple[Branch, ...]
    since_ms: int


def retention(properties: Mapping[str, str], refs: Mapping[str, Any], now_ms: int) -> Retention | None:
    """What is to be kept, as Iceberg says it; None where nothing may be expired. `refs`: pyiceberg's SnapshotRef by name.

    Where the table and a branch say different things, the one that keeps more counts. Raises ValueError for a bad property.
    """
    if properties.get(GC, "true").strip().lower() == "false":
        return None
    age_ms, least = int(properties.get(AGE_MAX, AGE_MAX_MS)), int(properties.get(LEAST, 1))
    branches = (
        Branch(
            int(ref.snapshot_id),
            max(least, ref.min_snapshots_to_keep or 1),
            now_ms - max(age_ms, ref.max_snapshot_age_ms or 0),
        )
        for ref in refs.values()
        if ref.snapshot_ref_type == "branch"
    )
    return Retention(frozenset(int(ref.snapshot_id) for ref in refs.values()), tuple(branches), now_ms - age_ms)


def expirable(snapshots: Sequence[Kept], keep: Retention, ours: int, folded: int) -> list[int]:
    """The snapshots of ours whose entries in the metadata nobody needs, the oldest first, EXPIRED_MAX at most.

    `ours`: the snapshot of our newest batch. `folded`: up to this batch outcomes are merged, and nobody asks any more which
    plan a batch was; it is no higher than the newest batch.
    """
    known = {one.id: one for one in snapshots}
    kept = {ours, *keep.refs}
    for branch in keep.branches:
        at, count = known.get(branch.head), 0
        while at is not None:
            if count < branch.least or at.made_ms >= branch.since_ms:
                kept.add(at.id)
            count += 1
            at = None if at.parent is None else known.get(at.parent)
    found = [
        one
        for one in snapshots
        if one.batch is not None and one.batch <= folded and one.made_ms < keep.since_ms and one.id not in kept
    ]
    return [one.id for one in sorted(found, key=lambda one: one.made_ms)][:EXPIRED_MAX]


def superseded(merges: Iterable[int], snapshots: Sequence[Kept], gone: Collection[int]) -> list[int]:
    """Those of `merges` before which nothing is left: all snapshots but `gone` go on from them, without their old files."""
    after: dict[int | None, list[int]] = {}
    for one in snapshots:
        after.setdefault(one.parent, []).append(one.id)
    left = {one.id for one in snapshots}.difference(gone)
    found: list[int] = []
    for merge in merges:
        within, queue = {merge}, [merge]
        while queue:
            later = after.get(queue.pop(), ())
            within.update(later)
            queue.extend(later)
        if left <= within:
            found.append(merge)
    return found


def added_files(snapshots: Mapping[int, Any], head: int | None, looked_at: int | None, merged: str) -> int:
    """How many files the summaries of the snapshots say they have added, from `head` back to one that has the mark `merged`,
    to `looked_at`, or to the oldest that is kept. `snapshots`: pyiceberg's, by their ids.
    """
    added, at = 0, None if head is None else snapshots.get(head)
    while at is not None and at.snapshot_id != looked_at:
        said: Mapping[str, str] = at.summary.additional_properties if at.summary else {}
        if merged in said:
            break
        added += int(said.get("added-data-files", 0))
        at = snapshots.get(at.parent_snapshot_id)
    return added
