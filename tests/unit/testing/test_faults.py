"""The broker of the test kit: topics and groups of a test's own, planted faults, kills, and a look into it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketcrew import OutgoingMessage, SyncProducer
from rocketcrew.remoting.errors import BrokerError, RocketcrewError, UsageError
from rocketcrew.testing import LocalBroker


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker() as made:
        yield made


@pytest.fixture
def producer(broker: LocalBroker) -> Iterator[SyncProducer]:
    with SyncProducer(broker.name_server, send_timeout_ms=60_000) as made:  # tries again have their time on any machine
        yield made


def test_each_topic_and_group_is_the_tests_own(broker: LocalBroker, producer: SyncProducer) -> None:
    first, second = broker.topic("orders"), broker.topic("orders", queues=1)
    assert first != second
    assert broker.group() != broker.group()
    producer.send(OutgoingMessage(first, b"one", tags="paid", keys="o-1"))
    assert broker.messages(second) == []
    (found,) = broker.messages(first)
    assert (found.body, found.tags, found.keys, found.topic) == (b"one", "paid", "o-1", first)


def test_a_refused_send_is_tried_again_so_often_as_planted(broker: LocalBroker, producer: SyncProducer) -> None:
    topic = broker.topic()
    with broker.faults.refuse("SEND_MESSAGE_V2", times=2) as fault:
        producer.send(OutgoingMessage(topic, b"one"))
    assert fault.hits == 2
    assert len(broker.messages(topic)) == 1


def test_a_refusal_has_the_code_that_is_asked_for(broker: LocalBroker, producer: SyncProducer) -> None:
    topic = broker.topic()
    broker.faults.refuse("SEND_MESSAGE_V2", times=None, response="NO_PERMISSION", remark="not you")
    with pytest.raises(BrokerError, match="not you"):
        producer.send(OutgoingMessage(topic, b"one"))
    broker.faults.clear()
    producer.send(OutgoingMessage(topic, b"one"))


def test_a_dropped_request_is_never_answered(broker: LocalBroker, producer: SyncProducer) -> None:
    topic = broker.topic()
    producer.send(OutgoingMessage(topic, b"before"))  # what comes next has its whole time for the send itself
    with broker.faults.drop("SEND_MESSAGE_V2", times=None) as fault, pytest.raises(RocketcrewError):
        producer.send(OutgoingMessage(topic, b"one"), timeout_ms=100)
    fault.wait()
    assert [each.body for each in broker.messages(topic)] == [b"before"]


def test_a_delayed_request_arrives_whole(broker: LocalBroker, producer: SyncProducer) -> None:
    topic = broker.topic()
    large = bytes(range(256)) * 8
    with broker.faults.delay("SEND_MESSAGE_V2", delay_ms=20) as fault:
        producer.send_many([OutgoingMessage(topic, large), OutgoingMessage(topic, b"small")])
    assert fault.hits == 1
    assert sorted(each.body for each in broker.messages(topic)) == [large, b"small"]


def test_requests_to_the_name_server_are_refused_too(broker: LocalBroker, producer: SyncProducer) -> None:
    topic = broker.topic()
    with (
        broker.faults.refuse("GET_ROUTEINFO_BY_TOPIC") as fault,
        pytest.raises(RocketcrewError, match="planted by a test"),
    ):
        producer.send(OutgoingMessage(topic, b"one"))
    assert fault.hits == 1


def test_a_killed_broker_comes_back_with_what_it_had_acknowledged(broker: LocalBroker, producer: SyncProducer) -> None:
    topic, before = broker.topic(), broker.name_server
    producer.send(OutgoingMessage(topic, b"one"))
    broker.restart()
    assert broker.name_server == before
    assert [each.body for each in broker.messages(topic)] == [b"one"]
    producer.send(OutgoingMessage(topic, b"two"))


def test_what_means_nothing_is_said(broker: LocalBroker) -> None:
    with pytest.raises(UsageError, match="code='SEND'"):
        broker.faults.refuse("SEND")
    with pytest.raises(UsageError, match="times=0"):
        broker.faults.drop("PULL_MESSAGE", times=0)
    with pytest.raises(UsageError, match="for name servers"):
        broker.faults.delay("GET_ROUTEINFO_BY_TOPIC", delay_ms=5)
    with pytest.raises(UsageError, match="cannot be made"):
        broker.topic("or ders")


def test_a_wait_for_a_fault_that_does_not_come_ends(broker: LocalBroker) -> None:
    fault = broker.faults.refuse("PULL_MESSAGE")
    with pytest.raises(TimeoutError, match="PULL_MESSAGE: 0 of 1 requests came"):
        fault.wait(timeout_s=0)
