"""What does not grow: steps of the interpreter per event, counted at two sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.pulling import PullResult

from .conftest import ME, TOPIC, record

pytestmark = pytest.mark.usefixtures("no_collection")

if TYPE_CHECKING:
    from rocketcrew.supervisor.core.chunks import Chunk

    from .conftest import Bench

Make = Callable[..., "Bench"]
FLAT = 1.1
"""Times the steps at the smaller size."""


def steps(do: Callable[[], object]) -> int:
    """Instructions of the interpreter that `do` takes; what a built-in function does inside counts as one."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        del arg
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        do()
    finally:
        sys.settrace(before)
    return count


def calls(do: Callable[[], object]) -> int:
    """Calls of Python functions that `do` takes."""
    count = 0

    def profile(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        del frame, arg
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        do()
    finally:
        sys.setprofile(before)
    return count


def names(count: int) -> Iterator[str]:
    return (f"w{number}" for number in range(count))


def crew(make: Make, workers: int, *, tail_us: float, **config: Any) -> tuple[Bench, int]:
    """One queue and so many idle workers."""
    bench = make(units=2_000, chunk_messages_max=8, **config)
    bench.core.state.sizer.tail_us = tail_us
    (handle,) = bench.open(0)
    bench.worker(*names(workers))
    return bench, handle


# --- workers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail_us", [5.0, 100.0, 4_000.0])
def test_a_pull_and_its_outcomes_cost_the_same_with_any_number_of_workers(make: Make, tail_us: float) -> None:
    def cost(workers: int) -> int:
        bench, handle = crew(make, workers, tail_us=tail_us)

        def once() -> None:
            bench.found(handle, range(8))
            for _ in range(8):
                for chunk in bench.dispatched():
                    bench.done(chunk, us=int(tail_us))

        return steps(once)

    assert cost(256) <= FLAT * cost(16)


@pytest.mark.parametrize("rows", [False, True])
def test_the_next_chunk_costs_the_same_when_all_windows_are_full(make: Make, rows: bool) -> None:
    def cost(workers: int) -> int:
        bench = make(units=2_000, chunk_messages_max=8)
        bench.core.state.sizer.tail_us = 100.0
        handles = bench.open(*range(workers))
        bench.worker(*names(workers))
        if rows:
            bench.core.state.sizer.observe(1, 100, 100, rows=True)
        for handle in handles:
            bench.found(handle, range(130), body_bytes=1)
        chunks = bench.dispatched()
        bench.none(act.Dispatch)

        costs: list[int] = []
        for chunk in [chunk for chunk in chunks if chunk.worker_id == chunks[0].worker_id]:
            taken = steps(partial(bench.done, chunk, seq=int(rows)))
            if bench.dispatched():
                costs.append(taken)
        return costs[1]  # at the first, what has no room for more is found out once

    assert cost(128) <= FLAT * cost(4)


def test_a_coroutine_handlers_workers_are_chosen_by_their_own_window(make: Make) -> None:
    def cost(workers: int) -> int:
        bench, handle = crew(make, workers, tail_us=100.0)
        for name in names(workers):
            bench.core.handle(ev.WorkerWindow(name, 50), bench.now)
        bench.found(handle, range(64))
        chunks = bench.dispatched()
        assert max(len(worker.in_flight) for worker in bench.core.state.workers.values()) <= -(-len(chunks) // workers)
        return steps(lambda: bench.done(chunks[0]))

    assert cost(256) <= FLAT * cost(16)


def test_the_look_at_workers_costs_what_is_busy(make: Make) -> None:
    def cost(workers: int) -> int:
        bench, handle = crew(make, workers, tail_us=100.0)
        bench.pass_ms(10)
        bench.found(handle, range(4))
        return steps(lambda: bench.pass_ms(10))

    assert cost(256) <= FLAT * cost(8)


@pytest.mark.parametrize("side_by_side", [0, 16])
def test_a_limited_topic_costs_the_same_with_any_number_of_workers_and_queues(make: Make, side_by_side: int) -> None:
    def cost(workers: int, queues: int) -> int:
        bench = make(units=8_000, topic_concurrency={TOPIC: 4}, chunk_messages_max=1)
        bench.core.state.sizer.tail_us = 100.0
        handles = bench.open(*range(queues))
        bench.worker(*names(workers))
        if side_by_side:
            for name in names(workers):
                bench.core.handle(ev.WorkerWindow(name, side_by_side), bench.now)
        for handle in handles:
            bench.found(handle, range(4))
        chunks = bench.dispatched()
        assert len(chunks) == (4 if side_by_side else 8), "at the limit: all else waits"
        found = steps(lambda: bench.done(chunks[0]))
        assert bench.dispatched()
        return found

    assert cost(128, 256) <= FLAT * cost(8, 16)


# --- in order --------------------------------------------------------------------------------------------------------


def handed(bench: Bench) -> list[Chunk]:
    return [item.chunk for action in bench.take(act.DispatchOrdered) for item in action.chunks]


@pytest.mark.parametrize("auto_commit", [True, False])
def test_a_queue_in_order_costs_the_same_with_any_number_of_workers_and_queues(make: Make, auto_commit: bool) -> None:
    def cost(workers: int, queues: int) -> int:
        bench = make(units=8_000, order="queue", auto_commit=auto_commit, chunks_in_flight=1)
        bench.worker(*names(workers))
        handles = bench.open(*range(queues))
        for handle in handles:
            bench.found(handle, range(4))
        chunks = handed(bench)
        assert len(chunks) == workers, "half of the queues wait"
        if not auto_commit:
            for chunk in chunks[1:]:
                assert chunk.worker_id is not None
                bench.core.handle(ev.Consumed(chunk.worker_id, chunk.chunk_id), bench.now)
            handed(bench)
        found = steps(lambda: bench.done(chunks[0]))
        assert handed(bench)
        return found

    assert cost(128, 256) <= FLAT * cost(8, 16)


@pytest.mark.parametrize("order_key", ["KEYS", ""])
def test_keys_cost_the_same_with_any_number_of_workers_and_queues(make: Make, order_key: str) -> None:
    """Without a property a worker is asked for each queue's keys; here only one has answered."""

    def cost(workers: int, queues: int) -> int:
        bench = make(units=8_000, order="key", order_key=order_key, chunks_in_flight=1)
        bench.worker(*names(workers))
        handles = bench.open(*range(queues))
        for handle in handles:
            bench.found(handle, range(4))
        for asked in bench.take(act.Classify)[:1]:
            bench.core.handle(ev.Classified(asked.worker_id, asked.handle, [None] * asked.count), bench.now)
        first = handed(bench)[0]
        found = steps(lambda: bench.done(first))
        bench.take(act.DispatchOrdered)
        return found

    assert cost(128, 256) <= FLAT * cost(8, 16)


def test_queues_wait_for_their_keys_until_a_worker_can_be_asked(make: Make) -> None:
    bench = make(order="key", order_key="")
    handles = bench.open(0, 1)
    for handle in handles:
        bench.found(handle, range(2))
    bench.none(act.Classify)
    bench.worker("a")
    assert [asked.handle for asked in bench.take(act.Classify)] == handles
    bench.worker("b")
    bench.core.handle(ev.WorkerDied("a"), bench.now)
    bench.core.handle(ev.SalvageComplete("a"), bench.now)
    assert [(asked.worker_id, asked.handle) for asked in bench.take(act.Classify)] == [("b", h) for h in handles]


# --- queues ---------------------------------------------------------------------------------------------------------


def test_thresholds_of_a_topic_cost_the_same_with_any_number_of_queues(make: Make) -> None:
    def cost(queues: int) -> int:
        bench = make(units=8_000, pull_threshold_for_topic=100_000, pull_threshold_size_for_topic_bytes=1 << 40)
        first, *_ = bench.open(*range(queues))
        bench.take(act.Pull)
        found = steps(lambda: bench.answer(first, ResponseCode.PULL_NOT_FOUND, 0))
        bench.one(act.Pull)
        return found

    assert cost(1_024) <= FLAT * cost(8)


def test_an_answer_to_a_look_up_costs_what_its_topic_has(make: Make) -> None:
    def cost(others: int) -> int:
        bench = make(topics=(TOPIC, "other"))
        bench.open(0, 1)
        bench.core.handle(ev.Members("other", [MessageQueue("other", "b", n) for n in range(others)], (ME,)), bench.now)
        return steps(lambda: bench.members([0, 1]))

    assert cost(1_000) <= FLAT * cost(10)


def test_a_seal_costs_the_same_with_any_number_of_segments_that_wait_for_the_table(make: Make) -> None:
    def cost(segments: int) -> int:
        bench = make(units=2_000, commit_after_loaded=True)
        (handle,) = bench.open(0)
        bench.worker("w")
        for number in range(segments):
            bench.found(handle, [number])
            (chunk,) = bench.dispatched()
            bench.done(chunk, seq=number + 1)
            bench.sealed("w", number + 1)
        assert len(bench.core.state.unloaded) == segments
        return steps(lambda: bench.sealed("w", segments + 1))

    assert cost(1_000) <= FLAT * cost(10)


# --- locks ----------------------------------------------------------------------------------------------------------


def locked(make: Make, queues: int) -> Bench:
    """Queues of two brokers, locked and opened."""
    bench = make(units=8_000, order="queue", locks=True)
    bench.worker("w")
    mqs = [MessageQueue(TOPIC, broker, number) for broker in ("a", "b") for number in range(queues // 2)]
    bench.core.handle(ev.Members(TOPIC, mqs, (ME,)), bench.now)
    asked = bench.one(act.LockQueues).mqs
    for broker in ("a", "b"):
        those = [mq for mq in asked if mq.broker_name == broker]
        bench.core.handle(ev.Locked(those, those, bench.now), bench.now)
    for fetch in bench.take(act.FetchOffset):
        bench.core.handle(ev.Opened(fetch.handle, 0), bench.now)
    bench.take(act.Log)
    return bench


@pytest.mark.parametrize("queues", [8, 1_024])
def test_a_lost_broker_costs_one_request_and_one_line(make: Make, queues: int) -> None:
    bench = locked(make, queues)
    lost = [mq for mq in bench.core.state.by_mq if mq.broker_name == "a"]
    bench.core.handle(ev.BrokerLost("a"), bench.now)
    assert bench.logged() == ["queue_locks_lost"]
    assert bench.counters.locks_lost == queues // 2
    for _ in range(10):  # it stays away
        bench.pass_ms(500)
        assert sorted(bench.one(act.LockQueues).mqs) == sorted(lost)
        bench.core.handle(ev.Locked(lost, None, bench.now), bench.now)
    assert bench.logged() == []
    bench.pass_ms(500)
    bench.take(act.LockQueues)
    bench.core.handle(ev.Locked(lost, lost, bench.now), bench.now)
    for fetch in bench.take(act.FetchOffset):
        bench.core.handle(ev.Opened(fetch.handle, 0), bench.now)
    bench.pass_ms(500)
    assert sorted(bench.one(act.LockQueues).mqs) == sorted(lost)
    bench.core.handle(ev.Locked(lost, lost, bench.now), bench.now)
    assert bench.logged() == ["queues_locked_again"]


@pytest.mark.parametrize("queues", [8, 1_024])
def test_a_broker_that_answers_nothing_costs_one_timer_and_one_line(make: Make, queues: int) -> None:
    bench = locked(make, queues)
    bench.pass_ms(29_999)
    bench.take(act.LockQueues)
    before = bench.counters.locks_lost
    bench.pass_ms(1)
    assert before == 0
    assert bench.logged().count("queue_locks_lost") == 2
    assert bench.counters.locks_lost == queues


# --- joins ----------------------------------------------------------------------------------------------------------


def test_members_that_join_cost_a_look_up_each(make: Make) -> None:
    """10 topics, 20 brokers, 50 members: each broker sends a notice of each member, slower than look-ups are answered."""
    topics = tuple(f"t{number}" for number in range(10))
    bench = make(topics=topics)
    bench.core.handle(ev.Start(), bench.now)
    look_ups = 0
    for _ in range(50):
        for _ in range(20):
            bench.core.handle(ev.Rebalance(), bench.now)
            bench.pass_ms(2)
            asked = [action.topic for action in bench.take(act.FetchAssignment)]
            look_ups += len(asked)
            for topic in asked:
                bench.core.handle(ev.Members(topic, [MessageQueue(topic, "b", 0)], (ME,)), bench.now)
    assert 0 < look_ups <= 50 * len(topics)


def test_a_pull_and_its_report_are_few_calls(make: Make) -> None:
    """Each costs about as much as a store in a dict: nothing else is as much of what a small pull costs."""
    bench = make(units=100, chunk_messages_max=64)
    bench.core.state.sizer.tail_us = 1.0
    (handle,) = bench.open(0)
    bench.worker("a")
    for first in (0, 32):  # the first one meets what is made once
        body = b"".join(record(offset) for offset in range(first, first + 32))
        slot = bench.core.room_for(handle, len(body))
        assert slot is not None
        bench.view[slot.start : slot.start + len(body)] = body
        pulled = ev.Pulled(handle, PullResult(ResponseCode.SUCCESS, first + 32, len(body), slot, end_offset=99))
        taken = calls(partial(bench.core.handle, pulled, bench.now))
        (chunk,) = bench.dispatched()
        reported = ev.Reported("a", chunk.chunk_id, 0, 32, 0, 40, 3, 0, (), 1)
        taken += calls(partial(bench.core.handle, reported, bench.now))
    assert bench.counters.done_messages == 64
    assert taken <= 102
