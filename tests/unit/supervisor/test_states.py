"""The tables: every state is reached, final states have no way out, an unknown event is an error that says what is known."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Any

import pytest

from rocketcrew.supervisor.states import (
    QUEUE,
    SERVICE,
    WORKER,
    Queue,
    QueueEvent,
    Service,
    ServiceEvent,
    StateError,
    Worker,
    WorkerEvent,
    move,
)

TABLES: list[tuple[dict[Any, Any], type[Enum], type[Enum], Enum, set[Enum]]] = [
    (SERVICE, Service, ServiceEvent, Service.CREATE_JUST, {Service.SHUTDOWN_ALREADY, Service.START_FAILED}),
    (QUEUE, Queue, QueueEvent, Queue.OPENING, {Queue.ENDED}),
    (WORKER, Worker, WorkerEvent, Worker.BOOTING, {Worker.GONE}),
]


@pytest.mark.parametrize(("table", "states", "events", "first", "last"), TABLES)
def test_each_table_is_whole(
    table: dict[Any, Any], states: type[Enum], events: type[Enum], first: Enum, last: set[Enum]
) -> None:
    assert set(table.values()) | {first} == set(states)
    assert {event for _, event in table} == set(events)
    assert {state for state, _ in table} == set(states) - last
    for event in events:
        for state in last:
            with pytest.raises(StateError, match="possible: none"):
                move(table, state, event)


def test_an_unknown_event_names_the_known_ones() -> None:
    with pytest.raises(
        StateError, match=r"queue is opening: 'drained' is not possible \(possible: open failed, opened"
    ):
        move(QUEUE, Queue.OPENING, QueueEvent.DRAINED)


def test_moves_are_counted() -> None:
    seen: Counter[tuple[Enum, Enum]] = Counter()
    assert move(WORKER, Worker.BOOTING, WorkerEvent.READY, seen) is Worker.READY
    assert seen == {(Worker.BOOTING, WorkerEvent.READY): 1}
