"""What the disk cannot read of the log is zeros, and is said; but not when the disk fails as a whole."""

from __future__ import annotations

import errno
from collections import deque

import pytest
from bad_places import CountedStorage

from rocketcrew.broker.readable_log import (
    PIECE_BYTES,
    SAID_MAX,
    TRIED_MAX,
    UNREADABLE_MAX_BYTES,
    ReadableLog,
    UnreadablePlaces,
)
from rocketcrew.broker.storage import DiskFailed, StorageError

CONTENT = bytes(range(1, 251)) * 800  # 200,000 bytes, none of them zero


@pytest.fixture
def log():
    made = CountedStorage().log
    made.append(CONTENT)
    return made


def zeroed(content, begin, end):
    return content[:begin] + bytes(end - begin) + content[end:]


def test_a_bad_place_costs_its_pages(log):
    events = deque()
    readable = ReadableLog(log, UnreadablePlaces(events))
    assert readable.read(5, 100_000) == CONTENT[5:100_005]
    log.bad = range(8_191, 8_193)
    for _ in range(2):
        assert readable.read(0, 300_000) == zeroed(CONTENT, 4_096, 12_288)
        assert readable.read(4_090, 10) == zeroed(CONTENT, 4_096, 12_288)[4_090:4_100]
    assert readable.read(12_288, 10) == CONTENT[12_288:12_298]
    place = {"position": 4_096, "reason": "cannot read: Input/output error"}
    assert list(events) == [("store.place_unreadable", place)]
    log.bad = range(0)
    assert readable.read(0, 300_000) == zeroed(CONTENT, 4_096, 12_288), "as one pass sees it"
    assert ReadableLog(log, UnreadablePlaces(events)).read(0, 300_000) == CONTENT


def test_a_read_ends_after_some_pages_in_vain_and_the_next_one_tries_the_rest(log):
    """What was not tried is not taken for unreadable: the records there would be lost for good."""
    tried = []
    read = log.read

    class Log:
        start, end = 0, len(CONTENT)

        def read(self, position, length_bytes):
            tried.append(position)
            return read(position, length_bytes)

    bad_end = (TRIED_MAX + 3) * PIECE_BYTES
    log.bad = range(bad_end)
    readable = ReadableLog(Log(), UnreadablePlaces(deque()))
    assert readable.read(0, len(CONTENT)) == bytes(TRIED_MAX * PIECE_BYTES)
    assert len(tried) == 1 + TRIED_MAX
    at = TRIED_MAX * PIECE_BYTES
    assert readable.read(at, len(CONTENT)) == zeroed(CONTENT, 0, bad_end)[at:]
    assert readable.read(0, len(CONTENT)) == zeroed(CONTENT, 0, bad_end), "nothing is tried twice"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EACCES])
def test_an_error_that_is_not_of_one_place_is_raised(log, number):
    log.bad, log.error_number = range(10), number
    with pytest.raises(StorageError):
        ReadableLog(log, UnreadablePlaces(deque())).read(0, 100)


def test_a_failed_disk_and_a_log_that_begins_later_are_raised():
    class Log:
        start, end = 1_000, 2_000

        def read(self, position, length_bytes):
            raise DiskFailed("failed") if position >= self.start else StorageError("outside")

    readable = ReadableLog(Log(), UnreadablePlaces(deque()))
    for position in (0, 1_000):
        with pytest.raises(StorageError):
            readable.read(position, 10)


def test_a_disk_that_reads_nothing_is_no_bad_place():
    class Log:
        start, end = 0, 1 << 40

        def read(self, position, length_bytes):
            raise StorageError("cannot read: Input/output error") from OSError(errno.EIO, "Input/output error")

    readable, step = ReadableLog(Log(), UnreadablePlaces(deque())), TRIED_MAX * PIECE_BYTES
    for position in range(0, UNREADABLE_MAX_BYTES, step):
        assert readable.read(position, 1 << 20) == bytes(step)
    with pytest.raises(StorageError):
        readable.read(UNREADABLE_MAX_BYTES, step)


def test_places_are_said_once_each_and_are_bounded():
    events = deque()
    places = UnreadablePlaces(events)
    error = StorageError("cannot read")
    for _ in range(2):
        places.say(0, error)
        places.say(0, error, topic="T", queue_id=0)
    assert [fields.get("topic") for _, fields in events] == [None, "T"]
    for number in range(SAID_MAX):
        places.say((number + 1) * PIECE_BYTES, error)
    places.say(0, error)
    assert len(events) == SAID_MAX + 3
