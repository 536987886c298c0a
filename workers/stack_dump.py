"""The Python stack of a worker, asked for from outside, whatever the worker is doing.

faulthandler writes it from inside the signal's own handler in C: a loop in C that holds the interpreter's lock is no
hindrance, and nothing of the handler's program runs for it. It goes into a file that was made before the worker
started and has no name, so that nothing is left behind; the supervisor reads its own descriptor of it.

The signal is a real-time one, which user code is not likely to claim (USR1 and USR2 are the handler's own).
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
import tempfile
from typing import Final

from .slab_memory import SharedFd

STACK_SIGNAL: Final[int] = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Asks a worker for its stacks."""
STACK_BYTES_MAX: Final = 256 * 1024
"""What is read of one answer: faulthandler writes at most 100 frames a thread."""
FATAL_MARK: Final = "Fatal Python error: "
"""How faulthandler begins when the process is dying."""
_FD_FROM: Final = 200
"""Out of the way of code that closes low descriptors and opens its own under the same numbers."""


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

    def forget(self) -> None:
        """Drop what was said before; call it before the signal is sent."""
        os.ftruncate(self._fd, 0)

    def last_words(self) -> str:
        """What it wrote when a signal ended it; empty when none did that can be caught."""
        text = self.text()
        at = text.rfind(FATAL_MARK)
        return text[at:].strip() if at >= 0 else ""

    def size(self) -> int:
        """Bytes said so far."""
        return os.fstat(self._fd).st_size

    def text(self) -> str:
        """What was said, at most STACK_BYTES_MAX of it."""
        return os.pread(self._fd, STACK_BYTES_MAX, 0).decode("utf-8", "replace")

    def close(self) -> None:
        os.close(self._fd)


def answer_with_stacks(shared: SharedFd) -> None:
    """In the worker: from now on STACK_SIGNAL writes the stacks of all threads, and so does a signal that ends it (SEGV, BUS,
    ILL, FPE, ABRT): nothing can be opened in a process that is just dying."""
    fd = shared.fd
    with contextlib.suppress(OSError):  # a low limit of open files
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FD_FROM)
        os.close(fd)
        fd = high
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True, chain=False)
    faulthandler.enable(file=fd, all_threads=True)


def ignore_until_ready() -> None:
    """In the forkserver: a worker that is asked before it can answer must not die of the signal."""
    signal.signal(STACK_SIGNAL, lambda _number, _frame: None)
