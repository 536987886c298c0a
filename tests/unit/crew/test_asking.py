"""What a crew says of itself without a process."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rocketcrew import Crew, consume
from rocketcrew.crew.crew import _finished_ahead
from rocketcrew.remoting.errors import UsageError


def test_the_log_stays_where_it_is_when_the_current_folder_changes(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with contextlib.chdir(tmp_path):
        crew = Crew(lambda message: None, topics="t", group="g", name_servers="127.0.0.1:1")
        before = crew.log
        with contextlib.chdir(tmp_path / "other"):
            assert crew.log == before
    assert before == tmp_path / ".rocketcrew" / "crew.log"


def test_the_process_logs_to_the_file_that_the_crew_names(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        crew = Crew(lambda message: None, topics="t", group="g", name_servers="127.0.0.1:1",
                    settings={"log.file": "mine.log"})  # fmt: skip
    assert crew.settings.log.file == str(crew.log) == str(tmp_path / "mine.log")


def test_a_folder_in_which_nothing_can_be_made_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a file"
    file.touch()
    crew = Crew(lambda message: None, topics="t", group="g", name_servers="127.0.0.1:1",
                settings={"supervisor.data_dir": str(file / "state")})  # fmt: skip
    with pytest.raises(UsageError, match=r"supervisor\.data_dir = .*cannot be used: Not a directory"):
        crew.start()


def test_a_thread_cannot_consume() -> None:
    with (
        ThreadPoolExecutor(1) as other,
        pytest.raises(UsageError, match=r"main thread only: in a thread use rocketcrew\.Crew"),
    ):
        other.submit(consume, print, topics="t", group="g", name_servers="127.0.0.1:1").result()


def test_what_is_finished_and_not_committed_is_counted_once() -> None:
    opening = {"next_offset": 0, "committed": -1, "unfinished": 0}
    queue = {"next_offset": 100, "committed": 40, "unfinished": 20}
    done, lag = 60, 160 - 40
    assert done + lag - _finished_ahead([opening, queue]) == done + 20 + 60 == 140
