"""Whether a later version of this program has written in a dead slot: before anything of it is taken over.

A member of a later version may have run on this data_dir, as one that tries it out beside the others does. What it leaves is
for its own version. One segment of it in our folder would end our loader at each start (spark/segments.py), and its journal,
which we would delete, says what needs not run again. So its whole slot is left as it is, until a member of that version or a
newer one starts.

A file that is damaged, or of an earlier version, is none of a later one: who takes the slot over deals with that.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

from ..conf.segment_format import (
    BAD_DIR,
    EPOCH_FILE,
    FORMAT_VERSION,
    LEDGER_STATE,
    META_VERSION,
    OPEN_DIR,
    OUTCOMES_DIR,
    PLAN_DIR,
    PLAN_VERSION,
    READY_DIR,
    REQUEST_VERSION,
    SEGMENT_NAME,
)
from ..durable.facts import FACTS_SUFFIX, LEFT_SUFFIX, facts_from_bytes
from ..durable.versions import check_version
from ..spark.ledger_place import known_ledger
from ..spark.table_columns import STATE_VERSION
from ..workers.cells import CELLS_FILE, check_layout
from .core.journal import JournalError, replay

JOURNAL_FILE = "journal"
HEAD_BYTES_MAX: Final = 1 << 20
"""Of a segment: a schema of thousands of columns has less."""
_MARK: Final = b"\xff\xff\xff\xff"
_MESSAGE_HEADER, _SCHEMA_METADATA, _KEY, _VALUE = 2, 2, 0, 1
"""Places of fields in Arrow's tables (Message.fbs, Schema.fbs)."""


def check_slot(path: Path) -> None:
    """Raise LaterVersionError for the slot at `path` where something in it is of a later version; OSError."""
    segments = path / "segments"
    for folder in (OPEN_DIR, READY_DIR, BAD_DIR):
        for segment in sorted((segments / folder).glob("[!.]*")):
            version = _version_of(segment) if SEGMENT_NAME.match(segment.name) and segment.is_file() else b""
            with _as_far_as_known():
                check_version(int(version), FORMAT_VERSION, segment)
    with _as_far_as_known(), (path / CELLS_FILE).open("rb") as file:
        check_layout(file.read(8), path / CELLS_FILE)
    for facts in sorted((segments / OUTCOMES_DIR).glob("[!.]*")):
        with _as_far_as_known():
            if facts.suffix in (FACTS_SUFFIX, LEFT_SUFFIX):
                facts_from_bytes(facts.read_bytes(), facts)
    _check_loaders(segments)
    with _as_far_as_known():
        replay((path / JOURNAL_FILE).read_bytes(), str(path / JOURNAL_FILE))


def _check_loaders(segments: Path) -> None:
    """What loaders and `reset --reprocess` write."""
    for plan in sorted((segments / PLAN_DIR).glob("[!.]*.json")):
        _check_json(plan, PLAN_VERSION)
    _check_json(segments / EPOCH_FILE, REQUEST_VERSION)
    if (ledger := known_ledger(segments)) is not None:
        with contextlib.suppress(OSError):  # on a disk of its own, perhaps; its loader will say so
            _check_json(ledger / LEDGER_STATE, STATE_VERSION)


def _check_json(path: Path, known: int) -> None:
    with _as_far_as_known():
        check_version(json.loads(path.read_bytes())["version"], known, path)


@contextlib.contextmanager
def _as_far_as_known() -> Generator[None]:
    no_file = FileNotFoundError, IsADirectoryError, NotADirectoryError
    with contextlib.suppress(*no_file, JournalError, ValueError, KeyError, TypeError, RecursionError):
        yield


def _version_of(segment: Path) -> bytes:
    """What its schema says; empty where it says nothing. Read from Arrow's own tables: a supervisor has no pyarrow, which
    takes more memory than all else in it."""
    with contextlib.suppress(FileNotFoundError):
        with segment.open("rb") as file:
            mark, length = file.read(4), file.read(4)
            data = file.read(min(int.from_bytes(length, "little"), HEAD_BYTES_MAX)) if mark == _MARK else b""
        with contextlib.suppress(struct.error, IndexError):
            return dict(_metadata(data)).get(META_VERSION, b"")
    return b""


def _metadata(message: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the schema in a message. Raises struct.error for what is none."""
    schema = _field(message, _at(message, 0), _MESSAGE_HEADER)
    found = _field(message, schema, _SCHEMA_METADATA) if schema else 0
    if found:
        for number in range(_unsigned(message, found)):
            pair = _at(message, found + 4 + 4 * number)
            key, value = _field(message, pair, _KEY), _field(message, pair, _VALUE)
            yield _text(message, key), _text(message, value)


def _unsigned(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _at(data: bytes, at: int) -> int:
    """Where the offset at `at` leads."""
    return at + _unsigned(data, at)


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a FlatBuffers table leads; 0 where the table has none. The places of its fields stand before it."""
    places = table - int(struct.unpack_from("<i", data, table)[0])
    (size,) = struct.unpack_from("<H", data, places)
    place = 4 + 2 * number
    offset = int(struct.unpack_from("<H", data, places + place)[0]) if place < size else 0
    return _at(data, table + offset) if offset else 0


def _text(data: bytes, at: int) -> bytes:
    return data[at + 4 : at + 4 + _unsigned(data, at)]
