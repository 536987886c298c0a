"""Targets other than the Parquet folder, as processes: killed before, in and after the commit, exact each time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

import deliveries
from delta_jars import delta_jars
from harness import wait_for_end
from loaders import WAIT_S, Loaders
from segment_helpers import Record, expected
from servers import ServerError

PYTHONPATH = os.pathsep.join(sys.path[:3])
"""Where the loader process finds the function of deliveries.py."""


@pytest.fixture
def loaders(tmp_path: Path) -> Iterator[Loaders]:
    made = Loaders(tmp_path, "spark")
    yield made
    made.end()


@pytest.fixture
def jars() -> str:
    """Delta's own; skips where they cannot be had."""
    try:
        return delta_jars()
    except ServerError as error:
        pytest.skip(f"no Delta jars: {error}")


@pytest.mark.parametrize(
    ("format_", "point"),
    [*(("deltalake", point) for point in ("planned", "job_done", "renamed", "deleting")), ("iceberg", "noted"),
     ("iceberg", "renamed")],
)  # fmt: skip
def test_killed_at_any_point_and_once_more_in_the_next_batch(loaders: Loaders, format_: str, point: str) -> None:
    loaders.seal(Record(1, ["a", "b"]), Record(2))
    loaders.run(-signal.SIGKILL, format=format_, crash_point=point)
    loaders.seal(Record(2, ["again"]), Record(3))
    loaders.run(-signal.SIGKILL, format=format_, crash_point=point)
    loaders.seal(Record(3, ["again"]), Record(1, ["again"]), Record(4))
    loaders.run(format=format_)
    loaders.assert_exact()
    loaders.assert_clean()
    assert loaders.status()["jvm_pid"] == 0


@pytest.mark.parametrize("format_", ["deltalake", "pyarrow", "iceberg"])
def test_two_loaders_on_two_folders_fill_one_table(tmp_path: Path, format_: str) -> None:
    both = [Loaders(tmp_path / name, "spark") for name in ("a", "b")]
    for at, mine in enumerate(both):
        mine.table = tmp_path / "table"
        mine.log.parent.mkdir()
        for first in range(0, 60, 6):
            mine.seal(*(Record(offset, [f"{at}"]) for offset in range(first + 2 * at, first + 2 * at + 4)))
    processes = [mine.start(format=format_, max_rows=1, max_bytes=1) for mine in both]
    codes = [process.wait(WAIT_S) for process in processes]
    for mine in both:
        mine.end()
    assert codes == [0, 0], both[0].log.read_text() + both[1].log.read_text()
    assert [row[3] for row in both[0].rows()] == list(range(60))


@pytest.mark.slow
def test_delta_by_spark_killed_around_its_commit(loaders: Loaders, jars: str) -> None:
    loaders.seal(Record(1, ["a", "b"]), Record(2))
    for point in ("job_done", "renamed"):  # before Spark commits; after it, before anything is marked
        loaders.run(-signal.SIGKILL, format="delta", delta_jars=jars, crash_point=point)
        wait_for_end([loaders.status()["jvm_pid"]], "the end of the JVM")
        loaders.seal(Record(2, ["again"]), Record(3, ["again", "and again"]))
    loaders.run(format="delta", delta_jars=jars)
    loaders.assert_exact()
    loaders.assert_clean()
    loaders.seal(Record(3), Record(4))
    loaders.run(format="deltalake")
    loaders.assert_exact()


@pytest.mark.slow
def test_a_function_gets_the_same_batch_again_when_it_was_killed_in_it(loaders: Loaders, tmp_path: Path) -> None:
    """The function kills the loader after its work, once; it overwrites by number, so its output stays exact."""
    output = tmp_path / "output"
    env = {**os.environ, "DELIVERIES": str(output), "PYTHONPATH": PYTHONPATH}
    loaders.seal(Record(1, ["a", "b"]), Record(2))
    killed = loaders.start(env=env, format="foreach", function="deliveries:keep_and_die_once")
    assert killed.wait(WAIT_S) == -signal.SIGKILL, loaders.log.read_text()
    loaders.seal(Record(2, ["again"]), Record(3))
    again = loaders.start(env=env, format="foreach", function="deliveries:keep_and_die_once")
    assert again.wait(WAIT_S) == 0, loaders.log.read_text()
    assert deliveries.rows(output) == expected(loaders.records.values())
    assert deliveries.calls(output) == [(1, [(0, 1, 3)]), (1, [(0, 1, 3)]), (2, [(0, 3, 4)])]
    assert not list((loaders.staging / "ready").iterdir())
