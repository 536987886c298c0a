"""The key columns of a block of rows, made for all of its messages together from the bytes of their records.

Nothing is decoded that the handler did not ask for: numbers are copied out of the fixed part of all records by strides, ids
are found in the raw properties. What a record must be for that is checked; any other one (IPv6, long topics, retries, damaged
or odd properties) is read by `Message`, one by one. Both ways give the same columns (tests/unit/workers/test_row_keys.py).
"""

from __future__ import annotations

import sys
from array import array
from binascii import hexlify
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain, groupby, repeat
from operator import add, mul, sub
from struct import iter_unpack
from typing import Any, Final

import pyarrow

from ..conf.segment_format import key_fields
from ..conf.units import US_PER_MS
from ..remoting.codes import SYSFLAG_BORN_HOST_V6, SYSFLAG_STORE_HOST_V6
from ..remoting.names import RETRY_PREFIX
from ..remoting.namespaces import unwrap
from ..remoting.properties import PROPERTY_ORIGIN_MESSAGE_ID, PROPERTY_UNIQ_KEY, find_property
from ..remoting.stored import MAGIC_V1
from .message import Message, origin_topic
from .packets import QueueInfo

pa: Any = pyarrow

Arrays = list[Any]
Raw = bytes | bytearray
Ids = tuple[bytes, int] | list[bytes]
"""Ids of one length, one after the other, and that length; or each by itself."""
Key = tuple[str, str, int, int, str, str, str, int, int]
"""Topic, broker, queue id, offset, origin topic, message id, origin message id, reconsume times, store time in µs."""

# Positions in a record with IPv4 hosts (the table in remoting/stored.py), as numbers of four bytes; of the flags as a byte.
_HEAD_BYTES: Final = 88
_HEAD_WORDS: Final = _HEAD_BYTES // 4
_SIZE, _MAGIC, _OFFSET, _PHYSICAL_OFFSET, _STORED_MS, _STORE_HOST, _RECONSUME_TIMES, _BODY_BYTES = (
    0, 1, 5, 7, 14, 16, 18, 21,
)  # fmt: skip
_SYSFLAG_LOW: Final = 39
_MAGIC_WORD: Final = array("i", [MAGIC_V1])
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
_UNIQ_KEY_TAIL: Final = _UNIQ_KEY_BETWEEN[-5:]
"""Counted in half the time, as Python has a better way for so few bytes."""
_ALIKE_MIN: Final = 24
"""To find out whether fewer records are alike takes longer than to look at each."""
_ID_BYTES: Final = 32
"""An offset id in hexadecimal: address, port, physical offset."""
_EACH_US_PER_MS: Final = repeat(US_PER_MS)
_LITTLE: Final = sys.byteorder == "little"
_LOW: Final = 0 if _LITTLE else 1
"""Which half of a number of eight bytes is the low one."""
_RUNS_JOINED_MAX: Final = 16
"""Of more queues in turn a column is cheaper made of its texts."""
_SHORT_RUN: Final = 10
"""The arrays of a run cost as much as decoding so many messages."""
_KEPT_ROWS_MAX: Final = 1 << 15
"""Longer columns are made anew, and so are their ends: a column is kept with all of its text."""
_KEPT_QUEUES_MAX: Final = 16
_SHORT_ROWS: Final = 16
_SHORT_QUEUES_MAX: Final = 1_024
"""Columns of so few rows take some 3 KiB for a queue, and are kept for all queues that a worker may have in turn. If fewer
were kept than that, each would be made, kept and dropped before its queue's next block."""
_SHARED_ROWS_MAX: Final = 1_024
"""Of more rows constant columns cost next to nothing; and a longer one behind a block would make its size seem larger."""
_NUMBERS_MAX: Final = 1_024
"""More rows of a message are rare."""
_NUMBERS: Final = array("i", range(_NUMBERS_MAX)).tobytes()

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
        origin_topic(message),
        message.message_id,
        message.origin_message_id,
        message.reconsume_times,
        message.store_timestamp_ms * US_PER_MS,
    )


def key_columns(group: str, messages: Sequence[Message], counts: Sequence[int] | None) -> Arrays:
    """The key columns of `counts` rows of each message (None: one of each), in file order.

    Raises ProtocolError for a damaged record, pyarrow.ArrowException or OverflowError for numbers that no column takes.
    """
    total = len(messages) if counts is None else sum(counts)
    columns = _of_messages(messages, counts)
    seq = bytes(4 * total) if counts is None else b"".join(map(_numbers_below, counts))
    return [_constant(group, total), *columns[:4], _integers(_INT32, seq, total), *columns[4:]]


def _numbers_below(count: int) -> bytes:
    """0, 1, … as a column has them."""
    return _NUMBERS[: 4 * count] if count <= _NUMBERS_MAX else array("i", range(count)).tobytes()


def _of_messages(messages: Sequence[Message], counts: Sequence[int] | None) -> Arrays:
    """As `key_columns`, without group and `_seq`."""
    try:
        return _by_position(messages, counts)
    except _OddRecordError:
        if len(messages) == 1:
            return _one_by_one(messages, counts)
    runs = [(odd, len(list(group))) for odd, group in groupby(_odd_ones(messages))]
    if len(runs) * _SHORT_RUN > len(messages):
        return _one_by_one(messages, counts)
    parts: list[Arrays] = []
    at = 0
    for odd, length in runs:
        end = at + length
        own = None if counts is None else counts[at:end]
        parts.append((_one_by_one if odd else _by_position)(messages[at:end], own))
        at = end
    return parts[0] if len(parts) == 1 else [pa.concat_arrays(list(column)) for column in zip(*parts, strict=True)]


def _odd_ones(messages: Sequence[Message]) -> list[bool]:
    """Which of them cannot be read by position: the usual ones show it, and others are few."""
    shown = [_shows_odd(message) for message in messages]
    tried = iter(_tried([message for message, odd in zip(messages, shown, strict=True) if not odd]))
    return [odd or next(tried) for odd in shown]


def _shows_odd(message: Message) -> bool:
    """A retry, or with an IPv6 address."""
    data, at = message._data, message._position + _SYSFLAG_LOW  # pyright: ignore[reportPrivateUsage]
    topic = message._queue.topic  # pyright: ignore[reportPrivateUsage]
    return topic.startswith(RETRY_PREFIX) or data[at : at + 1] not in _V4


def _tried(messages: Sequence[Message]) -> list[bool]:
    """By halves."""
    if not messages:
        return []
    try:
        _by_position(messages, None)
    except _OddRecordError:
        middle = len(messages) // 2
        return [*_tried(messages[:middle]), *_tried(messages[middle:])] if middle else [True]
    return [False] * len(messages)


def _one_by_one(messages: Iterable[Message], counts: Sequence[int] | None) -> Arrays:
    columns = zip(*map(key_of, messages), strict=True)
    kinds = [*_TYPES[1:5], *_TYPES[6:]]
    return [_repeated(pa.array(values, kind), counts) for values, kind in zip(columns, kinds, strict=True)]


def _by_position(messages: Sequence[Message], counts: Sequence[int] | None) -> Arrays:
    """Raises _OddRecordError when one of the records cannot be read by position."""
    count = len(messages)
    datas = [message._data for message in messages]  # pyright: ignore[reportPrivateUsage]
    starts = [message._position for message in messages]  # pyright: ignore[reportPrivateUsage]
    heads = b"".join([data[at : at + _HEAD_BYTES] for data, at in zip(datas, starts, strict=True)])
    if len(heads) != count * _HEAD_BYTES or heads[_SYSFLAG_LOW::_HEAD_BYTES].translate(None, _V4):
        raise _OddRecordError
    words = array("i", heads)
    own = _offset_ids(words, count), _ID_BYTES
    if _LITTLE:
        words.byteswap()
    queues = _queue_columns([message._queue for message in messages], counts)  # pyright: ignore[reportPrivateUsage]
    ids, origins = _ids(datas, starts, words, own)
    own_column = _id_column(own, counts)
    return [
        *queues[:3],
        _number_column(_INT64, _longs(words, _OFFSET, count), 8, counts),
        queues[3],
        own_column if ids is own else _id_column(ids, counts),
        own_column if origins is own else _id_column(origins, counts),
        _number_column(_INT32, words[_RECONSUME_TIMES::_HEAD_WORDS].tobytes(), 4, counts),
        _number_column(_STORE_TIME, _store_times_us(words, count), 8, counts),
    ]


# --- rows of messages -----------------------------------------------------------------------------------------------------


def _repeated(column: Any, counts: Sequence[int] | None) -> Any:
    """Each value as often as its message has rows."""
    if counts is None:
        return column
    numbers = b"".join(map(mul, chain.from_iterable(iter_unpack("4s", _numbers_below(len(counts)))), counts))
    return column.take(_integers(_INT32, numbers, len(numbers) // 4))


def _spread(raw: Raw, width: int, counts: Sequence[int] | None) -> Raw:
    """The same of values of `width` bytes each. Arrow's `take` costs several times as much for the few messages of a block
    whose rows came as Arrow batches."""
    if counts is None:
        return raw
    return b"".join(map(mul, chain.from_iterable(iter_unpack(f"{width}s", raw)), counts))


def _number_column(kind: Any, raw: Raw, width: int, counts: Sequence[int] | None) -> Any:
    raw = _spread(raw, width, counts)
    return _integers(kind, raw, len(raw) // width)


def _id_column(ids: Ids, counts: Sequence[int] | None) -> Any:
    if isinstance(ids, list):
        return _repeated(pa.array(ids, _STRING), counts)
    raw, width = _spread(*ids, counts), ids[1]
    count = len(raw) // width
    return pa.StringArray.from_buffers(count, _ends(count, width), pa.py_buffer(raw))


# --- queues ---------------------------------------------------------------------------------------------------------------


def _queue_columns(queues: list[QueueInfo], counts: Sequence[int] | None) -> Arrays:
    """Topic, broker, queue id and origin topic. Raises _OddRecordError for a queue of retries: each names its topic."""
    runs = _runs(queues, counts)
    if len(runs) == 1 and runs[0][1] <= _SHARED_ROWS_MAX:
        queue, rows = runs[0]
        kept = _kept_short_queue(queue) if rows <= _SHORT_ROWS else _kept_queue(queue, _kept_length(rows))
        return [column.slice(0, rows) for column in kept]
    return _columns_of_runs(runs)


def _columns_of_runs(runs: Sequence[tuple[QueueInfo, int]]) -> Arrays:
    numbers = b"".join([array("i", [queue.queue_id]).tobytes() * rows for queue, rows in runs])
    return [_texts([(queue.topic, rows) for queue, rows in runs]),
            _texts([(queue.broker_name, rows) for queue, rows in runs]),
            _integers(_INT32, numbers, len(numbers) // 4),
            _texts([(_origin_topic(queue), rows) for queue, rows in runs])]  # fmt: skip


@lru_cache(maxsize=_KEPT_QUEUES_MAX)
def _kept_queue(queue: QueueInfo, rows: int) -> Arrays:
    return _columns_of_runs([(queue, rows)])


@lru_cache(maxsize=_SHORT_QUEUES_MAX)
def _kept_short_queue(queue: QueueInfo) -> Arrays:
    return _columns_of_runs([(queue, _SHORT_ROWS)])


def _runs(queues: list[QueueInfo], counts: Sequence[int] | None) -> list[tuple[QueueInfo, int]]:
    """Queues with the rows of neighbouring messages: those of a chunk are of one queue."""
    if queues.count(queues[0]) == len(queues):
        return [(queues[0], len(queues) if counts is None else sum(counts))]
    lengths = [(queue, len(list(group))) for queue, group in groupby(queues)]
    if counts is None:
        return lengths
    ends = list(accumulate([length for _, length in lengths]))
    return [(queue, sum(counts[end - length : end])) for (queue, length), end in zip(lengths, ends, strict=True)]


def _texts(runs: list[tuple[str, int]]) -> Any:
    """A column of strings, each so many times."""
    first = runs[0][0]
    if all(text == first for text, _ in runs):
        return _constant(first, sum([rows for _, rows in runs]))
    if len(runs) > _RUNS_JOINED_MAX:
        return _repeated(pa.array([text for text, _ in runs], _STRING), [rows for _, rows in runs])
    return pa.concat_arrays([_constant(text, rows) for text, rows in runs])


def _constant(text: str, count: int) -> Any:
    """The same string `count` times."""
    if count > _KEPT_ROWS_MAX:
        return _new_constant(text, count)
    return _kept_constant(text, _kept_length(count)).slice(0, count)


def _new_constant(text: str, count: int) -> Any:
    return pa.repeat(pa.scalar(text, _STRING), count)


_kept_constant = lru_cache(maxsize=16)(_new_constant)


def _kept_length(count: int) -> int:
    """Of the column whose beginning is one of so many rows: nearly every block has another number of them."""
    return 1 << (count - 1).bit_length() if count <= _SHARED_ROWS_MAX else count


def _origin_topic(queue: QueueInfo) -> str:
    if queue.topic.startswith(RETRY_PREFIX):
        raise _OddRecordError
    return unwrap(queue.namespace, queue.topic) if queue.namespace else queue.topic


# --- ids ------------------------------------------------------------------------------------------------------------------


def _ids(datas: list[bytes], starts: list[int], words: array[int], own: tuple[bytes, int]) -> tuple[Ids, Ids]:
    """Message ids and origin ids of the records; `own` are their offset ids, which they have where they name none.

    Raises _OddRecordError."""
    count = len(starts)
    view = memoryview(words)
    sizes, bodies = view[_SIZE::_HEAD_WORDS].tolist(), view[_BODY_BYTES::_HEAD_WORDS].tolist()
    if min(bodies) < 0 or words[_MAGIC::_HEAD_WORDS] != _MAGIC_WORD * count:
        raise _OddRecordError
    ends, widths = list(map(add, starts, sizes)), list(map(sub, sizes, bodies))
    if count >= _ALIKE_MIN and widths.count(widths[0]) == count:
        alike = _alike_ids(datas, ends, widths[0] - _HEAD_BYTES)
        if alike is not None:
            return alike if alike[1] else own, own
    every, joined = _properties(datas, ends, widths)
    ids = _message_ids(every, joined)
    origins = [find_property(properties, _ORIGIN) for properties in every] if _ORIGIN_AT in joined else None
    return _or_own(ids, own), _or_own(origins, own)


def _alike_ids(datas: list[bytes], ends: list[int], width: int) -> tuple[bytes, int] | None:
    """Message ids, one after the other, and the length of each (0: no record has one), of records that are alike after their
    bodies: topics and properties have the same length, and the id stands at the same place. So are those that one producer
    sent, if it gives them keys of one length or none. Nothing is looked at record by record then.

    None = they are not alike, or something needs a closer look.
    """
    count = len(ends)
    if width < 3:
        return None
    tails = bytearray().join([data[end - width : end] for data, end in zip(datas, ends, strict=True)])
    if len(tails) != count * width or (start := tails[0] + 3) > min(width, _TOPIC_MAX_BYTES + 3):
        return None
    lengths = min(width - start, 0xFFFF).to_bytes(2)
    if lengths[0] & 0x80 or not _same(tails, 0, width, tails[:1]) or not _same(tails, start - 2, width, lengths):
        return None
    # As if an end mark stood before the first property; and these two bytes are no text.
    tails[start - 2 :: width] = tails[start - 1 :: width] = _END * count
    if not tails.isascii() or _ORIGIN_AT in tails:
        return None
    at = tails.find(_UNIQ_KEY_BETWEEN, start - 1, width)
    if at < 0:
        return None if _UNIQ_KEY_AT in tails else (b"", 0)
    begin = at + len(_UNIQ_KEY_BETWEEN)
    end = tails.find(_END, begin, width)
    length = (width if end < 0 else end) - begin
    if (
        not length
        or (tails.count(_UNIQ_KEY_TAIL) != count and tails.count(_UNIQ_KEY_BETWEEN) != count)
        or not _same(tails, at, width, _UNIQ_KEY_BETWEEN)
        or (end >= 0 and not _same(tails, end, width, _END))
    ):
        return None
    ids = _cut_out(tails, begin, length, width)
    return None if _END in ids else (ids, length)


def _cut_out(data: bytearray, at: int, length: int, stride: int) -> bytes:
    """`length` bytes at `at` of each piece of `stride` bytes."""
    return b"".join(chain.from_iterable(iter_unpack(f"{at}x{length}s{stride - at - length}x", data)))


def _same(data: bytes | bytearray, at: int, stride: int, wanted: bytes | bytearray) -> bool:
    """Whether the bytes `wanted` stand at `at` of each piece of `stride` bytes."""
    count = len(data) // stride
    return all(data[at + place :: stride] == wanted[place : place + 1] * count for place in range(len(wanted)))


def _properties(datas: list[bytes], ends: list[int], widths: list[int]) -> tuple[list[bytes], bytes]:
    """The raw properties of each record, which are UTF-8, and all of them in one, with an end mark on each side of each.
    `widths` are bytes of the records without their bodies.

    Raises _OddRecordError."""
    every: list[bytes] = []
    for data, end, width in zip(datas, ends, widths, strict=True):
        topic = end - width + _HEAD_BYTES
        if topic + 3 > end or end > len(data):
            raise _OddRecordError
        topic_bytes = data[topic]
        start = topic + topic_bytes + 3
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


def _message_ids(every: Sequence[bytes], joined: bytes) -> tuple[bytes, int] | list[bytes | None] | None:
    """The unique id of each record, None where it has none; `joined` as `_properties` made it."""
    count = len(every)
    parts = joined.split(_UNIQ_KEY_BETWEEN)
    if len(parts) == 1:
        return None
    width = parts[1].find(_END)
    if len(parts) == count + 1 and width and joined.isascii() and set(map(bytes.count, every, _EACH_UNIQ_KEY)) == {1}:
        # Each record has one, and they may have the same length.
        found = b"".join([part[: width + 1] for part in parts[1:]])
        ids = found.translate(None, _END)
        if len(ids) == count * width and found[width :: width + 1] == _END * count:
            return ids, width
    return [find_property(properties, _UNIQ_KEY) for properties in every]


def _offset_ids(words: array[int], count: int) -> bytes:
    """All offset ids, one after the other; `words` as records have them. Where a word is the same in all records, as those of
    the broker's address, it is written once."""
    places = (_STORE_HOST, _STORE_HOST + 1, _PHYSICAL_OFFSET, _PHYSICAL_OFFSET + 1)
    ids = array("q", _hexadecimal(array("i", [words[place] for place in places]))) * count
    for number, place in enumerate(places):
        column = words[place::_HEAD_WORDS]
        if column != column[:1] * count:
            ids[number :: len(places)] = array("q", _hexadecimal(column))
    return ids.tobytes()


def _hexadecimal(words: array[int]) -> bytes:
    """Eight digits of each."""
    return hexlify(words).upper()


def _or_own(ids: tuple[bytes, int] | list[bytes | None] | None, own: tuple[bytes, int]) -> Ids:
    """The ids; the record's own where there is none."""
    if ids is None:
        return own
    if isinstance(ids, tuple):
        return ids
    raw, width = own
    return [raw[at * width : (at + 1) * width] if each is None else each for at, each in enumerate(ids)]


def _ends(count: int, width: int) -> Any:
    """Where strings of that width end, and more."""
    return _new_ends(count, width) if count > _KEPT_ROWS_MAX else _kept_ends(_kept_length(count), width)


def _new_ends(count: int, width: int) -> Any:
    return pa.py_buffer(array("i", range(0, width * count + 1, width)))


_kept_ends = lru_cache(maxsize=8)(_new_ends)


# --- numbers --------------------------------------------------------------------------------------------------------------


def _longs(words: array[int], at: int, count: int) -> bytes:
    """The numbers of eight bytes at `at` of each head, as this machine has them."""
    numbers = array("i", bytes(8 * count))
    numbers[_LOW::2] = words[at + 1 :: _HEAD_WORDS]
    numbers[1 - _LOW :: 2] = words[at::_HEAD_WORDS]
    return numbers.tobytes()


def _store_times_us(words: array[int], count: int) -> bytes:
    raw, highest = _longs(words, _STORED_MS, count), words[_STORED_MS::_HEAD_WORDS]
    if 0 <= highest[0] < 1 << 16 and highest == highest[:1] * count:
        # Of so many bits each (the year 10889) all are multiplied as one number: none runs over into the next.
        return (int.from_bytes(raw, sys.byteorder) * US_PER_MS).to_bytes(8 * count, sys.byteorder)
    try:
        return array("q", map(mul, memoryview(raw).cast("q"), _EACH_US_PER_MS)).tobytes()
    except OverflowError:
        raise _OddRecordError from None


def _integers(kind: Any, values: Any, count: int) -> Any:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(values)])
