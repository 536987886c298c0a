"""Messages that an administrator wants consumed: who runs them, what is answered, and that bytes come back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from rocketcrew.supervisor.pool.child import Child
from rocketcrew.supervisor.pool.direct import Directing
from rocketcrew.workers.packets import DirectResult, QueueInfo, Refused, decode_direct

if TYPE_CHECKING:
    from .conftest import Bench

QUEUE = QueueInfo("g", "orders", "b", 0)


class Named:
    """As much of a pool's child as is looked at."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id


class Desk:
    """A Directing over a bench; `sent` has what it sent."""

    def __init__(self, bench: Bench, *workers: str) -> None:
        self.bench = bench
        self.sent: list[tuple[str, int, bytes]] = []
        children = {name: cast("Child", Named(name)) for name in workers}
        self.directing = Directing(
            bench.core, memoryview(bench.view), children, self._send, lambda _w, _r: None, timeout_s=60
        )

    def _send(self, child: Child, packet: bytes, payload: memoryview) -> None:
        self.sent.append((child.worker_id, decode_direct(packet).request, bytes(payload)))


def run(scene: Any) -> None:
    asyncio.run(scene())


def test_the_least_loaded_worker_gets_it_and_its_answer_goes_back(bench: Bench) -> None:
    async def scene() -> None:
        bench.worker("busy", "idle")
        (handle,) = bench.open(0)
        bench.found(handle, [0])
        (chunk,) = bench.dispatched()
        other = "idle" if chunk.worker_id == "busy" else "busy"
        used = bench.slab.used_units
        desk = Desk(bench, "busy", "idle")
        task = asyncio.ensure_future(desk.directing.consume(QUEUE, b"record"))
        await asyncio.sleep(0)
        (worker, number, payload) = desk.sent[0]
        assert (worker, payload) == (other, b"record")
        assert bench.slab.used_units == used + 1
        desk.directing.done(DirectResult(number, "CR_LATER", 12, "why"))
        desk.directing.done(DirectResult(number, "CR_LATER", 12, "again"))
        result = await task
        assert (result.consume_result, result.remark, result.spent_time_mills) == ("CR_LATER", "why", 12)
        assert bench.slab.used_units == used

    run(scene)


def test_a_worker_that_dies_with_it_is_an_answer(bench: Bench) -> None:
    async def scene() -> None:
        bench.worker("w")
        desk = Desk(bench, "w")
        task = asyncio.ensure_future(desk.directing.consume(QUEUE, b"record"))
        await asyncio.sleep(0)
        desk.directing.died("another")
        assert not task.done()
        desk.directing.died("w")
        result = await task
        assert result.consume_result == "CR_THROW_EXCEPTION"
        assert "died" in (result.remark or "")
        assert bench.slab.used_units == 0

    run(scene)


def test_without_a_worker_or_without_room_it_is_refused(bench: Bench) -> None:
    async def scene() -> None:
        with pytest.raises(Refused, match="no worker"):
            await Desk(bench).directing.consume(QUEUE, b"record")
        bench.worker("w")
        with pytest.raises(Refused, match="memory"):
            await Desk(bench, "w").directing.consume(QUEUE, bytes(len(bench.view) + 1))

    run(scene)
