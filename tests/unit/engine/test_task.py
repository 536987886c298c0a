"""One task outside of Spark: rows, failures, outcomes, filters, blame."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import task_helpers as helpers
from task_helpers import CALLS, HOOKS, batch, numbers, record, spec

from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import FILTERED, NO_ROWS
from rocketcrew.engine.hands import Hands, witness_of
from rocketcrew.engine.overtime import Overtime
from rocketcrew.engine.spec import Report
from rocketcrew.engine.task import run_task
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.spark.segments import read_facts
from rocketcrew.workers.cells import LAST, RECORDS, STARTED_NS, STATE, TEXT, TEXT_BYTES, queue_words
from rocketcrew.workers.failures import Cause

pa: Any = pyarrow
KEY = QueueKey("g", "t", "a", 1)
QUEUE = MessageQueue("t", "a", 1)


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()


def rows_of(folder: Path, report: Report) -> list[dict[str, Any]]:
    return [row for name in report.segments for row in table(folder / "open" / name).to_pylist()]


def failures_of(folder: Path, report: Report) -> list[dict[str, Any]]:
    return table(folder / "failed" / report.failures).to_pylist() if report.failures else []


def table(path: Path) -> Any:
    return pa.ipc.open_stream(path.read_bytes()).read_all()


def test_rows_failures_and_outcomes(tmp_path: Path) -> None:
    report = run_task(spec(helpers.count, tmp_path), [numbers(0, 5), numbers(5, 9)], 3, 11)
    assert (report.partition, report.rows, report.handled, report.failed) == (3, 6, 7, 2)
    rows = rows_of(tmp_path, report)
    assert [row["n"] for row in rows] == [0, 1, 2, 4, 7, 8]
    assert {(row["_group"], row["_topic"], row["_broker"], row["_queue_id"]) for row in rows} == {("g", "t", "a", 1)}
    failures = failures_of(tmp_path, report)
    assert [(row["offset"], row["cause"], row["level"], row["deaths"]) for row in failures] == [
        (5, Cause.FAILED, 0, 0),
        (6, Cause.GIVEN_UP, 0, 0),
    ]
    assert "ValueError: five" in failures[0]["error"]
    assert failures[0]["record"] == record(5, b"5")
    noted = [read_facts(tmp_path / "open" / name).finished for name in report.segments]
    assert OffsetSet.union([*noted, report.outcomes.of_kind(NO_ROWS)]) == OffsetSet(
        {KEY: IntervalSet.of([(0, 5), (7, 9)])}
    )
    assert not report.outcomes.of_queue(NO_ROWS, KEY) & IntervalSet.from_offsets([row["_offset"] for row in rows])
    assert Report.from_json(report.to_json()) == report
    assert not list((tmp_path / "hands").iterdir())


def test_a_task_whose_driver_is_gone_leaves_the_files_of_the_next_run_alone(tmp_path: Path) -> None:
    """Its executor has not heard of it; Spark counts attempts anew in each run, and the batch has the same folder."""
    told = run_task(spec(helpers.count, tmp_path, run="2"), [numbers(4, 6)], 0, 0)
    run_task(spec(helpers.count, tmp_path, run="1"), [numbers(6, 8)], 0, 0)
    assert [row["n"] for row in rows_of(tmp_path, told)] == [4]
    assert [row["offset"] for row in failures_of(tmp_path, told)] == [5]


def test_coroutines_run_one_at_a_time_between_their_hooks(tmp_path: Path) -> None:
    HOOKS.clear()
    report = run_task(spec(helpers.count_later, tmp_path), [numbers(0, 3)], 0, 1)
    assert [row["n"] for row in rows_of(tmp_path, report)] == [0, 2]
    assert [row["offset"] for row in failures_of(tmp_path, report)] == [1]
    told = [word for word in HOOKS if word not in ("up", "down")]
    assert told == ["before", "CONSUME_SUCCESS", "before", "RECONSUME_LATER", "before", "CONSUME_SUCCESS"]


def test_a_process_sets_up_once_for_a_run_and_tears_down_for_the_next(tmp_path: Path) -> None:
    run_task(spec(helpers.count, tmp_path / "before"), [numbers(0, 1)], 0, 1)
    HOOKS.clear()
    for attempt, name in enumerate(("a", "a", "b")):
        run_task(spec(helpers.count, tmp_path / name), [numbers(0, 1)], 0, attempt)
    assert HOOKS == ["down", "up", "down", "up"]


def test_batches_tags_and_rows_that_do_not_fit(tmp_path: Path) -> None:
    many = run_task(spec(helpers.count_many, tmp_path / "m", tags={"t": ("red",)}), [
        batch(*((at, record(at, b"%d" % at, TAGS="red" if at % 2 else "blue")) for at in range(10)))
    ], 0, 1)  # fmt: skip
    assert [row["n"] for row in rows_of(tmp_path / "m", many)] == [1, 3, 5, 7, 9]
    assert many.outcomes.of_kind(FILTERED).count() == 5
    large = run_task(spec(helpers.too_large, tmp_path / "l"), [numbers(0, 4)], 0, 1)
    assert [row["n"] for row in rows_of(tmp_path / "l", large)] == [0, 1, 3]
    assert [row["offset"] for row in failures_of(tmp_path / "l", large)] == [2]


def test_topics_and_groups_are_the_brokers_and_messages_show_the_plain_one(tmp_path: Path) -> None:
    report = run_task(spec(helpers.count, tmp_path, namespace="ns", group="ns%g", seen=True), [numbers(0, 1)], 0, 1)
    (row,) = rows_of(tmp_path, report)
    assert (row["_topic"], row["_origin_topic"], row["_group"]) == ("ns%t", "t", "ns%g")
    assert table(tmp_path / "seen" / report.seen).column("origin").to_pylist() == [row["_origin_message_id"]]


def test_without_results_rows_are_dropped_and_a_bad_set_up_is_told(tmp_path: Path) -> None:
    off = run_task(spec(helpers.count, tmp_path, results=False), [numbers(0, 3)], 0, 1)
    assert (off.segments, off.rows, off.handled) == ((), 0, 3)
    bad = run_task(spec(helpers.never, tmp_path / "n"), [numbers(0, 3)], 0, 1)
    assert "no model" in bad.error


def dies_with(folder: Path, attempt: int, first: int, last: int, witness: str = "w") -> None:
    """An attempt that ended with these records in hand."""
    cell = Hands(folder, 0, attempt, 1, witness).cell
    words, size = queue_words("t", "a", 1)
    cell[TEXT : TEXT + len(words)] = words
    cell[TEXT_BYTES] = size
    cell[RECORDS], cell[LAST], cell[STATE] = last - first + 1, last, first + 1


def test_what_was_in_hand_at_deaths_runs_alone_and_is_a_dead_letter_in_the_end(tmp_path: Path) -> None:
    job = spec(helpers.count, tmp_path, deaths_max=2)
    here = witness_of(job.run)
    dies_with(tmp_path, 1, 4, 7, here)
    hands = Hands(tmp_path, 0, 2, 1, here)
    assert not hands.deaths
    assert hands.suspects == {(QUEUE, offset) for offset in range(4, 8)}
    dies_with(tmp_path, 3, 4, 4, here)
    assert Hands(tmp_path, 0, 4, 1, here).deaths[QUEUE, 4] == 1
    assert not Hands(tmp_path, 1, 4, 1, here).suspects, "another partition's attempts"
    dies_with(tmp_path, 5, 4, 4, here)
    report = run_task(job, [numbers(0, 8)], 0, 6)
    assert CALLS == [5, 6, 7, 0, 1, 2, 3]
    (dead,) = [row for row in failures_of(tmp_path, report) if row["offset"] == 4]
    assert (dead["cause"], dead["deaths"]) == (Cause.DEATHS, 2)


def test_what_spark_or_an_operator_ended_is_not_charged(tmp_path: Path) -> None:
    job = spec(helpers.count, tmp_path, deaths_max=2)
    # Executors that were lost, and jobs that were cancelled: nobody of the same job and daemon came after them.
    for attempt in range(6):
        dies_with(tmp_path, attempt, 4, 4, f"executor-{attempt}")
    hands = Hands(tmp_path, 0, 10, 1, "another")
    assert (hands.deaths[QUEUE, 4], hands.suspects) == (0, {(QUEUE, 4)})
    report = run_task(job, [numbers(0, 8)], 0, 11)
    assert 4 in CALLS
    assert [row["offset"] for row in failures_of(tmp_path, report)] == [5, 6]


def test_a_death_that_was_seen_stays_one_in_later_runs(tmp_path: Path) -> None:
    dies_with(tmp_path, 1, 4, 4, "first-run")
    assert Hands(tmp_path, 0, 2, 1, "first-run").deaths[QUEUE, 4] == 1
    assert Hands(tmp_path, 0, 3, 1, "second-run").deaths[QUEUE, 4] == 1


def test_a_message_that_always_takes_its_executor_along_is_a_dead_letter_in_the_end(tmp_path: Path) -> None:
    for attempt in range(19):
        dies_with(tmp_path, attempt, 4, 4, f"executor-{attempt}")
    assert Hands(tmp_path, 0, 50, 1, "another").deaths[QUEUE, 4] == 1
    dies_with(tmp_path, 20, 4, 4, "executor-20")
    assert Hands(tmp_path, 0, 51, 1, "one-more").deaths[QUEUE, 4] == 2


def test_the_witness_is_the_job_and_the_process_above() -> None:
    assert witness_of("a") == witness_of("a") != witness_of("b")
    code = "import sys; sys.path[:0] = sys.argv[1:]; from rocketcrew.engine.hands import witness_of; print(witness_of('a'))"
    below = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(2)]
    assert below[0] == below[1] != witness_of("a").encode() + b"\n"


def test_what_is_done_already_is_not_run_again(tmp_path: Path) -> None:
    report = run_task(spec(helpers.count, tmp_path, after={QUEUE: 2}), [numbers(0, 3), numbers(3, 5)], 0, 1)
    assert CALLS == [2, 3, 4]
    assert (report.handled, report.rows) == (3, 2)


def test_what_is_over_its_hard_limit_fails_at_the_next_attempt(tmp_path: Path) -> None:
    first = Hands(tmp_path, 0, 1, 1, "w")
    words, size = queue_words("t", "a", 1)
    first.cell[TEXT : TEXT + len(words)] = words
    first.cell[TEXT_BYTES] = size
    first.cell[RECORDS], first.cell[LAST], first.cell[STATE] = 1, 2, 3
    first.note_over()
    report = run_task(spec(helpers.count, tmp_path), [numbers(0, 4)], 0, 2)
    assert CALLS == [0, 1, 3]
    (over,) = failures_of(tmp_path, report)
    assert (over["offset"], over["cause"], over["deaths"]) == (2, Cause.TIME_LIMIT, 0)


@pytest.mark.parametrize("left", ["", "\0", "[]", "3", '["t", "a", 1, 2]', '["t", "a", "b", [2]]'])
def test_a_note_of_it_that_is_damaged_ends_no_task(tmp_path: Path, left: str) -> None:
    """Nobody knows what it was about: that runs, and is stopped, once more."""
    (tmp_path / "hands").mkdir()
    (tmp_path / "hands" / "0.1-1-w.over").write_text(left)
    run_task(spec(helpers.count, tmp_path), [numbers(0, 3)], 0, 2)
    assert CALLS == [0, 1, 2]


def test_a_call_within_its_limits_is_left_alone(tmp_path: Path) -> None:
    cell = Hands(tmp_path, 0, 1, 1, "w").cell
    noted: list[str] = []
    guard = Overtime(cell, 10, 100, lambda: noted.append("over"))
    guard.look(1_000)
    cell[STARTED_NS], cell[STATE] = 1_000, 1
    guard.look(1_009)
    assert not noted
