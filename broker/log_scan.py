"""Reading the commit log record by record, and past what cannot be read (ST/CommitLog.checkMessageAndReturnSize).

From a position at which something begins, the log holds one of these:

- a record: its size fits into its segment, its parts into its size, its body has its CRC, it knows its own position, and the
  disk can read all of it (where a ReadableLog gives zeros for properties, the CRC, which is the body's, says nothing);
- a BLANK, which fills a segment that has no room for the next record: the log goes on after it;
- damage: anything else, when a record follows it somewhere. The next record is the first place at which the magic, the own
  position and the CRC agree, and which the caller believes (its queue offset must rise);
- the tail, when no record follows:
  - what the disk cannot read, up to the end of that: damage;
  - zeros alone: nothing was written there (a segment is made at its full size);
  - a front of one record, all of it in agreement: the write that a kill cut short. Nobody was answered for it;
  - anything else: damage.

Nothing here changes the log. The reader decides what to do about each.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from enum import Enum
from typing import NamedTuple, Protocol

from ..remoting.codes import SYSFLAG_BORN_HOST_V6, SYSFLAG_STORE_HOST_V6
from ..remoting.errors import ProtocolError
from ..remoting.stored import (
    BLANK_MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_MIN_BYTES,
    StoredMessage,
    decode_message,
    is_inner_batch,
)
from .log_writing import BLANK_MIN_BYTES
from .readable_log import ReadableLog

CHUNK_BYTES = 1 << 20
_MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
_MAGIC_BYTES = 4
_OWN_POSITION_AT = 28
_BODY_LENGTH_AT = 84  # with two IPv4 hosts; each IPv6 one puts it 12 bytes further
_HEAD_MAX_BYTES = _BODY_LENGTH_AT + 2 * 12 + 4
_BEHIND_BODY_MAX_BYTES = 2 * (2 + 32_767)  # topic and properties, with their lengths


def _body_length_at(head: bytes) -> int:
    sysflag = int.from_bytes(head[36:40], "big")
    return _BODY_LENGTH_AT + 12 * bool(sysflag & SYSFLAG_BORN_HOST_V6) + 12 * bool(sysflag & SYSFLAG_STORE_HOST_V6)


class Kind(Enum):
    RECORD = "record"
    DAMAGE = "damage"
    TORN = "torn"  # the front of one record at the log's end
    UNWRITTEN = "unwritten"  # zeros up to the log's end


class Part(NamedTuple):
    """What is at [position, position + length_bytes) of the log; `message` only for a record."""

    kind: Kind
    position: int
    length_bytes: int
    message: StoredMessage | None = None


Believed = Callable[[StoredMessage], bool]


class Log(Protocol):
    """What reading it needs of a StoredFile."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def content_end(self) -> int: ...

    def read(self, position: int, length_bytes: int) -> bytes:
        """It may end early, but not in the first pages, behind what cannot be read: no record reaches beyond that."""
        ...

    def segment_starts(self) -> list[int]: ...


class LogScan:
    """One pass over a commit log, from a position at which a record begins (or the log ends)."""

    def __init__(self, log: Log, begin: int, believed: Believed) -> None:
        """`believed` is asked only about the first record after damage."""
        self._log = log
        self._believed = believed
        self._end = log.end
        self._content = log.content_end
        self._starts = log.segment_starts()
        self._chunk = b""
        self._chunk_at = begin
        self.position = begin

    def __iter__(self) -> Iterator[Part]:
        return (part for part in self.steps() if part is not None)

    def steps(self) -> Iterator[Part | None]:
        """The parts, and None after each window of a long search: a reader that shares a loop can pause there."""
        while self.position < self._end:
            position = self.position
            blank = self._blank(position)
            if blank:
                self.position += blank
                continue
            part = self._record(position)
            if part is None:
                part = yield from self._unreadable(position)
            self.position = part.position + part.length_bytes
            yield part

    def _bytes(self, position: int, length_bytes: int) -> tuple[bytes, int]:
        """A buffer and where in it `position` is; it has `length_bytes` from there, fewer where a read ends early."""
        at = position - self._chunk_at
        if at < 0 or (at + length_bytes > len(self._chunk) and self._chunk_at + len(self._chunk) < self._end):
            self._chunk, self._chunk_at = self._log.read(position, max(length_bytes, CHUNK_BYTES)), position
            at = 0
        return self._chunk, at

    def _segment_end(self, position: int) -> int:
        index = bisect_right(self._starts, position)
        return self._starts[index] if index < len(self._starts) else self._end

    def _head(self, position: int) -> tuple[int, int]:
        """Size and magic at `position`; (0, 0) where there is no room for both."""
        buffer, at = self._bytes(position, 8)
        if len(buffer) - at < 8:
            return 0, 0
        size = int.from_bytes(buffer[at : at + 4], "big", signed=True)
        return size, int.from_bytes(buffer[at + 4 : at + 8], "big", signed=True)

    def _blank(self, position: int) -> int:
        """Size of the BLANK at `position`, 0 when there is none."""
        size, magic = self._head(position)
        room = self._segment_end(position) - position
        if room < BLANK_MIN_BYTES and position + room < self._end and not any(self._log.read(position, room)):
            return room  # where there was no room for a BLANK (log_writing.blank)
        return size if magic == BLANK_MAGIC and BLANK_MIN_BYTES <= size <= room else 0

    def _record(self, position: int) -> Part | None:
        size, magic = self._head(position)
        if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_MIN_BYTES <= size <= self._segment_end(position) - position:
            return None
        if size > CHUNK_BYTES and not self._has_parts_of(position, size):
            return None
        buffer, at = self._bytes(position, size)
        if len(buffer) - at < size or not self._could_read(position, size):
            return None
        try:
            message = decode_message(buffer, at, at + size)
        except ProtocolError:
            return None
        if message.physical_offset != position or is_inner_batch(message.sysflag):  # batch queues are not served
            return None
        return Part(Kind.RECORD, position, size, message)

    def _could_read(self, position: int, size: int) -> bool:
        return not isinstance(self._log, ReadableLog) or self._log.could_read(position, size)

    def _has_parts_of(self, position: int, size: int) -> bool:
        """Whether the length of the body explains the size: a damaged one may be that of a whole segment."""
        head = self._log.read(position, _HEAD_MAX_BYTES)
        body_at = _body_length_at(head)
        rest = size - body_at - 4 - int.from_bytes(head[body_at : body_at + 4], "big", signed=True)
        return 0 <= rest <= _BEHIND_BODY_MAX_BYTES

    def _unreadable(self, position: int) -> Generator[None, None, Part]:
        following = yield from self._next_record(position + 1)
        if following is not None:
            return Part(Kind.DAMAGE, position, following - position)
        if isinstance(self._log, ReadableLog) and (behind := self._log.behind_unreadable(position)) > position:
            # Nobody knows where the record ends that is there; it may be with zeros.
            return Part(Kind.DAMAGE, position, max(behind, self._content) - position)
        content_end = yield from self._content_end(position)
        if content_end == position:
            return Part(Kind.UNWRITTEN, position, self._end - position)
        if (yield from self._is_front(position, content_end)):
            return Part(Kind.TORN, position, self._end - position)
        size, magic = self._head(position)
        if magic in (MAGIC_V1, MAGIC_V2) and content_end < position + size <= self._segment_end(position):
            content_end = position + size  # a record may end with zeros
        return Part(Kind.DAMAGE, position, content_end - position)

    def _next_record(self, position: int) -> Generator[None, None, int | None]:
        """Where the first record that can be believed begins, at or after `position`."""
        at = position
        while at < self._content:
            window = self._log.read(at, CHUNK_BYTES)
            for match in _MAGIC.finditer(window):
                start = at + match.start() - _MAGIC_BYTES
                if start >= position and self._own_position(start) == start:
                    part = self._record(start)
                    if part is not None and part.message is not None and self._believed(part.message):
                        return start
            at += max(len(window) - (_MAGIC_BYTES - 1), 1)
            yield
        return None

    def _own_position(self, position: int) -> int:
        return int.from_bytes(self._log.read(position + _OWN_POSITION_AT, 8), "big") if self._room(position, 36) else -1

    def _room(self, position: int, length_bytes: int) -> bool:
        return position + length_bytes <= self._end

    def _content_end(self, position: int) -> Generator[None, None, int]:
        """Behind the last byte that is not zero; `position` when all are."""
        found = at = position
        while at < self._content:
            window = self._log.read(at, CHUNK_BYTES)
            kept = len(window.rstrip(b"\0"))
            if kept:
                found = at + kept
            at += len(window)
            yield
        return found

    def _is_front(self, position: int, content_end: int) -> Generator[None, None, bool]:
        """Whether what is there can be the beginning of one record whose end was never written."""
        known_bytes = content_end - position
        known = self._log.read(position, min(known_bytes, _HEAD_MAX_BYTES))
        if len(known) < 4:
            return True
        size = int.from_bytes(known[:4], "big", signed=True)
        if size < RECORD_MIN_BYTES or known_bytes >= size or position + size == self._end:
            return False
        if len(known) >= 8 and _MAGIC.match(known, 4) is None:
            return False
        if len(known) >= _OWN_POSITION_AT + 8 and int.from_bytes(known[28:36], "big") != position:
            return False
        if len(known) < 40:
            return True
        body_at = _body_length_at(known)
        if len(known) < body_at + 4:
            return True
        body_bytes = int.from_bytes(known[body_at : body_at + 4], "big", signed=True)
        if not 0 <= body_bytes <= size - body_at - 4 - 3:
            return False
        if known_bytes < body_at + 4 + body_bytes:
            return True
        crc = yield from self._crc(position + body_at + 4, body_bytes)
        return crc == int.from_bytes(known[8:12], "big")

    def _crc(self, position: int, length_bytes: int) -> Generator[None, None, int]:
        """That of a body, as `crc32_body`."""
        crc, end = 0, position + length_bytes
        while position < end:
            window = self._log.read(position, min(CHUNK_BYTES, end - position))
            crc = zlib.crc32(window, crc)
            position += len(window)
            yield
        return crc & 0x7FFFFFFF


__all__ = ["Kind", "Log", "LogScan", "Part"]
