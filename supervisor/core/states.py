"""The state machines of the supervisor, each one table; a missing key is the error path.

Every transition goes through `move`, which also counts it, so that a simulation can say which transition never happened.
The service states are those of Java (client/common/.../ServiceState.java); the queue's are those of this folder's `__init__`.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import TypeVar

from ...remoting.errors import RocketcrewError


class Service(Enum):
    """Life of the group member as a whole."""

    CREATE_JUST = "CREATE_JUST"
    RUNNING = "RUNNING"
    SHUTDOWN_ALREADY = "SHUTDOWN_ALREADY"
    START_FAILED = "START_FAILED"


class ServiceEvent(Enum):
    START = "start"
    STARTED = "started"
    USE = "use"
    STOPPED = "stopped"


class Queue(Enum):
    """Life of one assignment of a message queue; a queue that comes back gets a new one."""

    OPENING = "opening"
    ASSIGNED = "assigned"
    DRAINING = "draining"
    ENDED = "ended"


class QueueEvent(Enum):
    OPENED = "opened"
    OPEN_FAILED = "open failed"
    REVOKED = "revoked"
    DRAINED = "drained"
    DEADLINE = "deadline"


class Worker(Enum):
    """Life of one worker process. One that leaves finishes what it has and gets nothing more; a dead one stays until its
    open segment has been salvaged."""

    BOOTING = "booting"
    READY = "ready"
    LEAVING = "leaving"
    DEAD = "dead"
    GONE = "gone"


LIVING = (Worker.READY, Worker.LEAVING)
"""Those that still answer for what they were given."""


class WorkerEvent(Enum):
    READY = "ready"
    RETIRED = "retired"
    DIED = "died"
    SALVAGED = "salvaged"


SERVICE: dict[tuple[Service, ServiceEvent], Service] = {
    # As in Java, a start has failed until it is done: so neither a second one beside it nor one after it begins.
    (Service.CREATE_JUST, ServiceEvent.START): Service.START_FAILED,
    (Service.START_FAILED, ServiceEvent.STARTED): Service.RUNNING,
    (Service.RUNNING, ServiceEvent.USE): Service.RUNNING,
    (Service.RUNNING, ServiceEvent.STOPPED): Service.SHUTDOWN_ALREADY,
}

SERVICE_REFUSALS: dict[ServiceEvent, str] = {
    ServiceEvent.START: "a supervisor is started once; make a new one (The PushConsumer service state not OK, maybe started"
    " once, {state})",
    ServiceEvent.USE: "only a supervisor that runs can do this (The consumer service state not OK, {state})",
}
"""What to do, and Java's words (DefaultMQPushConsumerImpl.start, makeSureStateOK)."""

QUEUE: dict[tuple[Queue, QueueEvent], Queue] = {
    (Queue.OPENING, QueueEvent.OPENED): Queue.ASSIGNED,
    (Queue.OPENING, QueueEvent.OPEN_FAILED): Queue.ENDED,
    (Queue.OPENING, QueueEvent.REVOKED): Queue.ENDED,
    (Queue.ASSIGNED, QueueEvent.REVOKED): Queue.DRAINING,
    (Queue.DRAINING, QueueEvent.DRAINED): Queue.ENDED,
    (Queue.DRAINING, QueueEvent.DEADLINE): Queue.ENDED,
}

WORKER: dict[tuple[Worker, WorkerEvent], Worker] = {
    (Worker.BOOTING, WorkerEvent.READY): Worker.READY,
    (Worker.BOOTING, WorkerEvent.DIED): Worker.DEAD,
    (Worker.READY, WorkerEvent.RETIRED): Worker.LEAVING,
    (Worker.READY, WorkerEvent.DIED): Worker.DEAD,
    (Worker.LEAVING, WorkerEvent.DIED): Worker.DEAD,
    (Worker.DEAD, WorkerEvent.SALVAGED): Worker.GONE,
}


class StateError(RocketcrewError):
    """An event that the state's table does not know, e.g. a service that is started twice."""


def move_service(state: Service, event: ServiceEvent) -> Service:
    """`move` over SERVICE, with the words of Java where a user did it; raises StateError."""
    if (state, event) not in SERVICE and event in SERVICE_REFUSALS:
        raise StateError(SERVICE_REFUSALS[event].format(state=state.value))
    return move(SERVICE, state, event)


S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)

Seen = Counter[tuple[Enum, Enum]]


def move(table: dict[tuple[S, E], S], state: S, event: E, seen: Seen | None = None) -> S:
    """Return the state after `event`; raise StateError where the table has no such transition."""
    after = table.get((state, event))
    if after is None:
        known = ", ".join(sorted(e.value for s, e in table if s is state)) or "none"
        raise StateError(
            f"{type(state).__name__.lower()} is {state.value}: '{event.value}' is not possible (possible: {known})"
        )
    if seen is not None:
        seen[(state, event)] += 1
    return after
