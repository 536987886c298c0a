"""Messages a second by topic and for the whole member: never more than the rate and its burst, and nothing is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from rocketcrew.conf.settings import load
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.holding import holding
from rocketcrew.supervisor.core.rate_limits import LOOK_S_MAX, MEMBER, RateLimits
from rocketcrew.supervisor.core.states import ServiceState
from rocketcrew.supervisor.status import picture
from rocketcrew.supervisor.wiring import core_config

from .conftest import ME, TOPIC

if TYPE_CHECKING:
    from rocketcrew.supervisor.core.chunks import Chunk

    from .conftest import Bench

RETRY = "%RETRY%g"


# --- the buckets ------------------------------------------------------------------------------------------------


def taken(limits: RateLimits, rates: dict[str, float], topic: str, now: float, call: int = 1) -> int:
    """Take all that there is."""
    room = limits.room(rates, topic, call, now)
    limits.take(topic, room, now)
    return room


@pytest.mark.parametrize("rate", [0.25, 1.0, 7.3, 100.0, 33_333.0])
def test_never_more_than_the_burst_and_what_came_since(rate: float) -> None:
    limits, rates, now, sum_taken = RateLimits("g"), {"t": rate}, 5.0, 0
    burst = max(1.0, rate / 10)
    for _ in range(500):
        sum_taken += taken(limits, rates, "t", now)
        assert sum_taken <= burst + rate * (now - 5.0) + 1e-3
        assert not taken(limits, rates, "t", now)
        due = limits.due("t", now)
        assert now < due <= now + LOOK_S_MAX
        now = due
    assert sum_taken >= rate * (now - 5.0) - burst - 1, "and no less: each timer finds the tokens that it waited for"


def test_a_fast_topic_is_looked_at_fifty_times_a_second_at_most() -> None:
    limits, rates, now, looks = RateLimits("g"), {"t": 50_000.0}, 0.0, 0
    taken(limits, rates, "t", now)
    while now < 1.0:
        assert not taken(limits, rates, "t", now), "an event in between gets no crumbs"
        now = limits.due("t", now)
        assert taken(limits, rates, "t", now) >= 999
        taken(limits, rates, "t", now)
        looks += 1
    assert looks <= 51


def test_a_batch_waits_until_it_is_whole() -> None:
    limits, rates = RateLimits("g"), {"t": 10.0}
    assert taken(limits, rates, "t", 0.0, call=32) == 32
    assert limits.room(rates, "t", 32, 0.05) == 0
    assert limits.room(rates, "t", 32, 100.0) == 32


def test_all_topics_share_the_rate_of_the_member() -> None:
    limits, rates = RateLimits("g"), {"t": 100.0, MEMBER: 10.0}
    assert taken(limits, rates, "t", 0.0) == 1
    assert taken(limits, rates, "other", 0.0) == 0
    assert limits.holding("t", 0.0) == [MEMBER]
    assert limits.holding("t", 0.2) == []


def test_retries_of_another_group_are_a_topic_of_their_own() -> None:
    limits, rates, others = RateLimits("g"), {"t": 1.0, "%RETRY%other": 1.0}, "%RETRY%other"
    assert [taken(limits, rates, topic, 0.0) for topic in ("t", others, others)] == [1, 1, 0]
    assert limits.holding(others, 0.0) == [others]
    assert taken(limits, rates, "%RETRY%g_t", 0.0) == 0, "the own ones, popped or not, may be of each topic"


def test_a_reload_keeps_the_tokens_of_what_did_not_change() -> None:
    limits, rates = RateLimits("g"), {"t": 1.0, "u": 1.0}
    assert [taken(limits, rates, topic, 0.0) for topic in "tu"] == [1, 1]
    later = {"t": 1.0, "u": 2.0}
    assert [taken(limits, later, topic, 0.1) for topic in "tu"] == [0, 1]


def test_a_clock_that_goes_back_brings_no_tokens() -> None:
    limits, rates = RateLimits("g"), {"t": 10.0}
    assert [taken(limits, rates, "t", now) for now in (5.0, 4.0, 5.0, 5.1)] == [1, 0, 0, 1]


# --- in the core ------------------------------------------------------------------------------------------------


def limited(make: Callable[..., Bench], rates: dict[str, float], **config: Any) -> Bench:
    bench = make(rate_limits=rates, **{"topics": (TOPIC,), "chunk_messages_max": 4} | config)
    bench.core.state.sizer.tail_us = 100.0
    return bench


def run_until(bench: Bench, ms: int, done: Callable[[Chunk], None] | None = None) -> list[Chunk]:
    """Let time pass in small steps, in which workers finish at once; all that was dispatched."""
    found: list[Chunk] = []
    for _ in range(ms // 10):
        for chunk in bench.dispatched():
            found.append(chunk)
            (done or bench.done)(chunk)
        bench.pass_ms(10)
    return found


def run_ordered(bench: Bench, ms: int) -> list[int]:
    """As `run_until` in the ordered modes; the offsets of all that was dispatched."""
    seen: list[int] = []
    for _ in range(ms // 10):
        for action in bench.take(act.DispatchOrdered):
            for item in action.chunks:
                seen += item.chunk.offsets
                bench.done(item.chunk)
        bench.pass_ms(10)
    return seen


def count(chunks: list[Chunk]) -> int:
    return sum(chunk.count for chunk in chunks)


def test_a_topic_keeps_its_rate_and_others_pass(make: Callable[..., Bench]) -> None:
    bench = limited(make, {TOPIC: 10.0}, topics=(TOPIC, "free"))
    (handle,), other = bench.open(0), bench.open_topic("free")
    bench.worker("a")
    bench.found(handle, range(40))
    bench.found(other, range(40))
    chunks = run_until(bench, 2_000)
    assert count([chunk for chunk in chunks if chunk.handle == other]) == 40
    assert 19 <= count([chunk for chunk in chunks if chunk.handle == handle]) <= 21
    run_until(bench, 2_500)
    assert bench.persist() == [40, 40]


def test_all_topics_of_the_member_take_turns(make: Callable[..., Bench]) -> None:
    """What comes in a moment would go to the same topic each time."""
    bench = limited(make, {MEMBER: 20.0}, topics=(TOPIC, "other"))
    first, second = bench.open(0, 1)
    other = bench.open_topic("other")
    bench.worker("a")
    for handle in (first, second, other):
        bench.found(handle, range(40))
    chunks = run_until(bench, 2_000)
    assert 39 <= count(chunks) <= 43
    assert count([chunk for chunk in chunks if chunk.handle == other]) >= 15


def by_queue(bench: Bench, queues: Sequence[tuple[str, int]], seconds: int) -> list[int]:
    """Messages dispatched by queue when all have an endless backlog, and workers finish at once."""
    names: dict[int, tuple[str, int]] = {}
    for topic in dict.fromkeys(topic for topic, _ in queues):
        mine = [MessageQueue(topic, "b", queue_id) for name, queue_id in queues if name == topic]
        bench.core.handle(ev.Members(topic, mine, (ME,)), bench.now)
        for fetch in bench.take(act.FetchOffset):
            names[fetch.handle] = (topic, fetch.mq.queue_id)
            bench.core.handle(ev.Opened(fetch.handle, 0), bench.now)
    bench.persist()
    counts = dict.fromkeys(queues, 0)
    for _ in range(seconds * 100):
        for pull in bench.take(act.Pull):
            bench.found(pull.handle, range(pull.offset, pull.offset + 8))
        chunks = bench.dispatched()
        chunks += [item.chunk for action in bench.take(act.DispatchOrdered) for item in action.chunks]
        for chunk in chunks:
            counts[names[chunk.handle]] += chunk.count
            bench.done(chunk)
        bench.pass_ms(10)
    return list(counts.values())


@pytest.mark.parametrize("order", ["", "queue", "key"])
@pytest.mark.parametrize("queues", [[("a", 0), ("a", 1), ("b", 0), ("b", 1)], [("a", 0), ("b", 0)]])
def test_no_queue_starves_at_the_rate_of_the_member(
    make: Callable[..., Bench], queues: list[tuple[str, int]], order: str
) -> None:
    config = {"order": order, "locks": False} if order else {}
    bench = limited(make, {MEMBER: 10.0}, topics=("a", "b"), units=4096, **config)
    bench.worker("a", "b")
    counts = by_queue(bench, queues, 20)
    assert 175 <= sum(counts) <= 202
    if order == "key":  # keys take turns, so queues of a topic share by what they have here
        assert min(counts) >= 15, counts
        half = len(queues) // 2
        assert abs(sum(counts[:half]) - sum(counts[half:])) <= 4
    else:
        assert max(counts) - min(counts) <= 4, counts


def test_no_queue_starves_that_has_a_limit_of_its_own_beside_that_of_the_member(make: Callable[..., Bench]) -> None:
    for order in ("queue", "key"):
        bench = limited(make, {MEMBER: 10.0, "a": 2.0}, topics=("a", "b", "c"), units=4096, order=order, locks=False)
        bench.worker("a", "b")
        a, b, c = by_queue(bench, [("a", 0), ("b", 0), ("c", 0)], 20)
        assert 35 <= a <= 41
        assert abs(b - c) <= 4
        assert 175 <= a + b + c <= 202


class Counting(RateLimits):
    """Counts how often lanes are looked at."""

    asked = 0

    def room(self, rates: Mapping[str, float], topic: str, call_messages: int, now: float) -> int:
        self.asked += 1
        return super().room(rates, topic, call_messages, now)


def test_a_look_costs_the_same_with_any_number_of_lanes(make: Callable[..., Bench]) -> None:
    asked: list[int] = []
    for queues in (1, 4):
        bench = limited(make, {TOPIC: 50.0}, units=4096, order="key", locks=False)
        counting = bench.core.state.rates = Counting("g")
        handles = bench.open(*range(queues))
        bench.worker("a", "b")
        for handle in handles:
            for first in range(0, 960, 32):
                bench.found(handle, range(first, first + 32))
        counting.asked, messages = 0, 0
        for _ in range(100):
            for action in bench.take(act.DispatchOrdered):
                for item in action.chunks:
                    messages += item.chunk.count
                    bench.done(item.chunk)
            bench.pass_ms(10)
        assert 45 <= messages <= 60
        asked.append(counting.asked)
    assert asked[1] <= asked[0] + 20, asked
    assert asked[1] < 1_000


def test_lanes_that_waited_for_a_rate_end_with_their_queue(make: Callable[..., Bench]) -> None:
    bench = limited(make, {TOPIC: 1.0}, order="key", locks=False)
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.found(handle, range(6))
    (action,) = bench.take(act.DispatchOrdered)
    bench.revoke()
    for item in action.chunks:
        bench.done(item.chunk)
    bench.pass_ms(2_000)
    bench.none(act.DispatchOrdered)
    bench.persist()
    (handle,) = bench.open(0, offset=1)
    bench.found(handle, range(1, 3))
    seen = run_ordered(bench, 3_000)
    assert seen == [1, 2]


@pytest.mark.parametrize("rates", [{"a": 10.0, "b": 7.0}, {"a": 10.0, "b": 10.0}, {"a": 2.0, "b": 1.4}])
def test_retries_do_not_starve_beside_topics_that_have_limits(
    make: Callable[..., Bench], rates: dict[str, float]
) -> None:
    bench = limited(make, rates, topics=("a", "b", RETRY), units=4096)
    bench.worker("w")
    a, b, retries = by_queue(bench, [("a", 0), ("b", 0), (RETRY, 0)], 40)
    assert a + retries <= rates["a"] * 40 + 2
    assert b + retries <= rates["b"] * 40 + 2
    assert min(a, b, retries) >= 0.3 * min(rates.values()) * 40, (a, b, retries)


@pytest.mark.parametrize("rates", [{"a": 3.0, "b": 2.0}, {"a": 5_000.0, "b": 3_000.0}])
def test_with_retries_a_limit_is_passed_by_what_is_gathered_at_most(rates: dict[str, float]) -> None:
    limits, now = RateLimits("g"), 0.0
    sums: dict[str, int] = dict.fromkeys(("a", "b", RETRY), 0)
    for step in range(3_000):
        for topic in ((RETRY, "a", "b"), ("a", "b", RETRY), ("a", RETRY, "b"))[step % 3]:
            sums[topic] += taken(limits, rates, topic, now)
        for topic, rate in rates.items():
            most = max(1.0, rate / 10) + max(1.0, rate / 50)
            assert sums[topic] + sums[RETRY] <= most + rate * now + 1e-3
        now += 0.007
    assert sums[RETRY] > 0


def test_retries_count_for_every_limited_topic(make: Callable[..., Bench]) -> None:
    bench = limited(make, {TOPIC: 10.0, "free": 1_000.0}, topics=(TOPIC, RETRY))
    (handle,), retries = bench.open(0), bench.open_topic(RETRY)
    bench.worker("a")
    bench.found(retries, range(20))
    bench.found(handle, range(20))
    assert 10 <= count(run_until(bench, 1_000)) <= 12


def test_what_a_dead_worker_left_runs_at_once_and_no_tokens_are_lost(make: Callable[..., Bench]) -> None:
    bench = limited(make, {TOPIC: 1.0})
    (handle,) = bench.open(0)
    bench.worker("a", "b")
    bench.found(handle, range(3))
    (chunk,) = bench.dispatched()
    bench.core.handle(ev.WorkerDied(str(chunk.worker_id)), bench.now)
    bench.core.handle(ev.SalvageComplete(str(chunk.worker_id)), bench.now)
    (again,) = bench.dispatched()
    assert list(again.offsets) == [0]
    bench.done(again)
    assert count(run_until(bench, 2_500)) == 2
    assert bench.persist() == [3]


def test_a_suspect_takes_its_token_when_its_turn_comes(make: Callable[..., Bench]) -> None:
    """It waits until its worker has nothing else in hand: with a token of long ago it would run beside another message."""
    bench = limited(make, {TOPIC: 10.0})
    first, second = bench.open(0, 1)
    bench.worker("a")
    bench.core.state.charges.charge(bench.queue(), 1, "4711:1", {})
    bench.found(first, range(2))
    (running,) = bench.dispatched()
    assert run_until(bench, 1_000) == []
    bench.worker("b")
    bench.found(second, range(5))
    bench.done(running)
    (one,) = bench.dispatched()
    bench.done(one)
    assert 4 <= count([one, *run_until(bench, 410)]) <= 5
    run_until(bench, 500)
    assert sorted(bench.persist()) == [2, 5]


@pytest.mark.parametrize("order", ["queue", "key"])
def test_a_rate_holds_in_order_too(make: Callable[..., Bench], order: str) -> None:
    bench = limited(make, {TOPIC: 10.0}, order=order)
    handles = bench.open(0, 1)
    bench.worker("a", "b")
    for handle in handles:
        bench.found(handle, range(15))
    seen = run_ordered(bench, 2_000)
    assert 19 <= len(seen) <= 22
    run_ordered(bench, 2_000)
    assert bench.persist() == [15, 15]


def test_a_queue_is_not_pulled_while_some_of_it_waits_for_the_rate(make: Callable[..., Bench]) -> None:
    bench = limited(make, {TOPIC: 10.0})
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.take(act.Pull)
    bench.found(handle, range(6))
    bench.take(act.Pull)
    bench.found(handle, range(6, 12))
    bench.none(act.Pull)
    run_until(bench, 2_000)
    assert bench.one(act.Pull).offset == 12


def test_by_key_too_a_queue_is_not_pulled_while_some_of_it_waits_for_the_rate(make: Callable[..., Bench]) -> None:
    bench = limited(make, {TOPIC: 10.0}, order="key", locks=False)
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.take(act.Pull)
    bench.found(handle, range(6))
    bench.take(act.Pull)
    bench.found(handle, range(6, 12))
    for _ in range(50):
        for action in bench.take(act.DispatchOrdered):
            for item in action.chunks:
                bench.done(item.chunk)
        bench.none(act.Pull)
        bench.pass_ms(10)
    run_ordered(bench, 1_000)
    assert bench.one(act.Pull).offset == 12


def test_why_lag_names_no_limit_that_a_reload_has_removed(make: Callable[..., Bench]) -> None:
    bench = limited(make, {TOPIC: 1.0, "other": 5.0})
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.found(handle, range(6))
    assert holding(bench.core.state)[0]["rules"]
    bench.core.state.config = replace(bench.core.state.config, rate_limits={"other": 5.0})
    assert holding(bench.core.state)[0]["rules"] == []


def test_status_and_why_lag_name_the_limit(make: Callable[..., Bench]) -> None:
    bench = limited(make, {TOPIC: 10.0, MEMBER: 1_000.0}, rates_written={TOPIC: "600/m", MEMBER: "1000/s"})
    (handle,) = bench.open(0)
    bench.worker("a")

    def shown() -> list[dict[str, object]]:
        staff: dict[str, Any] = {"staff": {}}
        return picture(bench.core, ServiceState.RUNNING, {}, staff)["rate_limits"]

    member = {"topic": "", "messages_per_second": 1_000.0, "written": "1000/s", "limited": False}
    assert shown() == [member, {"topic": TOPIC, "messages_per_second": 10.0, "written": "600/m", "limited": False}]
    bench.found(handle, range(6))
    (chunk,) = bench.dispatched()
    bench.done(chunk)
    assert shown() == [member, {"topic": TOPIC, "messages_per_second": 10.0, "written": "600/m", "limited": True}]
    bench.persist()
    (queue,) = holding(bench.core.state)
    assert (queue["holds"], queue["offset"]) == ("rate", 1)
    assert queue["rules"] == [f"workers.topic_rate_limit: 600/m, messages of {TOPIC}"]
    run_until(bench, 1_000)
    assert [limit["limited"] for limit in shown()] == [False, False]


def test_a_revoked_queue_leaves_nothing_that_waits(make: Callable[..., Bench]) -> None:
    bench = limited(make, {TOPIC: 1.0})
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.found(handle, range(6))
    (chunk,) = bench.dispatched()
    bench.revoke()
    bench.done(chunk)
    bench.none(act.Dispatch)
    bench.pass_ms(2_000)
    bench.none(act.Dispatch)
    assert not bench.core.state.waiting_messages


def test_a_reload_that_lifts_the_limit_is_heard_within_a_second(make: Callable[..., Bench]) -> None:
    bench = limited(make, {TOPIC: 0.001})
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.found(handle, range(6))
    assert count(run_until(bench, 3_000)) == 1
    bench.core.state.config = replace(bench.core.state.config, rate_limits={})
    assert count(run_until(bench, 1_010)) == 5


# --- settings ---------------------------------------------------------------------------------------------------


def test_settings_name_topics_as_brokers_know_them() -> None:
    flags = {
        "workers.topic_rate_limit": "orders = 100/s, mails=30/m",
        "workers.rate_limit": "3600/h",
        "cluster.namespace": "NS",
    }
    found = core_config(load(flags, {}, None), "me", ())
    assert found.rate_limits == {"NS%orders": 100.0, "NS%mails": 0.5, MEMBER: 1.0}
    assert found.rates_written == {"NS%orders": "100/s", "NS%mails": "30/m", MEMBER: "3600/h"}
    assert core_config(load({}, {}, None), "me", ()).rate_limits == {}


@pytest.mark.parametrize("wrong", ["orders", "orders=0/s", "orders=5", "orders=5/d", "=3/s", "orders=1/s,orders=2/s"])
def test_a_rate_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="topic_rate_limit"):
        load({"workers.topic_rate_limit": wrong}, {}, None)
    with pytest.raises(UsageError, match="rate_limit"):
        load({"workers.rate_limit": wrong}, {}, None)
