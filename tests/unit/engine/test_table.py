"""The engine's table is any of the loader's targets: here a function, with what stands for the driver's session."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "spark"))

from segment_helpers import Record, read_table, write_segment

from rocketcrew.engine.home import Reached
from rocketcrew.engine.table import Table
from rocketcrew.spark.config import LoaderConfig
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.session import SessionSettings
from rocketcrew.spark.spark_writer import SparkWriter
from rocketcrew.spark.staging import Staging
from rocketcrew.spark.table_state import read_state


class Driver(SparkWriter):
    """The driver's Spark, which is there already; a job is the call of what it would run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(SessionSettings(folder))

    def start(self) -> None:
        pass

    def run(self, files: Any, columns: Any, what: str, action: Callable[[Any], Any]) -> None:
        action(f"{len(files)} files")


UNKNOWN = Reached()


def table(tmp_path: Path, known: Reached = UNKNOWN, **target: Any) -> Table:
    staging = tmp_path / "segments"
    config = LoaderConfig(staging, tmp_path / "out", max_wait_ms=0, **target)
    return Table(config, Staging(staging), Driver(tmp_path / "spark"), lambda: known)


def test_a_function_gets_each_batch_once_with_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = table(tmp_path, format="foreach", function="builtins:print")
    for seq, offset in enumerate((3, 4)):
        write_segment(tmp_path / "segments", "e", seq, [[Record(offset), Record(3)]])
        assert found.load().batch == seq + 1
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("1 files")]
    assert [line.split()[2] for line in told] == ["1", "2"]
    assert "start=3, end=4" in told[0]
    assert "start=4, end=5" in told[1], "3 was there"
    state = read_state(tmp_path / "segments" / "ledger" / "state.json")
    assert (state.batch, state.loaded.to_json()) == (2, [["g", "orders", "broker-a", 0, [3, 2]]])
    found.close()


def test_arrow_writes_without_the_drivers_spark(tmp_path: Path) -> None:
    found = table(tmp_path, format="pyarrow")
    write_segment(tmp_path / "segments", "e", 1, [[Record(3)]])
    assert found.load().batch == 1
    assert [row[3] for row in read_table(tmp_path / "out")] == [3]
    found.close()


def test_another_table_with_as_many_batches_is_no_table_to_go_on_with(tmp_path: Path) -> None:
    """Such as a backup that others have loaded on since: the number alone would fit."""
    found = table(tmp_path, format="pyarrow")
    write_segment(tmp_path / "segments", "e", 1, [[Record(3)]])
    reached = found.load()
    assert found.load() == reached, "also where nothing was staged"
    found.close()
    assert reached.table
    assert reached.plan
    for known, what in (
        (reached._replace(table="other"), "there is another one in its place"),
        (reached._replace(plan="other"), "its batch 1 is not the one that it had reached"),
    ):
        found = table(tmp_path, known, format="pyarrow")
        with pytest.raises(LoaderError, match=what):
            found.recover()
        found.close()
    found = table(tmp_path, Reached(1), format="pyarrow")  # as an earlier version noted it
    found.recover()
    assert found.load() == reached
    found.close()


def test_a_table_that_is_closed_lets_the_next_one_in(tmp_path: Path) -> None:
    for _ in range(2):
        found = table(tmp_path, format="foreach", function="builtins:print")
        found.recover()
        found.close()
