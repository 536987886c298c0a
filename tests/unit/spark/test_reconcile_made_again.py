"""A topic that was deleted, made again and filled past the group's offset: which of what nobody has handled is named."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from loader_world import World
from segment_helpers import EPOCH

from rocketcrew.cli.commands.reconcile import as_lines, as_object, with_made_again
from rocketcrew.cli.commands.reset import write_request
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import FILTERED, NO_ROWS, Outcomes
from rocketcrew.spark.cuts import CUTS_MAX, NO_TOP, top_with
from rocketcrew.spark.plan import Ends, Top
from rocketcrew.spark.reconciling import (
    COMPARED,
    COMPARED_ABOVE,
    Fate,
    QueueEnds,
    Report,
    Search,
    TableFacts,
    made_again,
    passed_again,
    reconcile,
    to_compare,
    to_compare_above,
    to_date,
    to_search,
)
from rocketcrew.spark.staging import Staging
from rocketcrew.spark.table_keys import store_times, table_facts

QUEUE = QueueKey("g", "orders", "broker-a", 0)

TABLES = ("parquet", "deltalake", "iceberg")
"""What the tests with a world run on, each."""


def fates(report: Report) -> dict[str, tuple[tuple[int, int], ...]]:
    (found,) = [one for one in report.queues if one.ends is not None]
    return {fate.value: pieces.pieces for fate, pieces in found.fates.items()}


def test_a_topic_made_again_and_filled_past_the_group_s_offset_is_seen_by_its_first_record(
    world: World, segments: Any
) -> None:
    """Deleted at 5, filled to 9 at once, and the group went on at 5: nobody has handled the first five of the new topic."""
    before = [segments.Record(n) for n in range(5)]
    after = [replace(segments.Record(n), extra={"_store_time": EPOCH + timedelta(days=1, seconds=n)}) for n in range(9)]
    world.seal(before)
    world.drain(world.loader())
    world.seal(after[5:])
    world.drain(world.loader())
    assert look_at_the_first(world, timedelta()).fine, "the very record"
    report = look_at_the_first(world, timedelta(days=1))
    assert fates(report) == {"loaded": ((5, 9),), "unknown": ((0, 5),)}
    assert not report.fine
    assert not report.to_run_again(), "their rows would stand beside those of the others, with the same keys"
    assert fates(look_at_the_first(world, timedelta(days=1), committed=2))["unknown"] == ((0, 2),), "the rest will come"
    assert fates(look_at_the_first(world, timedelta(days=1), readable=False)) == fates(report)

    world.seal(after)
    report = look_at_the_first(world, timedelta(days=1))
    assert fates(report) == {"loaded": ((5, 9),), "waiting": ((0, 5),)}, "the group was reset"
    world.drain(world.loader(epoch_on_recreated=True))
    assert [offset for (offset,) in world.rows("_offset")] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8]
    report = look_at_the_first(world, timedelta(days=1))
    assert report.fine
    assert not any(queue.made_again for queue in report.queues)


def test_a_broker_s_clock_that_is_behind_hides_no_topic_made_again(world: World, segments: Any) -> None:
    """Its records look older than those of the topic before. So the loader cannot tell an epoch by their store times, and
    what waits comes to nothing: they need one that is asked for."""
    world.seal([segments.Record(n) for n in range(5)])
    world.drain(world.loader())
    after = [
        replace(segments.Record(n), extra={"_store_time": EPOCH + timedelta(days=-1, seconds=n)}) for n in range(9)
    ]
    world.seal(after[5:])
    world.drain(world.loader())
    report = look_at_the_first(world, timedelta(days=-1))
    assert fates(report) == {"loaded": ((2, 9),), "unknown": ((0, 2),)}, "as far as records were compared"
    assert [queue.newer for queue in report.queues] == [False]
    assert look_at_the_first(world, timedelta(days=-1), readable=False).fine, "by the ledger alone nobody knows"
    world.seal(after[:5])
    assert fates(look_at_the_first(world, timedelta(days=-1)))["unknown"] == ((0, 2),)
    world.drain(world.loader(epoch_on_recreated=True))
    assert fates(look_at_the_first(world, timedelta(days=-1)))["unknown"] == ((0, 2),)

    write_request([Staging(world.roots[0])], (QUEUE.in_epoch(1),))
    world.seal(after)
    world.drain(world.loader())
    assert look_at_the_first(world, timedelta(days=-1)).fine


def at_its_beginning(world: World, later: timedelta, ends: QueueEnds, **noted: IntervalSet) -> Report:
    """The report when the last record below the newest epoch's rows was stored by so much later than the first epoch's."""
    facts, _ = table_facts(world.table, world.roots[:1])
    outcomes = Outcomes({kind: OffsetSet({QUEUE: some}) for kind, some in noted.items()})
    facts = replace(facts, outcomes=Outcomes.union([facts.outcomes, outcomes]))
    report = reconcile(facts, {QUEUE: ends})
    stored_ms = {
        key: {at: round((EPOCH + later + timedelta(seconds=at)).timestamp() * 1000) for at in some}
        for key, some in to_date(report, facts.tops).items()
    }
    passed = passed_again(report, facts, stored_ms)
    return report.as_told({Fate.UNKNOWN: passed}) if passed else report


def test_what_nobody_has_handled_at_the_beginning_of_a_topic_made_again_is_not_of_before_the_group(
    world: World, segments: Any
) -> None:
    """The member went on at the end of the new topic. The group was there before it, so its first messages are its own."""
    world.load(*range(20))
    after = [
        replace(segments.Record(n), extra={"_store_time": EPOCH + timedelta(days=1, seconds=n)}) for n in range(12)
    ]
    world.seal(after[9:])
    world.drain(world.loader(epoch_on_recreated=True))
    report = at_its_beginning(world, timedelta(days=1), QueueEnds(0, 12, 12))
    assert fates(report) == {"loaded": ((9, 12),), "unknown": ((0, 9),)}
    assert report.to_run_again().of_queue(QUEUE.in_epoch(1)).pieces == ((0, 9),)
    report = at_its_beginning(world, timedelta(days=1), QueueEnds(4, 12, 12))
    assert fates(report)["unknown"] == ((4, 9),), "the rest is deleted"
    report = at_its_beginning(world, timedelta(days=1), QueueEnds(0, 12, 12), **{FILTERED: IntervalSet(((0, 6),))})
    assert fates(report)["unknown"] == ((6, 9),), "what is noted knows no epochs: it may be the new topic's"
    assert at_its_beginning(world, timedelta(), QueueEnds(0, 12, 12)).fine, "the broker has lost the queue's end"
    facts, _ = table_facts(world.table, world.roots[:1])
    assert reconcile(facts, None).fine, "nobody was asked"


def test_a_re_run_from_an_offset_on_has_what_is_below_before_it(world: World, segments: Any) -> None:
    world.load(*range(20))
    write_request([Staging(world.roots[0])], (QUEUE.in_epoch(1),))
    world.seal([segments.Record(n) for n in range(9, 12)])
    world.drain(world.loader())
    facts, _ = table_facts(world.table, world.roots[:1])
    assert fates(reconcile(facts, {QUEUE: QueueEnds(0, 12, 12)})) == {"loaded": ((9, 12),), "before": ((0, 9),)}


def look_at_the_first(world: World, later: timedelta, committed: int = 9, *, readable: bool = True) -> Report:
    """The report when the broker has stored the records that can be compared by so much later than the table's first."""
    facts, _ = table_facts(world.table, world.roots[:1])
    report = reconcile(facts, {QUEUE: QueueEnds(0, 9, committed)})
    wanted = to_compare(report)
    stored_ms = {
        key: {at: round((EPOCH + later + timedelta(seconds=at)).timestamp() * 1000) for at in some}
        for key, some in wanted.items()
    }
    own_us = store_times(world.table, wanted) if readable else {}
    return report.with_made_again(made_again(report, facts.tops, stored_ms, own_us), facts)


@pytest.mark.parametrize("fails", [0, 1, None])
def test_a_queue_whose_records_brokers_did_not_all_say_is_not_explained(
    tmp_path: Path, segments: Any, threads: Executor, fails: int | None
) -> None:
    """A broker that was busy after the first round: its upper records were others, and all was fine."""
    world = World(tmp_path, segments, threads)
    world.load(*range(200))
    facts, _ = table_facts(world.table, world.roots[:1])
    rounds: list[dict[QueueKey, tuple[int, ...]]] = []

    def ask(question: partial[Any]) -> tuple[dict[QueueKey, dict[int, int]], dict[QueueKey, str]]:
        rounds.append(question.keywords["wanted"])
        said = {key: {offset: us(offset) // 1000 for offset in offsets} for key, offsets in rounds[-1].items()}
        return ({}, {QUEUE: "broker busy"}) if len(rounds) - 1 == fails else (said, {})

    report = with_made_again(ask, world.table, reconcile(facts, {QUEUE: QueueEnds(0, 200, 200)}), facts)
    assert [list(wanted) for wanted in rounds] == ([[QUEUE], []] if fails == 0 else [[QUEUE], [QUEUE]])
    assert (report.fine, as_object(report, [])["fine"]) == (fails is None, fails is None)
    said = "not compared: whether the broker has the messages that the table has rows of was not answered: broker busy"
    assert (f"  {said}" in as_lines(report, [])) == (fails is not None)


def test_the_times_of_rows_are_read_by_queue_and_epoch(world: World, segments: Any) -> None:
    other = QUEUE._replace(queue_id=1)
    world.seal([segments.Record(n, values=("row", "row")) for n in range(5)], [segments.Record(3, queue_id=1)])
    world.drain(world.loader())
    again = [replace(segments.Record(n), extra={"_store_time": EPOCH + timedelta(days=1)}) for n in range(2)]
    world.seal(again)
    world.drain(world.loader(epoch_on_recreated=True))
    wanted = {QUEUE: [0, 3, 99], QUEUE.in_epoch(1): [0, 3], other: [0, 3]}
    assert store_times(world.table, wanted) == {
        QUEUE: {0: us(0), 3: us(3)}, QUEUE.in_epoch(1): {0: us(86_400)}, other: {3: us(3)},
    }  # fmt: skip


def test_a_file_that_cannot_be_read_gives_no_times(tmp_path: Path, segments: Any, threads: Executor) -> None:
    world = World(tmp_path, segments, threads)
    world.load(0, 1)
    world.load(2, 3)
    _, second = sorted(world.table.rglob("*.parquet"))
    second.write_bytes(b"PAR1 and no more")
    assert store_times(world.table, {QUEUE: [1, 2]}) == {QUEUE: {1: us(1)}}
    assert store_times(tmp_path / "none", {}) == {}, "nothing is asked of a table that is to come"


def us(seconds: int) -> int:
    return round((EPOCH + timedelta(seconds=seconds)).timestamp()) * 1_000_000


HOUR_MS = 3_600_000


def top(*pieces: tuple[int, int, int, int]) -> Top:
    """Of what is loaded: the first and the last offset, and the hours in which these were stored."""
    found = NO_TOP
    for first, last, since, until in pieces:
        found = top_with(found, Ends(first, last, since * HOUR_MS * 1000, until * HOUR_MS * 1000))
    return found


def looked_at(
    ends: QueueEnds, rows_from: int, known: Top, hours: Mapping[int, int], own: Mapping[int, int], settled: OffsetSet
) -> Report:
    """Of a queue that the group has read to 150, of which all gave rows from `rows_from` on. `hours`: when the broker has
    stored what it gives, `own`: when the table's rows were stored."""
    loaded = OffsetSet({QUEUE: IntervalSet.of([(0, 150)])})
    present = OffsetSet({QUEUE: IntervalSet.of([(rows_from, 150)])})
    without = Outcomes.of([(NO_ROWS, loaded - present)])
    facts = TableFacts(present, OffsetSet(), loaded, without, settled=settled, tops={QUEUE: known})
    report = reconcile(facts, {QUEUE: ends})
    wanted = to_compare(report).get(QUEUE, ())
    stored_ms = {at: hours[at] * HOUR_MS for at in wanted if at in hours}
    own_us = {at: own[at] * HOUR_MS * 1000 for at in wanted if at in own}
    found = made_again(report, facts.tops, {QUEUE: stored_ms}, {QUEUE: own_us})
    return report.with_made_again(found, facts) if found else report


BEFORE, AFTER = dict.fromkeys(range(100), 10), dict.fromkeys(range(100, 150), 20)
AGAIN = dict.fromkeys(range(100), 19) | AFTER
KNOWN = top((0, 99, 10, 11), (100, 149, 20, 21))
ALL = QueueEnds(0, 150, 150)


@pytest.mark.parametrize(
    ("ends", "rows_from", "hours", "own", "unknown"),
    [
        (ALL, 0, BEFORE | AFTER, BEFORE | AFTER, ()),
        (ALL, 0, AGAIN, BEFORE | AFTER, ((0, 100),)),
        (ALL, 0, AGAIN, {}, ((0, 100),)),
        (ALL, 95, AGAIN, BEFORE | AFTER, ((0, 100),)),
        (ALL, 0, {10: 19}, BEFORE | AFTER, ((0, 100),)),
        (QueueEnds(60, 150, 150), 0, AGAIN, BEFORE | AFTER, ((60, 100),)),
        (QueueEnds(0, 150, 30), 0, AGAIN, BEFORE | AFTER, ((0, 30),)),
        (QueueEnds(0, 150, None), 0, AGAIN, BEFORE | AFTER, ()),
        (ALL, 0, {}, BEFORE | AFTER, ()),
        (ALL, 100, AGAIN, AFTER, ()),
        (ALL, 150, AGAIN, {}, ()),
        (QueueEnds(120, 150, 150), 0, AGAIN, BEFORE | AFTER, ()),
    ],
    ids=[
        "the very topic", "made again", "the table cannot be read", "the first rows come late", "only the third is given",
        "half of its head is deleted", "the group is in it", "the group has passed nothing", "no record is given",
        "the topic before gave no rows", "a handler without rows", "all of its head is deleted",
    ],
)  # fmt: skip
def test_what_is_named_of_a_topic_made_again_and_what_is_not(
    ends: QueueEnds,
    rows_from: int,
    hours: Mapping[int, int],
    own: Mapping[int, int],
    unknown: tuple[tuple[int, int], ...],
) -> None:
    """As docs/delivery.md says it. Of the last four there is no row of a record in whose place another one is now."""
    known = KNOWN if rows_from < 100 else top((100, 149, 20, 21)) if rows_from < 150 else NO_TOP
    report = looked_at(ends, rows_from, known, hours, own, OffsetSet())
    assert fates(report).get("unknown", ()) == unknown
    assert report.fine == (not unknown)


def test_what_supervisors_have_finished_may_be_the_topic_before() -> None:
    """Facts that no commit has taken yet have no store times: they made what was passed "waiting", and so explained."""
    settled = OffsetSet({QUEUE: IntervalSet.of([(0, 150)])})
    report = looked_at(ALL, 0, KNOWN, AGAIN, BEFORE | AFTER, settled)
    assert fates(report)["unknown"] == ((0, 100),)
    assert not report.fine


def test_what_is_compared_are_a_few_low_ones_of_what_has_rows() -> None:
    present = OffsetSet({QUEUE: IntervalSet.of([(3, 8), (20, 2_000)])})
    facts = TableFacts(present, OffsetSet(), present, Outcomes())
    assert to_compare(reconcile(facts, {QUEUE: QueueEnds(0, 2_000, 9)})) == {QUEUE: (3, 4, 25, 115, 1_015)}
    assert to_compare(reconcile(facts, {QUEUE: QueueEnds(7, 21, 9)})) == {QUEUE: (7, 20)}
    unread = QueueEnds(7, 21, 9, read=False)
    for nothing in (QueueEnds(7, 21, 7), QueueEnds(7, 21, None), QueueEnds(2_000, 3_000, 3_000), unread):
        assert to_compare(reconcile(facts, {QUEUE: nothing})) == {}


def tail_replaced(
    cut: int, went_on_at: int, end: int, new_ms: int, known: Top, *, readable: bool = True
) -> tuple[Report, list[Search]]:
    """Of a queue whose first broker had `went_on_at` records, a second apart, all of which gave rows. Another one has those
    up to `cut`, and from there on its own from `new_ms` on; the group went on with it at its old offset."""
    loaded = OffsetSet({QUEUE: IntervalSet.of([(0, end)])})
    facts = TableFacts(loaded, OffsetSet(), loaded, Outcomes(), tops={QUEUE: known})
    report = reconcile(facts, {QUEUE: QueueEnds(0, end, end)})
    wanted = sorted({*to_compare(report)[QUEUE], *to_compare_above(report, facts.tops)[QUEUE]})
    assert len(wanted) <= len(COMPARED) + len(COMPARED_ABOVE) + CUTS_MAX
    theirs = [1_000 * at if at < cut else new_ms + 1_000 * (at - cut) for at in range(end)]
    stored_ms = {QUEUE: {at: theirs[at] for at in wanted}}
    ours = {at: 1_000_000 * at if at < went_on_at else 1_000 * theirs[at] for at in wanted}
    own_us = {QUEUE: ours} if readable else {}
    searches = to_search(report, facts.tops, stored_ms, own_us).get(QUEUE, [])
    begins = {
        one.high: next(at for at in range(one.low, one.high + 1) if theirs[at] >= one.since_ms) for one in searches
    }
    found = made_again(report, facts.tops, stored_ms, own_us, {QUEUE: begins})
    return report.with_made_again(found, facts) if found else report, searches


LATER_MS = 10_000_000
PAUSE = top_with(top_with(NO_TOP, Ends(0, 4_999, 0, 4_999_000_000)), Ends(5_000, 6_999, 12_000_000_000, 14_000_000_000))


@pytest.mark.parametrize("readable", [True, False])
def test_what_a_failover_put_in_place_of_a_queue_s_end_is_named_to_the_offset(readable: bool) -> None:
    """A member that was down: nobody asked the new broker for the last record that was had. The lowest rows are the same."""
    report, searches = tail_replaced(4_321, 5_000, 7_000, LATER_MS, PAUSE, readable=readable)
    assert fates(report) == {"loaded": ((0, 4_321), (5_000, 7_000)), "unknown": ((4_321, 5_000),)}
    assert len(searches) == 1
    (queue,) = report.queues
    assert (queue.newer, queue.since_ms) == (True, 4_999_001)
    assert not report.fine


def test_it_is_named_too_where_the_ledger_knows_no_pause_but_not_as_far() -> None:
    """Of what is compared from the top, one lies in what was replaced."""
    report, _ = tail_replaced(4_321, 6_500, 7_000, LATER_MS, NO_TOP)
    assert fates(report)["unknown"] == ((4_321, 6_000),)
    assert [queue.newer for queue in report.queues] == [False]


def test_of_a_clock_that_is_behind_only_what_was_compared_is_named() -> None:
    report, searches = tail_replaced(4_321, 7_000, 7_000, -LATER_MS, NO_TOP)
    assert searches == []
    assert fates(report)["unknown"] == ((5_999, 7_000),)
    assert [queue.since_ms for queue in report.queues] == [0]


def test_a_queue_that_has_lost_nothing_is_fine() -> None:
    assert tail_replaced(5_000, 5_000, 7_000, LATER_MS, PAUSE)[0].fine
