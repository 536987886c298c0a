"""Records side by side in one buffer, decoded all at once: their numbers as arrays, their properties as Arrow columns.

One call of numpy or Arrow for a thousand records costs about what two calls of Python cost for one. What is checked is what
`record_info` checks, which also says what is wrong. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from ..remoting.codes import SYSFLAG_BORN_HOST_V6, SYSFLAG_STORE_HOST_V6
from ..remoting.errors import ProtocolError
from ..remoting.ids import host_text, offset_message_id
from ..remoting.properties import decode_properties
from ..remoting.stored import MAGIC_V2, record_info

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
V6_EXTRA = 12
"""Bytes that an address has more than one of version 4."""
COUNTED_PER_PAIR_MAX = 32
"""Names times records, for each property that there is, up to which they are counted in an array of that size: usual messages
share their names, and a few with thousands of names of their own would need gigabytes."""
pc: Any = pyarrow.compute
arrow: Any = pa


class Block:
    """The records of `data` that begin at `starts`, as `walk` finds them. Raises ProtocolError when one cannot be right."""

    def __init__(self, data: bytes, starts: Sequence[int]) -> None:
        self.data = data
        self.start: Ints = np.array(starts, np.int64)
        self.end = self.start + self._ints(self.start, ">i4")
        self._sysflag = sysflag = self._ints(self.start + 36, ">i4")
        self._born_more = np.where(sysflag & SYSFLAG_BORN_HOST_V6, V6_EXTRA, 0)
        self._tail = self.start + self._born_more + np.where(sysflag & SYSFLAG_STORE_HOST_V6, V6_EXTRA, 0)
        """Where a record would begin whose hosts are short: what stands behind them is counted from there."""
        self.properties_start = self._checked()

    def __len__(self) -> int:
        return len(self.start)

    def _ints(self, at: Ints, kind: str) -> Ints:
        """The numbers that stand at these bytes: of a view in which one begins at every byte."""
        everywhere = np.ndarray((len(self.data) - np.dtype(kind).itemsize + 1,), kind, self.data, 0, (1,))
        found: Ints = everywhere[at].astype(np.int64)
        return found

    def _checked(self) -> Ints:
        """Where the properties begin; every length on the way there fits."""
        start, end = self.start, self.end
        fits = self._tail + 91 <= end
        self._body_len = body_len = self._ints(np.where(fits, self._tail + 84, start), ">i4")
        topic_at = self._tail + 88 + body_len
        fits &= (body_len >= 0) & (topic_at + 3 <= end)
        at = np.where(fits, topic_at, start)
        wide = self._ints(start + 4, ">i4") == MAGIC_V2
        topic_len = np.where(wide, self._ints(at, ">i2"), self._ints(at, ">i1"))
        properties_at = topic_at + 1 + wide + topic_len
        fits &= (topic_len >= 0) & (properties_at + 2 <= end)
        properties_len = self._ints(np.where(fits, properties_at, start), ">i2")
        fits &= (properties_len >= 0) & (properties_at + 2 + properties_len == end)
        if not fits.all():
            first = int(np.argmin(fits))
            record_info(self.data, int(start[first]), int(end[first]))
            raise ProtocolError("its lengths do not fit together", f"record at byte {start[first]}")
        found: Ints = properties_at + 2
        return found

    def queue_ids(self) -> Ints:
        return self._ints(self.start + 12, ">i4")

    def queue_offsets(self) -> Ints:
        return self._ints(self.start + 20, ">i8")

    def born_ms(self) -> Ints:
        return self._ints(self.start + 40, ">i8")

    def store_ms(self) -> Ints:
        return self._ints(self.start + self._born_more + 56, ">i8")

    def reconsume_times(self) -> Ints:
        return self._ints(self._tail + 72, ">i4")

    def bodies(self) -> tuple[Ints, Ints, Ints, Ints]:
        """(begin, length, checksum, sysFlag) of each body."""
        return self._tail + 88, self._body_len, self._ints(self.start + 8, ">i4"), self._sysflag

    def offset_at(self, position: int) -> int:
        """The queue offset of the record that this byte is in."""
        return int(self.queue_offsets()[np.searchsorted(self.start, position, "right") - 1])

    def offset_ids(self) -> list[str]:
        """The ids made of broker address and commit-log offset."""
        found: list[str] = []
        for start, end in zip(self.start.tolist(), self.end.tolist(), strict=True):
            info = record_info(self.data, start, end)
            found.append(offset_message_id(host_text(info.store_address), info.store_port, info.physical_offset))
        return found

    def records(self) -> pa.Array[Any]:
        """Each whole."""
        return self.parts(self.start, self.end)

    def properties(self) -> Properties:
        """Of every record. Text that is not UTF-8 has replacement characters."""
        stored = self.parts(self.properties_start, self.end)
        try:
            texts = stored.cast(pa.string())
        except pa.ArrowInvalid:
            listed: list[Any] = stored.to_pylist()
            texts = pa.array([str(one, "utf-8", "replace") for one in listed], pa.string())
        return Properties(texts)

    def parts(self, starts: Ints, ends: Ints) -> pa.Array[Any]:
        """These bytes of each record. Arrow cuts the whole block at all ends without a copy, and takes every second piece."""
        count = len(starts)
        bounds = np.empty(2 * count, np.int32)
        bounds[::2], bounds[1::2] = starts, ends
        pieces = arrow.Array.from_buffers(
            pa.binary(), 2 * count - 1, [None, arrow.py_buffer(bounds), arrow.py_buffer(self.data)]
        )
        found: pa.Array[Any] = pieces.take(arrow.array(np.arange(0, 2 * count, 2)))
        return found


class Properties:
    """Names and values of all records one behind the other, and which record each pair is of."""

    def __init__(self, texts: pa.Array[Any]) -> None:
        self._records = len(texts)
        if not self._take_regular(texts):
            self._take_any(texts)
        self._leave_out_empty()
        if self._names_twice():
            self._set_dicts([decode_properties(str(text)) for text in texts.to_pylist()])

    def _take_regular(self, texts: Any) -> bool:
        """Texts in which name, \\x01, value and \\x02 follow each other, as 5.x writes them: cut at all of these at once."""
        _, offsets, values = texts.buffers()
        ends = np.frombuffer(offsets, np.int32)[1 : self._records + 1]
        raw = np.frombuffer(values, np.uint8) if values is not None else np.empty(0, np.uint8)
        raw = raw[: ends[-1]]
        cuts = np.flatnonzero((raw == 1) | (raw == 2))
        kinds, count = raw[cuts], len(cuts) // 2
        if len(cuts) % 2 or (kinds[::2] != 1).any() or (kinds[1::2] != 2).any() or not count:
            return False
        starts = np.concatenate([[0], ends[:-1]])
        if (raw[ends[ends > starts] - 1] != 2).any():
            return False
        bounds = np.empty(2 * len(cuts) + 1, np.int32)
        bounds[0], bounds[1::2], bounds[2::2] = 0, cuts, cuts + 1
        pieces = arrow.Array.from_buffers(pa.string(), 2 * len(cuts), [None, arrow.py_buffer(bounds), values])
        at = np.arange(0, 4 * count, 4)
        pairs = np.diff(np.searchsorted(cuts[1::2], ends), prepend=0)
        record = np.repeat(np.arange(self._records), pairs)
        self._set(record, pieces.take(arrow.array(at)), pieces.take(arrow.array(at + 2)))
        return True

    def _take_any(self, texts: Any) -> None:
        segments = pc.split_pattern(texts, "\x02")
        counts = pc.list_value_length(segments).to_numpy()
        pairs = pc.split_pattern(segments.flatten(), "\x01", max_splits=1)
        whole = pc.list_value_length(pairs).to_numpy() == 2
        record = np.repeat(np.arange(self._records), counts)[whole]
        parts = pairs.filter(arrow.array(whole)).flatten()
        at = np.arange(len(record)) * 2
        self._set(record, parts.take(arrow.array(at)), parts.take(arrow.array(at + 1)))

    def _set(self, record: Any, names: Any, values: Any) -> None:
        self._record, self._names, self._values = record, names, values
        encoded = names.dictionary_encode()
        self._codes = encoded.indices.to_numpy()
        self._known: list[str] = encoded.dictionary.to_pylist()

    def _leave_out_empty(self) -> None:
        sizes = (pc.binary_length(self._names).to_numpy(), pc.binary_length(self._values).to_numpy())
        full = (sizes[0] > 0) & (sizes[1] > 0)
        if not full.all():
            mask = arrow.array(full)
            self._set(self._record[full], self._names.filter(mask), self._values.filter(mask))

    def _names_twice(self) -> bool:
        pairs = self._record * len(self._known) + self._codes
        if self._records * len(self._known) > COUNTED_PER_PAIR_MAX * len(pairs):
            return len(np.unique(pairs)) < len(pairs)
        return bool(len(pairs)) and int(np.bincount(pairs).max()) > 1

    def _set_dicts(self, found: Sequence[dict[str, str]]) -> None:
        """The last one counts."""
        names = [name for properties in found for name in properties]
        values = [value for properties in found for value in properties.values()]
        record = np.repeat(np.arange(self._records), [len(properties) for properties in found])
        self._set(record, pa.array(names, pa.string()), pa.array(values, pa.string()))

    def column(self, name: str) -> pa.Array[Any]:
        """The property of that name of each record, null where there is none."""
        at = np.full(self._records, -1)
        if name in self._known:
            (found,) = np.nonzero(self._codes == self._known.index(name))
            at[self._record[found]] = found
        taken: pa.Array[Any] = self._values.take(arrow.array(at, mask=at < 0))
        return taken

    def maps(self) -> pa.Array[Any]:
        """All properties of each record."""
        ends = np.cumsum(np.bincount(self._record, minlength=self._records))
        offsets = arrow.array(np.concatenate([[0], ends]).astype(np.int32))
        found: pa.Array[Any] = arrow.MapArray.from_arrays(offsets, self._names, self._values)
        return found
