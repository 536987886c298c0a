"""The loader and `read` inside a Spark session of the caller's, as a notebook has it; and what other readers see then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

from loaders import WAIT_S
from segment_helpers import Record, write_segment

from rocketcrew import read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CELLS = Path(__file__).parent / "notebook_cells.py"


def test_load_and_read_in_a_session_that_goes_on(tmp_path: Path) -> None:
    staging, table = tmp_path / "segments", tmp_path / "table"
    write_segment(staging, "w", 1, [[Record(1, ["a", "b"]), Record(2)]])
    kinds = [("zip", pa.string()), ("paid", pa.bool_())]
    rows = [["007", True], ["7", False], [None, None]]
    records = [Record(at, extra={"zip": zip_, "paid": paid}) for at, (zip_, paid) in enumerate(rows)]
    write_segment(tmp_path / "segments-2", "w", 1, [records], kinds)
    process = subprocess.Popen(
        [sys.executable, str(CELLS), str(staging), str(table)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(CELLS.parent)}, cwd=tmp_path,
    )  # fmt: skip
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        while '"first"' not in (line := process.stdout.readline()):
            assert line, "it has ended"
        write_segment(staging, "w", 2, [[Record(3, extra={"more": 7})]], [("more", pa.int64())])
        process.stdin.write("\n")
        process.stdin.flush()
        out, _ = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    told = json.loads(out.splitlines()[-1])
    assert "no active Spark session" in told.pop("without")
    assert told.pop("stopped") == "UsageError: the Spark session was stopped: make a new one"
    assert told == {
        "loaded": [[1, 3], [0, 0]],
        "later": 1,
        "rows": [[1, 0, "a", None], [1, 1, "b", None], [2, 0, "row", None], [3, 0, None, 7]],
        "latest": 4,
        "columns": True,
        "documented": [[[1, None], [1, None], [2, None], [3, 7]], 4],
        "in_folders": [True, [[at, *row, 1] for at, row in enumerate(rows)]],
        "zone": "Asia/Tokyo",
        "theirs": 3,
        "group": None,
        "active": True,
    }
    files = f"read_parquet('{table}/*/*.parquet', union_by_name = true)"
    assert duckdb.sql(f"SELECT _offset, value, more FROM {files} WHERE more IS NOT NULL").fetchall() == [(3, None, 7)]
    assert read(table, form="pandas")["more"].sum() == 7
