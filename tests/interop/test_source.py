"""The data source's readers and writers on genuine brokers, called as Spark calls them (tests/system has Spark itself)."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from fault_servers import run_site
from harness import patient_producer, send_numbers
from needs import need_jars
from reading import wait_until_readable
from servers import VERSIONS, Servers

from rocketcrew.client.access import Access, access_to
from rocketcrew.client.admin import Admin
from rocketcrew.client.operations import Operations
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.selection import to_queue
from rocketcrew.client.sync import SyncProducer, run_with_cluster
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.source.batch_reader import BatchReader
from rocketcrew.source.connections import shared
from rocketcrew.source.errors import DataLossError
from rocketcrew.source.looking import Looker
from rocketcrew.source.offsets import from_json, marks_from_json
from rocketcrew.source.planning import Range
from rocketcrew.source.pulling import Reading
from rocketcrew.source.reading import read_options
from rocketcrew.source.stream_reader import StreamReader
from rocketcrew.source.writers import Sending

ON_BOTH = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
QUEUES, EACH = 2, 50
COLUMNS = ("queueId", "queueOffset", "body", "keys", "storeTimestamp", "properties")


@pytest.fixture
def access(servers: Servers, request: pytest.FixtureRequest) -> Iterator[Access]:
    """Servers with a filled topic, named as the test is."""
    topic = request.node.name.partition("[")[0]
    servers.create_topic(topic, QUEUES)
    found = access_to(servers.target)
    send(found, topic)
    wait_until_readable(found, topic, QUEUES * EACH)
    yield found
    shared.close()


def send(access: Access, topic: str) -> None:
    with SyncProducer(access, send_timeout_ms=30_000) as producer:
        queues = run_with_cluster(access, lambda cluster: cluster.queues_to_write(topic))
        for number in range(QUEUES * EACH):
            message = OutgoingMessage(topic, b"%d" % number, "odd" if number % 2 else "even", f"k{number}")
            producer.send(message, selector=to_queue(sorted(queues)[number % QUEUES]))


def reading(access: Access, topic: str, *, streaming: bool = False, **options: str) -> Reading:
    return Reading(access, read_options({"subscribe": topic, "retryIntervalMs": "100"} | options, streaming), COLUMNS)


def rows_of(reader: BatchReader) -> list[dict[str, Any]]:
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@ON_BOTH
def test_a_batch_on_genuine_brokers(access: Access) -> None:
    topic = "test_a_batch_on_genuine_brokers"
    rows = rows_of(BatchReader(reading(access, topic, minPartitions="7")))
    assert sorted(int(row["body"]) for row in rows) == list(range(QUEUES * EACH))
    assert sorted((row["queueId"], row["queueOffset"]) for row in rows) == [
        (q, at) for q in range(QUEUES) for at in range(EACH)
    ]
    assert {dict(row["properties"])["TAGS"] for row in rows} == {"even", "odd"}
    assert len(rows_of(BatchReader(reading(access, topic, tags="even")))) == EACH
    stored = sorted(int(row["storeTimestamp"].timestamp() * 1000) for row in rows)
    late = rows_of(
        BatchReader(reading(access, topic, startingTimestamp=str(stored[0]), endingTimestamp=str(stored[-1])))
    )
    assert {row["body"] for row in late} <= {row["body"] for row in rows}
    assert len(late) == sum(1 for at in stored if at < stored[-1])
    broker = first_queue(access, topic)
    beyond = Range(broker, EACH - 5, EACH + 5)
    with pytest.raises(DataLossError, match=f"offsets {EACH} to {EACH + 4}"):
        list(reading(access, topic).read(beyond, shared))


def first_queue(access: Access, topic: str) -> MessageQueue:
    return min(run_with_cluster(access, lambda cluster: cluster.queues_to_read(topic)))


@ON_BOTH
def test_a_stream_on_genuine_brokers_and_its_group(servers: Servers, access: Access) -> None:
    topic = "test_a_stream_on_genuine_brokers_and_its_group"
    reader = StreamReader(reading(access, topic, streaming=True, startingOffsets="earliest", group="spark-lag"))
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    send(access, topic)
    wait_until_readable(access, topic, 2 * QUEUES * EACH)
    bodies: list[int] = []
    while (end := reader.latestOffset(start, ReadMaxRows(30))) != start:
        for part in reader.partitions(start, end):
            bodies += [int(row["body"]) for batch in reader.read(part) for row in batch.to_pylist()]
        start = end
    assert sorted(bodies) == list(range(QUEUES * EACH))
    mq = first_queue(access, topic)

    async def committed(cluster: Any) -> int | None:
        return await Operations(cluster).query_consumer_offset("spark-lag", mq, set_zero_if_not_found=False)

    assert run_with_cluster(access, committed) == EACH
    shown = "\n".join(servers.admin("consumerProgress", "-g", "spark-lag"))
    assert len(re.findall(rf"^{topic[:20]}.* {2 * EACH} +{EACH} +{EACH} ", shown, re.MULTILINE)) == QUEUES, shown
    later = StreamReader(reading(access, topic, streaming=True, startingOffsets="group", group="spark-lag"))
    begin = later.initialOffset()
    assert from_json(begin) == from_json(start)
    first = later.latestOffset(begin, ReadAllAvailable())
    assert from_json(first) == from_json(begin), "the first batch fixes where it begins"
    assert from_json(later.latestOffset(first, ReadAllAvailable())) != from_json(begin)


@ON_BOTH
def test_a_pattern_means_topics_of_users_only(servers: Servers, access: Access) -> None:
    topic = "test_a_pattern_means_topics_of_users_only"
    options = read_options({"subscribePattern": f"{topic[:20]}.*"}, streaming=False)
    assert {row["body"] for row in rows_of(BatchReader(Reading(access, options, COLUMNS)))} == {
        b"%d" % number for number in range(QUEUES * EACH)
    }
    everything = read_options({"subscribePattern": ".*"}, streaming=False)

    with shared.use(access) as link:
        found = link.run(Looker(link, everything).matching())
        brokers = link.run(Admin(link.cluster).cluster_info())
    assert topic in found
    own = {*brokers.broker_addr_table, *brokers.cluster_addr_table}
    strange = re.compile("%.*|rmq_sys.*|RMQ_SYS.*|SCHEDULE.*|.*_REPLY_TOPIC|TBW102|OFFSET_MOVED.*|SELF_TEST.*")
    assert not [name for name in found if name in own or strange.fullmatch(name)]


@ON_BOTH
def test_a_sink_on_genuine_brokers(access: Access) -> None:
    topic = "test_a_sink_on_genuine_brokers"
    sending = Sending.of({"nameServer": "127.0.0.1:1", "topic": topic, "sendTimeoutMs": "30000"}, [("body", "string")])
    own = replace(sending, access=access)
    assert own.send(iter([pa.RecordBatch.from_pydict({"body": ["x", "y"]})]), "job-0-0", shared).messages == 2
    wait_until_readable(access, topic, QUEUES * EACH + 2)
    rows = [
        row for row in rows_of(BatchReader(reading(access, topic))) if row["keys"] and row["keys"].startswith("job")
    ]
    assert sorted(row["body"] for row in rows) == [b"x", b"y"]
    keys = {row["keys"] for row in rows}
    assert len(keys) == 2
    assert all(re.fullmatch("job-0-0-[0-9a-f]{24}-0", key) for key in keys)


@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_a_queue_emptied_by_retention_is_known_again_when_its_topic_is_made_anew(version: str, tmp_path: Path) -> None:
    """4.9 leaves its first offset where it was."""
    need_jars(version)
    file_bytes, name = 1 << 20, "broker-old"
    settings = {"brokerName": "broker-a", "mappedFileSizeCommitLog": file_bytes}
    with run_site(version, tmp_path) as site:
        site.make_whole(name, settings=settings)
        for topic in ("gone", "busy"):
            site.create_topic(topic, 1)
        send_numbers(site, "gone", range(10))
        with patient_producer(site, compress_from_bytes=file_bytes) as producer:
            producer.send_many(OutgoingMessage("busy", b"0".ljust(16_000)) for _ in range(file_bytes // 16_000 + 20))
        site.broker(name).stop()
        min((site.folder / name / "store" / "commitlog").iterdir()).unlink()
        site.make_whole(name, settings=settings)
        reader = StreamReader(reading(access_to(site.name_server), "gone", streaming=True, startingOffsets="latest"))
        begin = reader.initialOffset()
        end = reader.latestOffset(begin, ReadAllAvailable())
        assert list(from_json(end).values()) == [10]
        assert [mark.offset for mark in marks_from_json(end).values() if mark.stored_ms < 0] == [9]
        site.admin("deleteTopic", "-c", "DefaultCluster", "-t", "gone", "-n", site.name_server)
        site.create_topic("gone", 1)
        send_numbers(site, "gone", range(100, 115))
        wait_until_readable(access_to(site.name_server), "gone", 15)
        with pytest.raises(DataLossError, match="the topic was made anew since it was read"):
            reader.latestOffset(end, ReadAllAvailable())
        shared.close()
