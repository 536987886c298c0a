"""A table whose files others have written anew: its records are found in whatever layout they have now, or it is refused."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from deltalake import DeltaTable
from loader_world import World
from segment_helpers import EPOCH
from test_delta_vacuum import with_deletion_vector
from test_reading_filters import renamed

from rocketcrew.cli.main import run
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.errors import unreadable
from rocketcrew.spark.reconciling import reconcile
from rocketcrew.spark.table_keys import store_times, table_facts, table_state

QUEUE = QueueKey("g", "orders", "broker-a", 0)
TIMES = {QUEUE: {1: int(EPOCH.timestamp() + 1) * 1_000_000}}
pq: Any = pyarrow.parquet
deltalake = pytest.mark.parametrize("world", ["deltalake"], indirect=True)


@pytest.mark.parametrize("text", [pa.string_view(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_keys_in_another_layout(world: World, text: pa.DataType) -> None:
    world.load(1)
    (file,) = world.table.rglob("*.parquet")
    rows = pq.read_table(file, partitioning=None)
    others: dict[Any, Any] = {
        pa.string(): text,
        pa.int32(): pa.int64(),
        pa.timestamp("us", "UTC"): pa.timestamp("ns", "UTC"),
    }
    kinds = [(field.name, others.get(field.type, field.type)) for field in rows.schema]
    pq.write_table(rows.cast(pa.schema(kinds)), file)
    facts, broken = table_facts(world.table, ())
    assert broken == []
    assert reconcile(facts, None).fine
    assert facts.present == OffsetSet({QUEUE: IntervalSet.of([(1, 2)])})
    assert store_times(world.table, {QUEUE: [1]}) == TIMES


@deltalake
def test_rows_that_delta_rs_has_changed(world: World) -> None:
    world.load(1)
    world.load(2)
    DeltaTable(str(world.table)).update(updates={"value": "'other'"}, predicate="_offset = 1")
    facts, broken = table_facts(world.table, ())
    assert broken == []
    assert reconcile(facts, None).fine
    assert store_times(world.table, {QUEUE: [1]}) == TIMES
    DeltaTable(str(world.table)).delete("_offset = 1")
    assert reconcile(table_facts(world.table, ())[0], None).to_run_again() == OffsetSet(
        {QUEUE: IntervalSet.of([(1, 2)])}
    )


def test_what_arrow_has_not_built_may_be_no_damage() -> None:
    said = unreadable("part", pa.ArrowNotImplementedError("no kernel"))
    assert "Leave it where it is if Spark or a newer pyarrow can read it; unless one can, it is damaged. Move" in said
    assert "no magic. Move the file away" in unreadable("part", pa.ArrowInvalid("no magic"))


@deltalake
def test_deletion_vectors_are_refused(world: World) -> None:
    world.load(1)
    with_deletion_vector(world.table)
    purge = re.escape(f"REORG TABLE delta.`{world.table}` APPLY (PURGE)")
    with pytest.raises(UsageError, match=rf"has deletion vectors.*{purge}"):
        table_facts(world.table, ())
    assert table_state(world.table).batch == 1, "whoever wants no rows is not refused"


@deltalake
@pytest.mark.parametrize(("mode", "refused"), [("name", False), ("id", True)])
def test_mapped_columns_are_refused_where_they_are_keys(world: World, mode: str, *, refused: bool) -> None:
    world.load(1)
    renamed(world.table, mode, "col-1")
    if refused:
        with pytest.raises(UsageError, match="other names for _group, "):
            table_facts(world.table, ())
    else:
        assert reconcile(table_facts(world.table, ())[0], None).fine


@pytest.mark.parametrize(("group", "code"), [("g", 0), ("other", 1)])
def test_a_group_of_which_nothing_is_known_is_not_explained(
    world: World, capsys: pytest.CaptureFixture[str], group: str, code: int
) -> None:
    world.load(1)
    words = ("--target", str(world.table), "--staging", str(world.roots[0]), "--no-brokers")
    assert run(("reconcile", "-g", group, *words), {}, world.table.parent) == code
    out, err = capsys.readouterr()
    assert ("everything is explained" in out) is (code == 0)
    assert ("is of the group other: they have records of g" in " ".join(err.split())) is (code == 1)


def test_a_group_with_a_slot_here_may_have_done_nothing_yet(world: World) -> None:
    world.load(1)
    (world.table.parent / "other/0/segments").mkdir(parents=True)
    words = ("--target", str(world.table), "--no-brokers", "--set", f"supervisor.data_dir={world.table.parent}")
    assert run(("reconcile", "-g", "other", *words), {}, world.table.parent) == 0
