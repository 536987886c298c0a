"""The tables: every state is reached, final states have no way out, an unknown event is an error that says what is known."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Any

import pytest

from rocketcrew.supervisor.core.states import (
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
    move_service,
)

TABLES: list[tuple[dict[Any, Any], type[Enum], type[Enum], Enum, set[Enum]]] = [
    (SERVICE, Service, ServiceEvent, Service.CREATE_JUST, {Service.SHUTDOWN_ALREADY}),
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


@pytest.mark.parametrize(
    ("state", "event", "words"),
    [
        (Service.RUNNING, ServiceEvent.START, "maybe started once, RUNNING"),
        (Service.START_FAILED, ServiceEvent.START, "maybe started once, START_FAILED"),
        (Service.SHUTDOWN_ALREADY, ServiceEvent.START, "maybe started once, SHUTDOWN_ALREADY"),
        (Service.CREATE_JUST, ServiceEvent.USE, "state not OK, CREATE_JUST"),
        (Service.SHUTDOWN_ALREADY, ServiceEvent.USE, "state not OK, SHUTDOWN_ALREADY"),
        (Service.CREATE_JUST, ServiceEvent.STOPPED, "'stopped' is not possible"),
    ],
)
def test_a_service_that_is_used_out_of_turn_says_so(state: Service, event: ServiceEvent, words: str) -> None:
    with pytest.raises(StateError, match=words):
        move_service(state, event)


def test_a_service_that_starts_has_failed_until_it_runs() -> None:
    starting = move_service(Service.CREATE_JUST, ServiceEvent.START)
    assert starting is Service.START_FAILED
    assert move_service(starting, ServiceEvent.STARTED) is Service.RUNNING
