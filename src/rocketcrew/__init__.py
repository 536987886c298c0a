"""rocketcrew: a RocketMQ push consumer for CPU-heavy Python.

What a handler's module needs is here: `handler`, `Message`, `Retry`, `BatchResult`, `SoftTimeLimitExceeded`, in order also
`Suspend`, `Commit` and `Rollback`; `worker_index`, `logger`, `progress` and `cancelled`, what a running handler may ask; and
`consume`, which runs one. Scripts and notebooks have `Crew`, which runs one beside them, and `read`, which reads its table. What
sends messages is here too (`Producer`, `SyncProducer`), and what all of them raise (`RocketcrewError`). Every name is loaded
when it is first used: workers do not pay for the client, and the command line answers Ctrl-C before anything else is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client.access import Access, Credentials, TlsOptions
    from .client.outgoing import OutgoingMessage
    from .client.producer import Producer
    from .client.selection import by_key, by_machine_room, by_random, to_queue
    from .client.send_result import SendResult, SendStatus
    from .client.sending import SendRules
    from .client.sync import SyncProducer
    from .client.transactions import CheckedMessage, LocalTransactionState, TransactionSendResult
    from .crew.crew import Crew, CrewError, CrewTimeoutError
    from .crew.loading import load
    from .crew.reading import read
    from .remoting.errors import BrokerError, RocketcrewError, TimedOutError, UnreachableError, UsageError
    from .supervisor.consume import consume
    from .workers.api import (
        BatchResult,
        BodyError,
        Commit,
        Handler,
        Retry,
        Rollback,
        SoftTimeLimitExceeded,
        Suspend,
        handler,
    )
    from .workers.context import cancelled, logger, progress, worker_index
    from .workers.loading import HandlerLoadError
    from .workers.message import Message
    from .workers.sends import Send, SendError

__all__ = [
    "Access",
    "BatchResult",
    "BodyError",
    "BrokerError",
    "CheckedMessage",
    "Credentials",
    "Commit",
    "Crew",
    "CrewError",
    "CrewTimeoutError",
    "Handler",
    "HandlerLoadError",
    "LocalTransactionState",
    "Message",
    "OutgoingMessage",
    "Producer",
    "Retry",
    "RocketcrewError",
    "Rollback",
    "Send",
    "SendError",
    "SendResult",
    "SendRules",
    "SendStatus",
    "SoftTimeLimitExceeded",
    "Suspend",
    "SyncProducer",
    "TimedOutError",
    "TlsOptions",
    "TransactionSendResult",
    "UnreachableError",
    "UsageError",
    "__version__",
    "by_key",
    "by_machine_room",
    "by_random",
    "cancelled",
    "consume",
    "handler",
    "load",
    "logger",
    "progress",
    "read",
    "to_queue",
    "worker_index",
]

_FROM = {
    "client.access": ("Access", "Credentials", "TlsOptions"),
    "client.outgoing": ("OutgoingMessage",),
    "client.producer": ("Producer",),
    "client.selection": ("by_key", "by_machine_room", "by_random", "to_queue"),
    "client.send_result": ("SendResult", "SendStatus"),
    "client.sending": ("SendRules",),
    "client.sync": ("SyncProducer",),
    "client.transactions": ("CheckedMessage", "LocalTransactionState", "TransactionSendResult"),
    "crew.crew": ("Crew", "CrewError", "CrewTimeoutError"),
    "crew.loading": ("load",),
    "crew.reading": ("read",),
    "remoting.errors": ("BrokerError", "RocketcrewError", "TimedOutError", "UnreachableError", "UsageError"),
    "supervisor.consume": ("consume",),
    "workers.api": (
        "BatchResult", "BodyError", "Commit", "Handler", "Retry", "Rollback", "SoftTimeLimitExceeded", "Suspend", "handler"
    ),
    "workers.context": ("cancelled", "logger", "progress", "worker_index"),
    "workers.loading": ("HandlerLoadError",),
    "workers.message": ("Message",),
    "workers.sends": ("Send", "SendError"),
}  # fmt: skip
_MODULES = {name: module for module, names in _FROM.items() for name in names}

TESTING = "testing"
"""The room whose names are its own: rocketcrew.testing."""

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    from .conf.hiding import imported

    if name == TESTING:
        return imported(f".{TESTING}", __name__)
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(imported(f".{module}", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, TESTING])
