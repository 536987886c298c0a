"""Planning as set algebra: against a model of records as plain Python sets, for any deliveries and batch sizes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.conf.columns import Column
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.spark.costs import Costs
from rocketcrew.spark.plan import (
    Plan,
    PlanBounds,
    SegmentFacts,
    Take,
    Trigger,
    age_ms,
    first_fitting,
    make_takes,
    plan_from_json,
    plan_to_json,
    settled_to_fold,
    within_room,
)

QUEUES = [
    QueueKey("g", "t", "broker-a", 0),
    QueueKey("g", "t", "broker-b", 0),
    QueueKey("g", "%RETRY%g", "broker-a", 0),
]

Records = frozenset[tuple[QueueKey, int]]
records = st.frozensets(st.tuples(st.sampled_from(QUEUES), st.integers(0, 25)), max_size=20)
segments_of_records = st.lists(st.tuples(records, st.booleans()), max_size=6)


def offset_set(pairs: Records) -> OffsetSet:
    return OffsetSet.of((key, IntervalSet.from_offsets([offset])) for key, offset in pairs)


def facts(at: int, pairs: Records, repeats: bool = False) -> SegmentFacts:
    return SegmentFacts(f"w-{at:08d}.arrows", 100, len(pairs), offset_set(pairs), repeats and bool(pairs), ())


@given(segments_of_records, records)
def test_each_record_is_taken_once_and_all_that_is_new_is_taken(
    given_segments: list[tuple[Records, bool]], loaded: Records
) -> None:
    segments = [facts(at, pairs, repeats) for at, (pairs, repeats) in enumerate(given_segments)]
    takes = make_takes(segments, offset_set(loaded))
    seen = offset_set(loaded)
    for take, segment in zip(takes, segments, strict=True):
        taken = take.of(segment.offsets)
        assert not taken & seen
        assert not segment.repeats or take.part is not None, "a segment with repeats is always filtered"
        seen = seen | taken
    assert seen == offset_set(loaded | frozenset(pair for pairs, _ in given_segments for pair in pairs))


@given(segments_of_records, records, st.integers(0, 6))
def test_folding_settled_records_never_hides_rows_that_wait(
    given_segments: list[tuple[Records, bool]], settled: Records, planned: int
) -> None:
    segments = [facts(at, pairs) for at, (pairs, _) in enumerate(given_segments)]
    in_plan, held = segments[:planned], segments[planned:]
    fold = settled_to_fold(offset_set(settled), held, OffsetSet())
    assert not fold - offset_set(settled)
    for segment in held:
        assert not fold & segment.offsets
    if not held:
        assert fold == offset_set(settled)
    taken = OffsetSet.union(
        take.of(s.offsets) for take, s in zip(make_takes(in_plan, OffsetSet()), in_plan, strict=True)
    )
    rest = make_takes(held, taken | fold)
    late = OffsetSet.union(take.of(s.offsets) for take, s in zip(rest, held, strict=True))
    assert taken | late == OffsetSet.union(segment.offsets for segment in segments)


@given(segments_of_records, records, records, st.integers(1, 10**9))
def test_plan_json_round_trip(
    given_segments: list[tuple[Records, bool]], loaded: Records, settled: Records, batch: int
) -> None:
    segments = [facts(at, pairs, repeats) for at, (pairs, repeats) in enumerate(given_segments)]
    columns = (Column("_group", "string"), Column("a b", "map<string,int>"))
    plan = Plan("x1", batch, make_takes(segments, offset_set(loaded)), offset_set(settled), columns)
    assert plan_from_json(plan_to_json(plan)) == plan


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version":1}', '{"version":2,"id":"x","batch":1,"queues":[],"segments":[{}]}', "null"]
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        plan_from_json(text)


@given(st.lists(st.integers(1, 50), max_size=10), st.integers(1, 100), st.integers(1, 5000))
def test_a_plan_fits_its_limits_or_is_one_segment(rows: list[int], rows_max: int, bytes_max: int) -> None:
    waiting = [SegmentFacts(str(at), 100, count, OffsetSet(), False, ()) for at, count in enumerate(rows)]
    count = first_fitting(waiting, PlanBounds(rows_max, bytes_max))
    assert count >= min(1, len(waiting))
    fits = sum(rows[:count]) <= rows_max and count * 100 <= bytes_max
    assert fits or count == 1
    if count < len(waiting):
        assert sum(rows[: count + 1]) > rows_max or (count + 1) * 100 > bytes_max


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_plan_leaves_room_for_copies_for_the_table_and_for_others(free_bytes: int, bytes_max: int) -> None:
    bounds = within_room(PlanBounds(7, bytes_max), free_bytes)
    assert bounds.rows_max == 7
    assert bounds.bytes_max == min(bytes_max, free_bytes // 3)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_clock_that_is_set_back_makes_nothing_wait_for_more_than_twice_as_long(sealed_ms: int, back_ms: int) -> None:
    wait_ms = 1000
    waited = next(
        waited for waited in range(0, 2 * wait_ms + 1, 10) if age_ms(sealed_ms - back_ms + waited, sealed_ms) >= wait_ms
    )
    assert waited >= wait_ms or back_ms > 0


@pytest.mark.parametrize(
    ("waiting", "age_ms", "due"),
    [
        ([], 10**9, False),
        ([10], 0, False),
        ([10], 1000, True),
        ([60, 40], 0, True),
        ([1] * 10, 0, True),
        ([1] * 9, 0, False),
    ],
)
def test_a_batch_is_due_by_rows_bytes_or_age(waiting: Sequence[int], age_ms: int, due: bool) -> None:
    segments = [SegmentFacts("s", 100, rows, OffsetSet(), False, ()) for rows in waiting]
    assert Trigger(rows=100, bytes=1000, wait_ms=1000).due(segments, age_ms) is due


@pytest.mark.parametrize(("rows", "age_ms", "due"), [(1000, 1875, True), (1000, 1874, False), (999, 29_999, False)])
def test_rows_that_are_worth_a_file_wait_until_fixed_costs_are_a_sixth_of_the_time(
    rows: int, age_ms: int, due: bool
) -> None:
    """0.3 s, as they are of Spark before any commit was made; where they are nothing, for a thirtieth of the longest wait."""
    half = SegmentFacts("s", 100, rows // 2, OffsetSet(), False, ())
    waiting = [half, replace(half, rows=rows - rows // 2)]
    trigger = Trigger(rows=10**9, bytes=10**9, wait_ms=30_000)
    assert trigger.for_costs(Costs()).due(waiting, age_ms) is due
    assert trigger.for_costs(Costs(weight=10**9)).pause_ms == 1000


def test_a_million_messages_with_a_sparse_tag_and_retries_need_a_small_plan() -> None:
    """10^6 messages over 8 queues, a tag that matches 10 %, 1 % of those redelivered, settled all but the tail."""
    segments: list[SegmentFacts] = []
    for queue in range(8):
        key = QueueKey("group", "a-topic-of-usual-length", "broker-a", queue)
        for part in range(10):
            begin = part * 12_500
            offsets = IntervalSet.from_offsets(range(begin + queue, begin + 12_500, 10))
            again = IntervalSet.from_offsets(range(max(0, begin - 130) + queue, begin, 10))
            both = OffsetSet({key: offsets | again})
            segments.append(SegmentFacts(f"1732161-{queue}-{part:08d}.arrows", 1, 1250, both, False, ()))
    settled = OffsetSet(
        {QueueKey("group", "a-topic-of-usual-length", "broker-a", q): IntervalSet(((0, 124_000),)) for q in range(8)}
    )
    plan = Plan("0123456789abcdef", 1, make_takes(segments, OffsetSet()), settled, ())
    assert len(plan_to_json(plan)) < 16 * 1024
    facts_by_name = {segment.name: segment for segment in segments}
    after = plan.taken(facts_by_name) | settled
    assert len(json.dumps(after.to_json())) < 8 * 1024


def test_a_take_of_nothing_takes_nothing() -> None:
    assert not Take("s", OffsetSet()).of(offset_set(frozenset({(QUEUES[0], 3)})))
