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
    QueueEvent,
    QueueState,
    ServiceEvent,
    ServiceState,
    StateError,
    WorkerEvent,
    WorkerState,
    move,
    move_service,
)

TABLES: list[tuple[dict[Any, Any], type[Enum], type[Enum], Enum, set[Enum]]] = [
    (SERVICE, ServiceState, ServiceEvent, ServiceState.CREATE_JUST, {ServiceState.SHUTDOWN_ALREADY}),
    (QUEUE, QueueState, QueueEvent, QueueState.OPENING, {QueueState.ENDED}),
    (WORKER, WorkerState, WorkerEvent, WorkerState.BOOTING, {WorkerState.GONE}),
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
        move(QUEUE, QueueState.OPENING, QueueEvent.DRAINED)


def test_moves_are_counted() -> None:
    seen: Counter[tuple[Enum, Enum]] = Counter()
    assert move(WORKER, WorkerState.BOOTING, WorkerEvent.READY, seen) is WorkerState.READY
    assert seen == {(WorkerState.BOOTING, WorkerEvent.READY): 1}


@pytest.mark.parametrize(
    ("state", "event", "words"),
    [
        (ServiceState.RUNNING, ServiceEvent.START, "maybe started once, RUNNING"),
        (ServiceState.START_FAILED, ServiceEvent.START, "maybe started once, START_FAILED"),
        (ServiceState.SHUTDOWN_ALREADY, ServiceEvent.START, "maybe started once, SHUTDOWN_ALREADY"),
        (ServiceState.CREATE_JUST, ServiceEvent.USE, "state not OK, CREATE_JUST"),
        (ServiceState.SHUTDOWN_ALREADY, ServiceEvent.USE, "state not OK, SHUTDOWN_ALREADY"),
        (ServiceState.CREATE_JUST, ServiceEvent.STOPPED, "'stopped' is not possible"),
    ],
)
def test_a_service_that_is_used_out_of_turn_says_so(state: ServiceState, event: ServiceEvent, words: str) -> None:
    with pytest.raises(StateError, match=words):
        move_service(state, event)


def test_a_service_that_starts_has_failed_until_it_runs() -> None:
    starting = move_service(ServiceState.CREATE_JUST, ServiceEvent.START)
    assert starting is ServiceState.START_FAILED
    assert move_service(starting, ServiceEvent.STARTED) is ServiceState.RUNNING
