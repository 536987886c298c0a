"""Order: who says which, lanes of queues and of keys, what is held, given back, sent back; locks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rocketcrew.conf.settings import ConsumerSettings, load
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.blame import Death, End, InHand
from rocketcrew.supervisor.core.order import HandlerOrder, Order, check_same, resolve
from rocketcrew.supervisor.core.pulling import PullResult
from rocketcrew.supervisor.wiring import core_config, renewed_config
from rocketcrew.workers.cells import KEYS_OF
from rocketcrew.workers.failures import Mode, asked

Bench = Any
Make = Callable[..., Bench]
TOPIC, ME = "orders", "10.0.0.1@1#1"


def consumer_of(**consumer: object) -> ConsumerSettings:
    return load({f"consumer.{name}": value for name, value in consumer.items()}, {}, None).consumer


def order_of(handler: HandlerOrder, **consumer: object) -> Order:
    return resolve(consumer_of(**consumer), handler)


# --- who says which order -------------------------------------------------------------------------------------------


def test_the_decorator_speaks_unless_the_configuration_does() -> None:
    assert order_of(HandlerOrder()) == Order()
    assert order_of(HandlerOrder("queue")) == Order("queue", locks=True)
    assert order_of(HandlerOrder(), order="key", order_key="ACCOUNT") == Order("key", locks=True, order_key="ACCOUNT")
    assert order_of(HandlerOrder("key", key_function=True)).order_key == ""
    assert not order_of(HandlerOrder("queue"), message_model="BROADCASTING").locks


@pytest.mark.parametrize(
    ("handler", "consumer", "says"),
    [
        (HandlerOrder("queue"), {"order": "key"}, "leave one of them"),
        (HandlerOrder("queue"), {"client_rebalance": False}, "client_rebalance"),
        (HandlerOrder(key="A"), {}, "keys have a meaning"),
        (HandlerOrder(auto_commit=False), {}, "commit by itself"),
        (HandlerOrder("key", key_function=True), {"order_key": "A"}, "leave one of them out"),
    ],
)
def test_what_contradicts_itself_is_refused(handler: HandlerOrder, consumer: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        order_of(handler, **consumer)


QUEUE_ORDER = Order("queue", locks=True)


@pytest.mark.parametrize(
    ("handler", "consumer"),
    [(HandlerOrder("queue"), {}), (HandlerOrder(), {"order": "queue"}), (HandlerOrder("queue"), {"order": "queue"})],
)
def test_the_same_order_may_be_said_otherwise(handler: HandlerOrder, consumer: dict[str, object]) -> None:
    check_same(QUEUE_ORDER, consumer_of(**consumer), handler)


@pytest.mark.parametrize(
    ("running", "handler", "consumer", "says"),
    [
        (QUEUE_ORDER, HandlerOrder(), {}, 'has order = "queue"; .* would make that order = "concurrent"'),
        (Order(), HandlerOrder("queue"), {}, 'would make that order = "queue"'),
        (QUEUE_ORDER, HandlerOrder("queue", auto_commit=False), {}, "auto_commit=False"),
        (QUEUE_ORDER, HandlerOrder("queue"), {"order": "key"}, "leave one of them out"),
        (Order("key", locks=True), HandlerOrder("key", key="A"), {}, 'order = "key", key KEYS; .* key A'),
    ],
)
def test_a_running_member_keeps_its_order(
    running: Order, handler: HandlerOrder, consumer: dict[str, object], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        check_same(running, consumer_of(**consumer), handler)
    assert "stop the member and start it anew" in str(refused.value)


def test_a_reload_keeps_topics_and_order() -> None:
    """What the settings do not say must not fall back to its default: an ordered core would go on by other rules."""
    settings = load({"consumer.group": "g", "consumer.pull_interval_ms": 7}, {}, None)
    running = replace(
        core_config(settings, "me", ("t",)), topics=("t", "u"), order="queue", locks=True, auto_commit=False
    )
    changed = renewed_config(running, load({"consumer.group": "g", "consumer.pull_interval_ms": 9}, {}, None))
    assert changed == replace(running, pull_interval_ms=9)


@pytest.mark.parametrize(("span", "chunk"), [(1, 1), (255, 255), (256, 256), (2_000, 256)])
def test_no_chunk_is_larger_than_the_span_also_after_a_reload(span: int, chunk: int) -> None:
    """A larger one would stop the queue that it came from."""
    settings = load({"consumer.group": "g", "consumer.consume_concurrently_max_span": span}, {}, None)
    assert core_config(settings, "me", ()).chunk_messages_max == chunk
    running = core_config(load({"consumer.group": "g"}, {}, None), "me", ())
    assert renewed_config(running, settings).chunk_messages_max == chunk


# --- by queue -------------------------------------------------------------------------------------------------------


def handed(bench: Bench) -> list[tuple[str, list[int], tuple[int, ...]]]:
    """Worker, offsets and tries of every chunk that was dispatched since the last look."""
    return [
        (action.worker_id, list(item.chunk.offsets), item.tried)
        for action in bench.take(act.DispatchOrdered)
        for item in action.chunks
    ]


def chunk_ids(bench: Bench) -> list[int]:
    return [item.chunk.chunk_id for action in bench.take(act.DispatchOrdered) for item in action.chunks]


def by_queue(make: Make, **config: object) -> tuple[Bench, int]:
    bench = make(order="queue", **config)
    bench.worker("w1", "w2")
    handle = bench.open(0)[0]
    bench.found(handle, [0, 1, 2])
    return bench, handle


def give_back(
    bench: Bench, chunk_id: int, *, worker: str = "w1", failed: int = 1, level: int = 0, ms: int = -1
) -> None:
    bench.core.handle(ev.Returned(worker, chunk_id, 0, failed, asked(level, "no") if failed else None, ms), bench.now)


def done(bench: Bench, chunk_id: int, worker: str = "w1") -> None:
    bench.core.handle(ev.Reported(worker, chunk_id, 0, 1, 0, 100, 100, 0, ()), bench.now)


def test_one_chunk_of_a_queue_at_a_time_and_always_to_the_same_worker(make: Make) -> None:
    bench, _ = by_queue(make)
    for offset in (0, 1, 2):
        (action,) = bench.take(act.DispatchOrdered)
        assert (action.worker_id, action.chunks[0].chunk.offsets) == ("w1", [offset])
        done(bench, action.chunks[0].chunk.chunk_id)
    assert bench.persist() == [3]


def test_a_failed_message_is_held_for_the_suspend_time_and_counted(make: Make) -> None:
    bench, _ = by_queue(make)
    give_back(bench, chunk_ids(bench)[0], ms=50)
    bench.pass_ms(49)
    assert handed(bench) == []
    bench.pass_ms(2)
    assert handed(bench) == [("w1", [0], (1,))]
    bench.none(act.SendBack)


def test_at_the_limit_it_is_sent_and_the_queue_waits_for_that(make: Make) -> None:
    bench, _ = by_queue(make, max_reconsume_times=1)
    give_back(bench, chunk_ids(bench)[0])
    bench.pass_ms(1001)
    give_back(bench, chunk_ids(bench)[0])
    send = bench.one(act.SendBack)
    assert (send.mode, send.tried, handed(bench)) == (Mode.LAST_ATTEMPT, 1, [])
    bench.core.handle(ev.SentBack(send.handle, send.chunk_id, send.index, True), bench.now)
    assert handed(bench) == [("w1", [1], ())]


def test_given_up_it_goes_to_the_dead_letters_at_once(make: Make) -> None:
    bench, _ = by_queue(make)
    give_back(bench, chunk_ids(bench)[0], level=-1)
    send = bench.one(act.SendBack)
    assert send.mode is Mode.DEAD_LETTER


def test_what_came_too_late_for_its_lock_is_not_counted(make: Make) -> None:
    bench, _ = by_queue(make)
    give_back(bench, chunk_ids(bench)[0], failed=0, ms=0)
    assert handed(bench) == [("w1", [0], ())]


def test_the_next_worker_starts_after_the_salvage(make: Make) -> None:
    bench, _ = by_queue(make)
    bench.take(act.DispatchOrdered)
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    bench.pass_ms(5)
    assert handed(bench) == []
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    assert handed(bench) == [("w2", [0], ())]


def test_a_stop_leaves_what_was_not_started(make: Make) -> None:
    bench, _ = by_queue(make)
    chunk_id = chunk_ids(bench)[0]
    bench.core.handle(ev.Stop(), bench.now)
    done(bench, chunk_id)
    assert (bench.commits()[-1], handed(bench)) == (1, [])
    assert bench.one(act.Finished).unfinished == 0


def test_uncommitted_messages_hold_the_offset_and_run_again_after_a_rollback(make: Make) -> None:
    bench, _ = by_queue(make, auto_commit=False)
    first = chunk_ids(bench)[0]
    bench.core.handle(ev.Consumed("w1", first), bench.now)
    second = chunk_ids(bench)[0]
    assert bench.persist() == []
    for chunk_id in (first, second):
        give_back(bench, chunk_id, failed=0, ms=10 if chunk_id == second else 0)
    bench.pass_ms(11)
    assert handed(bench) == [("w1", [0], ())]


def test_a_queue_whose_deadline_came_with_uncommitted_messages_is_opened_again_when_the_running_one_is_over(
    make: Make,
) -> None:
    bench, handle = by_queue(make, auto_commit=False)
    bench.core.handle(ev.Consumed("w1", chunk_ids(bench)[0]), bench.now)
    running = chunk_ids(bench)[0]
    bench.revoke()
    bench.pass_ms(10_000)
    bench.commits()
    assert handle not in bench.core.state.queues
    bench.core.handle(ev.RetireWorker("w1"), bench.now)
    bench.take(act.FetchOffset)
    bench.members([0])
    bench.none(act.FetchOffset, act.Retired)  # a worker still runs a message of it
    bench.core.handle(ev.Consumed("w1", running), bench.now)
    bench.members([0])
    assert bench.one(act.FetchOffset).mq == bench.queue(0)
    assert bench.one(act.Retired).worker_id == "w1"
    assert bench.slab.used_units == 0


def test_a_worker_that_leaves_gives_up_what_it_has_consumed_at_once(make: Make) -> None:
    bench, _ = by_queue(make, auto_commit=False)
    chunk = chunk_ids(bench)[0]
    bench.core.handle(ev.Consumed("w1", chunk), bench.now)
    second = chunk_ids(bench)[0]
    bench.core.handle(ev.Consumed("w1", second), bench.now)
    third = chunk_ids(bench)[0]
    bench.core.handle(ev.Consumed("w1", third), bench.now)
    bench.core.handle(ev.RetireWorker("w1"), bench.now)
    assert bench.one(act.Retired).worker_id == "w1"
    assert handed(bench) == [("w2", [0], ())]


# --- by key ---------------------------------------------------------------------------------------------------------


def by_key(make: Make, keys: str, **config: object) -> tuple[Bench, int]:
    """A pull with one message a character; a dash has no key."""
    bench = make(order="key", **({"chunk_messages_max": 8} | config))
    bench.worker("w1", "w2")
    bench.core.state.sizer.tail_us = 30.0
    handle = bench.open(0)[0]
    pulled(bench, handle, 0, keys)
    return bench, handle


@pytest.mark.parametrize(("batch", "most"), [(1, 64), (100, 100)])
def test_one_worker_is_not_given_what_many_pulls_have_together(make: Make, batch: int, most: int) -> None:
    """A chunk is cut from one pull; these are one each, and a key's pulls of 32 made up to 256 of them."""
    sizes = {"chunk_target_us": 1_000_000, "chunk_messages_max": 256, "batch_messages_max": batch}
    bench, handle = by_key(make, "a", units=20_000, **sizes)
    ((first,),) = [[item.chunk for item in action.chunks] for action in bench.take(act.DispatchOrdered)]
    for begin in range(1, 257, 32):
        pulled(bench, handle, begin, "a" * 32)
    assert handed(bench) == [], "its key is in somebody's hands"
    done(bench, first.chunk_id, worker=first.worker_id)
    ((_, given),) = offsets(bench).items()
    assert given == list(range(1, 1 + most))


def pulled(bench: Bench, handle: int, begin: int, keys: str) -> None:
    """Answer the queue's pull with one message a character, from offset `begin` on."""
    body = b"".join(
        encode_message(
            StoredMessage(
                TOPIC, b"x", encode_properties({} if key == "-" else {"KEYS": key}).encode(), queue_offset=offset
            )
        )
        for offset, key in enumerate(keys, begin)
    )
    slot = bench.core.room_for(handle, len(body))
    assert slot is not None
    bench.view[slot.start : slot.start + len(body)] = body
    bench.core.handle(ev.Pulled(handle, PullResult(0, begin + len(keys), len(body), slot)), bench.now)


def offsets(bench: Bench) -> dict[str, list[int]]:
    """Offsets that each worker was given."""
    found: dict[str, list[int]] = {}
    for worker_id, chunk, _ in handed(bench):
        found.setdefault(worker_id, []).extend(chunk)
    return found


def test_a_key_is_in_one_hand_and_keys_are_shared_out(make: Make) -> None:
    bench, _ = by_key(make, "aabb-")
    assert offsets(bench) == {"w1": [0, 1, 2, 3], "w2": [4]}


def test_a_failed_message_holds_its_key_only(make: Make) -> None:
    bench, _ = by_key(make, "ab")
    (first,) = [item.chunk for a in bench.take(act.DispatchOrdered) for item in a.chunks if item.chunk.offsets == [0]]
    assert first.worker_id is not None
    give_back(bench, first.chunk_id, worker=first.worker_id, ms=20)
    bench.none(act.SendBack)
    bench.pass_ms(21)
    assert [(chunk, tried) for _, chunk, tried in handed(bench)] == [([0], (1,))]


def test_a_held_key_lets_others_go_on_until_the_span_is_full_and_no_further(make: Make) -> None:
    span = 8
    bench, handle = by_key(make, "abcd", consume_concurrently_max_span=span)
    handed_over = [item.chunk for a in bench.take(act.DispatchOrdered) for item in a.chunks]
    assert [chunk.offsets[0] for chunk in handed_over] == [0, 1, 2, 3]
    held = handed_over[0]
    give_back(bench, held.chunk_id, worker=held.worker_id, ms=60_000)
    for chunk in handed_over[1:]:
        done(bench, chunk.chunk_id, worker=chunk.worker_id)
    upto = 4
    while bench.take(act.Pull):
        assert bench.pq(handle).next_offset == upto
        pulled(bench, handle, upto, "e")
        for chunk in [item.chunk for a in bench.take(act.DispatchOrdered) for item in a.chunks]:
            done(bench, chunk.chunk_id, worker=chunk.worker_id)
        upto += 1
    assert upto == span + 1
    bench.pass_ms(59_000)
    bench.none(act.Pull)
    bench.pass_ms(1_001)
    (again,) = [item.chunk for a in bench.take(act.DispatchOrdered) for item in a.chunks]
    assert list(again.offsets) == [0]
    done(bench, again.chunk_id, worker=again.worker_id)
    assert len(bench.take(act.Pull)) == 1


def test_pass_sends_a_failed_message_back_at_once(make: Make) -> None:
    bench, _ = by_key(make, "aa", order_holds=False)
    first, second = (item.chunk for a in bench.take(act.DispatchOrdered) for item in a.chunks)
    worker = first.worker_id
    give_back(bench, first.chunk_id, worker=worker)
    give_back(bench, second.chunk_id, worker=worker, failed=0, ms=0)
    send = bench.one(act.SendBack)
    assert (send.mode, handed(bench)) == (Mode.SEND_BACK, [])
    bench.core.handle(ev.SentBack(send.handle, send.chunk_id, send.index, True), bench.now)
    assert [chunk for _, chunk, _ in handed(bench)] == [[1]]


def test_keys_of_a_function_are_asked_of_a_worker_and_of_the_next_when_it_dies(make: Make) -> None:
    bench, handle = by_key(make, "ab", order_key="")
    assert bench.one(act.Classify).worker_id == "w1"
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    again = bench.one(act.Classify)
    assert (again.worker_id, again.count) == ("w2", 2)
    bench.core.handle(ev.Classified("w2", handle, [b"k", b"k"]), bench.now)
    assert offsets(bench) == {"w2": [0, 1]}


def over_a_key(handle: int, offset: int, end: End = End.CRASHED) -> Death:
    return Death(end, InHand(KEYS_OF + handle, offset, offset, 1))


def ask_until_keyed(bench: Bench, handle: int, deadly: int, end: End = End.CRASHED) -> list[int]:
    """Answer what workers are asked, except that each dies over one record; how many records were asked for, each time."""
    sizes: list[int] = []
    (pq,) = bench.core.state.queues.values()
    while asked := bench.take(act.Classify):
        (question,) = asked
        assert question.worker_id in bench.core.busy_workers(), "a key function that stops its loop shall be noticed"
        sizes.append(question.count)
        first = pq.waiting[0].at
        if first <= deadly < first + question.count:
            bench.core.handle(ev.WorkerDied(question.worker_id, over_a_key(handle, deadly, end)), bench.now)
            bench.core.handle(ev.SalvageComplete(question.worker_id), bench.now)
            bench.worker(f"x{len(sizes)}")
        else:
            bench.core.handle(
                ev.Classified(question.worker_id, handle, [b"%d" % (first + n) for n in range(question.count)]),
                bench.now,
            )
    return sizes


@pytest.mark.parametrize("end", [End.CRASHED, End.TIME_LIMIT])
@pytest.mark.parametrize(("deadly", "asked"), [(5, [8, 5, 1, 1, 2]), (0, [8, 1, 1, 7]), (7, [8, 7, 1, 1])])
def test_a_message_over_whose_key_three_workers_die_gets_none(
    deadly: int, asked: list[int], end: End, make: Make
) -> None:
    bench, handle = by_key(make, "abcdefgh", order_key="")
    assert ask_until_keyed(bench, handle, deadly, end) == asked
    assert bench.logged().count("key_not_found_out") == 1
    lanes = {offset: lane.key for offset, lane in bench.core.state.queues[handle].order.of_offset.items()}
    assert lanes == {offset: offset if offset == deadly else b"%d" % offset for offset in range(8)}
    assert len(bench.core.state.charges) == 0


def test_who_is_asked_for_two_queues_dies_over_one(make: Make) -> None:
    """The messages of the other keep their keys: without one they would be in no order."""
    bench, first = by_key(make, "ab", order_key="")
    assert bench.one(act.Classify).worker_id == "w1"
    for number in range(5):
        bench.core.handle(ev.WorkerDied(f"w{number + 1}", over_a_key(first + 1, 0)), bench.now)
        bench.core.handle(ev.SalvageComplete(f"w{number + 1}"), bench.now)
        bench.worker(f"w{number + 3}")
        asked = bench.one(act.Classify)
        assert (asked.worker_id, asked.count) == (f"w{number + 2}", 2)
    assert "key_not_found_out" not in bench.logged()


def test_a_worker_that_leaves_answers_first(make: Make) -> None:
    bench, handle = by_key(make, "ab", order_key="")
    assert bench.one(act.Classify).worker_id == "w1"
    bench.core.handle(ev.RetireWorker("w1"), bench.now)
    bench.worker("w3")
    bench.none(act.Classify)
    bench.core.handle(ev.Classified("w1", handle, [b"k", b"k"]), bench.now)
    assert offsets(bench) == {"w2": [0, 1]}


# --- locks ----------------------------------------------------------------------------------------------------------


def locked_bench(make: Make) -> tuple[Bench, MessageQueue]:
    bench = make(order="queue", locks=True)
    bench.worker("w1")
    bench.members([0])
    return bench, bench.queue(0)


def test_a_queue_is_opened_when_it_is_locked(make: Make) -> None:
    bench, mq = locked_bench(make)
    bench.none(act.FetchOffset)
    assert bench.one(act.LockQueues).mqs == (mq,)
    bench.core.handle(ev.Locked([mq], [], bench.now), bench.now)
    bench.pass_ms(501)
    assert bench.one(act.LockQueues).mqs == (mq,)
    bench.core.handle(ev.Locked([mq], [mq], bench.now), bench.now)
    assert bench.one(act.FetchOffset).mq == mq


def test_a_lock_that_is_not_confirmed_is_lost_after_its_time(make: Make) -> None:
    bench, mq = locked_bench(make)
    bench.core.handle(ev.Locked([mq], [mq], bench.now), bench.now)
    handle = bench.one(act.FetchOffset).handle
    bench.core.handle(ev.Opened(handle, 0), bench.now)
    bench.one(act.Pull)
    bench.pass_ms(30_001)
    bench.found(handle, [0])
    assert (handed(bench), bench.take(act.Pull)) == ([], [])
    bench.core.handle(ev.Locked([mq], [mq], bench.now), bench.now)
    (action,) = bench.take(act.DispatchOrdered)
    assert action.start_before == bench.now + 30


def test_a_lost_connection_puts_the_locks_in_doubt(make: Make) -> None:
    bench, mq = locked_bench(make)
    bench.core.handle(ev.Locked([mq], [mq], bench.now), bench.now)
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, 0), bench.now)
    bench.core.handle(ev.BrokerLost("b"), bench.now)
    assert bench.counters.locks_lost == 1
    bench.pass_ms(501)
    assert mq in bench.take(act.LockQueues)[-1].mqs


def test_the_lock_is_given_up_behind_the_last_commit(make: Make) -> None:
    bench, mq = locked_bench(make)
    bench.core.handle(ev.Locked([mq], [mq], bench.now), bench.now)
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, 0), bench.now)
    bench.core.handle(ev.Members(TOPIC, [mq], ["0", ME]), bench.now)
    bench.none(act.UnlockQueues)
    bench.commits()
    bench.commits()
    assert bench.one(act.UnlockQueues).mqs == (mq,)


def test_attempts_of_a_message_that_succeeded_are_forgotten_though_the_next_one_fails(make: type[Bench]) -> None:
    """They were kept as long as the assignment, where the chunk came back in part."""
    bench = make(order="queue", chunk_messages_max=2, suspend_current_queue_time_ms=10)
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.core.state.sizer.tail_us = 100.0
    bench.found(handle, [0, 1])
    first = bench.one(act.DispatchOrdered).chunks[0].chunk
    assert first.count == 2
    bench.core.handle(ev.Returned("w1", first.chunk_id, 0, 1, asked(0, "no"), -1), bench.now)
    bench.pass_ms(10.1)
    (again,) = bench.one(act.DispatchOrdered).chunks
    assert again.tried == (1,)
    order = bench.pq(handle).order
    assert order is not None
    bench.done(again.chunk, count=1)
    bench.core.handle(ev.Returned("w1", again.chunk.chunk_id, 1, 1, asked(0, "no"), -1), bench.now)
    assert order.attempts == {1: 1}
