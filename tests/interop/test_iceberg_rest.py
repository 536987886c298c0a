"""An Iceberg table in a genuine REST catalog: exact over kills, take-overs, races and answers that are lost or late.

One server serves this file. Loaders are killed by an exception that nothing in them catches; one is a process, and is killed
by SIGKILL. 200 races in `make soak`.
"""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

from iceberg_server import IcebergServer, LosingProxy, server_jars
from iceberg_stories import branches, killed_within_the_commit, rolled_back_and_taken_forward
from loader_world import Crash, World
from loaders import WAIT_S, Loaders
from needs import need
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import RemoveSnapshotsUpdate
from racers import one_has_each_batch
from segment_helpers import Helpers, Record

from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.iceberg_catalog import CatalogSpec, catalog_of
from rocketcrew.spark.iceberg_rest import WAIT_MAX
from rocketcrew.spark.loader import POINTS
from rocketcrew.spark.outcome_levels import FAN
from rocketcrew.spark.reconciling import reconcile
from rocketcrew.spark.table_keys import table_facts
from rocketcrew.spark.targets.iceberg import IcebergTarget
from rocketcrew.spark.targets.iceberg_commits import commit_table, requirements

NAMESPACE = "shop.daily"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergServer]:
    need("Iceberg's REST server", server_jars)
    made = IcebergServer(tmp_path_factory.mktemp("iceberg"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


class RestWorld(World):
    """Two staging folders of this host, and a table in the catalog at `uri`."""

    def __init__(self, root: Path, threads: Executor, uri: str) -> None:
        super().__init__(root, Helpers(), threads, "iceberg")
        self.options = {"type": "rest", "uri": uri, "table": f"{NAMESPACE}.{root.name}"}

    @property
    def spec(self) -> CatalogSpec:
        return catalog_of(self.table, self.options)

    def target(self, **options: Any) -> IcebergTarget:
        return IcebergTarget(self.table, self.spec, **options)


@pytest.fixture
def world(tmp_path: Path, threads: Executor, server: IcebergServer) -> RestWorld:
    if not server.runs:  # the test before could not start it again
        server.start()
    return RestWorld(tmp_path, threads, server.uri)


@pytest.fixture
def proxy(server: IcebergServer) -> Iterator[LosingProxy]:
    with LosingProxy(server.uri) as made:
        yield made


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_and_taken_over_by_another_slot(world: RestWorld, point: str) -> None:
    world.seal([Record(1, ["a", "b"]), Record(2)])
    world.drain_with_crash(point)
    world.roots[0].rename(world.roots[1])
    world.seal([Record(2, ["again"]), Record(1, ["again"]), Record(3)], at=1)
    world.drain(world.loader(1))
    world.assert_exact()
    world.assert_clean(1)
    assert branches(world) == []


@pytest.mark.parametrize("made", [False, True])
def test_killed_within_the_commit(world: RestWorld, made: bool) -> None:
    killed_within_the_commit(world, lambda commit: world.target(commit=commit), made=made)


class RestLoaders(Loaders):
    """Loader processes."""

    def __init__(self, folder: Path, world: RestWorld) -> None:
        super().__init__(folder, "spark")
        self._world = world
        folder.mkdir()
        self.table = world.table

    def start(self, env: dict[str, str] | None = None, **settings: object) -> subprocess.Popen[bytes]:
        return super().start(env=env, **({"format": "iceberg", "options": self._world.options} | settings))


def test_a_process_that_is_killed_and_the_commands_that_read_its_table(world: RestWorld, tmp_path: Path) -> None:
    loaders = RestLoaders(tmp_path / "processes", world)
    try:
        loaders.seal(Record(1, ["a", "b"]), Record(2))
        loaders.run(-signal.SIGKILL, crash_point="renamed")
        loaders.seal(Record(2, ["again"]), Record(3))
        loaders.run()
        loaders.assert_exact()
        loaders.assert_clean()
    finally:
        loaders.end()
    query = ["query", "--json", "--target", str(world.table), "SELECT count(*) AS n FROM latest"]
    asked = subprocess.run(
        [sys.executable, "-m", "rocketcrew", *query], capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert (asked.returncode, json.loads(asked.stdout)) == (0, [{"n": 4}]), asked.stderr


# A request that was made, and whose answer never came: the table is made by commit 0, a branch by 1, and `main` moved by 2.


@pytest.mark.parametrize("fault", ["cut", "504", "late", "503"])
@pytest.mark.parametrize("commit", [0, 1, 2])
def test_an_answer_that_is_lost_or_late_is_no_second_batch(
    world: RestWorld, proxy: LosingProxy, commit: int, fault: str
) -> None:
    world.options["uri"] = proxy.uri
    proxy.faults[commit] = fault
    world.seal([Record(1), Record(2)])
    for _ in range(2):
        with suppress(LoaderError):
            world.drain(world.loader())
    assert proxy.faults == {}
    world.seal([Record(2, ["again"]), Record(3)])
    world.drain(world.loader())
    proxy.make_late_ones()
    world.assert_exact()
    world.assert_clean()
    assert world.target().state().batch == 2


def test_a_late_move_of_main_after_another_loaders_batch_is_refused_by_the_server(
    world: RestWorld, proxy: LosingProxy
) -> None:
    world.load(1)
    world.seal([Record(2)])
    there = world.options["uri"]
    world.options["uri"] = proxy.uri
    proxy.faults[1] = "late"
    with pytest.raises(LoaderError, match="The segments stay"):
        world.drain(world.loader())
    world.options["uri"] = there
    world.seal([Record(2), Record(3)], at=1)
    world.drain(world.loader(1))
    proxy.make_late_ones()
    world.drain(world.loader())
    world.assert_exact()
    world.assert_clean()


@pytest.mark.parametrize("races", [10, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_of_two_loaders_one_has_each_batch(world: RestWorld, races: int) -> None:
    one_has_each_batch(world, races)
    facts, broken = table_facts(world.table, world.roots)
    assert (broken, reconcile(facts, None).fine) == ([], True)


def test_control_a_plain_append_after_a_look_has_the_rows_twice(world: RestWorld) -> None:
    world.load(1)
    for at in (0, 1):
        world.seal([Record(2)], at=at)

    def appends(table: Any, _requirements: Any, updates: Any) -> None:
        rows = table.refresh().scan(snapshot_id=updates[0].snapshot_id).to_arrow()
        looked_at = world.target().table()
        world.drain(world.loader(1))
        looked_at.append(rows.filter(pa.compute.equal(rows["batch_id"], 2)))
        raise Crash

    with pytest.raises(Crash):
        world.drain(world.loader(0, target=world.target(commit=appends)))
    assert [row[3] for row in world.rows()] == [1, 2, 2]


def test_main_that_was_rolled_back_is_refused_until_the_command_that_is_named_was_run(world: RestWorld) -> None:
    rolled_back_and_taken_forward(world)


def test_old_snapshots_are_expired_unless_a_tag_that_is_known_was_moved_meanwhile(world: RestWorld) -> None:
    for offset in range(1, FAN + 2):
        world.seal([Record(offset)])
        world.drain(world.loader(target=world.target(now_s=lambda: time.time() + 7 * 3600)))
        if offset == 2:
            table = world.target().table()
            named = table.current_snapshot().snapshot_id
            table.manage_snapshots().create_tag(named, "audit").commit()
    table = world.target().table()
    assert len(table.metadata.snapshots) == 3
    assert table.refs()["audit"].snapshot_id == named
    needed, newest = requirements(table, table.metadata.refs), table.current_snapshot().snapshot_id
    world.target().table().manage_snapshots().remove_tag("audit").commit()
    world.target().table().manage_snapshots().create_tag(newest, "audit").commit()
    removes: Any = RemoveSnapshotsUpdate
    with pytest.raises(CommitFailedException):
        commit_table(table, needed, (removes(snapshot_ids=[named]),))
    world.assert_exact()


def test_looks_at_the_table_leave_no_descriptor_open(world: RestWorld) -> None:
    world.load(1)
    target = world.target()
    gc.collect()
    gc.disable()  # which would close them now and then
    try:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            target.state()
            world.target().state()
        assert len(os.listdir("/proc/self/fd")) <= before
    finally:
        gc.enable()


# ----------------------------------------------------------------------------------- a server that is away, or none at all


def test_a_server_that_is_away_is_said_in_a_line_and_nothing_is_lost(world: RestWorld, server: IcebergServer) -> None:
    world.load(1)
    world.seal([Record(2)])

    def stop(point: str) -> None:
        if point == "noted":
            server.stop()

    loader = world.loader(on_point=stop)
    said = re.compile(
        r"the Iceberg table [^\n]* of the catalog http://127\.0\.0\.1:\d+ can't be used: [^\n]*The segments stay"
    )
    try:
        with pytest.raises(LoaderError, match=said):
            world.drain(loader)
        with pytest.raises(LoaderError, match=r"can't be used: ConnectionRefusedError: [^\n]* The segments stay"):
            world.loader()
    finally:
        server.start()
    world.drain(world.loader())
    world.assert_exact()
    world.assert_clean()


def test_a_server_that_refuses_who_asks_is_said_with_where_keys_come_from(world: RestWorld, proxy: LosingProxy) -> None:
    world.load(1)
    world.options |= {"uri": proxy.uri, "catalog": "prod"}
    path = world.seal([Record(2)])
    proxy.faults |= {0: "401", 1: "401"}  # pyiceberg asks once more, with the same key
    with pytest.raises(LoaderError, match=r"UnauthorizedError: Refused: said by the proxy[^\n]*The segments stay"):
        world.drain(world.loader())
    assert path.exists()
    world.drain(world.loader())
    world.assert_exact()


@pytest.mark.parametrize("uri", ["127.0.0.1:8181", "nohost", "htp://127.0.0.1:8181"])
def test_what_is_no_address_is_a_users_mistake(tmp_path: Path, uri: str) -> None:
    spec = catalog_of(tmp_path / "t", {"type": "rest", "uri": uri})
    with pytest.raises(
        UsageError, match=r"spark\.options does not name an Iceberg catalog: [^\n]*For example type = rest"
    ):
        IcebergTarget(tmp_path / "t", spec).state()


def test_a_server_that_says_nothing_is_waited_for_as_long_as_is_set(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        spec = catalog_of(tmp_path / "t", {"type": "rest", "uri": uri, WAIT_MAX: "100"})
        with pytest.raises(LoaderError, match=r"can't be used: [^\n]*(timed out|Timeout)[^\n]*The segments stay"):
            IcebergTarget(tmp_path / "t", spec).state()
