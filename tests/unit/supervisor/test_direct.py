"""Messages that an administrator wants consumed: who runs them, what is answered, and that bytes come back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from rocketcrew.supervisor.pool.child import Child
from rocketcrew.supervisor.pool.direct import Directing
from rocketcrew.workers.cells import CHUNK_ID, CONSUMED_DIRECTLY, HARD_NS, STARTED_NS, STATE, private_cell
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

    def __init__(self, bench: Bench, *workers: str, timeout_s: float = 60) -> None:
        self.bench = bench
        self.cell = private_cell()
        self.killed: list[str] = []
        self.sent: list[tuple[str, int, bytes]] = []
        children = {name: cast("Child", Named(name)) for name in workers}
        self.directing = Directing(
            bench.core, memoryview(bench.view), children, self._send, lambda worker, _reason: self.killed.append(worker),
            lambda _child: self.cell, timeout_s=timeout_s,
        )  # fmt: skip

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


def test_one_that_the_worker_has_not_come_to_is_refused_and_its_bytes_are_kept(bench: Bench) -> None:
    async def scene() -> None:
        bench.worker("w")
        desk = Desk(bench, "w", timeout_s=0)
        desk.cell[STATE], desk.cell[CHUNK_ID] = 8, 3  # a pulled message, since ever
        with pytest.raises(Refused, match="no worker came to it"):
            await desk.directing.consume(QUEUE, b"record")
        assert desk.killed == []
        assert bench.slab.used_units == 1, "the worker reads them when it comes to it"
        desk.directing.done(DirectResult(desk.sent[0][1], "CR_SUCCESS", 1, ""))
        assert bench.slab.used_units == 0

    run(scene)


def test_one_waits_for_its_worker_beyond_the_hard_limit_of_what_that_has_in_hand(bench: Bench) -> None:
    async def scene() -> None:
        bench.worker("w")
        desk = Desk(bench, "w", timeout_s=900)
        # It has a pulled message in hand, whose limit is over at once.
        desk.cell[STATE], desk.cell[CHUNK_ID], desk.cell[HARD_NS] = 8, 3, 1
        task = asyncio.ensure_future(desk.directing.consume(QUEUE, b"record"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert (desk.killed, task.done()) == ([], False)
        desk.directing.died("w")
        assert (await task).consume_result == "CR_THROW_EXCEPTION"

    run(scene)


@pytest.mark.parametrize(
    ("since_ns", "limit_ns", "killed"), [(1, 1, ["w"]), (1, 1 << 62, []), (1 << 61, 1, []), (1, 0, [])]
)
def test_one_that_runs_for_the_hard_limit_costs_the_worker(
    bench: Bench, since_ns: int, limit_ns: int, killed: list[str]
) -> None:
    """By the limit of its handler, as any other call: not for the consume time-out, which that may go beyond."""

    async def scene() -> None:
        bench.worker("w")
        desk = Desk(bench, "w", timeout_s=0)
        desk.cell[STATE], desk.cell[CHUNK_ID], desk.cell[STARTED_NS] = 8, CONSUMED_DIRECTLY, since_ns
        desk.cell[HARD_NS] = limit_ns
        task = asyncio.ensure_future(desk.directing.consume(QUEUE, b"record"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert (desk.killed, task.done()) == (killed, False)
        desk.directing.died("w")
        await task

    run(scene)


def test_one_that_waits_behind_another_is_not_charged_with_its_time(bench: Bench) -> None:
    async def scene() -> None:
        bench.worker("w")
        desk = Desk(bench, "w", timeout_s=0)
        desk.cell[STATE], desk.cell[CHUNK_ID], desk.cell[STARTED_NS] = 8, CONSUMED_DIRECTLY, 1 << 62
        first = asyncio.ensure_future(desk.directing.consume(QUEUE, b"first"))
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="no worker came to it"):
            await desk.directing.consume(QUEUE, b"second")
        desk.directing.died("w")
        assert (await first).consume_result == "CR_THROW_EXCEPTION"

    run(scene)
