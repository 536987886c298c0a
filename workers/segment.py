"""A worker's open segment: rows go to disk before their messages are reported, and are sealed by fsync and one rename.

Each flush is brought into its final bytes in memory and then written; when a write fails in the middle (disk full), the
file is cut back to its last whole batch and the write is tried again until it succeeds. A disk may refuse the cut as well
(btrfs, quotas): then no try writes before it has cut. Nothing is reported meanwhile, so the supervisor's windows fill and
consumption stops by itself; nothing is lost. What decides how long to wait, and whether the supervisor is still there, is
the caller's `pause`.

The handler's code may close a descriptor of its own twice, and by the second time its number may be the segment's; what it
opens next has that number then. So the file is looked at before it is written: neither do rows go into somebody else's file,
nor is anything sealed that somebody else wrote into this one. It is open for appending, so that all such writes make it
longer, wherever they are meant for, and rows go to its end, wherever somebody else has moved its position.

A segment that is full, idle or asked for gets its end mark and is closed; sealing.py makes it durable. Where the close says
that something was not written (NFS), a later sync of the file may know nothing of that: a synced copy takes its place.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow

from ..conf.segment_format import (
    CHECK_BLANK,
    END_OF_STREAM,
    META_BATCH_CHECK,
    META_BATCH_OUTCOMES,
    OPEN_DIR,
    READY_DIR,
    segment_name,
    with_check,
)
from ..conf.units import NS_PER_MS
from ..durable.files import out_of_the_way
from .descriptors import SpareDescriptor
from .link import check_own, identity
from .packets import Sealed
from .sealing import Pause, SegmentLostError, put_copy

pa: Any = pyarrow

AGE_FACTOR: Final = 3
"""A segment that gets rows all the time is sealed at this many times the idle limit: half of it is what a row of a steady
stream waits for at least, and a commit of offsets; each time costs a file and its fsync."""

ENCODED_MIN_BYTES: Final = 256 * 1024
"""Batches are brought into their bytes one after the other in one piece of memory, so that it stays in the processor's cache
and neither it nor the schema is made anew for each."""
ENCODED_MAX_BYTES: Final = 8 * 1024 * 1024
"""It grows with the batches up to this; a larger batch gets memory of its own."""
_METADATA_BYTES_MAX: Final = 4 * 1024
"""Of a batch, beside its rows and the outcomes."""
_PLAIN_OPTIONS: Final = pa.ipc.IpcWriteOptions()
"""Given, because Arrow would look for its settings in the environment each time."""

Result = TypeVar("Result")
Write = Callable[[int, memoryview], int]


class _Encoder:
    """Brings batches of one schema into their bytes, one after the other in `memory`."""

    def __init__(self, schema: pyarrow.Schema, schema_bytes: bytes, memory: bytearray) -> None:
        self._memory = memory
        self._sink: Any = pa.FixedSizeBufferWriter(pa.py_buffer(memory))
        self._writer: Any = pa.ipc.new_stream(self._sink, schema, options=_PLAIN_OPTIONS)
        # The first batch comes after the schema. The writer isn't closed, which would add the end mark.
        self._end = len(schema_bytes)

    def encode(self, batch: pyarrow.RecordBatch, metadata: dict[bytes, bytes]) -> memoryview:
        """The message with its checksum. Raises OSError where it does not fit; then this encoder is of no more use."""
        self._writer.write_batch(batch, custom_metadata=metadata)
        start, self._end = self._end, self._sink.tell()
        with_check(self._memory, start, self._end)
        return memoryview(self._memory)[start : self._end]


class SegmentWriter:
    """Appends record batches of one schema to numbered segments of one worker."""

    def __init__(
        self,
        folder: Path,
        worker_id: str,
        schema: pyarrow.Schema,
        *,
        seal_rows: int,
        seal_bytes: int,
        seal_idle_ms: int,
        pause: Pause,
        goes_on: Callable[[], None] = lambda: None,
        write: Write = os.write,
        cut: Callable[[int, int], None] = os.ftruncate,
        close: Callable[[int], None] = os.close,
        spare: SpareDescriptor | None = None,
    ) -> None:
        """`folder` is the slot's `segments/`; its `open/` and `ready/` are made when missing. `goes_on` is called when what
        was tried again has succeeded. `write`, `cut` and `close` as those of `os`; `spare` serves where no descriptor is
        left."""
        self._open_dir = folder / OPEN_DIR
        self._ready_dir = folder / READY_DIR
        self.spare = spare
        self._worker_id = worker_id
        self._fd = -1
        self._own = (0, 0)
        """Which file it is at."""
        self._memory = bytearray()
        self.use(schema)
        self._seal_rows = seal_rows
        self._seal_bytes = seal_bytes
        self._idle_ns = seal_idle_ms * NS_PER_MS
        self._pause = pause
        self._goes_on = goes_on
        self._write = write
        self._cut_at = cut
        self._close_fd = close
        self._torn = False
        """There may be bytes behind `_size`."""
        self._name = ""
        self._rows = 0
        self._size = 0
        self._opened_ns = 0
        self._appended_ns = 0
        self.seq = 0
        """Number of the segment that is or was last open; 0 before the first."""

    def use(self, schema: pyarrow.Schema) -> None:
        """The columns of all segments from now on; while none is open."""
        assert self._fd < 0, "a segment has one schema"
        self._schema = schema
        self._schema_bytes: bytes = schema.serialize().to_pybytes()
        self._encoder: _Encoder | None = None

    @property
    def is_open(self) -> bool:
        """Rows are written into a file that is not closed."""
        return self._fd >= 0

    def append(self, batch: pyarrow.RecordBatch, outcomes: bytes, now_ns: int) -> int:
        """Write one batch with its finished offsets (JSON); returns the segment's number. Blocks while the disk is full."""
        self.check()
        data = self._encode(batch, outcomes)
        if self._fd < 0:
            self._insist("opening a segment", self._open)
            self._opened_ns = now_ns
            self._insist("writing a segment", lambda: self._write_whole(memoryview(self._schema_bytes)))
        self._insist("writing a segment", lambda: self._write_whole(data))
        self._rows += batch.num_rows
        self._appended_ns = now_ns
        return self.seq

    def _encode(self, batch: pyarrow.RecordBatch, outcomes: bytes) -> memoryview:
        """The batch as it is in the file; to be written before the next is encoded."""
        metadata = {META_BATCH_OUTCOMES: outcomes, META_BATCH_CHECK: CHECK_BLANK}
        if self._encoder is not None:
            try:
                return self._encoder.encode(batch, metadata)
            except OSError:
                self._encoder = None  # the batch does not fit into what is left
        needed = len(self._schema_bytes) + pa.ipc.get_record_batch_size(batch) + len(outcomes) + _METADATA_BYTES_MAX
        if needed > ENCODED_MAX_BYTES:
            return _Encoder(self._schema, self._schema_bytes, bytearray(needed)).encode(batch, metadata)
        if needed > len(self._memory):
            self._memory = bytearray(min(max(ENCODED_MIN_BYTES, 2 * needed), ENCODED_MAX_BYTES))
        self._encoder = _Encoder(self._schema, self._schema_bytes, self._memory)
        return self._encoder.encode(batch, metadata)

    def check(self) -> None:
        """Raises DescriptorsClosedError when the descriptor is closed, or somebody else's by now, and SegmentLostError when
        the file is not as long as what was written. The descriptor stays: it may not be ours to close, and every later look
        has to find the same."""
        if self._fd < 0:
            return
        found = check_own(self._fd, self._own, f"segment {self._name}")
        if found is not None and found.st_size != self._size and not self._torn:
            raise SegmentLostError(
                f"segment {self._name}: {found.st_size} bytes, and {self._size} were written: what is whole is kept"
            )

    def seal_due_ns(self) -> int | None:
        """When the open segment is to be sealed for its idleness or age; None when nothing is open."""
        if self._fd < 0:
            return None
        return min(self._appended_ns + self._idle_ns, self._opened_ns + AGE_FACTOR * self._idle_ns)

    def due(self, now_ns: int) -> bool:
        """The open segment should be sealed: by rows, bytes, idleness or age."""
        due_ns = self.seal_due_ns()
        return due_ns is not None and (
            now_ns >= due_ns or self._rows >= self._seal_rows or self._size >= self._seal_bytes
        )

    def detach(self) -> tuple[Path, Sealed] | None:
        """End the open segment: its file, to be sealed, and what it holds; None when nothing is open. Blocks while the disk
        refuses."""
        if self._fd < 0:
            return None
        self.check()
        self._insist("writing a segment", lambda: self._write_whole(memoryview(END_OF_STREAM)))
        self._insist("closing a segment", self._close)
        return self._open_dir / self._name, Sealed(self.seq, self._rows, self._size, self._name)

    def _open(self) -> None:
        self._open_dir.mkdir(parents=True, exist_ok=True)
        self._ready_dir.mkdir(parents=True, exist_ok=True)
        seq = self.seq + 1
        while (self._ready_dir / segment_name(self._worker_id, seq)).exists():
            seq += 1
        name = segment_name(self._worker_id, seq)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        open_file = os.open if self.spare is None else self.spare.open
        fd = out_of_the_way(open_file(self._open_dir / name, flags, 0o644))
        self._name, self.seq, self._rows, self._size, self._torn = name, seq, 0, 0, False
        self._own, self._fd = identity(fd), fd

    def _write_whole(self, data: memoryview) -> None:
        """All of `data` at the end of what is whole, or nothing and OSError."""
        if self._torn:
            self._cut()
        self._torn, written = True, 0
        try:
            while written < len(data):
                written += self._write(self._fd, data[written:])
        except OSError:
            with contextlib.suppress(OSError):  # the next try begins with it
                self._cut()
            raise
        self._size += written
        self._torn = False

    def _cut(self) -> None:
        self.check()  # a write that failed may have been to somebody else's file, and no waiting mends that
        self._cut_at(self._fd, self._size)
        self._torn = False

    def _close(self) -> None:
        """The number is free whatever the close says; the next try makes a copy."""
        if self._fd < 0:
            put_copy(self._open_dir / self._name, self._size)  # what was lost may be whole batches
            return
        fd, self._fd = self._fd, -1
        self._close_fd(fd)
        if self.spare is not None:
            self.spare.hold()

    def _insist(self, what: str, action: Callable[[], Result]) -> Result:
        failed = False
        while True:
            try:
                result = action()
            except OSError as error:
                failed = True
                self._pause(what, error)
            else:
                if failed:
                    self._goes_on()
                return result
