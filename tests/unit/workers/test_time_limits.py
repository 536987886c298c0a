"""Time limits in the worker: what is reported to the supervisor, and when the soft signal raises."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from rocketcrew import Message, SoftTimeLimitExceeded, handler
from rocketcrew.remoting.errors import UsageError
from rocketcrew.workers.api import Handler, as_handler
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.cells import RECORDS, SOFT_RAISED, STARTED_NS, STATE, TAKEN, private_cell
from rocketcrew.workers.failures import Cause
from rocketcrew.workers.runner import HANDLER_CALLERS, NEVER_INTERRUPTED
from rocketcrew.workers.time_limits import SoftLimit, limits_of

from .conftest import Bench

LIMIT_NS = 50_000_000


class Interrupted(Bench):
    """A bench whose handler can be interrupted by the soft signal: `interrupt()` in it is the signal's arrival."""

    def __init__(self, function: Callable[..., object], **more: Any) -> None:
        super().__init__(function, **more)
        self.soft = SoftLimit(self.cell, self.clock, LIMIT_NS, HANDLER_CALLERS, NEVER_INTERRUPTED)

    def interrupt(self) -> None:
        self.soft.on_signal(0, sys._getframe())

    def causes_of(self, record: bytes) -> list[Cause]:
        """Handle the message; why it has failed, if it has."""
        self.chunk([record])
        self.steps(2)
        return [failure.cause for _, failure in self.outcomes()[1]]


@pytest.fixture
def interrupted() -> Iterator[Callable[..., Interrupted]]:
    made: list[Interrupted] = []

    def make(function: Callable[..., object], **more: Any) -> Interrupted:
        made.append(Interrupted(function, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_the_signal_raises_in_a_handler_that_is_over_its_limit(
    interrupted: Callable[..., Interrupted], make_record: Callable[..., bytes]
) -> None:
    def late(message: Message) -> None:
        if message.queue_offset == 1:
            bench.clock.advance_ms(50)
            bench.interrupt()

    bench = interrupted(late)
    bench.chunk([make_record(offset=offset) for offset in range(3)])
    bench.steps(3)
    (entry, *_), failures = bench.outcomes()
    assert [(at, f.cause) for at, f in failures] == [(1, Cause.TIME_LIMIT)]
    assert "soft time limit of 0.05 s" in failures[0][1].error
    assert entry.start == 0


def test_the_signal_raises_in_the_filter_of_a_batch_handler_too(
    interrupted: Callable[..., Interrupted], make_record: Callable[..., bytes]
) -> None:
    """It is an error of the filter's then: the message is wanted."""
    sizes: list[int] = []
    cut_off: list[int] = []

    def wants(message: Message) -> bool:
        if message.queue_offset == 1:
            bench.clock.advance_ms(50)
            try:
                bench.interrupt()
            except SoftTimeLimitExceeded:
                cut_off.append(1)
                raise
        return False

    @handler(batch=True, filter=wants)
    def handle(messages: list[Message]) -> None:
        sizes.append(len(messages))

    bench = interrupted(handle)
    bench.chunk([make_record(offset=offset) for offset in range(3)])
    bench.steps(3)
    assert (cut_off, sizes, bench.outcomes()[1]) == ([1], [1], [])


def test_a_signal_that_comes_too_late_or_too_early_does_nothing(
    interrupted: Callable[..., Interrupted], make_record: Callable[..., bytes]
) -> None:
    """The supervisor meant the call before; the next one is still within its limit."""
    bench = interrupted(lambda _message: bench.interrupt())
    bench.chunk([make_record()])
    bench.steps(2)
    assert bench.outcomes()[1] == []
    bench.interrupt()


def test_a_handler_may_catch_it_and_finish(
    interrupted: Callable[..., Interrupted], make_record: Callable[..., bytes]
) -> None:
    def tidy(_message: Message) -> None:
        bench.clock.advance_ms(60)
        with pytest.raises(SoftTimeLimitExceeded):
            bench.interrupt()

    bench = interrupted(tidy)
    bench.chunk([make_record()])
    bench.steps(2)
    assert bench.outcomes()[1] == []


def test_a_handler_that_tries_again_after_any_error_is_ended(
    interrupted: Callable[..., Interrupted], make_record: Callable[..., bytes]
) -> None:
    tries: list[int] = []

    def persistent(_message: Message) -> None:
        while len(tries) < 10:
            tries.append(1)
            with contextlib.suppress(Exception):
                bench.clock.advance_ms(60)
                bench.interrupt()

    bench = interrupted(persistent)
    assert bench.causes_of(make_record()) == [Cause.TIME_LIMIT]
    assert len(tries) == 1


def test_in_a_callback_of_an_event_loop_it_waits_for_a_place_where_it_is_not_swallowed(
    interrupted: Callable[..., Interrupted], make_record: Callable[..., bytes]
) -> None:
    """The supervisor sends the signal until the cell says that the exception was raised."""
    seen: list[tuple[str, bool]] = []

    def interrupt(where: str) -> None:
        try:
            bench.interrupt()
        finally:
            seen.append((where, bench.cell[SOFT_RAISED] == bench.cell[STARTED_NS]))

    async def serves() -> None:
        asyncio.get_running_loop().call_soon(interrupt, "callback")
        await asyncio.sleep(0)
        interrupt("task")

    def runs_a_loop(_message: Message) -> None:
        bench.clock.advance_ms(60)
        asyncio.run(serves())

    bench = interrupted(runs_a_loop)
    bench.chunk([make_record()])
    bench.steps(2)
    assert seen == [("callback", False), ("task", True)]
    assert [failure.cause for _, failure in bench.outcomes()[1]] == [Cause.TIME_LIMIT]


class Stepped(Coroutine[Any, Any, None]):
    """A coroutine that is no function of Python's, as a compiled one."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step

    def send(self, _value: object) -> None:
        self._step()
        raise StopIteration

    def throw(self, *_error: Any) -> None:
        """It has no clean-up."""

    def __await__(self) -> Any:
        return self


def test_it_is_raised_in_a_tasks_turn_whatever_the_task_runs(
    interrupted: Callable[..., Interrupted], make_record: Callable[..., bytes]
) -> None:
    def runs_a_task(_message: Message) -> None:
        bench.clock.advance_ms(60)

        async def waits() -> None:
            await asyncio.get_running_loop().create_task(Stepped(bench.interrupt))

        asyncio.run(waits())

    bench = interrupted(runs_a_task)
    assert bench.causes_of(make_record()) == [Cause.TIME_LIMIT]


def test_in_a_group_of_tasks_it_is_the_limit_too(
    interrupted: Callable[..., Interrupted], make_record: Callable[..., bytes]
) -> None:
    def runs_a_group(_message: Message) -> None:
        bench.clock.advance_ms(60)

        async def interrupt() -> None:
            bench.interrupt()

        async def group() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(interrupt())

        asyncio.run(group())

    bench = interrupted(runs_a_group)
    assert bench.causes_of(make_record()) == [Cause.TIME_LIMIT]


def test_it_is_never_raised_beside_a_call(
    interrupted: Callable[..., Interrupted], make_record: Callable[..., bytes]
) -> None:
    """The log of a failure is written in the frames of the loop: what is raised there would end the worker."""

    class Failing(Exception):
        def __str__(self) -> str:
            bench.interrupt()
            return "failed"

    def fails(_message: Message) -> None:
        bench.clock.advance_ms(70)
        raise Failing

    bench = interrupted(fails)
    bench.chunk([make_record()])
    bench.steps(2)
    ((_, failure),) = bench.outcomes()[1]
    assert failure.error.startswith("Failing: failed")
    assert failure.cause is Cause.FAILED


def test_rows_of_a_generator_are_made_within_the_limit_too(
    interrupted: Callable[..., Interrupted], make_record: Callable[..., bytes], tmp_path: Any
) -> None:
    def rows(_message: Message) -> Iterator[dict[str, int]]:
        yield {"n": 1}
        bench.clock.advance_ms(80)
        bench.interrupt()

    bench = interrupted(rows, schema="n int", folder=tmp_path)
    bench.chunk([make_record()])
    bench.steps(2)
    assert [f.cause for _, f in bench.outcomes()[1]] == [Cause.TIME_LIMIT]


def test_a_batch_is_one_call(interrupted: Callable[..., Interrupted], make_record: Callable[..., bytes]) -> None:
    seen: list[tuple[int, int, int]] = []

    def batch(messages: list[Message]) -> None:
        seen.extend((m.queue_offset, bench.cell[TAKEN] - 1, bench.cell[RECORDS]) for m in messages)
        assert bench.cell[TAKEN] == 0, "all were taken: it says nothing about who is worked on"
        assert messages[-1].queue_offset == bench.cell[TAKEN] - 1
        bench.clock.advance_ms(60)
        bench.interrupt()

    bench = interrupted(handler(batch=True)(batch), bounds=WorkerBounds(batch_messages_max=4))
    bench.chunk([make_record(offset=offset) for offset in (4, 6, 7)])
    bench.steps(2)
    assert seen == [(4, 4, 3), (6, 6, 3), (7, 7, 3)]
    assert [(at, f.cause) for at, f in bench.outcomes()[1]] == [(at, Cause.TIME_LIMIT) for at in range(3)]
    assert bench.cell[STATE] == 0


def test_the_values_of_a_batch_s_rows_are_taken_within_the_limit_too(
    interrupted: Callable[..., Interrupted], make_record: Callable[..., bytes], tmp_path: Any
) -> None:
    @dataclasses.dataclass
    class Row:
        n: int

        def __getattribute__(self, name: str) -> Any:
            if name == "n" and late:
                bench.clock.advance_ms(60)
                bench.interrupt()
            return object.__getattribute__(self, name)

    late: list[bool] = []

    def batch(messages: list[Message]) -> list[Row]:
        late.extend([True] * (messages[0].queue_offset == 2))
        return [Row(each.queue_offset) for each in messages]

    bench = interrupted(
        handler(batch=True)(batch), bounds=WorkerBounds(batch_messages_max=2), schema="n int", folder=tmp_path
    )
    bench.chunk([make_record(offset=offset) for offset in range(4)])
    bench.steps(2)
    assert [(at, f.cause) for at, f in bench.outcomes()[1]] == [(at, Cause.TIME_LIMIT) for at in (2, 3)]


def test_the_cell_names_the_record_while_the_handler_runs(
    bench: Callable[..., Bench], make_record: Callable[..., bytes]
) -> None:
    seen: list[tuple[int, int]] = []

    def look(_message: Message) -> None:
        seen.append((made.cell[STATE] - 1, made.cell[STARTED_NS]))
        made.clock.advance_ms(1)

    made = bench(look)
    made.chunk([make_record(offset=offset) for offset in (10, 11)])
    made.steps(2)
    assert seen == [(10, 1_000_000_000), (11, 1_001_000_000)]
    assert made.cell[STATE] == 0


@pytest.mark.parametrize(
    ("own", "expected_ms"),
    [((None, None), (200, 900)), ((0.05, None), (50, 900)), ((None, 2), (200, 2000)), ((0, 0), (0, 0))],
)
def test_a_handlers_own_limits_go_before_the_settings(
    own: tuple[float | None, float | None], expected_ms: tuple[int, int]
) -> None:
    limited = Handler(len, soft_time_limit_s=own[0], hard_time_limit_s=own[1])
    found = limits_of(limited, WorkerBounds(soft_time_limit_ms=200, hard_time_limit_ms=900))
    assert found == tuple(ms * 1_000_000 for ms in expected_ms)
    assert limits_of(as_handler(len), WorkerBounds(hard_time_limit_ms=0)) == (0, 0)


@pytest.mark.parametrize("limits", [{"soft_time_limit_s": -1}, {"hard_time_limit_s": 10**9},
                                    {"soft_time_limit_s": 3, "hard_time_limit_s": 2}])  # fmt: skip
def test_limits_that_cannot_be(limits: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="time_limit"):
        handler(**limits)(len)


def test_outside_of_any_call_nothing_is_raised() -> None:
    SoftLimit(private_cell(), lambda: 10**12, 1, HANDLER_CALLERS, NEVER_INTERRUPTED).on_signal(0, sys._getframe())
