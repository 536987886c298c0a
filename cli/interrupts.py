"""Ctrl-C and TERM from the first line of our code on: they are never lost.

There are four ways to lose one. Python raises KeyboardInterrupt wherever the main thread happens to be, and drops it in a
finalizer, in a callback of the collector, and in an attribute lookup of C code, most of all while extension modules are
imported. A signal that comes between the last bytecode and a system call does not end the call: so a question is read by
`typed_line`. And a process that a shell's script starts by `&` has INT ignored: what `kill -INT` sends before somebody takes
the signal over is gone. And the kernel drops what PID 1, a container's first process, has left at its default: there TERM and
QUIT have a handler that ends the process. While Python itself boots, before `main`, PID 1 loses them: docker and Kubernetes
send KILL later. Any other process keeps the default, which ends it also in the middle of C code. So what INT does depends on
what has begun:

    nothing yet (imports)      the process ends at once, with 130: there is nothing to undo
    a command                  KeyboardInterrupt; one that Python reports as ignored is sent again
    `run`, until its loop      a note, which each wait of the start looks at; a second Ctrl-C ends the process
    `run`, after its loop      a note, which nobody looks at; a second Ctrl-C ends the process

This module is imported before anything else of rocketcrew; it imports next to nothing itself.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TextIO

from ..conf.exit_codes import EXIT_INTERRUPTED
from ..supervisor.core.pauses import StopSignals, StopWish
from ..supervisor.terminal import Terminal

AGAIN_S = 0.05
"""After so long a dropped KeyboardInterrupt is sent again: what has dropped it is over by then."""
NOTHING_LEFT = (signal.SIGHUP, signal.SIGUSR1, signal.SIGTTIN, signal.SIGTTOU)
"""What a supervisor obeys and one that has ended ignores. TTOU no other way: who handles it is asked again without end by a
terminal with `stty tostop`, and what it writes there is never written."""
USUAL = (signal.SIGQUIT, signal.SIGTSTP, signal.SIGCONT)
"""What it obeys, and does to one that has ended what it does to all processes."""


class Interrupts:
    """What INT and TERM do in this process. One that was not installed changes nothing, and notes nothing."""

    def __init__(self) -> None:
        self._installed = False
        self._ends: signal.Handlers | Callable[[int, object], None] = signal.SIG_DFL
        """What TERM and QUIT do where nobody listens to them."""
        self._ignored = False
        """The process was started with INT ignored, as a shell's script does with what it starts by `&`."""
        self._noted = 0
        self._signals = StopSignals()
        self.terminal: Terminal | None = None
        """What the process was started at, from its first moment on; None where this was not installed."""

    def install(self, *, first: bool = False) -> None:
        """From now on Ctrl-C ends the process at once, and HUP and USR1 do nothing, unless they are ignored: it may be `run`,
        which is about to read code and settings. HUP of a terminal that was closed is TERM. `first`: this process is PID 1,
        and TERM and QUIT end it, too. To be called by the main thread, before any command's module."""
        self._installed = True
        if first:
            self._ends = _end_first
            signal.signal(signal.SIGTERM, _end_first)
            signal.signal(signal.SIGQUIT, _end_first)
        self.terminal = Terminal()
        self._exchange(hold=True)
        self._ignored = signal.signal(signal.SIGINT, _end) is signal.SIG_IGN

    def raise_again(self) -> None:
        """From now on Ctrl-C raises KeyboardInterrupt, unless it was ignored by who started this process, and TERM, HUP and
        USR1 end the process. Raises what was noted before."""
        if self._installed:
            sys.unraisablehook = _send_dropped_again
            signal.signal(signal.SIGINT, signal.SIG_IGN if self._ignored else signal.default_int_handler)
            signal.signal(signal.SIGTERM, self._ends)
            self._exchange(hold=False)
        self.check()

    def hold(self) -> None:
        """After `raise_again`: HUP and USR1 are as `install` had them."""
        if self._installed:
            self._exchange(hold=True)

    def note(self) -> None:
        """From now on INT and TERM are noted: whoever waits has to `check`. HUP and USR1 are as `install` had them."""
        if self._installed:
            signal.signal(signal.SIGINT, self._note)
            signal.signal(signal.SIGTERM, self._note)
            self._exchange(hold=True)

    def take_back(self) -> None:
        """After a loop of uvloop's, which leaves its handlers where they are (0.23): they do nothing, for ever."""
        if self._installed:
            self.note()
            for number in NOTHING_LEFT:
                signal.signal(number, signal.SIG_IGN)
            for number in USUAL:
                signal.signal(number, self._ends if number == signal.SIGQUIT else signal.SIG_DFL)

    @property
    def noted(self) -> bool:
        """INT or TERM has come since `note`."""
        return self._noted != 0

    def check(self) -> None:
        """Raise KeyboardInterrupt when INT was noted, SystemExit(0) when TERM was."""
        if self._noted == signal.SIGINT:
            raise KeyboardInterrupt
        if self._noted == signal.SIGTERM:
            raise SystemExit(0)

    def _note(self, number: int, frame: object) -> None:
        wish = self._signals.heard(time.monotonic())
        if wish is StopWish.STOP:
            self._noted = number
        elif wish is StopWish.FORCE:
            _end(number, frame)

    def _exchange(self, *, hold: bool) -> None:
        """Hold what a supervisor that runs obeys, and what would end a process that does not listen yet; or end that. Not
        where it is ignored."""
        for number, handler in ((signal.SIGHUP, self._hung_up), (signal.SIGUSR1, _hold)):
            before, after = (signal.SIG_DFL, handler) if hold else (handler, signal.SIG_DFL)
            if signal.getsignal(number) == before:
                signal.signal(number, after)

    def _hung_up(self, _number: int, _frame: object) -> None:
        if self.terminal is not None:
            self.terminal.hung_up(lambda: os.kill(os.getpid(), signal.SIGTERM))


def typed_line(stream: TextIO) -> str:
    """A line that somebody types, "" at the end. Raises KeyboardInterrupt for every Ctrl-C, also for one that comes as the
    reading begins, or to another thread: the handler in C writes into a pipe that is waited for as well, and Python's runs
    after the wait. To be called by the main thread."""
    import select

    heard, told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    try:
        while stream.fileno() not in select.select([stream.fileno(), heard], [], [])[0]:
            os.read(heard, 1 << 10)  # of a signal that raises nothing
        return stream.readline()
    except OSError:  # the terminal has gone
        return ""
    finally:
        signal.set_wakeup_fd(before)
        os.close(heard)
        os.close(told)


def _hold(_number: int, _frame: object) -> None:
    pass


def _end(_number: int, _frame: object) -> None:
    os.write(2, b"rocketcrew: interrupted\n")
    os._exit(EXIT_INTERRUPTED)


def _end_first(number: int, _frame: object) -> None:
    os._exit(128 + number)  # what a shell, docker and Kubernetes name a process that the signal has ended


def _send_dropped_again(dropped: sys.UnraisableHookArgs) -> None:
    """Python's hook for exceptions that nobody can catch."""
    if not issubclass(dropped.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)
        return
    import threading

    main = threading.main_thread().ident
    timer = threading.Timer(
        AGAIN_S, signal.pthread_kill, (main, signal.SIGINT)
    )  # another thread's would end no wait of it
    timer.daemon = True
    timer.start()
