"""The lines of `run --json`: nothing ends because a program does not read them."""

from __future__ import annotations

import os

from structlog.testing import capture_logs

from rocketcrew.cli.commands.run import tell_program


def test_a_reader_that_has_gone_ends_nothing_and_is_reported_once() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with open(theirs, "w", encoding="utf-8") as stdout, capture_logs() as logs:
        tell_program({"event": "running", "group": "billing"}, stdout)
        tell_program({"event": "ended", "exit_code": 0}, stdout)
    assert [(one["event"], one["log_level"], one["line"]) for one in logs] == [
        ("stdout_not_written", "warning", "running")
    ]


def test_a_line_is_an_object_and_is_written_at_once() -> None:
    ours, theirs = os.pipe()
    with open(ours, "rb") as reader, open(theirs, "w", encoding="utf-8") as stdout:
        tell_program({"event": "running", "page": ""}, stdout)
        assert reader.readline() == b'{"event": "running", "page": ""}\n'
