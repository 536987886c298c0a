"""Imported by the forkserver before its first fork: what every worker of this generation finds ready.

Only the forkserver that spawn.py starts does anything here (it finds its instructions in ENVIRONMENT_KEY and is the
child of the process that wrote them). The user's module is imported inside a guard: an import that raises must not end
the forkserver; the worker imports it again and reports the error with its traceback. What the import logs is in the log.

A module whose import begins threads cannot be shared, for a fork has none of them: the forkserver is executed anew without
it, and each worker imports it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Generator
from json import dumps, loads  # bound before the user's code, which may replace them
from pathlib import Path
from typing import Any, Final

from ..conf.importing import uncollected
from .parent_death import CONTROL_SIGNALS, be_forkserver, die_with_parent, end_programs_too, keep_through_stop_signals
from .stack_dump import answer_as_forkserver

ENVIRONMENT_KEY: Final = "ROCKETCREW_FORKSERVER"
OPENMP: Final = re.compile(r"\s(/\S.*/libgomp[^/]*\.so[^/]*)$", re.MULTILINE)
"""In the lines of /proc/self/maps; wheels bring one of their own, under a longer name."""
OPENMP_WAIT_S: Final = 1.0
"""A loop that does nothing is over in less than a millisecond."""


def prepare_forkserver(setup: dict[str, Any]) -> None:
    """Bind this process to its parent, then import what workers need."""
    be_forkserver()
    keep_through_stop_signals()
    answer_as_forkserver(setup["stacks"])
    die_with_parent(setup["supervisor_pid"])
    sys.path[:] = setup["sys_path"]
    logs = importlib.import_module("..client.logs", __package__)
    with uncollected():  # not the user's modules, which may do more than define things
        importlib.import_module(".main", __package__)
        importlib.import_module(".rows", __package__).warm_up()
        with contextlib.suppress(Exception):
            # Where OpenTelemetry is installed: 20 ms of imports, which every worker would take between its start and "ready".
            importlib.import_module("..client.spans", __package__).span_api()
    if setup["log"]:
        importlib.import_module("..conf.logging", __package__).set_up_as(setup["log"], "forkserver", for_imports=True)
        logs.keep_configuration()
    for module in setup["modules"]:
        with contextlib.suppress(BaseException):
            importlib.import_module(module)
    if setup["modules"] and (lost := lost_in_forks()):
        if setup["log"]:
            logs.get_logger("rocketcrew.forkserver").warning(
                "module_not_shared", begins=lost,
                effect="its import begins threads, which no fork has: each worker imports it anew, with memory of its own",
                remedy="begin them in the set-up hook: train and call no model while the module is imported, only load it",
            )  # fmt: skip
        os.environ[ENVIRONMENT_KEY] = dumps(setup | {"modules": []})
        use_path(setup["path"])
        signal.pthread_sigmask(signal.SIG_BLOCK, CONTROL_SIGNALS)  # as at its first start: until it has handlers again
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606  the very command this process was started with
    end_programs_too(setup["supervisor_pid"])
    # What is here now is shared by all workers: keep the collector from touching (and so copying) its pages.
    gc.collect()
    gc.freeze()


def use_path(path: str | None) -> None:
    """As PYTHONPATH of processes that are started from now on; None: there is none."""
    if path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = path


def lost_in_forks() -> list[str]:
    """The threads that the modules have begun, of which forks have none: Python's by name, or "OpenMP". OpenBLAS and others
    make theirs anew in each fork."""
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    return threads or ["OpenMP"] * openmp_begun()


def openmp_begun(maps: Path = Path("/proc/self/maps")) -> bool:
    """GNU's OpenMP has begun its threads, by loops of the thread that calls: a fork has none of them, and waits for them for
    ever in its first loop. Nothing says so beforehand, and the OpenMP of Intel and LLVM makes its threads anew. So a fork is
    made that begins a loop, and shows whether it gets out of it."""
    try:
        return any(map(_fork_waits, sorted(set(OPENMP.findall(maps.read_text(errors="replace"))))))
    except OSError:  # not Linux; or no process is to be had, which the first worker will tell
        return False


def _fork_waits(library: str) -> bool:
    with _children_kept():
        return _child_waits(library)


@contextlib.contextmanager
def _children_kept() -> Generator[None]:
    """How a child ended can be asked for: where a module has SIGCHLD ignored, the kernel keeps nothing of it."""
    theirs = signal.getsignal(signal.SIGCHLD)
    if theirs is not None:  # one of C's stays, which could not be put back
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        if theirs is not None:
            signal.signal(signal.SIGCHLD, theirs)


def _child_waits(library: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a process with threads forks: it does so for each worker
        pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            _run_loop(library)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM


def _run_loop(library: str) -> None:
    """A loop of two threads in a fork, which a signal ends when it waits."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, OPENMP_WAIT_S)
    run_loop(library)


def run_loop(library: str) -> None:
    """Two threads of it do next to nothing."""
    nothing = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p)
    ctypes.CDLL(library).GOMP_parallel(nothing, None, ctypes.c_uint(2), ctypes.c_uint(0))


if ENVIRONMENT_KEY in os.environ:
    _setup = loads(os.environ[ENVIRONMENT_KEY])
    if _setup["supervisor_pid"] == os.getppid():
        del os.environ[ENVIRONMENT_KEY]
        use_path(_setup["own_path"])
        prepare_forkserver(_setup)
