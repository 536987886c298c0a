"""The progress of a batch, reported while it runs: by counted segments, by Spark's tasks, by what commits have cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from segment_helpers import Record, write_segment
from structlog.testing import capture_logs

from rocketcrew.conf.columns import Column
from rocketcrew.spark.arrow_writer import ArrowWriter
from rocketcrew.spark.config import LoaderConfig
from rocketcrew.spark.costs import Costs
from rocketcrew.spark.java import Java
from rocketcrew.spark.progress import STAGING, WRITING, Progress, Running
from rocketcrew.spark.session import Session
from rocketcrew.spark.work import Work


def learnt() -> Costs:
    costs = Costs()
    for rows in [100_000, 1_000_000] * 50:
        costs = costs.after(rows, 1.0 + 1e-5 * rows)
    return costs


def test_the_time_left_is_by_what_commits_cost() -> None:
    running = Running(batch=1, rows=1_000_000, rows_after=0, begun_s=100.0)
    assert running.seconds_left(learnt(), 100.0) == pytest.approx(11.0, abs=0.5)
    assert running.seconds_left(learnt(), 104.0) == pytest.approx(7.0, abs=0.5)
    assert running.seconds_left(learnt(), 500.0) == 0.0
    behind = Running(batch=1, rows=1_000_000, rows_after=1_000_000, begun_s=100.0)
    assert behind.seconds_left(learnt(), 104.0) == pytest.approx(18.0, abs=1.0)
    assert running.seconds_left(Costs(), 100.0) > 1.0, "by what is usual, before anything is learnt"


def test_a_phase_that_takes_longer_than_usual_tells_by_its_share() -> None:
    running = Running(1, 1_000_000, 0, begun_s=0.0, phase=WRITING, phase_begun_s=100.0, done=1, total=4)
    assert running.seconds_left(learnt(), 200.0) == pytest.approx(300.0)


def test_what_is_counted_is_of_one_phase_of_one_batch() -> None:
    progress = Progress()
    progress.count()
    progress.enter(WRITING, 1.0)
    assert progress.look() is None
    progress.begin(7, 100, 0, 1.0)
    progress.expect(3)
    progress.count()
    assert progress.look() == Running(7, 100, 0, 1.0, STAGING, 1.0, 1, 3)
    progress.enter(WRITING, 2.0)
    assert progress.look() == Running(7, 100, 0, 1.0, WRITING, 2.0, 0, 0)
    progress.end()
    assert progress.look() is None


class Watched(ArrowWriter):
    """A writer during whose job somebody looks, when 3 of its 4 tasks are done."""

    def __init__(self, status: Path) -> None:
        super().__init__()
        self.work: Work | None = None
        self.seen: list[dict[str, Any]] = []
        self._status = status

    def tasks(self) -> tuple[int, int]:
        return 3, 4

    def start(self) -> None:
        self.look()

    def write(self, files: Sequence[Path], output: Path, columns: Sequence[Column], bytes_in: int) -> None:
        super().write(files, output, columns, bytes_in)
        self.look()

    def look(self) -> None:
        assert self.work is not None
        before = json.loads(self._status.read_text())["updated_ms"]
        while True:  # to the next millisecond
            self.work.tick(1e9)
            told = json.loads(self._status.read_text())
            if told["updated_ms"] > before:
                break
        self.seen.append(told)


def test_a_batch_that_runs_is_told_of_while_spark_starts_and_writes(tmp_path: Path) -> None:
    staging = tmp_path / "segments"
    for seq in (1, 2):
        write_segment(staging, "w", seq, [[Record(seq), Record(seq + 10)]])
    writer = Watched(staging / "loader.json")
    with capture_logs() as logs:
        writer.work = Work(LoaderConfig(staging, tmp_path / "table", max_wait_ms=0), writer)
        writer.work.tick(0.0)  # nothing is in work yet
        assert writer.work.run() == 0
    starting, writing = (told["running"] for told in writer.seen)
    assert (starting["batch"], starting["phase"], starting["total"], starting["rows"]) in (
        (1, STAGING, 2, 4), (1, STAGING, 0, 4),
    )  # fmt: skip
    assert (writing["phase"], writing["done"], writing["total"]) == (WRITING, 3, 4)
    assert writing["seconds_left"] > 0, "by the share of its tasks: it takes far longer than usual"
    assert {told["state"] for told in writer.seen} == {"loading"}
    assert json.loads((staging / "loader.json").read_text())["running"] == {}, "the batch has ended"
    assert "batch_running" in [log["event"] for log in logs]


def test_a_thread_that_cannot_be_had_is_a_limit_and_no_bug(tmp_path: Path) -> None:
    def no_target(*_: object) -> Any:
        raise RuntimeError("can't start new thread")

    staging = tmp_path / "segments"
    staging.mkdir()
    with capture_logs() as logs:
        assert Work(LoaderConfig(staging, tmp_path / "table"), Watched(staging / "loader.json"), no_target).run() == 1
    [told] = [log for log in logs if log["log_level"] == "error"]
    assert told["event"] == "loader_failed"
    assert "pids.max" in told["error"]


def test_spark_is_asked_for_the_tasks_of_what_runs() -> None:
    """Of two jobs: one has ended, the other has a stage that is gone and two that are not."""
    jobs = {7: SimpleNamespace(status="SUCCEEDED"), 8: SimpleNamespace(status="RUNNING", stageIds=[1, 2, 3])}
    stages = {stage: SimpleNamespace(numCompletedTasks=stage, numTasks=10) for stage in (2, 3)}
    tracker = SimpleNamespace(
        getJobIdsForGroup=lambda group: [8, 7] if group == "g" else [], getJobInfo=jobs.get, getStageInfo=stages.get
    )
    context = SimpleNamespace(statusTracker=lambda: tracker, _gateway=SimpleNamespace(proc=None))
    spark: Any = SimpleNamespace(sparkContext=context)
    session = Session(spark, Java(Path("java"), 17, True, "here"))
    assert session.tasks("g") == (5, 20)
    assert session.tasks("another") == (0, 0)
