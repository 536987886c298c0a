"""Stored records to Arrow batches, column by column, without an object per message (blocks.py). Pure.

The tag filter stands here and not in the pull: a broker compares hashes, and what a range of offsets holds must not depend
on what somebody else asked the broker to filter. Text that is not UTF-8 is shown with replacement characters, so that one odd
message does not stop a stream for ever; a body that is not what its checksum says does stop it, unless failOnDataLoss is
false: then that body is null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from isal import isal_zlib

from ..remoting.codes import SYSFLAG_COMPRESSED, SYSFLAG_INNER_BATCH
from ..remoting.compression import decompress
from ..remoting.errors import ProtocolError
from ..remoting.properties import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from ..remoting.queues import MessageQueue
from ..remoting.stored import SYSFLAG_LOW_BYTE as _SYSFLAG_LOW_BYTE
from ..remoting.stored import decode_message, encode_message, is_inner_batch, split_inner_batch, walk
from .blocks import Block, Properties
from .columns import COLUMNS, arrow_schema

ROWS_MAX = 4_096
BYTES_MAX = 8 * 1024 * 1024
"""Of records in one Arrow batch; with the largest pull on top."""
COMPRESSED_WEIGHT = 9
"""A compressed record counts as so many more: what it grows to is known only when it is decoded."""
TIME_MIN_MS = -62_135_596_800_000
TIME_MAX_MS = 253_402_300_799_999
"""The years 1 to 9999, which Spark and Python can show."""
_UNUSUAL = SYSFLAG_COMPRESSED | SYSFLAG_INNER_BATCH
_OF_PROPERTIES = frozenset({"tags", "keys", "properties", "messageId"})

pc: Any = pyarrow.compute
arrow: Any = pa
Buffer = bytes | bytearray | memoryview

_crc32: Callable[[bytes], int] = isal_zlib.crc32  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
"""Five times as fast as the library's."""


class Rows:
    """Rows of one queue on their way to Arrow; `take` adds those of a pull, `flush` gives what there is."""

    def __init__(self, columns: Sequence[str], queue: MessageQueue, tags: frozenset[str], strict: bool) -> None:
        """`queue` with its topic as users know it; `strict`: a damaged body is an error."""
        self._schema = arrow_schema(columns)
        self._queue = queue
        self._tags = pa.array(sorted(tags), pa.string())
        self._strict = strict
        self._begin()

    def _begin(self) -> None:
        self._stretches: list[Buffer] = []
        """Records side by side, as they were stored."""
        self._starts: list[int] = []
        """Where each record begins, counted over all stretches."""
        self._end = 0
        self._weight = 0

    @property
    def full(self) -> bool:
        """Whether it is time for a batch."""
        return len(self._starts) >= ROWS_MAX or self._weight >= BYTES_MAX

    def take(self, data: Buffer, start: int, end: int) -> list[tuple[int, int]]:
        """Add the rows with offsets from `start` to `end`; the offsets in between that no record had, as ranges.

        Raises ProtocolError for records that cannot be right; `flush` looks closer.
        """
        positions, offsets = walk(data)
        if offsets and offsets[0] == start and offsets[-1] == end - 1 and len(offsets) == end - start:
            starts, flags = positions[:-1], 0
            for position in starts:
                flags |= data[position + _SYSFLAG_LOW_BYTE]
            if not flags & _UNUSUAL:
                self._add(data, starts)
                return []
        return self._take_some(data, positions, offsets, start, end)

    def _take_some(
        self, data: Buffer, positions: Sequence[int], offsets: Sequence[int], start: int, end: int
    ) -> list[tuple[int, int]]:
        """As `take`, for what is not just the records that were asked for."""
        gaps: list[tuple[int, int]] = []
        at = start
        wanted: list[int] = []
        for (position, following), last in zip(pairwise(positions), offsets, strict=True):
            if last < at:
                continue
            first = last
            flags = data[position + _SYSFLAG_LOW_BYTE]
            if is_inner_batch(flags):
                self._add(data, wanted)
                wanted = []
                first = self._add_parts(data, position, following, at, end)
            elif first < end:
                wanted.append(position)
                if flags & SYSFLAG_COMPRESSED:
                    self._weight += COMPRESSED_WEIGHT * (following - position)
            if first > at:
                gaps.append((at, min(first, end)))
            at = last + 1
            if at >= end:
                break
        self._add(data, wanted)
        if at < end:
            gaps.append((at, end))
        return gaps

    def _add(self, data: Buffer, positions: list[int]) -> None:
        """Records that stand side by side in `data`."""
        if not positions:
            return
        begin, last = positions[0], positions[-1]
        end = last + int.from_bytes(data[last : last + 4], "big")
        moved = self._end - begin
        self._starts += [position + moved for position in positions]
        self._stretches.append(data[begin:end])
        self._end += end - begin
        self._weight += end - begin

    def _add_parts(self, data: Buffer, position: int, following: int, start: int, end: int) -> int:
        """The messages of an inner batch, as records of their own; the offset of the first."""
        message = decode_message(data, position, following)
        for part in split_inner_batch(message):
            if start <= part.queue_offset < end:
                self._add(encode_message(part), [0])
        return message.queue_offset

    def flush(self) -> pa.RecordBatch | None:
        """What was taken since the last one, None when nothing was.

        Raises ProtocolError for records that cannot be right and, where `strict`, for damaged bodies.
        """
        data, starts = b"".join(self._stretches), self._starts
        self._begin()
        if starts and len(self._tags):
            tags = Block(data, starts).properties().column(PROPERTY_TAGS)
            starts = [start for start, keep in zip(starts, pc.is_in(tags, self._tags).to_pylist(), strict=True) if keep]
        if not starts:
            return None
        block = Block(data, starts)
        properties = block.properties() if _OF_PROPERTIES & set(self._schema.names) else None
        arrays = [self._array(name, block, properties) for name in self._schema.names]
        batches: Any = pa.RecordBatch
        batch: pa.RecordBatch = batches.from_arrays(arrays, schema=self._schema)
        return batch

    def _array(self, name: str, block: Block, properties: Properties | None) -> pa.Array[Any]:
        kind = COLUMNS[name].arrow
        match name:
            case "topic" | "brokerName":
                same = self._queue.topic if name == "topic" else self._queue.broker_name
                repeated: pa.Array[Any] = arrow.repeat(pa.scalar(same, kind), len(block))
                return repeated
            case "queueId":
                return pa.array(block.queue_ids()).cast(kind)
            case "queueOffset":
                return pa.array(block.queue_offsets())
            case "reconsumeTimes":
                return pa.array(block.reconsume_times()).cast(kind)
            case "bornTimestamp":
                return _times(block.born_ms(), kind)
            case "storeTimestamp":
                return _times(block.store_ms(), kind)
            case "body":
                return self._bodies(block)
            case "record":
                return block.records()
            case _:
                assert properties is not None, "it is made where a column needs it"
                return _of_properties(name, block, properties)

    def _bodies(self, block: Block) -> pa.Array[Any]:
        data = block.data
        starts, lengths, crcs, sysflags = block.bodies()
        ends = starts + lengths
        found = [_crc32(data[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        odd = ((np.array(found, np.int64) & 0x7FFFFFFF) != crcs) | ((sysflags & SYSFLAG_COMPRESSED) != 0)
        bodies = block.parts(starts, ends)
        if not odd.any():
            return bodies
        listed: list[Any] = bodies.to_pylist()
        for at in np.nonzero(odd)[0].tolist():
            listed[at] = self._unusual(listed[at], int(crcs[at]), int(sysflags[at]), block, int(starts[at]))
        return pa.array(listed, pa.binary())

    def _unusual(self, stored: bytes, crc: int, sysflag: int, block: Block, start: int) -> bytes | None:
        """The body that is compressed, empty or damaged."""
        try:
            if stored and _crc32(stored) & 0x7FFFFFFF != crc:
                raise ProtocolError("body does not match its checksum", "message body")
            return decompress(stored, sysflag)
        except ProtocolError as error:
            if not self._strict:
                return None
            queue, offset = self._queue, block.offset_at(start)
            where = f"message at offset {offset} of {queue.topic} on {queue.broker_name}, queue {queue.queue_id}"
            raise ProtocolError(f"{error.what}; failOnDataLoss=false shows such bodies as null", where) from None


def _times(ms: Any, kind: Any) -> pa.Array[Any]:
    """Null where no timestamp is: a producer writes any number that it likes."""
    out = (ms < TIME_MIN_MS) | (ms > TIME_MAX_MS)
    times: pa.Array[Any] = arrow.array(np.where(out, 0, ms) * 1000, mask=out).cast(kind)
    return times


def _of_properties(name: str, block: Block, properties: Properties) -> pa.Array[Any]:
    match name:
        case "tags":
            return properties.column(PROPERTY_TAGS)
        case "keys":
            return properties.column(PROPERTY_KEYS)
        case "properties":
            return properties.maps()
        case _:
            unique = properties.column(PROPERTY_UNIQ_KEY)
            if unique.null_count:
                unique = pc.coalesce(unique, pa.array(block.offset_ids()))
            return unique
