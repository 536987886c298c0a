"""What the engine reports of a batch, from Spark's own figures."""

from __future__ import annotations

from typing import Any

from rocketcrew.engine.progress import told

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
