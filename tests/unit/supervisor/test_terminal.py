"""The end of a terminal, and what else sends the same signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.order import Order
from rocketcrew.supervisor.core.state import OPERATOR
from rocketcrew.supervisor.notify import Notify
from rocketcrew.supervisor.operating import Operator, hold_signals
from rocketcrew.supervisor.pool.worker_pool import Pool
from rocketcrew.supervisor.terminal import Terminal

from .conftest import Bench
from .test_starting import Waiting, nothing, with_pool

NOT_USED: Any = None
AT_A_TERMINAL = """
import os, signal, sys
from rocketcrew.supervisor.terminal import Terminal

signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[2] == "nohup" else signal.SIG_DFL)  # who tests may ignore it, too
os.close(os.open(sys.argv[1], os.O_RDWR))  # we lead a session: it becomes its own
terminal = Terminal()
signal.signal(signal.SIGHUP, lambda *_: None)
print(terminal.closed, flush=True)
sys.stdin.readline()
print(terminal.closed, flush=True)
"""


@pytest.mark.parametrize(("how", "closed"), [("plain", "True\n"), ("nohup", "False\n")])
def test_a_terminal_that_is_closed_is_seen_to_be_so(how: str, closed: str) -> None:
    ours, theirs = os.openpty()
    program = [sys.executable, "-c", AT_A_TERMINAL, os.ttyname(theirs), how]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "False\n"
        os.close(theirs)
        os.close(ours)
        process.stdin.write("look\n")
        process.stdin.close()
        assert process.stdout.readline() == closed


class Closed(Terminal):
    """One that was."""

    closed = True


def operated(
    folder: Path, terminal: Terminal, *numbers: signal.Signals, pause: bool = False
) -> tuple[list[str], Bench]:
    """What an operator says, and does, when it listens and has heard these signals."""
    seen: list[str] = []
    found: list[Bench] = []

    async def use(pool: Pool, bench: Bench) -> None:
        operator = Operator(
            bench.core, pool, NOT_USED, order=Order(), acted=nothing, reread=None, stacks=nothing,
            stop=lambda: (seen.append("stop"), bench.core.handle(ev.Stop(), 0.0))[1], quick=nothing,
            notify=Notify({}, 0), terminal=terminal,
        )  # fmt: skip
        if pause:
            operator.pause()
        with capture_logs() as logs:
            operator.listen()
            for number in numbers:
                operator.signals()[number]()
        seen.extend(line["event"] for line in logs)
        found.append(bench)

    with_pool(folder, 2, Waiting(), use)
    return seen, found[0]


def test_who_started_it_at_a_terminal_and_closes_that_has_stopped_it(tmp_path: Path) -> None:
    assert operated(tmp_path, Closed(), signal.SIGHUP, signal.SIGHUP)[0] == ["stop", "terminal_closed"]


def test_a_shell_that_spares_a_job_has_not_stopped_it(tmp_path: Path) -> None:
    """`disown`: the terminal is closed, and no signal comes."""
    assert operated(tmp_path, Closed())[0] == []


def test_a_terminal_that_is_closed_during_the_start_stops_it_once() -> None:
    async def hear(number: signal.Signals) -> list[str]:
        seen: list[str] = []
        with capture_logs() as logs:
            hold_signals(asyncio.get_running_loop(), Closed(), lambda: seen.append("stop"))
            for _ in range(2):  # the kernel's and the shell's
                os.kill(os.getpid(), number)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        return seen + [line["event"] for line in logs]

    assert asyncio.run(hear(signal.SIGHUP)) == ["stop", "terminal_closed"]
    assert asyncio.run(hear(signal.SIGUSR1)) == []


def test_hup_during_the_start_stops_none_whose_terminal_is_there() -> None:
    seen: list[str] = []
    assert not Terminal().hung_up(lambda: seen.append("stop"))
    assert seen == []


def test_what_comes_with_term_is_no_operator_s_wish(tmp_path: Path) -> None:
    """`timeout` and service managers send CONT, so that one that is stopped hears TERM."""
    assert operated(tmp_path, Closed(), signal.SIGHUP, signal.SIGCONT)[0] == ["stop", "terminal_closed"]


def test_a_pause_ends_by_the_same_signal(tmp_path: Path) -> None:
    said, bench = operated(tmp_path, Closed(), signal.SIGCONT, pause=True)
    assert said == ["resumed"]
    assert OPERATOR not in bench.core.state.paused
