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
set +e
"$2" "$3" "$4" < /dev/null > "$1/full.log" 2>&1
echo $? > "$1/full.code"
rm "$1/disk/filler"
"$2" "$3" "$4" < /dev/null > "$1/free.log" 2>&1
echo $? > "$1/free.code"
cp -r "$1/disk/segments" "$1/disk/table" "$1"
"""


@pytest.mark.parametrize(
    ("writer", "left_kib"),
    [
        *(("parquet", left_kib) for left_kib in (0, 40, BATCH_KIB // 2)),
        *(("deltalake", left_kib) for left_kib in (0, 40, BATCH_KIB // 2, BATCH_KIB * 3 // 2)),
    ],
)
def test_a_full_disk_stops_it_and_loses_nothing(tmp_path: Path, writer: str, left_kib: int) -> None:
    """Room for nothing, for the plan, for half of the copies, for these and half of the table (of Parquet without a JVM the
    copies become the table)."""
    unshared = new_disks()
    loaders = Loaders(tmp_path, "spark")
    dice = random.Random(1)
    for first in range(0, 60, 10):
        loaders.seal(*(Record(first + at, [dice.randbytes(10_000).hex()]) for at in range(10)))
    (tmp_path / "disk").mkdir()
    settings = {
        "staging": str(tmp_path / "disk" / "segments"), "target": str(tmp_path / "disk" / "table"), "max_wait_ms": 0,
        "writer": "arrow" if writer == "parquet" else "spark", "format": writer,
    }  # fmt: skip
    script = SCRIPT.format(disk=DISK_KIB, left=left_kib)
    program = str(Path(__file__).parent / "loader_process.py")
    subprocess.run(
        [*unshared, "sh", "-c", script, "sh", str(tmp_path), sys.executable, program, json.dumps(settings)],
        check=True, timeout=WAIT_S, env=dict(os.environ),
    )  # fmt: skip
    said = (tmp_path / "full.log").read_text()
    assert (tmp_path / "full.code").read_text() == "1\n", said
    assert "No space left" in said
    assert "make room" in said
    assert "a bug in the loader" not in said
    assert (tmp_path / "free.code").read_text() == "0\n", (tmp_path / "free.log").read_text()
    loaders.assert_exact()
    loaders.assert_clean()
