"""Streams without Spark: where they begin, go on, and what they tell a group; called as Spark calls them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import structlog.testing
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.access import Access
from rocketcrew.client.admin import Admin
from rocketcrew.client.operations import Operations
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.sync import SyncProducer, run_with_cluster
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig, TopicConfig
from rocketcrew.remoting.bodies import CONSUME_ACTIVELY, ConsumerData, HeartbeatData
from rocketcrew.remoting.codes import PERM_WRITE, RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import UsageError
from rocketcrew.source.batch_reader import BatchReader, RangePartition
from rocketcrew.source.errors import DataLossError
from rocketcrew.source.offsets import BEGIN, from_json, to_json
from rocketcrew.source.planning import Range
from rocketcrew.source.pulling import Reading
from rocketcrew.source.reading import read_options
from rocketcrew.source.stream_reader import StreamReader

from .conftest import QUEUES, TOPIC, offsets, reading, send


def committed(access: Access, group: str) -> list[int | None]:
    async def ask(cluster: Any) -> list[int | None]:
        await cluster.route(TOPIC)
        return [
            await Operations(cluster).query_consumer_offset(group, mq, set_zero_if_not_found=False) for mq in QUEUES
        ]

    return run_with_cluster(access, ask)


def stream(access: Access, clock: Any, **options: str) -> StreamReader:
    return StreamReader(reading(access, streaming=True, **options), clock)


def counts(start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    first, last = start[TOPIC]["embedded"], end[TOPIC]["embedded"]
    return [last[queue] - first[queue] for queue in sorted(last)]


def test_a_stream_begins_and_goes_on(filled: Access, clock: Any) -> None:
    reader = stream(filled, clock)
    start = reader.initialOffset()
    assert counts(start, reader.latestOffset(start, ReadAllAvailable())) == [0, 0, 0, 0]
    send(filled, 2)
    clock.now_s += 1
    end = reader.latestOffset(start, ReadAllAvailable())
    assert counts(start, end) == [2, 2, 2, 2]
    assert from_json(reader.reportLatestOffset() or {}) == from_json(end)
    found = [offset for part in reader.partitions(start, end) for offset in offsets(reader.read(part))]
    assert sorted(found) == sorted([10, 11] * 4)
    assert reader.partitions(end, end) == []


def test_limits_of_a_trigger(filled: Access, clock: Any) -> None:
    reader = stream(filled, clock, startingOffsets="earliest", maxOffsetsPerTrigger="8", minOffsetsPerTrigger="4")
    assert reader.getDefaultReadLimit() == ReadMaxRows(8)
    start = reader.initialOffset()
    clock.now_s += 1
    assert counts(start, reader.latestOffset(start, ReadMaxRows(8))) == [2, 2, 2, 2]
    patient = stream(filled, clock, startingOffsets="earliest", minOffsetsPerTrigger="5", maxTriggerDelay="10s")
    assert patient.getDefaultReadLimit() == ReadMinRows(5)
    start = patient.initialOffset()
    first = patient.latestOffset(start, ReadMinRows(5))
    assert counts(start, first) == [10, 10, 10, 10]
    send(filled, 1)
    clock.now_s += 9
    assert patient.latestOffset(first, ReadMinRows(5)) == first
    clock.now_s += 1
    assert counts(first, patient.latestOffset(first, ReadMinRows(5))) == [1, 1, 1, 1]
    assert stream(filled, clock).getDefaultReadLimit() == ReadAllAvailable()


def test_available_now_reads_to_where_the_queues_were_and_no_further(filled: Access, clock: Any) -> None:
    reader = stream(filled, clock, startingOffsets="earliest", minOffsetsPerTrigger="1000")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    send(filled, 5)
    end = reader.latestOffset(start, ReadMinRows(1000))
    assert counts(start, end) == [10, 10, 10, 10]
    assert reader.latestOffset(end, ReadMinRows(1000)) == end


def test_a_group_hears_how_far_the_query_is_and_never_where_it_began(filled: Access, clock: Any) -> None:
    reader = stream(filled, clock, startingOffsets="earliest", group="lag")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert committed(filled, "lag") == [None] * 4
    clock.now_s += 1
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert committed(filled, "lag") == [10] * 4
    # Lag tools know a group by its retry topic; and no member is left behind.
    assert run_with_cluster(filled, lambda cluster: cluster.route("%RETRY%lag")).queue_datas
    assert run_with_cluster(filled, lambda cluster: Operations(cluster).consumer_ids("lag", TOPIC)) == []
    silent = stream(filled, clock, startingOffsets="group", group="lag")
    assert counts(start, silent.initialOffset()) == [10] * 4
    send(filled, 1)
    begin = silent.initialOffset()
    for _ in range(3):
        clock.now_s += 1
        begin = silent.latestOffset(begin, ReadAllAvailable())
    assert counts(start, begin) == [11] * 4
    assert committed(filled, "lag") == [10] * 4, "it only begins at that group's"


def test_a_group_that_has_members_keeps_its_offsets_also_when_these_are_gone(filled: Access, clock: Any) -> None:
    hello = HeartbeatData("somebody", (), (ConsumerData("crew", CONSUME_ACTIVELY),))

    async def comes(cluster: Any) -> str:
        address: str = await cluster.address_of(next(iter(await cluster.queues_to_read(TOPIC))))
        await Operations(cluster).heartbeat(address, hello)
        end = reader.latestOffset(start, ReadAllAvailable())
        clock.now_s += 1
        with structlog.testing.capture_logs() as lines:
            assert await asyncio.to_thread(reader.latestOffset, end, ReadAllAvailable()) == end
        assert [line["event"] for line in lines] == ["group_has_members"]
        return address

    reader = stream(filled, clock, startingOffsets="earliest", group="crew")
    start = reader.initialOffset()
    run_with_cluster(filled, comes)
    assert run_with_cluster(filled, lambda cluster: Operations(cluster).consumer_ids("crew", TOPIC)) == []
    send(filled, 1)
    for _ in range(2):
        clock.now_s += 1
        start = reader.latestOffset(start, ReadAllAvailable())
    assert committed(filled, "crew") == [None] * 4


def test_offsets_are_not_reported_where_nobody_says_who_consumes(
    filled: Access, broker: EmbeddedBroker, clock: Any
) -> None:
    def refuse(command: Command) -> Command | None:
        asked = command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP and refused
        return command.response(ResponseCode.NO_PERMISSION, remark="not you") if asked else None

    refused = True
    broker.intercepts.append(refuse)
    reader = stream(filled, clock, startingOffsets="earliest", group="lag")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            clock.now_s += 1
            reader.latestOffset(end, ReadAllAvailable())
    assert [line["event"] for line in lines] == ["group_offset_not_reported"]
    assert committed(filled, "lag") == [None] * 4
    refused = False
    send(filled, 1)
    for _ in range(2):
        clock.now_s += 1
        end = reader.latestOffset(end, ReadAllAvailable())
    assert committed(filled, "lag") == [11] * 4


def test_a_topic_whose_brokers_are_away_for_a_while_stays_where_it_is(filled: Access, clock: Any) -> None:
    reader = stream(filled, clock, startingOffsets="earliest")
    start = reader.initialOffset()
    without = StreamReader(reading(filled, streaming=True, subscribe="not-there-now"), clock)
    with pytest.raises(UsageError, match="topic not-there-now does not exist"):
        without.latestOffset(without.initialOffset(), ReadAllAvailable())
    assert without.latestOffset(start, ReadAllAvailable()) == start


def with_queues(access: Access, count: int) -> None:
    async def change(cluster: Any) -> None:
        await Admin(cluster).create_topic_everywhere(TopicConfig(TOPIC, count, count))

    run_with_cluster(access, change)


def test_a_queue_that_left_the_route_is_told_once_with_what_waits_in_it(filled: Access, clock: Any) -> None:
    reader = stream(filled, clock, startingOffsets="earliest", maxOffsetsPerTrigger="8")
    begin = reader.latestOffset(reader.initialOffset(), ReadMaxRows(8))
    with_queues(filled, 3)
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            clock.now_s += 1
            begin = reader.latestOffset(begin, ReadMaxRows(9))
    assert [(line["event"], line["queue_id"], line["offset"]) for line in lines] == [("queue_away", 3, 2)]
    with_queues(filled, 4)
    for _ in range(4):
        clock.now_s += 1
        begin = reader.latestOffset(begin, ReadMaxRows(9))
    assert set(from_json(begin).values()) == {10}


def move_group(access: Access, offset: int) -> None:
    async def moved(cluster: Any) -> None:
        (address,) = await Admin(cluster).master_addresses()
        await Admin(cluster).create_group(address, SubscriptionGroupConfig("crew"))
        for mq in await cluster.queues_to_read(TOPIC):
            await Operations(cluster).update_consumer_offset("crew", mq, offset)

    run_with_cluster(access, moved)


@pytest.mark.parametrize("place", ["group", "timestamp"])
def test_where_a_query_begins_stays_though_the_place_has_moved_when_its_first_batch_is_run_again(
    filled: Access, clock: Any, place: str
) -> None:
    given = {"startingOffsets": "group", "group": "crew"}
    if place == "timestamp":
        given = {"startingTimestamp": str(1 << 43), "startingOffsetsByTimestampStrategy": "latest"}
    first = stream(filled, clock, **given)
    planned = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    assert from_json(planned) == from_json(first.initialOffset())
    same = stream(filled, clock, **given)
    assert same.partitions(same.initialOffset(), planned) == []
    end = same.latestOffset(planned, ReadAllAvailable())
    assert set(from_json(end).values()) == {10}, (
        "nothing has moved, and no second batch is empty: availableNow ends there"
    )
    send(filled, 5)
    move_group(filled, 12)
    again = stream(filled, clock, **given)
    assert again.partitions(again.initialOffset(), planned) == []
    end = again.latestOffset(planned, ReadAllAvailable())
    assert set(from_json(end).values()) == {15}
    assert set(counts(planned, end)) == {15 if place == "group" else 5}


def test_the_empty_first_batch_stays_empty_where_its_group_went_back_or_queues_are_away(
    filled: Access, clock: Any
) -> None:
    move_group(filled, 8)
    given = {"startingOffsets": "group", "group": "crew"}
    first = stream(filled, clock, **given)
    planned = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    move_group(filled, 2)
    with_queues(filled, 2)
    again = stream(filled, clock, **given)
    assert again.partitions(again.initialOffset(), planned) == []
    with_queues(filled, 4)
    assert counts(planned, again.latestOffset(planned, ReadAllAvailable())) == [2, 2, 2, 2]


@pytest.mark.parametrize("place", ["group", "timestamp"])
def test_a_first_batch_that_an_early_version_planned_has_its_rows(filled: Access, clock: Any, place: str) -> None:
    """It ended where the queues ended, and has no marks."""
    move_group(filled, 4)
    given = {"startingOffsets": "group", "group": "crew"} if place == "group" else {"startingTimestamp": "0"}
    again = stream(filled, clock, **given)
    planned = to_json(dict.fromkeys(QUEUES, 10))
    parts = again.partitions(again.initialOffset(), planned)
    assert [part.part for part in parts if isinstance(part, RangePartition)] == [
        Range(queue, 4 if place == "group" else 0, 10) for queue in QUEUES
    ]


FIRST_STARTS: list[dict[str, str]] = [
    {"startingOffsets": "earliest"},
    {"startingOffsets": '{"orders": {"embedded": {"0": 3, "1": 3, "2": 3, "3": 3}}}'},
    {"startingTimestamp": "0"},
    {"startingOffsets": "latest"},
]
REFUSED_STARTS: list[dict[str, str]] = [
    {"startingOffsets": '{"orders": {"embedded": {"0": 3}}}'},
    {"startingTimestamp": str(1 << 43)},
    {"subscribe": "gone"},
]


@pytest.mark.parametrize("refused", REFUSED_STARTS)
def test_a_first_batch_is_not_planned_where_the_options_say_no_place(
    filled: Access, clock: Any, refused: dict[str, str]
) -> None:
    reader = stream(filled, clock, **refused)
    start = reader.initialOffset()
    with pytest.raises(UsageError, match=r"says nothing about|has no message stored|does not exist"):
        reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(UsageError, match=r"says nothing about|has no message stored|does not exist"):
        reader.partitions(start, to_json(dict.fromkeys(QUEUES, 10)))


@pytest.mark.parametrize("first", FIRST_STARTS)
@pytest.mark.parametrize(
    ("later", "count"),
    [
        *((start, 4) for start in FIRST_STARTS),
        *((FIRST_STARTS[1], count) for count in (2, 6)),
        *((start, 6) for start in REFUSED_STARTS),
    ],
)
def test_the_first_batch_is_the_same_whatever_start_is_given_when_it_is_run_again(
    filled: Access, clock: Any, first: dict[str, str], later: dict[str, str], count: int
) -> None:
    reader = stream(filled, clock, **first)
    start = reader.initialOffset()
    end = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
    wanted = [part.part for part in reader.partitions(start, end) if isinstance(part, RangePartition)]
    send(filled, 2)
    with_queues(filled, count)
    again = stream(filled, clock, **later)
    parts = again.partitions(again.initialOffset(), end)
    assert [part.part for part in parts if isinstance(part, RangePartition)] == wanted
    after = from_json(again.latestOffset(end, ReadAllAvailable()))
    there = 0 if later.get("subscribe") else count
    grown = [after[queue] - offset for queue, offset in from_json(end).items()]
    assert grown == ([2 if queue.queue_id < there else 0 for queue in QUEUES] if wanted else grown)
    assert BEGIN in end


GROUP_MOVED, GROUP_KEPT = [11] * 4, [4] * 4


@pytest.mark.parametrize(
    ("later", "kept"),
    [
        ({"group": "crew"}, True),
        ({"group": "crew", "startingOffsets": "latest"}, True),
        ({"group": "crew", "reportGroupOffsets": "false"}, True),
        ({"group": "other"}, True),
        ({"group": "crew", "reportGroupOffsets": "true"}, False),
    ],
)
@pytest.mark.parametrize("time", [{}, {"startingTimestamp": "0"}])
def test_the_group_that_a_stream_began_at_is_not_moved_by_later_starts_either(
    filled: Access, clock: Any, later: dict[str, str], kept: bool, time: dict[str, str]
) -> None:
    move_group(filled, 4)
    first = stream(filled, clock, **({"startingOffsets": "group", "group": "crew"} | time))
    end = run(first, clock, first.initialOffset())
    assert committed(filled, "crew") == GROUP_KEPT
    send(filled, 1)
    for _ in range(2):
        end = run(stream(filled, clock, **later), clock, end)
    assert from_json(end) == dict.fromkeys(QUEUES, 11)
    assert committed(filled, "crew") == (GROUP_KEPT if kept else GROUP_MOVED)
    assert committed(filled, "other") == (GROUP_MOVED if later["group"] == "other" else [None] * 4)


def test_the_group_that_is_kept_is_not_replaced_by_that_of_a_later_start(filled: Access, clock: Any) -> None:
    move_group(filled, 4)
    first = stream(filled, clock, startingOffsets="group", group="crew")
    end = run(first, clock, first.initialOffset())
    send(filled, 1)
    end = run(stream(filled, clock, startingOffsets="group", group="other"), clock, end)
    send(filled, 1)
    run(stream(filled, clock, group="crew"), clock, end)
    assert committed(filled, "crew") == GROUP_KEPT


def test_a_checkpoint_that_does_not_say_where_it_began_leaves_that_to_the_options(filled: Access, clock: Any) -> None:
    move_group(filled, 4)
    elsewhere = to_json(dict.fromkeys(QUEUES, 6))
    end = run(stream(filled, clock, group="crew", startingOffsets="group"), clock, elsewhere)
    assert committed(filled, "crew") == GROUP_KEPT
    run(stream(filled, clock, group="crew"), clock, end)
    assert committed(filled, "crew") == GROUP_KEPT, "by then it says so"
    run(stream(filled, clock, group="crew"), clock, elsewhere)
    assert committed(filled, "crew") == [10] * 4


def run(reader: StreamReader, clock: Any, end: dict[str, Any]) -> dict[str, Any]:
    """Three looks; where the query is then."""
    for _ in range(3):
        clock.now_s += 1
        end = reader.latestOffset(end, ReadAllAvailable())
    return end


def test_the_first_batch_is_not_run_again_without_a_queue_that_is_away(filled: Access, clock: Any) -> None:
    first = stream(filled, clock, startingOffsets="earliest")
    start = first.initialOffset()
    end = first.latestOffset(start, ReadAllAvailable())
    assert len(first.partitions(start, end)) == 4
    with_queues(filled, 2)
    again = stream(filled, clock, startingOffsets="earliest")
    assert len(again.partitions(again.initialOffset(), end)) == 4, "it is known where they begin"


def test_an_empty_first_batch_says_where_it_began_and_is_the_only_empty_one(filled: Access, clock: Any) -> None:
    given = '{"orders": {"embedded": {"0": 10, "1": 10, "2": 10, "3": 10}}}'
    first = stream(filled, clock, startingOffsets=given, minOffsetsPerTrigger="1000")
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMinRows(1000))
    assert from_json(end[BEGIN]) == from_json(end) == from_json(start)
    assert first.partitions(start, end) == []
    clock.now_s += 1
    assert first.latestOffset(end, ReadMinRows(1000)) == end
    with_queues(filled, 2)
    again = stream(filled, clock, startingOffsets="earliest")
    assert again.partitions(again.initialOffset(), end) == []
    with_queues(filled, 4)
    send(filled, 1)
    clock.now_s += 1
    assert counts(end, first.latestOffset(end, ReadMinRows(1000))) == [1, 1, 1, 1], "no batch before to wait after"


@pytest.mark.parametrize("restarted", [True, False])
def test_a_topic_made_anew_and_longer_than_it_was_is_not_read_from_the_middle(
    filled: Access, clock: Any, restarted: bool
) -> None:
    async def delete(cluster: Any) -> None:
        admin = Admin(cluster)
        for address in await admin.master_addresses():
            await admin.delete_topic(address, TOPIC)
        await admin.delete_route(TOPIC)

    def again() -> StreamReader:
        return stream(filled, clock, failOnDataLoss="false") if restarted else reader

    reader = stream(filled, clock, startingOffsets="earliest", failOnDataLoss="false")
    begin = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    clock.now_s += 1
    assert again().latestOffset(begin, ReadAllAvailable()) == begin, "no batch where there is nothing"
    run_with_cluster(filled, delete)
    send(filled, 15)
    clock.now_s += 1
    with pytest.raises(DataLossError, match="made anew since it was read"):
        stream(filled, clock).latestOffset(begin, ReadAllAvailable())
    back = again().latestOffset(begin, ReadAllAvailable())
    assert reader.partitions(begin, back) == []
    clock.now_s += 1
    end = again().latestOffset(back, ReadAllAvailable())
    assert counts(back, end) == [15, 15, 15, 15]
    send(filled, 1)
    clock.now_s += 1
    assert counts(end, again().latestOffset(end, ReadAllAvailable())) == [1, 1, 1, 1]


def test_topics_that_match_later_enter_a_stream_at_their_first_message(filled: Access, clock: Any) -> None:
    given = read_options({"subscribePattern": "later-.*", "startingOffsets": "earliest"}, streaming=True)
    reader = StreamReader(Reading(filled, given, ("topic",)), clock)
    start = reader.initialOffset()
    assert start == {}
    assert reader.latestOffset(start, ReadAllAvailable()) == {}
    with SyncProducer(filled) as producer:
        producer.send(OutgoingMessage("later-one", b"1"))
    clock.now_s += 1
    entered = reader.latestOffset(start, ReadAllAvailable())
    assert set(entered["later-one"]["embedded"].values()) == {0}
    clock.now_s += 1
    end = reader.latestOffset(entered, ReadAllAvailable())
    found = [
        row for part in reader.partitions(entered, end) for batch in reader.read(part) for row in batch.to_pylist()
    ]
    assert found == [{"topic": "later-one"}]


ENDS = RequestCode.GET_TOPIC_STATS_INFO, RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET


def count_requests(broker: EmbeddedBroker) -> Counter[int]:
    asked = Counter[int]()
    broker.intercepts.append(lambda command: asked.update([command.code]))
    return asked


def answer_as(broker: EmbeddedBroker, code: ResponseCode, *requests: RequestCode) -> None:
    broker.intercepts.append(lambda command: command.response(code) if command.code in requests else None)


def test_a_look_asks_each_broker_once_for_the_ends_of_all_queues(
    broker: EmbeddedBroker, filled: Access, clock: Any
) -> None:
    reader = stream(filled, clock, startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    clock.now_s += 1
    asked = count_requests(broker)
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert asked == {RequestCode.GET_TOPIC_STATS_INFO: 1}


@pytest.mark.parametrize("code", [ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION])
def test_a_broker_that_does_not_say_all_ends_at_once_is_asked_for_each(
    broker: EmbeddedBroker, filled: Access, clock: Any, code: ResponseCode
) -> None:
    asked = count_requests(broker)
    answer_as(broker, code, RequestCode.GET_TOPIC_STATS_INFO)
    reader = stream(filled, clock, startingOffsets="earliest")
    start = reader.initialOffset()
    assert counts(start, reader.latestOffset(start, ReadAllAvailable())) == [10, 10, 10, 10]
    assert asked[RequestCode.GET_TOPIC_STATS_INFO] == 1
    assert asked[RequestCode.GET_MAX_OFFSET] == 8


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR, ResponseCode.TOPIC_NOT_EXIST])
def test_a_broker_that_is_busy_once_is_asked_for_all_ends_again(
    broker: EmbeddedBroker, filled: Access, clock: Any, code: ResponseCode
) -> None:
    reader = stream(filled, clock, startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    asked = count_requests(broker)
    answer_as(broker, code, RequestCode.GET_TOPIC_STATS_INFO)
    for looks in (1, 2):
        clock.now_s += 1
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        assert [asked[one] for one in ENDS] == [looks, 4, 4]
        broker.intercepts.pop()


def test_a_broker_that_leaves_the_route_while_it_is_asked_is_away_and_said_once(
    broker: EmbeddedBroker, filled: Access, clock: Any
) -> None:
    reader = stream(filled, clock, startingOffsets="earliest", numRetries="100")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    asked = count_requests(broker)
    answer_as(broker, ResponseCode.SYSTEM_BUSY, *ENDS)

    def no_route_after_the_first_try(command: Command) -> Command | None:
        if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC or not asked[RequestCode.GET_MIN_OFFSET]:
            return None
        return command.response(ResponseCode.TOPIC_NOT_EXIST)

    broker.name_server_intercepts.append(no_route_after_the_first_try)
    clock.now_s += 1
    with structlog.testing.capture_logs() as lines:
        assert reader.latestOffset(end, ReadAllAvailable()) == end
    warned = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert warned == ["asked_again", "route_not_renewed", "topic_away"]


def test_queues_that_leave_the_route_while_they_are_asked_for_wait_and_the_others_are_read(
    broker: EmbeddedBroker, filled: Access, clock: Any
) -> None:
    reader = stream(filled, clock, startingOffsets="earliest", numRetries="100")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    send(filled, 1)
    fewer = run_with_cluster(filled, lambda cluster: cluster.route(TOPIC))
    fewer = replace(fewer, queue_datas=tuple(replace(one, read_queue_nums=3) for one in fewer.queue_datas))
    tried = list[int]()

    def busy(command: Command) -> Command | None:
        if command.code == RequestCode.GET_TOPIC_STATS_INFO:
            return command.response(ResponseCode.SYSTEM_BUSY)
        if command.code != RequestCode.GET_MIN_OFFSET or command.fields["queueId"] != "3":
            return None
        tried.append(command.opaque)
        return command.response(ResponseCode.SYSTEM_BUSY)

    def route(command: Command) -> Command | None:
        if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC or not tried:
            return None
        return command.response(ResponseCode.SUCCESS, body=fewer.encode())

    broker.intercepts.append(busy)
    broker.name_server_intercepts.append(route)
    clock.now_s += 1
    with structlog.testing.capture_logs() as lines:
        assert counts(end, reader.latestOffset(end, ReadAllAvailable())) == [1, 1, 1, 0]
    assert [line["event"] for line in lines] == ["asked_again", "queue_away"]
    assert len(tried) == 1


def test_a_topic_that_may_not_be_read_is_no_empty_one(filled: Access, clock: Any) -> None:
    async def close(cluster: Any) -> None:
        await Admin(cluster).create_topic_everywhere(TopicConfig("closed", 4, 4, PERM_WRITE))

    run_with_cluster(filled, close)
    with pytest.raises(UsageError, match="no queue of topic closed may be read"):
        BatchReader(reading(filled, subscribe="closed")).partitions()
    reader = stream(filled, clock, subscribe="closed")
    with pytest.raises(UsageError, match="no queue of topic closed may be read"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


ONE_NAMED = '{"orders": {"embedded": {"0": 2, "1": 2, "3": 7}}}'


@pytest.mark.parametrize(
    ("given", "begins"),
    [
        ({}, [0, 0]),
        ({"startingOffsets": "group"}, [4, 4]),
        ({"startingOffsets": "group", "newQueues": "earliest"}, [0, 0]),
        ({"startingTimestamp": "0", "startingOffsets": "group"}, [0, 0]),
        ({"newQueues": "group"}, [4, 4]),
        ({"newQueues": "group", "group": "new"}, [0, 0]),
        ({"startingOffsets": ONE_NAMED}, [0, 7]),
        ({"startingOffsets": ONE_NAMED, "newQueues": "group"}, [4, 7]),
    ],
)
def test_where_a_stream_begins_in_queues_that_enter_later(
    filled: Access, clock: Any, given: dict[str, str], begins: list[int]
) -> None:
    move_group(filled, 4)
    reader = stream(filled, clock, **({"group": "crew"} | given))
    before = to_json(dict.fromkeys(QUEUES[:2], 10))
    entered = reader.latestOffset(before, ReadAllAvailable())
    assert [from_json(entered)[queue] for queue in QUEUES] == [10, 10, *begins]
    assert reader.partitions(before, entered) == []
    clock.now_s += 1
    end = reader.latestOffset(entered, ReadAllAvailable())
    assert counts(entered, end) == [0, 0, *(10 - begin for begin in begins)]


@pytest.mark.parametrize("given", [{"newQueues": "group"}, {"startingOffsets": "group", "failOnDataLoss": "false"}])
def test_a_group_offset_that_another_queue_has_left_is_not_where_a_stream_enters(
    filled: Access, clock: Any, given: dict[str, str]
) -> None:
    move_group(filled, 99)
    reader = stream(filled, clock, **({"group": "crew"} | given))
    with structlog.testing.capture_logs() as lines:
        entered = reader.latestOffset(to_json(dict.fromkeys(QUEUES[:2], 10)), ReadAllAvailable())
    assert [from_json(entered)[queue] for queue in QUEUES] == [10, 10, 0, 0]
    told = [(line["log_level"], line["queue_id"], line["offset"], line["to"]) for line in lines]
    assert told == [("warning", 2, 99, 0), ("warning", 3, 99, 0)]


@pytest.mark.parametrize(("group", "begins"), [(99, 0), (11, 10)])
def test_a_read_from_a_group_offset_beyond_the_end_says_where_it_begins(
    filled: Access, clock: Any, group: int, begins: int
) -> None:
    move_group(filled, group)
    options = {"startingOffsets": "group", "group": "crew", "failOnDataLoss": "false"}
    with structlog.testing.capture_logs() as lines:
        assert set(from_json(stream(filled, clock, **options).initialOffset()).values()) == {begins}
        ranges = [
            part.part
            for part in BatchReader(reading(filled, **options)).partitions()
            if isinstance(part, RangePartition)
        ]
    assert sum(part.end - part.start for part in ranges) == 4 * (10 - begins)
    assert [line["to"] for line in lines if line["event"] == "goes_back"] == [begins] * 8
