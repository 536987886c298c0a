"""Calls at once by topic: never more than allowed, others pass, and what waited goes on when one is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from rocketcrew.conf.settings import load
from rocketcrew.remoting.errors import UsageError
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.order import Order, check_topic_limits
from rocketcrew.supervisor.wiring import topic_concurrency

from .conftest import TOPIC

if TYPE_CHECKING:
    from rocketcrew.supervisor.core.chunks import Chunk

    from .conftest import Bench

RETRY = "%RETRY%g"


def limited(make: Callable[..., Bench], limit: int, *, topics: tuple[str, ...] = (TOPIC,)) -> Bench:
    bench = make(topics=topics, topic_concurrency={TOPIC: limit})
    bench.core.state.sizer.tail_us = 100.0
    return bench


def workers(chunks: Iterable[Chunk]) -> list[str]:
    return sorted(str(chunk.worker_id) for chunk in chunks)


def test_so_many_workers_have_the_topic_and_no_more(make: Callable[..., Bench]) -> None:
    bench = limited(make, 2)
    (handle,) = bench.open(0)
    bench.worker("a", "b", "c")
    bench.found(handle, range(10))
    chunks = bench.dispatched()
    assert workers(chunks) == ["a", "a", "b", "b"], "who has some may have more behind it"
    for chunk in [chunk for chunk in chunks if chunk.worker_id == "a"]:
        bench.done(chunk)
    assert len({chunk.worker_id for chunk in bench.dispatched()} | {"b"}) == 2


def test_other_topics_pass_and_nothing_is_forgotten(make: Callable[..., Bench]) -> None:
    bench = limited(make, 1, topics=(TOPIC, "free"))
    (handle,) = bench.open(0)
    other = bench.open_topic("free")
    bench.worker("a", "b")
    bench.found(handle, range(6))
    bench.found(other, range(6))
    waiting = bench.dispatched()
    assert {chunk.worker_id for chunk in waiting} == {"a", "b"}
    assert {chunk.worker_id for chunk in waiting if chunk.handle == handle} == {"a"}
    done: list[tuple[int, int]] = []
    while waiting:
        for chunk in waiting:
            done += [(chunk.handle, offset) for offset in chunk.offsets]
            bench.done(chunk)
        waiting = bench.dispatched()
    assert sorted(done) == sorted((of, offset) for of in (handle, other) for offset in range(6))


def test_retries_of_another_group_are_a_topic_of_their_own(make: Callable[..., Bench]) -> None:
    others = "%RETRY%other"
    bench = limited(make, 1, topics=(TOPIC, others))
    (handle,), retries = bench.open(0), bench.open_topic(others)
    bench.worker("a", "b")
    bench.found(handle, range(1))
    (first,) = bench.dispatched()
    bench.found(retries, range(1))
    (second,) = bench.dispatched()
    assert {first.worker_id, second.worker_id} == {"a", "b"}


def test_retries_may_be_of_any_topic(make: Callable[..., Bench]) -> None:
    bench = limited(make, 1, topics=(TOPIC, RETRY))
    (handle,) = bench.open(0)
    retries = bench.open_topic(RETRY)
    bench.worker("a", "b")
    bench.found(retries, range(1))
    (first,) = bench.dispatched()
    bench.found(handle, range(3))
    assert {chunk.worker_id for chunk in bench.dispatched()} == {first.worker_id}


def test_a_coroutine_handler_counts_by_message(make: Callable[..., Bench]) -> None:
    bench = make(topics=(TOPIC,), topic_concurrency={TOPIC: 5}, chunk_messages_max=4)
    bench.core.state.sizer.tail_us = 100.0
    (handle,) = bench.open(0)
    bench.worker("a", "b")
    for name in ("a", "b"):
        bench.core.handle(ev.WorkerWindow(name, 16), bench.now)
    bench.found(handle, range(12))
    chunks = bench.dispatched()
    assert sum(chunk.count for chunk in chunks) == 5
    bench.done(chunks[0], count=1)
    assert sum(chunk.count for chunk in bench.dispatched()) == 1


def test_limits_of_a_reload_count_what_is_in_hand_already(make: Callable[..., Bench]) -> None:
    bench = make(topics=(TOPIC,), chunks_in_flight=1)
    bench.core.state.sizer.tail_us = 100.0
    (handle,) = bench.open(0)
    bench.worker("a", "b", "c")
    bench.found(handle, range(2))
    first, second = bench.dispatched()
    bench.core.state.config = replace(bench.config, topic_concurrency={TOPIC: 2})
    bench.found(handle, range(2, 5))
    bench.none(act.Dispatch)
    bench.done(first)
    assert workers(bench.dispatched()) == [first.worker_id], "one of two calls is over"
    bench.core.state.config = replace(bench.config, topic_concurrency={})
    bench.done(second)
    assert len(bench.dispatched()) == 2, "without a limit again, the third worker has something as well"


def test_what_a_dead_worker_left_waits_for_room_too(make: Callable[..., Bench]) -> None:
    bench = limited(make, 1)
    (handle,) = bench.open(0)
    bench.worker("a", "b")
    bench.found(handle, range(2))
    first, second = bench.dispatched()
    assert workers([first, second]) == ["a", "a"]
    bench.core.handle(ev.WorkerDied("a"), bench.now)
    bench.core.handle(ev.SalvageComplete("a"), bench.now)
    again = bench.dispatched()
    assert workers(again) == ["b", "b"]
    for chunk in again:
        bench.done(chunk)
    assert bench.persist() == [2]


def test_settings_name_topics_as_brokers_know_them() -> None:
    flags = {"workers.topic_concurrency": "orders = 2, mails=10", "cluster.namespace": "NS"}
    settings = load(flags, {}, None)
    assert topic_concurrency(settings) == {"NS%orders": 2, "NS%mails": 10}
    for wrong in ("orders", "orders=0", "orders=2,orders=3", "=3", "or ders=1"):
        with pytest.raises(UsageError, match="topic_concurrency"):
            load({"workers.topic_concurrency": wrong}, {}, None)


def test_limits_and_an_order_contradict_each_other() -> None:
    check_topic_limits(Order("key"), ())
    check_topic_limits(Order(), ("orders=2",))
    with pytest.raises(UsageError, match="topic_concurrency"):
        check_topic_limits(Order("key"), ("orders=2",))
