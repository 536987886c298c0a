"""The commit log as far as the disk can read it, for those who read all of it beside everything else.

What cannot be read reads as zeros, page by page. So a scan takes it for damage and goes on with the first record after it: a
bad sector costs the records in it, and keeps nobody from the rest of the log. Each place is logged once.

An error that is not of one place is raised, as is one beyond UNREADABLE_MAX_BYTES: then the disk is gone, or the process has
no descriptor left, and zeros would be a lie about a log that is whole. A shorter outage gives the errors of bad sectors. So
who acts on zeros asks first (`confirm`) whether they are there still, and whether the disk reads other places. Where more
than one in ELSEWHERE_BAD_SHARE of those fails, nobody can tell, and nothing is given up for as long as that lasts.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import count

from .storage import DiskFailed, StorageError, StoredFile

PIECE_BYTES = 4_096  # a page: what a disk refuses at least
TRIED_MAX = 8  # pieces that fail in one read, which ends there: each may take the disk seconds
UNREADABLE_MAX_BYTES = 64 << 20
SAID_MAX = 1_000  # places; then those that are still there are logged once more
ELSEWHERE = 64  # places all over the log that tell an outage from a bad sector
ELSEWHERE_BAD_SHARE = 8  # one in so many may be bad too
SHIFT = 7_919  # a prime: from one question to the next, the places move by so many pieces
_questions = count()  # that were asked of the disk: whose log it was does not matter

Events = deque[tuple[str, dict[str, object]]]


class UnreadablePlaces:
    """Those that were logged."""

    def __init__(self, events: Events) -> None:
        """`events`: where what the log should say is put."""
        self._events = events
        self._said: set[tuple[object, ...]] = set()

    def say(self, position: int, error: StorageError, **file: object) -> None:
        """A place in the commit log, or in the queue's file that `file` names."""
        place = position, *file.values()
        if place in self._said:
            return
        if len(self._said) >= SAID_MAX:
            self._said.clear()
        self._said.add(place)
        self._events.append(("store.place_unreadable", {**file, "position": position, "reason": str(error)}))


class ReadableLog:
    """For one pass: the next one tries anew what could not be read."""

    def __init__(self, log: StoredFile, places: UnreadablePlaces) -> None:
        self._log = log
        self._places = places
        self.unreadable: set[int] = set()
        """Numbers of the pieces that could not be read so far."""

    @property
    def start(self) -> int:
        return self._log.start

    @property
    def end(self) -> int:
        return self._log.end

    @property
    def content_end(self) -> int:
        return self._log.content_end

    def segment_starts(self) -> list[int]:
        return self._log.segment_starts()

    def read(self, position: int, length_bytes: int) -> bytes:
        """As StoredFile.read, but fewer bytes also after TRIED_MAX pieces that failed: the rest was not tried. Raises
        StorageError when not only a place cannot be read."""
        if position < self._log.start:  # retention was faster, and that is no place of the disk
            return self._log.read(position, length_bytes)
        if self.could_read(position, length_bytes):
            try:
                return self._log.read(position, length_bytes)
            except StorageError as error:
                if not is_of_a_place(error):
                    raise
        end = min(position + length_bytes, self._log.end)
        return b"".join(self._pieces(position, end))

    def could_read(self, position: int, length_bytes: int) -> bool:
        """Whether nothing in that range was found unreadable so far."""
        return not self.unreadable or self.unreadable.isdisjoint(pieces_of(position, length_bytes))

    def behind_unreadable(self, position: int) -> int:
        """Where the last piece ends that could not be read at or after `position`; `position` when all could."""
        last = max(self.unreadable, default=-1)
        return max(position, min((last + 1) * PIECE_BYTES, self.end))

    def confirm(self) -> None:
        """Raise StorageError when something reads again that could not be read, or nothing else does now."""
        for _ in self.confirming(max(len(self.unreadable), 1)):
            pass

    def confirming(self, pieces_max: int = TRIED_MAX, known: Collection[int] = frozenset()) -> Iterator[None]:
        """As `confirm`, of all but the `known` pieces; so many are asked for at a time, and whoever shares a loop can pause
        in between."""
        fresh = self.unreadable.difference(known)
        around = [number for number in sorted(fresh) if not {number - 1, number + 1} <= fresh]
        for at in range(0, len(around), pieces_max):
            if at:
                yield
            kept = [number for number in around[at : at + pieces_max] if number * PIECE_BYTES >= self._log.start]
            if is_outage(self._log, kept, self.unreadable):
                raise StorageError(
                    "the disk reads hardly anything of the commit log now, or again what it just could not. Nothing was "
                    "changed: look at the disk (dmesg), then try again"
                )

    def _pieces(self, position: int, end: int) -> list[bytes]:
        parts: list[bytes] = []
        tried = 0  # in vain
        while position < end and tried < TRIED_MAX:
            number = position // PIECE_BYTES
            length_bytes = min((number + 1) * PIECE_BYTES, end) - position
            part = None
            if number not in self.unreadable:
                part = self._piece(number, position, length_bytes)
                if part is None:
                    tried += 1
                    self.unreadable.add(number)
            parts.append(bytes(length_bytes) if part is None else part)
            position += length_bytes
        return parts

    def _piece(self, number: int, position: int, length_bytes: int) -> bytes | None:
        """None when it cannot be read."""
        try:
            return self._log.read(position, length_bytes)
        except StorageError as error:
            if not is_of_a_place(error) or len(self.unreadable) * PIECE_BYTES >= UNREADABLE_MAX_BYTES:
                raise
            if number - 1 not in self.unreadable:
                self._places.say(number * PIECE_BYTES, error)
            return None


def pieces_of(position: int, length_bytes: int) -> range:
    """The numbers of the pieces that have something of it."""
    return range(position // PIECE_BYTES, -(-(position + length_bytes) // PIECE_BYTES))


def is_of_a_place(error: StorageError) -> bool:
    """Whether other places may be read for all that. Where no system call failed, as with a file that is shorter than it
    was, no disk refused a place."""
    cause = error.__cause__
    return not isinstance(error, DiskFailed) and isinstance(cause, OSError) and cause.errno == errno.EIO


def is_bad_place(error: StorageError, log: StoredFile) -> bool:
    """Whether a place of some file cannot be read, while the disk reads the log."""
    return is_of_a_place(error) and reads_elsewhere(log)


def reads_elsewhere(log: StoredFile, bad: Collection[int] = ()) -> bool:
    """Whether the disk reads the log now beside the `bad` pieces: at places that are far apart, and others each time, as what
    was just written or read is in memory, and says nothing of the disk."""
    first, last = log.start // PIECE_BYTES, (log.end - 1) // PIECE_BYTES
    step = max((last - first) // ELSEWHERE, 1)
    samples = range(first + next(_questions) * SHIFT % step, last + 1, step)
    others = [number for number in samples if number not in bad]
    if 2 * len(others) < len(samples):  # what reads now may be in memory
        return False
    failed = 0
    for number in others:
        failed += not can_read(log, number)
        if failed * ELSEWHERE_BAD_SHARE > len(others):
            return False
    return bool(others)


def is_outage(log: StoredFile, numbers: Iterable[int], bad: Collection[int]) -> bool:
    """Whether these pieces, of the `bad` ones, are no bad sectors: one reads now, or the disk does not read elsewhere. That
    is asked before and after: an outage that ends between the two looks would fail here and read there."""
    return (
        not reads_elsewhere(log, bad)
        or any(can_read(log, number) for number in numbers)
        or not reads_elsewhere(log, bad)
    )


def can_read(log: StoredFile, number: int) -> bool:
    """Whether a piece can be read now."""
    try:
        log.read(max(number * PIECE_BYTES, log.start), PIECE_BYTES)
    except StorageError:
        return False
    return True


__all__ = [
    "PIECE_BYTES",
    "Events",
    "ReadableLog",
    "UnreadablePlaces",
    "can_read",
    "is_bad_place",
    "is_of_a_place",
    "is_outage",
    "pieces_of",
    "reads_elsewhere",
]
