"""What brokers have deleted by now: a lost record stays named whatever becomes of its queue, and is not run again in vain."""

from __future__ import annotations

import random

import pytest

from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import ELSEWHERE, KINDS, ROWS, SKIPPED, Outcomes
from rocketcrew.spark.reconciling import Fate, QueueEnds, QueueReport, Report, TableFacts, reconcile

QUEUE = QueueKey("g", "orders", "broker-a", 0)
OTHER = QUEUE._replace(queue_id=1)


def offsets(*pieces: tuple[int, int], key: QueueKey = QUEUE) -> OffsetSet:
    return OffsetSet({key: IntervalSet.of(pieces)})


def facts(loaded: OffsetSet, *told: tuple[str, OffsetSet]) -> TableFacts:
    return TableFacts(loaded, OffsetSet(), loaded, Outcomes.of([(ROWS, loaded), *told]), rows=(1, 1))


def of(report: Report, key: QueueKey = QUEUE) -> QueueReport:
    (found,) = [one for one in report.queues if one.key == key]
    return found


def fates(report: Report, key: QueueKey = QUEUE) -> dict[str, tuple[tuple[int, int], ...]]:
    return {fate.value: pieces.pieces for fate, pieces in of(report, key).fates.items()}


HOLED = facts(offsets((0, 50), (60, 100)))


@pytest.mark.parametrize(("first", "again"), [(0, ((50, 60),)), (55, ((55, 60),)), (80, ()), (100, ())])
def test_a_hole_stays_named_when_the_broker_has_deleted_its_records(
    first: int, again: tuple[tuple[int, int], ...]
) -> None:
    report = reconcile(HOLED, {QUEUE: QueueEnds(first, 100, 100)})
    assert fates(report) == {"loaded": ((0, 50), (60, 100)), "unknown": ((50, 60),)}
    assert not report.fine
    assert report.to_run_again().of_queue(QUEUE).pieces == again
    assert of(report).to_run_again | of(report).gone == of(report).unexplained


def test_so_does_what_the_group_has_passed_behind_the_last_record_that_is_known() -> None:
    report = reconcile(facts(offsets((0, 50))), {QUEUE: QueueEnds(60, 70, 60)})
    assert fates(report) == {"loaded": ((0, 50),), "unknown": ((50, 60),), "waiting": ((60, 70),)}
    assert of(report).gone.pieces == ((50, 60),)


def test_an_offset_of_a_longer_life_of_the_queue_is_none_that_the_group_has_passed() -> None:
    assert reconcile(facts(offsets((0, 10))), {QUEUE: QueueEnds(0, 10, 5_000)}).fine


def test_a_hole_that_the_group_has_not_committed_waits_wherever_the_broker_begins() -> None:
    report = reconcile(HOLED, {QUEUE: QueueEnds(80, 100, 40)})
    assert fates(report) == {"loaded": ((0, 50), (60, 100)), "waiting": ((50, 60),)}


def test_a_hole_of_a_queue_that_no_broker_has_any_more_stays_named() -> None:
    report = reconcile(HOLED, {OTHER: QueueEnds(0, 0, 0)})
    assert fates(report)["unknown"] == ((50, 60),)
    assert not report.to_run_again()
    assert of(report).gone.pieces == ((50, 60),)


def test_a_hole_of_a_queue_that_its_topic_has_no_more_cannot_be_run_again() -> None:
    """Its broker has the records, and refuses every pull."""
    report = reconcile(HOLED, {QUEUE: QueueEnds(0, 100, 100, read=False)})
    assert fates(report)["unknown"] == ((50, 60),)
    assert not report.to_run_again()
    assert of(report).gone.pieces == ((50, 60),)


def test_without_the_brokers_words_a_hole_may_be_in_hand() -> None:
    report = reconcile(HOLED, None)
    assert fates(report) == {"loaded": ((0, 50), (60, 100)), "waiting": ((50, 60),)}
    assert not of(report).gone


@pytest.mark.parametrize("asked", [False, True])
def test_a_hole_of_an_epoch_that_has_ended_stays_named(asked: bool) -> None:
    later = QUEUE.in_epoch(1)
    loaded = offsets((0, 5), (6, 8)) | offsets((0, 20), key=later)
    report = reconcile(facts(loaded), {QUEUE: QueueEnds(0, 20, 20)} if asked else None)
    assert fates(report)["unknown"] == ((5, 6),)
    assert fates(report, later) == {"loaded": ((0, 20),)}
    assert not report.to_run_again(), "its offset is another record's now"
    assert of(report).gone.pieces == ((5, 6),)


def test_offsets_of_a_retry_topic_go_on_so_a_later_epoch_may_have_the_record() -> None:
    retry = QUEUE._replace(topic="%RETRY%g")
    loaded = offsets((0, 5), (7, 8), key=retry) | offsets((5, 6), (8, 12), key=retry.in_epoch(1))
    report = reconcile(facts(loaded), {retry: QueueEnds(0, 12, 12)})
    assert fates(report, retry) == {"loaded": ((0, 5), (7, 8)), "before": ((5, 6),), "unknown": ((6, 7),)}


def test_a_pop_group_s_holes_are_those_that_nobody_was_shown() -> None:
    report = reconcile(facts(offsets((0, 5), (7, 9)), (ELSEWHERE, offsets((0, 6)))), {QUEUE: QueueEnds(9, 9, 9)})
    assert fates(report) == {"loaded": ((0, 5), (7, 9)), "elsewhere": ((5, 6),), "unknown": ((6, 7),)}


def test_what_explains_a_hole_does_so_when_its_records_are_deleted_too() -> None:
    report = reconcile(facts(offsets((0, 5), (7, 9)), (SKIPPED, offsets((5, 7)))), {QUEUE: QueueEnds(9, 9, 9)})
    assert report.fine


def test_rows_that_a_table_has_lost_are_not_run_again_when_no_broker_has_their_messages() -> None:
    told = Outcomes.of([(ROWS, offsets((0, 10)))])
    lost = TableFacts(offsets((5, 10)), OffsetSet(), offsets((0, 10)), told, rows=(5, 10))
    report = reconcile(lost, {QUEUE: QueueEnds(3, 10, 10)})
    assert fates(report)["missing"] == ((0, 5),)
    assert report.to_run_again() == report.to_reopen() == offsets((3, 5))
    assert of(report).gone.pieces == ((0, 3),)


@pytest.mark.parametrize("seed", range(20))
def test_from_the_first_known_offset_on_none_is_left_out_whatever_the_broker_has(seed: int) -> None:
    rng = random.Random(seed)

    def some() -> OffsetSet:
        return OffsetSet.of(
            (QUEUE, IntervalSet.of([(start, start + rng.randrange(6))])) for start in rng.sample(range(90), 4)
        )

    present, loaded = some(), some()
    table = TableFacts(present, OffsetSet(), loaded, Outcomes.of((kind, some()) for kind in KINDS), some())
    first = min(one.of_queue(QUEUE).pieces[0][0] for one in (present, loaded))
    cluster = {QUEUE: QueueEnds(rng.randrange(90), 90, rng.choice([None, *range(90)]))}
    for asked in (cluster, {OTHER: QueueEnds(0, 0, 0)}, None):
        found = of(reconcile(table, asked)).fates
        named = IntervalSet.of(piece for one in found.values() for piece in one.pieces)
        assert not IntervalSet.of([(first, (present | loaded).of_queue(QUEUE).pieces[-1][1])]) - named
        assert sum(one.count() for one in found.values()) == named.count(), "and none has two words"
        assert Fate.OVERLAP not in found
