"""Queues whose end was replaced: a failover to a replica that lagged, whose log producers filled past our offset since.

Such a broker has our offset, and below it other messages than the ones we had: Java passes them, and the lag is 0. A queue is
known again by its marks: offsets of records that we had, and when they were stored. Before a queue is pulled from another
address than before, or from one whose connection was lost, the record at the newest mark is asked for. One that was stored at
another time is another record, whatever the clocks of brokers did. Then the marks between tell after which of them the queue
is another one, and from there it goes on at the first record stored after all that we had, or at once behind the mark where
the new broker's clock is behind.

A broker that ends before the mark proves nothing yet: a slave that lags has it later, and a master corrects our pull
(recreated.py). The question is put again before each pull until that is known, and after a pause where it was refused or not
answered: a failover makes brokers busy. If that lasts, pulls alone may still be answered: they go on, and the queue stays in
doubt. Of one that is known to be replaced the steps between are asked for as often, and then it goes on behind the last mark
that is known to be the same. A mark that is deleted or damaged says nothing, nor does what a filter left out after it; and a
process that begins has no marks: `rocketcrew reconcile` compares what the table has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import structlog

from ...client.asking import is_refusal
from ...client.operations import Operations
from ...remoting.errors import BrokerError, ProtocolError, RocketcrewError, TimedOutError
from ...remoting.log_keys import queue_keys
from ...remoting.names import TOOLS_GROUP
from ...remoting.queues import MessageQueue
from ...source.searching import exact_offset, look_at, times_in

MARKS_MAX: Final = 48
"""Of a queue. Where there are more, one goes if the one before it is at most three times as far from the newest as the one
after it: where a queue goes on is not much further back than what it lost. Some 40 are left of a billion records."""
LOOK_TIMEOUT_MS: Final = 6_000
LOOKS_MAX: Final = 3
"""In a row without an answer: then the queue is pulled all the same."""
PULLS_A_LOOK: Final = 16
"""From then on, until one is answered."""
LOOKS_AT_ONCE: Final = 16
"""Of all queues: a lost connection may make a thousand wanted, and each brings a message, which has no room in the slab."""
LINE_MAX_S: Final = 30.0
"""Until it is a queue's turn, as long as a pull may take: many times what they take where they are answered."""
TRUSTED_S: Final = 1.0
"""A master and a slave may suggest each other in turn; none is promoted, and filled past our offset, as fast as that."""

log = structlog.get_logger("rocketcrew.member")


class Mark(NamedTuple):
    """A record that we had: its offset, the last one of an inner batch, and when it was stored."""

    offset: int
    stored_ms: int


class Tails:
    """The marks of one member's queues, and at which address each was there."""

    def __init__(self, operations: Operations, group: str) -> None:
        self._operations = operations
        self._group = group
        self._marks: dict[MessageQueue, list[Mark]] = {}
        self._sound_at: dict[MessageQueue, str] = {}
        """Where it was pulled from last, and was the same or began."""
        self._trusted: dict[tuple[MessageQueue, str], float] = {}
        """Where it was found to be the same, and until when that counts without another look."""
        self._unanswered: dict[MessageQueue, int] = {}
        """Looks in a row, and from LOOKS_MAX on the pulls since."""
        self._line = asyncio.Semaphore(LOOKS_AT_ONCE)

    def note(self, mq: MessageQueue, asked: int, newest: tuple[int, int] | None) -> None:
        """The pull at `asked` has brought records, of which this is the last one; not so while the queue is in doubt."""
        if newest is None or mq not in self._sound_at:
            return
        self._cut(mq, asked)
        marks = self._marks.setdefault(mq, [])
        marks.append(Mark(*newest))
        if len(marks) > MARKS_MAX:
            self._marks[mq] = _thinned(marks)

    def in_doubt(self, mq: MessageQueue, address: str, now: float) -> bool:
        """Whether it is to be looked for the queue's mark there."""
        if self._sound_at.get(mq) == address:
            return False
        if mq in self._marks and now >= self._trusted.get((mq, address), now):
            self._sound_at.pop(mq, None)
            return True
        self._sound_at[mq] = address
        self._unanswered.pop(mq, None)
        return False

    def connection_lost(self, address: str) -> None:
        """Who answers there next may be another broker, or have lost its end."""
        for mq in [mq for mq, at in self._sound_at.items() if at == address]:
            del self._sound_at[mq]
        self._trusted.clear()  # another one may be promoted now

    def pull_failed(self, mq: MessageQueue) -> None:
        """Pulls are not answered either: it is to be looked before the next one."""
        if self._unanswered.get(mq, 0) >= LOOKS_MAX:
            self._unanswered[mq] = PULLS_A_LOOK

    def corrected(self, mq: MessageQueue, offset: int) -> None:
        """Its broker said that the queue ends before our offset: it goes on at this one."""
        self._cut(mq, offset)

    def passed(self, mq: MessageQueue) -> None:
        """The queue goes on where somebody else has said: what was before is not looked for."""
        self._marks.pop(mq, None)
        self._unanswered.pop(mq, None)

    def keep(self, ours: Collection[MessageQueue]) -> None:
        """Other queues are not ours any more: forget them."""
        for mq in self._marks.keys() - ours:
            del self._marks[mq]
        for mq in self._sound_at.keys() - ours:
            del self._sound_at[mq]
        for mq in self._unanswered.keys() - ours:
            del self._unanswered[mq]
        self._trusted = {place: until for place, until in self._trusted.items() if place[0] in ours}

    def _cut(self, mq: MessageQueue, offset: int) -> None:
        marks = self._marks.get(mq, [])
        while marks and marks[-1].offset >= offset:
            marks.pop()
        if not marks:
            self._marks.pop(mq, None)

    async def replaced_from(self, mq: MessageQueue, address: str, asked: int, now: float) -> int | None:
        """Where to go on instead of at `asked`; None: there. Raises RocketcrewError where no answer came: ask again after a
        pause. Raises WasResetError."""
        unanswered = self._unanswered.get(mq, 0)
        if unanswered >= LOOKS_MAX and unanswered % PULLS_A_LOOK:
            self._unanswered[mq] = unanswered + 1
            return None
        try:
            async with self._turn(address):
                found = await self._replaced_from(mq, address, asked, last_try=unanswered + 1 >= LOOKS_MAX)
        except (BrokerError, TimedOutError) as error:
            tries = unanswered + 1 if _passes(error) else max(unanswered + 1, LOOKS_MAX)
            self._unanswered[mq] = tries
            if tries < LOOKS_MAX:
                raise
            if unanswered < LOOKS_MAX:
                log.warning("tail_not_known", **queue_keys(mq), address=address, error=str(error))
            return None
        self._unanswered.pop(mq, None)
        if found is not None and found < asked:
            return found
        if found is not None:
            self._sound_at[mq] = address
            self._trusted[mq, address] = now + TRUSTED_S
        return None

    @asynccontextmanager
    async def _turn(self, address: str) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(LINE_MAX_S):
                await self._line.acquire()
        except TimeoutError:
            raise TimedOutError(address, "looks at other queues take too long") from None
        try:
            yield
        finally:
            self._line.release()

    async def _replaced_from(self, mq: MessageQueue, address: str, asked: int, *, last_try: bool) -> int | None:
        """The first record that was replaced, `asked` if none below it is known to be; None where that may come out yet."""
        marks = self._marks.get(mq, []).copy()
        if not marks:
            return asked  # somebody has said meanwhile where it goes on
        newest = marks[-1]
        try:
            times, end = await self._look(mq, address, newest.offset, newest.offset + 1)
        except ProtocolError as error:
            log.warning("tail_not_known", **queue_keys(mq), address=address, error=str(error))
            return asked
        if not times and end <= newest.offset:
            return None
        if times.get(newest.offset, newest.stored_ms) == newest.stored_ms:
            return asked
        return await self._first_other(mq, address, marks, last_try=last_try)

    async def _first_other(self, mq: MessageQueue, address: str, marks: list[Mark], *, last_try: bool) -> int:
        """The first record that is another one than we had; the newest mark is. Where an answer on the way does not come and
        will not, the one behind the last mark that is known to be the same."""
        first, last = 0, len(marks) - 1
        try:
            while first < last:
                middle = (first + last) // 2
                if await self._is_other(mq, address, marks[middle]):
                    last = middle
                else:
                    first = middle + 1
            return await self._other_between(
                mq, address, _behind(marks, first), marks[first].offset, marks[-1].stored_ms + 1
            )
        except RocketcrewError as error:
            if _passes(error) and not (last_try and isinstance(error, BrokerError | TimedOutError)):
                raise
            log.warning("tail_not_known", **queue_keys(mq), address=address, error=str(error))
            return _behind(marks, first)

    async def _other_between(self, mq: MessageQueue, address: str, low: int, high: int, after_ms: int) -> int:
        async def times(start: int, stop: int) -> dict[int, int]:
            found, _ = await self._look(mq, address, start, stop)
            return found

        if (await times(high, high + 1)).get(high, 0) < after_ms:
            return low  # its clock is behind
        near = await self._operations.search_offset(mq, after_ms, address=address)
        return await exact_offset(near, low, high, after_ms, times)

    async def _is_other(self, mq: MessageQueue, address: str, mark: Mark) -> bool:
        times, end = await self._look(mq, address, mark.offset, mark.offset + 1)
        return times.get(mark.offset, mark.stored_ms) != mark.stored_ms or end <= mark.offset

    async def _look(self, mq: MessageQueue, address: str, start: int, stop: int) -> tuple[dict[int, int], int]:
        """When the broker's records from `start` on were stored, and where its queue ends. A pull of the group's own takes an
        operator's reset along (5.2), but where another one may not read, it is better than none."""
        names = [TOOLS_GROUP, self._group]
        result = await look_at(self._operations, address, names, mq, start, stop - start, timeout_ms=LOOK_TIMEOUT_MS)
        return times_in(result, start, stop), result.header.max_offset


def _passes(error: RocketcrewError) -> bool:
    """Whether the same question may be answered in a moment."""
    if isinstance(error, BrokerError):
        return not is_refusal(error.code, error.remark)
    return not isinstance(error, ProtocolError)


def _behind(marks: list[Mark], first: int) -> int:
    """The marks before that one are known to be the same."""
    return marks[first - 1].offset + 1 if first else 0


def _thinned(marks: list[Mark]) -> list[Mark]:
    newest, kept = marks[-1], marks[-1:]
    for before, mark in zip(marks[-3::-1], marks[-2:0:-1], strict=True):
        if newest.offset - before.offset > 3 * (newest.offset - kept[-1].offset):
            kept.append(mark)
    return [marks[0], *reversed(kept)]
