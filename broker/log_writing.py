"""How messages come to the end of the commit log: one write for all that are put together, in one segment."""

from __future__ import annotations

from struct import Struct

from ..remoting.errors import UsageError
from ..remoting.stored import BLANK_MAGIC, StoredMessage, encode_message
from .storage import StoredFile

BLANK_MIN_BYTES = 8
_BLANK = Struct(">ii")


def blank(room: int) -> bytes:
    """What fills a segment's end; where there is no room for a BLANK, zeros, which are read as one."""
    return _BLANK.pack(room, BLANK_MAGIC) if room >= BLANK_MIN_BYTES else bytes(room)


def append_messages(log: StoredFile, messages: list[StoredMessage]) -> list[bytes]:
    """Write the records of messages, one after the other, and return them; each message gets its position. In a segment that
    has no room for all of them they are the first of the next one. Raises StorageError, UsageError: then none is there."""
    records = _encoded_at(messages, log.end)
    length_bytes = sum(map(len, records))
    if log.room < length_bytes + BLANK_MIN_BYTES:
        if length_bytes + BLANK_MIN_BYTES > log.segment_bytes:
            raise UsageError(
                f"{length_bytes} bytes to be stored at once do not fit into a segment of {log.segment_bytes} "
                "(mapped_file_size_commit_log, or what the log has already)"
            )
        if log.room > 0:
            log.roll(blank(log.room))
        records = _encoded_at(messages, log.end)
    log.append(records[0] if len(records) == 1 else b"".join(records))
    return records


def _encoded_at(messages: list[StoredMessage], position: int) -> list[bytes]:
    """The records of messages that are stored from `position` of the log on, which is noted in them."""
    records: list[bytes] = []
    for message in messages:
        message.physical_offset = position
        records.append(encode_message(message))
        position += len(records[-1])
    return records


__all__ = ["BLANK_MIN_BYTES", "append_messages", "blank"]
