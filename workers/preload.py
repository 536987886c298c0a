"""Imported by the forkserver before its first fork: what every worker of this generation finds ready.

Only the forkserver that spawn.py starts does anything here (it finds its instructions in ENVIRONMENT_KEY and is the
child of the process that wrote them). The user's module is imported inside a guard: an import that raises must not end
the forkserver; the worker imports it again and reports the error with its traceback. What the import logs is in the log.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
from json import dumps, loads  # bound before the user's code, which may replace them
from typing import Any, Final

from ..conf.importing import uncollected
from .parent_death import CONTROL_SIGNALS, be_forkserver, die_with_parent, end_programs_too, keep_through_stop_signals
from .stack_dump import answer_as_forkserver

ENVIRONMENT_KEY: Final = "ROCKETCREW_FORKSERVER"


def prepare_forkserver(setup: dict[str, Any]) -> None:
    """Bind this process to its parent, then import what workers need."""
    be_forkserver()
    keep_through_stop_signals()
    answer_as_forkserver(setup["stacks"])
    die_with_parent(setup["supervisor_pid"])
    sys.path[:] = setup["sys_path"]
    with uncollected():  # not the user's modules, which may do more than define things
        importlib.import_module(".main", __package__)
        importlib.import_module(".rows", __package__).warm_up()
        with contextlib.suppress(Exception):
            # Where OpenTelemetry is installed: 20 ms of imports, which every worker would take between its start and "ready".
            importlib.import_module("..client.spans", __package__).span_api()
    if setup["log"]:
        importlib.import_module("..conf.logging", __package__).set_up_as(setup["log"], "forkserver", for_imports=True)
    for module in setup["modules"]:
        with contextlib.suppress(BaseException):
            importlib.import_module(module)
    if setup["modules"] and threading.active_count() > 1:
        os.environ[ENVIRONMENT_KEY] = dumps(setup | {"modules": []})
        signal.pthread_sigmask(signal.SIG_BLOCK, CONTROL_SIGNALS)  # as at its first start: until it has handlers again
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606  the very command this process was started with
    end_programs_too(setup["supervisor_pid"])
    # What is here now is shared by all workers: keep the collector from touching (and so copying) its pages.
    gc.collect()
    gc.freeze()


if ENVIRONMENT_KEY in os.environ:
    _setup = loads(os.environ[ENVIRONMENT_KEY])
    if _setup["supervisor_pid"] == os.getppid():
        del os.environ[ENVIRONMENT_KEY]
        prepare_forkserver(_setup)
