"""What a worker and its supervisor do on a full disk: nobody is ended by a signal, and both say why nothing goes on."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import structlog
from structlog.testing import capture_logs

from rocketcrew.workers.cells import (
    BEATS,
    BLOCKED_NS,
    CELL_BYTES,
    HEAD_WORDS,
    MAGIC,
    Blocked,
    CellFile,
    CellView,
    map_cell,
    queue_words,
)
from rocketcrew.workers.segment import SegmentWriter
from rocketcrew.workers.worker import SEGMENT_LOG_EVERY, SegmentPause

SCHEMA = pa.schema([("n", pa.int64())])
BATCH = pa.record_batch([pa.array([1])], schema=SCHEMA)
PID = 4711
SLOTS = 256


def unplaced_bytes(path: Path) -> int:
    found = path.stat()
    return max(0, found.st_size - 512 * found.st_blocks)


def test_each_page_of_a_cell_file_has_its_place_before_it_is_mapped(tmp_path: Path) -> None:
    CellFile(tmp_path / "cells", SLOTS).close()
    assert unplaced_bytes(tmp_path / "cells") == 0


def test_also_in_a_file_with_holes_that_an_earlier_version_left(tmp_path: Path) -> None:
    path = tmp_path / "cells"
    path.write_bytes(MAGIC.to_bytes(8, "little"))
    os.truncate(path, (HEAD_WORDS + SLOTS * CELL_BYTES // 8) * 8)
    assert unplaced_bytes(path) > 0
    cells = CellFile(path, 1)
    assert (cells.slots, unplaced_bytes(path)) == (SLOTS, 0)
    cells.close()


def test_a_disk_without_room_for_it_is_an_error_with_its_name(tmp_path: Path) -> None:
    def full(fd: int, offset: int, size_bytes: int) -> None:
        assert (os.fstat(fd).st_size, offset) == (size_bytes, 0)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with pytest.raises(OSError, match="No space left on device") as raised:
        CellFile(tmp_path / "cells", SLOTS, full)
    assert raised.value.filename == str(tmp_path / "cells")
    assert not before or len(os.listdir("/proc/self/fd")) <= before  # others' may go meanwhile, with the collector


class Disk:
    """Refuses the first `failures` writes."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def write(self, fd: int, data: memoryview) -> int:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(fd, data)


def writer(folder: Path, cell: CellView, sleep: Any, disk: Disk, times_ns: list[int]) -> SegmentWriter:
    pause = SegmentPause(None, sleep, RecordingLog(), cell, lambda: times_ns.pop(0))
    return SegmentWriter(
        folder, "w", SCHEMA, seal_rows=100, seal_bytes=1 << 20, seal_idle_ms=1_000, pause=pause, goes_on=pause.over,
        write=disk.write,
    )  # fmt: skip


class RecordingLog:
    def error(self, event: str, **keys: object) -> None:
        pass


def test_while_its_segment_cannot_be_written_the_cell_says_since_when_and_why(tmp_path: Path) -> None:
    cells = CellFile(tmp_path / "cells", 2)
    cell = map_cell(tmp_path / "cells", 1, PID)
    seen: list[Blocked | None] = []

    def sleep(_ms: int) -> None:
        seen.append(cells.blocked(1))

    segments = writer(tmp_path, cell, sleep, Disk(3), [5_000])
    assert cells.blocked(1) is None
    segments.append(BATCH, b"{}", 0)
    assert seen == [Blocked(5_000, "No space left on device")] * 3, "since the first try"
    assert cells.blocked(1) is None, "it is written"


def test_the_cell_shows_the_sealing_thread_s_trouble_until_neither_it_nor_the_loop_has_any(tmp_path: Path) -> None:
    cells = CellFile(tmp_path / "cells", 1)
    cell, times_ns = map_cell(tmp_path / "cells", 0, PID), [10, 20]
    loop = SegmentPause(None, lambda _: None, RecordingLog(), cell, lambda: times_ns.pop(0))
    thread = loop.beside()
    full, broken = (OSError(number, os.strerror(number)) for number in (errno.ENOSPC, errno.EIO))
    thread("sealing a segment", broken)
    assert cells.blocked(0) == Blocked(10, "Input/output error")
    assert cell[BEATS] == 0, "the loop has not moved"
    loop("writing a segment", full)
    assert cells.blocked(0) == Blocked(10, "Input/output error"), "the one that has lasted longer"
    thread.over()
    assert cells.blocked(0) == Blocked(20, "No space left on device")
    loop.over()
    assert cells.blocked(0) is None
    cells.close()


def test_the_next_trouble_is_another_one(tmp_path: Path) -> None:
    cells = CellFile(tmp_path / "cells", 1)
    cell = map_cell(tmp_path / "cells", 0, PID)
    seen: list[int] = []
    disk = Disk(1)

    def sleep(_ms: int) -> None:
        seen.append(cell[BLOCKED_NS])

    segments = writer(tmp_path, cell, sleep, disk, [10, 20])
    segments.append(BATCH, b"{}", 0)
    disk.failures = 1
    segments.append(BATCH, b"{}", 0)
    assert seen == [10, 20]
    cells.close()


def test_each_trouble_is_logged_at_its_first_try_and_now_and_then(tmp_path: Path) -> None:
    map_file = CellFile(tmp_path / "cells", 1)
    pause = SegmentPause(None, lambda _: None, structlog.get_logger(), map_cell(tmp_path / "cells", 0, PID))
    error = OSError(errno.ENOSPC, "full")
    with capture_logs() as logs:
        for _ in range(SEGMENT_LOG_EVERY + 1):
            pause("writing a segment", error)
        assert len(logs) == 2
        pause.over()
        pause("writing a segment", error)
    assert [line["event"] for line in logs] == ["segment_write_failed"] * 3
    map_file.close()


def test_what_a_worker_of_a_run_before_left_says_nothing_of_this_one(tmp_path: Path) -> None:
    cells = CellFile(tmp_path / "cells", 1)
    map_cell(tmp_path / "cells", 0, PID)[BLOCKED_NS] = 7
    cells.clear(0)
    assert cells.blocked(0) is None


def test_the_name_of_a_queue_leaves_these_words_alone() -> None:
    for characters in range(820, 880):
        words, size = queue_words("t" * characters, "b", 0)
        assert 20 + len(words) <= BLOCKED_NS
        assert size in (0, characters + 10)
