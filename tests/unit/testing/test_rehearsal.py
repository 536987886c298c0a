"""`rocketcrew.testing.run`: a handler through the real core, worker and broker core, with time wound by hand."""

from __future__ import annotations

import os
import sys
from resource import RLIMIT_NOFILE, getrlimit, setrlimit

import pytest

from rocketcrew import BatchResult, Commit, Retry, Suspend, handler
from rocketcrew.remoting.errors import RocketcrewError, UsageError
from rocketcrew.testing import Rehearsal, message, run
from rocketcrew.testing.rehearsal import CALLS_PER_MESSAGE_MAX
from rocketcrew.workers.loading import HandlerLoadError
from rocketcrew.workers.message import Message

DEFAULT_DELAYS_S = [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
"""docs/protocol.md: levels 3 to 18 of the broker's default messageDelayLevel."""


@handler(schema="order_id string, size int")
def measure(order: Message) -> dict[str, object]:
    if order.body == b"bad":
        raise ValueError("not an order")
    if order.body == b"later":
        raise Retry(delay_level=5, reason="not paid yet")
    if order.body == b"never":
        raise Retry(delay_level=-1, reason="unknown customer")
    return {"order_id": order.keys, "size": len(order.body)}


def test_rows_have_the_declared_columns_and_the_table_has_the_keys() -> None:
    result = run(
        measure, [message("abc", topic="orders", keys="o-1"), message("de", topic="orders", keys=["o-2", "x"])]
    )
    assert result.rows == [{"order_id": "o-1", "size": 3}, {"order_id": "o-2 x", "size": 2}]
    assert result.table is not None
    assert result.table.column("_topic").to_pylist() == ["orders", "orders"]
    assert result.table.column("_offset").to_pylist() == [0, 1]
    assert (result.done, result.unfinished, result.retries, result.dead_letters) == (2, 0, [], [])


def test_a_message_that_always_fails_goes_the_whole_way_to_the_dead_letters() -> None:
    result = run(measure, [message("bad", keys="o-1")])
    assert result.delays_s == DEFAULT_DELAYS_S
    assert [each.message.reconsume_times for each in result.retries] == list(range(16))
    assert [call.at_s for call in result.calls] == [sum(DEFAULT_DELAYS_S[:count]) for count in range(17)]
    (dead,) = result.dead_letters
    assert dead.message.keys == "o-1"
    assert dead.message.topic == "TopicTest"
    assert "ValueError: not an order (test_rehearsal.py:" in dead.error
    assert [type(error) for error in result.errors] == [ValueError] * 17
    assert (result.done, result.unfinished) == (0, 0)


def test_a_retry_waits_at_the_level_that_the_handler_names() -> None:
    result = run(measure, [message("later")], seconds=59)
    (retried,) = result.retries
    assert (retried.level, retried.delay_s, retried.error) == (5, 60.0, "not paid yet")
    assert [call.at_s for call in result.calls] == [0.0]
    assert result.unfinished == 1


def test_delay_level_minus_one_is_a_dead_letter_at_once() -> None:
    result = run(measure, [message("never")], seconds=0)
    assert [(each.error, each.at_s) for each in result.dead_letters] == [("unknown customer", 0.0)]
    assert len(result.calls) == 1


def test_the_brokers_delays_and_the_settings_are_the_tests_own() -> None:
    most = {"consumer.max_reconsume_times": 2}
    result = run(measure, [message("bad")], delay_levels="1s 2s 3s 4s", settings=most)
    assert result.delays_s == [3.0, 4.0]
    assert len(result.dead_letters) == 1


def test_time_is_wound_by_hand() -> None:
    calls: list[int] = []

    def third_time(order: Message) -> None:
        calls.append(order.reconsume_times)
        if order.reconsume_times < 2:
            raise OSError("the service is away")

    with Rehearsal(third_time) as rehearsal:
        rehearsal.send(message(topic="orders"))
        rehearsal.wind(0)
        assert calls == [0]
        rehearsal.wind(9.999)
        assert calls == [0]
        rehearsal.wind(0.001)
        assert calls == [0, 1]
        assert rehearsal.unfinished == 1
        rehearsal.send(message(topic="orders"))
        rehearsal.wind(30)
        assert calls == [0, 1, 0, 1, 2]
        rehearsal.settle()
        assert rehearsal.result().unfinished == 0


def test_rows_pass_the_real_schema_check() -> None:
    result = run(handler(schema="n int")(lambda _: {"n": "many"}), [b"x"], seconds=0)
    assert result.rows == []
    (retried,) = result.retries
    assert (
        retried.error
        == "column n int: expected an integer, got str: return int(value), or declare the column as what it is"
    )


def test_rows_without_columns_fail_as_in_production() -> None:
    result = run(lambda _: {"n": 1}, [b"x"], seconds=0)
    assert result.rows == []
    assert "schema" in result.retries[0].error
    inferred = run(lambda _: {"n": 1}, [b"x"], settings={"results.schema": "infer"})
    assert inferred.rows == [{"n": 1}]


def test_a_batch_handler_gets_lists_and_fails_from_its_ack_index_on() -> None:
    @handler(batch=True, schema="body string")
    def first_only(orders: list[Message]) -> BatchResult:
        return BatchResult([(order, {"body": order.body.decode()}) for order in orders], ack_index=0)

    result = run(first_only, ["a", "b", "c"], settings={"consumer.consume_message_batch_max_size": 3})
    assert [len(call.messages) for call in result.calls] == [3, 2, 1]
    assert result.rows == [{"body": "a"}, {"body": "b"}, {"body": "c"}]
    assert result.delays_s == [10.0, 10.0, 30.0]


def test_a_coroutine_function_is_a_handler_too() -> None:
    @handler(schema="size int")
    async def measured(order: Message) -> dict[str, int]:
        return {"size": len(order.body)}

    assert run(measured, ["ab"]).rows == [{"size": 2}]


def test_in_order_a_suspended_message_holds_its_queue() -> None:
    seen: list[tuple[bytes, int]] = []

    @handler(order="queue")
    def slow_start(order: Message) -> None:
        seen.append((order.body, order.reconsume_times))
        if order.body == b"b" and order.reconsume_times < 2:
            raise Suspend(500)

    result = run(slow_start, ["a", "b", "c"])
    assert seen == [(b"a", 0), (b"b", 0), (b"b", 1), (b"b", 2), (b"c", 0)]
    assert [call.at_s for call in result.calls] == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert result.unfinished == 0


def test_by_key_only_the_failed_key_waits() -> None:
    seen: list[str] = []

    @handler(order="key", key=lambda order: order.properties["account"])
    def post(order: Message) -> None:
        seen.append(order.body.decode())
        if order.body == b"a1":
            raise ValueError("no")

    accounts = [message(body, properties={"account": body[0]}) for body in ("a1", "a2", "b1")]
    result = run(post, accounts, settings={"consumer.max_reconsume_times": 2})
    assert seen == ["a1", "b1", "a1", "a1", "a2"]
    assert [dead.message.body for dead in result.dead_letters] == [b"a1"]


def test_what_is_not_committed_has_no_rows() -> None:
    @handler(order="queue", auto_commit=False, schema="body string")
    def every_second(order: Message) -> Commit | dict[str, str]:
        row = {"body": order.body.decode()}
        return Commit(row) if order.queue_offset % 2 else row

    result = run(every_second, ["a", "b", "c"], seconds=60)
    assert result.rows == [{"body": "a"}, {"body": "b"}]
    assert result.unfinished == 1


def test_tags_are_filtered_as_subscribed() -> None:
    bodies: list[bytes] = []
    both = [message("1", topic="orders", tags="paid"), message("2", topic="orders", tags="open")]
    result = run(lambda order: bodies.append(order.body), both, topics="orders:paid")
    assert (bodies, result.unfinished) == ([b"1"], 0)


def test_a_handler_that_never_ends_to_suspend_is_cut_off() -> None:
    @handler(order="queue")
    def never(_: Message) -> None:
        raise Suspend(10)

    result = run(never, ["x"])
    assert len(result.calls) == CALLS_PER_MESSAGE_MAX
    assert result.unfinished == 1


def test_setup_and_teardown_run_around_the_messages() -> None:
    story: list[str] = []

    @handler(setup=lambda: story.append("set-up"), teardown=lambda: story.append("tear-down"))
    def handle(_: Message) -> None:
        story.append("message")

    run(handle, ["x"])
    assert story == ["set-up", "message", "tear-down"]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (lambda: None, "cannot take one message: its signature is <lambda>()"),
        ("nosuch_module:handle", 'cannot find module "nosuch_module"'),
        (handler(setup=lambda: 1 / 0)(lambda _: None), "the set-up hook of handler"),
        (handler(setup=lambda: sys.exit(3))(lambda _: None), "raised SystemExit: 3 (test_rehearsal.py:"),
    ],
)
def test_what_would_keep_a_run_from_starting_is_said(target: object, says: str) -> None:
    with pytest.raises(HandlerLoadError) as raised:
        run(target, ["x"])  # type: ignore[arg-type]
    assert says in str(raised.value)


def test_a_setting_that_does_not_exist_is_said() -> None:
    with pytest.raises(UsageError, match="max_reconsume_times"):
        run(lambda _: None, ["x"], settings={"consumer.max_reconsume_time": 1})


def test_nothing_to_consume_is_said() -> None:
    with pytest.raises(UsageError, match="there is no topic to consume"):
        run(lambda _: None, [])


ORDERS = handler(topic="orders")(lambda _: None)


@pytest.mark.parametrize(
    ("target", "topics", "taken"), [(ORDERS, None, "orders"), (lambda _: None, ["ordres", "b:paid"], "b, ordres")]
)
def test_a_message_that_nobody_would_be_called_with_is_refused(
    target: object, topics: list[str] | None, taken: str
) -> None:
    with pytest.raises(UsageError, match=f"a message is of topic TopicTest, and {taken} is what this run consumes"):
        run(target, ["x"], topics=topics)  # type: ignore[arg-type]
    with Rehearsal(target, topics=topics) as rehearsal:  # type: ignore[arg-type]
        rehearsal.wind(0)
        with pytest.raises(UsageError, match=f"of topic TopicTest, and {taken} is what"):
            rehearsal.send("x")
        assert rehearsal.unfinished == 0


def test_a_rehearsal_whose_first_message_was_refused_goes_on_without_it() -> None:
    with Rehearsal(ORDERS) as rehearsal:
        rehearsal.send(message(topic="orders"), message(topic="ordres"))
        with pytest.raises(UsageError, match="of topic ordres"):
            rehearsal.settle()
        rehearsal.send(message(topic="orders"))
        rehearsal.settle()
        assert (rehearsal.result().done, rehearsal.unfinished) == (2, 0)


def test_a_broadcasting_run_has_no_retry_topic() -> None:
    settings = {"consumer.message_model": "BROADCASTING"}
    retried = message(topic="%RETRY%test")
    assert run(ORDERS, [retried]).done == 1
    with pytest.raises(UsageError, match="of topic %RETRY%test, and orders is what this run consumes"):
        run(ORDERS, [retried], settings=settings)
    with Rehearsal(ORDERS, settings=settings) as rehearsal:
        rehearsal.send(message(topic="orders"))
        rehearsal.settle()
        with pytest.raises(UsageError, match="of topic %RETRY%test"):
            rehearsal.send(retried)
        assert rehearsal.result().done == 1


def test_all_topics_that_come_before_the_start_are_consumed() -> None:
    with Rehearsal(lambda _: None) as rehearsal:
        rehearsal.send(message(topic="orders"))
        rehearsal.send(message(topic="refunds"))
        rehearsal.settle()
        assert rehearsal.result().done == 2


def test_what_no_producer_could_have_sent_is_refused() -> None:
    with pytest.raises(UsageError, match="illegal characters"):
        message(topic="or ders")
    with pytest.raises(UsageError, match=r"message\(body=...\): dict is neither bytes nor str"):
        message({"a": 1})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="keys of a message for topic TopicTest: 'o 1' has a blank"):
        message(keys=["o 1"])


def test_attempts_of_a_message_count() -> None:
    result = run(measure, [message("bad", reconsume_times=15)])
    assert result.delays_s == [7200.0]
    assert len(result.dead_letters) == 1


def test_a_handler_that_leaves_files_open_is_told_so() -> None:
    taken: list[int] = []

    @handler()
    def leaks(_message: Message) -> None:
        while True:
            taken.append(os.dup(0))

    soft, hard = getrlimit(RLIMIT_NOFILE)
    setrlimit(RLIMIT_NOFILE, (min(soft, 300), hard))
    try:
        with pytest.raises(RocketcrewError, match="are free between calls: the handler leaves files or sockets open"):
            run(leaks, [message("a")])
    finally:
        for fd in taken:
            os.close(fd)
        setrlimit(RLIMIT_NOFILE, (soft, hard))
