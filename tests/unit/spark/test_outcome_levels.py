"""Files of outcomes: few of them, each number read once, whatever dies, and forgotten by age but for what is counted."""

from __future__ import annotations

import gzip
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loader_world import World
from structlog.testing import capture_logs

from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import FORGOTTEN, NO_ROWS, PASSED, ROWS, UNDELIVERED, BatchOutcomes, Outcomes
from rocketcrew.spark.accounts import PIECES_MAX
from rocketcrew.spark.compaction import compact
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.outcome_levels import (
    DRAFT_S,
    FAN,
    FORGOTTEN_PIECES_MAX,
    LEVEL_MAX,
    OutcomeLevels,
    Part,
    check_whole,
    forgotten,
    joined,
    merges,
)
from rocketcrew.spark.plan import Plan
from rocketcrew.spark.reconciling import Fate, reconcile
from rocketcrew.spark.staging import Staging
from rocketcrew.spark.table_keys import table_facts
from rocketcrew.spark.table_state import ledger_outcomes
from rocketcrew.spark.targets.delta import DeltaTarget, append_by_delta_rs
from rocketcrew.spark.targets.parquet import folder_outcomes

QUEUE = QueueKey("g", "orders", "broker-a", 0)


def told(batch: int, kind: str = ROWS) -> BatchOutcomes:
    return BatchOutcomes(1, Outcomes.of([(kind, OffsetSet({QUEUE: IntervalSet.of([(2 * batch, 2 * batch + 1)])}))]))


class Table:
    """Commits' own files as the Delta table has them, without a table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "outcomes"
        self.folder.mkdir()
        self.newest = 0

    def commit(self, count: int, age_s: float = 0.0) -> None:
        for _ in range(count):
            self.newest += 1
            path = self.folder / f"{self.newest}-{self.newest:08d}-ab12.json.gz"
            path.write_bytes(told(self.newest).pack())
            os.utime(path, (10**9 - age_s, 10**9 - age_s))
            if self.newest % FAN == 0:
                self.levels().tidy(10**9, 30.0)

    def levels(self) -> OutcomeLevels:
        return ledger_outcomes(self.folder.parent, self.newest)

    def expected(self) -> BatchOutcomes:
        return joined([told(batch) for batch in range(1, self.newest + 1)])


def test_merges_take_whole_groups_of_one_level() -> None:
    def parts(level: int, count: int, first: int = 1) -> list[Part]:
        return [Part(first + n, first + n, level, None) for n in range(count)]

    assert merges(parts(0, FAN - 1)) == []
    assert merges(parts(0, 2 * FAN + 3)) == [parts(0, FAN), parts(0, FAN, FAN + 1)]
    assert merges([*parts(1, FAN), *parts(0, 3, FAN + 1)]) == [parts(1, FAN)]
    assert merges(parts(LEVEL_MAX, 10 * FAN)) == []


def test_files_stay_few_and_say_the_same(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.commit(FAN * FAN + 2 * FAN + 5)
    assert joined(table.levels().read()) == table.expected()
    assert len(list(table.folder.iterdir())) == 1 + 2 + 5


def test_parts_that_a_kill_left_beside_the_merged_file_are_not_read(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.commit(FAN - 1)
    kept = {path.name: path.read_bytes() for path in table.folder.iterdir()}
    table.commit(1)
    for name, data in kept.items():
        (table.folder / name).write_bytes(data)
    (table.folder / ".1-32.1.json.gz.7.new").write_bytes(b"half")
    assert joined(table.levels().read()) == table.expected()
    table.levels().tidy(10**9, 30.0)
    assert joined(table.levels().read()) == table.expected()
    assert len(table.levels().parts()) == 1
    assert not kept.keys() & {path.name for path in table.folder.iterdir()}


def test_two_loaders_that_merge_at_once_write_the_same(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.commit(FAN - 1)
    table.newest += 1
    (table.folder / f"{FAN}-x.json.gz").write_bytes(told(FAN).pack())

    other = table.levels()
    late = other.parts()
    table.levels().tidy(10**9, 30.0)
    late_levels = OutcomeLevels(table.folder, lambda _: iter(late))
    late_levels.tidy(10**9, 30.0)
    assert joined(table.levels().read()) == table.expected()


class Overtaken(OutcomeLevels):
    """Another loader merges right after its first look at merged files."""

    def __init__(self, levels: OutcomeLevels, other: OutcomeLevels) -> None:
        super().__init__(levels._folder, levels._singles)
        self._other = [other]

    def _merged(self) -> Any:
        found = super()._merged()
        if self._other:
            self._other.pop().tidy(10**9, 30.0)
        return found

    def _delete_covered(self) -> None:
        """It has looked there before the other merged."""


def unmerged(folder: Path) -> Table:
    """A table whose first files are due for a merge."""
    table = Table(folder)
    for number in range(1, FAN + 1):
        table.newest = number
        (table.folder / f"{number}-{number:08d}-ab12.json.gz").write_bytes(told(number).pack())
    return table


def test_files_that_are_merged_between_two_listings_are_not_taken_for_none(
    tmp_path: Path,
) -> None:
    table = unmerged(tmp_path)
    assert joined(Overtaken(table.levels(), table.levels()).read()) == table.expected()


def test_a_slow_merger_does_not_overwrite_what_another_has_merged(
    tmp_path: Path,
) -> None:
    table = unmerged(tmp_path)
    Overtaken(table.levels(), table.levels()).tidy(10**9, 30.0)
    assert [path.name for path in table.folder.iterdir()] == [f"1-{FAN}.1.json.gz"]
    assert joined(table.levels().read()) == table.expected()


def test_the_end_of_a_late_commit_spares_merged_files(world: World, segments: Any) -> None:
    """Others have gone on, and merged, between its commit and its last look at the files of its number."""
    world.format = "deltalake"
    world.seal([segments.Record(1)])
    merged_file = world.table / "_rocketcrew" / "outcomes" / f"1-{FAN}.1.json.gz"

    class Overtaken(DeltaTarget):
        def _is_ours(self, plan: Plan, newest: int) -> bool:
            assert newest == plan.batch
            merged_file.write_bytes(told(1).pack())
            return True

    world.drain(world.loader(target=Overtaken(world.table, append_by_delta_rs, lambda: None)))
    assert merged_file.exists()


@pytest.mark.parametrize("count", [3, FAN])
def test_outcomes_of_a_plan_that_lost_its_number_do_not_count(world: World, segments: Any, count: int) -> None:
    """Its loader was killed when it had written them: what they speak of is not in the table, and comes again."""
    world.format = "deltalake"
    loader = world.loader()
    for offset in range(count):
        if offset == 3:
            leave_behind(world)
        world.seal([segments.Record(2 * offset)])
        world.drain(loader)
    if count == 3:
        leave_behind(world)
    together = joined(list(world.target().outcomes()))
    assert together.rows == count
    assert together.outcomes.of_queue(ROWS, QUEUE).pieces[-1] == (2 * count - 2, 2 * count - 1)
    facts, _ = table_facts(world.table, world.roots)
    assert facts.rows == (count, count)


def leave_behind(world: World) -> None:
    """A file of a plan that was to become batch 3, and did not."""
    (world.table / "_rocketcrew" / "outcomes" / "3-00000003-0.json.gz").write_bytes(told(99).pack())


def test_a_number_of_which_it_is_unknown_whose_it_is_is_not_merged(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.commit(FAN - 1)
    (table.folder / "9-00000009-other.json.gz").write_bytes(told(99).pack())
    table.newest = FAN
    (table.folder / f"{FAN}-x.json.gz").write_bytes(told(FAN).pack())

    def unknown(_: int, __: object) -> str:
        raise LoaderError("nobody knows")

    levels = ledger_outcomes(tmp_path, FAN, 4, unknown)
    levels.tidy(10**9, 30.0)
    assert sorted(path.name for path in table.folder.glob("*.1.json.gz")) == ["1-4.1.json.gz", "5-8.1.json.gz"]
    with pytest.raises(LoaderError, match="nobody knows"):
        levels.read()
    known = ledger_outcomes(tmp_path, FAN, 4, lambda _, plans: next(plan for plan in plans if plan != "00000009-other"))
    assert joined(known.read()) == table.expected()
    known.tidy(10**9, 30.0)
    assert joined(ledger_outcomes(tmp_path, FAN, 4).read()) == table.expected()


def test_what_is_old_is_forgotten_but_for_rows_and_offsets(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.commit(2 * FAN, age_s=100.0)
    table.commit(3, age_s=50.0)
    (old, *own) = table.levels().read()
    assert old.outcomes.kinds.keys() == {FORGOTTEN}
    assert old.outcomes.of_queue(FORGOTTEN, QUEUE).count() == 2 * FAN
    assert len(own) == 3
    assert joined([old, *own]).rows == table.newest
    table.commit(FAN - 3, age_s=50.0)
    assert [part.first for part in table.levels().parts()] == [0], "forgotten together with what was before"
    assert joined(table.levels().read()).rows == table.newest


def test_what_is_forgotten_names_no_offset_that_nobody_named() -> None:
    closed, newest = ((5 * n, 5 * n + 1) for n in range(2)), QUEUE.in_epoch(2)
    many = IntervalSet.of((3 * n, 3 * n + 1) for n in range(FORGOTTEN_PIECES_MAX + 6))
    about = OffsetSet({QUEUE: IntervalSet.of(closed), newest: many})
    found = forgotten(BatchOutcomes(1, Outcomes.of([(ROWS, about)]))).outcomes.of_kind(FORGOTTEN)
    assert found.of_queue(QUEUE) == about.of_queue(QUEUE)
    assert found.of_queue(newest).pieces == many.pieces[6:]


def test_what_was_not_delivered_outlives_its_batch() -> None:
    """It stays named however old; where these are too many, the lowest are not explained by what is forgotten either."""
    some, rows = (OffsetSet({QUEUE: IntervalSet.of(pieces)}) for pieces in ([(2, 5), (7, 8)], [(0, 2), (5, 7)]))
    around = OffsetSet({QUEUE: IntervalSet.of([(0, 8)])})
    told = BatchOutcomes(2, Outcomes.of([(ROWS, rows), (UNDELIVERED, some), (NO_ROWS, around)]))
    found = forgotten(told)
    assert found == BatchOutcomes(2, Outcomes.of([(UNDELIVERED, some), (FORGOTTEN, around)]))
    assert forgotten(joined([found])) == found
    assert BatchOutcomes.unpack(found.pack()) == found
    came = OffsetSet({QUEUE: IntervalSet.of([(3, 4), (7, 8)])})
    later = forgotten(joined([found, BatchOutcomes(2, Outcomes.of([(ROWS, came)]))]))
    assert later.outcomes.of_queue(UNDELIVERED, QUEUE).pieces == ((2, 3), (4, 5)), "its rows came by a re-run"
    only = BatchOutcomes(0, Outcomes.of([(UNDELIVERED, some)]))
    assert forgotten(only) == only

    gaps = IntervalSet.of((3 * n, 3 * n + 2) for n in range(FORGOTTEN_PIECES_MAX + 6))
    around = OffsetSet({QUEUE: IntervalSet.of([(0, gaps.pieces[-1][1] + 1)])})
    many = forgotten(BatchOutcomes(0, Outcomes.of([(UNDELIVERED, OffsetSet({QUEUE: gaps})), (NO_ROWS, around)])))
    for one in (many, forgotten(many)):
        assert one.outcomes.of_queue(UNDELIVERED, QUEUE).pieces == gaps.pieces[6:]
        assert not one.outcomes.of_queue(FORGOTTEN, QUEUE) & IntervalSet(gaps.pieces[:6])
        assert one.outcomes.of_queue(FORGOTTEN, QUEUE).pieces[-1][1] == around.of_queue(QUEUE).pieces[-1][1]


def test_what_ends_merging_is_logged_once(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.commit(FAN - 1)
    newer = gzip.compress(b'{"version": 3, "rows": 1}')
    (table.folder / f"7-{7:08d}-ab12.json.gz").write_bytes(newer)
    with capture_logs() as logs:
        table.commit(1)
        table.levels().tidy(10**9, 30.0)
    (entry,) = logs
    assert entry["event"] == "outcomes_not_merged"
    assert "7-00000007-ab12.json.gz can't be used: version 3" in entry["error"]
    assert len(list(table.folder.iterdir())) == FAN, "nothing was merged, nothing deleted, nothing moved"


def test_drafts_that_a_kill_left_go_when_they_are_old(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.commit(1)
    for name in (".1-32.1.json.gz.7.new", ".1-00000001-ab12.json.gz.new"):
        (table.folder / name).write_bytes(b"half")
    table.levels().tidy(time.time(), math.inf)
    assert len(list(table.folder.iterdir())) == 3
    table.levels().tidy(time.time() + DRAFT_S + 60.0, math.inf)
    assert [path.name for path in table.folder.iterdir()] == ["1-00000001-ab12.json.gz"]


def test_lost_outcomes_are_not_guessed() -> None:
    check_whole([BatchOutcomes(None, Outcomes()), told(1, NO_ROWS), told(2, PASSED), told(3)])
    with pytest.raises(LoaderError, match=r"outcomes of some batch are gone"):
        check_whole([told(2, PASSED), BatchOutcomes(None, Outcomes())])


def parts_of(world: World) -> list[Part]:
    batch = world.target().state().batch
    found = (
        folder_outcomes(world.table, batch)
        if world.format == "parquet"
        else ledger_outcomes(world.table / "_rocketcrew", batch)
    )
    return found.parts()


@pytest.mark.parametrize("world", ["parquet", "deltalake"], indirect=True)
def test_commits_merge_as_they_go_and_compaction_keeps_the_count(world: World, segments: Any) -> None:
    loader = world.loader()
    for offset in range(FAN + 3):
        world.seal([segments.Record(2 * offset)])
        world.drain(loader)
    assert [(part.first, part.last) for part in parts_of(world)] == [
        (1, FAN),
        *((n, n) for n in range(FAN + 1, FAN + 4)),
    ]
    compact(world.table, 1 << 20)
    for offset in range(2 * FAN):
        world.seal([segments.Record(200 + 2 * offset)])
        world.drain(loader)
    assert len(list(world.table.glob("batch_id=*/_loaded.json"))) <= 2 * FAN, "old states go"
    facts, broken = table_facts(world.table, world.roots[:1])
    assert not broken
    assert facts.rows == (3 * FAN + 3, 3 * FAN + 3)
    assert facts.outcomes.of_kind(ROWS) == facts.present == facts.loaded
    assert world.piece_count() == PIECES_MAX
    assert reconcile(facts, None).fine


def test_a_committed_plan_that_is_found_again_keeps_its_outcomes(world: World, segments: Any) -> None:
    """Its loader died after the commit, and others went on: it is dropped, for its records are in the table."""
    world.format = "deltalake"
    world.seal([segments.Record(1)])
    world.drain_with_crash("renamed")
    world.seal([segments.Record(2)], at=1)
    world.drain(world.loader(1))
    world.drain(world.loader())
    facts, _ = table_facts(world.table, world.roots)
    assert facts.rows == (2, 2)
    assert facts.outcomes.of_queue(ROWS, QUEUE).pieces == ((1, 3),)


def test_a_reader_that_finds_a_part_merged_away_lists_again(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.commit(3)
    listings: list[int] = []

    def singles(above: int) -> Iterator[Part]:
        listings.append(above)
        gone = [Part(9, 9, 0, table.folder / "9-gone.json.gz")] if len(listings) == 1 else []
        yield from [*table.levels().parts(), *gone]

    assert joined(OutcomeLevels(tmp_path / "none", singles).read()) == table.expected()
    assert len(listings) == 2


def test_of_forgotten_records_nothing_more_is_said(world: World, segments: Any) -> None:
    world.seal([segments.Record(0), segments.Record(1, [])])
    world.drain(world.loader())
    (world.table / "_outcomes").mkdir()
    (world.table / "_outcomes" / "0-1.forgotten.json.gz").write_bytes(BatchOutcomes(1, told_forgotten()).pack())
    facts, _ = table_facts(world.table, world.roots)
    (queue,) = reconcile(facts, None).queues
    assert {fate: offsets.pieces for fate, offsets in queue.fates.items()} == {
        Fate.LOADED: ((0, 1),), Fate.FORGOTTEN: ((1, 2),),
    }  # fmt: skip


def test_of_what_was_not_delivered_that_stays_said(world: World, segments: Any) -> None:
    world.seal([segments.Record(0), segments.Record(6)])
    gap = OffsetSet({QUEUE: IntervalSet.of([(1, 6)])})
    Staging(world.roots[0]).note("1", Outcomes.of([(UNDELIVERED, gap), (NO_ROWS, gap)]))
    segments.settle(world.roots[0], (*QUEUE[:4], 0, 7))
    world.drain(world.loader())
    for _ in range(3):
        world.outcomes(fan=1).tidy(4e9, 1.0)
    (told,) = world.target().outcomes()
    assert told.outcomes.kinds.keys() == {FORGOTTEN, UNDELIVERED}
    facts, _ = table_facts(world.table, world.roots[:1])
    (queue,) = reconcile(facts, None).queues
    assert {fate: offsets.pieces for fate, offsets in queue.fates.items()} == {
        Fate.LOADED: ((0, 1), (6, 7)), Fate.UNDELIVERED: ((1, 6),),
    }  # fmt: skip


def told_forgotten() -> Outcomes:
    return Outcomes.of([(FORGOTTEN, OffsetSet({QUEUE: IntervalSet.of([(0, 2)])}))])


def test_outcomes_of_a_delta_table_are_those_of_its_ledger(world: World, segments: Any) -> None:
    world.format = "deltalake"
    world.seal([segments.Record(3)])
    world.drain(world.loader())
    target = DeltaTarget(world.table, append_by_delta_rs, lambda: None)
    assert [one.rows for one in target.outcomes()] == [1]
