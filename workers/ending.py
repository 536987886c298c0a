"""The end of a worker's process, whose work is done: what the handler has left running is ended as Python would, but in time.

Python waits without a limit for threads that are no daemons, and for pools at work: nobody could tell that from a tear-down
that hangs, and the supervisor would kill the worker. So a thread of our own ends the process shortly before, and says who was
cut off. Where a thread holds the interpreter's lock for as long, the supervisor kills the worker all the same.

Daemonic children of `multiprocessing` are terminated, as Python promises. It does so by `atexit`, which no forked process
runs; and what it has in memory of children that the module has started at its import is of the forkserver's, not of ours.
Children that are no daemons go on, as programs do: those of an executor alone cannot, as nobody gives them work any more.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from _thread import allocate_lock, start_new_thread  # as they were before the handler's module: see own_thread.py
from collections.abc import Callable, Iterable
from time import monotonic_ns, sleep
from types import FrameType
from typing import Any, Final, cast

from ..conf.units import NS_PER_MS, NS_PER_S
from .link import DescriptorsClosedError, LinkClosedError, WorkerLink
from .own_thread import NoThreadError, OwnThread
from .packets import STOP, decode_stop

LEAVE_S: Final = 10.0
"""The supervisor waits so long for a worker that it lets go, or that ends by itself: for sealing, the tear-down hook and what
the handler has left running; then it kills it. When all stop it waits less, and STOP says until when."""
RESERVE_NS: Final = NS_PER_S
"""So long before that what is left is cut off; of a shorter time half."""
CHILDREN_WAIT_S: Final = 2.0
"""For daemonic children, which have had TERM, and what else `multiprocessing` waits for, when the threads have ended: a queue
that nobody reads is never empty. And for all that a worker leaves that has failed, or that nobody has asked to stop."""
NAMED_MAX: Final = 10
_FLAVOURS: Final = ("multiprocessing", "multiprocess")
_FEEDER_JOIN: Final = "_finalize_join"
"""The function in which `multiprocessing` waits for what was put into a queue to be read; `thread` is who writes it."""


class Ending:
    """Ends this process from another thread when it is still here after a time, and says what was left."""

    def __init__(self, code: int, log: Any, leave: Callable[[int], object] = os._exit) -> None:
        self._code = code
        self._log = log
        self._leave = leave
        self._claim = allocate_lock()

    def after(self, wait: Callable[[], object]) -> None:
        """When `wait` has returned; the first one that has does it."""
        with contextlib.suppress(NoThreadError):  # then the supervisor ends it
            OwnThread(lambda: self.cut_off(wait), start_new_thread)

    def cut_off(self, wait: Callable[[], object]) -> None:
        """As `after`, in this thread."""
        wait()
        if not self._claim.acquire(blocking=False):
            return
        try:
            say_left(self._log)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        finally:
            self._leave(self._code)


def until_due(
    link: WorkerLink, clock: Callable[[], int] = monotonic_ns, pause: Callable[[float], object] = sleep
) -> None:
    """Wait until shortly before the supervisor kills this process. A worker that was being replaced may get another STOP
    meanwhile, as all are to stop."""
    due_ns = _due(link.stop_by_ns, clock())
    while (left_ms := (due_ns - clock()) // NS_PER_MS) > 0:
        try:
            packet = link.receive()  # of a stream more than one may be here already
            if packet is None and not link.wait(left_ms):
                return
        except (LinkClosedError, DescriptorsClosedError):
            pause(max(0, due_ns - clock()) / NS_PER_S)
            return
        if packet is not None and packet[0] == STOP:
            due_ns = min(due_ns, _due(decode_stop(packet), clock()))


def _due(by_ns: int, now_ns: int) -> int:
    if not by_ns:  # it ends by itself: for want of memory, say, and its messages wait for that
        return now_ns + round(CHILDREN_WAIT_S * NS_PER_S)
    left_ns = max(0, by_ns - now_ns)
    return now_ns + left_ns - min(RESERVE_NS, left_ns // 2)


def say_left(log: Any) -> None:
    """Name what Python waits for, and end the processes that nobody could end after this one."""
    stack = main_stack()
    threads, children = threads_left(), [child for name in _FLAVOURS for child in daemonic_children(name)]
    joined = [frame.f_locals.get("thread") for frame in stack if frame.f_code.co_name == _FEEDER_JOIN]
    threads += [thread for thread in joined if isinstance(thread, threading.Thread)]
    effect = (
        "the work was done, and Python waits for them without a limit: they are cut off. End them in the tear-down hook,"
        " or begin them as daemons; of a queue whose QueueFeederThread is left, read all, or call its cancel_join_thread()"
    )
    # A finalizer of `multiprocessing` may be the user's own, and wait for anything.
    where = {} if threads or children else {"waits_in": [_place(frame) for frame in stack[:NAMED_MAX]]}
    log.warning("threads_left", threads=_named(threads), processes=_named(children), effect=effect, **where)
    for child in children:
        child.kill()  # TERM it has had
    for thread in threads:
        workers: dict[int, Any] = getattr(thread, "processes", None) or {}  # of an executor
        for worker in workers.values():
            worker.terminate()


def threads_left() -> list[threading.Thread]:
    """Those that Python waits for at the end of the process."""
    main = threading.main_thread()
    return [each for each in threading.enumerate() if not each.daemon and each is not main]


def main_stack() -> list[FrameType]:
    """Of the main thread, which ends this process; the innermost frame is the first."""
    stack: list[FrameType] = []
    frame: FrameType | None = cast("Any", sys)._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        stack.append(frame)
        frame = frame.f_back
    return stack


def end_threads() -> None:
    """As Python does at the end of a program: executors are shut down, and threads are waited for."""
    with contextlib.suppress(Exception):  # all of it may be what the handler has made of it, and the work is done
        cast("Any", threading)._shutdown()


def end_all_children() -> None:
    """What Python does next: daemonic children are terminated."""
    for name in _FLAVOURS:
        with contextlib.suppress(Exception):
            end_children(name)


def end_children(name: str) -> None:
    """As `multiprocessing` (or `multiprocess`) does by `atexit`, but for daemonic children alone: the others go on."""
    process, util = (sys.modules.get(f"{name}.{part}") for part in ("process", "util"))
    if process is not None and util is not None:
        process._children.intersection_update(daemonic_children(name))
        util._exit_function()


def daemonic_children(name: str) -> list[Any]:
    """Of this process: its memory is a fork's, and has those of the forkserver, too."""
    process: Any = sys.modules.get(f"{name}.process")
    children = [] if process is None else list(process._children)
    return [child for child in children if child.daemon and child._parent_pid == os.getpid()]


def _place(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"


def _named(each: Iterable[Any]) -> list[str]:
    names = [str(one.name) for one in each]
    return names if len(names) <= NAMED_MAX else [*names[:NAMED_MAX], f"and {len(names) - NAMED_MAX} more"]
