"""A table on a genuine HDFS: exact over kills, take-overs, races and a NameNode that refuses or is away.

One NameNode and one Spark serve this file: loaders are killed by an exception that nothing in them catches. A few real
processes are killed by SIGKILL; all points of that, and 200 races, in `make soak`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

from hdfs_cluster import HdfsCluster, cluster_jars
from hdfs_world import HDFS_CONF, HdfsWorld, small_at
from light_jvm import light_environment
from loaders import WAIT_S, Loaders
from needs import need
from racers import Racers, one_has_each_batch
from segment_helpers import Record

from rocketcrew import read
from rocketcrew.durable.intervals import OffsetSet
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.hdfs import HdfsPath, hdfs_table
from rocketcrew.spark.object_store import Place
from rocketcrew.spark.plan import Plan
from rocketcrew.spark.session import Session, SessionSettings, open_session
from rocketcrew.spark.targets.hdfs_folder import HdfsFolder
from rocketcrew.spark.targets.parquet import batch_folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    need("Hadoop's mini cluster", cluster_jars)
    made = HdfsCluster(tmp_path_factory.mktemp("hdfs"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def session(cluster: HdfsCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """After the cluster, whose JVM has no use for these options."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in light_environment().items():
            patch.setenv(name, value)
        folder = tmp_path_factory.mktemp("spark")
        made = open_session(SessionSettings(folder, driver_memory="600m", conf=HDFS_CONF, env=os.environ))
        yield made
        made.close()


@pytest.fixture(scope="module")
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def world(
    request: pytest.FixtureRequest, tmp_path: Path, threads: Executor, session: Session, cluster: HdfsCluster
) -> HdfsWorld:
    if not cluster.runs:  # the test before could not start it again
        cluster.start()
    return HdfsWorld(tmp_path, threads, session, cluster.url(tmp_path.name), getattr(request, "param", HdfsFolder))


@pytest.mark.parametrize("point", small_at("job_done", "renamed", "deleting"))
def test_killed_at_any_point_taken_over_and_killed_once_more(world: HdfsWorld, point: str) -> None:
    world.seal([Record(1, ["a", "b"]), Record(2)])
    world.drain_with_crash(point)
    world.seal([Record(2, ["again"]), Record(3)])
    world.take_over()
    world.drain_with_crash(point)
    world.seal([Record(3, ["again"]), Record(1, ["again"]), Record(4)])
    world.drain(world.loader())
    world.assert_exact()
    world.assert_clean()


def test_what_lies_there_is_spark_s_rows_and_our_state(world: HdfsWorld) -> None:
    for offset in range(3):
        world.seal([Record(offset)])
        world.drain(world.loader())
    assert sorted(path.name for path in world.place.iterdir()) == [f"batch_id={batch}" for batch in (1, 2, 3)]
    state = world.target().state()
    assert (state.batch, state.loaded.count()) == (3, 3)
    assert world.rows("batch_id", "_offset") == [(1, 0), (2, 1), (3, 2)]
    latest = read(world.url, spark=world.spark, latest=True)
    assert latest.count() == 3


def test_a_foreign_folder_is_refused_and_stays(world: HdfsWorld) -> None:
    (world.place / "theirs").make_folders()
    world.seal([Record(1)])
    with pytest.raises(Exception, match="'theirs', which is no batch of rocketcrew"):
        world.drain(world.loader())
    assert [path.name for path in world.place.iterdir()] == ["theirs"]


@pytest.mark.parametrize("races", [5, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_of_two_loaders_one_has_each_batch(world: HdfsWorld, races: int) -> None:
    one_has_each_batch(world, races)


class MovedInto(HdfsFolder):
    """The control: the rename that every other program would take."""

    def publish(self, output: Place, batch: Place) -> None:
        assert isinstance(output, HdfsPath)
        jvm, hdfs = output.root.jvm, output.root
        files = jvm.org.apache.hadoop.fs.FileSystem.get(
            jvm.java.net.URI.create(hdfs.url), jvm.org.apache.hadoop.conf.Configuration()
        )
        if not files.rename(hdfs.path(str(output)), hdfs.path(str(batch))):
            raise FileExistsError(str(batch))


@pytest.mark.parametrize(("folder", "races", "winners"), [(HdfsFolder, 200, 1), (MovedInto, 10, 2)])
def test_batches_that_two_rename_at_once(world: HdfsWorld, folder: type[HdfsFolder], races: int, winners: int) -> None:
    """The commit alone, without Spark's jobs: one has each batch, and by the usual rename both."""
    both = [folder(hdfs_table(world.url, world.spark)) for _ in range(2)]
    together = threading.Barrier(2)

    def run(at: int) -> list[bool]:
        won: list[bool] = []
        for batch in range(1, races + 1):
            output = both[at].prepare(Plan(f"{batch:08d}-{at}", batch, (), OffsetSet(), ()))
            together.wait(WAIT_S)
            try:
                both[at].publish(output, batch_folder(world.place, batch))
                won.append(True)
            except FileExistsError:
                won.append(False)
        return won

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(run, (0, 1))
    assert [mine + theirs for mine, theirs in zip(first, second, strict=True)] == [winners] * races


@pytest.mark.parametrize("world", [MovedInto], indirect=True)
def test_control_the_usual_rename_gives_one_batch_to_both(world: HdfsWorld) -> None:
    racers = Racers(world)
    racers.race(1)
    assert racers.batches == [[1], [1]], "both were told that they have it, and have deleted their segments"
    assert world.target().state().loaded.count() == 1
    inside = [path.name for path in (world.place / "batch_id=1").iterdir() if path.is_dir()]
    assert len(inside) == 1, "the later one went into the folder of the first"
    world.seal([Record(0, ["again"]), Record(1, ["again"])])
    world.drain(world.loader())
    assert len(world.rows()) == 3, "what the state does not know is loaded a second time"


def test_a_name_node_in_safe_mode_is_said_and_nothing_is_lost(world: HdfsWorld) -> None:
    world.seal([Record(1)])
    world.drain(world.loader())
    jvm = world.place.root.jvm
    fs = jvm.org.apache.hadoop.fs
    files = fs.FileSystem.get(jvm.java.net.URI.create(world.url), jvm.org.apache.hadoop.conf.Configuration())
    world.seal([Record(2)])
    loader = world.loader()
    files.setSafeMode(fs.SafeModeAction.ENTER)
    try:
        with pytest.raises(LoaderError, match=r"the NameNode is in safe mode .* the segments stay"):
            world.drain(loader)
        assert len(list((world.roots[0] / "ready").iterdir())) == 1
    finally:
        files.setSafeMode(fs.SafeModeAction.LEAVE)
    world.drain(world.loader())
    world.assert_exact()
    world.assert_clean()


def test_a_name_node_that_is_away_is_said_and_nothing_is_lost(world: HdfsWorld, cluster: HdfsCluster) -> None:
    world.seal([Record(1)])
    world.drain(world.loader())
    world.seal([Record(2)])

    def stop(point: str) -> None:
        if point == "noted":
            cluster.stop()

    loader = world.loader(on_point=stop)
    try:
        with pytest.raises(LoaderError, match=r"HDFS can't be asked or fails: .* the segments stay"):
            world.drain(loader)
        with pytest.raises(LoaderError, match=r"HDFS can't be asked or fails: .* the segments stay"):
            world.loader()
        assert len(list((world.roots[0] / "ready").iterdir())) == 1
    finally:
        cluster.start()
    world.drain(world.loader())
    world.assert_exact()
    world.assert_clean()


def test_what_hadoop_takes_for_a_wrong_argument_is_said(session: Session) -> None:
    """Of those pyspark makes errors of its own."""
    with pytest.raises(LoaderError, match=r"HDFS can't be asked or fails: .*no-such-host\.invalid.* the segments stay"):
        hdfs_table("hdfs://no-such-host.invalid:8020/table", session.spark).exists()


class HdfsLoaders(Loaders):
    """Loader processes, each with a JVM of its own."""

    def __init__(self, folder: Path, world: HdfsWorld) -> None:
        super().__init__(folder, "spark")
        self._world = world
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.table = world.table

    def start(self, env: dict[str, str] | None = None, **settings: object) -> subprocess.Popen[bytes]:
        return super().start(
            env=env, **({"target": self._world.url, "format": "parquet", "conf": HDFS_CONF} | settings)
        )

    def rows(self) -> list[tuple[object, ...]]:
        return self._world.rows()


@pytest.fixture
def loaders(tmp_path: Path, world: HdfsWorld) -> Iterator[HdfsLoaders]:
    made = HdfsLoaders(tmp_path / "processes", world)
    yield made
    made.end()


@pytest.mark.parametrize("point", small_at("renamed"))
def test_a_process_that_is_killed(loaders: HdfsLoaders, world: HdfsWorld, point: str) -> None:
    loaders.seal(Record(1, ["a", "b"]), Record(2))
    loaders.run(-signal.SIGKILL, crash_point=point)
    loaders.seal(Record(2, ["again"]), Record(3))
    loaders.run()
    loaders.assert_exact()
    loaders.assert_clean()
    query = ["query", "--json", "--target", world.url, "SELECT count(*) AS n FROM latest"]
    asked = subprocess.run(
        [sys.executable, "-m", "rocketcrew", *query],
        capture_output=True, text=True, check=False, timeout=WAIT_S,
    )  # fmt: skip
    assert asked.stdout == '[{"n": 4}]\n', asked.stderr
