"""Rates per topic, with Java's windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.stats import ConsumerStats, Item, Rate, Window

from .conftest import TOPIC

if TYPE_CHECKING:
    from .conftest import Bench


def add(item: Item, value: float, times: int = 1) -> None:
    item.value += value
    item.times += times


def test_a_new_item_knows_nothing() -> None:
    assert Item().rate(Window.MINUTE) == Rate()


def test_the_first_note_is_preceded_by_zeros_one_interval_back() -> None:
    item = Item()
    add(item, 30, 3)
    item.sample(Window.MINUTE, 100.0)
    assert item.rate(Window.MINUTE) == Rate(30, 3.0, 10.0, 3)


def test_the_minute_forgets_what_is_older_than_sixty_seconds() -> None:
    item = Item()
    add(item, 600)
    for step in range(7):
        item.sample(Window.MINUTE, 10.0 * step)
    assert item.rate(Window.MINUTE).sum == 0
    add(item, 120, 2)
    item.sample(Window.MINUTE, 70.0)
    assert item.rate(Window.MINUTE) == Rate(120, 2.0, 60.0, 2)


def test_the_day_keeps_twenty_five_notes() -> None:
    item = Item()
    for hour in range(30):
        add(item, 10)
        item.sample(Window.DAY, 3600.0 * hour)
    assert item.rate(Window.DAY).sum == 240


def test_a_status_has_rates_of_the_minute_and_failures_of_the_hour() -> None:
    stats = ConsumerStats()
    stats.pulled(TOPIC, 32, 4.0)
    stats.pulled(TOPIC, 8, 8.0)
    stats.consumed(TOPIC, 20, 5, 40_000)
    stats.sample(Window.MINUTE, 10.0)
    stats.sample(Window.HOUR, 10.0)
    status = stats.status(TOPIC)
    assert (status.pull_rt, status.pull_tps, status.consume_rt) == (6.0, 4.0, 2.0)
    assert (status.consume_ok_tps, status.consume_failed_tps, status.consume_failed_msgs) == (1.5, 0.5, 5)


def test_consume_rt_falls_back_to_the_hour() -> None:
    stats = ConsumerStats()
    stats.consumed(TOPIC, 1, 0, 3_000)
    stats.sample(Window.HOUR, 0.0)
    for step in range(8):
        stats.sample(Window.MINUTE, 10.0 * step)
    assert stats.status(TOPIC).consume_rt == 3.0
    assert stats.status(TOPIC).consume_ok_tps == 0


def test_one_call_of_a_batch_handler_is_one_time() -> None:
    stats = ConsumerStats()
    stats.calls_are_batches = True
    stats.consumed(TOPIC, 32, 0, 8_000)
    stats.sample(Window.MINUTE, 0.0)
    assert stats.status(TOPIC).consume_rt == 8.0


def test_an_unknown_topic_has_zeros() -> None:
    assert ConsumerStats().status("nothing").pull_tps == 0


def test_the_core_counts_pulls_and_outcomes(make: Callable[..., Bench]) -> None:
    bench = make(chunk_messages_max=4)
    bench.core.handle(ev.Start(), bench.now)
    bench.worker("w")
    (handle,) = bench.open(0)
    bench.pass_ms(40)
    bench.found(handle, range(4))
    for chunk in bench.dispatched():
        bench.done(chunk, us=2000, failures=[(0, 0, "no")] if chunk.offsets[0] == 0 else [])
    for chunk in bench.dispatched():
        bench.done(chunk, us=2000)
    bench.pass_ms(10_000)
    status = bench.core.state.stats.status(TOPIC)
    assert round(status.pull_rt) == 40
    assert status.consume_rt == 2.0
    assert status.consume_ok_tps > 0
    assert status.consume_failed_tps > 0


def test_an_unsubscribed_topic_leaves_when_its_last_queue_has_ended(make: Callable[..., Bench]) -> None:
    bench = make(topics=(TOPIC, "old"))
    topics = bench.core.state.stats.topics
    bench.core.handle(ev.Start(), bench.now)
    bench.worker("w")
    old = bench.open_topic("old")
    (kept,) = bench.open(0)
    for handle in (old, kept):
        bench.found(handle, range(1))
    (chunk,) = [chunk for chunk in bench.dispatched() if chunk.handle == old]
    bench.core.handle(ev.Unsubscribe("old"), bench.now)
    bench.pass_ms(10_000)
    assert set(topics) == {TOPIC, "old"}, "its message still runs"
    bench.done(chunk)
    bench.commits()
    bench.pass_ms(10_000)
    assert set(topics) == {TOPIC}


def test_retries_that_are_popped_stay_with_their_topic() -> None:
    stats = ConsumerStats()
    for topic in (TOPIC, f"%RETRY%g_{TOPIC}", f"%RETRY%g+{TOPIC}", "old", "%RETRY%g_old"):
        stats.pulled(topic, 1, 1.0)
    stats.keep({TOPIC}, "g")
    assert set(stats.topics) == {TOPIC, f"%RETRY%g_{TOPIC}", f"%RETRY%g+{TOPIC}"}
