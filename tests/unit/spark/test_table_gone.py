"""A table that is removed, or has another one in its place, under loaders that live on or come again."""

from __future__ import annotations

import json
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from loader_world import World
from test_table_replaced import as_said, compared, fates, load

from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.arrow_writer import NoWriter
from rocketcrew.spark.config import LoaderConfig
from rocketcrew.spark.delta_log import LOG_DIR
from rocketcrew.spark.delta_snapshot import KEPT_FOR_LONG, TRANSACTIONS_KEPT
from rocketcrew.spark.errors import LoaderError, remedy, without_rows
from rocketcrew.spark.loader import POINTS
from rocketcrew.spark.object_store import STATE_DIR
from rocketcrew.spark.reconciling import Fate
from rocketcrew.spark.table_keys import table_facts, table_state
from rocketcrew.spark.targets.delta import DeltaTarget, append_by_delta_rs
from rocketcrew.spark.targets.parquet import STATE_FILE, batch_folder, last_batch
from rocketcrew.spark.targets.target import PLANS_KEPT
from rocketcrew.spark.work import Work

KINDS = ("parquet", "deltalake", "iceberg")
BEFORE_THE_COMMIT = POINTS[: POINTS.index("renamed")]
delta_only = pytest.mark.parametrize("world", ["deltalake"], indirect=True)
each_kind = pytest.mark.parametrize("world", KINDS, indirect=True)


def drop(world: World) -> None:
    if world.format == "iceberg":
        world.target().table().catalog.drop_table("default.table")
    shutil.rmtree(world.table)


def offsets(world: World) -> list[int]:
    return [row[3] for row in world.rows()]


def refuses(world: World, point: str, act: Any) -> Path:
    """A loader meets that at its third batch: its segment stays, and so it is with the next loader."""
    path: Path = world.seal([world.helpers.Record(3)])

    def meet(here: str) -> None:
        if here == point:
            act()

    with pytest.raises(LoaderError):
        world.drain(world.loader(on_point=meet, known_batch=2))
    with pytest.raises(LoaderError, match="the table had reached batch 2"):
        world.drain(world.loader(known_batch=2))
    assert path.exists()
    return path


@each_kind
@pytest.mark.parametrize("point", BEFORE_THE_COMMIT)
def test_a_table_that_is_dropped_within_a_batch_is_not_made_anew(world: World, point: str) -> None:
    world.load(1)
    world.load(2)
    refuses(world, point, lambda: drop(world))
    assert world.target().state().batch == 0


@pytest.mark.parametrize("world", ["parquet", "deltalake"], indirect=True)
@pytest.mark.parametrize("point", BEFORE_THE_COMMIT)
def test_an_old_copy_that_is_put_in_its_place_within_a_batch(world: World, tmp_path: Path, point: str) -> None:
    world.load(1)
    shutil.copytree(world.table, tmp_path / "backup")
    world.load(2)

    def put_back() -> None:
        shutil.rmtree(world.table)
        shutil.copytree(tmp_path / "backup", world.table)

    refuses(world, point, put_back)
    assert offsets(world) == [1]


@delta_only
def test_a_delta_table_that_goes_within_the_commit(world: World) -> None:
    world.load(1)
    world.load(2)

    def append(*given: Any) -> None:
        shutil.rmtree(world.table)
        append_by_delta_rs(*given)

    path = world.seal([world.helpers.Record(3)])
    with pytest.raises(
        LoaderError, match="not the table any more that batch 3 was made for: it was removed or replaced"
    ):
        world.drain(world.loader(target=DeltaTarget(world.table, append, lambda: None)))
    assert path.exists()


@delta_only
def test_a_delta_table_that_spark_makes_anew_is_not_gone_on_with(world: World) -> None:
    """Spark appends to a path: where the table has gone, that makes one."""
    world.load(1)
    world.load(2)

    def append(path: Any, plan: Any, staged: Any, _: object, **options: Any) -> None:
        shutil.rmtree(path / LOG_DIR)
        append_by_delta_rs(path, plan, staged, None, **options)

    path = world.seal([world.helpers.Record(3)])
    with pytest.raises(
        LoaderError, match="not the table any more that batch 3 was made for: it was removed or replaced"
    ):
        world.drain(world.loader(target=DeltaTarget(world.table, append, lambda: None)))
    for known in (0, 2):  # nor does a loader of which nothing is known
        with pytest.raises(
            LoaderError, match="not the table any more that batch 3 was made for: it was removed or replaced"
        ):
            world.loader(known_batch=known)
    assert path.exists()


# ----------------------------------------------------------------------------------------------------- another table


@pytest.mark.parametrize("format_", ["pyarrow", "deltalake", "iceberg"])
def test_a_member_notices_that_another_one_has_made_the_table_anew(world: World, tmp_path: Path, format_: str) -> None:
    """Though it has as many batches as the one before; and `reconcile` does, whosever folder it looks into."""
    world.format = format_
    for offset in (0, 1):
        assert load(world, format_, offset) == ""
    drop(world)
    for offset in (2, 3):
        assert load(world, format_, offset, at=1) == ""
    assert compared(world, 4).batches == (2, 4)
    error = load(world, format_, 4)
    assert "the table had reached batch 2, and there is another one in its place, at batch 2" in error
    as_said(world, tmp_path, error)
    assert load(world, format_, 5) == ""
    report = compared(world, 6)
    assert (report.fine, report.batches_lost) == (False, 2)


def as_earlier_versions_wrote_it(world: World) -> None:
    """The newest state of a Parquet table: without what tells tables apart."""
    state = batch_folder(world.table, last_batch(world.table)) / STATE_FILE
    told = json.loads(state.read_text())
    state.write_text(json.dumps({name: told[name] for name in told if name not in ("table", "plans")}))


@pytest.mark.parametrize("first_is_kept", [True, False])
def test_a_parquet_table_keeps_its_id_through_batches_of_earlier_versions(
    world: World, tmp_path: Path, *, first_is_kept: bool
) -> None:
    """In old tables the state of the first batch is deleted, or a compaction has merged it away."""
    assert load(world, "pyarrow", 0) == ""
    first = world.target().state().plan_id
    if first_is_kept:
        as_earlier_versions_wrote_it(world)
    assert load(world, "pyarrow", 1) == ""
    if not first_is_kept:
        (batch_folder(world.table, 1) / STATE_FILE).unlink()
    assert load(world, "pyarrow", 2, at=1) == ""
    as_earlier_versions_wrote_it(world)
    assert world.target().state().table == table_state(world.table).table == first
    assert load(world, "pyarrow", 3) == ""
    assert world.state()["table"] == first
    drop(world)
    (world.roots[1] / "loader.json").unlink()
    for offset in (4, 5, 6, 7):
        assert load(world, "pyarrow", offset, at=1) == ""
        as_earlier_versions_wrote_it(world)
    assert compared(world, 8).batches == (4, 8)
    error = load(world, "pyarrow", 8)
    assert "the table had reached batch 4, and there is another one in its place, at batch 4" in error
    as_said(world, tmp_path, error)


def test_a_parquet_table_of_which_nobody_knows_the_first_batch_has_no_id(world: World) -> None:
    for offset in range(3):
        world.load(offset)
        as_earlier_versions_wrote_it(world)
    (batch_folder(world.table, 1) / STATE_FILE).unlink()
    world.load(3)
    assert world.target().state().table == ""


@delta_only
@pytest.mark.parametrize("is_restored", [True, False])
def test_a_delta_table_that_was_overwritten(world: World, tmp_path: Path, *, is_restored: bool) -> None:
    """Its log goes on, and its batches' transactions are in there. What the error says helps, with --table-replaced too."""
    for offset in (0, 1):
        assert load(world, "deltalake", offset) == ""
    log = DeltaTable(str(world.table))
    version = log.version()
    DeltaTable.create(str(world.table), log.schema(), mode="overwrite", name=log.metadata().name)
    config = LoaderConfig(world.roots[0], world.table, format="deltalake", table_replaced=True)
    work = Work(config, NoWriter())
    assert (work.run(), work.error) == (1, load(world, "deltalake", 2))
    assert "to the version before that); or move the folder away" in work.error
    assert "While it is there, --table-replaced does not help" in work.error
    if is_restored:
        DeltaTable(str(world.table)).restore(version)
        assert load(world, "deltalake") == ""
        assert (offsets(world), compared(world, 3).fine) == ([0, 1, 2], True)
        return
    world.table.rename(tmp_path / "away")
    as_said(world, tmp_path, load(world, "deltalake"))
    report = compared(world, 3)
    assert (report.batches_lost, fates(report)[Fate.UNKNOWN]) == (2, ((0, 2),))
    assert load(world, "deltalake", 0, 1) == ""
    assert (offsets(world), compared(world, 3).fine) == ([0, 1, 2], True)


@each_kind
def test_a_loader_notices_it_while_it_runs(world: World) -> None:
    """The table that it knew is behind the new one: it does not go on from the end of its own."""
    loader = world.loader()
    for offset in (1, 2):
        world.seal([world.helpers.Record(offset)])
        world.drain(loader)
    drop(world)
    other = world.loader(at=1)
    for offset in range(10, 15):
        world.seal([world.helpers.Record(offset)], at=1)
        world.drain(other)
    world.seal([world.helpers.Record(3)])
    with pytest.raises(LoaderError, match="another one in its place, at batch 5"):
        world.drain(loader)
    assert offsets(world) == [10, 11, 12, 13, 14]


@each_kind
def test_a_table_of_which_only_one_batch_was_made(world: World) -> None:
    """The table has no id before it is there."""
    loader = world.loader()
    world.seal([world.helpers.Record(1)])
    world.drain(loader)
    assert loader.table
    drop(world)
    world.seal([world.helpers.Record(2)], at=1)
    world.drain(world.loader(at=1))
    with pytest.raises(LoaderError, match="another one in its place, at batch 1"):
        world.loader().recover(1, loader.table)
    world.loader().recover(1, "")  # as a version that noted none


# ------------------------------------------------------------------------------- a copy that others have loaded on from


def back_up(world: World, backup: Path) -> None:
    shutil.copytree(world.table, backup / "table")
    if world.format == "iceberg":
        shutil.copy(world.table.parent / "catalog.db", backup)


def take_back(world: World, backup: Path) -> None:
    shutil.rmtree(world.table)
    shutil.copytree(backup, world.table.parent, dirs_exist_ok=True)


@pytest.mark.parametrize("format_", ["pyarrow", "deltalake", "iceberg"])
@pytest.mark.parametrize("others", [1, 2])
def test_a_backup_on_which_another_member_has_loaded_on(
    world: World, tmp_path: Path, format_: str, others: int
) -> None:
    """It has its id, and as many batches, or more. Each member and `reconcile` notice it by a plan."""
    world.format = format_
    for offset in (0, 1):
        assert load(world, format_, offset) == ""
    back_up(world, tmp_path / "backup")
    assert load(world, format_, 2) == ""
    take_back(world, tmp_path / "backup")
    for offset in range(20, 20 + others):
        assert load(world, format_, offset, at=1) == ""
    alone = table_facts(world.table, world.roots[:1])[0]
    assert alone.batches == (2 + others, 3 + others)
    error = load(world, format_, 4)
    assert f"the table is at batch {2 + others}, and its batch 3 is not the one that it had reached" in error
    as_said(world, tmp_path, error)
    report = compared(world, 22)
    assert (report.fine, report.batches_lost, report.batches) == (False, 1, None)
    assert (2, 4) in fates(report)[Fate.UNKNOWN]
    assert load(world, format_, 2) == ""
    assert offsets(world) == [0, 1, 2, 4, *range(20, 20 + others)]


@each_kind
def test_a_loader_notices_such_a_backup_while_it_runs(world: World, tmp_path: Path) -> None:
    loader = world.loader()
    for offset in (1, 2, 3):
        if offset == 3:
            back_up(world, tmp_path / "backup")
        world.seal([world.helpers.Record(offset)])
        world.drain(loader)
    take_back(world, tmp_path / "backup")
    other = world.loader(at=1)
    for offset in (10, 11):
        world.seal([world.helpers.Record(offset)], at=1)
        world.drain(other)
    path = world.seal([world.helpers.Record(4)])
    with pytest.raises(LoaderError, match="the table is at batch 4, and its batch 3 is not the one"):
        world.drain(loader)
    assert path.exists()
    assert offsets(world) == [1, 2, 10, 11]


def test_where_an_earlier_version_has_made_a_batch_the_plan_is_not_known(world: World, tmp_path: Path) -> None:
    assert load(world, "pyarrow", 0) == ""
    back_up(world, tmp_path / "backup")
    assert load(world, "pyarrow", 1) == ""
    take_back(world, tmp_path / "backup")
    for offset in (20, 21):
        assert load(world, "pyarrow", offset, at=1) == ""
        as_earlier_versions_wrote_it(world)
    assert load(world, "pyarrow", 2) == ""
    state = world.target().state()
    assert [bool(state.plan_of(batch)) for batch in range(6)] == [False, False, False, True, True, False]


def test_a_state_names_the_plans_of_the_newest_batches(world: World) -> None:
    loader, made = world.loader(), [""]
    for offset in range(PLANS_KEPT + 3):
        world.seal([world.helpers.Record(offset)])
        world.drain(loader)
        made.append(loader.plan)
    state = world.target().state()
    assert len(state.plans) == PLANS_KEPT
    assert [state.plan_of(batch) for batch in range(len(made))] == ["", "", "", *made[3:]]


# ---------------------------------------------------------------------------------------------- forgotten transactions


def age(world: World) -> None:
    """The table's transactions are of last month, as Spark notes it, and its log keeps them for less."""
    for entry in (world.table / LOG_DIR).glob("*.json"):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in actions:
            if "txn" in action:
                action["txn"]["lastUpdated"] = int(time.time() * 1000) - 31 * 86_400_000
        entry.write_text("".join(json.dumps(action) + "\n" for action in actions))
    log = DeltaTable(str(world.table))
    log.alter.set_table_properties({TRANSACTIONS_KEPT: "interval 30 days"})
    assert log.transaction_version("rocketcrew") is None


@delta_only
def test_a_log_that_forgets_transactions_is_asked_for_the_plan(world: World) -> None:
    world.load(1)
    world.load(2)
    age(world)
    world.seal([world.helpers.Record(1), world.helpers.Record(2)], at=1)
    (state, _) = world.target().state(), world.drain(world.loader(at=1))
    assert (state.batch, offsets(world)) == (2, [1, 2])


@delta_only
def test_a_loader_refuses_a_log_that_forgets(world: World) -> None:
    world.load(1)
    age(world)
    path = world.seal([world.helpers.Record(2)])
    append = partial(append_by_delta_rs, partition_by=())
    target = DeltaTarget(world.table, append, lambda: None, ())
    with pytest.raises(UsageError, match=rf"has {TRANSACTIONS_KEPT} = interval 30 days.*UNSET TBLPROPERTIES"):
        world.loader(target=target)
    assert path.exists()
    DeltaTable(str(world.table)).alter.set_table_properties({TRANSACTIONS_KEPT: KEPT_FOR_LONG})
    world.drain(world.loader(target=target))
    assert offsets(world) == [1, 2]


@delta_only
def test_a_log_that_names_no_plan_any_more_says_so(world: World) -> None:
    for offset in (1, 2):
        world.load(offset)
    age(world)
    log = DeltaTable(str(world.table))
    log.create_checkpoint()
    for version in range(log.version()):
        (world.table / LOG_DIR / f"{version:020d}.json").unlink()
    with pytest.raises(LoaderError, match=f"where {TRANSACTIONS_KEPT} is set"):
        world.loader()
    assert list((world.table / STATE_DIR).glob("2-*.json"))


# -------------------------------------------------------------------------------------------- what others have changed

VALUE = ("value", pa.string())


def retyped(world: World, name: str, kind: Any) -> None:
    table: Any = DeltaTable(str(world.table)).to_pyarrow_table()
    at = table.schema.get_field_index(name)
    changed = table.set_column(at, name, table.column(name).cast(kind))
    write_deltalake(str(world.table), changed, mode="overwrite", schema_mode="overwrite")


def load_n(world: World, offset: int, n: object, kind: Any) -> list[str]:
    """The reasons of what was set aside."""
    before = set((world.roots[0] / "bad").glob("*.json"))
    world.seal([world.helpers.Record(offset, extra={"n": n})], columns=[VALUE, ("n", kind)])
    world.drain(world.loader())
    new = set((world.roots[0] / "bad").glob("*.json")) - before
    return [json.loads(path.read_text())["reason"] for path in new]


@delta_only
@pytest.mark.parametrize("kind", [pa.float64(), pa.timestamp("us", "UTC"), pa.int32(), pa.string()])
def test_columns_have_the_types_that_the_table_has_now(world: World, kind: Any) -> None:
    assert load_n(world, 1, 1, pa.int64()) == []
    retyped(world, "n", kind)
    (reason,) = load_n(world, 2, 2**53 + 1, pa.int64())
    assert "column 'n' is bigint here and" in reason
    if kind == pa.string():
        assert load_n(world, 3, "x", kind) == []
    assert offsets(world) == ([1, 3] if kind == pa.string() else [1])


@delta_only
def test_a_column_that_others_made_wider_or_have_added(world: World) -> None:
    assert load_n(world, 1, 1, pa.int32()) == []
    retyped(world, "n", pa.int64())
    table: Any = DeltaTable(str(world.table)).to_pyarrow_table()
    added = table.append_column("extra", pa.array(["x"]))
    write_deltalake(str(world.table), added, mode="overwrite", schema_mode="overwrite")
    assert load_n(world, 2, 2, pa.int32()) == []
    assert "extra" not in [name for name, _ in world.state()["columns"]]
    world.seal([world.helpers.Record(3, extra={"extra": 3})], columns=[VALUE, ("extra", pa.int32())])
    loader = world.loader()
    assert list(loader.misfits(loader.columns())[0].values()) == ["column 'extra' is int here and string there"]
    assert world.rows("_offset", "n", "extra") == [(1, 1, "x"), (2, 2, None)]


@delta_only
def test_a_column_that_changes_while_the_batch_is_written(world: World) -> None:
    assert load_n(world, 1, 1, pa.int64()) == []

    def change(here: str) -> None:
        if here == "job_done":
            retyped(world, "n", pa.float64())

    world.seal([world.helpers.Record(2, extra={"n": 2**53 + 1})], columns=[VALUE, ("n", pa.int64())])
    loader = world.loader(on_point=change)
    world.drain(loader)
    assert (loader.totals.quarantined, offsets(world)) == (1, [1])


@delta_only
def test_a_check_of_the_table_is_named_and_no_row_is(world: World) -> None:
    assert load_n(world, 1, 1, pa.int64()) == []
    DeltaTable(str(world.table)).alter.add_constraint({"positive": "n > 0"})
    path = world.seal([world.helpers.Record(2, extra={"n": -77_123})], columns=[VALUE, ("n", pa.int64())])
    with pytest.raises(LoaderError, match=r"\(positive: n > 0\).*drop_constraint.*The segments stay") as refused:
        world.drain(world.loader())
    assert "77123" not in str(refused.value)
    assert path.exists()


def test_a_staging_folder_that_is_gone_is_named(world: World) -> None:
    config = LoaderConfig(world.roots[0], world.table, format="pyarrow", follow=True)
    world.load(1)
    work = Work(config, Gone(world.roots[0]))
    assert work.run() == 1
    assert f"the staging folder {world.roots[0]} is gone" in work.error


class Gone(NoWriter):
    """A writer beside which the staging folder goes away."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def test_what_spark_says_of_a_check_shows_no_row_either() -> None:
    said = "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint pos (n > 0) violated by row with values:\n - n : -5"
    assert without_rows(said).endswith("CHECK constraint pos (n > 0)")
    assert "alter.drop_constraint" in remedy(said)
