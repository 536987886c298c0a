"""`rocketcrew stop`: ask a running supervisor to stop."""

from __future__ import annotations

import contextlib
import os
import select
from typing import Any, Final

import click

from ...conf.printed import counted
from ...remoting.errors import RocketcrewError
from ..controlling import Target, to_change_supervisor
from ..options import Dependent
from ..times import Seconds

WAIT_S: Final = 120.0
"""Longer than a stop takes: supervisor/__init__.py has the steps."""
POLL_MS_MAX: Final = 2**31 - 1
"""A C int: 24 days."""


@click.command()
@click.option("--quick", is_flag=True, help="At once, without finishing what was begun; it will come again.")
@click.option("--wait", is_flag=True, help="Return when the process has ended.")
@click.option("--timeout", "timeout_s", type=Seconds(0), default=WAIT_S, show_default=True, metavar="S",
              cls=Dependent, needs="--wait",
              help="With --wait: fail after so many seconds.")  # fmt: skip
@to_change_supervisor
def stop(target: Target, quick: bool, wait: bool, timeout_s: float) -> None:
    """Stop a running supervisor: it finishes what was begun, commits and leaves the group.

    The signal TERM does the same, --quick what QUIT does.

    \b
    Examples:
      rocketcrew stop --wait
      rocketcrew stop -g billing --quick
    """
    if target.dry_run:
        target.change("stop", lambda found: what(found, quick=quick))
        return
    pid = int(target.ask("status")["pid"])
    with contextlib.ExitStack() as held:
        process = None
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(pid)  # before it is asked: this id is nobody else's as long as it is open
            held.callback(os.close, process)
        answer = target.ask("stop", quick=quick)
        if wait and process is not None:
            poll = select.poll()
            poll.register(process, select.POLLIN)
            if not poll.poll(min(timeout_s * 1000, POLL_MS_MAX)):
                raise RocketcrewError(f"process {pid} has not ended within {timeout_s:g} s; it goes on stopping")
    target.tell({**answer, "pid": pid, "stopped": wait}, f"stopped (pid {pid})" if wait else "stopping")


def what(found: dict[str, Any], *, quick: bool) -> str:
    """What a stop would do, of a supervisor's status."""
    unfinished = sum(queue["unfinished"] for queue in (*found["queues"], *found["popped"]))
    of = f"{counted(unfinished, 'message')} in hand"
    return f"stop at once: {of} would come again" if quick else f"stop: {of} would be finished first"
