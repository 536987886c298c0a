"""Brokers that lag, move and come back: what is not there yet is not lost."""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import structlog.testing
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.access import Access
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.selection import to_queue
from rocketcrew.client.sync import SyncProducer, run_with_cluster
from rocketcrew.remoting.bodies import TopicRouteData
from rocketcrew.remoting.codes import PERM_READ, RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import UnreachableError
from rocketcrew.remoting.headers import PullRequest, PullResponse
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.source.batch_reader import part_of
from rocketcrew.source.connections import Connections, shared
from rocketcrew.source.errors import DataLossError
from rocketcrew.source.offsets import Mark, from_json, marks_from_json, to_json
from rocketcrew.source.planning import Range
from rocketcrew.source.pulling import Reading
from rocketcrew.source.reading import read_options
from rocketcrew.source.stream_reader import LOOK_INTERVAL_S, StreamReader

from .conftest import PATIENT_MS, WallClock

TOPIC = "orders"
QUEUE = MessageQueue(TOPIC, "embedded", 0)


Place = dict[str, Any]
Shown = Callable[[TopicRouteData], TopicRouteData]


class Cluster:
    """The embedded broker, shown as what it is not, and answering as that."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.pauses = 0
        self.routes = 0
        self.has = 1 << 40
        """How many messages of the queue have arrived at the replica that answers."""
        self.all = 10
        self.minimum = 0
        self.unreadable = set[int]()
        self.looks = 0
        """How often the queue's end was asked for."""
        self.after = 0
        """How many pauses of a reader it lasts until everything is as it should be."""
        self.shown: Shown = lambda route: route
        self._real = TopicRouteData()
        broker.name_server_intercepts.append(self._route)
        broker.intercepts.append(self._answer)

    async def pause(self, seconds: float) -> None:
        self.pauses += 1
        await asyncio.sleep(0)

    def _route(self, command: Command) -> Command | None:
        if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC or self.pauses >= self.after > 0:
            return None
        self.routes += 1
        route = self._real
        return command.response(ResponseCode.SUCCESS, body=self.shown(route).encode())

    def learn(self) -> None:
        """Keep the topic's true route; what is shown is made of it."""
        self.broker.name_server_intercepts.remove(self._route)
        self._real = run_with_cluster(self.broker.name_server, lambda cluster: cluster.route(TOPIC))
        self.broker.name_server_intercepts.append(self._route)

    def _answer(self, command: Command) -> Command | None:
        if self.pauses >= self.after > 0 or command.fields.get("queueId") != "0":
            return None
        if command.code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
            ends = command.code == RequestCode.GET_MAX_OFFSET
            self.looks += ends
            offset = min(self.has, self.all) if ends else self.minimum
            return command.response(ResponseCode.SUCCESS, {"offset": str(offset)})
        if command.code != RequestCode.PULL_MESSAGE:
            return None
        asked = PullRequest.from_fields(command.fields).queue_offset
        if asked < self.has and asked not in self.unreadable:
            return None
        # What a slave says of an offset that it does not have: 21 becomes 20 there (PullMessageProcessor.java).
        fields = PullResponse(0, asked, 0, self.has).to_fields()
        return command.response(ResponseCode.PULL_RETRY_IMMEDIATELY, fields)


@pytest.fixture
def cluster(broker: EmbeddedBroker, access: Access) -> Iterator[Cluster]:
    with SyncProducer(access, send_timeout_ms=PATIENT_MS) as producer:
        for number in range(10):
            producer.send(OutgoingMessage(TOPIC, b"%d" % number), selector=to_queue(QUEUE))
    made = Cluster(broker)
    made.learn()
    yield made
    shared.close()


def slave_only(route: TopicRouteData) -> TopicRouteData:
    (data,) = route.broker_datas
    return replace(route, broker_datas=(replace(data, broker_addrs={1: data.broker_addrs[0]}),))


def acting_master(route: TopicRouteData) -> TopicRouteData:
    queues = tuple(replace(data, perm=PERM_READ) for data in route.queue_datas)
    (data,) = route.broker_datas
    return replace(route, queue_datas=queues, broker_datas=(replace(data, enable_acting_master=True),))


def reading(access: Access, *, streaming: bool = False, **options: str) -> Reading:
    given = {
        "assign": '{"orders": {"embedded": [0]}}',
        "retryIntervalMs": "1",
        "numRetries": "4",
        "pullBatchSize": "2",
    } | options
    return Reading(access, read_options(given, streaming), ("queueOffset",))


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [row["queueOffset"] for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("shown", [slave_only, acting_master])
@pytest.mark.parametrize("fail", ["true", "false"])
def test_what_a_replica_does_not_have_yet_is_waited_for(
    cluster: Cluster, access: Access, connections: Connections, shown: Shown, fail: str
) -> None:
    cluster.shown, cluster.has, cluster.after = shown, 6, 4
    lagging = reading(access, failOnDataLoss=fail)
    with connections.use(access) as link:
        link.run(link.cluster.route(TOPIC))
        cluster.pauses = 0
        assert offsets(lagging.read(Range(QUEUE, 0, 10), connections, cluster.pause)) == list(range(10))
    assert cluster.pauses == 4


@pytest.mark.parametrize("shown", [slave_only, acting_master])
def test_a_replica_that_stays_short_is_an_error_and_never_passed_over(
    cluster: Cluster, access: Access, connections: Connections, shown: Shown
) -> None:
    cluster.shown, cluster.has = shown, 6
    found: list[int] = []
    with pytest.raises(UnreachableError, match=r"offsets 0 to 6 of queue 0 of topic orders.*a replica may lag"):
        for batch in reading(access, failOnDataLoss="false").read(Range(QUEUE, 0, 10), connections, cluster.pause):
            found += [row["queueOffset"] for row in batch.to_pylist()]
    assert cluster.pauses == 4


def test_what_a_master_does_not_have_is_lost_after_all_tries(
    cluster: Cluster, access: Access, connections: Connections
) -> None:
    cluster.has = 6
    whole = Range(QUEUE, 0, 10)
    with pytest.raises(DataLossError, match="offsets 6 to 9"):
        list(reading(access).read(whole, connections, cluster.pause))
    assert cluster.pauses == 4
    assert offsets(reading(access, failOnDataLoss="false").read(whole, connections, cluster.pause)) == list(range(6))


def test_a_broker_with_a_new_address_is_found(
    cluster: Cluster, access: Access, connections: Connections, unused: str
) -> None:
    moved = {"done": False}

    def shown(route: TopicRouteData) -> TopicRouteData:
        (data,) = route.broker_datas
        return route if moved["done"] else replace(route, broker_datas=(replace(data, broker_addrs={0: unused}),))

    cluster.shown = shown
    with connections.use(access) as link:
        link.run(link.cluster.route(TOPIC))
        moved["done"] = True
        assert offsets(reading(access).read(Range(QUEUE, 0, 10), connections)) == list(range(10))
        moved["done"] = False
        link.run(link.cluster.route(TOPIC, refresh=True))
        moved["done"] = True
        stream = StreamReader(reading(access, streaming=True, startingOffsets="earliest"))
        assert stream.latestOffset(stream.initialOffset(), ReadAllAvailable())[TOPIC]["embedded"]["0"] == 10


@pytest.fixture
def unused() -> Iterator[str]:
    """An address that nobody listens on, nor can meanwhile: it is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("available_now", [True, False])
@pytest.mark.parametrize(("given", "tries"), [({}, 3), ({"numRetries": "5"}, 5)])
def test_a_stream_that_has_met_no_name_server_yet_gives_up_as_soon_as_a_batch(
    unused: str, given: dict[str, str], tries: int, available_now: bool
) -> None:
    options = read_options({"subscribe": TOPIC, "retryIntervalMs": "1"} | given, streaming=True)
    stream = StreamReader(Reading(Access(unused), options, ("queueOffset",)), Clocks())
    with structlog.testing.capture_logs() as lines, pytest.raises(UnreachableError):
        stream.prepareForTriggerAvailableNow() if available_now else stream.initialOffset()
    shared.close()
    asked = [line["log_level"] for line in lines if line["event"] == "asked_again"]
    assert asked == ["warning", *["debug"] * (tries - 1)]


def part_sizes(stream: StreamReader, begin: Place, end: Place) -> list[int]:
    return [part_of(part).size for part in stream.partitions(begin, end)]


class Clocks:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1
        return self.now_s


def at(offset: int) -> Place:
    return {TOPIC: {"embedded": {"0": offset}}}


def test_a_stream_waits_where_a_replica_lags_and_goes_back_where_the_end_was_lost(
    cluster: Cluster, access: Access
) -> None:
    cluster.shown, cluster.has = acting_master, 8
    for fail in ("true", "false"):
        stream = StreamReader(reading(access, streaming=True, failOnDataLoss=fail), Clocks())
        assert stream.latestOffset(at(10), ReadAllAvailable()) == at(10)
    cluster.shown = lambda route: route
    stream = StreamReader(reading(access, streaming=True, failOnDataLoss="false", maxOffsetsPerTrigger="3"), Clocks())
    back = stream.latestOffset(at(10), ReadMaxRows(3))
    assert from_json(back) == {QUEUE: 8}
    assert stream.partitions(at(10), back) == []
    with pytest.raises(DataLossError):
        StreamReader(reading(access, streaming=True), Clocks()).latestOffset(at(10), ReadAllAvailable())


def test_a_replica_that_has_another_message_than_was_read_is_not_the_same_queue(
    cluster: Cluster, access: Access
) -> None:
    cluster.shown = acting_master
    begin = to_json({QUEUE: 8}, {QUEUE: Mark(7, 1_000)})
    with pytest.raises(DataLossError, match="made anew since it was read"):
        StreamReader(reading(access, streaming=True), Clocks()).latestOffset(begin, ReadAllAvailable())
    back = StreamReader(reading(access, streaming=True, failOnDataLoss="false"), Clocks())
    assert from_json(back.latestOffset(begin, ReadAllAvailable())) == {QUEUE: 0}


def test_a_first_batch_waits_for_a_master_where_a_replica_lacks_what_is_before_it(
    cluster: Cluster, access: Access
) -> None:
    as_it_is = cluster.shown

    class Later(Clocks):
        def __call__(self) -> float:
            if self.now_s >= 10:
                cluster.shown, cluster.has = as_it_is, 1 << 40
            return super().__call__()

    options = reading(access, streaming=True, startingOffsets='{"orders": {"embedded": {"0": 10}}}')
    cluster.shown, cluster.has = acting_master, 8
    for clocks in (Clocks(), Later()):
        stream = StreamReader(options, clocks)
        begin = stream.initialOffset()
        assert from_json(begin) == {QUEUE: 10}
        if type(clocks) is Clocks:
            with pytest.raises(UnreachableError, match=r"no master says.*queue 0 of topic orders on embedded"):
                stream.latestOffset(begin, ReadAllAvailable())
    end = stream.latestOffset(begin, ReadAllAvailable())
    assert (from_json(end), marks_from_json(end)[QUEUE].offset) == ({QUEUE: 10}, 9)


def test_a_queue_emptied_by_retention_whose_first_offset_stays_is_known_again_and_looked_at_once(
    cluster: Cluster, access: Access
) -> None:
    """So it is on 4.9."""
    options = {
        "assign": '{"orders": {"embedded": [0, 1]}}',
        "startingOffsets": '{"orders": {"embedded": {"0": 10, "1": 0}}}',
    }
    cluster.unreadable = set(range(10))
    clock = Clocks()
    stream = StreamReader(reading(access, streaming=True, **options), clock, lambda: 500_000)
    end, looks = stream.initialOffset(), list[int]()
    for _ in range(3):
        with SyncProducer(access, send_timeout_ms=PATIENT_MS) as producer:
            producer.send(OutgoingMessage(TOPIC, b"other"), selector=to_queue(QUEUE._replace(queue_id=1)))
        cluster.looks = 0
        end = stream.latestOffset(end, ReadAllAvailable())
        looks.append(cluster.looks)
    assert (looks, marks_from_json(end)[QUEUE]) == ([4, 1, 1], Mark(9, -500_000))
    cluster.unreadable = set()  # the topic is made anew, and is as long as before
    clock.now_s += 60
    with pytest.raises(
        DataLossError, match="queue 0 of topic orders on embedded: the topic was made anew since it was"
    ):
        stream.latestOffset(end, ReadAllAvailable())
    again = StreamReader(reading(access, streaming=True, failOnDataLoss="false", **options), Clocks())
    assert from_json(again.latestOffset(end, ReadAllAvailable()))[QUEUE] == 0


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_a_message_that_cannot_be_read_for_a_while_is_the_same_when_it_can(
    cluster: Cluster, access: Access, wall: WallClock, start: str
) -> None:
    """It counted as deleted, and as older than a minute before: the query ended with an error, or read all of it again."""
    if start == "earliest":
        cluster.minimum = 9
    cluster.unreadable = {9}
    stream = StreamReader(reading(access, streaming=True, startingOffsets=start), Clocks(), lambda: wall() + 1)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert (from_json(end)[QUEUE], marks_from_json(end)[QUEUE].stored_ms < 0) == (10, True)
    cluster.unreadable, cluster.all = set(), 11
    with SyncProducer(access, send_timeout_ms=PATIENT_MS) as producer:
        producer.send(OutgoingMessage(TOPIC, b"10"), selector=to_queue(QUEUE))
    assert from_json(stream.latestOffset(end, ReadAllAvailable()))[QUEUE] == 11


def test_an_offset_without_a_message_is_looked_at_once_more(cluster: Cluster, access: Access) -> None:
    """Of a compacted topic, say."""
    cluster.unreadable = {1, 3, 5, 7, 9}
    stream = StreamReader(reading(access, streaming=True, startingOffsets="earliest"), Clocks())
    end, seen = stream.initialOffset(), list[tuple[int, int, int]]()
    for _ in range(4):
        cluster.looks = 0
        end = stream.latestOffset(end, ReadMaxRows(3))
        seen.append((from_json(end)[QUEUE], marks_from_json(end)[QUEUE].offset, cluster.looks))
    assert seen == [(3, 2, 1), (6, 2, 2), (9, 8, 1), (10, 8, 2)]


def test_what_a_replica_has_deleted_its_master_may_have(cluster: Cluster, access: Access) -> None:
    cluster.shown, cluster.minimum = acting_master, 10
    stream = StreamReader(reading(access, streaming=True), Clocks())
    with pytest.raises(UnreachableError, match=r"no master says.*queue 0 of topic orders on embedded"):
        stream.latestOffset(stream.initialOffset(), ReadAllAvailable())


class Depths(Clocks):
    """Keeps from how deep the test's thread asks for the time."""

    def __init__(self) -> None:
        super().__init__()
        self.found = set[int]()
        self._thread = threading.get_ident()

    def __call__(self) -> float:
        if threading.get_ident() == self._thread:
            self.found.add(len(inspect.stack(0)))
        return super().__call__()


def test_a_first_batch_that_waits_for_long_says_so_once_and_goes_no_deeper(cluster: Cluster, access: Access) -> None:
    cluster.shown, cluster.has = acting_master, 8
    options = reading(access, streaming=True, startingOffsets='{"orders": {"embedded": {"0": 10}}}', numRetries="20")
    clock = Depths()
    stream = StreamReader(options, clock)
    begin = stream.initialOffset()
    with structlog.testing.capture_logs() as lines, pytest.raises(UnreachableError, match="no master says"):
        stream.latestOffset(begin, ReadAllAvailable())
    assert [line["event"] for line in lines] == ["asked_again"]
    assert "begins in queue 0 of topic orders on embedded: see" in lines[0]["error"]
    assert max(clock.found) - min(clock.found) < 10


def test_a_queue_that_is_another_one_at_each_look_is_an_error_in_the_end(cluster: Cluster, access: Access) -> None:
    """Its first offset says that the mark was deleted, and yet another message is there."""
    cluster.minimum, cluster.all = 10, 11
    stream = StreamReader(reading(access, streaming=True), Clocks())
    with pytest.raises(UnreachableError, match="queue 0 of topic orders on embedded had other messages at each of 60"):
        stream.latestOffset(to_json({QUEUE: 10}, {QUEUE: Mark(9, 5)}), ReadAllAvailable())


def test_available_now_waits_between_looks_that_see_another_queue_too(cluster: Cluster, access: Access) -> None:
    """All of them were over in a third of a second: a broker that took longer ended the query."""

    def clock() -> float:
        if cluster.looks >= 3:
            cluster.minimum = 0  # now the first offset says so as well
        return time.monotonic()

    cluster.minimum, cluster.all = 10, 11
    stream = StreamReader(reading(access, streaming=True), clock)
    stream.prepareForTriggerAvailableNow()
    cluster.looks, began = 0, time.monotonic()
    with pytest.raises(DataLossError, match="the topic was made anew since it was read"):
        stream.latestOffset(to_json({QUEUE: 10}, {QUEUE: Mark(9, 5)}), ReadAllAvailable())
    assert time.monotonic() - began >= 2 * LOOK_INTERVAL_S


def test_a_queue_that_was_made_anew_is_read_from_its_first_message_in_batches_of_the_limit(
    cluster: Cluster, access: Access
) -> None:
    stream = StreamReader(reading(access, streaming=True, failOnDataLoss="false", maxOffsetsPerTrigger="4"), Clocks())
    begin, taken = at(1000), list[int]()
    for _ in range(5):
        end = stream.latestOffset(begin, ReadMaxRows(4))
        taken += part_sizes(stream, begin, end)
        begin = end
    assert from_json(begin) == {QUEUE: 10}
    assert taken == [4, 4, 2]


def test_who_has_seen_the_queue_before_reads_what_is_new_since(cluster: Cluster, access: Access) -> None:
    def reader(wall_ms: int) -> StreamReader:
        options = reading(access, streaming=True, failOnDataLoss="false")
        return StreamReader(options, Clocks(), lambda: wall_ms)

    for wall_ms, expected in ((0, 0), (1 << 42, 10)):
        stream = reader(wall_ms)
        assert stream.latestOffset(at(10), ReadAllAvailable()) == at(10)
        assert from_json(stream.latestOffset(at(11), ReadAllAvailable())) == {QUEUE: expected}


def test_the_first_batch_of_a_query_that_begins_at_the_latest_fixes_where_that_is(
    access: Access, cluster: Cluster
) -> None:
    first = StreamReader(reading(access, streaming=True), Clocks())
    begin = first.initialOffset()
    with SyncProducer(access, send_timeout_ms=PATIENT_MS) as producer:
        producer.send(OutgoingMessage(TOPIC, b"between"), selector=to_queue(QUEUE))
    planned = first.latestOffset(begin, ReadAllAvailable())
    # It failed, and is planned again by another process, which begins at another latest.
    cluster.all = 11
    again = StreamReader(reading(access, streaming=True), Clocks())
    assert again.partitions(again.initialOffset(), planned) == []
    end = again.latestOffset(planned, ReadAllAvailable())
    assert part_sizes(again, planned, end) == [1]
