"""Several handlers of one group in `rocketcrew.testing.run`: what each is called with, and what becomes of the rest."""

from __future__ import annotations

import pytest

from rocketcrew import Message, handler
from rocketcrew.remoting.errors import UsageError
from rocketcrew.testing import message, run
from rocketcrew.workers.loading import HandlerLoadError

COLUMNS = "what string, order_id string"


@handler(topic="orders", tags="paid", schema=COLUMNS)
def paid(order: Message) -> dict[str, object]:
    return {"what": "paid", "order_id": order.keys}


@handler(topic="refunds")
def refund(order: Message) -> dict[str, object]:
    if order.reconsume_times == 0:
        raise ValueError("not yet")
    return {"what": "refund", "order_id": order.keys}


@handler(topic="orders", batch=True, schema=COLUMNS)
def many_orders(orders: list[Message]) -> list[dict[str, object]]:
    return [{"what": f"one of {len(orders)}", "order_id": order.keys} for order in orders]


@handler(topic="refunds", batch=True)
def many_refunds(_: list[Message]) -> None:
    raise ValueError("not yet")


def test_each_handler_gets_its_own_messages_and_their_retries() -> None:
    result = run(
        [paid, refund],
        [
            message(topic="orders", tags="paid", keys="o-1"),
            message(topic="orders", tags="open", keys="o-2"),
            message(topic="refunds", keys="o-1"),
        ],
    )
    assert result.rows == [{"what": "paid", "order_id": "o-1"}, {"what": "refund", "order_id": "o-1"}]
    assert [retried.message.topic for retried in result.retries] == ["refunds"]
    assert [call.messages[0].keys for call in result.calls] == ["o-1", "o-1", "o-1"]
    assert (result.done, result.unfinished) == (2, 0)


@pytest.mark.parametrize("topic", ["%RETRY%another", "%DLQ%another"])
def test_what_another_group_failed_with_comes_again_to_the_handler_of_its_topic(topic: str) -> None:
    @handler(topic=topic)
    def failed(order: Message) -> None:
        if order.reconsume_times < 2:
            raise ValueError("not yet")

    result = run([paid, refund, failed], [message(topic=topic, keys="o-1", properties={"RETRY_TOPIC": "orders"})])
    assert [(retried.message.topic, retried.delay_s) for retried in result.retries] == [(topic, 10), (topic, 30)]
    assert [call.messages[0].topic for call in result.calls] == [topic] * 3
    assert (result.done, result.dead_letters, result.unfinished) == (1, [], 0)


@pytest.mark.parametrize("topic", ["orders", "%RETRY%another", "%DLQ%another"])
def test_in_order_what_failed_comes_again_too(topic: str) -> None:
    """An ordinary send of a group that locks its queues would be a dead letter."""

    @handler(topic=topic, order="key")
    def failed(order: Message) -> None:
        if order.reconsume_times < 2:
            raise ValueError("not yet")

    again = message(topic=topic, keys="o-1", properties={"RETRY_TOPIC": "first"})
    result = run(failed, [again], settings={"consumer.order_on_failure": "pass"})
    assert (result.done, len(result.retries), result.dead_letters, result.unfinished) == (1, 2, [], 0)


def test_a_topic_that_no_handler_names_is_refused() -> None:
    with pytest.raises(UsageError, match="of topic other, and orders, refunds is what this run consumes"):
        run([paid, refund], [message(topic="orders", tags="paid"), message(topic="other")])


def test_batches_of_several_handlers() -> None:
    result = run(
        [many_orders, many_refunds],
        [message(topic=topic, keys=f"o-{number}") for topic in ("orders", "refunds") for number in range(3)],
        settings={"consumer.consume_message_batch_max_size": 8},
        seconds=0,
    )
    assert [row["what"] for row in result.rows] == ["one of 3"] * 3
    assert [retried.message.topic for retried in result.retries] == ["refunds"] * 3


def test_topics_that_contradict_the_handlers_are_refused() -> None:
    with pytest.raises(UsageError, match="leave them out, or give the same"):
        run([paid, refund], [message(topic="orders")], topics="orders")
    with pytest.raises(UsageError, match=r"consumer\.order"):
        run([many_orders, many_refunds], [message(topic="orders")], settings={"consumer.order": "queue"})
    with pytest.raises(HandlerLoadError, match="both take messages"):
        run(__name__, [message()], topics="orders")


def test_a_module_of_handlers_is_named_as_on_the_command_line() -> None:
    result = run(f"{__name__}:paid,refund", [message(topic="orders", tags="paid", keys="o-1")])
    assert result.rows == [{"what": "paid", "order_id": "o-1"}]
