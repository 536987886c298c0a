"""Commands that end early say what was done until then."""

from __future__ import annotations

import errno
import pickle
import re

import click
import pytest

from rocketcrew.cli.changing import StoppedError, so_far
from rocketcrew.cli.exit_codes import exit_code
from rocketcrew.remoting.errors import BrokerError, RocketcrewError, UnreachableError, UsageError

DONE = "2 of 3 letters were replayed; the same command goes on"


def test_a_command_that_is_interrupted_says_what_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RocketcrewError, match=f"^{DONE}: 127.0.0.1:1: cannot be reached"), so_far(lambda: DONE):
        raise UnreachableError("127.0.0.1:1")
    for stop in (KeyboardInterrupt, StoppedError):
        with pytest.raises(click.Abort), so_far(lambda: DONE):
            raise stop
        assert capsys.readouterr().err == f"{DONE}\n"


def test_so_does_one_that_the_system_refuses_something() -> None:
    """As a file that cannot be read to its end. A reader that has enough is no error."""
    full = OSError(errno.ENOSPC, "No space left on device", "/data/letters")
    with (
        pytest.raises(RocketcrewError, match=f"^{DONE}: No space left on device: /data/letters") as caught,
        so_far(lambda: DONE),
    ):
        raise full
    assert exit_code(caught.value) == 1
    for error, done in ((full, ""), (BrokenPipeError(), DONE)):
        with pytest.raises(type(error), match=f"^{re.escape(str(error))}$"), so_far(lambda done=done: done):
            raise error


def test_where_nothing_was_done_the_error_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnreachableError), so_far(str):
        raise UnreachableError("127.0.0.1:1")
    with pytest.raises(click.Abort), so_far(str):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [(UnreachableError("127.0.0.1:1"), 3), (BrokerError(1, "no", "SEND_MESSAGE"), 1), (UsageError("x"), 2)],
)
def test_the_exit_code_is_that_of_what_ended_it(error: RocketcrewError, code: int) -> None:
    with pytest.raises(RocketcrewError) as caught, so_far(lambda: DONE):
        raise error
    assert exit_code(caught.value) == code
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), exit_code(again)) == (str(caught.value), code)
