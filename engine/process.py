"""The handler in a Python process of an executor: loaded and set up once for a run, however many tasks run there.

The tear-down hook runs when Spark ends its Python processes in order (SIGHUP, pyspark/daemon.py); a process that is killed
has none, as everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import structlog

from ..client.spans import span_api
from ..conf.logging import set_up
from ..conf.units import NS_PER_MS
from ..workers.api import Handler
from ..workers.async_runner import limited, one_call_at_a_time, time_limit_of
from ..workers.cells import STARTED_NS, CellView
from ..workers.consume_hooks import ConsumeHooks
from ..workers.context import Context, enter
from ..workers.ddl import as_schema
from ..workers.loading import load
from ..workers.main import loop_for, set_up_handler, tear_down_handler
from ..workers.message import Message
from ..workers.runner import HANDLER_CALLERS, NEVER_INTERRUPTED
from ..workers.time_limits import SoftLimit, limits_of, obey
from ..workers.watching import ProcessSpans, watched
from .spec import TaskSpec


@dataclass(eq=False)
class HandlerProcess:
    """The handler of one run. `schema` None: no columns are declared, or rows are not wanted."""

    run: str
    handler: Handler
    schema: pa.Schema | None
    loop: asyncio.AbstractEventLoop | None
    log: Any

    def tear_down(self) -> None:
        """Run the tear-down hook, if there is one. Never raises."""
        tear_down_handler(self.handler, self.loop, self.log)

    def for_task(self, spec: TaskSpec, cell: CellView, partition: int) -> tuple[Handler, int, int]:
        """The handler as one task calls it, and its soft and hard time limits in ns; `cell` is the task's."""
        bounds, handler = spec.bounds, copy.copy(self.handler)
        # The task itself chooses messages, so that it knows which were filtered.
        handler.filter = None
        soft_ns, hard_ns = limits_of(handler, bounds)
        if self.loop is not None and inspect.iscoroutinefunction(handler.function):
            handler, soft_ns = one_call_at_a_time(limited(handler, time_limit_of(soft_ns, hard_ns)), self.loop), 0
        if threading.current_thread() is threading.main_thread():
            obey(
                SoftLimit(cell, time.monotonic_ns, soft_ns, HANDLER_CALLERS, NEVER_INTERRUPTED), cell, soft_ns, hard_ns
            )
        else:
            soft_ns = 0
        hooks = None
        if handler.hooks:
            hooks = ConsumeHooks(
                handler.hooks, clock=time.monotonic_ns, consume_timeout_min=bounds.consume_timeout_min,
                namespace=spec.namespace, log=self.log,
            )  # fmt: skip
        api = span_api(spec.spans)
        spans = ProcessSpans(api) if api is not None and api.active else None
        wall_ns = time.time_ns() - time.monotonic_ns()
        Message.call_clock[:] = [lambda: (wall_ns + cell[STARTED_NS]) // NS_PER_MS]
        enter(Context(f"spark-{os.getpid()}", partition, cell, lambda _: None))
        return watched(handler, spec.group, [each for each in (spans, hooks) if each is not None]), soft_ns, hard_ns


_current: HandlerProcess | None = None


def handler_process(spec: TaskSpec) -> HandlerProcess:
    """The process's handler for this run, set up. Raises HandlerLoadError, UsageError."""
    global _current  # noqa: PLW0603  a fact of this process
    if _current is not None and _current.run == spec.run:
        return _current
    if _current is not None:
        _current.tear_down()
        _current = None
    set_up(spec.log_format, spec.log_level, sys.stderr, process="task", group=spec.group)
    log = structlog.get_logger("rocketcrew.engine")
    handler = load(spec.handler)
    declared = spec.schema or handler.schema
    schema = as_schema(declared) if declared is not None and spec.results else None
    loop = loop_for(handler)
    set_up_handler(handler, loop)
    _current = HandlerProcess(spec.run, handler, schema, loop, log)
    if handler.teardown is not None:
        with contextlib.suppress(ValueError):  # not the main thread: then there is no end in order either
            signal.signal(signal.SIGHUP, _on_hang_up)
    return _current


def _on_hang_up(_number: int, _frame: object) -> None:
    if _current is not None:
        _current.tear_down()
    os._exit(0)
