"""What `doctor` finds out of the group's settings at its brokers, and of the routes of its topics."""

from __future__ import annotations

import asyncio

import pytest

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli.checkup_facts import Looking
from rocketcrew.cli.checkups import Facts, Finding, Level, findings
from rocketcrew.client.admin import Admin
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.routes import refuse_static
from rocketcrew.conf.settings import load
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig, TopicConfig
from rocketcrew.remoting.bodies import QueueData, TopicQueueMappingInfo, TopicRouteData
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.names import OFFSET_RESET
from rocketcrew.remoting.namespaces import wrap
from rocketcrew.source.searching import pull_request
from rocketcrew.supervisor.member.access import access_of, in_namespace


def found(
    group: SubscriptionGroupConfig | None, *, makes: bool, retry_topic: bool, namespace: str = ""
) -> list[Finding]:
    async def look() -> list[Finding]:
        config = BrokerConfig(auto_create_group=makes)
        async with EmbeddedBroker(config=config) as broker, open_cluster(broker.name_server) as cluster:
            admin, named = Admin(cluster), list[str]()
            for topic in ("orders", *(["%RETRY%g"] if retry_topic else [])):
                await admin.create_topic(broker.address, TopicConfig(wrap(namespace, topic)))
            if group is not None:
                await admin.create_group(broker.address, group)
            broker.intercepts.append(
                lambda command: (
                    named.append(command.fields["group"])
                    if command.code == RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
                    else None
                )
            )
            told = {"cluster.name_servers": broker.name_server, "consumer.group": "g", "consumer.topics": "orders",
                    "cluster.namespace": namespace}  # fmt: skip
            settings = in_namespace(load(told, {}, None))
            facts = await Looking(cluster, access_of(settings), settings).into(Facts())
            assert retry_topic or not makes or not named, "a broker may make the group that it is asked about"
            return [one for one in findings(facts) if one.check in ("group", "retries") and one.level is not Level.FINE]

    return asyncio.run(look())


@pytest.mark.parametrize("retry_topic", [False, True])
def test_a_group_that_the_broker_may_not_make_is_a_fault(retry_topic: bool) -> None:
    (one,) = found(None, makes=False, retry_topic=retry_topic)
    assert (one.level, one.check) == (Level.FAULT, "group")
    assert one.found.startswith(
        "g is not known to embedded, which may not make groups (autoCreateSubscriptionGroup=false)"
    )
    assert one.todo == "`mqadmin updateSubGroup -g g -c CLUSTER`"


def test_the_command_names_the_group_as_brokers_know_it() -> None:
    (one,) = found(None, makes=False, retry_topic=False, namespace="n")
    assert (one.found.partition(" ")[0], one.todo) == ("g", "`mqadmin updateSubGroup -g n%g -c CLUSTER`")


@pytest.mark.parametrize("retry_topic", [False, True])
@pytest.mark.parametrize("makes", [False, True])
def test_one_that_is_there_or_is_made_is_fine(*, makes: bool, retry_topic: bool) -> None:
    assert found(SubscriptionGroupConfig("g"), makes=makes, retry_topic=retry_topic) == []
    assert not makes or found(None, makes=makes, retry_topic=retry_topic) == []


def test_a_group_whose_failed_messages_are_dropped_is_warned_of() -> None:
    (one,) = found(SubscriptionGroupConfig("g", retry_queue_nums=0), makes=True, retry_topic=True)
    assert (one.level, one.check) == (Level.WARNING, "retries")
    assert one.found.startswith("g has retryQueueNums 0 on embedded")
    assert one.todo == "`mqadmin updateSubGroup -g g -q 1 -c CLUSTER`"


def test_a_static_topic_is_a_fault_in_the_words_in_which_a_start_refuses_it() -> None:
    route = TopicRouteData((QueueData("b", 2, 2, 6),), topic_queue_mapping_by_broker={"b": TopicQueueMappingInfo(4)})

    def mapped(command: Command) -> Command | None:
        is_route = command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and command.fields["topic"] == "orders"
        return command.response(0, body=route.encode()) if is_route else None

    async def look() -> list[Finding]:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            broker.name_server_intercepts.append(mapped)
            told = {"cluster.name_servers": broker.name_server, "consumer.group": "g", "consumer.topics": "orders"}
            settings = load(told, {}, None)
            facts = await Looking(cluster, access_of(settings), settings).into(Facts())
            return [one for one in findings(facts) if one.check == "topic"]

    (one,) = asyncio.run(look())
    with pytest.raises(UsageError) as refused:
        refuse_static("orders", route)
    assert (one.level, f"{one.found}: {one.todo}") == (Level.FAULT, str(refused.value))


def test_it_looks_whether_the_group_may_read_and_leaves_an_operators_reset_to_the_members() -> None:
    """A pull at the queue's end was told it, and no member was then (5.2)."""
    pulled: list[str] = []

    def noted(command: Command) -> None:
        if command.code == RequestCode.PULL_MESSAGE and command.fields["consumerGroup"] == "g":
            pulled.append(command.fields["queueId"])

    async def look(*, consumes: bool) -> list[Finding]:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            admin, operations = Admin(cluster), Operations(cluster)
            for topic in ("orders", "%RETRY%g"):
                await admin.create_topic(broker.address, TopicConfig(topic))
            await admin.create_group(broker.address, SubscriptionGroupConfig("g", consume_enable=consumes))
            (mq, *_) = await cluster.queues_to_read("orders", refresh=True)
            await operations.update_consumer_offset("g", mq, 0)
            await admin.reset_offsets("g", "orders", 0)
            told = {"cluster.name_servers": broker.name_server, "consumer.group": "g", "consumer.topics": "orders"}
            settings = load(told, {}, None)
            broker.intercepts.append(noted)
            facts = await Looking(cluster, access_of(settings), settings).into(Facts())
            broker.intercepts.clear()
            answer = await operations.pull(broker.address, pull_request("g", mq, 0, 1))
            assert (answer.remark == OFFSET_RESET) is consumes
            return [one for one in findings(facts) if one.check in ("topic", "retry topic")]

    assert [one.level for one in asyncio.run(look(consumes=True))] == [Level.FINE] * 2
    refused = asyncio.run(look(consumes=False))
    assert [(one.level, "no permission" in one.found) for one in refused] == [(Level.FAULT, True)] * 2
    assert set(pulled) == {"-1"}
