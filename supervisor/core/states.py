"""The state machines of the supervisor, each one table; a missing key is the error path.

Every transition goes through `move`, which also counts it, so that a simulation can say which transition never happened.
The service states are those of Java (client/common/.../ServiceState.java); the queue's are those of this folder's `__init__`.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Final, TypeVar

from ...remoting.errors import RocketcrewError


class ServiceState(Enum):
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


class QueueState(Enum):
    """Life of one assignment of a message queue; a queue that comes back gets a new one."""

    OPENING = "opening"
    ASSIGNED = "assigned"
    DRAINING = "draining"
    ENDED = "ended"


ASSIGNED: Final = QueueState.ASSIGNED
"""Asked for several times a pull: a member read off its class takes twice as long as a call (Python 3.11)."""


class QueueEvent(Enum):
    OPENED = "opened"
    OPEN_FAILED = "open failed"
    REVOKED = "revoked"
    DRAINED = "drained"
    DEADLINE = "deadline"


class WorkerState(Enum):
    """Life of one worker process, from the decision to start it."""

    BOOTING = "booting"
    """Its process is made, it salvages what dead workers left, and its handler is set up."""
    READY = "ready"
    LEAVING = "leaving"
    """It finishes what it has and gets nothing more."""
    STOPPING = "stopping"
    """It was asked to end, or reported that it ends: its end is expected and charged to nobody."""
    KILLED = "killed"
    """The supervisor killed it for what it reported or did not do: charged to nobody."""
    DEAD = "dead"
    """Its open segment waits for its salvage, and its chunks wait for that."""
    GONE = "gone"


READY: Final = WorkerState.READY
"""As ASSIGNED."""
LIVING = (WorkerState.READY, WorkerState.LEAVING, WorkerState.STOPPING, WorkerState.KILLED)
"""Those that answer for what they were given: what they reported before their end is still to be read."""
ENDED = (WorkerState.DEAD, WorkerState.GONE)


class WorkerEvent(Enum):
    NOT_STARTED = "not started"
    READY = "ready"
    RETIRED = "retired"
    STOPPED = "stopped"
    KILLED = "killed"
    DIED = "died"
    SALVAGED = "salvaged"


SERVICE: dict[tuple[ServiceState, ServiceEvent], ServiceState] = {
    # As in Java, a start has failed until it is done: so neither a second one beside it nor one after it begins.
    (ServiceState.CREATE_JUST, ServiceEvent.START): ServiceState.START_FAILED,
    (ServiceState.START_FAILED, ServiceEvent.STARTED): ServiceState.RUNNING,
    (ServiceState.RUNNING, ServiceEvent.USE): ServiceState.RUNNING,
    (ServiceState.RUNNING, ServiceEvent.STOPPED): ServiceState.SHUTDOWN_ALREADY,
}

SERVICE_REFUSALS: dict[ServiceEvent, str] = {
    ServiceEvent.START: "a supervisor is started once; make a new one (The PushConsumer service state not OK, maybe started"
    " once, {state})",
    ServiceEvent.USE: "only a supervisor that runs can do this (The consumer service state not OK, {state})",
}
"""What to do, and Java's words (DefaultMQPushConsumerImpl.start, makeSureStateOK)."""

QUEUE: dict[tuple[QueueState, QueueEvent], QueueState] = {
    (QueueState.OPENING, QueueEvent.OPENED): QueueState.ASSIGNED,
    (QueueState.OPENING, QueueEvent.OPEN_FAILED): QueueState.ENDED,
    (QueueState.OPENING, QueueEvent.REVOKED): QueueState.ENDED,
    (QueueState.ASSIGNED, QueueEvent.REVOKED): QueueState.DRAINING,
    (QueueState.DRAINING, QueueEvent.DRAINED): QueueState.ENDED,
    (QueueState.DRAINING, QueueEvent.DEADLINE): QueueState.ENDED,
}

WORKER: dict[tuple[WorkerState, WorkerEvent], WorkerState] = {
    (WorkerState.BOOTING, WorkerEvent.NOT_STARTED): WorkerState.GONE,
    (WorkerState.BOOTING, WorkerEvent.READY): WorkerState.READY,
    (WorkerState.BOOTING, WorkerEvent.STOPPED): WorkerState.STOPPING,
    (WorkerState.BOOTING, WorkerEvent.KILLED): WorkerState.KILLED,
    (WorkerState.BOOTING, WorkerEvent.DIED): WorkerState.DEAD,
    (WorkerState.READY, WorkerEvent.RETIRED): WorkerState.LEAVING,
    (WorkerState.READY, WorkerEvent.STOPPED): WorkerState.STOPPING,
    (WorkerState.READY, WorkerEvent.KILLED): WorkerState.KILLED,
    (WorkerState.READY, WorkerEvent.DIED): WorkerState.DEAD,
    (WorkerState.LEAVING, WorkerEvent.STOPPED): WorkerState.STOPPING,
    (WorkerState.LEAVING, WorkerEvent.KILLED): WorkerState.KILLED,
    (WorkerState.LEAVING, WorkerEvent.DIED): WorkerState.DEAD,
    (WorkerState.STOPPING, WorkerEvent.KILLED): WorkerState.KILLED,
    (WorkerState.STOPPING, WorkerEvent.DIED): WorkerState.DEAD,
    # Killed while its process was being made: then there is none that could die.
    (WorkerState.KILLED, WorkerEvent.NOT_STARTED): WorkerState.GONE,
    (WorkerState.KILLED, WorkerEvent.DIED): WorkerState.DEAD,
    (WorkerState.DEAD, WorkerEvent.SALVAGED): WorkerState.GONE,
}


class StateError(RocketcrewError):
    """An event that the state's table does not know, e.g. a service that is started twice."""


def move_service(state: ServiceState, event: ServiceEvent) -> ServiceState:
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
        what = type(state).__name__.removesuffix("State").lower()
        raise StateError(f"{what} is {state.value}: '{event.value}' is not possible (possible: {known})")
    if seen is not None:
        seen[(state, event)] += 1
    return after
