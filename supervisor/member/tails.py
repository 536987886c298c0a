"""Queues whose end was replaced: a failover to a replica that lagged, whose log producers filled past our offset since.

Such a broker has our offset, and below it other messages than the ones we had: Java passes them, and the lag is 0. A queue is
known again by its marks: offsets of records that we had, and when they were stored. Before a queue is pulled from another
address than before, or from one whose connection was lost, the record at the newest mark is asked for. One that was stored at
another time is another record, whatever the clocks of brokers did. Then the marks between tell after which of them the queue
is another one, and from there it goes on at the first record stored after all that we had, or at once behind the mark where
the new broker's clock is behind.

A broker that ends before the mark proves nothing yet: a slave that lags has it later, and a master corrects our pull
(recreated.py). The question is put again before each pull until that is known. A mark that is deleted says nothing, nor does
what a filter left out after it; and a process that begins has no marks: `rocketcrew reconcile` compares what the table has.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import structlog

from ...client.operations import Operations, parse_pull
from ...remoting.errors import BrokerError
from ...remoting.log_keys import queue_keys
from ...remoting.names import TOOLS_GROUP
from ...remoting.queues import MessageQueue
from ...source.searching import exact_offset, pull_request, times_in

MARKS_MAX: Final = 48
"""Of a queue. Where there are more, one goes if the one before it is at most three times as far from the newest as the one
after it: where a queue goes on is not much further back than what it lost. Some 40 are left of a billion records."""
LOOK_TIMEOUT_MS: Final = 6_000

log = structlog.get_logger("rocketcrew.member")


class Mark(NamedTuple):
    """A record that we had: its offset, the last one of an inner batch, and when it was stored."""

    offset: int
    stored_ms: int


class Tails:
    """The marks of one member's queues, and at which address each was there."""

    def __init__(self, operations: Operations, group: str) -> None:
        self._operations = operations
        self._groups = (TOOLS_GROUP, group)
        """In whose name is asked: a pull of the group's own takes an operator's reset along (5.2), but where another one may
        not read, it is better than none."""
        self._marks: dict[MessageQueue, list[Mark]] = {}
        self._sound_at: dict[MessageQueue, str] = {}

    def note(self, mq: MessageQueue, asked: int, newest: tuple[int, int] | None) -> None:
        """The pull at `asked` has brought records, of which this is the last one; not so while the queue is in doubt."""
        if newest is None or mq not in self._sound_at:
            return
        self._cut(mq, asked)
        marks = self._marks.setdefault(mq, [])
        marks.append(Mark(*newest))
        if len(marks) > MARKS_MAX:
            self._marks[mq] = _thinned(marks)

    def in_doubt(self, mq: MessageQueue, address: str) -> bool:
        """Whether it is to be looked for the queue's mark there."""
        if self._sound_at.get(mq) == address:
            return False
        if mq in self._marks:
            self._sound_at.pop(mq, None)
            return True
        self._sound_at[mq] = address
        return False

    def connection_lost(self, address: str) -> None:
        """Who answers there next may be another broker, or have lost its end."""
        for mq in [mq for mq, at in self._sound_at.items() if at == address]:
            del self._sound_at[mq]

    def corrected(self, mq: MessageQueue, offset: int) -> None:
        """Its broker said that the queue ends before our offset: it goes on at this one."""
        self._cut(mq, offset)

    def passed(self, mq: MessageQueue) -> None:
        """The queue goes on where somebody else has said: what was before is not looked for."""
        self._marks.pop(mq, None)

    def keep(self, ours: Collection[MessageQueue]) -> None:
        """Other queues are not ours any more: forget them."""
        for mq in self._marks.keys() - ours:
            del self._marks[mq]
        for mq in self._sound_at.keys() - ours:
            del self._sound_at[mq]

    def _cut(self, mq: MessageQueue, offset: int) -> None:
        marks = self._marks.get(mq, [])
        while marks and marks[-1].offset >= offset:
            marks.pop()
        if not marks:
            self._marks.pop(mq, None)

    async def replaced_from(self, mq: MessageQueue, address: str, asked: int) -> int | None:
        """Where to go on instead of at `asked`; None where nothing below it is known to be replaced. Raises UnreachableError
        and ProtocolError; a broker that refuses to say is asked no more."""
        try:
            return await self._replaced_from(mq, address, asked)
        except BrokerError as error:
            log.warning("tail_not_known", **queue_keys(mq), address=address, error=str(error))
            self._sound_at[mq] = address
            return None

    async def _replaced_from(self, mq: MessageQueue, address: str, asked: int) -> int | None:
        marks = self._marks[mq].copy()
        newest = marks[-1]
        times, end = await self._look(mq, address, newest.offset, newest.offset + 1)
        if not times and end <= newest.offset:
            return None
        found = asked
        if times.get(newest.offset, newest.stored_ms) != newest.stored_ms:
            found = await self._first_other(mq, address, marks)
        if found < asked:
            return found
        self._sound_at[mq] = address
        return None

    async def _first_other(self, mq: MessageQueue, address: str, marks: list[Mark]) -> int:
        """The first record that is another one than we had; the newest mark is."""
        first, last = 0, len(marks) - 1
        while first < last:
            middle = (first + last) // 2
            if await self._is_other(mq, address, marks[middle]):
                last = middle
            else:
                first = middle + 1
        low, high = marks[first - 1].offset + 1 if first else 0, marks[first].offset

        async def times(start: int, stop: int) -> dict[int, int]:
            found, _ = await self._look(mq, address, start, stop)
            return found

        after_ms = marks[-1].stored_ms + 1
        if (await times(high, high + 1)).get(high, 0) < after_ms:
            return low  # its clock is behind
        near = await self._operations.search_offset(mq, after_ms, address=address)
        return await exact_offset(near, low, high, after_ms, times)

    async def _is_other(self, mq: MessageQueue, address: str, mark: Mark) -> bool:
        times, end = await self._look(mq, address, mark.offset, mark.offset + 1)
        return times.get(mark.offset, mark.stored_ms) != mark.stored_ms or end <= mark.offset

    async def _look(self, mq: MessageQueue, address: str, start: int, stop: int) -> tuple[dict[int, int], int]:
        """When the broker's records from `start` on were stored, and where its queue ends."""
        one, other = (pull_request(group, mq, start, stop - start) for group in self._groups)
        try:
            result = parse_pull(await self._operations.pull(address, one, timeout_ms=LOOK_TIMEOUT_MS), address)
        except BrokerError:
            result = parse_pull(await self._operations.pull(address, other, timeout_ms=LOOK_TIMEOUT_MS), address)
        return times_in(result, start, stop), result.header.max_offset


def _thinned(marks: list[Mark]) -> list[Mark]:
    newest, kept = marks[-1], marks[-1:]
    for before, mark in zip(marks[-3::-1], marks[-2:0:-1], strict=True):
        if newest.offset - before.offset > 3 * (newest.offset - kept[-1].offset):
            kept.append(mark)
    return [marks[0], *reversed(kept)]
