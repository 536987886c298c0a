"""Workers whose messages leave rows get as many as make a large block, and know when to wait for more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core.dispatching import BLOCK_WINDOW
from rocketcrew.supervisor.core.sizing import WITHOUT_ROWS_MAX

if TYPE_CHECKING:
    from .conftest import Bench

PULL = 32


def busy(make: Callable[..., Bench], **config: Any) -> tuple[Bench, int]:
    """One worker, one queue, cheap messages; the first pull was dispatched."""
    bench = make(units=2_000, chunk_messages_max=64, chunk_target_us=10_000, **config)
    bench.core.state.sizer.tail_us = 5.0
    (handle,) = bench.open(0)
    bench.worker("w")
    return bench, handle


def feed(bench: Bench, handle: int, pulls: int, start: int = 0) -> list[act.Dispatch]:
    for number in range(pulls):
        bench.found(handle, range(start + number * PULL, start + (number + 1) * PULL))
    return bench.take(act.Dispatch)


def test_without_rows_the_window_is_as_configured_and_closed(make: Callable[..., Bench]) -> None:
    bench, handle = busy(make)
    first = feed(bench, handle, 30)
    assert len(first) == 4  # two chunks, twice as many of cheap messages
    assert not any(action.window_open for action in first)


def test_with_rows_a_worker_gets_a_block_and_some(make: Callable[..., Bench]) -> None:
    bench, handle = busy(make)
    (first,) = feed(bench, handle, 1)
    bench.done(first.chunk, seq=1, us=5)
    more = feed(bench, handle, 40, start=PULL)
    assert sum(action.chunk.count for action in more) == BLOCK_WINDOW
    assert [action.window_open for action in more] == [True] * (len(more) - 1) + [False], (
        "the last one fills the window"
    )
    for action in more[:16]:
        bench.done(action.chunk, seq=1, us=5)
    again = bench.take(act.Dispatch)
    assert sum(action.chunk.count for action in again) == 16 * PULL


def test_slow_messages_and_large_ones_do_not_make_large_windows(make: Callable[..., Bench]) -> None:
    bench, handle = busy(make)
    (first,) = feed(bench, handle, 1)
    bench.done(first.chunk, seq=1, us=100)
    bench.core.state.sizer.tail_us = 100.0
    more = feed(bench, handle, 40, start=PULL)
    assert sum(action.chunk.count for action in more) == 128  # 100 would take 10 ms
    assert not more[-1].window_open

    bench, handle = busy(make)
    (first,) = feed(bench, handle, 1)
    bench.done(first.chunk, seq=1, us=5)
    for number in range(1, 12):
        bench.found(handle, range(number * PULL, (number + 1) * PULL), body_bytes=4_000)
    more = bench.take(act.Dispatch)
    total = bench.slab.size_bytes
    assert sum(action.chunk.positions[-1] - action.chunk.positions[0] for action in more) < total // 4 + PULL * 4_200


def test_where_a_report_makes_room_none_waits(make: Callable[..., Bench]) -> None:
    bench, handle = busy(make, topic_concurrency={"t": 4})
    (first,) = feed(bench, handle, 1)[:1]
    bench.done(first.chunk, seq=1, us=5)
    assert not any(action.window_open for action in feed(bench, handle, 10, start=PULL))


def test_rows_are_forgotten_after_many_messages_without(make: Callable[..., Bench]) -> None:
    bench, handle = busy(make)
    (first,) = feed(bench, handle, 1)
    bench.done(first.chunk, seq=1, us=5)
    sizer = bench.core.state.sizer
    assert sizer.rows
    sizer.observe(WITHOUT_ROWS_MAX - 1, 10, 5)
    assert sizer.rows
    sizer.observe(1, 5, 5)
    assert not sizer.rows


def test_the_count_of_what_is_in_flight_starts_anew_when_nothing_is(make: Callable[..., Bench]) -> None:
    bench, handle = busy(make)
    (first,) = feed(bench, handle, 1)
    worker = bench.core.state.workers["w"]
    assert worker.in_flight_messages == PULL
    assert worker.in_flight_bytes == first.chunk.positions[-1]
    bench.done(first.chunk, count=10, us=5)
    assert worker.in_flight_messages == PULL
    bench.done(first.chunk, us=5)
    assert (worker.in_flight_messages, worker.in_flight_bytes) == (0, 0)
