"""`format("rocketmq")` as Spark's users meet it: one local session, the embedded broker, nothing registered."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from documented import DOCS, swapped
from harness import SEND_TIMEOUT_MS, Broker, patient_producer, wait_until

from pyspark_rocketmq import stream_lag
from rocketcrew import OutgoingMessage
from rocketcrew.client.admin import Admin
from rocketcrew.client.operations import Operations
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.spark.session import SessionSettings, open_session

pytestmark = pytest.mark.slow

QUEUES = 4
PAGE = DOCS / "how-to/spark-source.md"
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = Broker(tmp_path_factory.mktemp("broker"))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    conf = {"spark.sql.shuffle.partitions": "2", "spark.sql.streaming.pollingDelay": "50ms"}
    session = open_session(SessionSettings(tmp_path_factory.mktemp("spark"), driver_memory="600m", conf=conf))
    yield session.spark
    session.close()


class Topic:
    """A topic with numbered messages, queue by queue in turn; the body is the number."""

    def __init__(self, broker: Broker, name: str, count: int) -> None:
        self.broker = broker
        self.name = name
        self.count = 0
        self.send(count)

    def send(self, count: int) -> None:
        with patient_producer(self.broker) as producer:
            for number in range(self.count, self.count + count):
                tags = "even" if number % 2 == 0 else "odd"
                message = OutgoingMessage(
                    self.name, b"%d" % number, tags, f"key-{number}", properties={"n": str(number)}
                )
                producer.send(message, selector=by_number(number))
        self.count += count

    def options(self, **more: object) -> dict[str, str]:
        told = {"nameServer": self.broker.name_server, "subscribe": self.name}
        return told | {name: str(value) for name, value in more.items()}


def to_topic(broker: Broker, topic: str, **more: str) -> dict[str, str]:
    """Of a sink: on a busy machine an answer may take longer than the usual 3 s, and the message would be there twice."""
    return {"nameServer": broker.name_server, "topic": topic, "sendTimeoutMs": str(SEND_TIMEOUT_MS), **more}


def by_number(number: int) -> Callable[[Sequence[MessageQueue]], MessageQueue]:
    def choose(queues: Sequence[MessageQueue]) -> MessageQueue:
        return sorted(queues)[number % QUEUES]

    return choose


def numbers(frame: Any) -> list[int]:
    return sorted(int(row.body) for row in frame.select("body").collect())


def group_offsets(broker: Broker, group: str, topic: str) -> list[int | None]:
    async def ask(cluster: Any) -> list[int | None]:
        queues = sorted(await cluster.queues_to_read(topic))
        return [
            await Operations(cluster).query_consumer_offset(group, mq, set_zero_if_not_found=False) for mq in queues
        ]

    return run_with_cluster(broker.name_server, ask)


def test_a_batch_read_with_all_columns(spark: Any, broker: Broker) -> None:
    topic = Topic(broker, "batch", 40)
    frame = spark.read.format("rocketmq").options(**topic.options()).load()
    assert numbers(frame) == list(range(40))
    row = frame.where("keys = 'key-7'").collect()[0]
    assert (row.topic, row.brokerName, row.queueId, row.queueOffset) == ("batch", "broker-a", 7 % QUEUES, 1)
    assert (bytes(row.body), row.tags, row.properties["n"], row.reconsumeTimes) == (b"7", "odd", "7", 0)
    assert row.messageId == row.properties["UNIQ_KEY"]
    assert row.bornTimestamp <= row.storeTimestamp
    some = spark.read.format("rocketmq").options(
        **topic.options(tags="even", includeBody="false", includeProperties="false")
    )
    assert "body" not in some.load().columns
    assert some.load().count() == 20
    patterned = {"nameServer": broker.name_server, "subscribePattern": "bat.h|nothing"}
    assert spark.read.format("rocketmq").options(**patterned).load().count() == 40
    chosen = spark.read.format("rocketmq").options(**topic.options()).schema("queueOffset bigint, keys string").load()
    assert {(row.queueOffset, row.keys) for row in chosen.collect()} == {
        (at // QUEUES, f"key-{at}") for at in range(40)
    }


def test_ranges_are_split_and_offsets_choose(spark: Any, broker: Broker) -> None:
    topic = Topic(broker, "ranges", 80)
    assign = '{"ranges": {"broker-a": [1]}}'
    offsets = '{"ranges": {"broker-a": {"1": %d}}}'
    one = {
        "nameServer": broker.name_server, "assign": assign, "minPartitions": "5",
        "startingOffsets": offsets % 3, "endingOffsets": offsets % 18,
    }  # fmt: skip
    frame = spark.read.format("rocketmq").options(**one).load()
    assert frame.rdd.getNumPartitions() == 5
    assert numbers(frame) == [1 + QUEUES * at for at in range(3, 18)]
    late = topic.options(startingTimestamp=1 << 42, startingOffsetsByTimestampStrategy="latest")
    assert spark.read.format("rocketmq").options(**late).load().count() == 0


def test_each_use_of_a_data_frame_has_its_own_rows_with_filters_pushed_down_or_not(spark: Any, broker: Broker) -> None:
    topic = Topic(broker, "uses", 40)
    each = 40 // QUEUES
    for setting in ("true", "false"):
        spark.conf.set(PUSH_DOWN, setting)
        try:
            whole = spark.read.format("rocketmq").options(**topic.options()).load()
            one = whole.where("queueId = 1")
            assert numbers(one.where("queueOffset >= 5")) == [1 + QUEUES * at for at in range(5, each)]
            assert (whole.count(), one.count(), whole.count()) == (40, each, 40)
            assert (one.union(whole).count(), whole.union(one).count()) == (40 + each, 40 + each)
            assert one.alias("a").join(whole.alias("b"), "queueOffset").count() == each * QUEUES
            assert one.join(whole.where("queueId = 2").select("queueOffset"), "queueOffset").count() == each
            whole.createOrReplaceTempView("uses")
            since = spark.sql("SELECT storeTimestamp FROM uses WHERE keys = 'key-20'").collect()[0][0]
            assert spark.sql("SELECT * FROM uses WHERE queueOffset = 3").count() == QUEUES
            assert whole.where(whole.storeTimestamp >= since).where("tags = 'even'").count() >= each
            assert spark.sql("SELECT count(*) FROM uses").collect()[0][0] == 40
        finally:
            spark.conf.set(PUSH_DOWN, "false")


def test_the_ends_of_a_batch_stay_where_its_first_action_found_them(spark: Any, broker: Broker) -> None:
    topic = Topic(broker, "ends", 4)
    reader = spark.read.format("rocketmq").options(**topic.options())
    frame = reader.load()
    assert frame.count() == 4
    topic.send(4)
    assert (frame.count(), frame.where("queueOffset >= 0").count(), reader.load().count()) == (4, 4, 8)


def test_a_stream_takes_what_is_available_in_steps_and_goes_on_from_its_checkpoint(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    topic = Topic(broker, "stream", 50)

    def run() -> list[int]:
        options = topic.options(startingOffsets="earliest", maxOffsetsPerTrigger=20, group="stream-group")
        stream = spark.readStream.format("rocketmq").options(**options).load().selectExpr("cast(body as string) body")
        writing = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writing.trigger(availableNow=True).start(str(tmp_path / "table"))
        query.awaitTermination()
        lags.extend(stream_lag(progress)[topic.name] for progress in query.recentProgress if progress["numInputRows"])
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    lags: list[int] = []
    assert run() == [20, 20, 10]
    assert lags == [30, 10, 0]
    assert numbers(spark.read.parquet(str(tmp_path / "table"))) == list(range(50))
    assert group_offsets(broker, "stream-group", "stream") == [13, 13, 12, 12]
    topic.send(6)
    assert run() == [6]
    assert numbers(spark.read.parquet(str(tmp_path / "table"))) == list(range(56))
    assert group_offsets(broker, "stream-group", "stream") == [14, 14, 14, 14]


def test_a_batch_that_is_run_again_has_the_same_rows_and_keys(spark: Any, broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker, "again", 24)
    with patient_producer(broker) as producer:
        producer.send(OutgoingMessage("copies", b"makes the topic"))
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        options = topic.options(startingOffsets="earliest", minPartitions=6)
        stream = spark.readStream.format("rocketmq").options(**options).load().drop("topic")
        writing = stream.writeStream.format("rocketmq").options(**to_topic(broker, "copies"))
        writing = writing.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        writing.start().awaitTermination()

    def copied() -> list[tuple[str, bytes]]:
        frame = spark.read.format("rocketmq").options(nameServer=broker.name_server, subscribe="copies").load()
        found = [(row.properties.get("SPARK_ROW_KEY"), bytes(row.body)) for row in frame.collect()]
        return sorted((key, body) for key, body in found if key is not None)

    run()
    first = copied()
    assert sorted(int(body) for _, body in first) == list(range(24))
    assert len({key for key, _ in first}) == 24
    for told in (checkpoint / "commits").iterdir():
        told.unlink()  # as if the driver had died before it could say that the batch is through
    topic.send(4)
    run()
    second = copied()
    again = [pair for pair in second if pair[0] in dict(first)]
    assert again == sorted(first * 2)
    assert sorted(int(body) for key, body in second if key not in dict(first)) == list(range(24, 28))


def test_what_a_table_holds_is_sent_and_read_back(spark: Any, broker: Broker) -> None:
    Topic(broker, "sink", 0)
    frame = spark.range(30).selectExpr(
        "cast(id as string) body", "'red' tags", "case when id < 10 then concat('k', id) end keys",
        "map('colour', 'red', 'n', cast(id as string)) properties",
    )  # fmt: skip
    to = frame.write.format("rocketmq").options(**to_topic(broker, "sink", writeId="nightly"))
    to.mode("append").save()
    back = spark.read.format("rocketmq").options(nameServer=broker.name_server, subscribe="sink").load().collect()
    assert sorted(int(row.body) for row in back) == list(range(30))
    assert all(row.tags == "red" and row.properties["n"] == row.body.decode() for row in back)
    keys = {row.properties["SPARK_ROW_KEY"] for row in back}
    assert len(keys) == 30
    for row in back:
        number = int(row.body)
        assert row.keys == (f"k{number}" if number < 10 else row.properties["SPARK_ROW_KEY"])
    to.mode("append").save()
    twice = spark.read.format("rocketmq").options(nameServer=broker.name_server, subscribe="sink").load().collect()
    assert sorted(row.properties["SPARK_ROW_KEY"] for row in twice) == sorted([*keys] * 2), "by its name"


def test_rows_of_a_key_keep_their_order(spark: Any, broker: Broker) -> None:
    Topic(broker, "keyed", 0)
    frame = spark.range(400).selectExpr(
        "cast(id as string) body", "concat('key-', id % 7) shardingKey", "id", "0L delayMs"
    )
    ordered = frame.repartition(3, "shardingKey").sortWithinPartitions("id").drop("id")
    ordered.write.format("rocketmq").options(**to_topic(broker, "keyed")).mode("append").save()
    read = spark.read.format("rocketmq").options(
        nameServer=broker.name_server, subscribe="keyed", maxRecordsPerPartition=40
    )
    rows = read.load().orderBy("queueId", "queueOffset").collect()
    assert len(rows) == 400
    assert read.load().rdd.getNumPartitions() >= 10
    queues: dict[str, set[int]] = {}
    numbers_of: dict[str, list[int]] = {}
    for row in rows:
        key = row.properties["__SHARDINGKEY"]
        queues.setdefault(key, set()).add(row.queueId)
        numbers_of.setdefault(key, []).append(int(row.body))
    assert all(len(found) == 1 for found in queues.values())
    assert numbers_of == {f"key-{key}": list(range(key, 400, 7)) for key in range(7)}


def test_a_stream_goes_on_at_its_group_waits_for_rows_and_writes_from_foreach_batch(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    """minOffsetsPerTrigger by a pattern of topics, from the offsets of a group; the batch that is run again has its keys."""
    topic = Topic(broker, "waits-1", 6)
    Topic(broker, "written", 0)

    async def commit(cluster: Any) -> None:
        for mq in await cluster.queues_to_read(topic.name):
            await Admin(cluster).create_group(await cluster.address_of(mq), SubscriptionGroupConfig("waits-group"))
            await Operations(cluster).update_consumer_offset("waits-group", mq, 1)

    run_with_cluster(broker.name_server, commit)
    sizes: list[int] = []
    check = tmp_path / "check"

    def write(frame: Any, _batch: int) -> None:
        sizes.append(frame.count())
        to = frame.select("body").write.format("rocketmq").mode("append")
        to.options(**to_topic(broker, "written", writeId="copy")).save()

    def start() -> Any:
        options = {
            "nameServer": broker.name_server, "subscribePattern": "waits-.*", "startingOffsets": "group",
            "group": "waits-group", "minOffsetsPerTrigger": "6", "maxTriggerDelay": "1h",
        }  # fmt: skip
        stream = spark.readStream.format("rocketmq").options(**options).load()
        return stream.writeStream.foreachBatch(write).option("checkpointLocation", str(check)).start()

    def run_to(batch: int) -> None:
        query = start()
        try:
            if (
                not sizes
            ):  # the first batch fixes where it begins, and the second takes what there is, as Kafka's first does
                wait_until(check.joinpath("commits", "1").exists, what="the first rows")
                topic.send(3)
                topic.send(3)
            wait_until(check.joinpath("commits", str(batch)).exists, what=f"batch {batch}")
        finally:
            query.stop()

    run_to(2)
    assert sizes == [0, 2, 6], "none with three"
    (check / "commits" / "2").unlink()  # as if the driver had died before it could say so
    (check / "commits" / ".2.crc").unlink(missing_ok=True)
    run_to(2)
    assert sizes == [0, 2, 6, 6]
    rows = spark.read.format("rocketmq").options(nameServer=broker.name_server, subscribe="written").load().collect()
    found = Counter((row.properties["SPARK_ROW_KEY"], int(row.body)) for row in rows)
    assert sorted(number for (_, number), times in found.items() if times == 1) == [4, 5]
    assert sorted(number for (_, number), times in found.items() if times == 2) == list(range(6, 12))


def test_the_first_batch_that_failed_has_what_a_group_had_not_consumed_when_the_query_was_new(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    topic, got = Topic(broker, "first", 40), list[int]()

    async def commit(cluster: Any, offset: int) -> None:
        for mq in await cluster.queues_to_read(topic.name):
            await Admin(cluster).create_group(await cluster.address_of(mq), SubscriptionGroupConfig("first-group"))
            await Operations(cluster).update_consumer_offset("first-group", mq, offset)

    def run(write: Callable[[Any, int], None]) -> None:
        stream = spark.readStream.format("rocketmq").options(
            **topic.options(startingOffsets="group", group="first-group")
        )
        writing = stream.load().writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "check"))
        writing.trigger(availableNow=True).start().awaitTermination()

    def die(frame: Any, _batch: int) -> None:
        if frame.count():
            raise RuntimeError("the driver dies")

    run_with_cluster(broker.name_server, lambda cluster: commit(cluster, 2))
    with pytest.raises(Exception, match="the driver dies"):
        run(die)
    run_with_cluster(broker.name_server, lambda cluster: commit(cluster, 7))  # the group goes on
    run(lambda frame, _batch: got.extend(numbers(frame)))
    assert sorted(got) == list(range(2 * QUEUES, 40))
    assert group_offsets(broker, "first-group", topic.name) == [7] * QUEUES


def test_a_batch_that_failed_has_no_row_of_a_topic_made_anew_and_the_next_one_has_all(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    topic, got = Topic(broker, "anew", 40), list[int]()

    def run(write: Callable[[Any, int], None], fail: str) -> None:
        stream = spark.readStream.format("rocketmq").options(
            **topic.options(startingOffsets="earliest", failOnDataLoss=fail)
        )
        writing = stream.load().writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "check"))
        writing.trigger(availableNow=True).start().awaitTermination()

    def die(_frame: Any, _batch: int) -> None:
        raise RuntimeError("the driver dies")

    def keep(frame: Any, _batch: int) -> None:
        got.extend(numbers(frame))

    async def delete(cluster: Any) -> None:
        for address in await Admin(cluster).master_addresses():
            await Admin(cluster).delete_topic(address, topic.name)
        await Admin(cluster).delete_route(topic.name)

    with pytest.raises(Exception, match="the driver dies"):
        run(die, "false")
    run_with_cluster(broker.name_server, delete)
    topic.send(60)
    with pytest.raises(Exception, match="the topic was made anew since it was read"):
        run(keep, "true")
    assert got == []
    run(keep, "false")
    assert sorted(got) == list(range(40, 100))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "or assign (queues), and none is given"),
        ({"subscribe": "no-such-topic"}, "topic no-such-topic does not exist"),
        ({"subscribe": "a", "failOnDatLoss": "true"}, "did you mean failOnDataLoss?"),
        ({"subscribe": "a", "startingOffsets": "first"}, "option startingOffsets: 'first' is none of earliest"),
    ],
)
def test_wrong_options_are_one_clear_line(spark: Any, broker: Broker, options: dict[str, str], said: str) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - Spark's own, with our line in it
        spark.read.format("rocketmq").options(nameServer=broker.name_server, **options).load().count()
    lines = [line for line in str(raised.value).splitlines() if "UsageError: rocketmq: " in line]
    assert len(lines) == 1
    assert said in lines[0]


def test_messages_cannot_be_overwritten(spark: Any, broker: Broker) -> None:
    frame = spark.range(1).selectExpr("'x' body")
    to = frame.write.format("rocketmq").options(nameServer=broker.name_server, topic="sink")
    with pytest.raises(Exception, match="write with mode"):
        to.mode("overwrite").save()


def test_the_example_of_the_page_copies_to_the_topic_that_it_names_and_no_other(
    spark: Any, broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    own = {"10.0.0.5:9876;10.0.0.6:9876": broker.name_server, "10.0.0.5:9876": broker.name_server}
    code = swapped(code, {**own, "/data/checkpoint": str(tmp_path / "checkpoint")})
    topic = Topic(broker, "orders", QUEUES)  # the page begins at a time: a queue with nothing that new would be refused
    with patient_producer(broker) as producer:
        producer.send(OutgoingMessage("orders-copy", b"makes the topic"))

    def bodies(name: str) -> list[bytes]:
        frame = spark.read.format("rocketmq").options(nameServer=broker.name_server, subscribe=name).load()
        return sorted(bytes(row.body) for row in frame.select("body").collect())

    names: dict[str, Any] = {"spark": spark}
    exec(compile(code, str(PAGE), "exec"), names)
    query = names["query"]
    try:
        assert "queueOffset" in capsys.readouterr().out
        # It begins with what comes in now, and has said where that is in its first progress.
        wait_until(lambda: bool(query.recentProgress), what="the stream's first look")
        topic.send(2)
        wait_until(lambda: sum(each["numInputRows"] for each in query.recentProgress) >= 2, what="the batch of two")
        wait_until(lambda: len(set(bodies("orders-copy"))) >= 3, what="the copies")
    finally:
        query.stop()
    # A set: the page's sink has the usual time limit, and sends again what a busy machine is slow to answer.
    assert set(bodies("orders-copy")) == {b"4", b"5", b"makes the topic"}
    assert bodies("orders") == [b"%d" % number for number in range(QUEUES + 2)], "the topic that is read gets nothing"
