"""A handler tried on dead letters in this process: what is said of each, and that none holds up the next."""

from __future__ import annotations

import bdb
from typing import Any

import pytest

from rocketcrew import BatchResult, Retry, Send, Suspend, handler
from rocketcrew.cli.changing import StoppedError
from rocketcrew.cli.letters import Letter, per_second
from rocketcrew.cli.trying import Tried, tried
from rocketcrew.conf.settings import Settings, load
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage
from rocketcrew.workers.message import Message

MQ = MessageQueue("%DLQ%billing", "broker-a", 0)


def settings(**more: object) -> Settings:
    return load({"consumer.group": "billing", **more}, {}, None)


def letter(offset: int, body: bytes = b"x", topic: str = "orders", **properties: str) -> Letter:
    given = {"UNIQ_KEY": f"id-{offset}", "RETRY_TOPIC": topic, "KEYS": f"o-{offset}",
             "ROCKETCREW_ERROR": "KeyError: 'price' (shop.py:7)", "RECONSUME_TIME": "17", **properties}  # fmt: skip
    raw = encode_properties(given).encode()
    return Letter(MQ, StoredMessage(MQ.topic, body, raw, queue_offset=offset, reconsume_times=16))


def through(
    target: Any, letters: list[Letter], topics: tuple[str, ...] = (), *, own: Settings | None = None
) -> list[Tried]:
    return list(tried(target, letters, own or settings(), topics, debug=False))


@handler(schema="key string, size int")
def count(message: Message) -> dict[str, object] | None:
    if message.body == b"bad":
        raise KeyError("price")
    if message.body == b"later":
        raise Retry(delay_level=5, reason="not paid yet")
    if message.body == b"exit":
        raise SystemExit(3)
    return None if message.body == b"none" else {"key": message.keys, "size": len(message.body)}


def test_each_letter_has_its_own_result_and_a_failure_says_where() -> None:
    bodies = [b"abc", b"bad", b"none", b"later", b"exit", b"ab"]
    found = through(count, [letter(number, body) for number, body in enumerate(bodies)])
    assert [one.letter.message.queue_offset for one in found] == [0, 1, 2, 3, 4, 5]
    assert [one.rows for one in found] == [({"key": "o-0", "size": 3},), (), (), (), (), ({"key": "o-5", "size": 2},)]
    assert [one.error.partition(" (")[0] for one in found] == [
        "", "KeyError: 'price'", "", "not paid yet", "SystemExit: 3", "",
    ]  # fmt: skip
    assert found[1].error.startswith("KeyError: 'price' (test_trying.py:")


def test_the_handler_sees_a_first_attempt_of_the_first_topic_without_what_the_end_left() -> None:
    seen: list[Message] = []

    def look(message: Message) -> None:
        seen.append(message)

    assert through(look, [letter(4, b"abc", "refunds", colour="red")])[0].error == ""
    (one,) = seen
    assert (one.topic, one.reconsume_times, one.keys, bytes(one.body)) == ("refunds", 0, "o-4", b"abc")
    assert one.properties["colour"] == "red"
    assert not {"ROCKETCREW_ERROR", "RECONSUME_TIME"} & one.properties.keys()


def test_a_handler_is_set_up_once_for_the_letters_of_a_topic_and_torn_down() -> None:
    events: list[str] = []

    def look(message: Message) -> None:
        events.append(message.topic)

    made = handler(setup=lambda: events.append("up"), teardown=lambda: events.append("down"))(look)
    through(made, [letter(1, topic="b"), letter(2, topic="a"), letter(3, topic="b")])
    assert events == ["up", "a", "down", "up", "b", "b", "down"]


@pytest.mark.parametrize("order", ["queue", "key"])
def test_a_failure_of_an_ordered_handler_does_not_hold_the_next_letter(order: str) -> None:
    @handler(order=order)
    def fail_first(message: Message) -> None:
        if message.body == b"bad":
            raise KeyError("price")

    letters = [letter(number, body, KEYS="one") for number, body in enumerate([b"bad", b"fine", b"bad"])]
    found = through(fail_first, letters)
    assert [bool(one.error) for one in found] == [True, False, True]


def test_an_ordered_handler_that_wants_to_wait_has_not_finished() -> None:
    @handler(order="queue")
    def wait(message: Message) -> object:
        return Suspend(1000) if message.body == b"wait" else None

    found = through(wait, [letter(1, b"wait"), letter(2)])
    assert found[0].error
    assert len(found) == 2


def test_a_batch_handler_gets_one_letter_at_a_time_and_may_refuse_it() -> None:
    @handler(batch=True)
    def some(messages: list[Message]) -> object:
        return BatchResult(ack_index=-1) if messages[0].body == b"bad" else None

    found = through(some, [letter(1, b"bad"), letter(2)])
    assert [bool(one.error) for one in found] == [True, False]


def test_what_a_handler_sends_is_counted_and_not_a_letter() -> None:
    def forward(message: Message) -> object:
        return [Send("shipped", b"1"), Send("shipped", b"2")]

    (one,) = through(handler(sends=True)(forward), [letter(1)])
    assert (one.error, one.sends, one.results) == ("", 2, "2 messages")


def test_a_letter_that_the_handler_does_not_take_says_so() -> None:
    found = through(
        count, [letter(1, TAGS="late"), letter(2, TAGS="paid"), letter(3, topic="refunds")], ("orders:paid",)
    )
    assert "not called" in found[0].error
    assert "topic orders, tag late" in found[0].error
    assert not found[1].error
    assert "topic refunds" in found[2].error


def test_settings_of_the_configuration_that_decide_about_rows_hold() -> None:
    own = settings(**{"results.enabled": False})
    assert through(count, [letter(1)], own=own)[0].rows == ()


def test_an_interrupt_inside_the_handler_is_none_of_its_failures() -> None:
    def hit(message: Message) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        through(hit, [letter(1)])


def test_leaving_the_debugger_at_a_breakpoint_stops() -> None:
    def hit(message: Message) -> None:
        raise bdb.BdbQuit

    with pytest.raises(StoppedError):
        through(hit, [letter(1)])


def test_a_body_that_cannot_be_opened_is_the_letters_failure() -> None:
    broken = StoredMessage(MQ.topic, b"junk", letter(1).message.raw_properties, queue_offset=1, sysflag=1)
    found = through(count, [Letter(MQ, broken), letter(2)])
    assert [bool(one.error) for one in found] == [True, False]


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (Tried(letter(1)), "broker-a/0/1  fine"),
        (Tried(letter(1), rows=({"a": 1},)), 'broker-a/0/1  fine, 1 row: [{"a": 1}]'),
        (Tried(letter(1), rows=({"a": 1},), sends=2), 'broker-a/0/1  fine, 1 row and 2 messages: [{"a": 1}]'),
        (Tried(letter(1), "KeyError: 'price' (shop.py:8)"), "broker-a/0/1  failed: KeyError: 'price' (shop.py:8)"),
    ],
)
def test_a_result_is_one_line(one: Tried, text: str) -> None:
    assert one.text() == text


@pytest.mark.parametrize(
    ("text", "rate"), [("50", 50.0), ("50/s", 50.0), ("0.5 / s", 0.5), ("30/m", 0.5), ("36/h", 0.01)]
)
def test_rates(text: str, rate: float) -> None:
    assert per_second(text) == rate


@pytest.mark.parametrize("text", ["", "0", "-1", "fast", "5/d", "1e3", "nan"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="50/s"):
        per_second(text)
