"""What the engine reports of a batch, from Spark's own figures."""

from __future__ import annotations

from typing import Any

import pytest

from rocketcrew.engine.progress import IDLE_LOOK_S, IDLE_S, Idle, reason_of, told

END = '{"orders": {"a": {"0": 10, "1": 5}}}'


def progress(latest: object, messages: int = 15, ms: int = 3000) -> dict[str, Any]:
    durations = {"triggerExecution": ms} if ms else {}
    sources = [{"endOffset": END, "latestOffset": latest}]
    return {"batchId": 7, "numInputRows": messages, "durationMs": durations, "sources": sources}


def test_a_batch_and_what_waits() -> None:
    latest = '{"orders": {"a": {"0": 30, "1": 5}}, "%RETRY%g": {"a": {"0": 10}}}'
    assert told(progress(latest)) == {
        "batch": 7, "messages": 15, "seconds": 3.0, "messages_per_s": 5, "waiting": 30, "seconds_left": 6.0,
    }  # fmt: skip


def test_what_spark_leaves_out() -> None:
    for latest in ("", "null", None, END, {"orders": {"a": {"0": 9}}}):
        found = told(progress(latest, ms=0))
        assert (found["waiting"], found["messages_per_s"]) == (0, 0)
        assert "seconds_left" not in found


TRACEBACK = """[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming: Traceback
  File "python_streaming_source_runner.py", line 267, in main
  File "rocketcrew/source/positions.py", line 42, in check_named
    raise UsageError(f"rocketmq: option {spec.option} says nothing about {names(missing)}")
%s
 SQLSTATE: 38000
	at org.apache.spark.sql.errors.QueryExecutionErrors$.pythonStreamingDataSourceRuntimeError(QueryExecutionErrors.scala)
"""


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("rocketcrew.remoting.errors.UsageError: rocketmq: option assign: why", "rocketmq: option assign: why"),
        ("rocketcrew.remoting.errors.UnreachableError: 10.0.0.5:9876: gone", "10.0.0.5:9876: gone"),
        ("rocketmq: option assign: why", "rocketmq: option assign: why"),
    ],
)
def test_the_reason_of_a_failed_query_is_our_own_error(line: str, reason: str) -> None:
    assert reason_of(TRACEBACK % line) == reason


def test_a_failure_of_others_says_its_first_lines() -> None:
    assert reason_of("one\n\ntwo\nthree\nfour\nfive") == "one | two | three | four"


def test_that_no_task_runs_is_told_once_for_each_time() -> None:
    idle = Idle()
    assert not idle.look(0, left=4, active=0)
    assert not idle.look(IDLE_S - 1, left=4, active=0)
    assert idle.look(IDLE_S, left=4, active=0)
    assert not idle.look(3 * IDLE_S, left=4, active=0)
    assert not idle.look(3 * IDLE_S + 1, left=4, active=2)
    assert not idle.look(3 * IDLE_S + 2, left=2, active=0)
    assert not idle.look(4 * IDLE_S + 2, left=0, active=0)
    assert not idle.look(5 * IDLE_S, left=2, active=0)
    assert idle.look(6 * IDLE_S, left=2, active=0)


def test_spark_is_not_asked_at_each_turn_whether_a_task_runs() -> None:
    idle = Idle()
    asked = [at for at in range(300) if idle.is_due(at / 10)]
    assert asked == list(range(0, 300, int(10 * IDLE_LOOK_S)))
