"""Names as Java's Validators see them, and queue selection."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from rocketcrew.client.outgoing import OutgoingMessage, SendOptions, prepare
from rocketcrew.client.selection import TOPICS_MAX, RoundRobin, by_key
from rocketcrew.client.validation import check_group, check_topic, check_topic_to_send
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.queues import MessageQueue


@pytest.mark.parametrize("topic", ["t", "A-z_0|%9", "x" * 127, "%RETRY%" + "g" * 248, "%DLQ%g"])
def test_good_topics(topic):
    check_topic(topic)
    check_topic_to_send(topic)


@pytest.mark.parametrize("topic", ["", "  ", "x" * 128, "%RETRY%" + "g" * 249, "a.b", "a b", "ü", "a\n"])
def test_bad_topics(topic):
    with pytest.raises(UsageError, match="topic"):
        check_topic(topic)


@pytest.mark.parametrize("group", ["", "a.b", "x" * 256, "g\n"])
def test_bad_groups(group):
    with pytest.raises(UsageError, match="group"):
        check_group(group)


@pytest.mark.parametrize(
    "given", [{"body": "a\udc80"}, {"tags": "\ud800"}, {"keys": "\ud800"}, {"properties": {"a": "\ud800"}}]
)
def test_half_a_character_cannot_be_sent(given):
    message = OutgoingMessage("orders", **{"body": b"x", **given})
    with pytest.raises(UsageError, match="message for topic orders can't be written as UTF-8: surrogates not allowed"):
        prepare(message, SendOptions("g", "TBW102", 4), unique_id="1", now_ms=0)


def queues(spec):
    return [MessageQueue("t", name, number) for name, count in spec.items() for number in range(count)]


def test_turns_go_round_and_leave_out_the_failed_broker():
    turns = RoundRobin(lambda n: 0)
    all_queues = queues({"a": 2, "b": 1})
    assert [turns.select("t", all_queues)[1:] for _ in range(4)] == [("a", 0), ("a", 1), ("b", 0), ("a", 0)]
    assert turns.select("t", all_queues, "a").broker_name == "b"
    assert turns.select("t", all_queues, "b").broker_name == "a"
    assert turns.select("t", queues({"a": 2}), "a").broker_name == "a"  # no other one


def test_turns_are_bounded():
    turns = RoundRobin(lambda n: 0)
    for number in range(TOPICS_MAX + 10):
        turns.select(f"t{number}", queues({"a": 1}))
    assert len(turns._turns) <= TOPICS_MAX


@pytest.mark.parametrize(("key", "count", "index"), [("a", 4, 1), ("", 4, 0), ("polygenelubricants", 7, 2)])
def test_keys_choose_as_java_does(key, count, index):
    # "polygenelubricants" has the hash -2**31; Java: abs(-2147483648 % 7) = 2.
    assert by_key(key)(queues({"a": count})).queue_id == index


def test_a_message_can_be_subclassed() -> None:
    @dataclass(frozen=True)
    class Order(OutgoingMessage):
        price: int = 0

    assert replace(Order("orders", b"x"), price=3).price == 3
    assert Order("orders", b"x").tags == ""
