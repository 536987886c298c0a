"""Places of the commit log that are given up, so that who reads a queue passes over the messages there.

A bad sector is not read tomorrow either, and a reader that waits for it never gets what is behind it. But an outage of the
disk gives the same errors, and after it all can be read again. So a place is given up when it could not be read for
PATIENCE_STEPS, and cannot be read now, while the disk reads other places of the log.
"""

from __future__ import annotations

from collections.abc import Iterable

from .consume_queue import Entry
from .readable_log import PIECE_BYTES, UnreadablePlaces, can_read, pieces_of, reads_elsewhere
from .record_heads import in_log
from .storage import StorageError, StoredFile

PATIENCE_STEPS = 10  # of `rest`: seconds
FORGET_STEPS = 60  # then a place that did not fail meanwhile is waited for again


class LostPlaces:
    """Since when they cannot be read."""

    def __init__(self, log: StoredFile, places: UnreadablePlaces) -> None:
        """`places`: where what cannot be read is said."""
        self._log = log
        self._places = places
        self._failed: dict[
            int, tuple[int, int]
        ] = {}  # number of a piece -> the steps at which reads failed: first, last
        self._steps = 0

    def rest(self) -> None:
        """Time passed."""
        self._steps += 1
        if self._steps % FORGET_STEPS == 0:
            oldest = self._steps - FORGET_STEPS
            self._failed = {number: steps for number, steps in self._failed.items() if steps[1] > oldest}

    def has(self, position: int, length_bytes: int, error: StorageError) -> bool:
        """Whether what is there, of which a read just gave `error`, is given up."""
        pieces = pieces_of(position, length_bytes)
        number = next((number for number in pieces if number in self._failed), None)
        if number is None:
            number = next((number for number in pieces if not can_read(self._log, number)), None)
        if number is None:  # it can be read now
            return False
        first, _ = self._failed.get(number, (self._steps, 0))
        self._failed[number] = first, self._steps
        self._places.say(number * PIECE_BYTES, error)
        return self._steps - first >= PATIENCE_STEPS and reads_elsewhere(self._log, self._failed)


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
