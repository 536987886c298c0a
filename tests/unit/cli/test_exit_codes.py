from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from rocketcrew.cli.exit_codes import BY_NAME, ForcedStopError, exit_code, guarded
from rocketcrew.remoting.errors import (
    BrokerError,
    ProtocolError,
    RocketcrewError,
    TimedOutError,
    UnreachableError,
    UsageError,
)


class OwnCodeError(RocketcrewError):
    exit_code = 6


def raising(error: BaseException) -> int:
    def command() -> None:
        raise error

    return guarded(command)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("wrong"), 2),
        (UnreachableError("127.0.0.1:1"), 3),
        (TimedOutError("127.0.0.1:1", "no answer in 3000 ms"), 3),
        (BrokerError(17, "no such topic", "GET_ROUTE"), 1),
        (ProtocolError("bad magic", "message 3"), 1),
        (RocketcrewError("anything"), 1),
        (ForcedStopError("second signal"), 5),
        (OwnCodeError("Java is missing"), 6),
        (PermissionError(13, "Permission denied", "/x"), 1),
    ],
)
def test_errors_on_purpose_are_one_message_without_traceback(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raising(error) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rocketcrew: ")
    assert "Traceback" not in err


def test_a_fault_of_ours_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(KeyError("x")) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "fault in rocketcrew" in err


def test_interrupts_are_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(KeyboardInterrupt()) == 130
    assert raising(click.Abort()) == 130
    assert capsys.readouterr().err == "rocketcrew: interrupted\n" * 2


def test_click_errors_and_exits() -> None:
    assert raising(click.BadParameter("no")) == 2
    assert raising(click.exceptions.Exit(5)) == 5
    assert guarded(lambda: None) == 0
    assert guarded(lambda: 5) == 5


def test_a_handlers_own_frames_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    error = UsageError("cannot import pkg:handle")
    vars(error)["traceback"] = 'File "pkg.py", line 1\n'
    assert raising(error) == 2
    assert capsys.readouterr().err == 'File "pkg.py", line 1\nrocketcrew: cannot import pkg:handle\n'


@pytest.mark.parametrize("name", BY_NAME)
def test_errors_named_by_text_exist(name: str) -> None:
    module, _, kind = name.rpartition(".")
    error = getattr(importlib.import_module(module), kind)
    assert exit_code(error("x")) == 4


ENDING = """
import atexit, sys, threading, time
from rocketcrew.cli.exit_codes import leave

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


def test_ctrl_c_ends_the_wait_for_threads_and_not_the_code() -> None:
    program = """
import os, signal, sys, threading, time
from rocketcrew.cli.exit_codes import leave
main = threading.main_thread().ident
def go_on():
    while "_shutdown" not in {frame.f_code.co_name for frame in [sys._current_frames()[main]]}:
        time.sleep(0.001)
    signal.pthread_kill(main, signal.SIGINT)
    time.sleep(600)
threading.Thread(target=go_on).start()
leave(5, at_once=True)
"""
    done = ended(program)
    assert (done.returncode, done.stderr) == (5, "")


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(("code", "then", "told"), [(0, 1, "rocketcrew: No space left on device\n"), (3, 3, "")])
def test_output_that_cannot_be_written_is_a_failure(*, code: int, then: int, told: str, at_once: bool) -> None:
    with Path("/dev/full").open("w") as full:
        done = ended(f"from rocketcrew.cli.exit_codes import leave; print(1); leave({code}, {at_once=})", stdout=full)
    assert (done.returncode, done.stderr) == (then, told)


def test_an_output_that_a_library_has_closed_is_none() -> None:
    done = ended("import sys; from rocketcrew.cli.exit_codes import leave; sys.stdout.close(); leave(3, at_once=True)")
    assert (done.returncode, done.stderr) == (3, "")
