"""Signals that are held back for a while, as those that a terminal sends to a whole process group."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Collection, Generator


@contextlib.contextmanager
def held(signals: Collection[signal.Signals]) -> Generator[None]:
    """Blocked in this thread, and in the processes that it starts meanwhile. A terminal takes who blocks TTOU as who ignores
    it: what it writes is written."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
