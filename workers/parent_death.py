"""Nobody outlives the supervisor: a parent-death signal where the kernel has one (Linux).

The forkserver is the supervisor's child and the workers are the forkserver's, so each of them needs the signal: with
theirs alone, workers in an endless C loop would stay, for the forkserver waits for them and they never look at a socket.
The kernel sends it when the *thread* that made the child ends, so the forkserver is started by the main thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
EXIT_ORPHAN: Final = 3
"""Exit code of a process whose parent was gone before the signal was asked for."""

_forkserver_pid: int = 0
"""Process id of the forkserver this process comes from; 0 when it comes from none."""


def be_forkserver() -> None:
    """This process is the forkserver of the workers that are forked from it."""
    global _forkserver_pid  # noqa: PLW0603  a fact of this process, set once
    _forkserver_pid = os.getpid()


def from_forkserver() -> bool:
    """This process was forked by the forkserver that spawn.py starts."""
    return bool(_forkserver_pid)


def die_with_forkserver() -> None:
    """As die_with_parent, in a process that the forkserver has forked; nothing in any other."""
    if _forkserver_pid:
        die_with_parent(_forkserver_pid)


def die_with_parent(parent_pid: int) -> None:
    """SIGKILL this process when its parent ends; exit at once when `parent_pid` is the parent no more.

    The check comes after the request: a parent that dies in between is seen by one of the two.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        os._exit(EXIT_ORPHAN)


CONTROL_SIGNALS: Final = (
    signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGTTIN, signal.SIGTTOU,
    signal.SIGTSTP,
)  # fmt: skip
"""What the supervisor obeys, and the terminal or an operator may send to the whole process group."""


def keep_through_stop_signals() -> None:
    """The supervisor's signals do nothing here: they reach the whole process group, and the supervisor alone decides.

    A handler that does nothing rather than SIG_IGN: that would be inherited by the programs a handler starts, and
    `Popen.terminate()` would not work on them.
    """
    for number in CONTROL_SIGNALS:
        signal.signal(number, _ignore)


def end_forks_as_usual() -> None:
    """Processes that a handler forks (multiprocessing, for one) get the signals back, so that they can be ended."""
    os.register_at_fork(after_in_child=_default_signals)


def _default_signals() -> None:
    for number in CONTROL_SIGNALS:
        if signal.getsignal(number) is _ignore:  # not one that the handler claimed for itself
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _ignore(_number: int, _frame: object) -> None:
    return None
