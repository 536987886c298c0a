"""Chunk sizes follow the slow tail: down at once, up slowly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.chunks import Chunk
from rocketcrew.supervisor.core.sizing import LARGE_TIMES, ROUND_CHUNKS, ChunkSizer

from .conftest import TOPIC, Bench


def test_the_first_chunks_hold_one_message() -> None:
    assert ChunkSizer(2000, 64).size(1000, 1) == 1


def test_cheap_messages_grow_to_the_maximum() -> None:
    sizer = ChunkSizer(2000, 64)
    for _ in range(1000):
        sizer.observe(1, 5, 5)
    assert sizer.size(1000, 4) == 64


def test_a_chunk_holds_about_the_target() -> None:
    sizer = ChunkSizer(2000, 64)
    for _ in range(2000):
        sizer.observe(1, 100, 100)
    assert sizer.size(1000, 1) in (19, 20)


def test_one_overrun_makes_it_one_at_once_and_it_comes_back_slowly() -> None:
    sizer = ChunkSizer(2000, 64)
    for _ in range(200):
        sizer.observe(64, 640, 20)
    assert sizer.size(1000, 1) > 32
    sizer.observe(64, 3000, 2500)
    assert sizer.size(1000, 1) == 1
    sizer.observe(1, 10, 10)
    assert sizer.size(1000, 1) == 1
    for _ in range(200):
        sizer.observe(64, 640, 20)
    assert sizer.size(1000, 1) > 32


def test_the_tail_decides_not_the_mean() -> None:
    sizer = ChunkSizer(2000, 64)
    for _ in range(100):
        sizer.observe(64, 64 * 10 + 1000, 1000)
    assert sizer.size(1000, 1) == 2


def test_a_small_pull_is_shared_among_idle_workers_unless_messages_are_cheap() -> None:
    sizer = ChunkSizer(2000, 64)
    sizer.tail_us = 50.0
    assert sizer.size(8, 4) == 2
    assert sizer.size(9, 4) == 3
    assert sizer.size(2, 4) == 1
    assert sizer.size(8, 1) == 40
    sizer.tail_us = 10.0
    assert sizer.size(8, 4) == 64


def test_a_large_pull_is_shared_among_idle_workers_also_when_messages_are_cheap() -> None:
    sizer = ChunkSizer(10_000, 256)
    sizer.tail_us = 15.0
    assert sizer.size(256, 2) == 128
    assert sizer.size(100, 4) == 64
    assert sizer.size(256, 1) == 256


def test_many_queues_in_line_make_large_chunks_smaller() -> None:
    sizer = ChunkSizer(10_000, 256)
    for _ in range(100):
        sizer.observe(1, 1_000, 1_000)
    assert sizer.large(10_000, 1) == sizer.large(10_000, 1, in_line=8) == 160
    assert sizer.large(10_000, 1, in_line=32) == 40
    assert sizer.large(10_000, 1, in_line=256) == 0  # the aim of a chunk is less than that


@pytest.mark.parametrize("order", ["concurrent", "queue"])
@pytest.mark.parametrize("queues", [4, 64])
def test_a_quiet_queue_waits_for_no_more_than_a_round(make: Callable[..., Bench], order: str, queues: int) -> None:
    """All others have more than a worker can do: calls of 10 ms, in chunks of as many as are in line."""
    bench = make(units=20_000, chunk_messages_max=256, chunk_target_us=10_000, order=order, locks=False)
    *busy, quiet = bench.open(*range(queues))
    bench.worker("a")
    pulled, line, came_ms, ran_ms = dict.fromkeys(busy, 0), deque[Chunk](), -1.0, 0.0
    while True:
        for pull in bench.take(act.Pull):
            if pull.handle != quiet and bench.found(pull.handle, range(pulled[pull.handle], pulled[pull.handle] + 32)):
                pulled[pull.handle] += 32
        if came_ms < 0 and ran_ms > 3_000:
            came_ms = ran_ms
            bench.found(quiet, [0])
        line += bench.dispatched() + [item.chunk for sent in bench.take(act.DispatchOrdered) for item in sent.chunks]
        bench.take(act.Reclaim), bench.take(act.ReadCell), bench.commits()
        chunk = line.popleft()
        if chunk.handle == quiet:
            break
        ran_ms += 10 * chunk.count
        bench.pass_ms(10 * chunk.count)
        bench.done(chunk, us=10_000)
    assert ran_ms - came_ms <= (ROUND_CHUNKS + 2) * LARGE_TIMES * 10


def test_a_chunk_is_large_by_the_mean_where_much_waits_for_every_worker() -> None:
    sizer = ChunkSizer(10_000, 256)
    for _ in range(100):
        sizer.observe(1, 10_000, 10_000)
    assert sizer.size(1000, 1) == 1
    assert sizer.large(1000, 2) == 16
    assert sizer.large(1000, 200) == 2  # five wait for each: the others still have work when a large one is run
    assert sizer.large(12, 2) == 3
    assert sizer.large(3, 2) == 0


def test_an_interrupted_call_makes_no_large_chunk_small_and_a_slow_one_does() -> None:
    sizer = ChunkSizer(10_000, 256)
    for _ in range(100):
        sizer.observe(5, 5_000, 1_000)
    sizer.observe(5, 9_000, 5_000)
    assert sizer.size(1000, 1) == 2
    assert 120 < sizer.large(1000, 2) <= 160
    sizer.observe(1, 200_000, 200_000)
    assert sizer.large(1000, 2) == 0


def test_nothing_is_large_before_something_is_known() -> None:
    sizer = ChunkSizer(10_000, 256)
    assert sizer.large(100_000, 2) == 0
    sizer.observe(1, 2_000, 2_000)
    assert sizer.large(100_000, 2) == 80


@pytest.mark.parametrize("mean_us", [0, 1, 20, 39, 40, 100])
def test_cheap_messages_of_which_one_was_interrupted_go_on_in_large_chunks(mean_us: int) -> None:
    sizer = ChunkSizer(10_000, 256)
    for _ in range(100):
        sizer.observe(64, 64 * mean_us, mean_us)
    sizer.observe(64, 64 * mean_us + 12_000, 12_000)
    assert sizer.size(100_000, 1) == 1
    assert sizer.large(100_000, 2) >= 64


def test_cheap_messages_of_one_topic_make_no_large_chunks_of_another_ones_slow_calls() -> None:
    sizer = ChunkSizer(10_000, 256)
    for _ in range(50):
        sizer.observe(1, 20_000, 20_000, topic="slow")
    for _ in range(5):
        sizer.observe(64, 64 * 50, 60, topic="cheap")
        assert sizer.large(5_000, 4, "slow") == 8
    assert sizer.large(5_000, 4, "cheap") == 256
    assert sizer.large(5_000, 4, "never seen") == 0


def test_one_report_moves_a_mean_that_is_known_by_half_at_most() -> None:
    sizer = ChunkSizer(10_000, 256)
    for _ in range(10):
        sizer.observe(10, 10 * 8_000, 8_000)
    assert sizer.large(5_000, 2) == 20
    sizer.observe(256, 256, 1)
    assert sizer.large(5_000, 2) == 40


def given_for_10_ms_calls(make: type[Bench], messages: int) -> int:
    """In how many chunks so many messages of 10 ms each go to two workers."""
    bench = make(units=20_000, chunk_target_us=10_000, chunk_messages_max=64)
    (handle,) = bench.open(0)
    bench.worker("w1", "w2")
    bench.core.state.sizer.observe(50, 500_000, 10_000, topic=TOPIC)
    bench.found(handle, range(messages))
    given_out = 0
    while chunks := bench.dispatched():
        given_out += len(chunks)
        for chunk in chunks:
            bench.done(chunk, us=10_000)
    return given_out


def test_what_waits_in_great_number_goes_out_in_few_chunks_and_the_last_of_it_in_small_ones(make: type[Bench]) -> None:
    few, many = given_for_10_ms_calls(make, 8), given_for_10_ms_calls(make, 200)
    assert few == 7, many
    assert many <= 200 / 16 + 20


@pytest.mark.parametrize(("target_us", "large"), [(10_000, 16), (100_000, 10), (1_000_000, 1)])
def test_no_chunk_takes_much_more_than_a_second(target_us: int, large: int) -> None:
    """Queues that leave have a deadline, and two chunks are in hand."""
    sizer = ChunkSizer(target_us, 256)
    for _ in range(100):
        sizer.observe(1, target_us, target_us)
    assert sizer.large(10_000, 2) in (large, large - 1)


@pytest.mark.parametrize(("auto_commit", "count"), [(True, 16), (False, 1)])
def test_of_a_queue_in_order_a_chunk_is_large_unless_its_handler_commits(
    make: type[Bench], *, auto_commit: bool, count: int
) -> None:
    bench = make(order="queue", auto_commit=auto_commit, chunk_messages_max=64, units=2_000, chunk_target_us=10_000)
    bench.worker("w")
    (handle,) = bench.open(0)
    bench.core.state.sizer.observe(50, 500_000, 10_000, topic=TOPIC)
    bench.found(handle, range(200))
    assert [each.chunk.count for each in bench.one(act.DispatchOrdered).chunks] == [count]


def test_a_worker_has_messages_for_a_large_block_where_enough_waits_for_every_worker() -> None:
    """100 us each: a block of 512 takes 51 ms, and 40 ms are the most."""
    sizer = ChunkSizer(10_000, 256)
    for _ in range(100):
        sizer.observe(32, 3_200, 100)
    assert sizer.takes(99, 0, 2)
    assert not sizer.takes(101, 0, 2)
    assert sizer.takes(399, 4 * 399, 2)
    assert not sizer.takes(399, 4 * 399 - 1, 2)
    assert not sizer.takes(401, 100_000, 2)
    sizer.observe(1, 41_000, 41_000)
    assert not sizer.takes(32, 100_000, 2)  # the next one may take as long


def first_size(bench: Bench) -> int:
    """Of the first chunk of many messages whose calls take 1 ms."""
    (handle,) = bench.open(0)
    bench.core.state.sizer.observe(50, 50_000, 1_000, topic=TOPIC)
    bench.core.state.sizer.tail_us = 1_000.0
    bench.found(handle, range(256))
    return bench.dispatched()[0].count


@pytest.mark.parametrize(("batch", "size"), [(1, 64), (7, 63), (32, 64), (64, 64)])
def test_a_large_chunk_is_of_whole_batches(make: type[Bench], batch: int, size: int) -> None:
    bench = make(units=20_000, chunk_target_us=10_000, chunk_messages_max=256, batch_messages_max=batch)
    bench.core.state.stats.calls_are_batches = batch > 1
    bench.worker("w1", "w2")
    assert first_size(bench) == size


def test_no_chunk_is_large_of_which_nothing_can_be_reclaimed(make: type[Bench]) -> None:
    bench = make(units=20_000, chunk_target_us=10_000, chunk_messages_max=256)
    bench.worker("w1")
    bench.core.handle(ev.WorkerWindow("w1", 4), bench.now)
    assert first_size(bench) == 10


@pytest.mark.parametrize(("limits", "chunks"), [({}, 32), ({TOPIC: 99}, 16)])
def test_a_worker_that_runs_calls_at_once_has_as_many_ahead_where_no_topic_is_limited(
    make: type[Bench], limits: dict[str, int], chunks: int
) -> None:
    bench = make(units=20_000, chunk_target_us=10_000, chunk_messages_max=256, topic_concurrency=limits)
    bench.worker("w1")
    bench.core.handle(ev.WorkerWindow("w1", 16), bench.now)
    (handle,) = bench.open(0)
    bench.found(handle, range(256))
    assert [chunk.count for chunk in bench.dispatched()] == [1] * chunks


def test_no_chunk_is_large_where_what_waits_may_not_all_go_to_others(make: type[Bench]) -> None:
    bench = make(units=20_000, chunk_target_us=10_000, chunk_messages_max=256, topic_concurrency={"another": 1})
    bench.worker("w1", "w2")
    assert first_size(bench) == 10


@given(
    st.lists(st.tuples(st.integers(0, 64), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), max_size=40),
    st.integers(0, 10_000), st.integers(0, 64), st.integers(1, 10_000), st.integers(1, 1000),
)  # fmt: skip
def test_a_size_is_always_within_its_bounds(
    seen: list[tuple[int, int, int]], waiting: int, free: int, target: int, most: int
) -> None:
    sizer = ChunkSizer(target, most)
    for count, busy, slowest in seen:
        sizer.observe(count, busy, slowest)
        assert 1 <= sizer.size(waiting, free) <= most
        assert 0 <= sizer.large(waiting, free) <= most


def test_messages_that_take_no_time_at_all_are_handed_out_for_ever() -> None:
    """The estimate halves with each report of 0 µs, until a division by it is no number any more."""
    sizer = ChunkSizer(2_000, 64)
    for _ in range(2_000):
        sizer.observe(64, 0, 0)
        assert sizer.size(1_000, 2) in (1, 2, 4, 8, 16, 32, 64)
    assert sizer.size(1_000, 2) == 64


def test_a_batch_handler_gets_its_batch_however_long_a_call_takes(make: type[Bench]) -> None:
    """A model that costs 20 ms a call, whether for one message or for 32; the next calls are no smaller for it."""
    bench = make(units=20_000, chunk_messages_max=64, batch_messages_max=32)
    bench.core.state.stats.calls_are_batches = True
    (handle,) = bench.open(0)
    bench.worker("w1", "w2")
    for start in range(0, 320, 32):
        assert bench.found(handle, range(start, start + 32))
        chunks = bench.dispatched()
        assert [chunk.count for chunk in chunks] == [32]
        bench.done(chunks[0], us=20_000)


def test_a_handler_of_single_messages_does_not(make: type[Bench]) -> None:
    bench = make(units=20_000, chunk_messages_max=64, batch_messages_max=32)
    (handle,) = bench.open(0)
    bench.worker("w1", "w2")
    assert bench.found(handle, range(32))
    assert {chunk.count for chunk in bench.dispatched()} == {1}
