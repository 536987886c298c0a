"""rocketcrew: a RocketMQ push consumer for CPU-heavy Python.

What a handler's module needs is here: `handler`, `Message`, `Retry`, `BatchResult`; and `consume`, which runs one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .workers.api import BatchResult, Handler, Retry, handler
from .workers.message import Message

if TYPE_CHECKING:
    from .supervisor.service import Summary

__all__ = ["BatchResult", "Handler", "Message", "Retry", "__version__", "consume", "handler"]

__version__ = "0.1.0"


def consume(
    handler: str | Callable[..., Any],
    *,
    topics: str | Sequence[str],
    group: str,
    name_servers: str = "",
    settings: Mapping[str, object] | None = None,
) -> Summary:
    """Consume with `handler` until TERM or INT; see `rocketcrew.supervisor.consume`."""
    from .supervisor.consume import consume as run

    return run(handler, topics=topics, group=group, name_servers=name_servers, settings=settings)
