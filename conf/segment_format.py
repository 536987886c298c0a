"""The segment format: what a worker writes and the Spark loader reads. Names only, so that both rooms share one truth.

A *segment* is one Arrow IPC stream file (uncompressed) of one worker. While it grows it lies in `open/`; sealing closes
the stream, fsyncs the file and renames it into `ready/`, where it never changes again. The loader plans in `plan/`, and
puts what it can't read into `bad/` beside a reason file. What became of messages without rows is in `outcomes/`.

Rules both sides rely on:
- A record batch holds whole messages only: all rows of one handled record stand in one batch, one after the other, with
  `_seq` counting 0, 1, 2, … So `_seq == 0` starts a record, and a record that was handled twice shows two such starts.
- The key columns stand first, in this order, with these types, none null except the two message ids; the user's
  columns follow and never start with an underscore.
- Topic, broker and queue id are those of the queue the record was *pulled* from (`%RETRY%group` for a retry);
  `_origin_topic` is the restored one.
- A sealed stream ends with Arrow's end-of-stream mark or, when it was salvaged, at a batch boundary. Anything cut
  inside a batch is damaged.
- Strings that are the same in many rows (group, topic, broker) are plain `string`: Spark maps them without help.

This module imports nothing heavy at load: the supervisor needs the folder names, and must not pay for pyarrow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from isal import isal_zlib

if TYPE_CHECKING:
    import pyarrow as pa

_crc32: Callable[..., int] = isal_zlib.crc32  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

FORMAT_VERSION: Final = 1
"""Version of the layout below. A reader refuses a higher one; a writer of a new layout raises it."""
PLAN_VERSION: Final = 2
REQUEST_VERSION: Final = 1
"""Of plans, and of the request in EPOCH_FILE: here, as what reads these imports pyarrow."""

META_VERSION: Final = b"rocketcrew.version"
"""Schema metadata: FORMAT_VERSION as decimal digits."""
META_GROUP: Final = b"rocketcrew.group"
"""Schema metadata: the consumer group, UTF-8."""
META_USER_SCHEMA: Final = b"rocketcrew.schema"
"""Schema metadata: the user's columns as the DDL text they were declared with (or its equivalent), UTF-8."""
META_BATCH_OUTCOMES: Final = b"rocketcrew.outcomes"
"""Custom metadata of one record batch: JSON, the pulled records finished up to this flush, also those without rows."""

META_BATCH_CHECK: Final = b"rocketcrew.check"
"""Custom metadata of one record batch: CHECK_PREFIX and the CRC-32 of the whole message in hexadecimal, taken with
CHECK_BLANK in its place. A file that was not fsynced when power was lost may have pages of zeros where Arrow finds
nothing wrong."""
CHECK_PREFIX: Final = b"\x01crc32:"
"""Found first where it is meant: no other metadata holds a control character, and they stand before the rows."""
CHECK_BLANK: Final = CHECK_PREFIX + b"00000000"
_LENGTH_END: Final = 8
"""A message begins with a mark of four bytes and the length of its metadata in as many; then that follows, and the rows."""

GROUP: Final = "_group"
TOPIC: Final = "_topic"
BROKER: Final = "_broker"
QUEUE_ID: Final = "_queue_id"
OFFSET: Final = "_offset"
SEQ: Final = "_seq"
ORIGIN_TOPIC: Final = "_origin_topic"
MESSAGE_ID: Final = "_message_id"
ORIGIN_MESSAGE_ID: Final = "_origin_message_id"
RECONSUME_TIMES: Final = "_reconsume_times"
STORE_TIME: Final = "_store_time"
EPOCH: Final = "_epoch"
"""Not in segments: a column of tables, how often the queue's offsets began anew (null = 0)."""

KEY_COLUMNS: Final = (
    GROUP,
    TOPIC,
    BROKER,
    QUEUE_ID,
    OFFSET,
    SEQ,
    ORIGIN_TOPIC,
    MESSAGE_ID,
    ORIGIN_MESSAGE_ID,
    RECONSUME_TIMES,
    STORE_TIME,
)
"""Names of the key columns, in file order."""

OPEN_DIR: Final = "open"
READY_DIR: Final = "ready"
PLAN_DIR: Final = "plan"
BAD_DIR: Final = "bad"
REASON_SUFFIX: Final = ".reason.json"
"""Behind the name of a file in bad/: why it lies there. It stays when the file is repaired and moved back."""
OUTCOMES_DIR: Final = "outcomes"
"""What became of records that have no rows, noted by the supervisor until the loader takes it (durable/outcomes.py)."""
EPOCH_FILE: Final = "epochs.json"
"""A request for new epochs, written by `rocketcrew reset --reprocess` (spark/epochs.py)."""
LOADER_STATUS_FILE: Final = "loader.json"
LEDGER_DIR, LEDGER_STATE, LEDGER_ID = "ledger", "state.json", "id"
"""Folder and files of the loaded set of a target that keeps none itself (spark/targets/ledger.py)."""
LEDGER_AT: Final = "ledger.at"
"""Of a staging folder whose ledger is in another one: where that is."""

SEGMENT_SUFFIX: Final = ".arrows"
SEGMENT_NAME: Final = re.compile(r"(?P<worker>[A-Za-z0-9._]+(?:-[A-Za-z0-9._]+)*)-(?P<seq>\d+)\.arrows")
"""`<worker_id>-<seq>.arrows`: the worker id must be unique among all workers that ever wrote into the folder (put the
start time or a random part into it), `seq` counts its segments; so a name is never used twice."""

END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""Last eight bytes of a stream that was closed in order."""


def segment_name(worker_id: str, seq: int) -> str:
    """File name of segment `seq` (>= 0) of `worker_id`; zero-padded, so that one worker's names sort as they were made."""
    return f"{worker_id}-{seq:08d}{SEGMENT_SUFFIX}"


def key_fields() -> list[pa.Field[Any]]:
    """The key columns as Arrow fields, in file order: the head of every segment's schema."""
    import pyarrow as pa

    return [
        pa.field(GROUP, pa.string(), nullable=False),
        pa.field(TOPIC, pa.string(), nullable=False),
        pa.field(BROKER, pa.string(), nullable=False),
        pa.field(QUEUE_ID, pa.int32(), nullable=False),
        pa.field(OFFSET, pa.int64(), nullable=False),
        pa.field(SEQ, pa.int32(), nullable=False),
        pa.field(ORIGIN_TOPIC, pa.string(), nullable=False),
        pa.field(MESSAGE_ID, pa.string()),
        pa.field(ORIGIN_MESSAGE_ID, pa.string()),
        pa.field(RECONSUME_TIMES, pa.int32(), nullable=False),
        pa.field(STORE_TIME, pa.timestamp("us", tz="UTC"), nullable=False),
    ]


FOLDER_FORMATS = ("parquet", "pyarrow", "delta", "deltalake", "iceberg", "iceberg-spark")
"""Values of `spark.format` whose tables are folders that know what they hold. Any other target is at least once."""


def with_check(memory: bytearray, start: int, end: int) -> None:
    """Write the checksum into the encoded batch from `start` to `end`, which was made with CHECK_BLANK."""
    at = memory.index(CHECK_BLANK, start, end) + len(CHECK_PREFIX)
    memory[at : at + 8] = b"%08x" % _crc32(memoryview(memory)[start:end])


class ReadBatch(NamedTuple):
    """A record batch of a segment as it was read."""

    batch: Any
    metadata: Mapping[bytes, bytes]
    end: int
    """Where it ends in the file."""
    holds: bool
    """Whether its bytes are as they were written."""


def read_batches(source: Any, reader: Any) -> Iterator[ReadBatch]:
    """The batches up to the end of the stream, each with what its checksum says; `reader` is Arrow's of the file `source`."""
    start = source.tell()
    while True:
        try:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            return
        end = source.tell()
        source.seek(start)
        yield ReadBatch(batch, metadata or {}, end, check_holds(memoryview(source.read_buffer(end - start))))
        start = end


class UnsoundSegmentError(ValueError):
    """A segment is not as it was written; the text says where."""


def sound_batches(source: Any, reader: Any) -> Iterator[ReadBatch]:
    """The batches of a segment, as read by Arrow's `reader` of the mapped file `source`.

    Raises UnsoundSegmentError at the first of which the checksum does not hold, and where something follows the last one: a
    page of zeros looks like an end to Arrow.
    """
    end = source.tell()
    for number, read in enumerate(read_batches(source, reader), 1):
        if not read.holds:
            raise UnsoundSegmentError(
                f"batch {number}, which ends at byte {read.end}, is not as it was written: its checksum says so"
            )
        yield read
        end = read.end
    source.seek(end)
    if source.size() > end and source.read_buffer().to_pybytes() != END_OF_STREAM:
        raise UnsoundSegmentError(f"its stream ends at byte {end}, and other bytes follow")


def ready_files(ready: Path) -> list[tuple[Path, os.stat_result]]:
    """What lies in ready/, oldest first (by sealing time, then name), as it is loaded; names that start with a dot are
    drafts. One that is deleted meanwhile is left out. Raises OSError."""
    found: list[tuple[Path, os.stat_result]] = []
    with os.scandir(ready) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if not entry.name.startswith("."):
                    found.append((Path(entry.path), _state_of(entry)))
    return sorted(found, key=lambda item: (item[1].st_mtime_ns, item[0].name))


def _state_of(entry: os.DirEntry[str]) -> os.stat_result:
    try:
        return entry.stat()
    except FileNotFoundError:  # a link that leads nowhere; whoever opens it finds out
        return entry.stat(follow_symlinks=False)


def check_holds(message: memoryview) -> bool:
    """Whether the encoded batch is as it was written. One that carries no checksum, or only a part of it, is not."""
    head = bytes(message[: _LENGTH_END + int.from_bytes(message[4:_LENGTH_END], "little")])
    at = head.find(CHECK_PREFIX)
    if at < 0:
        return False
    end = at + len(CHECK_BLANK)
    crc = _crc32(message[end:], _crc32(CHECK_BLANK, _crc32(message[:at])))
    return head[at:end] == CHECK_PREFIX + b"%08x" % crc
