"""The messages that failed last, as the status and the page show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.outcome_notes import ERROR_CHARACTERS_MAX, KEPT_MAX, RecentFailures
from rocketcrew.workers.failures import asked

if TYPE_CHECKING:
    from .conftest import Bench


def fail(bench: Bench, handle: int, offset: int, level: int, error: str, *, accepted: bool = True) -> act.SendBack:
    """One message is pulled and fails, and its broker answers."""
    bench.found(handle, [offset])
    (chunk,) = bench.dispatched()
    bench.done(chunk, failures=[(0, level, error)])
    back = bench.one(act.SendBack)
    bench.core.handle(ev.SentBack(back.handle, back.chunk_id, back.index, accepted=accepted), bench.now)
    return back


def shown(bench: Bench) -> list[dict[str, Any]]:
    return bench.core.state.recent_failures.picture(bench.now)


def test_retries_and_dead_letters_are_shown_with_their_errors_the_newest_first(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("a")
    assert shown(bench) == []
    fail(bench, handle, 0, 3, "ValueError: not yet")
    bench.pass_ms(1_500)
    fail(bench, handle, 1, -1, "KeyError: 'price'")
    place = {"topic": "orders", "broker": "b", "queue_id": 0}
    assert shown(bench) == [
        {**place, "offset": 1, "outcome": "dead_letter", "times": 1, "error": "KeyError: 'price'", "age_s": 0.0},
        {**place, "offset": 0, "outcome": "retry", "times": 1, "error": "ValueError: not yet", "age_s": 1.5},
    ]


def test_what_its_broker_has_refused_is_no_retry_yet(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("a")
    fail(bench, handle, 0, 3, "no", accepted=False)
    assert shown(bench) == []


def test_only_the_newest_are_kept_and_no_error_is_long(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("a")
    for offset in range(KEPT_MAX + 3):
        fail(bench, handle, offset, 3, "x" * 1_000)
    found = shown(bench)
    assert [each["offset"] for each in found] == list(range(KEPT_MAX + 2, 2, -1))
    assert {len(each["error"]) for each in found} == {ERROR_CHARACTERS_MAX}


def test_what_is_tried_again_in_its_order_is_held(make: type[Bench]) -> None:
    bench = make(order="key")
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    ((item,),) = [action.chunks for action in bench.take(act.DispatchOrdered)]
    bench.core.handle(
        ev.Returned("w1", item.chunk.chunk_id, 0, 1, asked(0, "the stock is not known"), 30_000), bench.now
    )
    assert [(each["offset"], each["outcome"], each["error"]) for each in shown(bench)] == [
        (0, "held", "the stock is not known")
    ]


def test_messages_that_are_held_and_tried_again_and_again_push_no_other_out() -> None:
    failures = RecentFailures()
    queues = [MessageQueue("orders", "b", number) for number in range(4)]
    failures.note("dead_letter", queues[0], 7, "KeyError: 'price'", 0.0)
    for second in range(1, KEPT_MAX + 1):
        for mq in queues:
            failures.note("held", mq, 8, f"try {second}", float(second))
    failures.note("dead_letter", queues[3], 8, "no more", KEPT_MAX + 1.0)
    found = failures.picture(KEPT_MAX + 1.0)
    assert [(each["queue_id"], each["outcome"], each["times"], each["error"], each["age_s"]) for each in found] == [
        (3, "dead_letter", 1, "no more", 0.0),
        *((number, "held", KEPT_MAX, f"try {KEPT_MAX}", 1.0) for number in (3, 2, 1, 0)),
        (0, "dead_letter", 1, "KeyError: 'price'", KEPT_MAX + 1.0),
    ]
