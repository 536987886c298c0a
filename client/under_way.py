"""The sends of a producer that have begun and not ended: turns for those that nobody waits for, and the wait for all of them
at the end.

- Who waits for each send has named its time, and how many run at once. (Java counts so too, and bounds nothing unless it is
  asked to: DefaultMQProducerImpl.java executeAsyncMessageSend.) Who does not wait may begin 20,000 at once: in the same few
  seconds all of them would fail by their time limit, most of them after the broker has stored them. So those have lanes, and
  the time of each begins with its turn.
- The end waits for as long as sends end well. Only when none has for a while, the others are given up: they may be many, and
  a broker that is away would have each wait for its own time. How many are left says nothing of that: callbacks and other
  threads may begin as many meanwhile, for ever, so those are waited for a while only.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import OrderedDict
from collections.abc import Generator
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
    """See the module's text. A send is a block `with one()`, or a token."""

    def __init__(self, lanes: int) -> None:
        self._free = lanes
        self._coming = 0
        """Those that have their lane and go on with the loop's next turn: who comes before that goes after them."""
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        """For a lane, which comes with the result. (asyncio.Semaphore looks through all that wait for each that gives up.)"""
        self._well = self._failed = 0
        self._tokens: set[object] = set()
        self._closing = False
        self._none_left: asyncio.Event | None = None

    @contextlib.contextmanager
    def one(self) -> Generator[None]:
        token = object()
        self.begin(token)
        well = False
        try:
            yield
            well = True
        except Exception:  # not where its caller has cancelled it
            self._failed += 1
            raise
        finally:
            self.over(token, well=well)

    def begin(self, token: object) -> None:
        if self._closing:
            raise UsageError("this producer is closed: make a new one")
        self._tokens.add(token)

    def over(self, token: object, *, well: bool = True) -> None:
        """Of no effect where it has not begun."""
        if token not in self._tokens:
            return
        self._tokens.remove(token)
        self._well += well
        if self._none_left is not None and not self._tokens:
            self._none_left.set()
            self._none_left = None

    async def ended(self, patience_s: float, *, closing: bool) -> Left:
        """Wait for them, until none has ended well for so long. When closing, none begins any more; else those that begin
        meanwhile are waited for so long after the others."""
        await asyncio.sleep(0)  # tasks that were made a moment ago begin
        self._closing = self._closing or closing
        failed_before = self._failed
        owed, until_s, now_s = set(self._tokens), math.inf, asyncio.get_running_loop().time
        well, well_s = self._well, now_s()
        while await self._any():
            owed &= self._tokens
            if not owed:
                until_s = min(until_s, now_s() + patience_s)
            self._none_left = self._none_left or asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(until_s, well_s + patience_s)):
                    await self._none_left.wait()
            for _ in range(READING_TURNS):
                await asyncio.sleep(0)
            if self._well != well:
                well, well_s = self._well, now_s()
            elif now_s() >= well_s + patience_s:
                break
            if now_s() >= until_s:
                break
        return Left(len(self._tokens), self._failed - failed_before)

    async def _any(self) -> bool:
        """Whether there are some. The callbacks of one that has ended just now may be about to begin others."""
        for _ in range(READING_TURNS):
            if self._tokens:
                break
            await asyncio.sleep(0)
        return bool(self._tokens)

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
