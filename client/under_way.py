"""The sends of a producer that have begun and not ended: turns for those that nobody waits for, and the wait for all of them
at the end.

- Who waits for each send has named its time, and how many run at once. (Java counts so too, and bounds nothing unless it is
  asked to: DefaultMQProducerImpl.java executeAsyncMessageSend.) Who does not wait may begin 20,000 at once: in the same few
  seconds all of them would fail by their time limit, most of them after the broker has stored them. So those have lanes, and
  the time of each begins with its turn.
- The end waits for as long as sends end well. Only when none has for a while, the others are given up: they may be many, and
  a broker that is away would have each wait for its own time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from typing import NamedTuple

from ..remoting.errors import UsageError

READING_TURNS = 5
"""Of a loop that was kept busy until the time was over: what has come meanwhile is read, and its sends end, before they are
given up."""


class Left(NamedTuple):
    """What came of a wait for sends: how many are left, and how many failed meanwhile."""

    sends: int
    failed: int


class UnderWay:
    """See the module's text. A send is a `with` block, or a token."""

    def __init__(self, lanes: int) -> None:
        self._free = lanes
        self._coming = 0
        """Those that have their lane and go on with the loop's next turn: who comes before that goes after them."""
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        """For a lane, which comes with the result."""
        self._count = 0
        self._failed = 0
        self._tokens: set[object] = set()
        self._closing = False
        self._none_left: asyncio.Event | None = None

    def __enter__(self) -> None:
        self._refuse_closed()
        self._count += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._count -= 1
        self._failed += kind is not None and issubclass(kind, Exception)  # not where its caller has cancelled it
        self._tell()

    def begin(self, token: object) -> None:
        self._refuse_closed()
        self._tokens.add(token)

    def over(self, token: object) -> None:
        """Of no effect where it has not begun."""
        self._tokens.discard(token)
        self._tell()

    async def ended(self, patience_s: float, *, closing: bool) -> Left:
        """Wait for them, until none has ended well for so long. When closing, none begins any more."""
        await asyncio.sleep(0)  # tasks that were made a moment ago begin
        self._closing = self._closing or closing
        failed_before = self._failed
        while owed := self._left():
            owed += self._failed
            self._none_left = self._none_left or asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await self._none_left.wait()
            for _ in range(READING_TURNS):
                await asyncio.sleep(0)
            if self._left() + self._failed >= owed:
                break
        return Left(self._left(), self._failed - failed_before)

    async def take_lane(self) -> None:
        """Inside the block of a send: wait until it is its turn, which ends with `leave_lane`."""
        if self._free and not self._coming:
            self._free -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            await waiter
        except BaseException:
            self._waiting.pop(waiter, None)
            if waiter.done() and not waiter.cancelled():  # cancelled a moment after it had one
                self._coming -= 1
                self.leave_lane()
            raise
        self._coming -= 1
        self._give_lanes()  # to those that have come meanwhile

    def leave_lane(self) -> None:
        self._free += 1
        self._give_lanes()

    def _give_lanes(self) -> None:
        while self._free and self._waiting:
            waiter, _ = self._waiting.popitem(last=False)
            if not waiter.done():
                self._free -= 1
                self._coming += 1
                waiter.set_result(None)

    def _refuse_closed(self) -> None:
        if self._closing:
            raise UsageError("this producer is closed: make a new one")

    def _left(self) -> int:
        return self._count + len(self._tokens)

    def _tell(self) -> None:
        if self._none_left is not None and not self._left():
            self._none_left.set()
            self._none_left = None
