"""The key columns of a block of rows, made for all of its messages together from the bytes of their records.

Nothing is decoded that the handler did not ask for: numbers are copied out of the fixed part of all records by strides, ids
are found in the raw properties. What a record must be for that is checked; any other one (IPv6, long topics, retries, damaged
or odd properties) is read by `Message`, one by one. Both ways give the same columns (tests/unit/workers/test_row_keys.py).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby, repeat
from operator import mul
from struct import Struct
from typing import Any, Final

import pyarrow

from ..conf.segment_format import key_fields
from ..remoting.codes import SYSFLAG_BORN_HOST_V6, SYSFLAG_STORE_HOST_V6
from ..remoting.names import RETRY_PREFIX
from ..remoting.namespaces import unwrap
from ..remoting.properties import PROPERTY_ORIGIN_MESSAGE_ID, PROPERTY_UNIQ_KEY, find_property
from ..remoting.stored import MAGIC_V1
from .message import Message
from .packets import QueueInfo

pa: Any = pyarrow

Arrays = list[Any]
Key = tuple[str, str, int, int, str, str, str, int, int]
"""Topic, broker, queue id, offset, origin topic, message id, origin message id, reconsume times, store time in µs."""

# Positions in a record with IPv4 hosts (the table in remoting/stored.py).
_HEAD_BYTES: Final = 88
_SIZES = Struct(">ii76xi")
"""Size, magic, body length."""
_OFFSET, _PHYSICAL_OFFSET, _SYSFLAG_LOW, _STORED_MS, _STORE_HOST, _RECONSUME_TIMES = 20, 28, 39, 56, 64, 72
_LENGTH_MAX: Final = 32_767
_TOPIC_MAX_BYTES: Final = 127

_V4: Final = bytes(flag for flag in range(256) if not flag & (SYSFLAG_BORN_HOST_V6 | SYSFLAG_STORE_HOST_V6))
_UNIQ_KEY: Final = PROPERTY_UNIQ_KEY.encode()
_UNIQ_KEY_AT: Final = _UNIQ_KEY + b"\x01"
_ORIGIN: Final = PROPERTY_ORIGIN_MESSAGE_ID.encode()
_ORIGIN_AT: Final = _ORIGIN + b"\x01"
_END: Final = b"\2"
_EACH_UNIQ_KEY: Final = repeat(_UNIQ_KEY_AT)
_UNIQ_KEY_BETWEEN: Final = _END + _UNIQ_KEY_AT
_ID_BYTES: Final = 32
"""An offset id in hexadecimal: address, port, physical offset."""
_US_PER_MS: Final = 1_000
_LITTLE: Final = sys.byteorder == "little"
_NUMBERS_MAX: Final = 1_024
"""More messages in a block, or rows of a message, are rare."""
_NUMBERS: Final = array("i", range(_NUMBERS_MAX)).tobytes()
_EACH_NUMBER: Final = [_NUMBERS[at : at + 4] for at in range(0, 4 * _NUMBERS_MAX, 4)]

_TYPES: Final[list[Any]] = [field.type for field in key_fields()]
_STRING, _INT32, _INT64, _STORE_TIME = _TYPES[0], _TYPES[3], _TYPES[4], _TYPES[10]


class _OddRecordError(Exception):
    """The record is not one that can be read by position."""


def key_of(message: Message) -> Key:
    """The key of one message, by decoding it. Raises ProtocolError."""
    queue = message.queue
    return (
        queue.topic,
        queue.broker_name,
        queue.queue_id,
        message.queue_offset,
        message.topic,
        message.message_id,
        message.origin_message_id,
        message.reconsume_times,
        message.store_timestamp_ms * _US_PER_MS,
    )


def key_columns(group: str, messages: Sequence[Message], counts: Sequence[int] | None) -> Arrays:
    """The key columns of `counts` rows of each message (None: one of each), in file order.

    Raises ProtocolError for a damaged record, pyarrow.ArrowException or OverflowError for numbers that no column takes.
    """
    total = len(messages) if counts is None else sum(counts)
    columns = _of_messages(messages)
    if counts is None:
        seq: Any = _integers(_INT32, bytes(4 * total), total)
    else:
        seq = _integers(_INT32, b"".join(map(_numbers_below, counts)), total)
        if total != len(counts):
            taken = _integers(_INT32, b"".join(map(mul, _each_number(len(counts)), counts)), total)
            queue = messages[0]._queue  # pyright: ignore[reportPrivateUsage]
            # Some columns are the same object: what is known of one is known of the others.
            made: dict[int, Any] = {
                id(_constant(text, len(counts))): _constant(text, total) for text in (queue.topic, queue.broker_name)
            }
            for each in columns:
                if id(each) not in made:
                    made[id(each)] = each.take(taken)
            columns = [made[id(each)] for each in columns]
    return [_constant(group, total), *columns[:4], seq, *columns[4:]]


def _numbers_below(count: int) -> bytes:
    """0, 1, … as a column has them."""
    return _NUMBERS[: 4 * count] if count <= _NUMBERS_MAX else array("i", range(count)).tobytes()


def _each_number(count: int) -> Sequence[bytes]:
    """The same, each by itself, at least `count` of them."""
    return _EACH_NUMBER if count <= _NUMBERS_MAX else [number.to_bytes(4, sys.byteorder) for number in range(count)]


def _of_messages(messages: Sequence[Message]) -> Arrays:
    """One row a message, without group and `_seq`."""
    try:
        return _by_position(messages)
    except _OddRecordError:
        if len(messages) == 1:
            return _one_by_one(messages)
    parts: list[Arrays] = []
    for odd, group in groupby(messages, _is_odd):
        run = list(group)
        parts.append(_one_by_one(run) if odd else _by_position(run))
    return parts[0] if len(parts) == 1 else [pa.concat_arrays(list(column)) for column in zip(*parts, strict=True)]


def _is_odd(message: Message) -> bool:
    try:
        _by_position([message])
    except _OddRecordError:
        return True
    return False


def _one_by_one(messages: Iterable[Message]) -> Arrays:
    columns = zip(*map(key_of, messages), strict=True)
    return [pa.array(values, kind) for values, kind in zip(columns, [*_TYPES[1:5], *_TYPES[6:]], strict=True)]


def _by_position(messages: Sequence[Message]) -> Arrays:
    """Raises _OddRecordError when one of the records cannot be read by position."""
    count = len(messages)
    places = [(message._data, message._position) for message in messages]  # pyright: ignore[reportPrivateUsage]
    heads = b"".join([data[at : at + _HEAD_BYTES] for data, at in places])
    if len(heads) != count * _HEAD_BYTES or heads[_SYSFLAG_LOW::_HEAD_BYTES].translate(None, _V4):
        raise _OddRecordError
    topics = _queue_columns([message._queue for message in messages])  # pyright: ignore[reportPrivateUsage]
    every, joined = _properties(places, heads)
    ids = _offset_ids(heads, count)
    own_ids: Any = _fixed_strings(ids, count, _ID_BYTES)
    return [
        *topics[:3],
        _integers(_INT64, _swapped(heads, _OFFSET, 8, count), count),
        topics[3],
        _message_ids(every, joined, ids),
        _ids_or([find_property(properties, _ORIGIN) for properties in every], ids) if _ORIGIN_AT in joined else own_ids,
        _integers(_INT32, _swapped(heads, _RECONSUME_TIMES, 4, count), count),
        _store_times(heads, count),
    ]


def _properties(places: Sequence[tuple[bytes, int]], heads: bytes) -> tuple[list[bytes], bytes]:
    """The raw properties of each record, which are UTF-8, and all of them in one, with an end mark on each side of each.

    Raises _OddRecordError."""
    every: list[bytes] = []
    sizes: Any = _SIZES.iter_unpack(heads)
    for (data, at), (size, magic, body_bytes) in zip(places, sizes, strict=True):
        start: int = at + _HEAD_BYTES + body_bytes
        end: int = at + size
        if magic != MAGIC_V1 or body_bytes < 0 or start + 3 > end or end > len(data):
            raise _OddRecordError
        topic_bytes = data[start]
        start += topic_bytes + 3
        properties = data[start:end]
        if topic_bytes > _TOPIC_MAX_BYTES or start > end or end - start != data[start - 2] << 8 | data[start - 1]:
            raise _OddRecordError
        every.append(properties)
    # A length of more is a negative one, as Java reads it.
    if max(map(len, every)) > _LENGTH_MAX:
        raise _OddRecordError
    joined = _END + (_END + _END).join(every) + _END
    for properties in every if not joined.isascii() else ():
        try:
            str(properties, "utf-8")
        except UnicodeDecodeError:
            raise _OddRecordError from None
    return every, joined


def _message_ids(every: Sequence[bytes], joined: bytes, own: bytes) -> Any:
    """The unique id of each record, its offset id where it has none; `joined` as `_properties` made it."""
    count = len(every)
    parts = joined.split(_UNIQ_KEY_BETWEEN)
    if len(parts) == 1:
        return _fixed_strings(own, count, _ID_BYTES)
    width = parts[1].find(_END)
    if len(parts) == count + 1 and width and joined.isascii() and set(map(bytes.count, every, _EACH_UNIQ_KEY)) == {1}:
        # Each record has one, and they may have the same length.
        found = b"".join([part[: width + 1] for part in parts[1:]])
        ids = found.translate(None, _END)
        if len(ids) == count * width and found[width :: width + 1] == _END * count:
            return _fixed_strings(ids, count, width)
    return _ids_or([find_property(properties, _UNIQ_KEY) for properties in every], own)


def _queue_columns(queues: list[QueueInfo]) -> Arrays:
    """Topic, broker, queue id and origin topic. Raises _OddRecordError for a queue of retries: each names its topic."""
    first, count = queues[0], len(queues)
    if queues.count(first) == count:
        return [_constant(first.topic, count), _constant(first.broker_name, count),
                _integers(_INT32, array("i", [first.queue_id]) * count, count),
                _constant(_origin_topic(first), count)]  # fmt: skip
    topics = [queue.topic for queue in queues]
    origins = {queue: _origin_topic(queue) for queue in set(queues)}
    return [_strings(topics), _strings([queue.broker_name for queue in queues]),
            _integers(_INT32, array("i", [queue.queue_id for queue in queues]), count),
            _strings([origins[queue] for queue in queues])]  # fmt: skip


@lru_cache(maxsize=64)
def _constant(text: str, count: int) -> Any:
    """The same string `count` times."""
    return pa.repeat(text, count)


def _strings(texts: list[str]) -> Any:
    if texts.count(texts[0]) == len(texts):
        return _constant(texts[0], len(texts))
    return pa.array(texts, _STRING)


def _origin_topic(queue: QueueInfo) -> str:
    if queue.topic.startswith(RETRY_PREFIX):
        raise _OddRecordError
    return unwrap(queue.namespace, queue.topic) if queue.namespace else queue.topic


def _offset_ids(heads: bytes, count: int) -> bytes:
    """All offset ids, one after the other."""
    raw = bytearray(16 * count)
    for at in range(8):
        raw[at::16] = heads[_STORE_HOST + at :: _HEAD_BYTES]
        raw[8 + at :: 16] = heads[_PHYSICAL_OFFSET + at :: _HEAD_BYTES]
    return raw.hex().upper().encode()


def _ids_or(ids: Sequence[bytes | None], own: bytes) -> Any:
    """The ids; the record's own where there is none."""
    if None in ids:
        ids = [own[at * _ID_BYTES : (at + 1) * _ID_BYTES] if each is None else each for at, each in enumerate(ids)]
    return pa.array(ids, _STRING)


def _fixed_strings(data: bytes, count: int, width: int) -> Any:
    """Strings of `width` bytes each."""
    return pa.StringArray.from_buffers(count, _ends(count, width), pa.py_buffer(data))


@lru_cache(maxsize=8)
def _ends(count: int, width: int) -> Any:
    return pa.py_buffer(array("i", range(0, width * count + 1, width)))


def _swapped(heads: bytes, at: int, width: int, count: int) -> bytearray:
    """The big-endian number of `width` bytes at `at` of each head, as this machine has numbers."""
    numbers = bytearray(width * count)
    for byte in range(width):
        numbers[byte::width] = heads[at + (width - 1 - byte if _LITTLE else byte) :: _HEAD_BYTES]
    return numbers


def _store_times(heads: bytes, count: int) -> Any:
    try:
        us = array("q", [ms * _US_PER_MS for ms in memoryview(_swapped(heads, _STORED_MS, 8, count)).cast("q")])
    except OverflowError:
        raise _OddRecordError from None
    return _integers(_STORE_TIME, us, count)


def _integers(kind: Any, values: Any, count: int) -> Any:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(values)])
