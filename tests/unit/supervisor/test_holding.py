"""What holds a queue's offset, and what holds back its pulls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.blame import Death, End, InHand
from rocketcrew.supervisor.core.doubts import WITHHELD_S
from rocketcrew.supervisor.core.holding import holding
from rocketcrew.supervisor.core.pulling import PullResult
from rocketcrew.supervisor.core.state import DISK, OPERATOR
from rocketcrew.supervisor.core.states import ServiceState
from rocketcrew.supervisor.status import picture

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Bench


def held(bench: Bench) -> dict[str, Any]:
    (found,) = holding(bench.core.state)
    return found


def says(bench: Bench) -> tuple[str, int, str | None]:
    found = held(bench)
    return found["holds"], found["offset"], found["worker"]


def test_a_message_from_the_pull_to_the_commit(bench: Bench) -> None:
    bench.members([0])
    assert says(bench) == ("opening", -1, None)
    (fetch,) = bench.take(act.FetchOffset)
    bench.core.handle(ev.Opened(fetch.handle, 5), bench.now)
    bench.persist()
    assert says(bench) == ("nothing", 5, None)
    bench.found(fetch.handle, [5, 6])
    assert says(bench) == ("waiting", 5, None)
    assert held(bench)["rules"] == ["no worker is ready"]
    bench.worker("w1")
    first, second = bench.dispatched()
    assert says(bench) == ("worker", 5, "w1")
    bench.done(first, seq=1)
    assert says(bench) == ("rows", 5, "w1")
    bench.sealed("w1", 1)
    assert says(bench) == ("worker", 6, "w1")
    bench.done(second)
    assert says(bench) == ("commit", 7, None)
    bench.persist()
    assert says(bench) == ("nothing", 7, None)
    assert held(bench)["lag"] == 0
    assert held(bench)["rules"] == []


def test_a_failed_message_is_held_by_its_send_back(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.done(chunk, failures=[(0, 0, "ValueError: no")])
    assert says(bench) == ("send_back", 0, None)
    assert held(bench)["error"] == "ValueError: no"


def test_what_a_dead_worker_had_is_alone_or_runs_again(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1])
    bench.dispatched()
    bench.core.handle(ev.WorkerDied("w1", Death(End.RETIRED)), bench.now)
    assert says(bench) == ("again", 0, None)
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    assert says(bench) == ("again", 0, None)
    bench.worker("w2")
    assert says(bench) == ("worker", 0, "w2")
    chunk = bench.dispatched()[0]
    in_hand = InHand(chunk.chunk_id, 0, 0, 1, mark="m")
    bench.core.handle(ev.WorkerDied("w2", Death(End.CRASHED, in_hand)), bench.now)
    bench.core.handle(ev.SalvageComplete("w2"), bench.now)
    assert says(bench) == ("alone", 0, None)


def test_sealed_rows_wait_for_the_table(make: Callable[..., Bench]) -> None:
    bench = make(commit_after_loaded=True)
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.done(chunk, seq=1)
    bench.sealed("w1", 1)
    assert says(bench) == ("table", 0, "w1")


def test_the_rules_of_flow_control_are_named(make: Callable[..., Bench]) -> None:
    bench = make(pull_threshold_for_queue=1, consume_concurrently_max_span=1)
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0, 1, 2])
    assert held(bench)["rules"] == [
        "consumer.pull_threshold_for_queue: 3 unfinished messages, more than 1",
        "consumer.consume_concurrently_max_span: 3 offsets after the first unfinished, more than 1",
    ]
    bench.core.handle(ev.Pause(OPERATOR), bench.now)
    assert held(bench)["rules"][0] == "paused by operator"


def test_a_refusal_of_the_broker_is_named_until_the_next_pull(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.answer(handle, ResponseCode.NO_PERMISSION, 0)
    assert held(bench)["rules"] == ["the broker refuses the pull with code 16, 1 times in a row"]
    bench.pass_ms(1000)
    assert held(bench)["rules"] == [], "the next pull is under way, and the broker may hold it"
    bench.answer(handle, ResponseCode.NO_PERMISSION, 0)
    assert held(bench)["rules"] == ["the broker refuses the pull with code 16, 2 times in a row"]
    bench.pass_ms(1000)
    refused = PullResult(ResponseCode.NO_PERMISSION, 0, remark="the group may not\nCODE: 16")
    bench.core.handle(ev.Pulled(handle, refused), bench.now)
    (rule,) = held(bench)["rules"]
    assert rule == "the broker refuses the pull with code 16 (the group may not), 3 times in a row"
    (queue,) = picture(bench.core, ServiceState.RUNNING, {}, {})["queues"]
    assert queue["refused"] == {"code": 16, "remark": "the group may not", "times": 3, "seconds": 2.0}
    bench.pass_ms(1000)
    bench.answer(handle, ResponseCode.PULL_NOT_FOUND, 0)
    assert held(bench)["rules"] == []
    assert picture(bench.core, ServiceState.RUNNING, {}, {})["queues"][0]["refused"] is None


def test_a_replica_that_lags_is_named_and_is_no_refusal(bench: Bench) -> None:
    (handle,) = bench.open(0, offset=100)
    bench.worker("w1")
    refused = PullResult(ResponseCode.NO_PERMISSION, 0, remark="the group may not")
    lags = PullResult(ResponseCode.PULL_RETRY_IMMEDIATELY, 100, end_offset=90)
    for times, result in enumerate((refused, lags, lags)):
        bench.core.handle(ev.Pulled(handle, result), bench.now)
        if times:
            (rule,) = held(bench)["rules"]
            assert "has nothing at offset 100, its queue ends at 90: asked" in rule
            assert f"asked {times} times in a row, and again every 1000 ms" in rule
            assert picture(bench.core, ServiceState.RUNNING, {}, {})["queues"][0]["refused"] is None
        bench.pass_ms(1000)
    assert held(bench)["rules"] == []
    bench.answer(handle, ResponseCode.PULL_RETRY_IMMEDIATELY, 101)
    assert held(bench)["rules"] == []


def test_a_queue_in_doubt_says_for_how_long_and_what_is_asked(bench: Bench) -> None:
    bench.open(0)
    bench.worker("w1")
    assert held(bench)["doubt"] is None
    bench.core.handle(ev.BrokerLost("b"), bench.now)
    bench.pass_ms(4_000)
    assert held(bench)["doubt"] == {"seconds": 4.0, "waits_for": "members", "withheld": True}
    bench.members([0])
    bench.pass_ms(WITHHELD_S * 1000 - 4_000)
    assert held(bench)["doubt"] == {"seconds": WITHHELD_S, "waits_for": "offset", "withheld": False}
    bench.core.handle(ev.Opened(bench.take(act.FetchOffset)[-1].handle, 0), bench.now)
    assert held(bench)["doubt"] is None


def test_a_queue_in_doubt_with_locks_waits_for_its_lock(make: Callable[..., Bench]) -> None:
    bench = make(order="queue", locks=True)
    mq = bench.queue()
    bench.members([0])
    bench.core.handle(ev.Locked([mq], [mq], bench.now), bench.now)
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, 0), bench.now)
    bench.core.handle(ev.BrokerLost("b"), bench.now)
    assert held(bench)["doubt"]["waits_for"] == "lock"


def test_queues_in_line_for_bytes(make: Callable[..., Bench]) -> None:
    bench = make(units=2)
    bench.worker("w1")
    handles = bench.open(0, 1, 2)
    bench.found(handles[0], [0], body_bytes=16_000)
    waiting = [
        queue for queue in holding(bench.core.state) if any("memory.pulled_bytes_mib" in r for r in queue["rules"])
    ]
    assert waiting


def test_a_queue_that_was_taken_away_is_finished_and_not_pulled(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    bench.revoke()
    assert held(bench)["rules"][0].startswith("the queue was taken away")


def test_what_waits_for_room_on_the_disk_says_so(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.core.handle(ev.Pause(DISK), bench.now)
    bench.found(handle, [0, 1])
    assert says(bench) == ("room", 0, None)
    assert "paused by disk" in held(bench)["rules"]
