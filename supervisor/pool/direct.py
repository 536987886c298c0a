"""A message that an administrator wants consumed: to a real worker and back (CONSUME_MESSAGE_DIRECTLY; CMResult.java).

The record gets a slot of the slab, as a pulled one; a worker that is ready and has the least in flight runs it after what it
has. The broker waits 10 s and gives up; a handler that is never done with it would keep the worker for ever, so when it has
run for the hard time limit, where the handler has one, the worker is killed, and its death handled as any other. What the
worker had before it may take as long as it is allowed to: the cell says whether the worker has come to it. Until the worker
has answered or died its bytes stay in the slab, also those of one that was refused because no worker came to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import structlog

from ...conf.units import NS_PER_S
from ...remoting.bodies import ConsumeDirectlyResult
from ...remoting.log_keys import queue_keys
from ...workers.cells import CHUNK_ID, CONSUMED_DIRECTLY, HARD_NS, STARTED_NS, STATE, CellView
from ...workers.packets import THROW_EXCEPTION, DirectResult, QueueInfo, Refused, encode_direct
from ..core.decisions import Core
from ..core.slab import Slot
from ..core.states import WorkerState
from .child import Child

WAITING_MAX = 64
"""More at a time are refused: each holds bytes of the slab."""

log = structlog.get_logger("rocketcrew.direct")


@dataclass(slots=True)
class _Request:
    """A message that a worker has, or will come to."""

    worker_id: str
    answer: asyncio.Future[DirectResult]
    slot: Slot
    deadline: float
    """Of the loop's clock: refused if no worker has come to it by then."""
    timer: asyncio.TimerHandle


class Directing:
    """Open requests by number. `send(child, packet, payload)` writes to a worker's link; `kill(worker_id, reason)`;
    `cell(child)` is that of the worker, `timeout_s` how long one may wait for its worker."""

    def __init__(
        self, core: Core, slab: memoryview, children: dict[str, Child],
        send: Callable[[Child, bytes, memoryview], None], kill: Callable[[str, str], None],
        cell: Callable[[Child], CellView], *, timeout_s: float,
    ) -> None:  # fmt: skip
        self._core = core
        self._slab = slab
        self._children = children
        self._send = send
        self._kill = kill
        self._cell = cell
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._open: dict[int, _Request] = {}
        """In the order in which they were sent, which is that in which a worker comes to its own."""

    async def consume(self, queue: QueueInfo, record: bytes) -> ConsumeDirectlyResult:
        """The result of the record in a worker's handler. Raises Refused when no worker or no bytes are free, and when
        none came to it in time."""
        child = self._least_loaded()
        slot = self._core.state.slab.take(len(record)) if len(self._open) < WAITING_MAX else None
        if slot is None:
            raise Refused(
                f"{len(self._open)} messages are being consumed directly, and no memory is free for another: try again later"
            )
        self._slab[slot.start : slot.start + len(record)] = record
        number = next(self._numbers) & 0xFFFF_FFFF
        answer: asyncio.Future[DirectResult] = self._loop.create_future()
        timer = self._loop.call_later(self._limit_s(child), self._look, number)
        deadline = self._loop.time() + self._timeout_s
        self._open[number] = _Request(child.worker_id, answer, slot, deadline, timer)
        log.info("consume_directly", **queue_keys(queue), worker=child.worker_id)
        packet = encode_direct(number, slot.start, len(record), queue)
        self._send(child, packet, self._slab[slot.start : slot.start + len(record)])
        result = await answer
        return ConsumeDirectlyResult(result.result, remark=result.remark or None, spent_time_mills=result.spent_ms)

    def _limit_s(self, child: Child | None) -> float:
        """How long it may run from now on before anything is to be done."""
        limit_ns = self._cell(child)[HARD_NS] if child is not None else 0
        return min(limit_ns / NS_PER_S or self._timeout_s, self._timeout_s)

    def _look(self, number: int) -> None:
        """Its time may be over: kill the worker that has run it for so long. Else look again when that can be."""
        request = self._open[number]
        cell = self._running(number, request.worker_id)
        left_s = self._limit_s(self._children.get(request.worker_id))
        if cell is not None:
            if limit_ns := cell[HARD_NS]:  # else it may take any time
                left_s = (cell[STARTED_NS] + limit_ns - time.monotonic_ns()) / NS_PER_S
                if left_s <= 0:
                    self._kill(request.worker_id, f"a message consumed directly ran for {limit_ns / NS_PER_S:.0f} s")
                    return
        elif not request.answer.done():
            wait_s = request.deadline - self._loop.time()
            if wait_s > 0:
                left_s = min(left_s, wait_s)
            else:
                busy = f"no worker came to it in {self._timeout_s:.0f} s"
                request.answer.set_exception(Refused(f"{busy}: the one that has it is busy, and runs it after that"))
        request.timer = self._loop.call_later(left_s, self._look, number)

    def _running(self, number: int, worker_id: str) -> CellView | None:
        """The cell of the worker that runs it; None while that has something else in hand."""
        child = self._children.get(worker_id)
        first = next(each for each, request in self._open.items() if request.worker_id == worker_id)
        if child is None or first != number:
            return None
        cell = self._cell(child)
        return cell if cell[STATE] and cell[CHUNK_ID] == CONSUMED_DIRECTLY else None

    def _least_loaded(self) -> Child:
        ready = [
            worker
            for worker in self._core.state.workers.values()
            if worker.state is WorkerState.READY and worker.worker_id in self._children
        ]
        if not ready:
            raise Refused("no worker is ready: try again later")
        return self._children[min(ready, key=lambda worker: len(worker.in_flight)).worker_id]

    def done(self, result: DirectResult) -> None:
        """A worker's answer."""
        self._finish(result.request, result)

    def died(self, worker_id: str) -> None:
        """Answer what the worker had in hand: the handler did not survive the message, or did not come to it."""
        for number, request in list(self._open.items()):
            if request.worker_id == worker_id:
                self._finish(
                    number, DirectResult(number, THROW_EXCEPTION, 0, "the worker died before the message had ended")
                )

    def _finish(self, number: int, result: DirectResult) -> None:
        found = self._open.pop(number, None)
        if found is None:
            return
        found.timer.cancel()
        self._core.state.release(found.slot)
        if not found.answer.done():
            found.answer.set_result(result)
