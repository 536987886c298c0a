"""What the process of a crew says, and what its log has of failures."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from rocketcrew import Crew, CrewError
from rocketcrew.crew.process import TAIL_BYTES, last_failure

FAILED = '{"error": "ValueError: %s", "event": "message_failed"}\n'


@pytest.mark.parametrize("printed", ["my random numbers", "123", "hello", "(.", "\\x80"])
def test_what_is_no_pickle_is_an_error_of_the_crew(tmp_path: Path, printed: str) -> None:
    crew = Crew(
        print, topics="t", group="g", name_servers="127.0.0.1:1", settings={"supervisor.data_dir": str(tmp_path)}
    )
    with subprocess.Popen(["printf", printed + "\\n"], stdout=subprocess.PIPE) as process:
        cast("Any", crew)._process = process
        with pytest.raises(CrewError, match=f"see {crew.log}"):
            cast("Any", crew)._heard()


def test_the_last_failure_is_the_last_of_its_kind(tmp_path: Path) -> None:
    log = tmp_path / "crew.log"
    assert last_failure(log) == ""
    log.write_text("printed\n" + FAILED % "one" + FAILED % "two" + '{"event": "worker_ready"}\nprinted\n')
    assert last_failure(log) == "; the last was: ValueError: two"
    log.write_text(FAILED % ("x" * TAIL_BYTES))
    assert last_failure(log) == ""
