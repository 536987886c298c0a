"""The cell names the call of a coroutine handler whose step runs, and between steps the only one, or none of several."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from rocketcrew.workers.cells import BETWEEN, CHUNK_ID, LAST, RECORDS, STARTED_NS, STATE, CellView, private_cell
from rocketcrew.workers.packets import QueueInfo
from rocketcrew.workers.steps import CallUnderWay, Steps

A = QueueInfo("group", "orders", "b", 0)
B = QueueInfo("group", "orders", "b", 1)


class Turn:
    """Awaited, it gives back the reins once."""

    def __await__(self) -> Generator[str, None, None]:
        yield "turn"


class Bench:
    def __init__(self) -> None:
        self.cell: CellView = private_cell()
        self.queues: list[QueueInfo] = []
        self.now = 0
        self.steps = Steps(self.cell, self._clock, self.queues.append)
        self.seen: list[tuple[int, int, int, int]] = []

    def _clock(self) -> int:
        self.now += 1
        return self.now

    def look(self) -> None:
        cell = self.cell
        self.seen.append((cell[STATE], cell[CHUNK_ID], cell[LAST], cell[RECORDS]))

    async def handle(self, turns: int) -> str:
        for _ in range(turns):
            self.look()
            try:
                await Turn()
            finally:
                self.look()
        return "done"


def test_each_step_is_named_and_none_between_those_of_several() -> None:
    bench = Bench()
    steps, cell = bench.steps, bench.cell
    one, batch = CallUnderWay(1, A, 10, 10, 1), CallUnderWay(2, B, 5, 8, 3)
    steps.begin(one)
    first = steps.named(one, bench.handle(2))
    assert first.send(None) == "turn"
    assert cell[STATE] == 11, "the only one under way is named while it waits, too"
    steps.begin(batch)
    second = steps.named(batch, bench.handle(1))
    assert second.send(None) == "turn"
    assert cell[STATE] == BETWEEN
    first.send(None)
    assert cell[STATE] == BETWEEN
    with pytest.raises(StopIteration, match="done"):
        second.send(None)
    steps.end(batch)
    assert (cell[STATE], cell[CHUNK_ID], cell[RECORDS]) == (11, 1, 1)
    with pytest.raises(StopIteration):
        first.send(None)
    steps.end(one)
    assert cell[STATE] == 0
    named_one, named_batch = (11, 1, 10, 1), (6, 2, 8, 3)
    assert bench.seen == [named_one, named_batch, named_one, named_one, named_batch, named_one]
    assert bench.queues == [A, B, A, B, A]


def test_what_is_thrown_in_and_the_end_are_steps_too() -> None:
    bench = Bench()
    steps = bench.steps
    call, other = CallUnderWay(1, A, 10, 10, 1), CallUnderWay(2, A, 11, 11, 1)
    steps.begin(call)
    steps.begin(other)
    for end in ("throw", "close"):
        named = steps.named(call, bench.handle(1))
        named.send(None)
        assert bench.cell[STATE] == BETWEEN
        if end == "throw":
            with pytest.raises(KeyError):
                named.throw(KeyError("no"))
        else:
            named.close()
        assert bench.cell[STATE] == BETWEEN
    assert {state for state, *_ in bench.seen} == {11}
    assert len(bench.seen) == 4


def test_a_step_inside_of_another_gives_the_name_back() -> None:
    """An eager task runs its first step where it is made; a call that is over may have left a task behind."""
    bench = Bench()
    steps = bench.steps
    call, left_behind = CallUnderWay(1, A, 10, 10, 1), CallUnderWay(2, A, 11, 11, 1)
    steps.begin(call)

    async def outer() -> None:
        inner = steps.named(left_behind, bench.handle(1))
        inner.send(None)
        bench.look()
        inner.close()

    with pytest.raises(StopIteration):
        steps.named(call, outer()).send(None)
    assert [state for state, *_ in bench.seen] == [12, 11, 12]
    assert bench.cell[STATE] == 11, "and the only call under way is the one that began"


def test_a_step_begins_when_it_begins() -> None:
    """A call that has waited for long is not over its limit: its time limit cancels it, the supervisor's is of a step."""
    bench = Bench()
    call = CallUnderWay(1, A, 10, 10, 1)
    bench.steps.begin(call)
    named = bench.steps.named(call, bench.handle(1))
    named.send(None)
    bench.now = 1_000
    with pytest.raises(StopIteration):
        named.send(None)
    assert bench.cell[STARTED_NS] > 1_000


def test_what_is_none_of_the_handlers_business_names_nobody() -> None:
    bench = Bench()
    call = CallUnderWay(1, A, 10, 10, 1)
    bench.steps.begin(call)
    bench.steps.rest()
    bench.steps.aside()
    assert bench.cell[STATE] == 0
    bench.steps.rest()
    assert bench.cell[STATE] == 11
