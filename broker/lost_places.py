"""Places of the commit log that are given up, so that who reads a queue passes over the messages there.

A bad sector is not read tomorrow either, and a reader that waits for it never gets what is behind it. But an outage of the
disk gives the same errors, and after it all can be read again. So a place is given up when it could not be read for
PATIENCE_STEPS, and cannot be read now, while the disk reads other places of the log.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..remoting.stored import RECORD_MIN_BYTES
from .consume_queue import ConsumeQueue, Entry
from .fetched import Fetched, GetStatus
from .readable_log import PIECE_BYTES, Events, UnreadablePlaces, can_read, is_outage, pieces_of
from .record_heads import in_log
from .storage import StorageError, StoredFile
from .wanted import Wanted

PATIENCE_STEPS = 10  # of `rest`: seconds
TOLD_MAX = 100_000  # records; then those that are still passed over are said once more
FORGET_STEPS = 60  # then a place that did not fail meanwhile is waited for again


class LostPlaces:
    """Since when they cannot be read."""

    def __init__(self, log: StoredFile, places: UnreadablePlaces, events: Events) -> None:
        """`places`: where what cannot be read is said; `events`: where it is said what a reader did not get."""
        self._log = log
        self._places = places
        self._events = events
        self.passed_over = 0  # messages
        self._told: set[int] = set()  # positions of their records
        self._fields: dict[str, object] = {}  # of the event that was said last
        self._last = self._count = 0  # queue offset of the last message that is in it, and how many are
        self._failed: dict[
            int, tuple[int, int]
        ] = {}  # number of a piece -> the steps at which reads failed: first, last
        self._given_up: dict[int, tuple[int, str]] = {}  # number of a piece -> the last step at which it was, and why
        self._steps = 0

    def rest(self) -> None:
        """Time passed."""
        self._steps += 1
        if self._steps % FORGET_STEPS == 0:
            oldest = self._steps - FORGET_STEPS
            self._failed = {number: steps for number, steps in self._failed.items() if steps[1] > oldest}
            self._given_up = {number: told for number, told in self._given_up.items() if told[0] > oldest}

    def has(self, position: int, length_bytes: int, error: StorageError) -> bool:
        """Whether what is there, of which a read just gave `error`, is given up."""
        number = self._first_unreadable(pieces_of(position, length_bytes))
        if number is None:
            return False
        # Bad pages come in runs, and readers would wait for each of them.
        before = self._failed.get(number - 1) if number - 1 in self._given_up else None
        first, _ = self._failed.get(number) or before or (self._steps, 0)
        self._failed[number] = first, self._steps
        self._places.say(number * PIECE_BYTES, error)
        if self._steps - first < PATIENCE_STEPS or is_outage(self._log, [number], self._failed):
            return False
        self._given_up[number] = self._steps, str(error)
        return True

    def _first_unreadable(self, pieces: Iterable[int]) -> int | None:
        """None when all can be read now. Those behind it are not tried: each may take the disk seconds."""
        for number in pieces:
            if not can_read(self._log, number):
                return number
            self._failed.pop(number, None)
            self._given_up.pop(number, None)
        return None

    def passed(self, queue: ConsumeQueue, offset: int, wanted: Wanted) -> Fetched | None:
        """What a pull gets that comes to a place which was given up in the last PATIENCE_STEPS: nothing, and the next offset,
        without a read of the log. None elsewhere."""
        if not self._given_up:
            return None
        position, size, code = queue.entry(offset)
        if size < RECORD_MIN_BYTES:  # a filler, whose position is another message's, or damage
            return None
        told = [self._given_up[number] for number in pieces_of(position, size) if number in self._given_up]
        reason = next((reason for step, reason in told if self._steps - step < PATIENCE_STEPS), None)
        if reason is None:
            return None
        if wanted.codes is None or code in wanted.codes:
            self._say(queue, offset, position, reason)
        return Fetched(GetStatus.NO_MATCHED_MESSAGE, offset + 1, queue.min_offset, queue.max_offset)

    def _say(self, queue: ConsumeQueue, offset: int, position: int, reason: str) -> None:
        """Each record once, and those of a queue that follow each other in one event: a bad page has dozens."""
        if position in self._told:
            return
        if len(self._told) >= TOLD_MAX:
            self._told.clear()
        self._told.add(position)
        self.passed_over += 1
        place: dict[str, object] = {"topic": queue.topic, "queue_id": queue.queue_id}
        is_newest = bool(self._events) and self._events[-1][1] is self._fields
        if not is_newest or not place.items() <= self._fields.items() or offset <= self._last:
            self._count = 0
            self._fields = {**place, "queue_offset": offset, "position": position, "reason": reason}
            self._events.append(("store.message_passed_over", self._fields))
        self._last, self._count = offset, self._count + 1
        self._fields |= {"last_offset": offset, "messages": self._count}


def first_unreadable(log: StoredFile, entries: Iterable[tuple[int, Entry]], bytes_max: int) -> tuple[int, Entry] | None:
    """The first of these queue offsets and entries whose record cannot be read; or that behind which so many bytes could:
    then with the next offset. None when all can."""
    for offset, entry in entries:
        position, size, _ = entry
        if not in_log(log, position, size):
            continue
        try:
            log.read(position, size)
        except StorageError:
            return offset, entry
        bytes_max -= size
        if bytes_max < 0:
            return offset + 1, entry
    return None


__all__ = ["PATIENCE_STEPS", "LostPlaces", "first_unreadable"]
