"""A loader that may not write or read: it says where, loses nothing, and goes on when it may.

Root may touch everything; so under root the loader runs without that capability.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

from loaders import WAIT_S, Loaders
from segment_helpers import Record


@pytest.fixture
def loaders(tmp_path: Path) -> Iterator[Loaders]:
    made = Loaders(tmp_path, "arrow")
    made.seal(Record(1), Record(2))
    made.table.mkdir()
    yield made
    made.end()


def humbly() -> list[str]:
    """The command in front of a loader for which permissions count."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root may touch everything, and there is no setpriv")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


def run(loaders: Loaders, format_: str) -> tuple[int, str]:
    settings = {"staging": str(loaders.staging), "target": str(loaders.table), "max_wait_ms": 0, "format": format_,
                "writer": "arrow" if format_ == "parquet" else "spark"}  # fmt: skip
    done = subprocess.run(
        [*humbly(), sys.executable, str(Path(__file__).parent / "loader_process.py"), json.dumps(settings)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=WAIT_S,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("format_", ["parquet", "deltalake"])
@pytest.mark.parametrize("place", ["staging", "table", "segment"])
def test_what_may_not_be_touched_is_named_and_nothing_is_lost(loaders: Loaders, format_: str, place: str) -> None:
    (segment,) = (loaders.staging / "ready").iterdir()
    path, mode = {"staging": (loaders.staging, 0o555), "table": (loaders.table, 0o555), "segment": (segment, 0)}[place]
    usual = path.stat().st_mode
    path.chmod(mode)
    code, said = run(loaders, format_)
    assert code in (1, 2), said
    assert "ermission denied" in said
    assert str(path) in said
    assert "bug" not in said
    assert segment.exists()
    path.chmod(usual)
    code, said = run(loaders, format_)
    assert code == 0, said
    loaders.assert_exact()
    loaders.assert_clean()
