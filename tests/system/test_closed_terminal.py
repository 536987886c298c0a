"""`run` at a terminal that is closed while it starts, or that wants nothing of jobs in the background."""

from __future__ import annotations

import os
import signal
import subprocess
import termios
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
from terminal import LIMIT_S, asked, command, ends_with_us, environment

RUN = ("--topic", "orders", "--group", "billing", "--no-load", "--set", "workers.count=1", "--embedded",
       "--set", "broker.name_server_port=0", "--set", "broker.port=0")  # fmt: skip
SHOP = """
import pathlib, time
from rocketcrew import handler

pathlib.Path("imported").touch()
time.sleep({seconds})

@handler
def count(message):
    pass
"""
IN_THE_BACKGROUND = 'set -m; "$@" & wait $!'


@contextmanager
def at_a_terminal(words: list[str], folder: Path) -> Generator[tuple[subprocess.Popen[bytes], int]]:
    """A process that leads the terminal's session, and our end of that; its log goes to a file."""
    ours, theirs = os.openpty()
    ready = ends_with_us()

    def begin() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who started the tests may have had it ignored
        ready()
        os.close(os.open(os.ttyname(theirs), os.O_RDWR))  # it becomes its own

    process = subprocess.Popen(
        words, cwd=folder, env=environment(ROCKETCREW_LOG_FILE="log"), stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True, preexec_fn=begin,  # noqa: PLW1509  some system calls
    )  # fmt: skip
    os.close(theirs)
    try:
        yield process, ours
    finally:
        for each in [*psutil.Process(process.pid).children(), process] if process.poll() is None else []:
            each.kill()
        process.wait()


def test_one_that_is_closed_while_run_starts_ends_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.format(seconds=3600))
    with at_a_terminal(command("run", "shop", *RUN), tmp_path) as (process, ours):
        asked((tmp_path / "imported").exists, bool, "the import")
        os.close(ours)
        assert process.wait(LIMIT_S) == 0


def test_what_a_job_in_the_background_says_at_its_end_does_not_keep_it(tmp_path: Path) -> None:
    """`stty tostop`."""
    (tmp_path / "shop.py").write_text(SHOP.format(seconds=0))
    words = ["sh", "-c", IN_THE_BACKGROUND, "sh", *command("run", "shop", *RUN)]
    with at_a_terminal(words, tmp_path) as (process, ours):
        said = b""
        while b"done 0  failed 0" not in said:
            said += os.read(ours, 4096)
        modes = termios.tcgetattr(ours)
        modes[3] |= termios.TOSTOP  # before its loop it would be stopped, as any job is
        termios.tcsetattr(ours, termios.TCSANOW, modes)
        [job] = psutil.Process(process.pid).children()
        job.terminate()
        while b"to come again 0" not in said:
            said += os.read(ours, 4096)
        assert process.wait(LIMIT_S) == 0
        os.close(ours)
