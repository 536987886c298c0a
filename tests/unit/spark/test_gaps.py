"""Finished records that nothing accounts for: the loader stops and names them, or leaves them out; it never swallows them."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from loader_world import World

from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import FILTERED, NO_ROWS, SETTLED, SKIPPED, UNDELIVERED, Outcomes
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.loader import POINTS
from rocketcrew.spark.plan import PlanBounds
from rocketcrew.spark.reconciling import Fate, reconcile
from rocketcrew.spark.staging import Staging
from rocketcrew.spark.table_keys import table_facts
from rocketcrew.supervisor.core.actions import JournalCommitted, JournalDone
from rocketcrew.supervisor.core.journal import JournalState
from rocketcrew.supervisor.core.outcome_notes import OutcomeNotes
from rocketcrew.supervisor.journal_file import keep_journal
from rocketcrew.supervisor.sealing import FactFiles
from rocketcrew.supervisor.slot import Slot, adopt, take_slot

QUEUE = QueueKey("g", "orders", "broker-a", 0)
TABLES = ("parquet", "deltalake")


def settled(world: World, segments: Any, stop: int, at: int = 0, start: int = 0) -> None:
    segments.settle(world.roots[at], (*QUEUE[:4], start, stop))


def lose_the_middle_one(world: World, segments: Any) -> Any:
    """Three segments after what is loaded; the second one is gone: 2, 3 and 4, of which 3 had no rows."""
    record = segments.Record
    world.seal([record(0)])
    settled(world, segments, 1)
    world.drain(world.loader())
    world.seal([record(1)])
    victim = world.seal([record(2), record(3, []), record(4)])
    world.seal([record(5), record(6, [])])
    settled(world, segments, 7)
    return victim.rename(world.roots[0] / victim.name)


def test_a_lost_segment_stops_the_loader_and_is_loaded_when_it_is_back(world: World, segments: Any) -> None:
    lost = lose_the_middle_one(world, segments)
    for _ in range(2):
        with pytest.raises(LoaderError, match=r"no rows: orders broker-a 0: 2-4\. .*spark\.on_gap = leave"):
            world.drain(world.loader())
    lost.rename(world.roots[0] / "ready" / lost.name)
    world.drain(world.loader())
    world.assert_exact()
    assert world.state()["loaded"] == [[*QUEUE[:4], [0, 7]]]


def test_or_is_left_named_by_reconcile_and_not_taken_for_loaded(world: World, segments: Any) -> None:
    lost = lose_the_middle_one(world, segments)
    world.drain(world.loader(leave_gaps=True))
    assert world.state()["loaded"] == [[*QUEUE[:4], [0, 2, 3, 2]]]
    (report,) = reconcile(table_facts(world.table, world.roots[:1])[0], None).queues
    assert report.unexplained == report.fates[Fate.UNKNOWN]
    assert report.unexplained.pieces == ((2, 5),)
    lost.rename(world.roots[0] / "ready" / lost.name)
    world.drain(world.loader(leave_gaps=True))
    world.assert_exact()


@pytest.mark.parametrize("point", POINTS)
def test_notes_and_segments_of_before_account_for_what_is_settled_later(
    world: World, segments: Any, point: str
) -> None:
    record = segments.Record
    world.seal([record(0), record(1, []), record(9)])
    segments.filtered(world.roots[0], (*QUEUE[:4], 2, 9))
    settled(world, segments, 1)
    world.drain_with_crash(point)
    world.drain(world.loader())
    settled(world, segments, 10)
    world.seal([record(10)])
    world.drain(world.loader())
    assert world.state()["loaded"] == [[*QUEUE[:4], [0, 11]]]
    (left,) = Staging(world.roots[0]).left().values()
    assert not left, "what is in the loaded set needs no note any more"


def test_a_segment_that_is_lost_while_it_waits_is_missed(world: World, segments: Any) -> None:
    """The file of facts that says that its records are settled is gone with the batch before."""
    record = segments.Record
    world.seal([record(0), record(1), record(2)])
    victim = world.seal([record(3), record(4, []), record(5)])
    settled(world, segments, 6)
    assert world.loader(bounds=PlanBounds(3, 10**9)).step(10**13, at_once=True)
    assert world.state()["loaded"] == [[*QUEUE[:4], [0, 3]]]
    lost = victim.rename(world.roots[0] / victim.name)
    world.seal([record(6)])
    with pytest.raises(LoaderError, match=r"no rows: orders broker-a 0: 3-5\. "):
        world.drain(world.loader())
    lost.rename(victim)
    world.drain(world.loader())
    world.assert_exact()
    assert world.state()["loaded"] == [[*QUEUE[:4], [0, 7]]]


def test_a_segment_that_brings_nothing_leaves_its_note(world: World, segments: Any) -> None:
    record = segments.Record
    world.seal([record(0)])
    world.drain(world.loader())
    world.seal([record(0), record(1, [])])
    world.drain(world.loader())
    world.seal([record(2)])
    settled(world, segments, 3)
    world.drain(world.loader())
    assert world.state()["loaded"] == [[*QUEUE[:4], [0, 3]]]


def test_a_file_that_nobody_can_read_may_hold_them(world: World, segments: Any) -> None:
    lost = lose_the_middle_one(world, segments)
    (world.roots[0] / "ready" / lost.name).write_bytes(b"")
    world.drain(world.loader())
    assert world.state()["loaded"] == [[*QUEUE[:4], [0, 2, 3, 2]]]


def test_a_new_table_begins_with_what_the_old_one_has_not(world: World, segments: Any) -> None:
    world.seal([segments.Record(0)])
    settled(world, segments, 1)
    world.drain(world.loader())
    shutil.rmtree(world.table)
    world.seal([segments.Record(1)])
    settled(world, segments, 2)
    world.drain(world.loader())
    assert world.state()["loaded"] == [[*QUEUE[:4], [0, 2]]]


@pytest.mark.parametrize("kind", [FILTERED, SKIPPED])
def test_what_an_old_table_has_left_explains_records_of_a_new_one(world: World, segments: Any, kind: str) -> None:
    """Each of two slots has a range left over, between records that wait, when the table becomes another one."""
    for at in (0, 1):
        queue = QueueKey("g", "orders", "broker-a", at)
        world.seal([segments.Record(0, queue_id=at)], at=at)
        waits = world.seal([segments.Record(1, queue_id=at), segments.Record(8, queue_id=at)], at=at)
        Staging(world.roots[at]).note("1", Outcomes.of([(kind, OffsetSet({queue: IntervalSet.of([(2, 8)])}))]))
        segments.settle(world.roots[at], (*queue[:4], 0, 1))
        assert world.loader(at, bounds=PlanBounds(1, 10**9)).step(10**13, at_once=True)
        assert waits.exists()
    world.table = world.table.parent / "another"
    for at in (0, 1):
        world.seal([segments.Record(9, queue_id=at)], at=at)
        settled = [(1, 10)] if kind == FILTERED else [(1, 2), (8, 10)]
        segments.settle(world.roots[at], *(("g", "orders", "broker-a", at, *piece) for piece in settled))
        world.drain(world.loader(at))
    report = reconcile(table_facts(world.table, world.roots)[0], None)
    assert report.fine
    assert [queue.fates[Fate(kind)].pieces for queue in report.queues] == [((2, 8),)] * 2
    for root in world.roots:
        (left,) = Staging(root).left().values()
        assert not left


def test_what_was_not_delivered_is_loaded_past_and_named_for_good(world: World, segments: Any) -> None:
    """It stops no loader, as a lost segment does: there is nothing to put back. And it counts as nothing else, though the
    record after it has no rows, and its note takes along what was passed over before it."""
    record = segments.Record
    world.seal([record(0), record(5, [])])
    Staging(world.roots[0]).note(
        "1", Outcomes.of([(UNDELIVERED, OffsetSet({QUEUE: IntervalSet.of([(1, 5), (6, 8)])})),
                          (NO_ROWS, OffsetSet({QUEUE: IntervalSet.of([(1, 6)])}))])
    )  # fmt: skip
    settled(world, segments, 8)
    world.drain(world.loader())
    world.seal([record(8)])
    settled(world, segments, 9)
    world.drain(world.loader())
    assert world.state()["loaded"] == [[*QUEUE[:4], [0, 9]]]
    (report,) = reconcile(table_facts(world.table, world.roots[:1])[0], None).queues
    assert report.fates[Fate.UNDELIVERED].pieces == report.unexplained.pieces == ((1, 5), (6, 8))
    assert report.fates[Fate.NO_ROWS].pieces == ((5, 6),)


def test_holes_between_two_supervisors_are_no_gaps(world: World, segments: Any) -> None:
    record = segments.Record
    world.seal([record(0)], at=0)
    settled(world, segments, 1, at=0)
    world.seal([record(5)], at=1)
    settled(world, segments, 6, at=1, start=5)
    for at in (0, 1):
        world.drain(world.loader(at))
    world.seal([record(6)], at=0)
    settled(world, segments, 7, at=0, start=6)
    world.drain(world.loader(0))
    assert world.state()["loaded"] == [[*QUEUE[:4], [0, 1, 4, 2]]]


def test_a_kill_of_the_supervisor_hides_no_lost_segment(world: World, segments: Any) -> None:
    """Its journal says that the lost records are finished, and so they are: settled, with their rows in the lost segment."""
    record, root = segments.Record, world.roots[0]
    killed, dead = (take_slot(root.parent / "data", QUEUE.group) for _ in range(2))
    world.roots[0] = killed.segments
    world.seal([record(0)])
    world.drain(world.loader())
    lost = world.seal([record(1), record(2)])
    mq = MessageQueue(QUEUE.topic, QUEUE.broker, QUEUE.queue_id)
    journal = JournalState()
    for entry in (JournalCommitted(mq, 0, 1), JournalDone(mq, 1, 4, "", 0)):
        journal.apply(entry)
    keep_journal(killed.journal, journal)
    for slot, end in ((killed, 2), (dead, 3)):  # 3 was finished without rows, and its note not sealed
        notes = OutcomeNotes()
        notes.add(SETTLED, mq, 0, end)
        seal(slot, notes)
        slot.release()
    lost.unlink()

    again = take_slot(root.parent / "data", QUEUE.group)
    state, settled, _ = adopt(again)
    notes = OutcomeNotes()
    notes.recovered(state, settled)
    seal(again, notes)
    world.seal([record(4)])
    with pytest.raises(LoaderError, match=r"no rows: orders broker-a 0: 1-2\. "):
        world.drain(world.loader())
    again.release()


def seal(slot: Slot, notes: OutcomeNotes) -> None:
    files = FactFiles(slot.segments, slot.key_group)
    files.gather(notes)
    files.seal()
