"""The Iceberg table: exact whatever dies and whoever else commits, refused when `main` is not what the state says."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from iceberg_stories import branches, killed_within_the_commit, rolled_back_and_taken_forward
from loader_world import Crash, World
from pyiceberg.exceptions import CommitFailedException
from sqlalchemy import Engine, event

from rocketcrew.cli.reading import DuckViews, dataset
from rocketcrew.durable.files import FileCalls
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.compaction import compact
from rocketcrew.spark.epochs import EpochRequest
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.iceberg_catalog import (
    Main,
    catalog_of,
    is_iceberg,
    main_is,
    read_spec,
)
from rocketcrew.spark.iceberg_files import SyncedFileIO
from rocketcrew.spark.iceberg_rest import WAIT_MAX, LimitedRestCatalog
from rocketcrew.spark.loader import POINTS
from rocketcrew.spark.reconciling import reconcile
from rocketcrew.spark.table_columns import table_columns
from rocketcrew.spark.table_keys import table_facts
from rocketcrew.spark.targets.iceberg import IcebergTarget
from rocketcrew.spark.targets.iceberg_commits import commit_table

TABLES = ("iceberg",)


def target_of(
    world: World, commit: Callable[[Any, Any, Any], object], by: tuple[str, ...] | None = None
) -> IcebergTarget:
    return IcebergTarget(world.table, catalog_of(world.table, {}), by, commit=commit)


# ------------------------------------------------------------------------------------------------------ pure decisions


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (30, Main.IN_ORDER),
        (41, Main.IN_ORDER),  # somebody appended twice
        (20, Main.ROLLED_BACK),  # to our batch before
        (10, Main.ROLLED_BACK),  # to the first snapshot
        (21, Main.ROLLED_BACK),  # and somebody appended
        (None, Main.ROLLED_BACK),
        (32, Main.MOVED_BY_HAND),  # to the branch of a plan that was never committed
        (33, Main.MOVED_BY_HAND),
        (60, Main.UNKNOWN),
    ],
)
def test_what_main_is_to_our_last_commit(head: int | None, found: Main) -> None:
    parents = {10: None, 20: 10, 21: 20, 30: 20, 32: 30, 33: 32, 40: 30, 41: 40, 60: 59}
    marks = {10: 0, 20: 1, 30: 2, 32: 3}
    assert main_is(head, 30, 2, parents, marks) is found


def test_without_options_the_catalog_is_a_file_beside_the_table(tmp_path: Path) -> None:
    spec = catalog_of(tmp_path / "orders.v2", {})
    assert (spec.table, spec.name, spec.sqlite) == ("default.orders_v2", "rocketcrew", tmp_path / "catalog.db")
    rest = catalog_of(tmp_path / "t", {"table": "a.b.c", "catalog": "prod", "type": "rest", "uri": "http://host:8181"})
    assert (rest.table, rest.name, rest.sqlite) == ("a.b.c", "prod", None)
    assert rest.properties == {"type": "rest", "uri": "http://host:8181"}
    assert catalog_of(tmp_path / "t", {"catalog": "prod"}).properties == {}, "as pyiceberg's own configuration has it"
    assert catalog_of(tmp_path / "my  orders.v2", {}).table == "default.my__orders_v2"
    no_key = {"type": "rest", "uri": "http://host:8181/?user=me", "partition-key": "day"}
    assert catalog_of(tmp_path / "t", no_key).properties == no_key


def test_a_relative_sqlite_file_is_the_same_one_from_any_folder(tmp_path: Path) -> None:
    spec = catalog_of(tmp_path / "t", {"uri": "sqlite:///./some/cat.db?timeout=9"})
    assert spec.sqlite == Path("some/cat.db").absolute()
    assert spec.properties["uri"] == f"sqlite:///{Path.cwd()}/./some/cat.db?timeout=9"


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("t", {"token": "hidden"}, "PYICEBERG_CATALOG__ROCKETCREW__TOKEN"),
        ("t", {"catalog": "prod", "s3.secret-access-key": "hidden"}, "PYICEBERG_CATALOG__PROD__S3__SECRET_ACCESS_KEY"),
        ("t", {"uri": "postgresql://me:hidden@host/db"}, "PYICEBERG_CATALOG__ROCKETCREW__URI"),
        ("t", {"uri": "postgresql+psycopg2://host/db?user=me&password=hidden"}, "PYICEBERG_CATALOG__ROCKETCREW__URI"),
        ("t", {"uri": "mssql://host/db?odbc_connect=x;PWD=hidden"}, "PYICEBERG_CATALOG__ROCKETCREW__URI"),
        ("t", {"header.Authorization": "Bearer hidden"}, "PYICEBERG_CATALOG__ROCKETCREW__HEADER__AUTHORIZATION"),
        ("t", {"type": "in-memory"}, "a catalog in memory"),
        ("t", {"uri": "sqlite://"}, "a catalog in memory"),
        ("t", {"uri": "sqlite:///:memory:"}, "a catalog in memory"),
        ("t", {"uri": "sqlite+pysqlite:///file:x?mode=memory&uri=true"}, "a catalog in memory"),
        ("t", {"uri": "sqlite:///file:/data/cat.db?uri=true"}, "give the file by its path, as sqlite:////data"),
        ("t", {"uri": "sqlite+pysqlite:///file:cat.db"}, "give the file by its path, as sqlite:////data"),
        ("t", {"py-io-impl": "a.b"}, "take it out"),
        ("t", {"table": "orders"}, "not as namespace.table"),
        ("a%20b", {}, "'%' in it"),
    ],
)
def test_options_that_are_refused(tmp_path: Path, name: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        catalog_of(tmp_path / name, options)
    assert "hidden" not in str(refused.value)


NO_KEYS: dict[str, str] = {}
CREDENTIAL = {"credential": "id:hidden"}
SIGNED = {
    "rest.sigv4-enabled": "true",
    "rest.sigv4.max-retries": "1",
    "client.access-key-id": "id",
    "client.secret-access-key": "hidden",
    "client.region": "us-east-1",
}


@pytest.mark.timeout(120, method="signal")
@pytest.mark.parametrize("keys", [NO_KEYS, CREDENTIAL, *([SIGNED] if find_spec("boto3") else [])])
def test_a_rest_server_that_says_nothing_is_given_up_however_one_signs_in(keys: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(OSError, match="timed out"):
            LimitedRestCatalog(
                "rocketcrew", **{"uri": uri, "oauth2-server-uri": f"{uri}/token", WAIT_MAX: "50"}, **keys
            )


# ------------------------------------------------------------------------------------------------------------- one loader


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_and_taken_over_by_another_slot(world: World, point: str) -> None:
    record = world.helpers.Record
    world.load(1)
    world.seal([record(2, ["a", "b"]), record(3)])
    world.drain_with_crash(point)
    world.roots[0].rename(world.roots[1])
    world.seal([record(3, ["again"]), record(1, ["again"]), record(4)], at=1)
    world.drain(world.loader(1))
    world.assert_exact()
    world.assert_clean(1)
    assert branches(world) == []


@pytest.mark.parametrize("made", [False, True])
def test_killed_within_the_commit(world: World, made: bool) -> None:
    killed_within_the_commit(world, partial(target_of, world), made=made)


@pytest.mark.parametrize("error", [CommitFailedException("of the second try"), OSError("connection reset")])
def test_an_answer_that_is_lost_is_no_second_batch(world: World, error: Exception) -> None:
    def loses(*commit: Any) -> None:
        commit_table(*commit)
        raise error

    world.seal([world.helpers.Record(1)])
    loader = world.loader(target=target_of(world, loses))
    world.drain(loader)
    assert (loader.totals.batches, loader.totals.replanned) == (1, 0)
    world.assert_exact()
    world.assert_clean()


def test_looks_at_the_table_leave_no_descriptor_open(world: World) -> None:
    world.load(1)
    target = world.target()
    gc.disable()  # which would close them now and then
    try:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            target.state()
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()


def test_a_commit_that_is_refused_for_another_reason_keeps_the_segments(world: World) -> None:
    def refuses(*_: Any) -> None:
        raise OSError("No space left on device")

    path = world.seal([world.helpers.Record(1)])
    with pytest.raises(LoaderError, match=r"No space left on device.*The segments stay"):
        world.drain(world.loader(target=target_of(world, refuses)))
    assert path.exists()
    world.drain(world.loader())
    world.assert_exact()


class Recording(FileCalls):
    """Which files and folders were fsynced, in order."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        self.synced.append(os.readlink(f"/proc/self/fd/{fd}"))


RECORDED = Recording()


class RecordedIO(SyncedFileIO):
    calls = RECORDED


def test_what_a_catalog_names_is_on_the_disk_before_with_the_names_of_new_folders(world: World) -> None:
    """Also the branch, the branch that is removed, and the commit that another one was faster than."""
    spec = catalog_of(world.table, {})
    spec = replace(spec, properties={**spec.properties, "py-io-impl": f"{RecordedIO.__module__}.RecordedIO"})
    synced = RECORDED.synced
    named: list[str] = []

    def names(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if not statement.startswith(("INSERT INTO iceberg_tables", "UPDATE iceberg_tables")):
            return
        named.append(statement)
        files = [path for kind in ("data", "metadata") for path in (world.table / kind).rglob("*") if path.is_file()]
        assert any(str(path).endswith(".metadata.json") and f"file://{path}" in map(str, parameters) for path in files)
        for path in files:
            at = synced.index(str(path))
            below = [one for one in path.parents if one.is_relative_to(world.table)]
            assert below
            assert [one for one in below if str(one) not in synced[at:]] == [], path

    def dies(*_: Any) -> None:
        raise Crash

    event.listen(Engine, "before_cursor_execute", names)
    try:
        for offset, commit in ((1, commit_table), (2, dies), (3, commit_table)):
            world.seal([world.helpers.Record(offset, [f"part-{offset}"])])
            with suppress(Crash):
                world.drain(world.loader(target=IcebergTarget(world.table, spec, ("value",), commit=commit)))
    finally:
        event.remove(Engine, "before_cursor_execute", names)
    assert len(named) >= 6
    world.assert_exact()


class AtCatalog(FileCalls):
    """What is there each time the catalog's folder is fsynced: its journal, the newest metadata file, and segments."""

    def __init__(self, catalog: Path, ready: Path) -> None:
        self._catalog = catalog
        self._ready = ready
        self.seen: list[tuple[bool, str, int]] = []

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        if os.readlink(f"/proc/self/fd/{fd}") == str(self._catalog.parent):
            with closing(sqlite3.connect(self._catalog)) as connection:
                ((newest,),) = connection.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
            self.seen.append((Path(f"{self._catalog}-journal").exists(), newest, len(list(self._ready.iterdir()))))


@pytest.mark.parametrize("point", ["", "renamed", "duplicates"])
def test_no_segment_is_deleted_before_the_end_of_the_catalogs_journal_is_on_the_disk(world: World, point: str) -> None:
    """Also by a loader that finds another one's commit: of its own plan, or of records that it has too."""
    calls = AtCatalog(world.table.parent.resolve() / "catalog.db", world.roots[0] / "ready")
    world.seal([world.helpers.Record(1)])
    if point == "renamed":
        world.drain_with_crash(point)
    elif point == "duplicates":
        world.drain(world.loader())
        world.seal([world.helpers.Record(1, ["again"])])
    target = IcebergTarget(world.table, catalog_of(world.table, {}), calls=calls)
    world.drain(world.loader(target=target))
    world.assert_exact()
    world.assert_clean()
    assert (False, world.target().table().metadata_location, 1) in calls.seen


# ---------------------------------------------------------------------------------------------------------- several loaders


def test_of_two_loaders_with_the_same_records_one_brings_them(world: World, full_numbers: bool) -> None:
    """Each time the other one commits in the moment in which rows are on the branch and `main` is about to move."""
    rounds = 200 if full_numbers else 10
    for first in range(1, 2 * rounds, 2):
        for at in (0, 1):
            world.seal([world.helpers.Record(first), world.helpers.Record(first + 1)], at=at)
        overtaken: list[int] = []

        def overtakes(*commit: Any, overtaken: list[int] = overtaken) -> None:
            if not overtaken:
                overtaken.append(1)
                world.drain(world.loader(1))
            commit_table(*commit)

        loader = world.loader(0, target=target_of(world, overtakes))
        world.drain(loader)
        assert loader.totals.replanned == 1
    world.assert_exact()
    assert (branches(world), world.target().state().batch) == ([], rounds)


class OthersMakeIt(IcebergTarget):
    """Behind this look at the table, which there is not yet, another loader makes it and loads its first batch."""

    def __init__(self, world: World, look: int) -> None:
        super().__init__(world.table, catalog_of(world.table, {}))
        self.looks_until = look
        self.world = world

    def table(self) -> Any:
        found = super().table()
        self.looks_until -= 1
        if self.looks_until == 0:
            assert found is None
            self.world.drain(self.world.loader(1))
        return found


@pytest.mark.parametrize("look", range(1, 5))
def test_a_table_that_another_loader_makes_meanwhile_is_nobodys_else(world: World, look: int) -> None:
    for at in (0, 1):
        world.seal([world.helpers.Record(1 + at)], at=at)
    target = OthersMakeIt(world, look)
    world.drain(world.loader(0, target=target))
    assert target.looks_until < 1
    world.assert_exact()


def test_control_a_plain_append_after_a_look_has_the_rows_twice(world: World) -> None:
    """The transaction of ours is replaced by an append to `main`, made after the same look at batch and plan."""
    record = world.helpers.Record
    world.load(1)
    for at in (0, 1):
        world.seal([record(2), record(3)], at=at)

    def appends(table: Any, _requirements: Any, updates: Any) -> None:
        rows = table.refresh().scan(snapshot_id=updates[0].snapshot_id).to_arrow()
        looked_at = world.target().table()
        world.drain(world.loader(1))
        looked_at.append(rows.slice(0, 2) if rows["batch_id"][0].as_py() == 2 else rows.slice(rows.num_rows - 2))
        raise Crash

    with pytest.raises(Crash):
        world.drain(world.loader(0, target=target_of(world, appends)))
    assert [row[3] for row in world.rows()] == [1, 2, 2, 3, 3]


def test_what_others_append_to_main_stays_and_the_batch_is_made_on_top(world: World) -> None:
    world.load(1)
    foreign: list[int] = []

    def meanwhile(*commit: Any) -> None:
        if not foreign:
            foreign.append(1)
            world.target().table().append(pa.table({"value": ["foreign"]}))
        commit_table(*commit)

    world.seal([world.helpers.Record(2)])
    loader = world.loader(target=target_of(world, meanwhile))
    world.drain(loader)
    assert loader.totals.replanned == 0
    assert [row[0] for row in world.rows("value")] == ["foreign", "row", "row"]
    world.target().table().append(pa.table({"value": ["foreign"]}))
    world.load(3)
    assert world.target().state().batch == 3


class OvertakenAtItsBranch(IcebergTarget):
    """Somebody commits after the table was read and before the rows are on the branch."""

    def __init__(self, world: World, overtakes: Callable[[], object]) -> None:
        super().__init__(world.table, catalog_of(world.table, {}))
        self._overtakes = [overtakes]

    def _on_branch(self, table: Any, plan: Any, staged: Any) -> tuple[int, int]:
        if self._overtakes:
            self._overtakes.pop()()
        return super()._on_branch(table, plan, staged)


def test_a_snapshot_that_comes_before_the_branch_is_no_error(world: World) -> None:
    """pyiceberg calls it a ValueError (the sequence number is taken), not a conflict."""
    world.load(1)
    world.seal([world.helpers.Record(2)])
    table = world.target().table()
    target = OvertakenAtItsBranch(world, lambda: table.append(pa.table({"value": ["foreign"]})))
    world.drain(world.loader(target=target))
    assert [row[0] for row in world.rows("value")] == ["foreign", "row", "row"]


def test_what_main_must_be_is_what_the_plan_was_made_for_and_not_what_the_branch_met(world: World) -> None:
    """Another loader's `main` moves while our rows go to the branch: pyiceberg's table is the new one after that."""
    world.load(1)
    world.seal([world.helpers.Record(2)], at=0)
    world.seal([world.helpers.Record(3)], at=1)

    def moves_main_in_the_others_branch(*commit: Any) -> None:
        other = OvertakenAtItsBranch(world, lambda: commit_table(*commit))
        loader = world.loader(1, target=other)
        world.drain(loader)
        assert loader.totals.replanned == 1
        raise OSError("the answer was lost, and the other one is the newest batch now")

    loader = world.loader(0, target=target_of(world, moves_main_in_the_others_branch))
    world.drain(loader)
    assert loader.totals.replanned == 0
    world.assert_exact()
    world.assert_clean()
    assert world.target().state().batch == 3


def test_a_commit_that_others_go_on_from_before_it_is_looked_at_is_known_as_ours(world: World) -> None:
    world.seal([world.helpers.Record(1)], at=0)
    world.seal([world.helpers.Record(2)], at=1)

    def is_gone_on_from(*commit: Any) -> Any:
        answer = commit_table(*commit)
        world.drain(world.loader(1))
        return answer

    (report,) = world.drain(world.loader(0, target=target_of(world, is_gone_on_from)))
    assert report.batch == 1
    assert world.target().state().batch == 2
    world.assert_exact()
    world.assert_clean()


class RefusesOnce:
    """A catalog that was changed by somebody in the moment of its first commit."""

    def __init__(self, catalog: Any) -> None:
        self._catalog = catalog
        self._refused = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, *commit: Any) -> Any:
        if not self._refused:
            self._refused = True
            raise CommitFailedException("Table has been updated by another process")
        return self._catalog.commit_table(*commit)


class RetriesItsBranch(IcebergTarget):
    """pyiceberg makes the first append to a branch a second time."""

    branches_begun = 0

    def _on_branch(self, table: Any, plan: Any, staged: Any) -> tuple[int, int]:
        self.branches_begun += 1
        if self.branches_begun == 1:
            table.catalog = RefusesOnce(table.catalog)
        return super()._on_branch(table, plan, staged)


def test_a_branch_that_pyiceberg_made_anew_without_what_came_before_is_not_published(world: World) -> None:
    world.load(1)
    world.seal([world.helpers.Record(2)])
    target = RetriesItsBranch(world.table, catalog_of(world.table, {}))
    world.drain(world.loader(target=target))
    world.assert_exact()
    assert target.branches_begun == 2


class BranchOfTheTryBefore(IcebergTarget):
    """A server makes the request of a try before this one when this one has looked at the table."""

    tries = 0

    def _on_branch(self, table: Any, plan: Any, staged: Any) -> tuple[int, int]:
        self.tries += 1
        if self.tries == 1:
            super()._on_branch(self.table(), plan, staged)
        return super()._on_branch(table, plan, staged)


def test_a_branch_with_the_rows_of_the_try_before_is_not_published(world: World) -> None:
    world.load(1)
    world.seal([world.helpers.Record(2)])
    target = BranchOfTheTryBefore(world.table, catalog_of(world.table, {}))
    world.drain(world.loader(target=target))
    world.assert_exact()
    assert (target.tries, branches(world)) == (2, [])


@pytest.mark.parametrize("point", ["noted", "renamed"])
def test_what_is_reprocessed_is_loaded_beside_the_first_in_a_new_epoch(world: World, point: str) -> None:
    world.load(1, 2)
    sealed_before = world.seal([world.helpers.Record(3)])
    key = next(iter(world.target().state().loaded.queues))
    request = EpochRequest((key.in_epoch(1),), frozenset({sealed_before.name}))
    (world.roots[0] / "epochs.json").write_text(request.to_json())
    world.seal([world.helpers.Record(offset, ["second"]) for offset in (1, 2)])
    world.drain_with_crash(point)
    world.drain(world.loader())
    found = sorted((epoch or 0, offset, value) for epoch, offset, value in world.rows("_epoch", "_offset", "value"))
    assert found == [*((0, offset, "row") for offset in (1, 2, 3)), *((1, offset, "second") for offset in (1, 2))]
    views = DuckViews(world.table)
    try:
        assert views.answer("SELECT value FROM latest ORDER BY _offset") == [
            {"value": value} for value in ("second", "second", "row")
        ]
    finally:
        views.close()


# ------------------------------------------------------------------------------------- a table that is not what it was


def test_main_that_was_rolled_back_is_refused_until_it_is_taken_forward(world: World) -> None:
    rolled_back_and_taken_forward(world)


def test_main_that_is_rolled_back_between_the_look_and_the_commit_takes_no_batch(world: World) -> None:
    """Another loader commits, and its batch is rolled back by hand: `main` is what it was, the tag is not."""
    world.load(1)
    before = world.target().table().current_snapshot().snapshot_id
    done: list[int] = []

    def meanwhile(*commit: Any) -> None:
        if not done:
            done.append(1)
            world.drain(world.loader(1))
            world.target().table().manage_snapshots().set_current_snapshot(before).commit()
        commit_table(*commit)

    world.seal([world.helpers.Record(2)], at=1)
    world.seal([world.helpers.Record(3)], at=0)
    with pytest.raises(LoaderError, match="does not have that snapshot's rows any more"):
        world.drain(world.loader(0, target=target_of(world, meanwhile)))
    assert [row[3] for row in world.rows()] == [1]


def test_a_catalog_that_vanishes_takes_no_segment_with_it(world: World, tmp_path: Path) -> None:
    world.load(1)
    catalog, kept = tmp_path / "catalog.db", tmp_path / "kept.db"

    def vanishes(*commit: Any) -> None:
        catalog.rename(kept)
        shutil.copy(kept, catalog)
        catalog.unlink()
        commit_table(*commit)

    path = world.seal([world.helpers.Record(2)])
    with pytest.raises(LoaderError, match="The segments stay"):
        world.drain(world.loader(target=target_of(world, vanishes)))
    catalog.unlink(missing_ok=True)
    with pytest.raises(LoaderError, match=r"catalog\.db is gone: put the file back"):
        world.drain(world.loader())
    assert not catalog.exists(), "no empty one is put in its place"
    assert path.exists()
    kept.rename(catalog)
    world.drain(world.loader())
    world.assert_exact()


def test_a_catalog_that_does_not_know_the_table_is_refused(world: World, tmp_path: Path) -> None:
    world.load(1)
    other = catalog_of(world.table, {"uri": f"sqlite:///{tmp_path / 'other.db'}"})
    catalog_of(tmp_path / "x", {})
    shutil.copy(tmp_path / "catalog.db", tmp_path / "other.db")
    target = IcebergTarget(world.table, other)
    target.table().catalog.drop_table("default.table")
    with pytest.raises(LoaderError, match=r"does not know default\.table"):
        target.state()
    assert read_spec(world.table) == catalog_of(world.table, {})


def test_a_folder_that_is_gone_while_the_catalog_has_the_table_is_named(world: World) -> None:
    world.load(1)
    shutil.rmtree(world.table)
    with pytest.raises(
        LoaderError, match=r"still has the table default\.table.*drop the table there, or put the folder back"
    ):
        world.target().state()


class DroppedAfterItsBranch(IcebergTarget):
    """Somebody drops the table when the rows are on the branch."""

    def _on_branch(self, table: Any, plan: Any, staged: Any) -> tuple[int, int]:
        made = super()._on_branch(table, plan, staged)
        self.table().catalog.drop_table("default.table")
        return made


def test_a_table_that_is_dropped_within_a_batch_keeps_the_segments(world: World) -> None:
    world.load(1)
    path = world.seal([world.helpers.Record(2)])
    with pytest.raises(LoaderError, match=r"was dropped from the catalog.*The segments stay"):
        world.drain(world.loader(target=DroppedAfterItsBranch(world.table, catalog_of(world.table, {}))))
    assert path.exists()


def test_tables_and_folders_of_others_are_refused(world: World) -> None:
    world.load(1)
    world.target().table().catalog.create_table("default.other", pa.schema([("a", pa.int64())]),
                                                location=f"file://{world.table.parent / 'other'}")  # fmt: skip
    with pytest.raises(UsageError, match="rocketcrew did not make"):
        IcebergTarget(world.table.parent / "other", catalog_of(world.table.parent / "other", {})).state()
    with pytest.raises(UsageError, match=r"set it so, or name another table"):
        elsewhere = world.table.parent / "elsewhere"
        IcebergTarget(elsewhere, catalog_of(elsewhere, {"table": "default.table"})).state()
    full = world.table.parent / "full"
    (full / "data").mkdir(parents=True)
    with pytest.raises(UsageError, match="holds 'data', which is of no Iceberg table"):
        IcebergTarget(full, catalog_of(full, {})).state()


# ---------------------------------------------------------------------------------------------------- columns, readers


def test_columns_that_come_later_partitions_and_readers(world: World) -> None:
    record, later = world.helpers.Record, [("value", pa.string()), ("n", pa.int64())]
    narrower = [("value", pa.string()), ("n", pa.int16())]
    assert table_columns(world.table) == ()

    def load() -> None:
        world.drain(world.loader(target=target_of(world, commit_table, ("value",))))

    world.seal([record(1, ["a", "b"])])
    load()
    world.seal([record(2, ["a"], extra={"n": 2**40})], columns=later)
    load()
    world.seal([record(3, ["b"], extra={"n": 7})], columns=narrower)
    load()
    assert is_iceberg(world.table)
    assert ("n", "bigint") in table_columns(world.table)
    assert world.rows("_offset", "value", "n") == [(1, "a", None), (1, "b", None), (2, "a", 2**40), (3, "b", 7)]
    columns = ["_offset", "value", "n", "batch_id"]
    found = [tuple(row.values()) for row in dataset(world.table).to_table(columns=columns).to_pylist()]
    assert sorted(found, key=str) == [(1, "a", None, 1), (1, "b", None, 1), (2, "a", 2**40, 2), (3, "b", 7, 3)]
    views = DuckViews(world.table)
    try:
        assert views.answer("SELECT sum(n) AS s, count(*) AS c FROM results") == [{"s": 7 + 2**40, "c": 4}]
    finally:
        views.close()
    facts, broken = table_facts(world.table, world.roots[:1])
    assert (broken, reconcile(facts, None).fine) == ([], True)
    with pytest.raises(UsageError, match="rewrite_data_files"):
        compact(world.table, 1 << 20)
    with pytest.raises(UsageError, match="partitioned by"):
        target_of(world, commit_table, ()).state()
