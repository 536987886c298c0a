"""A worker process from its first instruction to its last.

Order, and why: bind to the parent (nobody may outlive the supervisor, not even while importing); drop what was inherited;
salvage dead workers' segments and say so (their rows are safe even if the handler cannot be imported, and what they had in
hand goes to others however long this worker boots); import the handler and run its set-up; only then say READY. A handler
that cannot be loaded is reported by BOOT_FAILED and exit code EXIT_HANDLER.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from multiprocess import forkserver

from ..client.clock import wall_ms
from ..client.logs import get_logger, keep_configuration
from ..client.spans import flush_providers, span_api
from ..conf.exit_codes import EXIT_DESCRIPTORS, EXIT_FAILURE, EXIT_FINE, EXIT_HANDLER
from ..conf.logging import log_of, set_up
from ..conf.segment_format import READY_DIR
from ..conf.units import NS_PER_MS
from ..remoting.errors import UsageError
from ..remoting.ids import UniqueIds
from .api import Handler, Hook
from .async_runner import AsyncWorkerLoop, call_began_ns, limited, one_call_at_a_time, time_limit_of
from .boot import WorkerBoot, WorkerBounds
from .capture import capture_output
from .cells import STARTED_NS, CellView, map_cell, private_cell
from .claims import obey_barriers
from .consume_hooks import ConsumeHooks
from .context import Context, enter
from .ddl import INFER, as_schema, to_ddl
from .descriptors import SpareDescriptor
from .ending import CHILDREN_WAIT_S, Ending, end_all_children, end_threads, until_due
from .inferring import Inferring, declared_columns
from .link import DescriptorsClosedError, LinkClosedError, WorkerLink
from .loading import HandlerLoadError, load
from .memory_watch import LeavingError, watch_memory
from .message import Message
from .ordered import CALLERS, NEVER
from .packets import (
    SALVAGE_DONE,
    SETS_UP,
    WINDOW,
    BootFailed,
    Ready,
    Salvaged,
    encode_boot_failed,
    encode_notice,
    encode_ready,
    encode_salvaged,
)
from .parent_death import be_worker, end_forks_as_usual, from_forkserver, keep_through_stop_signals
from .reporter import REPORT_SIGNAL, ForkGuard, block_report_signal
from .result_types import check_result_type
from .routing import check_order
from .rows import RowBuffer
from .runner import Place
from .salvage import nothing_of, salvage
from .sealing import OwnCalls, Sealer
from .segment import SegmentWriter
from .sends import sending
from .sentry import SentryEvents, flush_sentry, set_up_sentry
from .stack_dump import answer_with_stacks
from .table_fit import check_fits
from .time_limits import SoftLimit, limits_of, obey
from .user_errors import describe_error, user_traceback
from .watching import ProcessSpans, TraceLog, Watcher, watched, watched_async
from .worker import SegmentPause, WorkerLoop

if TYPE_CHECKING:
    from ..client.access import Access
    from .outbox import Outbox


def worker_main(boot: WorkerBoot) -> int:
    """Run one worker; returns its exit code. For a process of its own."""
    be_worker()
    if boot.stacks is not None:
        answer_with_stacks(boot.stacks)
    keep_through_stop_signals()
    block_report_signal()
    end_forks_as_usual()
    _drop_inherited()
    set_up(
        boot.log_format,
        boot.log_level,
        log_of(boot.log_file),
        process="worker",
        worker=boot.worker_id,
        group=boot.group,
    )
    keep_configuration()  # before any code of the handler's, which may configure structlog for its own
    log = get_logger("rocketcrew.worker")
    link = WorkerLink(boot.link, boot.transport)
    code = EXIT_FAILURE
    try:
        code = run_worker_on(boot, link, log)
    except LinkClosedError as error:
        log.info("worker_leaves", reason=str(error))
        code = EXIT_FINE
    finally:
        flush_providers()
        if boot.sentry is not None:
            flush_sentry()
        ending = Ending(code, log)
        # Where a worker has failed, its messages wait for its death.
        ending.after(partial(until_due, link) if code == EXIT_FINE else partial(sleep, CHILDREN_WAIT_S))
    end_threads()
    ending.after(partial(sleep, CHILDREN_WAIT_S))
    end_all_children()
    return code


def run_worker_on(boot: WorkerBoot, link: WorkerLink, log: Any) -> int:
    """Salvage, boot, serve until STOP, tear down. Returns the exit code; raises LinkClosedError."""
    for path in boot.salvage:
        for packet in encode_salvaged(salvage_if_readable(path, log)):
            link.send(packet)
    link.send(bytes((SALVAGE_DONE,)))
    cell = private_cell() if boot.cells_path is None else map_cell(boot.cells_path, boot.cell_slot, os.getpid())
    place(boot.index, boot.nice, boot.cpu_affinity, log)
    enter(Context(boot.worker_id, boot.index, cell, link.send))
    if boot.capture_output:
        capture_output(log)
    try:
        if boot.sentry is not None:
            set_up_sentry(boot.sentry, os.environ)  # before the handler's module, which may add tags of its own
        handler, schema, loop = prepare_handler(boot, lambda: link.send(encode_notice(SETS_UP)))
    except UsageError as error:
        trace = error.traceback if isinstance(error, HandlerLoadError) else ""
        link.send(encode_boot_failed(BootFailed(str(error), trace)))
        return EXIT_HANDLER
    outbox = make_outbox(handler, boot.access)
    sends = sending(handler, boot.group, outbox, ordered=boot.bounds.ordered, rows=boot.segments_dir is not None)
    worker = make_worker(boot, link, sends, schema, log, cell, loop)
    link.send(encode_ready(ready_packet(handler, schema, boot)))
    guard = ForkGuard(lambda: worker.lock)
    os.register_at_fork(before=guard.before, after_in_parent=guard.after_in_parent, after_in_child=worker.forked)
    try:
        code = serve(worker, log)
    finally:
        if outbox is not None:
            outbox.close()
    if code == EXIT_FINE:
        tear_down_handler(handler, loop, log)
        wait_for_background_sends()
        if isinstance(worker, AsyncWorkerLoop):
            worker.tell_left()
    return code


def serve(worker: WorkerLoop, log: Any) -> int:
    """Run until STOP, or until it has to leave; the exit code. Raises LinkClosedError, and what is a bug of ours."""
    try:
        worker.run()
    except LeavingError:
        pass
    except LinkClosedError:
        raise  # the supervisor is gone: nobody is to blame
    except DescriptorsClosedError as error:
        accuse(worker, error)
        log.error("handler_closed_descriptors", error=str(error))
        return EXIT_DESCRIPTORS
    except Exception as error:
        accuse(worker, error)
        raise
    return EXIT_FINE


def accuse(worker: WorkerLoop, error: Exception) -> None:
    """Have the worker name who may have brought about that error, which stays the one that is raised: what goes wrong
    meanwhile is a note on it."""
    try:
        worker.accuse(error)
    except Exception as another:  # noqa: BLE001  it follows from the first, or would hide it
        error.add_note(f"and the worker could not name the messages that it had in hand: {another!r}")


def salvage_if_readable(path: Path, log: Any) -> Salvaged:
    """Salvage a dead worker's segment. One that a disk or its rights refuse stays where it is and nothing counts of it: a
    worker that ended for it would be followed by others that end for it too, and nobody would serve."""
    try:
        salvaged = salvage(path)
    except OSError as error:
        log.warning("segment_not_salvaged", file=path.name, error=str(error),
                    effect="what it holds runs again; the file stays, and the next start tries it once more")  # fmt: skip
        return nothing_of(path)
    log.info("segment_salvaged", file=salvaged.file, sealed=salvaged.sealed_name, rows=salvaged.rows)
    return salvaged


def make_outbox(handler: Handler, access: Access | None) -> Outbox | None:
    """None for a handler that sends nothing: it does not pay for the client."""
    if not handler.sends or access is None:
        return None
    from .outbox import Outbox

    return Outbox(access)


def run_hook(hook: Hook, loop: asyncio.AbstractEventLoop | None) -> None:
    """Call a hook; a coroutine function runs on the loop that the handler's calls run on."""
    result = hook()
    if loop is not None and inspect.iscoroutine(result):
        loop.run_until_complete(result)


def ready_packet(handler: Handler, schema: pa.Schema | None, boot: WorkerBoot) -> Ready:
    """What the supervisor is to know of the handler."""
    unknown = INFER if boot.schema == INFER and boot.segments_dir is not None else None
    return Ready(
        os.getpid(),
        handler.name,
        unknown if schema is None else to_ddl(schema),
        handler.batch,
        order=handler.order or "",
        key=handler.key if isinstance(handler.key, str) else "",
        key_function=callable(handler.key),
        auto_commit=handler.auto_commit,
    )


def prepare_handler(
    boot: WorkerBoot, sets_up: Callable[[], None] = lambda: None
) -> tuple[Handler, pa.Schema | None, asyncio.AbstractEventLoop | None]:
    """The handler, set up; its columns (the configuration's, else its own); a loop, if it needs one. `sets_up` is called
    before its set-up hook is. Raises UsageError."""
    handler = load(boot.handler, sys.modules["__main__"])
    boot.handler.forget_pickled()
    check_order(handler, ordered=boot.bounds.ordered)
    declared = None if boot.segments_dir is None else declared_columns(boot.schema, handler.schema, boot.columns_file)
    schema = None if declared is None else as_schema(declared)
    check_result_type(handler, rows=schema is not None or (boot.segments_dir is not None and boot.schema == INFER))
    if schema is not None:
        check_fits(schema, boot.table, boot.segments_dir)
    loop = loop_for(handler)
    draw_own_numbers()
    sets_up()
    set_up_handler(handler, loop)
    return handler, schema, loop


def draw_own_numbers() -> None:
    """Give the global generators of this process seeds of their own. Python does so for `random` in every fork, numpy not so:
    all workers would draw what the state before their fork gives. Seeds that the handler's module sets at its import hold for
    neither, wherever it was imported; those that its set-up hook sets after this do."""
    random.seed()
    if "numpy.random" in sys.modules:
        with contextlib.suppress(TypeError):  # a generator that the user has put there takes no seed
            sys.modules["numpy.random"].seed()


def loop_for(handler: Handler) -> asyncio.AbstractEventLoop | None:
    """A new one for the handler's coroutine functions; None where it has none."""
    functions = (handler.function, handler.setup, handler.teardown)
    return asyncio.new_event_loop() if any(map(inspect.iscoroutinefunction, functions)) else None


def set_up_handler(
    handler: Handler,
    loop: asyncio.AbstractEventLoop | None,
    caught: tuple[type[BaseException], ...] = (BaseException,),
) -> None:
    """Run the set-up hook, if there is one. What it raises of `caught` becomes a HandlerLoadError."""
    if handler.setup is None:
        return
    try:
        run_hook(handler.setup, loop)
    except caught as error:
        raise HandlerLoadError(
            f"the set-up hook of handler {handler.name} raised {describe_error(error)}", user_traceback(error)
        ) from error


def tear_down_handler(handler: Handler, loop: asyncio.AbstractEventLoop | None, log: Any) -> None:
    """Run the tear-down hook, if there is one. Never raises: the work is done and reported, whatever the hook does."""
    if handler.teardown is not None:
        try:
            run_hook(handler.teardown, loop)
        except BaseException as error:  # noqa: BLE001
            log.warning("teardown_failed", error=describe_error(error), exception=user_traceback(error))


def wait_for_background_sends() -> None:
    """For what the handler's own producers have begun by `send_async`: a worker ends without `atexit`."""
    client = sys.modules.get("rocketcrew.client.sync")
    if client is not None:
        client.wait_at_exit()


def make_worker(
    boot: WorkerBoot,
    link: WorkerLink,
    handler: Handler,
    schema: pa.Schema | None,
    log: Any,
    cell: CellView,
    loop: asyncio.AbstractEventLoop | None,
) -> WorkerLoop:
    """The loop with all it works on."""
    slab = None
    if boot.slab is not None:
        slab = boot.slab.map_read_only()
        boot.slab.close_fd()
    bounds = boot.bounds
    rows, segments, sealer = make_results(boot, link, schema, log, cell)
    if rows is not None and boot.schema == INFER and handler.schema is None and boot.columns_file is not None:
        rows.are_inferred(boot.columns_file)
    ordered = bounds.ordered or handler.is_ordered
    traces = trace_log(boot.member, ordered=ordered) if boot.traces else None
    api = span_api(boot.spans)
    # Who wants spans has set up a provider by now (the handler's module or its set-up hook): the others pay nothing.
    spans = ProcessSpans(api, broadcasting=boot.attempts.broadcasting) if api is not None and api.active else None
    memory = watch_memory(boot.recycle_memory_mib, time.monotonic_ns, link, log)
    soft_ns, hard_ns = limits_of(handler, bounds)
    hooks = consume_hooks(handler, bounds, boot.namespace, log, ordered=ordered)
    events = sentry_events(boot, handler, ordered=ordered)
    watchers: list[Watcher] = [each for each in (traces, spans, hooks, events) if each is not None]
    wall_ns = time.time_ns() - time.monotonic_ns()
    limit = time_limit_of(soft_ns, hard_ns)
    if loop is not None and inspect.iscoroutinefunction(handler.function) and ordered:
        handler, soft_ns = one_call_at_a_time(limited(handler, limit), loop), 0
    elif loop is not None and inspect.iscoroutinefunction(handler.function):
        obey(SoftLimit(cell, time.monotonic_ns, 0, CALLERS, NEVER), cell, 0, hard_ns)
        link.send(encode_notice(WINDOW, chunks=boot.async_concurrency))
        Message.call_clock[:] = [lambda: (wall_ns + (call_began_ns.get() or time.monotonic_ns())) // NS_PER_MS]
        coroutines = AsyncWorkerLoop(
            link, watched_async(limited(handler, limit), boot.group, watchers), time_limit=limit,
            bounds=bounds, slab=slab, traces=traces, rows=rows, segments=segments, sealer=sealer,
            clock=time.monotonic_ns, cell=cell,
            memory=memory, log=log, loop=loop, concurrency=boot.async_concurrency,
        )  # fmt: skip
        if events is not None:
            coroutines.report_failures(events.failed)
        return coroutines
    obey(SoftLimit(cell, time.monotonic_ns, soft_ns, CALLERS, NEVER), cell, soft_ns, hard_ns)
    Message.call_clock[:] = [lambda: (wall_ns + cell[STARTED_NS]) // NS_PER_MS]
    worker = WorkerLoop(
        link,
        watched(handler, boot.group, watchers),
        bounds=bounds,
        slab=slab,
        rows=rows,
        segments=segments,
        sealer=sealer,
        clock=time.monotonic_ns,
        cell=cell,
        traces=traces,
        memory=memory,
        log=log,
    )
    if events is not None:
        worker.report_failures(events.failed)
    if obey_barriers():
        if not ordered:
            worker.offer_back()
        if REPORT_SIGNAL and (not ordered or handler.auto_commit):
            worker.offer_reports()
            worker.report_when_asked()
    return worker


def make_results(
    boot: WorkerBoot, link: WorkerLink, schema: pa.Schema | None, log: Any, cell: CellView
) -> tuple[RowBuffer[Place] | None, SegmentWriter | None, Sealer | None]:
    """Where rows go, on three steps; None when results are off."""
    if boot.segments_dir is None:
        return None, None, None
    infer = None
    if schema is None and boot.schema == INFER and boot.columns_file is not None:
        infer = Inferring(boot.columns_file, log, partial(check_fits, table=boot.table, segments=boot.segments_dir))
    bounds, rows = boot.bounds, RowBuffer[Place](schema, boot.group, infer, boot.table.folders)
    pause = SegmentPause(link, _sleep_ms, log, cell)
    segments = SegmentWriter(
        boot.segments_dir,
        boot.worker_id,
        rows.schema,
        seal_rows=bounds.seal_rows,
        seal_bytes=bounds.seal_bytes,
        seal_idle_ms=bounds.seal_idle_ms,
        pause=pause,
        goes_on=pause.over,
        spare=SpareDescriptor(),
    )
    rows.on_columns = lambda: segments.use(rows.schema)
    beside = pause.beside()
    calls = OwnCalls(SpareDescriptor())
    sealer = Sealer(boot.segments_dir / READY_DIR, pause=beside, goes_on=beside.over, waits=pause.waits, calls=calls)
    return rows, segments, sealer


def _sleep_ms(ms: int) -> None:
    sleep(ms / 1_000)


def consume_hooks(
    handler: Handler, bounds: WorkerBounds, namespace: str, log: Any, *, ordered: bool = False
) -> ConsumeHooks | None:
    """Around the handler's calls; None when it has none."""
    if not handler.hooks:
        return None
    return ConsumeHooks(
        handler.hooks,
        clock=time.monotonic_ns,
        consume_timeout_min=bounds.consume_timeout_min,
        namespace=namespace,
        log=log,
        ordered=ordered,
    )


def sentry_events(boot: WorkerBoot, handler: Handler, *, ordered: bool) -> SentryEvents | None:
    """For the failures of the handler's calls; None when nobody wants them."""
    if boot.sentry is None:
        return None
    attempts = None if ordered else boot.attempts
    return SentryEvents(boot.worker_id, handler.name, attempts, include_bodies=boot.sentry.include_bodies)


def trace_log(member: str, *, ordered: bool) -> TraceLog:
    """With this process's clocks; request ids look like message ids, as Java's do. `member` is the client id."""
    from ..client.identity import ip_for_ids

    ids = UniqueIds(ip_for_ids(member.partition("@")[0]), os.getpid(), random.getrandbits(32))
    return TraceLog(now_ms=wall_ms, clock=time.monotonic_ns, next_id=lambda: ids.next(wall_ms()), ordered=ordered)


def core_for(index: int, cores: Sequence[int]) -> int | None:
    """The core of the worker with this index, in turn over those that may be used; None when there are none."""
    return sorted(cores)[index % len(cores)] if cores else None


def place(index: int, nice: int, cpu_affinity: str, log: Any) -> None:
    """Apply the settings to this process; what the platform refuses is logged and does no harm."""
    _yield_to_wakers()
    try:
        if nice:
            os.nice(nice)
        if cpu_affinity == "spread" and hasattr(os, "sched_setaffinity"):
            core = core_for(index, list(os.sched_getaffinity(0)))
            if core is not None:
                os.sched_setaffinity(0, {core})
    except OSError as error:
        log.warning("worker_not_placed", nice=nice, cpu_affinity=cpu_affinity, error=str(error))


def _yield_to_wakers() -> None:
    """A worker that wakes up does not take the core from who runs there: most often that is the supervisor, for which all
    workers wait. A policy that somebody has chosen (chrt) stays."""
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _drop_inherited() -> None:
    """Close the descriptor that keeps the forkserver alive: it is to end with the supervisor, not with its workers."""
    server = forkserver._forkserver  # pyright: ignore[reportPrivateUsage]
    alive_fd = server._forkserver_alive_fd  # pyright: ignore[reportPrivateUsage]
    if from_forkserver() and alive_fd is not None:
        server._forkserver_alive_fd = None  # pyright: ignore[reportPrivateUsage]
        with contextlib.suppress(OSError):
            os.close(alive_fd)
