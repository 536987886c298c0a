"""`rocketcrew load` by itself over a folder of segments: once and on and on, telling how far it is. No JVM: deltalake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

from loaders import WAIT_S, Loaders, wait_until
from segment_helpers import Record, expected, write_segment

SMALL_BATCHES = {"results.seal_rows": 1, "spark.max_rows": 1, "spark.max_wait_ms": 100}
"""Batches of eight rows."""


@pytest.fixture
def loaders(tmp_path: Path) -> Iterator[Loaders]:
    made = Loaders(tmp_path, "spark")
    yield made
    made.end()


def words_of(loaders: Loaders, *more: str, **settings: object) -> list[str]:
    words = [
        sys.executable,
        "-m",
        "rocketcrew",
        "load",
        "--staging",
        str(loaders.staging),
        "--target",
        str(loaders.table),
    ]
    for name, value in {"spark.format": "deltalake", **SMALL_BATCHES, **settings}.items():
        words += ["--set", f"{name}={value}"]
    return [*words, *more]


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("ROCKETCREW_", "NAMESRV_"))}


def told(text: str, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


def test_once_with_progress_and_the_time_that_is_left(loaders: Loaders) -> None:
    for first in range(0, 40, 4):
        loaders.seal(*(Record(offset) for offset in range(first, first + 4)))
    (loaders.staging / "ready" / "w-00000099.arrows").write_bytes(b"")
    done = subprocess.run(
        words_of(loaders, "--json", **{"log.format": "json"}), env=clean_environment(), capture_output=True, text=True,
        check=False, timeout=WAIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (begun,) = told(done.stderr, "loading")
    assert (begun["segments"], begun["rows"]) == (10, 40)
    batches = told(done.stderr, "batch_loaded")
    assert [batch["rows_left"] for batch in batches] == list(range(36, -1, -4)), (
        "spark.max_rows lets one segment through"
    )
    assert all(batch["seconds_left"] >= 0 for batch in batches)
    assert batches[-1]["seconds_left"] == 0
    (ended,) = told(done.stderr, "all_loaded")
    assert (ended["rows"], ended["batches"], ended["quarantined"]) == (40, 10, 1)
    status = json.loads(done.stdout)
    assert (status["state"], status["rows_total"], status["waiting"]["rows"]) == ("stopped", 40, 0)
    loaders.assert_exact()
    loaders.assert_clean()


def test_a_function_of_the_current_folder_is_found_by_the_script(tmp_path: Path) -> None:
    """`python -m` has that folder on its path, the script has not. With nothing to load no Spark starts."""
    script = Path(sys.executable).with_name("rocketcrew")
    words = [str(script), "load", "--staging", "segments", "--set", "spark.format=foreach"]
    (tmp_path / "segments").mkdir()
    (tmp_path / "app.py").write_text("def save(df, batch_id):\n    pass\n")
    for function, code in (("app:save", 0), ("other:save", 2)):
        done = subprocess.run(
            [*words, "--set", f"spark.function={function}"], env=clean_environment(), cwd=tmp_path, capture_output=True,
            text=True, check=False, timeout=WAIT_S,
        )  # fmt: skip
        assert done.returncode == code, done.stderr


def test_on_and_on_until_it_is_told_to_stop(loaders: Loaders) -> None:
    loaders.seal(Record(1))
    with loaders.log.open("ab") as log:
        process = subprocess.Popen(
            words_of(loaders, "--follow"), env=clean_environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        loaders.wait_for_batch(1, process)
        loaders.seal(Record(2), Record(1, ["again"]))
        loaders.wait_for_batch(2, process)
        wait_until(lambda: not loaders.status()["waiting"].get("rows"), what="nothing left to load")
        process.terminate()
        assert process.wait(WAIT_S) == 0, loaders.log.read_text()
    finally:
        process.kill()
        process.wait()
    loaders.assert_exact()
    loaders.assert_clean()
    assert loaders.status()["rows_dropped"] == 1


def test_one_loader_has_the_folders_of_two_supervisors(loaders: Loaders, tmp_path: Path) -> None:
    """What the one had sealed and the other was given again is in the table once, with the rows of its first run."""
    loaders.seal(Record(0), Record(1))
    other = tmp_path / "other"
    write_segment(other, "w", 1, [[Record(1, ["again"]), Record(2)]])
    done = subprocess.run(
        words_of(loaders, "--staging", str(other), "--json", **{"spark.format": "pyarrow"}), env=clean_environment(),
        capture_output=True, text=True, check=True, timeout=WAIT_S,
    )  # fmt: skip
    assert [(status["state"], status["rows"]) for status in json.loads(done.stdout)] == [("stopped", 2), ("stopped", 1)]
    assert loaders.rows() == expected([Record(0), Record(1), Record(2)])
    assert not [*(loaders.staging / "ready").iterdir(), *(other / "ready").iterdir()]
