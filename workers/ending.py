"""The end of a worker's process, whose work is done: what the handler has left running is ended as Python would, but in time.

Python waits without a limit for threads that are no daemons, and for pools at work: nobody could tell that from a tear-down
that hangs, and the supervisor would kill the worker. So a thread of our own ends the process after a while, and says who was
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
from _thread import start_new_thread  # as they were before the handler's module: see own_thread.py
from collections.abc import Callable, Iterable
from time import sleep
from typing import Any, Final, cast

from .own_thread import NoThreadError, OwnThread

LEFT_WAIT_S: Final = 2.0
"""For threads and daemonic children, from the end of the work on: less than the supervisor waits for the process."""
NAMED_MAX: Final = 10
_FLAVOURS: Final = ("multiprocessing", "multiprocess")


def cut_off_late(code: int, log: Any, leave: Callable[[int], object] = os._exit, wait_s: float = LEFT_WAIT_S) -> None:
    """From another thread, end this process with that exit code when it is still here after `wait_s`."""

    def cut_off() -> None:
        sleep(wait_s)
        try:
            say_left(log)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        finally:
            leave(code)

    with contextlib.suppress(NoThreadError):  # then the supervisor ends it
        OwnThread(cut_off, start_new_thread)


def say_left(log: Any) -> None:
    """Name what Python waits for, and end the processes that nobody could end after this one."""
    threads, children = threads_left(), [child for name in _FLAVOURS for child in daemonic_children(name)]
    effect = (
        "the work was done, and Python waits for them without a limit: they are cut off. End them in the tear-down hook,"
        " or begin them as daemons"
    )
    log.warning("threads_left", threads=_named(threads), processes=_named(children), effect=effect)
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


def end_as_python() -> None:
    """What Python does at the end of a program, in its order: executors are shut down, threads are waited for, daemonic
    children are terminated."""
    with contextlib.suppress(Exception):  # all of it may be what the handler has made of it, and the work is done
        cast("Any", threading)._shutdown()
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


def _named(each: Iterable[Any]) -> list[str]:
    names = [str(one.name) for one in each]
    return names if len(names) <= NAMED_MAX else [*names[:NAMED_MAX], f"and {len(names) - NAMED_MAX} more"]
