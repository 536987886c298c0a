"""Segments of dead workers: keep the complete prefix, seal it, say which pulled records are in it.

A worker killed at any instant leaves whole batches and at most one torn one at the end of its open file, because it only ever
appends. After a loss of power it may also hold pages of zeros: each batch carries a checksum, and the first one that does not
hold ends the prefix. A synced copy of the prefix takes the file's place, is renamed into `ready/`, and counts as done. The
file itself may have had a sync that failed while its worker lived; the kernel then takes its pages for written, and another
sync would say yes with nothing on the disk. A file without a whole batch is removed. Only for workers that are certainly
dead: the file of a living one would be taken from under its feet.

A name that is no longer in `open/` was sealed by its worker in its last moment, or salvaged by one that was killed before it
said so. In `ready/` it is read there and left as it is; if it is in neither, the loader has taken it already, or it held
nothing: it is reported as sealed with nothing known of its content. A worker's successor takes that for a seal, a start does
not (core/journal.py), and the loader's own record of offsets keeps what runs again from being loaded twice.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow

from ..conf.segment_format import OPEN_DIR, READY_DIR, SEGMENT_NAME, SEGMENT_SUFFIX
from ..durable.files import CALLS, FileCalls, sync_path
from ..remoting.errors import UsageError
from .packets import Salvaged
from .prefix import Prefix, complete_prefix
from .sealing import publish, put_copy

pa: Any = pyarrow


def warm_up() -> None:
    """Write and read a stream once: a forked process gets its own copies of the pages that takes, before it is in a hurry."""
    schema = pa.schema([("a", pa.int32())])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array([0], pa.int32())], schema))
    reader = pa.ipc.open_stream(sink.getvalue())
    reader.read_next_batch_with_custom_metadata()


def salvage(path: Path, calls: FileCalls = CALLS) -> Salvaged:
    """Salvage `open/<name>` (see the module's text). Raises UsageError for a path that is no open segment, OSError."""
    worker, seq = _named(path)
    ready_dir = path.parent.parent / READY_DIR
    ready_dir.mkdir(exist_ok=True)
    if not path.exists():
        prefix = Prefix()
        with contextlib.suppress(FileNotFoundError):
            prefix = complete_prefix(ready_dir / path.name)
        return Salvaged(path.name, worker, seq, path.name, prefix.rows, prefix.size_bytes, prefix.finished.queues())
    prefix = complete_prefix(path)
    if not prefix.batches:
        path.unlink()
        sync_path(path.parent)
        return nothing_of(path)
    put_copy(path, prefix.size_bytes, calls)
    publish(path, ready_dir, calls)
    return Salvaged(path.name, worker, seq, path.name, prefix.rows, prefix.size_bytes, prefix.finished.queues())


def nothing_of(path: Path) -> Salvaged:
    """Says of `open/<name>` that there is no sealed segment of it: what it holds runs again. Raises UsageError as above."""
    worker, seq = _named(path)
    return Salvaged(path.name, worker, seq, None, 0, 0, ())


def _named(path: Path) -> tuple[str, int]:
    """The worker and the number of an open segment."""
    match = SEGMENT_NAME.fullmatch(path.name)
    if match is None or path.parent.name != OPEN_DIR:
        raise UsageError(f"{path} is not an open segment ({OPEN_DIR}/<worker>-<seq>{SEGMENT_SUFFIX})")
    return match["worker"], int(match["seq"])
