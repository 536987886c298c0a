"""What a route means: queues and addresses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rocketcrew.client.routes import (
    QUEUES_MAX,
    BrokerTable,
    default_route,
    in_both,
    is_another,
    queues_to_read,
    queues_to_write,
)
from rocketcrew.remoting.bodies import BrokerData, QueueData, TopicQueueMappingInfo, TopicRouteData
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.queues import MessageQueue


def names(queues):
    return [f"{queue.broker_name}-{queue.queue_id}" for queue in queues]


ROUTE = TopicRouteData(
    queue_datas=(QueueData("b", 2, 3, 6), QueueData("a", 2, 1, 6), QueueData("r", 2, 2, 4), QueueData("w", 2, 2, 2)),
    broker_datas=(
        BrokerData("a", {0: "a:1", 1: "a:2"}),
        BrokerData("b", {1: "b:2"}),
        BrokerData("r", {0: "r:1"}),
        BrokerData("w", {0: "w:1"}),
    ),
)


def test_readable_queues_are_sorted_and_need_the_read_permission():
    assert names(queues_to_read("t", ROUTE)) == ["a-0", "a-1", "b-0", "b-1", "r-0", "r-1"]
    assert queues_to_read("t", ROUTE)[0] == MessageQueue("t", "a", 0)


def test_writable_queues_need_the_write_permission_and_a_master():
    assert names(queues_to_write("t", ROUTE)) == ["a-0", "w-0", "w-1"]


@pytest.mark.parametrize("setting", ["b:65536;c:65536", "b:" + "9" * 5000, "b:0000000000004;c:70000"])
def test_the_setting_of_an_ordered_topic_names_no_more_queues_than_a_topic_has(setting):
    route = TopicRouteData(ROUTE.queue_datas, ROUTE.broker_datas, order_topic_conf=setting)
    assert len(queues_to_write("t", route)) == QUEUES_MAX


def test_ordered_topics_have_the_queues_of_their_setting():
    route = TopicRouteData(ROUTE.queue_datas, ROUTE.broker_datas, order_topic_conf="b:2;c:1;junk;d:x;")
    assert names(queues_to_write("t", route)) == ["b-0", "b-1", "c-0"]


@pytest.mark.parametrize("queues", [queues_to_read, queues_to_write])
def test_a_static_topic_is_neither_read_nor_written(queues):
    route = replace(ROUTE, topic_queue_mapping_by_broker={"b": TopicQueueMappingInfo(4), "a": TopicQueueMappingInfo(4)})
    with pytest.raises(UsageError, match=r"topic t is a static topic .* brokers a, b.*: take an ordinary topic"):
        queues("t", route)


def test_a_default_route_is_limited():
    route = default_route(TopicRouteData((QueueData("a", 8, 8, 7), QueueData("b", 2, 8, 7)), ROUTE.broker_datas), 4)
    assert [(data.read_queue_nums, data.write_queue_nums) for data in route.queue_datas] == [(4, 4), (2, 2)]


def test_addresses_by_name_and_id():
    table = BrokerTable([ROUTE])
    assert table.address("a") == "a:1"
    assert table.address("a", 1) == "a:2"
    assert table.address("a", 2) is None
    assert table.address("a", 2, only_this=False) == "a:1"
    assert table.address("b") is None
    assert table.address("b", only_this=False) == "b:2"
    assert table.address("nobody", only_this=False) is None
    assert table.all_addresses() == ["a:1", "a:2", "b:2", "r:1", "w:1"]
    assert table.all_addresses(masters_only=True) == ["a:1", "r:1", "w:1"]
    assert table.names == ["a", "b", "r", "w"]


def test_of_routes_that_name_one_broker_the_last_says_all_of_its_addresses():
    moved = TopicRouteData(broker_datas=(BrokerData("a", {0: "a:9"}),))
    assert dict(BrokerTable([ROUTE, moved]).ids("a")) == {0: "a:9"}
    assert dict(BrokerTable([moved, ROUTE]).ids("a")) == {0: "a:1", 1: "a:2"}


@pytest.mark.parametrize(
    ("now", "another", "another_here"),
    [
        ([BrokerData("a", {0: "a:9"}, "c"), BrokerData("b", {0: "b:9"}, "c")], True, False),
        (
            [BrokerData("a", {0: "a:9"}, "c"), BrokerData("b", {0: "b:1"}, "c")],
            False,
            False,
        ),  # one of two has failed over
        ([BrokerData("a", {0: "a:2"}, "c")], False, False),  # its slave has become the master
        ([BrokerData("a", {0: "a:1"}, "other")], True, False),  # the address has had another owner since
        ([BrokerData("a", {0: "a:9"}, "other")], True, True),
        ([BrokerData("a", {0: "a:1"}, None)], False, False),
        ([BrokerData("x", {0: "x:1"}, "other")], None, None),  # no queue of it has the name of one of ours
        ([], None, None),
    ],
)
def test_brokers_of_the_same_names_are_others_where_none_has_an_address_that_it_had(now, another, another_here):
    before = [BrokerData("a", {0: "a:1", 1: "a:2"}, "c"), BrokerData("b", {0: "b:1"}, "c")]
    pairs = in_both(before, {data.broker_name: data for data in now})
    assert is_another(pairs, same_place=False) is another
    assert is_another(pairs, same_place=True) is another_here
