"""What the loader says of rows that it drops: a rebalance brings some again, a reset all."""

from __future__ import annotations

import structlog

from rocketcrew.spark.reports import MUCH, Dropped, Totals


def told(rows_loaded: int, *whole: int) -> list[tuple[str, int]]:
    """Level and rows of each line on segments of which all was known."""
    dropped = Dropped(Totals(rows=rows_loaded), structlog.get_logger())
    with structlog.testing.capture_logs() as logs:
        for rows in whole:
            dropped.note(rows, rows)
    assert {log["event"] for log in logs} <= {"rows_known_dropped"}
    return [(log["log_level"], log["rows"]) for log in logs]


def test_a_few_known_segments_are_usual_and_said_once() -> None:
    assert told(0, 0) == []
    assert told(0, 100, 100) == [("info", 100)]


def test_many_beside_what_was_loaded_are_a_warning_once() -> None:
    assert told(0, MUCH - 1, 1, 1) == [("info", MUCH - 1), ("warning", MUCH)]
    assert told(0, MUCH, 1) == [("warning", MUCH)]
    assert told(100 * MUCH, MUCH, 1) == [("info", MUCH)]


def test_the_first_cause_is_a_rebalance_and_the_remedy_one_after_a_reset() -> None:
    with structlog.testing.capture_logs() as logs:
        Dropped(Totals(), structlog.get_logger()).note(1, 1)
    (line,) = logs
    assert "a queue came from another member before it had committed" in line["reason"]
    assert line["remedy"].startswith("only if you have reset the group")
