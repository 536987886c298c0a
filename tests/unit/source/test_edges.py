"""Readers and writers without Spark: their methods called as Spark calls them, against an embedded broker."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import structlog.testing
from pyspark.sql.datasource import DataSourceReader, GreaterThan
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.access import Access
from rocketcrew.client.admin import Admin
from rocketcrew.client.operations import Operations
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.selection import to_queue
from rocketcrew.client.sync import SyncProducer, run_with_cluster
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig, TopicConfig
from rocketcrew.remoting.bodies import CONSUME_ACTIVELY, ConsumerData, HeartbeatData
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import BrokerError, UsageError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.source.batch_reader import BatchReader, RangePartition
from rocketcrew.source.connections import CLUSTERS_MAX, Connections, shared
from rocketcrew.source.errors import DataLossError
from rocketcrew.source.offsets import from_json
from rocketcrew.source.planning import Range
from rocketcrew.source.pulling import Ahead, Reading
from rocketcrew.source.reading import read_options
from rocketcrew.source.rows import Rows
from rocketcrew.source.stream_reader import StreamReader
from rocketcrew.source.writers import Sending

from .conftest import PATIENT_MS

TOPIC = "orders"
QUEUES = [MessageQueue(TOPIC, "broker-a", number) for number in range(4)]


@pytest.fixture
def filled(access: Access) -> Iterator[Access]:
    """Ten messages in each of four queues; what `shared` connected is closed afterwards."""
    send(access, 10)
    yield access
    shared.close()


def send(access: Access, each: int) -> None:
    with SyncProducer(access, send_timeout_ms=PATIENT_MS) as producer:
        for number in range(each * 4):
            producer.send(OutgoingMessage(TOPIC, b"%d" % number), selector=to_queue(QUEUES[number % 4]))


def reading(
    access: Access, *, streaming: bool = False, columns: tuple[str, ...] = ("queueOffset",), **options: str
) -> Reading:
    given = {"subscribe": TOPIC, "retryIntervalMs": "1", "numRetries": "2"} | options
    return Reading(access, read_options(given, streaming), columns)


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [row["queueOffset"] for batch in batches for row in batch.to_pylist()]


def committed(access: Access, group: str) -> list[int | None]:
    async def ask(cluster: Any) -> list[int | None]:
        await cluster.route(TOPIC)
        return [
            await Operations(cluster).query_consumer_offset(group, mq, set_zero_if_not_found=False) for mq in QUEUES
        ]

    return run_with_cluster(access, ask)


# Connections.


def test_connections_are_shared_and_closed_when_idle(filled: Access, connections: Connections, clock: Any) -> None:
    with connections.use(filled) as first, connections.use(filled) as second:
        assert first is second
        clock.now_s = 10_000
        assert connections.close_idle() == 0
    assert connections.open == [filled]
    clock.now_s += 3599
    assert connections.close_idle() == 0
    clock.now_s += 1
    assert connections.close_idle() == 1
    assert connections.open == []
    with connections.use(filled) as third:
        assert third is not first


def test_too_many_clusters_end_the_longest_unused(connections: Connections, clock: Any) -> None:
    several = [Access(f"127.0.0.1:{port}") for port in range(1, CLUSTERS_MAX + 3)]
    for each in several:
        clock.now_s += 1
        with connections.use(each):
            pass
    assert connections.close_idle() == 2
    assert connections.open == several[2:]


# A range.


def test_a_range_is_read_with_pulls_of_any_size(filled: Access, connections: Connections) -> None:
    for size in ("1", "3", "32"):
        mine = reading(filled, pullBatchSize=size)
        assert offsets(mine.read(Range(QUEUES[1], 2, 9), connections)) == list(range(2, 9))
        assert offsets(mine.read(Range(QUEUES[1], 2, 9), connections)) == list(range(2, 9))


def test_what_a_queue_does_not_hold_is_lost(filled: Access, connections: Connections) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    beyond = Range(QUEUES[0], 8, 15)
    with pytest.raises(DataLossError, match="offsets 10 to 14 of queue 0 of topic orders on broker-a"):
        list(reading(filled).read(beyond, connections, pause))
    assert pauses == [0.001, 0.001]
    lenient = reading(filled, failOnDataLoss="false")
    assert offsets(lenient.read(beyond, connections, pause)) == [8, 9]


def test_pulls_go_ahead_and_nothing_is_asked_twice(
    filled: Access, broker: EmbeddedBroker, connections: Connections
) -> None:
    send(filled, 90)
    asked: list[int] = []

    def note(command: Command) -> Command | None:
        if command.code == RequestCode.PULL_MESSAGE:
            asked.append(int(command.fields["queueOffset"]))
        return None

    broker.intercepts.append(note)
    assert offsets(reading(filled, pullBatchSize="4").read(Range(QUEUES[0], 0, 100), connections)) == list(range(100))
    assert asked == list(range(0, 100, 4))


def test_a_reader_that_is_closed_early_ends_what_is_gathered_ahead(filled: Access, connections: Connections) -> None:
    ended = threading.Event()

    async def gathered() -> AsyncGenerator[Rows]:
        try:
            while True:
                yield Rows(("queueOffset",), QUEUES[0], frozenset(), strict=True)
        finally:
            ended.set()

    with connections.use(filled) as link:
        taken = Ahead(link).take(gathered())
        next(taken)
        taken.close()
        assert ended.wait(10)


def test_guesses_that_are_wrong_and_pulls_ahead_that_fail_cost_no_row(
    filled: Access, broker: EmbeddedBroker, connections: Connections
) -> None:
    send(filled, 90)
    asked: list[int] = []

    def answer(command: Command) -> Command | None:
        """Now four messages, now fewer; and each fifth pull is refused."""
        if command.code != RequestCode.PULL_MESSAGE:
            return None
        asked.append(int(command.fields["queueOffset"]))
        if len(asked) % 5 == 0:
            return command.response(ResponseCode.SYSTEM_BUSY, remark="busy")
        command.fields["maxMsgNums"] = str(1 + len(asked) // 7 % 4)
        return None

    broker.intercepts.append(answer)
    given = reading(filled, pullBatchSize="4")
    assert offsets(given.read(Range(QUEUES[0], 3, 98), connections)) == list(range(3, 98))


# A batch.


def test_a_batch_is_planned_and_travels(filled: Access) -> None:
    reader = BatchReader(reading(filled, minPartitions="8"))
    parts = reader.partitions()
    assert len(parts) == 8
    travelled: BatchReader = pickle.loads(pickle.dumps(reader))
    found = [offset for part in pickle.loads(pickle.dumps(parts)) for offset in offsets(travelled.read(part))]
    assert sorted(found) == sorted(list(range(10)) * 4)


def test_filters_are_taken_though_the_method_looks_inherited(filled: Access) -> None:
    reader = BatchReader(reading(filled))
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    unknown = GreaterThan(("reconsumeTimes",), 0)
    assert reader.pushFilters([GreaterThan(("queueOffset",), 6), unknown]) == [unknown]
    assert [part.part for part in reader.partitions() if isinstance(part, RangePartition)] == [
        Range(queue, 7, 10) for queue in QUEUES
    ]


def test_topics_and_queues_that_do_not_exist(filled: Access) -> None:
    with pytest.raises(UsageError, match="topic nothing does not exist"):
        BatchReader(reading(filled, subscribe="nothing")).partitions()
    assigned = read_options({"assign": '{"orders": {"broker-a": [1, 7]}}', "numRetries": "0"}, streaming=False)
    with pytest.raises(UsageError, match="names queue 7 of topic orders on broker-a, which does not exist"):
        BatchReader(Reading(filled, assigned, ("queueOffset",))).partitions()


def matching(access: Access, pattern: str, *, streaming: bool = False) -> Reading:
    given = {"subscribePattern": pattern, "retryIntervalMs": "1", "numRetries": "2", "startingOffsets": "earliest"}
    return Reading(access, read_options(given, streaming), ("topic",))


def topics_of(reader: BatchReader) -> set[str]:
    parts = [part.part for part in reader.partitions() if isinstance(part, RangePartition)]
    return {part.queue.topic for part in parts}


def test_a_pattern_means_whole_names_and_none_of_the_clusters_own(filled: Access) -> None:
    with SyncProducer(filled) as producer:
        for topic in (
            "orders-eu",
            "borders",
            "%RETRY%some",
            "%DLQ%some",
            "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
            "c_REPLY_TOPIC",
        ):
            producer.send(OutgoingMessage(topic, b"x"))
    assert topics_of(BatchReader(matching(filled, "orders.*"))) == {"orders", "orders-eu"}
    assert topics_of(BatchReader(matching(filled, ".*"))) == {"orders", "orders-eu", "borders"}
    assert topics_of(BatchReader(matching(filled, "%DLQ%.*"))) == {"%DLQ%some"}
    with pytest.raises(UsageError, match="option subscribePattern: 'order' matches no topic"):
        BatchReader(matching(filled, "order")).partitions()
    inside = replace(filled, namespace="ns")
    with SyncProducer(inside) as producer:
        producer.send(OutgoingMessage("orders", b"x"))
    assert topics_of(BatchReader(matching(inside, ".*"))) == {"orders"}


def test_times_choose_where_a_batch_begins(filled: Access) -> None:
    assert BatchReader(reading(filled, startingTimestamp="0", endingTimestamp="0")).partitions() == []
    with pytest.raises(UsageError, match="no message stored at or after"):
        BatchReader(reading(filled, startingTimestamp="9000000000000")).partitions()
    timed = BatchReader(reading(filled, columns=("storeTimestamp",)))
    rows = [row for part in timed.partitions() for batch in timed.read(part) for row in batch.to_pylist()]
    times = sorted(round(row["storeTimestamp"].timestamp() * 1000) for row in rows)
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    before = BatchReader(reading(filled, endingTimestamp=str(times[20])))
    behind = BatchReader(reading(filled, startingTimestamp=str(times[20]), **strategy))
    assert size(before) == sum(time < times[20] for time in times)
    assert size(behind) == sum(time >= times[20] for time in times)


def size(reader: BatchReader) -> int:
    return sum(part.part.size for part in reader.partitions() if isinstance(part, RangePartition))


def test_a_namespace_is_part_of_names_at_brokers_only(filled: Access) -> None:
    inside = replace(filled, namespace="ns")
    with SyncProducer(inside) as producer:
        producer.send(OutgoingMessage("own", b"x"))
    reader = BatchReader(reading(inside, subscribe="own", columns=("topic", "body")))
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert rows == [{"topic": "own", "body": b"x"}]
    assert len(BatchReader(reading(filled, subscribe="ns%own")).partitions()) == 1


# A stream.


def stream(access: Access, clock: Any, **options: str) -> StreamReader:
    return StreamReader(reading(access, streaming=True, **options), clock)


def counts(start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    first, last = start[TOPIC]["broker-a"], end[TOPIC]["broker-a"]
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
        without.initialOffset()
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

    async def moved(cluster: Any) -> None:
        (address,) = await Admin(cluster).master_addresses()
        await Admin(cluster).create_group(address, SubscriptionGroupConfig("crew"))
        for mq in await cluster.queues_to_read(TOPIC):
            await Operations(cluster).update_consumer_offset("crew", mq, 12)

    run_with_cluster(filled, moved)
    again = stream(filled, clock, **given)
    assert again.partitions(again.initialOffset(), planned) == []
    end = again.latestOffset(planned, ReadAllAvailable())
    assert set(from_json(end).values()) == {15}
    assert set(counts(planned, end)) == {15 if place == "group" else 5}


def test_the_first_batch_is_not_run_again_without_a_queue_that_is_away(filled: Access, clock: Any) -> None:
    first = stream(filled, clock, startingOffsets="earliest")
    start = first.initialOffset()
    end = first.latestOffset(start, ReadAllAvailable())
    assert len(first.partitions(start, end)) == 4
    with_queues(filled, 2)
    again = stream(filled, clock, startingOffsets="earliest")
    with pytest.raises(
        DataLossError, match=r"no broker has queue 2 of topic orders on broker-a, queue 3 of topic orders"
    ):
        again.partitions(again.initialOffset(), end)
    lenient = stream(filled, clock, startingOffsets="earliest", failOnDataLoss="false")
    with structlog.testing.capture_logs() as lines:
        assert len(lenient.partitions(lenient.initialOffset(), end)) == 2
    assert [(line["event"], line["queue_id"], line["end"]) for line in lines] == [
        ("data_lost", 2, 10),
        ("data_lost", 3, 10),
    ]
    with_queues(filled, 4)
    back = stream(filled, clock, startingOffsets="earliest")
    assert len(back.partitions(back.initialOffset(), end)) == 4


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
    reader = StreamReader(matching(filled, "later-.*", streaming=True), clock)
    start = reader.initialOffset()
    assert start == {}
    assert reader.latestOffset(start, ReadAllAvailable()) == {}
    with SyncProducer(filled) as producer:
        producer.send(OutgoingMessage("later-one", b"1"))
    clock.now_s += 1
    entered = reader.latestOffset(start, ReadAllAvailable())
    assert set(entered["later-one"]["broker-a"].values()) == {0}
    clock.now_s += 1
    end = reader.latestOffset(entered, ReadAllAvailable())
    found = [
        row for part in reader.partitions(entered, end) for batch in reader.read(part) for row in batch.to_pylist()
    ]
    assert found == [{"topic": "later-one"}]


# The sink.


def test_sent_rows_arrive_and_the_same_rows_have_the_same_keys(filled: Access, connections: Connections) -> None:
    given = {"nameServer": str(filled.name_servers), "topic": "copies"}
    sending: Sending = pickle.loads(pickle.dumps(Sending.of(given, [("body", "string")])))
    batches = [
        pa.RecordBatch.from_pydict({"body": [str(number) for number in range(first, first + 5)]}) for first in (0, 5)
    ]
    for _ in range(2):
        assert sending.send(iter(batches), "query-0-0", connections).messages == 10
    mine = reading(filled, subscribe="copies", columns=("body", "keys"))
    rows = [
        row
        for part in BatchReader(mine).partitions()
        for batch in BatchReader(mine).read(part)
        for row in batch.to_pylist()
    ]
    assert len(rows) == 20
    assert {(row["body"], row["keys"]) for row in rows} == {(b"%d" % at, f"query-0-0-{at}") for at in range(10)}


def test_rows_of_one_key_are_stored_in_their_order_though_sends_fail(
    filled: Access, broker: EmbeddedBroker, connections: Connections
) -> None:
    refused: set[str] = set()

    def refuse_once(command: Command) -> Command | None:
        if command.code != RequestCode.SEND_MESSAGE_V2 or not command.body or int(command.body) % 7:
            return None
        text = bytes(command.body).decode()
        if text in refused:
            return None
        refused.add(text)
        return command.response(ResponseCode.SYSTEM_BUSY, remark="busy")

    given = {"nameServer": str(filled.name_servers), "topic": TOPIC, "retryIntervalMs": "1"}
    schema = [("body", "string"), ("shardingKey", "string")]
    sending = Sending.of(given, schema)
    begin = dict.fromkeys(QUEUES, 10)
    rows = [{"body": str(number), "shardingKey": f"key-{number % 5}"} for number in range(100, 300)]
    broker.intercepts.append(refuse_once)
    assert sending.send(iter([pa.RecordBatch.from_pylist(rows)]), "k", connections).messages == 200
    assert len(refused) == 28
    mine = reading(filled, columns=("body", "properties"))
    ends = [part.part.end for part in BatchReader(mine).partitions() if isinstance(part, RangePartition)]
    stored = {
        mq: [
            (dict(row["properties"])["__SHARDINGKEY"], int(row["body"]))
            for batch in mine.read(Range(mq, begin[mq], ends[mq.queue_id]), connections)
            for row in batch.to_pylist()
        ]
        for mq in QUEUES
    }
    assert sum(map(len, stored.values())) == 200
    for key in {key for found in stored.values() for key, _ in found}:
        (queue,) = [mq for mq, found in stored.items() if any(one == key for one, _ in found)]
        numbers = [number for one, number in stored[queue] if one == key]
        assert numbers == sorted(numbers)
        assert len(numbers) == 40


def test_a_queue_that_takes_nothing_fails_the_write_and_nothing_passes_it(
    filled: Access, broker: EmbeddedBroker, connections: Connections
) -> None:
    def refuse_six(command: Command) -> Command | None:
        wanted = command.code == RequestCode.SEND_MESSAGE_V2 and bytes(command.body) == b"6"
        return command.response(ResponseCode.SYSTEM_BUSY, remark="busy") if wanted else None

    broker.intercepts.append(refuse_six)
    given = {"nameServer": str(filled.name_servers), "topic": TOPIC, "retryIntervalMs": "1"}
    sending = Sending.of(given, [("body", "string"), ("toQueueId", "int")])
    schema = pa.schema([("body", pa.string()), ("toQueueId", pa.int32())])
    rows = [{"body": str(number), "toQueueId": 2} for number in range(20)]
    with pytest.raises(BrokerError, match="busy"):
        sending.send(iter([pa.RecordBatch.from_pylist(rows, schema)]), "k", connections)
    lenient = reading(filled, columns=("body",), failOnDataLoss="false")
    stored = [row["body"] for batch in lenient.read(Range(QUEUES[2], 10, 30), connections) for row in batch.to_pylist()]
    assert stored == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group": "a b", "topic": "t"}, "option group"),
        ({"subscribe": "t"}, "option subscribe means nothing to a write"),
    ],
)
def test_a_write_that_cannot_be(options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Sending.of({"nameServer": "127.0.0.1:1", **options}, [("body", "string")])
