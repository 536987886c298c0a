"""`LocalBroker`: a name that nobody has is an error of the test, and no list without messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_rocketcrew import CREW_SETTINGS
from rocketcrew import SyncProducer
from rocketcrew.conf.settings import load
from rocketcrew.remoting.errors import UsageError
from rocketcrew.supervisor.member.access import access_of
from rocketcrew.testing import LocalBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker() as made:
        made.topic("orders")
        made.group("billing")
        yield made


WRONG = {
    "ordrs-1": r"no topic ordrs-1 \(one is made by .*\): did you mean orders-1\?$",
    "zzz": "no topic zzz .*; there are orders-1",
    "%DLQ%biling-2": r"no group biling-2 \(one is known by .*\): did you mean billing-2\?$",
    "%RETRY%zzz": "no group zzz .*; there are billing-2",
}


@pytest.mark.parametrize("topic", WRONG)
def test_messages_of_a_topic_that_is_not_there_are_an_error_with_the_names_that_are(
    broker: LocalBroker, topic: str
) -> None:
    with pytest.raises(UsageError, match=WRONG[topic]):
        broker.messages(topic)


def test_dead_letters_of_a_group_that_nobody_knows_are_an_error(broker: LocalBroker) -> None:
    with pytest.raises(UsageError, match=r"no group zzz .*; there are billing-2"):
        broker.dead_letters("zzz")


def test_what_is_there_and_empty_is_an_empty_list() -> None:
    with LocalBroker() as broker:
        topic, group = broker.topic(), broker.group()
        assert broker.messages(topic) == []
        assert broker.dead_letters(group) == []
        assert broker.messages(f"%RETRY%{group}") == []
        broker.restart()
        assert broker.messages(topic) == []
        assert broker.dead_letters(group) == []


def test_a_topic_that_its_first_message_made_is_there() -> None:
    with LocalBroker() as broker, SyncProducer(broker.name_server) as producer:
        producer.send("mine", b"x")
        assert [message.body for message in broker.messages("mine")] == [b"x"]


def test_what_the_fixture_crew_sets_goes_together_and_waits_little_for_a_handler_that_hangs() -> None:
    taken = load(dict(CREW_SETTINGS), {}, None).supervisor
    assert max(taken.stop_deadline_ms, taken.drain_deadline_ms) == 2000


def test_a_broker_of_a_test_is_reached_whatever_way_the_configuration_has_into_a_cluster(
    broker: LocalBroker, tmp_path: Path
) -> None:
    file = tmp_path / "rocketcrew.toml"
    file.write_text(
        '[cluster]\nnamesrv_domain = "ns.invalid"\nvip_channel_enabled = true\n[security]\ntls_enable = true\n'
        'access_key = "a"\nsecret_key = "b"\n'
    )
    settings = load({**broker.settings, "cluster.name_servers": broker.name_server}, {}, file)
    assert access_of(settings) == access_of(load({"cluster.name_servers": broker.name_server}, {}, None))


def test_the_producer_of_the_fixtures_sends_from_a_coroutine_too(rocketmq: LocalBroker, producer: SyncProducer) -> None:
    topic = rocketmq.topic()

    async def test() -> None:
        producer.send(topic, b"x")

    asyncio.run(test())
    assert [message.body for message in rocketmq.messages(topic)] == [b"x"]
