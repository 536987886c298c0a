"""Iceberg tables that Spark writes: in the Hadoop catalog on a genuine HDFS, in a REST catalog, and in a SQLite file.

Run by test_iceberg_spark.py, with the pyspark that Iceberg is built for. One NameNode, one catalog server and one Spark serve
this file: loaders are killed by an exception that nothing in them catches, and one process by SIGKILL. 200 races in `make
soak`.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

from hdfs_cluster import HdfsCluster, cluster_jars
from hdfs_world import HDFS_CONF, small_at
from iceberg_server import IcebergServer, server_jars
from iceberg_stories import branches, killed_within_the_commit
from light_jvm import light_environment
from loader_world import Crash, World, in_order
from loaders import COLUMNS, Loaders
from needs import need
from racers import one_has_each_batch
from segment_helpers import Helpers, Record
from spark_for_iceberg import iceberg_jars

from rocketcrew import read
from rocketcrew.durable.files import CALLS, FileCalls
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.hdfs import hdfs_table
from rocketcrew.spark.iceberg_catalog import CatalogSpec, catalog_of, hadoop_catalog_of, local_path
from rocketcrew.spark.iceberg_spark import VERSIONS_LEAST, JavaCatalog, SparkMerges, SparkRows, configure
from rocketcrew.spark.merging import FILES_LEAST
from rocketcrew.spark.outcome_levels import FAN
from rocketcrew.spark.session import Session, SessionSettings, iceberg_conf, open_session
from rocketcrew.spark.spark_writer import SparkWriter
from rocketcrew.spark.table_state import ledger_outcomes
from rocketcrew.spark.targets import iceberg
from rocketcrew.spark.targets.iceberg import IcebergTarget
from rocketcrew.spark.targets.iceberg_commits import SNAPSHOT, commit_table

CONF: Final = {
    **HDFS_CONF,
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",  # for CALL
}
VERSIONS_OF_A_BATCH: Final = 4
"""Of the metadata: its branch, its rows, the move of `main`, and of a new column or of an expiry one more."""
WHERE: Final = ("hadoop", "rest", "sqlite")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    need("Hadoop's mini cluster", cluster_jars)
    made = HdfsCluster(tmp_path_factory.mktemp("hdfs"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergServer]:
    need("Iceberg's REST server", server_jars)
    made = IcebergServer(tmp_path_factory.mktemp("iceberg"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def session(cluster: HdfsCluster, server: IcebergServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """After the servers, whose JVMs have no use for these options."""
    del cluster, server
    need("Iceberg's jar for Spark", iceberg_jars)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in light_environment().items():
            patch.setenv(name, value)
        folder = tmp_path_factory.mktemp("spark")
        conf = CONF | iceberg_conf(iceberg_jars())
        made = open_session(SessionSettings(folder, driver_memory="800m", conf=conf, env=os.environ))
        yield made
        made.close()


@pytest.fixture(scope="module")
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


class SparkWorld(World):
    """Two staging folders of this host, and a table; all loaders share one JVM."""

    def __init__(self, root: Path, threads: Executor, session: Session, where: str, hdfs: str, rest: str) -> None:
        super().__init__(root, Helpers(), threads, "iceberg")
        self.where = where
        self.session = session
        self.partition_by: tuple[str, ...] | None = None
        name = root.name.replace("-", "_")
        self.url = f"{hdfs}/shop/{name}" if where == "hadoop" else str(self.table)
        self.options = {"table": f"shop.{name}", "catalog": f"{where}-{name}"}
        if where == "rest":
            self.options |= {"type": "rest", "uri": rest}
        if where == "sqlite":
            self.options |= {"type": "sql", "uri": f"sqlite:///{root / 'catalog.db'}"}
        if where == "hadoop":
            self.table: Any = hdfs_table(self.url, session.spark)
        configure(session.spark, self.spec, str(root))

    @property
    def spec(self) -> CatalogSpec:
        return (
            hadoop_catalog_of(self.url, self.options)
            if self.where == "hadoop"
            else catalog_of(self.table, self.options)
        )

    @property
    def name(self) -> str:
        """The table as Spark names it."""
        return f"`{self.spec.name}`.{self.spec.table}"

    def target(self, rows_calls: FileCalls = CALLS, **options: Any) -> IcebergTarget:
        settings = SessionSettings(self.roots[0].parent / "spark", env=os.environ)
        writer = SparkWriter(settings, opening=lambda _: self.session)
        options = {"partition_by": self.partition_by} | options
        if self.where != "hadoop":
            rows = SparkRows(self.spec, str(self.table.parent), writer, rows_calls)
            return IcebergTarget(self.table, self.spec, rows=rows, **options)
        return IcebergTarget(
            hdfs_table(self.url, self.session.spark), self.spec, rows=SparkRows(self.spec, "", writer),
            java=JavaCatalog(self.spec, writer.spark), **options,
        )  # fmt: skip

    def rows(self, *columns: str) -> list[Any]:
        found = self.session.spark.table(self.name).select(*(columns or COLUMNS)).toArrow()
        return in_order(found)

    def sql(self, text: str) -> None:
        self.session.spark.sql(text).collect()

    def read(self) -> list[int]:
        """The offsets, as a user's own session reads them."""
        if self.where == "hadoop":
            return sorted(row["_offset"] for row in read(self.url, spark=self.session.spark).collect())
        return sorted(read(self.table).column("_offset").to_pylist())


@pytest.fixture(params=WHERE)
def world(
    request: pytest.FixtureRequest, tmp_path: Path, threads: Executor, session: Session, cluster: HdfsCluster,
    server: IcebergServer,
) -> SparkWorld:  # fmt: skip
    return SparkWorld(tmp_path, threads, session, request.param, cluster.url("warehouse"), server.uri)


only_hadoop = pytest.mark.parametrize("world", ["hadoop"], indirect=True)
on_this_host = pytest.mark.parametrize("world", ["rest", "sqlite"], indirect=True)


def test_the_pyspark_here_is_one_that_iceberg_is_built_for() -> None:
    assert pyspark.__version__.startswith(("4.0.", "4.1."))


@pytest.mark.parametrize("point", small_at("job_done", "renamed", "deleting"))
def test_killed_at_any_point_taken_over_and_killed_once_more(world: SparkWorld, point: str) -> None:
    world.seal([Record(1, ["a", "b"]), Record(2)])
    world.drain_with_crash(point)
    world.seal([Record(2, ["again"]), Record(3)])
    world.take_over()
    world.drain_with_crash(point)
    world.seal([Record(3, ["again"]), Record(1, ["again"]), Record(4)])
    world.drain(world.loader())
    world.assert_exact()
    world.assert_clean()
    assert branches(world) == []


@pytest.mark.parametrize("made", [False, True])
def test_killed_within_the_commit(world: SparkWorld, made: bool) -> None:
    killed_within_the_commit(world, lambda commit: world.target(commit=commit), made=made)


@pytest.mark.parametrize("races", [3, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_of_two_loaders_one_has_each_batch(world: SparkWorld, races: int) -> None:
    one_has_each_batch(world, races)


@only_hadoop
@pytest.mark.parametrize("table", [pytest.param(each, marks=pytest.mark.soak) for each in range(60)])
def test_of_two_loaders_one_makes_the_table(world: SparkWorld, table: int) -> None:
    """A table that comes between two looks of Java's is an IllegalArgumentException, where the machine has much to do."""
    del table
    one_has_each_batch(world, 1)


def test_control_a_plain_append_after_a_look_has_the_rows_twice(world: SparkWorld) -> None:
    world.load(1)
    for at in (0, 1):
        world.seal([Record(2)], at=at)

    def appends(_table: Any, _requirements: Any, updates: Any) -> None:
        branch = next(name for name in branches(world) if "-00000002-" in name)
        rows = world.session.spark.sql(f"SELECT * FROM {world.name} VERSION AS OF '{branch}' WHERE batch_id = 2")
        kept = world.session.spark.createDataFrame(rows.collect(), rows.schema)
        world.drain(world.loader(1))
        kept.writeTo(world.name).append()
        raise Crash

    with pytest.raises(Crash):
        world.drain(world.loader(0, target=world.target(commit=appends)))
    assert [row[3] for row in world.rows()] == [1, 2, 2]


def test_main_that_was_rolled_back_is_refused_until_the_command_that_is_named_was_run(world: SparkWorld) -> None:
    world.load(1)
    before = world.target().table().current_snapshot().snapshot_id
    world.load(2)
    ours = world.target().table().properties[SNAPSHOT]
    catalog = f"`{world.spec.name}`.system.set_current_snapshot"
    world.sql(f"CALL {catalog}('{world.spec.table}', {before})")
    world.seal([Record(3)])
    with pytest.raises(LoaderError, match=rf"set_current_snapshot\('{world.spec.table}', {ours}\)"):
        world.drain(world.loader())
    world.sql(f"CALL {catalog}('{world.spec.table}', {ours})")
    world.drain(world.loader())
    world.assert_exact()


def test_what_others_commit_meanwhile_stays(world: SparkWorld) -> None:
    world.load(1)
    world.seal([Record(2)])
    done: list[int] = []

    def meanwhile(*commit: Any) -> object:
        if not done:
            done.append(1)
            world.sql(f"ALTER TABLE {world.name} ADD COLUMN theirs array<string>")
            rows = world.session.spark.table(world.name).drop("value", "theirs")
            rows.selectExpr("*", "'foreign' AS value", "array('x') AS theirs").writeTo(world.name).append()
        return commit_table(*commit)

    world.drain(world.loader(target=world.target(commit=meanwhile)))
    world.load(3)
    assert [row[0] for row in world.rows("value")] == ["foreign", "row", "row", "row"]


def test_columns_are_added_and_widened_and_partitions_kept(world: SparkWorld) -> None:
    world.partition_by = ("value",)
    world.seal([Record(1), Record(2, ["other"])])
    world.drain(world.loader())
    world.load(3)
    assert [field.name for field in world.target().table().spec().fields] == ["value"]
    world.assert_exact()
    assert world.read() == [1, 2, 3]


@only_hadoop
@pytest.mark.parametrize("fan", [8, pytest.param(FAN, marks=pytest.mark.soak)])
def test_old_snapshots_are_expired_and_what_is_named_stays(
    world: SparkWorld, fan: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every FAN batches; every eight in each run, as 33 commits by Spark take a minute."""
    monkeypatch.setattr(iceberg, "FAN", fan)
    monkeypatch.setattr(iceberg, "ledger_outcomes", functools.partial(ledger_outcomes, fan=fan))
    for offset in range(1, fan + 2):
        world.seal([Record(offset)])
        world.drain(world.loader(target=world.target(now_s=lambda: time.time() + 2 * 86_400)))
        if offset == 2:
            named = world.target().table().current_snapshot().snapshot_id
            world.target().table().manage_snapshots().create_tag(named, "audit").commit()
    table = world.target().table()
    assert len(table.metadata.snapshots) == 3
    assert table.refs()["audit"].snapshot_id == named
    world.assert_exact()
    versions = list((world.table / "metadata").glob("v*.metadata.json"))
    assert len(versions) <= VERSIONS_LEAST + VERSIONS_OF_A_BATCH


@only_hadoop
@pytest.mark.parametrize("commits_delete", [False, True])
def test_a_writer_that_stood_still_for_many_versions_takes_no_name_that_was_given(
    world: SparkWorld, commits_delete: bool
) -> None:
    """The control: where commits delete old versions it takes one, and what came since is gone. Loaders refuse that."""
    world.load(1)
    catalog: Any = JavaCatalog(world.spec, lambda: world.session.spark)
    switch = "ALTER TABLE {} SET TBLPROPERTIES ('write.metadata.delete-after-commit.enabled' = '{}')"
    if commits_delete:
        world.sql(switch.format(world.name, "true"))
        with pytest.raises(LoaderError, match=r"ALTER TABLE [^\n]*'false'\) in Spark\. The segments stay"):
            world.loader()
    stale, jvm = catalog._operations(world.spec.table), catalog._jvm
    base, properties = stale.current(), jvm.java.util.HashMap()
    properties.put("of", "the stale one")
    made = jvm.org.apache.iceberg.TableMetadata.buildFrom(base).setProperties(properties).build()
    table = catalog.load_table(world.spec.table)
    for number in range(VERSIONS_LEAST + 4):
        with table.transaction() as change:
            change.set_properties(number=str(number))
    if commits_delete:
        stale.commit(base, made)
        assert "number" not in catalog.load_table(world.spec.table).properties
        return
    with pytest.raises(Exception, match="CommitFailedException"):
        stale.commit(base, made)
    world.load(2)
    world.assert_exact()


@on_this_host
def test_a_table_is_continued_by_pyiceberg_and_by_spark_again(world: SparkWorld) -> None:
    world.load(1)
    for first in (2, 4):
        world.seal([Record(first)])
        world.drain(world.loader(target=IcebergTarget(world.table, world.spec)))
        world.load(first + 1)
    world.assert_exact()
    assert world.target().state().batch == 5
    by_pyiceberg = IcebergTarget(world.table, world.spec).table().scan(selected_fields=("_offset",)).to_arrow()
    assert sorted(by_pyiceberg["_offset"].to_pylist()) == [1, 2, 3, 4, 5]


class Synced(FileCalls):
    """Which files and folders were fsynced."""

    def __init__(self) -> None:
        self.paths: set[str] = set()

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        self.paths.add(os.readlink(f"/proc/self/fd/{fd}"))


@on_this_host
def test_what_spark_has_written_is_on_the_disk_before_main_is_moved(world: SparkWorld) -> None:
    calls = Synced()
    looked: list[bool] = []

    def looks(table: Any, requirements: Any, updates: Any) -> object:
        snapshot = table.refresh().snapshot_by_id(updates[0].snapshot_id)
        files = [local_path(task.file.file_path) for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files()]
        files += [local_path(one.manifest_path) for one in snapshot.manifests(table.io)]
        wanted = {str(path) for path in (*files, *(file.parent for file in files), local_path(snapshot.manifest_list))}
        looked.append(bool(files) and wanted <= calls.paths)
        return commit_table(table, requirements, updates)

    world.seal([Record(1), Record(2, ["other"])])
    world.drain(world.loader(target=world.target(rows_calls=calls, commit=looks)))
    assert looked == [True]
    world.assert_exact()


@only_hadoop
def test_a_folder_that_is_no_table_of_ours_is_refused_and_stays(world: SparkWorld) -> None:
    (world.table / "theirs").make_folders()
    world.seal([Record(1)])
    with pytest.raises(Exception, match="holds 'theirs', which is of no Iceberg table of rocketcrew"):
        world.drain(world.loader())
    assert (world.table / "theirs").exists()


class SparkLoaders(Loaders):
    """Loader processes."""

    def __init__(self, folder: Path, world: SparkWorld) -> None:
        super().__init__(folder, "spark")
        folder.mkdir()
        self.table: Any = world.url
        self.settings = {"format": "iceberg-spark", "options": world.options, "iceberg_jars": iceberg_jars()}
        self.settings |= {"conf": CONF}


@pytest.mark.parametrize("world", ["hadoop", pytest.param("rest", marks=pytest.mark.soak), "sqlite"], indirect=True)
def test_a_process_that_is_killed_after_its_commit(world: SparkWorld, tmp_path: Path) -> None:
    loaders = SparkLoaders(tmp_path / "processes", world)
    try:
        loaders.seal(Record(1, ["a", "b"]), Record(2))
        loaders.run(-signal.SIGKILL, crash_point="renamed", **loaders.settings)
        loaders.seal(Record(2, ["again"]), Record(3))
        loaders.run(**loaders.settings)
    finally:
        loaders.end()
    world.written = list(loaders.records.values())
    world.assert_exact()


def merges(world: SparkWorld, **options: Any) -> IcebergTarget:
    """A target that merges small files, as the loader of a table in this place has it."""
    by_spark = None
    if world.where == "hadoop":
        settings = SessionSettings(world.roots[0].parent / "spark", env=os.environ)
        writer = SparkWriter(settings, opening=lambda _: world.session)
        by_spark = SparkMerges(world.spec, writer, JavaCatalog(world.spec, writer.spark))
    return world.target(merge_files=True, spark_merges=by_spark, **options)


def data_files(world: SparkWorld) -> int:
    return world.session.spark.table(f"{world.name}.data_files").count()


def small_files(world: SparkWorld) -> int:
    """As many batches of a file each as are worth a merge; by Spark and, where it can, by pyiceberg, which is quicker."""
    quick = None if world.where == "hadoop" else IcebergTarget(world.table, world.spec)
    for offset in range(1, FILES_LEAST + 1):
        world.seal([Record(offset)])
        world.drain(world.loader(target=quick if 1 < offset < FILES_LEAST else None))
    return FILES_LEAST


class Follower:
    """A stream of Spark over the table, one micro-batch when asked for; and what it has read."""

    def __init__(self, world: SparkWorld, folder: Path) -> None:
        self.read: list[int] = []
        rows = world.session.spark.readStream.format("iceberg").load(world.name)
        writing = rows.writeStream.foreachBatch(
            lambda batch, _: self.read.extend(row[0] for row in batch.select("_offset").collect())
        )
        self._query = writing.option("checkpointLocation", str(folder / "checkpoint")).start()

    def caught_up(self) -> list[int]:
        """All that it has read so far, once it has read what is there. Raises what ended it."""
        self._query.processAllAvailable()
        return sorted(self.read)

    def stop(self) -> None:
        self._query.stop()


@pytest.mark.parametrize("lost", [False, True])
def test_small_files_are_merged_beside_a_stream_and_a_slow_reader(
    world: SparkWorld, tmp_path: Path, lost: bool
) -> None:
    batch = small_files(world)
    offsets = list(range(1, batch + 1))
    following = Follower(world, tmp_path)
    try:
        assert following.caught_up() == offsets
        slow = world.session.spark.table(world.name).select("_offset").repartition(batch).toLocalIterator()
        seen = [next(slow)[0]]

        def overtaken(*commit: Any) -> object:
            if lost:
                world.load(batch + 1)
            return commit_table(*commit)

        merges(world, commit=overtaken).merge(batch)
        assert data_files(world) == (batch + 1 if lost else 1)
        assert sorted(seen + [row[0] for row in slow]) == offsets
        offsets += [batch + 1] * lost
        assert following.caught_up() == offsets
        world.load(batch + 2)
        merges(world).merge(batch + 2)
        world.load(batch + 3)
        assert following.caught_up() == [*offsets, batch + 2, batch + 3], "no row again"
    finally:
        following.stop()
    world.assert_exact()
    assert branches(world) == []


def test_what_is_deleted_by_files_of_deletes_stays_deleted(world: SparkWorld) -> None:
    batch = small_files(world)
    world.sql(f"ALTER TABLE {world.name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    world.seal([Record(100), Record(101)])
    world.drain(world.loader())
    world.sql(f"DELETE FROM {world.name} WHERE _offset = 100")
    left = [*range(1, batch + 1), 101]
    merges(world).merge(batch + 1)
    assert [row[3] for row in world.rows()] == left
    assert data_files(world) < batch

    def overtaken(*commit: Any) -> object:
        world.sql(f"DELETE FROM {world.name} WHERE _offset = 202")
        return commit_table(*commit)

    for first in range(200, 200 + 2 * FILES_LEAST, 2):
        world.seal([Record(first), Record(first + 1)])
        world.drain(world.loader())
        left += [first, first + 1]
    left.remove(202)
    merges(world, commit=overtaken).merge(2 * batch + 1)
    assert [row[3] for row in world.rows()] == left
    merges(world).merge(2 * batch + 1)
    assert [row[3] for row in world.rows()] == left


def test_a_merge_of_the_users_own_is_gone_on_from(world: SparkWorld) -> None:
    batch = small_files(world)
    options = "options => map('min-input-files', '2')"
    world.sql(f"CALL `{world.spec.name}`.system.rewrite_data_files(table => '{world.spec.table}', {options})")
    assert data_files(world) == 1
    world.load(batch + 1)
    world.assert_exact()


@pytest.mark.parametrize("made", [False, True])
def test_a_merge_that_is_killed_before_and_after_main_was_moved(world: SparkWorld, made: bool) -> None:
    def dies(*commit: Any) -> None:
        if made:
            commit_table(*commit)
        raise Crash

    batch = small_files(world)
    with pytest.raises(Crash):
        merges(world, commit=dies).merge(batch)
    assert data_files(world) == (1 if made else batch)
    world.load(batch + 1)
    assert branches(world) == [], "the branch of a merge that was killed is swept at the next start"
    world.assert_exact()


def test_of_two_who_merge_the_same_files_one_does(world: SparkWorld) -> None:
    def overtaken(*commit: Any) -> object:
        merges(world).merge(batch)
        return commit_table(*commit)

    batch = small_files(world)
    merges(world, commit=overtaken).merge(batch)
    assert data_files(world) == 1
    world.assert_exact()
    assert branches(world) == []
