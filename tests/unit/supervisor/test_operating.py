"""What an operator asks for by a signal."""

from __future__ import annotations

import logging

from structlog.testing import capture_logs

from rocketcrew.cli.options import LIVE_LEVEL
from rocketcrew.supervisor.operating import report_stacks
from rocketcrew.supervisor.pool.stacks import ProcessStack


def test_stacks_are_shown_beside_the_live_line() -> None:
    with capture_logs() as logs:
        report_stacks([ProcessStack("loader", "/table", 7, None, "", "did not answer")])
    (line,) = logs
    levels = logging.getLevelNamesMapping()
    assert levels[line["log_level"].upper()] >= levels[LIVE_LEVEL.upper()]
    assert (line["of"], line["of_pid"], line["note"]) == ("loader", 7, "did not answer")
