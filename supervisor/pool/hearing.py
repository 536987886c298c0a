"""What workers report: the packets of a link, given to the core; and the order that their handler keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from ...client.clock import wall_ms
from ...conf.settings import ConsumerSettings, Settings
from ...remoting.errors import ProtocolError, UsageError
from ...remoting.queues import MessageQueue
from ...remoting.traces import TraceRecord
from ...workers import ordered_packets, packets
from ...workers.packets import NOTICE, TRACES, DirectResult, decode_directed, decode_notice, decode_traces
from ..core import events as ev
from ..core.decisions import Core
from ..core.journal import Records
from ..core.order import KEY, QUEUE, HandlerOrder, Order, check_same, check_topic_limits, resolve
from .child import Child

LEFT_BEHIND = "left behind"
"""In place of a worker's id: what earlier runs left in open/."""

log = structlog.get_logger("rocketcrew.pool")


class Hearing:
    """Reads packets and gives them to the core; what the pool itself must know goes to its callbacks."""

    def __init__(
        self, core: Core, *, run_id: str, is_ready: Callable[[Child, packets.Ready], None],
        boot_failed: Callable[[Child, packets.BootFailed], None], progress: Callable[[Child], None],
        notice: Callable[[Child, dict[str, Any]], None], file_salvaged: Callable[[Child, str], None],
        salvaged: Callable[[Child], None],
        kill: Callable[[str, str], None], directed: Callable[[DirectResult], None],
        check: Callable[[packets.Ready], None], traced: Callable[[Sequence[TraceRecord]], None],
    ) -> None:  # fmt: skip
        """`progress` is called when a worker has reported `look_at_messages` messages, `file_salvaged` with the name of
        each segment that it is done with, `salvaged` when it has salvaged all that it was to. `kill(worker_id, reason)` ends
        a worker that reported what cannot be. `check` raises UsageError where a worker that is ready is not what this member
        can use; `traced` takes trace records."""
        self._core = core
        self._run_id = run_id
        self._is_ready = is_ready
        self._boot_failed = boot_failed
        self._progress = progress
        self._notice = notice
        self._file_salvaged = file_salvaged
        self._all_salvaged = salvaged
        self._kill = kill
        self._directed = directed
        self._loop = asyncio.get_running_loop()
        self._check = check
        self._traced = traced
        self.leftovers: list[tuple[str, int, Records]] = []
        """What was salvaged of earlier runs: (worker id, segment, records whose rows are complete in it)."""

    def packet(self, child: Child, packet: bytes) -> None:
        now = self._loop.time()
        kind = packet[0]
        try:
            if kind == packets.REPORTS:
                self._reports(child, packet, now)
            elif kind == packets.SEALED:
                self._core.handle(ev.Sealed(child.worker_id, packets.decode_sealed(packet).seq), now)
            elif kind == packets.DIRECTED:
                self._directed(decode_directed(packet))
            elif kind == TRACES:
                self._traced(decode_traces(packet))
            elif kind == packets.READY:
                self._ready(child, packets.decode_ready(packet), now)
            elif kind == packets.SALVAGED:
                self._salvaged(child, packets.decode_salvaged(packet), now)
            elif kind == packets.SALVAGE_DONE:
                self._salvage_done(child, now)
            elif kind == NOTICE:
                self._notice(child, decode_notice(packet))
            elif kind == packets.BOOT_FAILED:
                self._boot_failed(child, packets.decode_boot_failed(packet))
            elif not hear_ordered(self._core, child.worker_id, packet, now):
                raise ProtocolError(f"packet kind {kind}", "worker link")
        except ProtocolError as error:
            self._kill(child.worker_id, str(error))
        except Exception as error:
            # What it reported would be waited for without an end: its death gives its messages to others.
            log.exception("packet_failed", worker=child.worker_id, kind=kind)
            self._core.unexpected_error()
            self._kill(child.worker_id, f"its packet could not be taken: {error}")

    def _reports(self, child: Child, packet: bytes, now: float) -> None:
        entries, failures = packets.decode_reports(packet)
        child.reports += 1
        at, heard_ms = 0, wall_ms()
        for chunk_id, start, records, seq, busy_us, slowest_us, filtered, failed in entries:
            reports = failures[at : at + failed] if failed else ()
            at += failed
            self._core.handle(
                ev.Reported(
                    child.worker_id, chunk_id, start, records, seq, busy_us, slowest_us, filtered, reports, heard_ms
                ),
                now,
            )
        if child.worker.messages >= child.worker.look_at_messages:
            self._progress(child)

    def _ready(self, child: Child, ready: packets.Ready, now: float) -> None:
        try:
            self._check(ready)
        except UsageError as error:
            self._boot_failed(child, packets.BootFailed(str(error), ""))
            self._core.handle(ev.WorkerKilled(child.worker_id), now)
            child.process.kill()
            return
        self._core.state.stats.calls_are_batches = ready.batch
        self._core.handle(ev.WorkerReady(child.worker_id), now)
        log.debug("worker_ready", worker=child.worker_id, pid=child.process.pid)
        self._is_ready(child, ready)

    def _salvaged(self, child: Child, part: packets.Salvaged, now: float) -> None:
        found = child.salvaged.setdefault(part.file, [])
        found.extend(part.messages)
        if not part.last:
            return
        del child.salvaged[part.file]
        self._file_salvaged(child, part.file)
        if part.sealed_name is None:
            return
        records = [(MessageQueue(q.topic, q.broker_name, q.queue_id), q.ranges) for q in found]
        log.info("segment_salvaged", file=part.file, rows=part.rows, worker=part.worker)
        if part.worker.startswith(self._run_id + "."):
            self._core.handle(ev.Salvaged(part.worker, part.seq, records), now)
        else:
            self.leftovers.append((part.worker, part.seq, records))

    def _salvage_done(self, child: Child, now: float) -> None:
        """What the dead workers had in flight goes on now: the set-up of this one may take long, and may fail."""
        for dead in child.worker.salvages:
            if dead != LEFT_BEHIND:
                self._core.handle(ev.SalvageComplete(dead, wall_ms()), now)
        self._all_salvaged(child)


def hear_ordered(core: Core, worker_id: str, packet: bytes, now: float) -> bool:
    """Give the core a packet of the ordered modes; False = it is of another kind. Raises ProtocolError."""
    kind = packet[0]
    if kind == ordered_packets.RETURNED:
        said = ordered_packets.decode_returned(packet)
        core.handle(ev.Returned(worker_id, said.chunk_id, said.start, said.failed, said.failure, said.suspend_ms), now)
    elif kind == ordered_packets.CONSUMED:
        core.handle(ev.Consumed(worker_id, ordered_packets.decode_consumed(packet)), now)
    elif kind == ordered_packets.KEYS:
        core.handle(ev.Classified(worker_id, *ordered_packets.decode_keys(packet)), now)
    else:
        return False
    return True


def order_said(said: packets.Ready | None) -> HandlerOrder:
    """The order that the decorator asks for, as a worker reported it."""
    return HandlerOrder(said.order, said.key, said.key_function, said.auto_commit) if said else HandlerOrder()


class OrderKept:
    """The order of the running member, once it is known; workers of later code that ask for another are refused."""

    def __init__(self, settings: Settings) -> None:
        self._consumer = settings.consumer
        self._limits = settings.workers.topic_concurrency
        self._order: Order | None = None

    def check(self, said: packets.Ready) -> None:
        """Raises UsageError for a worker that is ready and keeps another order."""
        if self._order is not None:
            check_same(self._order, self._consumer, order_said(said))

    def begin(self, core: Core, said: packets.Ready | None) -> Order:
        """The handler was imported, so its decorator's order is known. Raises UsageError for a contradiction."""
        order = self._order = resolve(self._consumer, order_said(said))
        check_topic_limits(order, self._limits)
        core.begin(order)
        _log_order(core, order, self._consumer)
        return order


def _log_order(core: Core, order: Order, consumer: ConsumerSettings) -> None:
    if order.order == KEY:
        core.state.log("info", "order_by_key", order_key=order.order_key or "function", on_failure=consumer.order_on_failure,
                       others_wait_after_offsets=consumer.consume_concurrently_max_span,
                       others_wait_after_messages=consumer.pull_threshold_for_queue)  # fmt: skip
    elif order.order == QUEUE:
        core.state.log("info", "order_by_queue", auto_commit=order.auto_commit, locks=order.locks)
