"""A dead worker's segment that the disk refuses: it stays as it is, and the worker that was to salvage it boots."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from rocketcrew.conf.segment_format import OPEN_DIR, READY_DIR, segment_name
from rocketcrew.workers.main import salvage_if_readable
from rocketcrew.workers.packets import Salvaged

NAME = segment_name("w1.1", 0)


def folders(tmp_path: Path) -> Path:
    for folder in (OPEN_DIR, READY_DIR):
        (tmp_path / folder).mkdir()
    return tmp_path / OPEN_DIR / NAME


@pytest.mark.parametrize("folder", [OPEN_DIR, READY_DIR])
def test_a_segment_that_cannot_be_read_stays_and_nothing_counts_of_it(tmp_path: Path, folder: str) -> None:
    path = folders(tmp_path)
    there = tmp_path / folder / NAME
    there.symlink_to("/proc/self/mem")  # its begin is read with EIO, as from a broken disk
    with capture_logs() as logs:
        said = salvage_if_readable(path, structlog.get_logger())
    assert said == Salvaged(NAME, "w1.1", 0, None, 0, 0, ())
    assert there.is_symlink()
    assert [(line["event"], line["file"]) for line in logs] == [("segment_not_salvaged", NAME)]


def test_a_segment_that_was_torn_at_its_begin_is_removed(tmp_path: Path) -> None:
    path = folders(tmp_path)
    path.write_bytes(b"\xff\xff\xff\xff\x10")
    with capture_logs() as logs:
        said = salvage_if_readable(path, structlog.get_logger())
    assert said == Salvaged(NAME, "w1.1", 0, None, 0, 0, ())
    assert not path.exists()
    assert [line["event"] for line in logs] == ["segment_salvaged"]
