"""The loader process: what it listens to, and how it ends (stopping.py has the table).

The main thread waits for one thing at a time from one queue: a signal, a line or the end of stdin, the end of the work.
Signal handlers do nothing but put into that queue (SimpleQueue.put may interrupt itself; an Event's lock may not). The
work is done by one other thread (work.py).
"""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from ..client.logs import get_logger
from ..conf.exit_codes import EXIT_FORCED
from .config import LoaderConfig
from .stopping import TRANSITIONS, Action, Happening, Phase
from .targets.making import make_target, make_writer
from .targets.target import Writer
from .work import MakeTarget, Work

CANCEL_DEADLINE_S = 10.0
"""Cancelled Spark jobs end within a second; a Spark that is just starting, or hangs, does not."""
CANCEL_AGAIN_S = 0.5
"""A job may begin just after it was to be cancelled, so that is said again."""
STDIN_LINE_MAX = 1024


@dataclass(frozen=True, slots=True)
class _Told:
    happening: Happening
    exit_code: int = 0


def run_loader(
    config: LoaderConfig,
    writer_of: Callable[[LoaderConfig], Writer] = make_writer,
    target_of: MakeTarget = make_target,
) -> int:
    """Run the loader in this process; returns its exit code: 0 fine, 1 failure, 2 usage, 5 forced, 6 Spark can't start.

    Call it from the main thread of a process of its own: it handles SIGTERM and SIGINT, and may end the process without
    return when it is to stop and Spark does not. `writer_of` and `target_of` make another writer, another table.
    """
    queue: SimpleQueue[_Told] = SimpleQueue()
    work = Work(config, writer_of(config), target_of)
    if _watches_stdin(config):
        threading.Thread(target=_watch_stdin, args=(queue, work), name="stdin", daemon=True).start()
    worker = threading.Thread(
        target=lambda: queue.put(_Told(Happening.WORK_ENDED, work.run())), name="loader-work", daemon=True
    )
    with _signals_to(queue):
        worker.start()
        return _Front(work, queue, config.stop_deadline_ms / 1000).wait()


class _Front:
    """The main thread's state: the phase, and its deadline if it has one."""

    def __init__(self, work: Work, queue: SimpleQueue[_Told], stop_deadline_s: float) -> None:
        self._work = work
        self._queue = queue
        self._stop_deadline_s = stop_deadline_s
        self._phase = Phase.RUNNING
        self._deadline: float | None = None
        self._log = get_logger()

    def wait(self) -> int:
        """Wait for the end; returns the exit code."""
        while True:
            told = self._next()
            self._phase, action = TRANSITIONS[self._phase, told.happening]
            if action not in (Action.NOTHING, Action.LEAVE):
                self._log.info("loader_told", what=told.happening.name.lower(), phase=self._phase.name.lower())
            match action:
                case Action.DRAIN:
                    self._work.ask_drain()
                case Action.FINISH:
                    self._work.ask_stop()
                    self._deadline = time.monotonic() + self._stop_deadline_s
                case Action.CANCEL:
                    self._work.cancel()
                    self._deadline = time.monotonic() + CANCEL_DEADLINE_S
                case Action.LEAVE:
                    return told.exit_code
                case Action.FORCE:
                    os._exit(EXIT_FORCED)
                case Action.NOTHING:
                    pass

    def _next(self) -> _Told:
        while True:
            left = None if self._deadline is None else self._deadline - time.monotonic()
            if left is not None and left <= 0:
                return _Told(Happening.DEADLINE)
            if self._phase is Phase.CANCELLING and left is not None:
                left = min(left, CANCEL_AGAIN_S)
            try:
                return self._queue.get(timeout=left)
            except Empty:
                if self._phase is Phase.CANCELLING:
                    self._work.cancel()


@contextmanager
def _signals_to(queue: SimpleQueue[_Told]) -> Generator[None]:
    def told(_number: int, _frame: object) -> None:
        queue.put(_Told(Happening.SIGNAL))

    before = {number: signal.signal(number, told) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watches_stdin(config: LoaderConfig) -> bool:
    if config.watch_stdin is not None:
        return config.watch_stdin
    if not config.follow:
        return False
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    # Neither a terminal nor /dev/null, whose end says nothing: nohup and service managers give the latter.
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _watch_stdin(queue: SimpleQueue[_Told], work: Work) -> None:
    pending = b""
    while True:
        try:
            data = os.read(0, STDIN_LINE_MAX)
        except OSError:
            data = b""
        if not data:
            queue.put(_Told(Happening.PARENT_GONE))
            return
        *lines, pending = (pending + data).split(b"\n")
        pending = pending[-STDIN_LINE_MAX:]
        for line in lines:
            match line.strip():
                case b"drain":
                    queue.put(_Told(Happening.DRAIN_ASKED))
                case b"load":
                    work.ask_load()
                case b"":
                    pass
                case other:
                    get_logger().warning("stdin_line_ignored", line=other.decode(errors="replace")[:100])
