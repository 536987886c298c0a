"""The end of a command's process, each in one of its own."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ENDING = """
import atexit, sys, threading, time
from rocketcrew.cli.leaving import leave

class Kept:
    def __del__(self):
        print("taken down", flush=True)

kept = Kept()
atexit.register(print, "atexit")
go_on = threading.Event()
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
threading.Thread(target=lambda: (go_on.wait(), print("no daemon"))).start()
print("said")
go_on.set()
leave(5, at_once={at_once})
"""


def ended(program: str, **given: Any) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONUNBUFFERED": ""}
    look = [sys.executable, "-c", program]
    return subprocess.run(look, env=env, text=True, timeout=60, check=False, stderr=subprocess.PIPE, **given)


@pytest.mark.parametrize(
    ("at_once", "said"),
    [(False, ["said", "no daemon", "atexit", "taken down"]), (True, ["said", "no daemon", "atexit"])],
)
def test_the_interpreter_may_be_left_as_it_is(*, at_once: bool, said: list[str]) -> None:
    """Before Python 3.14 a daemon thread can make the exit code SIGSEGV's otherwise."""
    done = ended(ENDING.format(at_once=at_once), stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout.split("\n")[:-1], done.stderr) == (5, said, "")


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_the_wait_for_threads_and_not_the_code(number: str) -> None:
    """Also where they were ignored, as by the handlers that a loop of uvloop's leaves behind."""
    program = f"""
import os, signal, sys, threading, time
from rocketcrew.cli.leaving import leave
main = threading.main_thread().ident
def go_on():
    while sys._current_frames()[main].f_code.co_name != "_shutdown":
        time.sleep(0.001)
    signal.pthread_kill(main, signal.{number})
    time.sleep(600)
signal.signal(signal.{number}, lambda *_: None)
threading.Thread(target=go_on).start()
leave(5, at_once=True)
"""
    done = ended(program)
    assert (done.returncode, done.stderr) == (5, "")


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(("code", "then", "told"), [(0, 1, "rocketcrew: No space left on device\n"), (3, 3, "")])
def test_output_that_cannot_be_written_is_a_failure(*, code: int, then: int, told: str, at_once: bool) -> None:
    with Path("/dev/full").open("w") as full:
        done = ended(f"from rocketcrew.cli.leaving import leave; print(1); leave({code}, {at_once=})", stdout=full)
    assert (done.returncode, done.stderr) == (then, told)


def test_an_output_that_a_library_has_closed_is_none() -> None:
    done = ended("import sys; from rocketcrew.cli.leaving import leave; sys.stdout.close(); leave(3, at_once=True)")
    assert (done.returncode, done.stderr) == (3, "")


FILES = """
import csv, gc, gzip, io, os
from rocketcrew.cli.leaving import leave

plain = open("plain", "w")
plain.write("a row")
raw = open("raw", "wb")
raw.write(b"a row")
text = gzip.open("text.gz", "wt")
text.write("a row")
below = io.BufferedWriter(gzip.open("below.gz", "wb"))
below.write(b"a row")
rows = csv.writer(io.TextIOWrapper(io.BufferedRandom(io.FileIO("rows", "w+")), newline=""))
rows.writerow(["a row"])
gc.collect()
gc.freeze()  # as the supervisor does
"""


def test_files_that_the_user_s_code_holds_open_are_written(tmp_path: Path) -> None:
    done = ended(FILES + "leave(0, at_once=True)", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert {name: (tmp_path / name).read_bytes() for name in ("plain", "raw", "rows")} == {
        "plain": b"a row", "raw": b"a row", "rows": b"a row\r\n",
    }  # fmt: skip
    assert [gzip.decompress((tmp_path / name).read_bytes()) for name in ("text.gz", "below.gz")] == [b"a row"] * 2


def test_a_file_that_cannot_be_written_is_told_once_and_keeps_no_other_back(tmp_path: Path) -> None:
    done = ended(
        "full = open('/dev/full', 'w')\nfull.write('a row')\n" + FILES + "leave(3, at_once=True)", cwd=tmp_path
    )
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "No space left on device" in done.stderr
    assert (tmp_path / "plain").read_text() == "a row"


def test_a_file_whose_reader_hangs_is_given_up_by_ctrl_c() -> None:
    program = """
import os, signal, sys, threading, time
from rocketcrew.cli.leaving import leave
main = threading.main_thread().ident
def go_on():
    while not any(frame.f_code.co_name == "_write_and_close" for frame in sys._current_frames().values()):
        time.sleep(0.001)
    signal.pthread_kill(main, signal.SIGINT)
    time.sleep(600)
kept, full = os.pipe()
hung = open(full, "wb", buffering=1 << 20)
hung.write(bytes(1 << 19))
threading.Thread(target=go_on, daemon=True).start()
leave(5, at_once=True)
"""
    done = ended(program)
    assert (done.returncode, done.stderr) == (5, "")
