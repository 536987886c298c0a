"""A disk that is full, for the loader: whatever it could not write, nothing is lost, and it says where to make room.

The disk is a small one in memory, mounted in a namespace of the test's own; where that may not be made, this is skipped.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

from disks import new_disks
from loaders import WAIT_S, Loaders
from segment_helpers import Record

DISK_KIB = 16 * 1024
BATCH_KIB = 1200
SCRIPT = """
set -e
mount -t tmpfs -o size={disk}k tmpfs "$1/disk"
mv "$1/segments" "$1/disk/segments"
used=$(du -sk "$1/disk" | cut -f1)
head -c $((({disk} - used - {left}) * 1024)) /dev/zero > "$1/disk/filler"
free=$(df -k --output=avail "$1/disk" | tail -1)
set +e
"$2" "$3" "$4" < /dev/null > "$1/full.log" 2>&1
echo $? > "$1/full.code"
ls "$1/disk/segments/plan" > "$1/full.plans"
echo $((free - $(df -k --output=avail "$1/disk" | tail -1))) > "$1/full.taken"
rm "$1/disk/filler"
"$2" "$3" "$4" < /dev/null > "$1/free.log" 2>&1
echo $? > "$1/free.code"
cp -r "$1/disk/segments" "$1/disk/table" "$1"
"""


def on_small_disk(root: Path, writer: str, left_kib: int) -> Loaders:
    """A batch is loaded where so much room is left, then with all the room; what was said is in files of `root`."""
    unshared = new_disks()
    loaders = Loaders(root, "spark")
    dice = random.Random(1)
    for first in range(0, 60, 10):
        loaders.seal(*(Record(first + at, [dice.randbytes(10_000).hex()]) for at in range(10)))
    (root / "disk").mkdir()
    settings = {
        "staging": str(root / "disk" / "segments"), "target": str(root / "disk" / "table"), "max_wait_ms": 0,
        "writer": "arrow" if writer == "parquet" else "spark", "format": writer,
    }  # fmt: skip
    script = SCRIPT.format(disk=DISK_KIB, left=left_kib)
    program = str(Path(__file__).parent / "loader_process.py")
    subprocess.run(
        [*unshared, "sh", "-c", script, "sh", str(root), sys.executable, program, json.dumps(settings)],
        check=True, timeout=WAIT_S, env=dict(os.environ),
    )  # fmt: skip
    assert (root / "free.code").read_text() == "0\n", (root / "free.log").read_text()
    return loaders


@pytest.mark.parametrize("writer", ["parquet", "deltalake"])
@pytest.mark.parametrize("left_kib", [0, 40])
def test_a_full_disk_stops_it_and_loses_nothing(tmp_path: Path, writer: str, left_kib: int) -> None:
    """Room for nothing, and for a plan and some of one segment's copy, which goes again."""
    loaders = on_small_disk(tmp_path, writer, left_kib)
    said = (tmp_path / "full.log").read_text()
    assert (tmp_path / "full.code").read_text() == "1\n", said
    assert "No space left" in said
    assert "make room" in said
    assert "a bug in the loader" not in said
    assert ".staged" not in (tmp_path / "full.plans").read_text()
    assert int((tmp_path / "full.taken").read_text()) < 40
    loaders.assert_exact()
    loaders.assert_clean()


@pytest.mark.parametrize("writer", ["parquet", "deltalake"])
@pytest.mark.parametrize("left_kib", [BATCH_KIB // 2, BATCH_KIB * 3 // 2])
def test_a_disk_that_has_little_room_gets_a_backlog_in_parts(tmp_path: Path, writer: str, left_kib: int) -> None:
    """Room for half of the copies, and for these and half of the table."""
    loaders = on_small_disk(tmp_path, writer, left_kib)
    said = (tmp_path / "full.log").read_text()
    assert (tmp_path / "full.code").read_text() == "0\n", said
    assert said.count("batch_loaded") > 1
    loaders.assert_exact()
    loaders.assert_clean()
