"""The Python stack of a worker, a forkserver or the loader, asked for from outside, whatever it is doing.

faulthandler writes it from inside the signal's own handler in C: a loop in C that holds the interpreter's lock is no
hindrance, and nothing of the handler's program runs for it. It goes into a file that was made before the worker
started and has no name, so that nothing is left over; the supervisor reads its own descriptor of it.

The signal is a real-time one, which user code is not likely to claim (USR1 and USR2 are the handler's own).
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
import tempfile
from pathlib import Path
from typing import Final

from ..durable.files import out_of_the_way
from .slab_memory import SharedFd

STACK_SIGNAL: Final[int] = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Asks a process for its stacks."""
STACK_BYTES_MAX: Final = 256 * 1024
"""What is read of one answer: faulthandler writes at most 100 frames a thread."""
FATAL_MARK: Final = "Fatal Python error: "
"""The first words of faulthandler when the process is dying."""


def make_stack_fd() -> int:
    """A file without a name, open for appending."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("rocketcrew-stacks", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile(buffering=0) as file:
            fd = os.dup(file.fileno())
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd


class StackFile:
    """The supervisor's end: `shared` goes into the WorkerBoot, the rest asks and reads."""

    def __init__(self) -> None:
        self._fd = make_stack_fd()
        self.shared = SharedFd(self._fd)
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
        """Under which a process that inherits no descriptors can open it (Linux)."""

    def forget(self) -> None:
        """Drop what was written before; call it before the signal is sent."""
        os.ftruncate(self._fd, 0)

    def last_words(self) -> str:
        """What it wrote when a signal ended it; empty when none did that can be caught."""
        text = self.text()
        at = text.rfind(FATAL_MARK)
        return text[at:].strip() if at >= 0 else ""

    def size(self) -> int:
        """Bytes written so far."""
        return os.fstat(self._fd).st_size

    def text(self) -> str:
        """What was written, at most STACK_BYTES_MAX of it."""
        return os.pread(self._fd, STACK_BYTES_MAX, 0).decode("utf-8", "replace")

    def close(self) -> None:
        os.close(self._fd)


def answer_with_stacks(shared: SharedFd) -> None:
    """In the worker: from now on STACK_SIGNAL writes the stacks of all threads, and so does a signal that ends it (SEGV, BUS,
    ILL, FPE, ABRT): nothing can be opened in a process that is just dying."""
    fd = answer_into(shared.fd)
    faulthandler.enable(file=fd, all_threads=True)


def answer_into(fd: int) -> int:
    """From now on STACK_SIGNAL writes the stacks of all threads of this process there. Takes the descriptor over; returns
    the one that is used."""
    fd = out_of_the_way(fd)
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True, chain=False)
    return fd


def answer_as_forkserver(path: str) -> None:
    """In the forkserver, before it imports anything of the user's: its own stacks go to the supervisor's file.

    What is forked from it does not answer into that file, and does not die of the signal before it has one of its own.
    Where the file cannot be reached, the forkserver does not answer either.
    """
    signal.signal(STACK_SIGNAL, _ignore)
    with contextlib.suppress(OSError):
        answer_into(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
        os.register_at_fork(after_in_child=_answer_no_more)


def _answer_no_more() -> None:
    faulthandler.unregister(STACK_SIGNAL)


def _ignore(_number: int, _frame: object) -> None:
    pass


def catches_stack_signal(pid: int) -> bool:
    """The process handles STACK_SIGNAL, which ends any other (Linux; elsewhere nobody is asked)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((int(line[7:], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (STACK_SIGNAL - 1) & 1)
