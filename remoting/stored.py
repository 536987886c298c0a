"""Stored messages: the commit log's format, which is also the body of pull, view and query answers.

Sources: CO/message/{MessageDecoder,MessageVersion,MessageExt}.java, ST/MessageExtEncoder.java.

    0 size | 4 magic | 8 body crc | 12 queue id | 16 flag | 20 queue offset (8) | 28 physical offset (8) | 36 sysFlag
    40 born timestamp (8) | 48 born host (8, or 20 with IPv6) | store timestamp (8) | store host (8 or 20)
    reconsume times | prepared transaction offset (8) | body length, body | topic length (1 byte in V1, 2 in V2), topic
    properties length (2), properties

Rules:
- Two speeds. `walk` reads size, magic, queue offset and sysFlag of each record and nothing else (the supervisor's path);
  `record_info` finds the parts of one record without copying any; `decode_message` builds the whole thing.
- The crc is over the body as stored (compressed), 31 bits.
- All numbers are signed, as Java reads them, and every length is checked against the record, the record against the
  buffer. A record whose parts do not end where its size says is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from .batch import count_batch, decode_batch
from .codes import (
    SYSFLAG_BORN_HOST_V6,
    SYSFLAG_COMPRESSED,
    SYSFLAG_COMPRESSION_MASK,
    SYSFLAG_INNER_BATCH,
    SYSFLAG_NEED_UNWRAP,
    SYSFLAG_STORE_HOST_V6,
)
from .compression import decompress
from .errors import ProtocolError, UsageError
from .ids import host_bytes, host_text, message_id, offset_message_id, parse_offset_message_id
from .properties import PROPERTIES_MAX_BYTES, decode_properties

__all__ = [
    "BLANK_MAGIC",
    "MAGIC_V1",
    "MAGIC_V2",
    "RECORD_MIN_BYTES",
    "RecordInfo",
    "StoredMessage",
    "crc32_body",
    "decode_message",
    "decode_messages",
    "encode_message",
    "first_offset_of",
    "is_inner_batch",
    "message_id",
    "offset_message_id",
    "parse_offset_message_id",
    "record_info",
    "split_inner_batch",
    "store_timestamp_of",
    "walk",
]

MAGIC_V1 = -626843481  # 0xDAA320A7
MAGIC_V2 = -626843477  # 0xDAA320AB: two bytes of topic length
BLANK_MAGIC = -875286124  # 0xCBD43194: end of a commit log file, never part of an answer
RECORD_MIN_BYTES = 91
_MAGICS = (MAGIC_V1 & 0xFFFFFFFF, MAGIC_V2 & 0xFFFFFFFF)
TOPIC_V1_MAX_BYTES = 127

Buffer = bytes | bytearray | memoryview

_WALK = Struct(">ii12xq8xi")
_ALIKE = "q12xq8xi"
"""As `_WALK`, size and magic as one number."""
ALIKE_MIN = 8
"""Of fewer records each is looked at: most often they are the end of a queue, whose layout nobody needs again."""
ALIKE_MAX = 1_024
"""Of more the layout would take more than 100 KiB. Brokers give fewer."""
ALIKE_LAYOUTS_MAX = 64
"""For so many sizes and numbers of records the layout is kept."""
_OFFSET_AT = 20
_SYSFLAG_AT = 36
HOSTS_V6 = SYSFLAG_BORN_HOST_V6 | SYSFLAG_STORE_HOST_V6
SYSFLAG_LOW_BYTE = 39
"""Position in a record of the sysFlag byte with the inner-batch bit."""
_UNWRAP = SYSFLAG_NEED_UNWRAP | SYSFLAG_INNER_BATCH
_INT8 = Struct(">b")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_STORED_AT = 56
_STORED_AT_V6 = 68
"""Position of the store timestamp, after the born host with its 4 or 16 bytes of address."""
# The part before the body, by the two bits that make hosts longer.
_FIXED = {
    born | store: Struct(f">iiiiiqqiq{16 if born else 4}siq{16 if store else 4}siiqi")
    for born in (0, SYSFLAG_BORN_HOST_V6)
    for store in (0, SYSFLAG_STORE_HOST_V6)
}


class RecordInfo(NamedTuple):
    """The numbers of one record and where its parts stand; the `_start` and `end` positions are those of the buffer."""

    queue_offset: int
    physical_offset: int
    sysflag: int
    store_timestamp_ms: int
    reconsume_times: int
    queue_id: int
    flag: int
    born_timestamp_ms: int
    prepared_transaction_offset: int
    body_crc: int
    magic: int
    born_address: bytes
    born_port: int
    store_address: bytes
    store_port: int
    body_start: int
    body_len: int
    topic_start: int
    topic_len: int
    properties_start: int
    properties_len: int
    end: int


def walk(buf: Buffer, start: int = 0, end: int | None = None) -> tuple[list[int], list[int]]:
    """Positions and queue offsets of the records in `buf[start:end]`, which must hold whole records and nothing else.

    `positions` has one entry more than there are records: the end. A record that is an inner batch counts as one unit,
    and its queue offset here is that of the *last* message in it (its first is `record_info(...).queue_offset`).
    Raises ProtocolError naming the byte at which no record can begin.
    """
    if end is None:
        end = len(buf)
    elif not 0 <= start <= end <= len(buf):
        raise UsageError(f"bytes {start}..{end} do not lie in a buffer of {len(buf)}")
    if end - start >= ALIKE_MIN * RECORD_MIN_BYTES and (alike := _walk_alike(buf, start, end)) is not None:
        return alike
    positions: list[int] = []
    offsets: list[int] = []
    unpack = _WALK.unpack_from
    last = end - RECORD_MIN_BYTES
    position = start
    while position <= last:
        size, magic, offset, sysflag = unpack(buf, position)
        if sysflag & _UNWRAP or size < RECORD_MIN_BYTES or (magic != MAGIC_V1 and magic != MAGIC_V2):
            offset = _walk_unusual(buf, position, end, size, magic, offset, sysflag)
        positions.append(position)
        offsets.append(offset)
        position += size
    if position != end:
        raise _not_a_record(positions, position, end)
    positions.append(end)
    return positions, offsets


def _walk_alike(buf: Buffer, start: int, end: int) -> tuple[list[int], list[int]] | None:
    """`walk` where all records have the size of the first one, as those of one producer often have: one call for all of
    them. None = they have not, or one of them is to be looked at."""
    size: int = _INT32.unpack_from(buf, start)[0]
    count, rest = divmod(end - start, size) if size >= RECORD_MIN_BYTES else (0, 0)
    if rest or not ALIKE_MIN <= count <= ALIKE_MAX:
        return None
    numbers = _alike(size, count).unpack_from(buf, start)
    mark, sysflag = numbers[0], numbers[2]
    if (
        numbers[::3].count(mark) != count
        or numbers[2::3].count(sysflag) != count
        or sysflag & _UNWRAP
        or mark - (size << 32) not in _MAGICS
    ):
        return None
    return list(range(start, end + 1, size)), list(numbers[1::3])


@lru_cache(maxsize=ALIKE_LAYOUTS_MAX)
def _alike(size: int, count: int) -> Struct:
    """What `walk` reads of so many records of that size."""
    return Struct(">" + f"{_ALIKE}{size - _WALK.size}x" * count)


def _walk_unusual(buf: Buffer, position: int, end: int, size: int, magic: int, offset: int, sysflag: int) -> int:
    """The slow path of `walk`: refuse what is no record, find the last offset of an inner batch."""
    where = f"record at byte {position}"
    if magic == BLANK_MAGIC:
        raise ProtocolError("is the blank end of a commit log file", where)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise ProtocolError(f"magic {magic & 0xFFFFFFFF:#010x} is not that of a message", where)
    if not RECORD_MIN_BYTES <= size <= end - position:
        raise ProtocolError(f"size {size} is outside {RECORD_MIN_BYTES}..{end - position}", where)
    if sysflag & _UNWRAP != _UNWRAP:
        return offset
    info = record_info(buf, position, end)
    body = decompress(bytes(buf[info.body_start : info.body_start + info.body_len]), sysflag)
    count = count_batch(body)
    if not count:
        raise ProtocolError("is an inner batch without messages", where)
    return offset + count - 1


def _not_a_record(positions: list[int], position: int, end: int) -> ProtocolError:
    if position > end:
        return ProtocolError(f"ends {position - end} bytes behind the data", f"record at byte {positions[-1]}")
    return ProtocolError(f"{end - position} bytes are too few for a message", f"record at byte {position}")


def is_inner_batch(sysflag: int) -> bool:
    """Whether the body is a batch that the client has to split (both flag bits set)."""
    return sysflag & _UNWRAP == _UNWRAP


def record_info(buf: Buffer, position: int = 0, end: int | None = None) -> RecordInfo:
    """The numbers of the record at `position`, and where body, topic and properties stand; nothing is copied.

    `end` is where the record must have ended at the latest (default: the end of the buffer). Raises ProtocolError.
    """
    if end is None:
        end = len(buf)
    if position < 0 or end > len(buf):
        raise UsageError(f"bytes {position}..{end} do not lie in a buffer of {len(buf)}")
    if end - position < RECORD_MIN_BYTES:
        raise ProtocolError(f"{end - position} bytes are too few for a message", f"record at byte {position}")
    fixed = _FIXED[_INT32.unpack_from(buf, position + _SYSFLAG_AT)[0] & HOSTS_V6]
    body_start = position + fixed.size
    if body_start > end:
        raise ProtocolError(f"{end - position} bytes are too few for a message", f"record at byte {position}")
    (
        size, magic, crc, queue_id, flag, queue_offset, physical_offset, sysflag, born_ms, born_address, born_port,
        store_ms, store_address, store_port, reconsume_times, prepared, body_len,
    ) = fixed.unpack_from(buf, position)  # fmt: skip
    record_end = position + size
    if record_end > end or size < RECORD_MIN_BYTES or (magic != MAGIC_V1 and magic != MAGIC_V2):
        raise _bad_record(position, size, magic, end)
    topic_at = body_start + body_len
    if body_len < 0 or topic_at + 3 > record_end:
        raise ProtocolError(f"body length {body_len} does not fit into {size} bytes", f"record at byte {position}")
    if magic == MAGIC_V1:
        topic_start = topic_at + 1
        (topic_len,) = _INT8.unpack_from(buf, topic_at)
    else:
        topic_start = topic_at + 2
        (topic_len,) = _INT16.unpack_from(buf, topic_at)
    properties_start = topic_start + topic_len + 2
    if topic_len < 0 or properties_start > record_end:
        raise ProtocolError(f"topic length {topic_len} does not fit into {size} bytes", f"record at byte {position}")
    (properties_len,) = _INT16.unpack_from(buf, properties_start - 2)
    if properties_len < 0 or properties_start + properties_len != record_end:
        raise ProtocolError(
            f"properties length {properties_len}, but {record_end - properties_start} bytes are left",
            f"record at byte {position}",
        )
    return RecordInfo(
        queue_offset, physical_offset, sysflag, store_ms, reconsume_times, queue_id, flag, born_ms, prepared, crc, magic,
        born_address, born_port, store_address, store_port, body_start, body_len, topic_start, topic_len,
        properties_start, properties_len, record_end,
    )  # fmt: skip


def _bad_record(position: int, size: int, magic: int, end: int) -> ProtocolError:
    where = f"record at byte {position}"
    if magic == BLANK_MAGIC:
        return ProtocolError("is the blank end of a commit log file", where)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return ProtocolError(f"magic {magic & 0xFFFFFFFF:#010x} is not that of a message", where)
    return ProtocolError(f"size {size} is outside {RECORD_MIN_BYTES}..{end - position}", where)


def crc32_body(body: Buffer) -> int:
    """The crc of a body as stored: CRC-32 with the sign bit cleared."""
    return zlib.crc32(body) & 0x7FFFFFFF


@dataclass(slots=True)
class StoredMessage:
    """One stored record, whole. `body` and `raw_properties` are as stored; hosts are IP addresses.

    `magic` 0 lets `encode_message` choose (V2 for topics above 127 bytes). The address family decides the two IPv6 bits of
    the record; in `sysflag` they are as read.
    """

    topic: str
    body: bytes
    raw_properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sysflag: int = 0
    born_timestamp_ms: int = 0
    born_host: str = "127.0.0.1"
    born_port: int = 0
    store_timestamp_ms: int = 0
    store_host: str = "127.0.0.1"
    store_port: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    magic: int = 0
    _properties: dict[str, str] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties, decoded once; bytes that are not UTF-8 are U+FFFD, as in Java."""
        if self._properties is None:
            self._properties = decode_properties(self.raw_properties, strict=False)
        return self._properties

    @property
    def offset_message_id(self) -> str:
        return offset_message_id(self.store_host, self.store_port, self.physical_offset)

    @property
    def message_id(self) -> str:
        """The id that clients show: UNIQ_KEY, else the offset id."""
        return message_id(self.properties, self.store_host, self.store_port, self.physical_offset)

    def decompressed_body(self) -> bytes:
        """The body as the user sent it. Raises ProtocolError as `decompress`."""
        return decompress(self.body, self.sysflag)


def first_offset_of(buf: Buffer, position: int) -> int:
    """The queue offset of the record at `position`, of an inner batch that of its first message; nothing else of it is looked
    at or checked. At least RECORD_MIN_BYTES are there."""
    offset: int = _INT64.unpack_from(buf, position + _OFFSET_AT)[0]
    return offset


def store_timestamp_of(buf: Buffer, position: int) -> int:
    """When the record at `position` was stored, in ms since 1970; nothing else of it is looked at or checked. At least
    RECORD_MIN_BYTES are there."""
    born_v6 = buf[position + SYSFLAG_LOW_BYTE] & SYSFLAG_BORN_HOST_V6
    stored: int = _INT64.unpack_from(buf, position + (_STORED_AT_V6 if born_v6 else _STORED_AT))[0]
    return stored


def reconsume_times_of(buf: bytes | bytearray | memoryview, position: int) -> int:
    """How often the record at `position` has been consumed before; 0 for one too short to say."""
    at = _reconsume_times_at(buf, position)
    return 0 if at is None else int(_INT32.unpack_from(buf, at)[0])


def _reconsume_times_at(buf: bytes | bytearray | memoryview, position: int) -> int | None:
    fixed = _FIXED[_INT32.unpack_from(buf, position + _SYSFLAG_AT)[0] & HOSTS_V6]
    if _INT32.unpack_from(buf, position)[0] < fixed.size:
        return None
    return position + fixed.size - 16  # behind it: prepared transaction offset and body length


def raise_reconsume_times(buf: bytearray | memoryview, position: int) -> None:
    """Count one attempt more in the record at `position`, in place; a record too short for that is left as it is."""
    at = _reconsume_times_at(buf, position)
    if at is not None:
        _INT32.pack_into(buf, at, _INT32.unpack_from(buf, at)[0] + 1)


def decode_message(buf: Buffer, position: int = 0, end: int | None = None, *, check_crc: bool = True) -> StoredMessage:
    """The whole record at `position`; body and properties are copied, not decompressed, not parsed.

    Raises ProtocolError when lengths, magic, crc or the topic's UTF-8 are wrong.
    """
    info = record_info(buf, position, end)
    body = bytes(buf[info.body_start : info.body_start + info.body_len])
    if check_crc and zlib.crc32(body) & 0x7FFFFFFF != info.body_crc:
        raise ProtocolError(
            f"body crc {zlib.crc32(body) & 0x7FFFFFFF:#x}, but the record says {info.body_crc:#x}",
            f"record at byte {position}",
        )
    try:
        topic = str(buf[info.topic_start : info.topic_start + info.topic_len], "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"topic is not UTF-8: {error}", f"record at byte {position}") from None
    return StoredMessage(
        topic,
        body,
        bytes(buf[info.properties_start : info.end]),
        info.queue_id,
        info.flag,
        info.queue_offset,
        info.physical_offset,
        info.sysflag,
        info.born_timestamp_ms,
        host_text(info.born_address),
        info.born_port,
        info.store_timestamp_ms,
        host_text(info.store_address),
        info.store_port,
        info.reconsume_times,
        info.prepared_transaction_offset,
        info.magic,
    )


def decode_messages(buf: Buffer) -> list[StoredMessage]:
    """All records of a pull, view or query body. Inner batches stay whole (see `split_inner_batch`)."""
    positions, _ = walk(buf)
    return [decode_message(buf, position, following) for position, following in pairwise(positions)]


def encode_message(message: StoredMessage) -> bytes:
    """The record of a message, its crc computed. Raises UsageError when a part does not fit (see the module's table)."""
    topic = message.topic.encode()
    properties = message.raw_properties
    magic = message.magic or (MAGIC_V1 if len(topic) <= TOPIC_V1_MAX_BYTES else MAGIC_V2)
    if magic == MAGIC_V1 and len(topic) <= TOPIC_V1_MAX_BYTES:
        topic_len = len(topic).to_bytes(1, "big")
    elif magic == MAGIC_V2 and len(topic) <= 32767:
        topic_len = len(topic).to_bytes(2, "big")
    else:
        raise UsageError(f"topic of {len(topic)} bytes with magic {magic & 0xFFFFFFFF:#010x} cannot be stored")
    if len(properties) > PROPERTIES_MAX_BYTES:
        raise UsageError(f"properties of {len(properties)} bytes; a message has at most {PROPERTIES_MAX_BYTES}")
    born, store = host_bytes(message.born_host), host_bytes(message.store_host)
    hosts = (SYSFLAG_BORN_HOST_V6 if len(born) == 16 else 0) | (SYSFLAG_STORE_HOST_V6 if len(store) == 16 else 0)
    fixed = _FIXED[hosts]
    body = message.body
    try:
        head = fixed.pack(
            fixed.size + len(body) + len(topic_len) + len(topic) + 2 + len(properties),
            magic,
            zlib.crc32(body) & 0x7FFFFFFF,
            message.queue_id,
            message.flag,
            message.queue_offset,
            message.physical_offset,
            message.sysflag & ~HOSTS_V6 | hosts,
            message.born_timestamp_ms,
            born,
            message.born_port,
            message.store_timestamp_ms,
            store,
            message.store_port,
            message.reconsume_times,
            message.prepared_transaction_offset,
            len(body),
        )
    except StructError as error:
        raise UsageError(f"a number of the message for {message.topic} does not fit into its record: {error}") from None
    return b"".join((head, body, topic_len, topic, _INT16.pack(len(properties)), properties))


def split_inner_batch(message: StoredMessage) -> list[StoredMessage]:
    """The messages of an inner batch: message i has queue offset + i; a message that is no batch comes back alone.

    The parts have their own body, flag and properties and everything else of the whole; the bits for batch and
    compression are cleared in them. Raises ProtocolError when the batch is damaged or empty.
    """
    if not is_inner_batch(message.sysflag):
        return [message]
    entries = decode_batch(message.decompressed_body())
    if not entries:
        raise ProtocolError("is an inner batch without messages", f"message at queue offset {message.queue_offset}")
    sysflag = message.sysflag & ~(_UNWRAP | SYSFLAG_COMPRESSED | SYSFLAG_COMPRESSION_MASK)
    return [
        replace(
            message,
            body=entry.body,
            raw_properties=entry.properties,
            flag=entry.flag,
            sysflag=sysflag,
            queue_offset=message.queue_offset + index,
        )
        for index, entry in enumerate(entries)
    ]
