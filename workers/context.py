"""What a handler may ask of the worker it runs in: its index, a logger with the message's keys, whether to give up, and a
place to say how far it is.

Which message is in hand is read from the worker's cell at the moment of the question, so that messages whose handlers
never ask cost nothing. Outside of a worker (a unit test of a handler, a script) everything answers harmlessly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from json import loads  # bound here: a handler's module may put a function of its own into `json`
from typing import Any, Final

from ..remoting.arguments import NONE, check, number, refuse
from ..remoting.arguments import TEXT as A_TEXT
from .cells import BETWEEN, CANCEL, STATE, TEXT, TEXT_BYTES, CellView
from .message import Message, message_keys
from .packets import PROGRESS, encode_notice

PROGRESS_EVERY_S: Final = 0.2
"""Reports of progress that come faster than this are dropped; one that is dropped is not sent later."""
TEXT_MAX: Final = 200
_NUMBERS: Final = (int, float)
_RULES: Final = {"done": number(), "total": number() | NONE, "text": A_TEXT}


class Context:
    """Of one worker. `tell(packet)` sends to the supervisor."""

    def __init__(self, worker_id: str, index: int, cell: CellView, tell: Callable[[bytes], None]) -> None:
        self.worker_id = worker_id
        self.index = index
        self._cell = cell
        self._tell = tell
        self._reported_at = 0.0

    def keys(self) -> dict[str, object]:
        """What names the message in hand; nothing between messages."""
        cell = self._cell
        if cell[STATE] in (0, BETWEEN):
            return {}
        try:
            topic, broker, queue_id = loads(bytes(cell[TEXT:])[: cell[TEXT_BYTES]])
        except (ValueError, TypeError):
            return {}
        return {"topic": topic, "broker": broker, "queue_id": queue_id, "offset": cell[STATE] - 1}

    def cancelled(self) -> bool:
        return bool(self._cell[CANCEL])

    def progress(self, done: float, total: float | None, text: str) -> None:
        now = time.monotonic()
        if now - self._reported_at < PROGRESS_EVERY_S and (total is None or done < total):
            return
        self._reported_at = now
        self._tell(encode_notice(PROGRESS, done=done, total=total, text=text[:TEXT_MAX]))


_current: Context | None = None


def enter(context: Context | None) -> None:
    """This process is a worker (None: it is none any more, as a child that a handler forked)."""
    global _current  # noqa: PLW0603  a fact of this process
    _current = context


def keys_in_hand() -> dict[str, object]:
    """What names the message in hand, for log lines."""
    return _current.keys() if _current is not None else {}


def worker_index() -> int:
    """The worker's place among the workers of its supervisor, 0, 1, ...; one that takes another's place gets its index. 0
    outside of a worker. For what is handed out by number: a GPU, a port, a share of a licence."""
    return _current.index if _current is not None else 0


def cancelled() -> bool:
    """Whether the supervisor wants this worker to come to an end: it is stopping, or its deadline is near.

    A handler of long messages may look at it now and then, and raise `Retry` to have the message consumed later,
    instead of being cut off.
    """
    return _current is not None and _current.cancelled()


def progress(done: float, total: float | None = None, text: str = "") -> None:
    """Say how far the message in hand is, e.g. `progress(3, 10, "pages")`; `rocketcrew top` and `status` show it.

    It does not prolong a time limit. Cheap enough to be called in a loop: at most five a second are sent.
    """
    if not (
        type(done) in _NUMBERS
        and 0 <= done < math.inf
        and (total is None or (type(total) in _NUMBERS and 0 <= total < math.inf))
        and type(text) is str
    ):
        check("progress", {"done": done, "total": total, "text": text}, _RULES)
    if _current is not None:
        _current.progress(done, total, text)


def logger(message: Message | None = None) -> Any:
    """A structlog logger that names the message in hand: topic, queue and offset; with `message`, its id and keys too."""
    if not isinstance(message, Message | None):  # pyright: ignore[reportUnnecessaryIsInstance]  a user's mistake
        refuse("logger", "message", message, "the Message that the handler got, or None")
    keys = keys_in_hand() if message is None else message_keys(message)
    # Not with the package: `rocketcrew --help` shall stay quick.
    from ..client.logs import users_logger
    from ..conf.logging import USERS_LOGGER

    return users_logger(USERS_LOGGER).bind(**keys)
