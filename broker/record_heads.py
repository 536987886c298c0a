"""Which record one is, by its head: read without the rest of it, and compared with what a queue's entry says.

No CRC covers a head, and a body may hold bytes that look like one. So what is read here is believed only where an entry says
the same.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from ..remoting.codes import SYSFLAG_BORN_HOST_V6, SYSFLAG_STORE_HOST_V6
from ..remoting.stored import HOSTS_V6, MAGIC_V1, MAGIC_V2, RECORD_MIN_BYTES
from .log_scan import Log
from .storage import StorageError

HEAD_BYTES = 76  # up to and with the store time, also behind an IPv6 born host; every record has that many

# What says which record one is: size, magic, queue id, queue offset, own position, sysFlag.
_IDENTITY = Struct(">ii4xi4xqqi")
_BODY_AT = {0: 88, SYSFLAG_BORN_HOST_V6: 100, SYSFLAG_STORE_HOST_V6: 100, HOSTS_V6: 112}

Taken = tuple[int, int, int]  # queue offset, position, size


class Named(NamedTuple):
    """What a head says that its record is."""

    topic: str
    queue_id: int
    offset: int
    size: int


def in_log(log: Log, position: int, length_bytes: int) -> bool:
    return log.start <= position and length_bytes > 0 and position + length_bytes <= log.end


def named_at(log: Log, position: int) -> Named | None:
    """What begins at `position`, None when that is no record. Costs the same whatever the bytes there say."""
    if not in_log(log, position, RECORD_MIN_BYTES):
        return None
    head = log.read(position, _BODY_AT[HOSTS_V6])
    size, magic, queue_id, offset, said_position, sysflag = _IDENTITY.unpack_from(head)
    if magic not in (MAGIC_V1, MAGIC_V2) or said_position != position or not in_log(log, position, size):
        return None
    body_at = _BODY_AT[sysflag & HOSTS_V6]
    topic_at = body_at + int.from_bytes(head[body_at - 4 : body_at], "big")
    if topic_at >= size:
        return None
    name_at = topic_at + (1 if magic == MAGIC_V1 else 2)
    name_bytes = int.from_bytes(log.read(position + topic_at, name_at - topic_at), "big")
    if name_at + name_bytes > size:
        return None
    return Named(log.read(position + name_at, name_bytes).decode(errors="replace"), queue_id, offset, size)


def is_head(log: Log, queue_id: int, taken: Taken) -> bool:
    """Whether the head of the record that an entry names is there; the topic is not looked at."""
    offset, position, size = taken
    if not in_log(log, position, HEAD_BYTES):
        return False
    said_size, magic, said_id, said_offset, said_position, _ = _IDENTITY.unpack(log.read(position, _IDENTITY.size))
    said = said_size, said_id, said_offset, said_position
    return magic in (MAGIC_V1, MAGIC_V2) and said == (size, queue_id, offset, position)


def are_records(body: bytes, topic: str, queue_id: int, taken: list[Taken]) -> bool:
    """Whether `body` is the records that entries of a queue name, one after the other."""
    name = topic.encode()
    topics = {MAGIC_V1: bytes([len(name) & 0xFF]) + name, MAGIC_V2: len(name).to_bytes(2, "big") + name}
    at = 0
    for offset, position, size in taken:
        if size < RECORD_MIN_BYTES:
            return False
        said_size, magic, said_id, said_offset, said_position, sysflag = _IDENTITY.unpack_from(body, at)
        said_topic = topics.get(magic)
        body_at = _BODY_AT[sysflag & HOSTS_V6] + at
        topic_at = body_at + int.from_bytes(body[body_at - 4 : body_at], "big")
        if (
            (said_size, said_id, said_offset, said_position) != (size, queue_id, offset, position)
            or said_topic is None
            or body[topic_at : topic_at + len(said_topic)] != said_topic
        ):
            return False
        at += size
    return True


def stored_ms_at(log: Log, position: int) -> int:
    """Store time of the record at `position`."""
    head = log.read(position, HEAD_BYTES)
    born_host_is_v6 = int.from_bytes(head[36:40], "big") & SYSFLAG_BORN_HOST_V6
    return int.from_bytes(head[68:76] if born_host_is_v6 else head[56:64], "big")


def segment_stored_ms(log: Log, start: int) -> int | None:
    """Store time of a segment's first record; None when it cannot be read."""
    if not in_log(log, start, HEAD_BYTES):
        return None
    try:
        _, magic, _, _, said_position, _ = _IDENTITY.unpack(log.read(start, _IDENTITY.size))
        return stored_ms_at(log, start) if magic in (MAGIC_V1, MAGIC_V2) and said_position == start else None
    except StorageError:
        return None


__all__ = [
    "HEAD_BYTES",
    "Named",
    "Taken",
    "are_records",
    "in_log",
    "is_head",
    "named_at",
    "segment_stored_ms",
    "stored_ms_at",
]
