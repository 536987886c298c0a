from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.headers import PullResponse
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.source.errors import DataLossError
from rocketcrew.source.offsets import Place, Spec
from rocketcrew.source.planning import Range, limited, ranges_between, split, waits
from rocketcrew.source.positions import (
    Facts,
    check_named,
    check_order,
    first_offset,
    known_ends,
    last_offset,
    shorter,
)
from rocketcrew.source.progress import Window, goes_on_at, is_short

QUEUES = [MessageQueue("t", "a", number) for number in range(6)]
Q0, Q1, Q2 = QUEUES[:3]


def spec(place: Place, values: dict[MessageQueue, int] | None = None, timestamp_ms: int | None = None) -> Spec:
    return Spec(place, "startingOffsets", values or {}, timestamp_ms)


# Positions.


@pytest.mark.parametrize(
    ("place", "facts", "offset"),
    [
        (spec(Place.EARLIEST), Facts(3, 9), 3),
        (spec(Place.LATEST), Facts(3, 9), 9),
        (spec(Place.GROUP), Facts(3, 9, group=5), 5),
        (spec(Place.GROUP), Facts(3, 9, group=None), 3),
        (spec(Place.OFFSETS, {Q0: 4}), Facts(3, 9), 4),
        (spec(Place.OFFSETS, {Q0: -2}), Facts(3, 9), 3),
        (spec(Place.OFFSETS, {Q0: -1}), Facts(3, 9), 9),
        (spec(Place.TIMESTAMP, timestamp_ms=1), Facts(3, 9, found=6), 6),
        (spec(Place.TIMESTAMP, timestamp_ms=1), Facts(3, 9, found=0), 3),
    ],
)
def test_where_reading_begins(place: Spec, facts: Facts, offset: int) -> None:
    assert first_offset(place, Q0, facts, latest_when_too_late=False, fail=True) == offset


def test_nothing_is_that_new() -> None:
    late, facts = spec(Place.TIMESTAMP, timestamp_ms=7), Facts(3, 9, found=9)
    with pytest.raises(UsageError, match="no message stored at or after 7"):
        first_offset(late, Q0, facts, latest_when_too_late=False, fail=True)
    assert first_offset(late, Q0, facts, latest_when_too_late=True, fail=True) == 9
    assert last_offset(late, Q0, facts, fail=True) == 9


@pytest.mark.parametrize(("offset", "nearest"), [(2, 3), (10, 9)])
def test_outside_of_the_queue_is_data_loss(offset: int, nearest: int) -> None:
    place, facts = spec(Place.OFFSETS, {Q0: offset}), Facts(3, 9)
    with pytest.raises(DataLossError, match=f"offsets 3 to 9, and {offset} is asked for.*go on at {nearest}"):
        first_offset(place, Q0, facts, latest_when_too_late=False, fail=True)
    assert first_offset(place, Q0, facts, latest_when_too_late=False, fail=False) == nearest
    assert last_offset(place, Q0, facts, fail=False) == nearest


@pytest.mark.parametrize(("group", "begins"), [(99, 3), (10, 9), (2, 3)])
def test_a_group_that_was_further_than_a_much_shorter_queue_has_read_nothing_of_it(group: int, begins: int) -> None:
    facts = Facts(3, 9, group=group)
    with pytest.raises(DataLossError, match=f"and {group} is asked for.*go on at {begins}"):
        first_offset(spec(Place.GROUP), Q0, facts, latest_when_too_late=False, fail=True)
    assert first_offset(spec(Place.GROUP), Q0, facts, latest_when_too_late=False, fail=False) == begins
    assert last_offset(spec(Place.GROUP), Q0, Facts(3, 9, group=99), fail=False) == 9
    lagging = Facts(3, 9, group=99, final=False)
    assert first_offset(spec(Place.GROUP), Q0, lagging, latest_when_too_late=False, fail=True) == 99


def test_offsets_per_queue_name_exactly_what_is_read() -> None:
    check_named(spec(Place.OFFSETS, {Q0: 1}), [Q0])
    check_named(spec(Place.EARLIEST), [Q0])
    check_named(spec(Place.TIMESTAMP, timestamp_ms=4), [Q0])
    with pytest.raises(UsageError, match="says nothing about queue 1 of topic t on a"):
        check_named(spec(Place.OFFSETS, {Q0: 1}), [Q0, Q1])
    with pytest.raises(UsageError, match="names queue 1 of topic t on a, which is not read"):
        check_named(spec(Place.TIMESTAMP, {Q0: 1, Q1: 1}), [Q0])
    with pytest.raises(UsageError, match="would end at 4, before it begins at 5"):
        check_order({Q0: 5}, {Q0: 4}, "endingOffsets")


def test_the_ends_of_a_stream() -> None:
    facts = {Q0: Facts(0, 9), Q1: Facts(4, 6)}
    # Queue 1 is new: it enters where it begins. Queue 2 is not in the routes: it stays.
    assert known_ends({Q0: 5, Q2: 7}, facts, {}, fail=True) == {Q0: 9, Q1: 4, Q2: 7}
    assert known_ends({Q0: 9, Q1: 4, Q2: 7}, facts, {}, fail=True) == {Q0: 9, Q1: 6, Q2: 7}
    assert known_ends({Q0: 5}, facts, {}, {Q1: 5}, fail=True) == {Q0: 9, Q1: 5}
    with pytest.raises(DataLossError, match="a broker lost the queue's end, or the topic was made anew"):
        known_ends({Q0: 10}, facts, {}, fail=True)


def test_a_queue_that_became_shorter_goes_back_and_is_not_read_whole() -> None:
    lost_end = known_ends({Q0: 100}, {Q0: Facts(0, 98)}, {}, fail=False)
    assert lost_end == {Q0: 98}
    assert ranges_between({Q0: 100}, lost_end) == []
    made_anew = known_ends({Q0: 100}, {Q0: Facts(3, 20)}, {}, fail=False)
    assert made_anew == {Q0: 3}
    assert known_ends({Q0: 90_000}, {Q0: Facts(0, 60_000)}, {}, fail=False) == {Q0: 0}
    # Who knows which messages are new goes on at them, also where the queue is longer again.
    assert known_ends({Q0: 100}, {Q0: Facts(0, 98)}, {Q0: 0}, fail=False) == {Q0: 0}
    assert known_ends({Q0: 100}, {Q0: Facts(0, 20)}, {Q0: 20}, fail=False) == {Q0: 20}
    assert known_ends({Q0: 100}, {Q0: Facts(0, 200)}, {Q0: 98}, fail=False) == {Q0: 98}
    # What a replica does not have yet is neither lost nor made anew.
    lagging = {Q0: Facts(0, 98, final=False)}
    assert known_ends({Q0: 100}, lagging, {}, fail=True) == known_ends({Q0: 100}, lagging, {}, fail=False) == {Q0: 100}
    assert shorter({Q0: 100, Q1: 5}, {Q0: Facts(0, 98), Q1: Facts(0, 5), Q2: Facts(0, 0)}) == [Q0]
    assert shorter({Q0: 100}, lagging) == []
    assert last_offset(spec(Place.OFFSETS, {Q0: 100}), Q0, lagging[Q0], fail=False) == 100


# Planning.


def test_what_lies_between_two_offsets() -> None:
    assert ranges_between({Q0: 2, Q1: 5, Q2: 9}, {Q0: 4, Q1: 5, Q2: 3, QUEUES[3]: 8}) == [
        Range(Q0, 2, 4),
    ]


_OFFSETS = st.fixed_dictionaries(
    {}, optional={queue: st.tuples(st.integers(0, 99), st.integers(0, 99)) for queue in QUEUES}
)


@given(_OFFSETS, st.integers(1, 300))
def test_a_limited_batch_is_not_larger_and_gets_on(pairs: dict[MessageQueue, tuple[int, int]], most: int) -> None:
    start = {queue: at for queue, (at, _) in pairs.items()}
    end = {queue: at + size for queue, (at, size) in pairs.items()}
    whole = sum(end.values()) - sum(start.values())
    cut = limited(start, end, most)
    assert cut.keys() == end.keys()
    assert all(start[queue] <= cut[queue] <= end[queue] for queue in end)
    assert sum(cut.values()) - sum(start.values()) == min(whole, most)
    if most >= len(pairs):
        assert all(cut[queue] > start[queue] for queue in end if end[queue] > start[queue])


def test_shares_are_by_length_and_turns_are_taken() -> None:
    assert limited({Q0: 0, Q1: 0}, {Q0: 900, Q1: 100}, 100) == {Q0: 90, Q1: 10}
    assert limited({Q0: 0, Q1: 0}, {Q0: 10_000, Q1: 1}, 50) == {Q0: 49, Q1: 1}
    start, taken = dict.fromkeys(QUEUES[:3], 0), []
    for _ in range(3):
        start = limited(start, dict.fromkeys(QUEUES[:3], 10), 1)
        taken.append(dict(start))
    assert taken[-1] == dict.fromkeys(QUEUES[:3], 1)
    remade = limited({Q0: 50, Q1: 0}, {Q0: 3, Q1: 100}, 10)
    assert remade == {Q0: 3, Q1: 10}


_RANGES = st.lists(
    st.tuples(st.sampled_from(QUEUES), st.integers(0, 50), st.integers(0, 200)), max_size=6, unique_by=lambda t: t[0]
)


@given(_RANGES, st.integers(0, 40))
def test_cut_ranges_are_the_same_offsets(parts: list[tuple[MessageQueue, int, int]], at_least: int) -> None:
    ranges = [Range(queue, start, start + size) for queue, start, size in parts]
    cut = split(ranges, at_least)
    wanted = {(part.queue, at) for part in ranges for at in range(part.start, part.end)}
    found = [(part.queue, at) for part in cut for at in range(part.start, part.end)]
    assert len(found) == len(set(found)) == len(wanted)
    assert set(found) == wanted
    assert all(part.size for part in cut)
    assert all(part.size <= 7 for part in split(ranges, at_least, 7))
    there = sum(1 for part in ranges if part.size)
    assert len(cut) == max(there, min(at_least, len(wanted)))


def test_long_ranges_are_cut_and_short_ones_are_not() -> None:
    cut = split([Range(Q0, 10, 110), Range(Q1, 0, 10)], 5)
    assert cut == [Range(Q0, 10, 35), Range(Q0, 35, 60), Range(Q0, 60, 85), Range(Q0, 85, 110), Range(Q1, 0, 10)]


def test_no_partition_has_more_than_it_may() -> None:
    ranges = [Range(Q0, 10, 110), Range(Q1, 0, 10), Range(Q2, 0, 31)]
    assert [part.size for part in split(ranges, 0, 30)] == [25, 25, 25, 25, 10, 15, 16]
    assert [part.size for part in split(ranges, 8, 30)] == [20, 20, 20, 20, 20, 10, 15, 16]
    assert split(ranges, 0, 100) == ranges


def test_a_trigger_waits_for_enough_or_long_enough() -> None:
    start, end = {Q0: 0, Q1: 0}, {Q0: 3, Q1: 3}
    assert waits(start, end, 7, 0, 1000)
    assert not waits(start, end, 6, 0, 1000)
    assert not waits(start, end, 7, 1000, 1000)
    assert not waits(start, end, 0, 0, 1000)
    assert not waits({Q0: 9, Q1: 0}, end, 7, 0, 1000), "going back waits for nothing"


# Answers without records.


@pytest.mark.parametrize(
    ("next_begin", "minimum", "maximum", "offset"),
    [
        (10, 0, 10, 20),  # the queue ends there: it was made anew, or a crash cost it its end
        (0, 0, 0, 20),  # and so it is when it is empty
        (15, 15, 30, 15),  # retention
        (500, 500, 900, 20),
        (3, 0, 30, None),  # a reset that was meant for somebody else, or a broker between two roles: nothing is lost
        (10, 0, 30, None),
    ],
)
def test_an_answer_without_records(next_begin: int, minimum: int, maximum: int, offset: int | None) -> None:
    header = PullResponse(0, next_begin, minimum, maximum)
    assert goes_on_at(Range(Q0, 5, 20), 10, header) == offset
    assert is_short(Range(Q0, 5, 20), header) == (maximum < 20)


def test_pulls_go_ahead_as_far_as_guesses_were_right() -> None:
    window = Window(3)
    window.took(guessed=False)
    assert window.next([], 32, 32, 1000) == [32]
    window.took(guessed=True)
    assert window.next([], 64, 32, 1000) == [64, 96]
    window.took(guessed=True)
    assert window.next([96], 96, 32, 1000) == [128, 160]
    window.took(guessed=True)
    assert window.next([128, 160], 128, 32, 1000) == [192], "three at most"
    assert window.next([128, 160], 128, 32, 170) == [], "nothing behind the range"
    window.took(guessed=False)
    assert window.next([], 150, 7, 1000) == [150]
    assert window.next([], 150, 0, 1000) == []
