"""A Delta table that its owner took back to an older version, or copied in part."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from deltalake import DeltaTable
from loader_world import World

from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.reconciling import reconcile
from rocketcrew.spark.table_keys import table_facts

TABLES = ("deltalake",)


def fill(world: World, segments: Any) -> None:
    for start in range(5):
        world.seal([segments.Record(10 * start + n) for n in range(3)])
        world.drain(world.loader())


def test_loading_goes_on_after_a_restore_and_what_is_gone_is_named(world: World, segments: Any) -> None:
    """A restore takes files back and no transactions: numbers go on, and the ledger knows what was loaded."""
    fill(world, segments)
    DeltaTable(str(world.table)).restore(2)
    world.seal([segments.Record(99)])
    (report,) = world.drain(world.loader(known_batch=5))
    assert report.batch == 6
    facts, broken = table_facts(world.table, world.roots[:1])
    assert broken == []
    wanted = {offset for key in reconcile(facts, None).to_run_again().queues.values()
              for start, stop in key.pieces for offset in range(start, stop)}  # fmt: skip
    assert wanted == {20, 21, 22, 30, 31, 32, 40, 41, 42}


def restored(capture: pytest.CaptureFixture[str]) -> int:
    return capture.readouterr().err.count("delta_table_restored")


@pytest.mark.parametrize(("to", "told"), [("an older one", 1), ("the newest of ours", 0)])
def test_a_restore_is_told_once(
    world: World, segments: Any, capsys: pytest.CaptureFixture[str], to: str, told: int
) -> None:
    fill(world, segments)
    log = DeltaTable(str(world.table))
    ours = int(log.version())
    log.delete("_offset = 2")
    log.restore(2 if told else ours)
    loader = world.loader()
    counts: list[int] = []
    for offset in (97, 98):
        world.seal([segments.Record(offset)])
        world.drain(loader)
        counts.append(restored(capsys))
    world.load(99)
    assert (counts, restored(capsys)) == ([told, 0], 0)


def test_a_restore_by_time_says_that_it_does_not_know_what_is_gone(
    world: World, segments: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its entry has the time in the words of whoever wrote it, Spark's without a zone."""
    fill(world, segments)
    log = DeltaTable(str(world.table))
    ours = log.history(1)[0]["timestamp"]
    log.delete("_offset = 2")
    log.restore(datetime.fromtimestamp(ours / 1000, UTC))
    world.load(99)
    assert "rows that were loaded after it, if any, are gone" in capsys.readouterr().err


def test_a_table_without_the_state_of_its_batch_is_refused_with_the_ways_out(world: World, segments: Any) -> None:
    fill(world, segments)
    for path in (world.table / "_rocketcrew").glob("5-*.json"):
        path.unlink()
    with pytest.raises(
        LoaderError, match=r"at batch 5.*no state of it.*RESTORE TABLE.*spark\.target.*reset --to earliest"
    ):
        world.loader()
