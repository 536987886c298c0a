"""What a table says of its queues: a few numbers for each, whatever happens, and no hole that counts as loaded."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loader_world import World, pieces_of
from structlog.testing import capture_logs

from rocketcrew.durable.facts import facts_to_text
from rocketcrew.durable.intervals import Intervals, IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import (
    DEAD_LETTER,
    ELSEWHERE,
    ENDS,
    FORGOTTEN,
    LOST,
    NO_ROWS,
    PASSED,
    ROWS,
    SENT_BACK,
    SKIPPED,
    BatchOutcomes,
    Outcomes,
)
from rocketcrew.spark.accounts import NO_DETAIL, PIECES_MAX, Accounts, detail_after, open_tops, shrunk
from rocketcrew.spark.cuts import CUTS_MAX
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.loader import POINTS
from rocketcrew.spark.outcome_levels import FAN
from rocketcrew.spark.plan import Cut, Plan, PlanBounds, Top
from rocketcrew.spark.reconciling import QueueEnds, reconcile
from rocketcrew.spark.reports import MUCH
from rocketcrew.spark.staging import Staging
from rocketcrew.spark.table_keys import table_facts
from rocketcrew.spark.table_state import read_state, write_state

QUEUE = QueueKey("g", "orders", "broker-a", 0)
TABLES = ("parquet", "deltalake")
every_point = pytest.mark.parametrize("point", POINTS)


def of(*pieces: tuple[int, int], queue: QueueKey = QUEUE) -> OffsetSet:
    return OffsetSet.of([(queue, IntervalSet.of(pieces))])


def test_the_floor_passes_the_lowest_holes_and_says_which() -> None:
    odd = of(*((n, n + 1) for n in range(1, 2 * PIECES_MAX + 5, 2)))
    accounts, passed = shrunk(odd, OffsetSet())
    assert accounts.loaded == of((1, 6), *((n, n + 1) for n in range(7, 2 * PIECES_MAX + 5, 2)))
    assert passed == of((2, 3), (4, 5))
    assert accounts.holes == of((2, 5))
    assert shrunk(accounts.loaded, accounts.holes) == (accounts, OffsetSet()), "a second time changes nothing"


def test_the_floor_passes_a_hole_with_an_end_at_once() -> None:
    accounts, passed = shrunk(of((0, 5), (9, 12), (20, 21)), OffsetSet(), ended=of((4, 10), (30, 33)))
    assert accounts.loaded == of((0, 12), (20, 21), (30, 33))
    assert passed == of((5, 9), (30, 33))
    assert accounts.holes == of((5, 33))


def test_an_epoch_with_two_newer_ones_is_one_interval() -> None:
    loaded = OffsetSet.union(of((0, 3), (5, 9), queue=QUEUE.in_epoch(epoch)) for epoch in range(4))
    accounts, passed = shrunk(loaded, OffsetSet())
    assert [accounts.loaded.of_queue(QUEUE.in_epoch(epoch)).pieces for epoch in range(4)] == [
        ((0, 9),), ((0, 9),), ((0, 3), (5, 9)), ((0, 3), (5, 9)),
    ]  # fmt: skip
    assert passed == OffsetSet.union(of((3, 5), queue=QUEUE.in_epoch(epoch)) for epoch in range(2))
    tops = {QUEUE.in_epoch(epoch): Top(8, 1, 0) for epoch in range(4)}
    assert sorted(open_tops(tops, loaded)) == [QUEUE.in_epoch(2), QUEUE.in_epoch(3)]


@pytest.mark.parametrize("seed", range(20))
def test_state_and_outcomes_together_know_each_offset(seed: int) -> None:
    """Offsets in random order, with few intervals allowed: what the state takes for loaded and nobody has, outcomes name."""
    rng = random.Random(seed)
    exact, accounts = OffsetSet(), Accounts(OffsetSet())
    told: list[Outcomes] = []
    known = NO_DETAIL
    offsets = list(range(400))
    offsets.sort(key=lambda offset: offset + rng.randrange(120))
    for at in range(0, 360, 6):
        brought = of(*((offset, offset + 1) for offset in offsets[at : at + 6]))
        detail = detail_after(NO_DETAIL, accounts.loaded, accounts.holes, told)
        known = detail_after(known, accounts.loaded, accounts.holes, told[-1 - rng.randrange(3) :])
        assert known == detail, "whether all is read again or the newest alone, some of it twice"
        ended = OffsetSet.union(one.of_kind(NO_ROWS) for one in told)
        assert (accounts.loaded - detail.open) - ended == exact - ended
        assert not detail.open - accounts.holes
        exact = (accounts.loaded - detail.open) | brought
        after, passed = shrunk(accounts.loaded | brought, (detail.open - brought).hull(), 3)
        assert not passed & detail.open
        noted = of((offsets[at + 9], offsets[at + 9] + 1)) if rng.random() < 0.5 else OffsetSet()
        told.append(Outcomes.of([(ROWS, brought), (PASSED, passed), (NO_ROWS, noted)]))
        accounts = after
        assert pieces_of(accounts.loaded) <= 3


@pytest.mark.parametrize("intervals", [1, 4, 8, 12, 1000])
def test_64_queues_with_30_epochs_take_64_kib(tmp_path: Path, intervals: int) -> None:
    """POP on two members with a tag that matches one in ten leaves a hole after nearly each record."""
    rng = random.Random(1)
    queues: list[tuple[QueueKey, IntervalSet]] = []
    tops: dict[QueueKey, Top] = {}
    for number in range(64):
        for epoch in range(30):
            key = QueueKey("orders-to-warehouse", "warehouse-orders", f"broker-{number // 8}", number % 8, epoch)
            start, holed = rng.randrange(10**6), epoch >= 28
            many = IntervalSet.of(
                (start + 1000 * n, start + 1000 * n + 101 + n % 3) for n in range(intervals if holed else 1)
            )
            queues.append((key, many | IntervalSet.of([(0, start)])))
            until_us = 1_735_689_600_000_000
            silence = rng.randrange(10**10, 10**11)
            places = [(start + 12_345 * n, until_us + 4 * 10**11 * n) for n in range(1, CUTS_MAX)]
            cuts = [Cut(at, time, at + 1, time + silence) for at, time in places]
            first = Cut(-1, -1, start, until_us)
            tops[key] = Top(start + 10**5, until_us + 3 * 10**12, until_us, (first, *cuts))
    accounts, passed = shrunk(OffsetSet.of(queues), OffsetSet())
    accounts = replace(accounts, tops=open_tops(tops, accounts.loaded))
    write_state(tmp_path / "state", Plan("00020000-x", 20_000, (), OffsetSet(), ()), accounts, 1, durable=False)
    assert bool(passed) == (intervals > PIECES_MAX)
    assert (tmp_path / "state").stat().st_size <= 64 * 1024
    read = read_state(tmp_path / "state")
    assert (read.loaded, read.holes) == (accounts.loaded, accounts.holes)
    assert read.tops == open_tops(tops, accounts.loaded)


def test_the_state_does_not_grow_with_commits() -> None:
    """One record is stuck, others come as POP gives them to two members: 100 commits and 5,000 need the same."""
    rng = random.Random(2)
    accounts = Accounts(OffsetSet())
    sizes: dict[int, int] = {}
    for commit in range(1, 5001):
        base = 30 * commit
        brought = Intervals((base + 10 * n, base + 10 * n + 1) for n in range(3) if rng.random() < 0.9)
        accounts, _ = shrunk(accounts.loaded | OffsetSet.of([(QUEUE, brought.frozen())]), accounts.holes)
        sizes[commit] = len(str(accounts.loaded.to_json()))
    assert sizes[5000] <= sizes[100] + 8, "numbers of more digits"


def holed(world: World, segments: Any, count: int = PIECES_MAX + 5) -> None:
    """A table whose floor has passed holes: every other record, a batch."""
    world.seal([segments.Record(2 * n + 1) for n in range(count)])
    world.drain(world.loader())
    state = world.target().state()
    assert state.holes
    assert pieces_of(state.loaded) == PIECES_MAX


class Counted:
    """A table that counts the files of outcomes that are read."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def outcomes(self, above: int = 0) -> Iterator[BatchOutcomes]:
        for told in self._target.outcomes(above):
            self.read += 1
            yield told


@pytest.mark.parametrize("fewer", [1, 2], ids=["one loader", "two loaders"])
def test_a_commit_reads_the_outcomes_since_the_last_however_many_there_were(
    world: World, segments: Any, fewer: int
) -> None:
    """Two holes stay, and with each commit a record between them comes again."""
    reads: dict[int, int] = {}
    targets = [Counted(world.target()) for _ in range(fewer)]
    loaders = [world.loader(at, target=target, pieces_max=1) for at, target in enumerate(targets)]
    world.seal([segments.Record(offset) for offset in (0, 2, 4)])
    world.drain(loaders[0])
    for commit in range(2, 3 * FAN + 1):
        at = commit % fewer
        world.seal([segments.Record(2), segments.Record(commit + 3)], at=at)
        before = targets[at].read
        (report,) = world.drain(loaders[at])
        assert (report.batch, report.rows) == (commit, 1)
        reads[commit] = targets[at].read - before
    usual = [count for commit, count in reads.items() if commit > 2 * fewer]
    assert max(usual) <= fewer
    assert sum(usual[-FAN:]) <= sum(usual[:FAN]), "the last commits read no more than the first ones"
    assert world.target().state().holes.count() == 3


@every_point
def test_a_record_in_a_hole_that_was_passed_is_loaded_once(world: World, segments: Any, point: str) -> None:
    holed(world, segments)
    late = [segments.Record(4), segments.Record(6), segments.Record(7, ["again"])]
    world.seal(late, at=1)
    crashed = False

    def crash(here: str) -> None:
        nonlocal crashed
        if here == point and not crashed:
            crashed = True
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.drain(world.loader(1, on_point=crash))
    world.seal([segments.Record(4, ["from another"]), segments.Record(8)])
    world.drain(world.loader(0))
    world.drain(world.loader(1))
    world.seal([segments.Record(offset, ["once more"]) for offset in range(1, 10)], at=1)
    world.drain(world.loader(1))
    rows = Counter(row[3] for row in world.rows())
    assert set(rows.values()) == {1}
    assert {4, 6, 8} <= rows.keys()
    assert {2, 4, 5, 9} <= rows.keys(), "no record is taken for loaded that nobody has brought"


def test_a_hole_that_is_settled_later_is_closed(world: World, segments: Any) -> None:
    holed(world, segments)
    segments.filtered(world.roots[0], (*QUEUE[:4], 0, 100))
    segments.settle(world.roots[0], (*QUEUE[:4], 0, 30))
    world.seal([segments.Record(101)])
    world.drain(world.loader())
    state = world.target().state()
    assert not state.holes, "it is known of each of them that it has no rows"
    world.seal([segments.Record(4, ["late"])])
    (before,) = [world.rows()]
    world.drain(world.loader())
    assert world.rows() == before


@pytest.mark.parametrize("kind", ENDS)
def test_what_was_lost_or_skipped_is_no_hole_and_is_loaded_should_it_come(
    world: World, segments: Any, kind: str
) -> None:
    world.seal([segments.Record(offset) for offset in (0, 1, 8)])
    note(world, Outcomes.of([(kind, of((2, 8)))]))
    world.drain(world.loader())
    state = world.target().state()
    assert (state.loaded, state.holes) == (of((0, 9)), of((2, 8)))
    facts, _ = table_facts(world.table, world.roots[:1])
    report = reconcile(facts, None)
    assert {fate.value: offsets.count() for fate, offsets in report.queues[0].fates.items()} == {"loaded": 3, kind: 6}
    assert report.fine
    assert report.lost == (6 if kind == LOST else 0)
    world.seal([segments.Record(5), segments.Record(9)], at=1)
    world.drain(world.loader(1))
    facts, _ = table_facts(world.table, world.roots[:1])
    report = reconcile(facts, None)
    assert {fate.value: offsets.count() for fate, offsets in report.queues[0].fates.items()} == {"loaded": 5, kind: 5}
    world.assert_exact()


@pytest.mark.parametrize("kind", ENDS)
def test_after_what_was_lost_or_skipped_no_commit_reads_outcomes(world: World, segments: Any, kind: str) -> None:
    world.seal([segments.Record(0)])
    world.drain(world.loader())
    note(world, Outcomes.of([(kind, of((1, 100)))]))
    target = Counted(world.target())
    loader = world.loader(target=target)
    for offset in range(100, 104):
        world.seal([segments.Record(offset)])
        world.drain(loader)
    world.seal([segments.Record(104)])
    world.drain(world.loader(target=target))
    state = world.target().state()
    assert (state.batch, state.loaded, state.holes) == (6, of((0, 105)), of((1, 100)))
    assert target.read == 0
    (left,) = Staging(world.roots[0]).left().values()
    assert not left


def test_what_waits_in_a_segment_is_not_passed_as_skipped(world: World, segments: Any) -> None:
    world.seal([segments.Record(0), segments.Record(9)])
    world.seal([segments.Record(5)])
    note(world, Outcomes.of([(SKIPPED, of((1, 20)))]))
    world.drain(world.loader(bounds=PlanBounds(2, 10**9)))
    world.assert_exact()
    assert world.target().state().loaded == of((0, 20))


@every_point
def test_an_end_is_passed_once_whatever_dies(world: World, segments: Any, point: str) -> None:
    world.seal([segments.Record(0), segments.Record(9)])
    note(world, Outcomes.of([(SKIPPED, of((1, 9)))]))
    world.drain_with_crash(point)
    world.seal([segments.Record(3), segments.Record(10)])
    world.drain(world.loader())
    world.assert_exact()
    assert world.target().state().loaded == of((0, 11))


def test_a_segment_that_is_lost_in_a_skipped_range_is_a_gap_all_the_same(world: World, segments: Any) -> None:
    note(world, Outcomes.of([(SKIPPED, of((1, 9)))]))
    segments.settle(world.roots[0], (*QUEUE[:4], 0, 4))
    world.seal([segments.Record(0), segments.Record(3), segments.Record(101)])
    with pytest.raises(LoaderError, match=r"orders broker-a 0: 1-2\."):
        world.drain(world.loader())


@pytest.mark.parametrize("kind", ENDS)
def test_and_also_once_the_table_has_noted_the_range(world: World, segments: Any, kind: str) -> None:
    note(world, Outcomes.of([(kind, of((5, 10)))]))
    loader = world.loader()
    world.seal([segments.Record(n) for n in (0, 1, 2, 3, 4, 10)])
    world.drain(loader)
    world.seal([segments.Record(7)]).unlink()
    segments.settle(world.roots[0], *((*QUEUE[:4], *piece) for piece in ((0, 5), (7, 8), (10, 12))))
    world.seal([segments.Record(11)])
    with pytest.raises(LoaderError, match=r"orders broker-a 0: 7\."):
        world.drain(loader)


def test_what_others_had_of_a_popped_queue_has_its_end_from_the_first_record_on(world: World, segments: Any) -> None:
    """A supervisor says how far the queue was shown, again and again, and not from where on."""
    target = Counted(world.target())
    loader = world.loader(target=target)
    for name, (end, mine) in enumerate(((60, (40, 45, 46)), (80, (70,)), (100, (90,))), start=1):
        world.seal([segments.Record(offset) for offset in mine])
        note(world, Outcomes.of([(ELSEWHERE, of((0, end)))]), f"{name:020d}")
        world.drain(loader)
    state = world.target().state()
    assert (state.loaded, state.holes) == (of((40, 100)), of((41, 100)))
    assert target.read == 0, "no commit reads outcomes for what is said again"
    assert all(told.outcomes.of_kind(ELSEWHERE) & of((0, 40)) == OffsetSet() for told in world.target().outcomes())
    report = reconcile(table_facts(world.table, world.roots[:1])[0], None)
    counts = {fate.value: offsets.count() for fate, offsets in report.queues[0].fates.items()}
    assert counts == {"loaded": 5, "elsewhere": 55}
    assert report.fine
    world.seal([segments.Record(55, ["of another member, late"])], at=1)
    world.drain(world.loader(1))
    world.assert_exact()
    report = reconcile(table_facts(world.table, world.roots[:1])[0], None)
    assert {fate.value: offsets.count() for fate, offsets in report.queues[0].fates.items()}["loaded"] == 6


def popped(world: World, loader: Any, end: int, *records: Any, at: int = 0) -> None:
    """The broker has shown the queue up to `end`, and these records were for this member."""
    world.seal(list(records), at=at)
    note(world, Outcomes.of([(ELSEWHERE, of((0, end)))]), f"{end:020d}")
    world.drain(loader)


def test_messages_that_others_have_for_good_are_counted_and_reported_once(world: World, segments: Any) -> None:
    """Another member of the group fills another table."""
    loader, shown = world.loader(), 3 * MUCH
    with capture_logs() as logs:
        for end in range(1_000, shown, 1_000):
            popped(world, loader, end, segments.Record(end - 1_000))
            assert loader.totals.elsewhere == end - end // 1_000, (
                "each is counted once, though it is said again and again"
            )
    (said,) = [line for line in logs if line["event"] == "popped_elsewhere"]
    assert MUCH <= said["messages"] < MUCH + 1_000
    assert said["loaded"] < 20


@pytest.mark.parametrize("how", ["retry", "late"])
def test_messages_that_come_again_or_late_are_no_reason_for_a_warning(world: World, segments: Any, how: str) -> None:
    loader, step = world.loader(), 100
    retry = 0
    with capture_logs() as logs:
        for end in range(step, 4 * step, step):
            popped(world, loader, end, segments.Record(end - step))
            if how == "late":
                late = [segments.Record(offset) for offset in range(end - step + 1, end)]
            else:
                late = [segments.Record(retry + n, topic="%RETRY%g") for n in range(step - 1)]
                retry += step - 1
            assert loader.totals.elsewhere == step - 1
            world.seal(late)
            world.drain(loader)
            assert loader.totals.elsewhere == 0
    assert not [line for line in logs if line["event"] == "popped_elsewhere"]


@every_point
def test_how_far_a_queue_was_shown_waits_until_the_table_has_a_record_of_it(
    world: World, segments: Any, point: str
) -> None:
    """It may have been said while the queue's first segment waited for another batch, and the queue falls silent."""
    other = QUEUE._replace(queue_id=1)
    world.seal([segments.Record(5)])
    world.seal([segments.Record(3, queue_id=1)])
    note(world, Outcomes.of([(ELSEWHERE, of((0, 10), queue=other))]))
    assert world.loader(bounds=PlanBounds(1, 10**9)).step(10**13, at_once=True)
    assert world.target().state().loaded == of((5, 6)), "of a queue that it has nothing of it says nothing"
    early = reconcile(table_facts(world.table, world.roots[:1])[0], {other: QueueEnds(0, 10, 3)})
    assert early.fine
    world.drain_with_crash(point)
    world.drain(world.loader())
    report = reconcile(table_facts(world.table, world.roots[:1])[0], {other: QueueEnds(0, 10, 10)})
    assert report.fine
    assert not report.to_run_again()
    (found,) = [one for one in report.queues if one.key == other]
    counts = {fate.value: offsets.pieces for fate, offsets in found.fates.items()}
    assert counts == {"loaded": ((3, 4),), "before": ((0, 3),), "elsewhere": ((4, 10),)}


def test_a_segment_of_before_the_first_record_finds_what_was_shown_before_it(world: World, segments: Any) -> None:
    world.load(9)
    note(world, Outcomes.of([(ELSEWHERE, of((0, 12)))]))
    world.load(10)
    world.load(2)
    report = reconcile(table_facts(world.table, world.roots[:1])[0], None)
    counts = {fate.value: offsets.count() for fate, offsets in report.queues[0].fates.items()}
    assert counts == {"loaded": 3, "elsewhere": 7}


@every_point
def test_what_is_elsewhere_has_its_end_whatever_dies(world: World, segments: Any, point: str) -> None:
    world.seal([segments.Record(2), segments.Record(9)])
    note(world, Outcomes.of([(ELSEWHERE, of((0, 8)))]))
    world.drain_with_crash(point)
    world.seal([segments.Record(3), segments.Record(10)])
    world.drain(world.loader())
    world.assert_exact()
    assert world.target().state().loaded == of((2, 8), (9, 11))


def note(world: World, outcomes: Outcomes, name: str = "00000000000000000001") -> None:
    Staging(world.roots[0]).note(name, outcomes)


def test_a_segment_that_is_lost_within_passed_holes_is_a_gap_all_the_same(world: World, segments: Any) -> None:
    holed(world, segments)
    segments.settle(world.roots[0], (*QUEUE[:4], 1, 6))
    world.seal([segments.Record(101)])
    with pytest.raises(LoaderError, match=r"orders broker-a 0: 2, 4\."):
        world.drain(world.loader())


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "forgotten"])
def test_a_record_of_a_hole_is_known_also_when_its_outcome_is_forgotten(
    world: World, segments: Any, *, keeps: bool
) -> None:
    """By a loader that has the hole in memory since before."""
    loader = world.loader(pieces_max=2)
    for records in ([segments.Record(10 * n) for n in range(5)], [segments.Record(5)]):
        world.seal(records)
        world.drain(loader)
    if not keeps:
        for _ in range(3):
            world.outcomes(fan=2).tidy(4e9, 1.0)
        (told,) = world.target().outcomes()
        assert told.outcomes.kinds.keys() == {FORGOTTEN}
    world.seal([segments.Record(5, ["again"])])
    world.drain(loader)
    assert world.rows("_offset", "value") == [(offset, "row") for offset in (0, 5, 10, 20, 30, 40)]


def test_reconcile_does_not_take_passed_holes_for_loaded(world: World, segments: Any) -> None:
    holed(world, segments)
    facts, broken = table_facts(world.table, world.roots[:1])
    assert not broken
    assert facts.loaded == facts.present
    assert reconcile(facts, None).fine


@pytest.mark.parametrize("kind", [NO_ROWS, SENT_BACK, DEAD_LETTER])
def test_notes_that_name_the_very_records_are_folded_in(world: World, segments: Any, kind: str) -> None:
    """With POP nobody settles: without them each record that has no rows would stay a hole."""
    world.seal([segments.Record(0), segments.Record(2)])
    path = world.roots[0] / "outcomes" / "1.facts"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(facts_to_text(Outcomes.of([(kind, of((1, 2)))])))
    world.drain(world.loader())
    assert world.state()["loaded"] == [[*QUEUE[:4], [0, 3]]]


def operations(act: Callable[[], object]) -> Counter[str]:
    """How often `act` opens, lists, renames or removes something."""
    counted: Counter[str] = Counter()
    counting = True

    def hook(event: str, _: object) -> None:
        if counting and event in ("open", "os.listdir", "os.scandir", "os.rename", "os.remove", "os.mkdir", "os.rmdir"):
            counted[event] += 1

    sys.addaudithook(hook)
    try:
        act()
    finally:
        counting = False
    return counted


def test_a_plan_is_as_large_as_what_it_takes_whatever_the_table_has(world: World, segments: Any) -> None:
    sizes: list[int] = []

    def look(here: str) -> None:
        if here == "planned":
            (path,) = (world.roots[0] / "plan").glob("[!.]*.json")
            sizes.append(path.stat().st_size)

    loader = world.loader(on_point=look)
    for round_ in range(3):
        world.seal([segments.Record(round_)])
        world.drain(loader)
        if round_ == 1:
            world.seal([segments.Record(0, queue_id=queue) for queue in range(1, 200)])
            world.drain(loader)
    assert sizes[3] == sizes[1]


def test_a_commit_does_the_same_after_3000_others(world: World, segments: Any) -> None:
    if world.format != "parquet":
        pytest.skip("the log of a Delta table is delta-rs's own")
    counts: list[Counter[str]] = []
    for batches in (10, 3000):
        world.table = world.table.with_name(f"table-{batches}")
        world.seal([segments.Record(0)])
        world.drain(world.loader())
        first = world.table / "batch_id=1"
        state = (first / "_loaded.json").read_text()
        for batch in range(2, batches):
            (world.table / f"batch_id={batch}").mkdir()
        last = world.table / f"batch_id={batches}"
        last.mkdir()
        (last / "_loaded.json").write_text(state.replace('"batch":1,', f'"batch":{batches},'))
        loader = world.loader()
        world.seal([segments.Record(1)])
        world.drain(loader)
        world.seal([segments.Record(2)])
        counts.append(operations(lambda loader=loader: world.drain(loader)))
        assert world.target().state().batch == batches + 2
    assert counts[0]["os.rename"]
    assert counts[0] == counts[1]
