"""Who ends with whom, and what signals reach: forkserver and workers end with the supervisor, by a parent-death signal where
the kernel has one (Linux). They have no terminal, and each of them leads a process group, with the programs that the user's
code starts in it.

The forkserver is the supervisor's child and the workers are the forkserver's, so each of them needs the signal: with
theirs alone, workers in an endless C loop would stay, for the forkserver waits for them and they never look at a socket.
The kernel sends it when the *thread* that made the child ends, so the forkserver is started by the main thread.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import sys
import termios
from pathlib import Path
from typing import Final

from ..conf.exit_codes import EXIT_FAILURE, EXIT_HANDLER, EXIT_ORPHAN

_STDIN: Final = 0
_PR_SET_PDEATHSIG: Final = 1

ORPHAN_SIGNAL: Final[int] = signal.SIGRTMIN + 8 if hasattr(signal, "SIGRTMIN") else 0
"""To the forkserver, when the supervisor has ended; 0 = there is none. Nobody else sends it, unlike TERM."""

_NOTHING_TO_GIVE: Final = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
"""Errors of fork, pipe and accept that no code of a module is to blame for."""

_forkserver_pid: int = 0
"""Process id of the forkserver this process comes from; 0 when it comes from none."""
_forks_workers: bool = False
"""The user's module has been imported in the forkserver: who is forked there now is a worker."""


def be_forkserver() -> None:
    """This process is the forkserver of the workers that are forked from it. It leads a group, and has no terminal.

    What a terminal sends by Ctrl-C and the like goes to the supervisor alone, which finishes what was begun: the programs
    of a handler would obey at once. And one that asks at `/dev/tty` gets an error. With a terminal, outside of the group in
    its foreground, it would be stopped for good; where that is ignored, OpenSSH's programs ask again without end.

    It stays in the supervisor's session: the kernel may share the cores among sessions first (autogroup in sched(7)), and the
    supervisor would take them from the workers at every turn: 27 us of CPU beside a call of 0.1 ms, and not 21.

    What the user's module forks while it is imported obeys signals, as a program does: it gets TERM at the end.
    """
    global _forkserver_pid  # noqa: PLW0603  a fact of this process, set once
    _forkserver_pid = os.getpid()
    os.register_at_fork(after_in_child=_default_signals_unless_worker)
    with contextlib.suppress(PermissionError):  # it leads a session already, since before its execv
        if _has_no_terminal():
            os.setpgid(0, 0)
        else:
            os.setsid()
    if os.isatty(_STDIN):  # inherited; who has no terminal is not kept from reading one
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, _STDIN)
        os.close(null)


def _has_no_terminal() -> bool:
    """Give the terminal up. False: that is not known, as `/dev/tty` is not here."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError as error:
        return error.errno == errno.ENXIO  # there is none
    try:
        fcntl.ioctl(terminal, termios.TIOCNOTTY)
    except OSError:
        return False
    finally:
        os.close(terminal)
    return True


def from_forkserver() -> bool:
    """This process was forked by the forkserver that spawn.py starts."""
    return bool(_forkserver_pid)


def be_worker() -> None:
    """This process is a worker that the forkserver has forked: it leads a group, so that its programs can be ended when it
    has crashed, and ends with the forkserver. Nothing in any other process."""
    if _forkserver_pid:
        with contextlib.suppress(OSError):  # better without a group than no worker
            os.setpgid(0, 0)
        die_with_parent(_forkserver_pid)


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """SIGKILL this process, or send it `number`, when its parent ends; exit at once when `parent_pid` is the parent no more.

    The check comes after the request: a parent that dies in between is seen by one of the two.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        os._exit(EXIT_ORPHAN)


def end_programs_too(parent_pid: int) -> None:
    """For the forkserver: when its parent ends, the programs of its workers and its own get TERM, before it ends as by
    `die_with_parent`, and the workers with it. To be called when the user's module has been imported: who never comes back to
    the interpreter would not end. One that is stopped (SIGSTOP) ends when it is continued."""
    global _forks_workers  # noqa: PLW0603  a fact of this process, set once
    _forks_workers = True
    if not ORPHAN_SIGNAL:
        return
    atexit.register(_end_by_itself)
    signal.signal(ORPHAN_SIGNAL, lambda _number, _frame: _end_as_orphan())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {ORPHAN_SIGNAL})  # who started us may have blocked it
    die_with_parent(parent_pid, ORPHAN_SIGNAL)


def _end_as_orphan() -> None:
    own = os.getpid()
    if own != _forkserver_pid:
        return  # a fork, which has inherited this
    try:
        _end_programs(own)
    finally:
        os.kill(own, signal.SIGKILL)


def _end_by_itself() -> None:
    """The interpreter ends: multiprocess' forkserver has seen the end of a pipe before the signal came, and nobody reads the
    exit code; or it had an error, which is printed by now. That is the module's, unless the system had nothing to give."""
    own = os.getpid()
    if own != _forkserver_pid:
        return
    error = getattr(sys, "last_value", None)
    lacks = isinstance(error, MemoryError) or getattr(error, "errno", None) in _NOTHING_TO_GIVE
    try:
        _end_programs(own)
    finally:
        os._exit(EXIT_HANDLER if error is not None and not lacks else EXIT_FAILURE)


def _end_programs(own: int) -> None:
    # Of children that are dead, too: they keep their numbers until they are reaped, by this very process.
    for pid in [*map(int, Path(f"/proc/self/task/{own}/children").read_text().split()), own]:
        with contextlib.suppress(OSError):  # one that has just been forked, or a program of ours, leads no group
            if os.getsid(pid) == os.getsid(0):  # else the user's module has sent it away
                os.killpg(pid, signal.SIGTERM)


PROGRAMS_GRACE_S: Final = 2.0
"""From TERM to KILL, for programs that users' code has started."""


def reap(group: int) -> None:
    """Wait for the dead of a process group. Who is PID 1 (a container's) becomes the parent of who has lost its own, and
    until somebody waits for them the dead count as left in it."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass


CONTROL_SIGNALS: Final = (
    signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGTTIN, signal.SIGTTOU,
    signal.SIGTSTP,
)  # fmt: skip
"""What the supervisor obeys, and an operator or a service manager may send to all of its processes."""


def keep_through_stop_signals() -> None:
    """The supervisor's signals do nothing here: they may be sent to all processes, and the supervisor alone decides.

    A handler that does nothing rather than SIG_IGN: that would be inherited by the programs a handler starts, and
    `Popen.terminate()` would not work on them.
    """
    for number in CONTROL_SIGNALS:
        signal.signal(number, _ignore)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, CONTROL_SIGNALS)  # they were held while the process started


def end_forks_as_usual() -> None:
    """Processes that a handler forks (multiprocessing, for one) get the signals back, so that they can be ended."""
    os.register_at_fork(after_in_child=_default_signals)


def _default_signals_unless_worker() -> None:
    if not _forks_workers:
        _default_signals()


def _default_signals() -> None:
    for number in CONTROL_SIGNALS:
        if signal.getsignal(number) is _ignore:  # not one that the handler claimed for itself
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _ignore(_number: int, _frame: object) -> None:
    return None
