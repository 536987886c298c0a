"""The kit for testing handlers: messages made by hand, a run in this process with time wound by hand, and fixtures.

    from rocketcrew.testing import message, run

    result = run(handle, [message(topic="orders", body=b"{}", keys="o-1")])
    assert result.rows == [{"order_id": "o-1"}]

Nothing here imitates: `run` drives the supervisor's own core, a worker's own loop and the embedded broker's own core in one
thread, without sockets, with a clock that stands still until nothing is left to do. So retries, delays and dead letters are
those of production. The fixtures (package `pytest_rocketcrew`, which pytest finds by itself) start real processes.

This module imports nothing until a name of it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .broker import LocalBroker
    from .faults import Fault, Faults
    from .making import message
    from .rehearsal import Rehearsal, run
    from .result import Call, DeadLetter, Result, Retried

__all__ = [
    "Call",
    "DeadLetter",
    "Fault",
    "Faults",
    "LocalBroker",
    "Rehearsal",
    "Result",
    "Retried",
    "message",
    "run",
]

_OF = {
    "Call": "result",
    "DeadLetter": "result",
    "Fault": "faults",
    "Faults": "faults",
    "LocalBroker": "broker",
    "Rehearsal": "rehearsal",
    "Result": "result",
    "Retried": "result",
    "message": "making",
    "run": "rehearsal",
}


def __getattr__(name: str) -> Any:
    module = _OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ..conf.hiding import imported

    return getattr(imported(f".{module}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
