"""Requests that wait for their answer, by opaque, with their deadlines.

Pure: time is passed in (seconds of a monotonic clock), the waiter is only stored. One table per connection and
direction; a connection needs one timer for all of it, set to `next_deadline`.

Deadlines lie in a heap whose entries are removed lazily: an answer removes the request from the table only, and its
heap entry is thrown away when it comes up or when stale entries outnumber live ones. So a request costs one push, an
answer costs nothing, and the heap never holds more than twice the live entries plus a constant.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..remoting.command import Command
from ..remoting.errors import UsageError

OPAQUE_MAX = 0x7FFF_FFFF
STALE_MIN = 256
"""Heaps below this size are not worth the rebuilding."""

BodySink = Callable[[Command, int], memoryview | None]
"""Called with a response's header and body length (> 0); a writable view of exactly that size, or None = drop."""


class Waiter(Protocol):
    """Who is told the answer, once: a future, or an object of the caller's own where there are too many for one each.

    Its methods are called while the connection reads or ends: like a future, it only notes what came, and acts on it later.
    """

    def done(self) -> bool:
        """Whether it was told, or does not wait any more: its sink's view is not written from then on."""
        ...

    def set_result(self, result: Command, /) -> None:
        """The answer has come."""
        ...

    def set_exception(self, exception: Exception, /) -> None:
        """None will come."""
        ...


@dataclass(slots=True, eq=False)
class Pending:
    """One request that was handed to the connection and is not answered yet."""

    opaque: int
    code: int
    waiter: Waiter
    sent_s: float
    deadline_s: float
    sink: BodySink | None

    @property
    def timeout_ms(self) -> int:
        """What the caller allowed, in milliseconds."""
        return round((self.deadline_s - self.sent_s) * 1000)


class PendingTable:
    """Bounded table of pending requests; opaques count up from 0 as Java's do and wrap within int32."""

    def __init__(self, pending_max: int) -> None:
        self._pending_max = pending_max
        self._by_opaque: dict[int, Pending] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._last_opaque = -1

    def __len__(self) -> int:
        return len(self._by_opaque)

    @property
    def full(self) -> bool:
        """Whether another request must be refused."""
        return len(self._by_opaque) >= self._pending_max

    def next_opaque(self) -> int:
        """An opaque that no pending request uses."""
        opaque = (self._last_opaque + 1) & OPAQUE_MAX
        while opaque in self._by_opaque:  # only after a wrap, with a request that old: at most pending_max steps
            opaque = (opaque + 1) & OPAQUE_MAX
        self._last_opaque = opaque
        return opaque

    def add(
        self,
        opaque: int,
        code: int,
        waiter: Waiter,
        *,
        now_s: float,
        deadline_s: float,
        sink: BodySink | None,
    ) -> Pending:
        """Enter a request; the caller has asked `full` before."""
        assert opaque not in self._by_opaque
        pending = Pending(opaque, code, waiter, now_s, deadline_s, sink)
        self._by_opaque[opaque] = pending
        heapq.heappush(self._deadlines, (deadline_s, opaque))
        if len(self._deadlines) > 2 * len(self._by_opaque) + STALE_MIN:
            self._deadlines = [(entry.deadline_s, entry.opaque) for entry in self._by_opaque.values()]
            heapq.heapify(self._deadlines)
        return pending

    def get(self, opaque: int) -> Pending | None:
        """The request with this opaque, left in the table."""
        return self._by_opaque.get(opaque)

    def take(self, opaque: int) -> Pending | None:
        """Remove and return the request, None when it is unknown, answered or expired."""
        return self._by_opaque.pop(opaque, None)

    def of_code(self, code: int) -> list[Pending]:
        """The requests with this code, left in the table."""
        return [pending for pending in self._by_opaque.values() if pending.code == code]

    def expire(self, now_s: float) -> list[Pending]:
        """Remove and return the requests whose deadline has passed, oldest deadline first."""
        expired: list[Pending] = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            deadline_s, opaque = heapq.heappop(self._deadlines)
            pending = self._by_opaque.get(opaque)
            if pending is not None and pending.deadline_s == deadline_s:
                expired.append(self._by_opaque.pop(opaque))
        return expired

    def next_deadline_s(self) -> float | None:
        """The earliest deadline; stale entries before it are thrown away."""
        while self._deadlines:
            deadline_s, opaque = self._deadlines[0]
            pending = self._by_opaque.get(opaque)
            if pending is not None and pending.deadline_s == deadline_s:
                return deadline_s
            heapq.heappop(self._deadlines)
        return None

    def take_all(self) -> list[Pending]:
        """Empty the table (the connection is gone)."""
        everything = list(self._by_opaque.values())
        self._by_opaque.clear()
        self._deadlines.clear()
        return everything


def checked_view(view: memoryview, body_bytes: int) -> memoryview:
    """The sink's view as flat bytes; UsageError when it does not fit."""
    if view.readonly or not view.c_contiguous or view.nbytes != body_bytes:
        raise UsageError(
            f"a body sink must return a writable contiguous view of {body_bytes} bytes, not"
            f" {'a read-only' if view.readonly else 'a'} view of {view.nbytes} bytes"
        )
    return view if view.ndim == 1 and view.format == "B" else view.cast("B")
