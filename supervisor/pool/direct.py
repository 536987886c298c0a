"""A message that an administrator wants consumed: to a real worker and back (CONSUME_MESSAGE_DIRECTLY; CMResult.java).

The record gets a slot of the slab, as a pulled one; a worker that is ready and has the least in flight runs it after what it
has. The broker waits 10 s and gives up; a handler that is never done with it would keep the worker for ever, so after the
consume time-out the worker is killed, and its death handled as any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import structlog

from ...remoting.bodies import ConsumeDirectlyResult
from ...remoting.log_keys import queue_keys
from ...workers.packets import THROW_EXCEPTION, DirectResult, QueueInfo, Refused, encode_direct
from ..core.decisions import Core
from ..core.slab import Slot
from ..core.states import WorkerState
from .child import Child

WAITING_MAX = 64
"""More at a time are refused: each holds bytes of the slab."""

log = structlog.get_logger("rocketcrew.direct")


class Directing:
    """Open requests by number. `send(child, packet, payload)` writes to a worker's link; `kill(worker_id, reason)`."""

    def __init__(
        self, core: Core, slab: memoryview, children: dict[str, Child],
        send: Callable[[Child, bytes, memoryview], None], kill: Callable[[str, str], None], *, timeout_s: float,
    ) -> None:  # fmt: skip
        self._core = core
        self._slab = slab
        self._children = children
        self._send = send
        self._kill = kill
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._open: dict[int, tuple[str, asyncio.Future[DirectResult], Slot, asyncio.TimerHandle]] = {}

    async def consume(self, queue: QueueInfo, record: bytes) -> ConsumeDirectlyResult:
        """The result of the record in a worker's handler. Raises Refused when no worker or no bytes are free."""
        child = self._least_loaded()
        slot = self._core.state.slab.take(len(record)) if len(self._open) < WAITING_MAX else None
        if slot is None:
            raise Refused(
                f"{len(self._open)} messages are being consumed directly, and no memory is free for another: try again later"
            )
        self._slab[slot.start : slot.start + len(record)] = record
        number = next(self._numbers) & 0xFFFF_FFFF
        answer: asyncio.Future[DirectResult] = self._loop.create_future()
        timer = self._loop.call_later(
            self._timeout_s,
            self._kill,
            child.worker_id,
            f"a message consumed directly ran for {self._timeout_s:.0f} s",
        )
        self._open[number] = (child.worker_id, answer, slot, timer)
        log.info("consume_directly", **queue_keys(queue), worker=child.worker_id)
        packet = encode_direct(number, slot.start, len(record), queue)
        self._send(child, packet, self._slab[slot.start : slot.start + len(record)])
        result = await answer
        return ConsumeDirectlyResult(result.result, remark=result.remark or None, spent_time_mills=result.spent_ms)

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
        for number, (owner, *_) in list(self._open.items()):
            if owner == worker_id:
                self._finish(
                    number, DirectResult(number, THROW_EXCEPTION, 0, "the worker died before the message had ended")
                )

    def _finish(self, number: int, result: DirectResult) -> None:
        found = self._open.pop(number, None)
        if found is None:
            return
        _, answer, slot, timer = found
        timer.cancel()
        self._core.state.release(slot)
        if not answer.done():
            answer.set_result(result)
