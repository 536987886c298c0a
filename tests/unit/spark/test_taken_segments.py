"""Segments that a member takes over from a dead slot while it runs: the table has their rows once, whatever happens."""

from __future__ import annotations

from typing import Any

import pytest
from loader_world import World

from rocketcrew.durable.intervals import QueueKey
from rocketcrew.durable.outcomes import SETTLED
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.spark.loader import POINTS
from rocketcrew.supervisor.core.actions import JournalCommitted, JournalDone
from rocketcrew.supervisor.core.journal import JournalState
from rocketcrew.supervisor.core.outcome_notes import OutcomeNotes
from rocketcrew.supervisor.journal_file import keep_journal
from rocketcrew.supervisor.sealing import FactFiles
from rocketcrew.supervisor.slot import Slot, adopt, dead_slot, take_sealed, take_slot

QUEUE = QueueKey("g", "orders", "broker-a", 0)
MQ = MessageQueue(QUEUE.topic, QUEUE.broker, QUEUE.queue_id)


def take(mine: Slot, dead: Slot) -> int:
    with dead_slot(mine, dead.path) as other:
        assert other is not None
        return take_sealed(mine, other, set())


def two_slots(world: World) -> tuple[Slot, Slot]:
    mine, dead = (take_slot(world.table.parent / "data", QUEUE.group) for _ in range(2))
    world.roots = [mine.segments, dead.segments]
    dead.release()
    return mine, dead


@pytest.mark.parametrize("point", POINTS)
def test_they_may_come_at_any_moment_of_a_batch(world: World, segments: Any, point: str) -> None:
    record = segments.Record
    mine, dead = two_slots(world)
    world.seal([record(0), record(1, []), record(2)], at=1)
    segments.settle(dead.segments, (*QUEUE[:4], 0, 3))
    world.seal([record(n, queue_id=1) for n in range(3)])
    taken: list[int] = []

    def at(reached: str) -> None:
        if reached == point and not taken:
            taken.append(take(mine, dead))

    world.drain(world.loader(on_point=at))
    assert taken == [1]
    world.assert_exact()
    assert world.state()["loaded"][0] == [*QUEUE[:4], [0, 3]]


def test_a_start_in_their_slot_does_not_have_them_taken_for_loaded(world: World, segments: Any) -> None:
    """What its journal calls finished it would report as settled, and its own loader fold in before ours has the rows."""
    record = segments.Record
    mine, dead = two_slots(world)
    world.seal([record(n) for n in range(3)], at=1)
    journal = JournalState()
    for entry in (JournalCommitted(MQ, 0, 0), JournalDone(MQ, 0, 3, "", 0)):
        journal.apply(entry)
    keep_journal(dead.journal, journal)
    assert take(mine, dead) == 1

    again = take_slot(world.table.parent / "data", QUEUE.group)
    assert again.path == dead.path
    state, settled, _ = adopt(again)
    notes = OutcomeNotes()
    notes.recovered(state, settled)
    for mq, (_, finished) in state.recovered().items():  # the offset passes what is finished
        for start, end in finished.pairs():
            notes.add(SETTLED, mq, start, end)
    files = FactFiles(again.segments, again.key_group)
    files.gather(notes)
    files.seal()
    world.seal([record(n, queue_id=1) for n in range(3)], at=1)
    for at in (1, 0):
        world.drain(world.loader(at))
    world.assert_exact()
