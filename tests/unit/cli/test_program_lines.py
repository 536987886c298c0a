"""The lines of `run --json`: nothing ends because a program does not read them."""

from __future__ import annotations

import os

import pytest
from structlog.testing import capture_logs

from rocketcrew.cli.commands.run import for_program, tell_program


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


def test_what_anything_else_prints_is_not_between_the_lines(capfd: pytest.CaptureFixture[str]) -> None:
    """Workers inherit descriptor 1, and may end no line."""
    with for_program(as_json=True) as tell:
        assert tell is not None
        tell({"event": "running"})
        os.write(1, b"half a line of a handler")
        tell({"event": "ended"})
    os.write(1, b"after\n")
    assert capfd.readouterr() == ('{"event": "running"}\n{"event": "ended"}\nafter\n', "half a line of a handler")
    with for_program(as_json=False) as tell:
        os.write(1, b"as ever\n")
    assert (tell, capfd.readouterr()) == (None, ("as ever\n", ""))
