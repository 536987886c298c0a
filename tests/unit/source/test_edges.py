"""Readers and writers without Spark: their methods called as Spark calls them, against an embedded broker."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
import structlog.testing
from pyspark.sql.datasource import DataSourceReader, GreaterThan
from structlog.testing import capture_logs

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.access import Access
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.sync import SyncProducer
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import BrokerError, UnreachableError, UsageError
from rocketcrew.remoting.headers import PullResponse
from rocketcrew.remoting.stored import walk
from rocketcrew.source.batch_reader import BatchReader, RangePartition
from rocketcrew.source.connections import CLUSTERS_MAX, Connections, shared
from rocketcrew.source.errors import DataLossError
from rocketcrew.source.planning import Range
from rocketcrew.source.pulling import Ahead, Reading
from rocketcrew.source.reading import BATCH_RETRIES, STREAM_RETRIES, read_options
from rocketcrew.source.rows import Rows
from rocketcrew.source.searching import pull_request
from rocketcrew.source.writers import Sending, StreamWriter

from .conftest import QUEUES, TOPIC, offsets, reading, send

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
    with pytest.raises(DataLossError, match="offsets 10 to 14 of queue 0 of topic orders on embedded"):
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


def test_spark_is_offered_no_push_down(filled: Access) -> None:
    """It keeps what a push-down leaves of one query for every other use of the DataFrame."""
    reader, filters = BatchReader(reading(filled)), [GreaterThan(("queueOffset",), 6)]
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters, "else refused by default"
    assert reader.pushFilters(filters) == filters
    assert sum(part.part.size for part in reader.partitions() if isinstance(part, RangePartition)) == 40


def test_topics_and_queues_that_do_not_exist(filled: Access) -> None:
    with pytest.raises(UsageError, match="topic nothing does not exist"):
        BatchReader(reading(filled, subscribe="nothing")).partitions()
    assigned = read_options({"assign": '{"orders": {"embedded": [1, 7]}}', "numRetries": "0"}, streaming=False)
    with pytest.raises(UsageError, match="names queue 7 of topic orders on embedded, which does not exist"):
        BatchReader(Reading(filled, assigned, ("queueOffset",))).partitions()


def matching(access: Access, pattern: str) -> Reading:
    given = {"subscribePattern": pattern, "retryIntervalMs": "1", "numRetries": "2"}
    return Reading(access, read_options(given, streaming=False), ("topic",))


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
    pairs = {(row["body"], row["keys"]) for row in rows}
    assert {body for body, _ in pairs} == {b"%d" % at for at in range(10)}
    assert len(pairs) == len({key for _, key in pairs}) == 10


def test_a_sink_waits_for_brokers_that_are_away_and_says_so_once(
    filled: Access, broker: EmbeddedBroker, connections: Connections
) -> None:
    """Not only where rows have an order: Spark ends a query whose task has failed four times, which takes no second."""
    asked: Counter[bytes] = Counter()

    def refuse_often(command: Command) -> Command | None:
        if command.code != RequestCode.SEND_MESSAGE_V2:
            return None
        asked[bytes(command.body)] += 1
        away = asked[bytes(command.body)] <= 12  # more than one try is sent to
        return command.response(ResponseCode.SYSTEM_BUSY, remark="busy") if away else None

    broker.intercepts.append(refuse_often)
    given = {"nameServer": str(filled.name_servers), "topic": TOPIC, "retryIntervalMs": "1"}
    rows = [pa.RecordBatch.from_pydict({"body": [str(number) for number in range(20)]})]
    with pytest.raises(BrokerError, match="busy"):
        Sending.of({**given, "numRetries": "1"}, [("body", "string")]).send(iter(rows), "k", connections)
    asked.clear()
    sending = Sending.of(given, [("body", "string")], streaming=True)
    with capture_logs() as logs:
        assert sending.send(iter(rows), "k", connections, is_first=True).messages == 20
    assert set(asked.values()) == {13}
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["sent_again"]


def test_a_new_query_says_soon_that_its_sink_has_a_wrong_address(filled: Access) -> None:
    """`filled` closes the connections. A query that has sent before waits for its name servers."""
    given = {"nameServer": "127.0.0.1:1", "topic": "t", "retryIntervalMs": "1"}
    sending = Sending.of(given, [("body", "string")], streaming=True)
    rows = pa.RecordBatch.from_pydict({"body": ["a", "b"]})
    with capture_logs() as logs, pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
        StreamWriter(sending).write(iter([rows]))
    assert [line["event"] for line in logs if "again" in line["event"]] == ["asked_again"] * BATCH_RETRIES
    with capture_logs() as logs, pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
        sending.send(iter([rows]), "query-7-0", shared)
    assert [line["event"] for line in logs if "again" in line["event"]] == ["sent_again"]


def test_a_querys_sink_tries_as_often_as_its_source() -> None:
    given, schema = {"nameServer": "127.0.0.1:1", "topic": "t"}, [("body", "string")]
    assert Sending.of(given, schema).bounds.retries == BATCH_RETRIES
    assert Sending.of(given, schema, streaming=True).bounds.retries == STREAM_RETRIES
    assert Sending.of({**given, "numRetries": "7"}, schema, streaming=True).bounds.retries == 7


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


def test_the_holes_of_one_answer_are_looked_at_and_told_once(
    broker: EmbeddedBroker, filled: Access, connections: Connections
) -> None:
    """Those of a compacted topic, where most messages are gone."""
    part = Range(QUEUES[0], 0, 10)
    with connections.use(filled) as link:
        address = link.run(link.cluster.address_of(QUEUES[0]))
        request = pull_request("TOOLS_CONSUMER", QUEUES[0], 0, 32)
        whole = link.run(link.operations.pull(address, request)).body
    positions, _ = walk(whole)
    kept = b"".join(whole[at:following] for at, following in list(pairwise(positions))[1::2])
    routes = list[int]()

    def answer(command: Command) -> Command | None:
        if command.code != RequestCode.PULL_MESSAGE:
            return None
        return command.response(ResponseCode.SUCCESS, PullResponse(0, 10, 0, 10).to_fields(), body=kept)

    def count(command: Command) -> None:
        routes.append(command.code)

    broker.intercepts.append(answer)
    broker.name_server_intercepts.append(count)
    with structlog.testing.capture_logs() as lines:
        assert offsets(reading(filled, failOnDataLoss="false").read(part, connections)) == [1, 3, 5, 7, 9]
    lost = [
        (line["start"], line["end"], line["holes"], line["offsets"]) for line in lines if line["event"] == "data_lost"
    ]
    assert lost == [(0, 9, 5, 5)]
    assert len(routes) == 1
    with pytest.raises(DataLossError, match="offsets 0 to 0 of queue 0"):
        list(reading(filled).read(part, connections))
