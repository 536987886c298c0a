from __future__ import annotations

import contextlib
import datetime
import re
import tracemalloc
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rocketcrew.client.selection import by_key
from rocketcrew.remoting.batch import encode_batch
from rocketcrew.remoting.codes import SYSFLAG_INNER_BATCH, SYSFLAG_NEED_UNWRAP
from rocketcrew.remoting.compression import Compression, compress, compression_sysflag
from rocketcrew.remoting.errors import ProtocolError, UsageError
from rocketcrew.remoting.properties import decode_properties, encode_properties
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import MAGIC_V1, MAGIC_V2, StoredMessage, encode_message, record_info
from rocketcrew.source.blocks import Properties
from rocketcrew.source.columns import COLUMNS, arrow_schema, check_columns, ddl, default_columns
from rocketcrew.source.outgoing_rows import ROW_KEY, RowKeys, messages_of, row_form, write_key
from rocketcrew.source.rows import BYTES_MAX, TIME_MAX_MS, TIME_MIN_MS, Rows

QUEUE = MessageQueue("t", "a", 3)
ALL = list(COLUMNS)
TYPES = {
    "string": StringType(), "int": IntegerType(), "bigint": LongType(), "binary": BinaryType(), "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
}  # fmt: skip


def record(offset: int, body: bytes = b"x", sysflag: int = 0, **properties: str) -> bytes:
    raw = encode_properties(properties).encode()
    return encode_message(
        StoredMessage(
            "t", body, raw, queue_id=3, queue_offset=offset, sysflag=sysflag, born_timestamp_ms=1_000,
            store_timestamp_ms=2_001, reconsume_times=2, physical_offset=77,
        )
    )  # fmt: skip


def rows(columns: list[str] = ALL, tags: frozenset[str] = frozenset(), strict: bool = True) -> Rows:
    return Rows(columns, QUEUE, tags, strict)


def listed(taken: Rows) -> list[dict[str, Any]]:
    batch = taken.flush()
    return [] if batch is None else batch.to_pylist()


def test_the_arrow_schema_is_what_spark_expects() -> None:
    fields = [StructField(name, TYPES[column.ddl]) for name, column in COLUMNS.items()]
    assert to_arrow_schema(StructType(fields), timezone="UTC") == arrow_schema(ALL)
    assert [kind.simpleString() for kind in TYPES.values()] == list(TYPES)


def test_columns_are_left_out_chosen_and_checked() -> None:
    assert "body" not in default_columns(body=False, properties=True)
    assert "record" not in default_columns(body=True, properties=True)
    assert ddl(["queueId", "properties"]) == "queueId int, properties map<string,string>"
    assert check_columns([("queueOffset", "bigint"), ("topic", "string")]) == ["queueOffset", "topic"]
    with pytest.raises(UsageError, match="column 'offset' that messages do not have"):
        check_columns([("offset", "bigint")])
    with pytest.raises(UsageError, match="says body string, and it is body binary"):
        check_columns([("body", "string")])


def test_a_record_is_a_row() -> None:
    taken = rows()
    stored = record(5, b"hello", UNIQ_KEY="U1", TAGS="red", KEYS="k1 k2", n="1")
    assert taken.take(record(4) + stored, 5, 6) == []
    (row,) = listed(taken)
    assert row == {
        "topic": "t", "brokerName": "a", "queueId": 3, "queueOffset": 5, "body": b"hello", "tags": "red", "keys": "k1 k2",
        "properties": [("UNIQ_KEY", "U1"), ("TAGS", "red"), ("KEYS", "k1 k2"), ("n", "1")],
        "bornTimestamp": datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC),
        "storeTimestamp": datetime.datetime(1970, 1, 1, 0, 0, 2, 1000, tzinfo=datetime.UTC),
        "reconsumeTimes": 2, "messageId": "U1", "record": stored,
    }  # fmt: skip
    assert taken.flush() is None


def test_what_is_missing_is_null_and_the_id_is_that_of_the_broker() -> None:
    taken = rows(["tags", "keys", "properties", "messageId"])
    taken.take(record(0), 0, 1)
    assert listed(taken) == [
        {"tags": None, "keys": None, "properties": [], "messageId": "7F00000100000000000000000000004D"}
    ]


def test_only_offsets_of_the_range_and_gaps_are_told() -> None:
    taken = rows(["queueOffset"])
    body = b"".join(record(offset) for offset in (4, 5, 6, 9, 12))
    assert taken.take(body, 5, 11) == [(7, 9), (10, 11)]
    assert [row["queueOffset"] for row in listed(taken)] == [5, 6, 9]
    assert taken.take(record(3), 3, 6) == [(4, 6)]


def test_tags_are_looked_at_here_and_count_as_read() -> None:
    taken = rows(["queueOffset"], frozenset({"red", "blue"}))
    body = record(0, TAGS="red") + record(1, TAGS="green") + record(2) + record(3, TAGS="blue")
    assert taken.take(body, 0, 4) == []
    assert [row["queueOffset"] for row in listed(taken)] == [0, 3]


def test_compressed_bodies_and_inner_batches() -> None:
    packed = compress(b"z" * 5000, Compression.ZLIB)
    inner = encode_batch([(0, b"one", b"TAGS\x01red\x02"), (0, b"two", b""), (0, b"three", b"")])
    body = record(0, packed, compression_sysflag(Compression.ZLIB))
    body += record(1, inner, SYSFLAG_INNER_BATCH | SYSFLAG_NEED_UNWRAP) + record(4, b"four")
    taken = rows(["queueOffset", "body"])
    assert taken.take(body, 0, 5) == []
    assert [(row["queueOffset"], row["body"]) for row in listed(taken)] == [
        (0, b"z" * 5000), (1, b"one"), (2, b"two"), (3, b"three"), (4, b"four"),
    ]  # fmt: skip
    assert taken.take(body, 2, 3) == []
    assert [row["body"] for row in listed(taken)] == [b"two"]


def test_a_damaged_body_is_an_error_or_null() -> None:
    damaged = bytearray(record(7, b"sound"))
    damaged[record_info(damaged).body_start] ^= 1
    strict = rows()
    strict.take(record(6) + bytes(damaged), 6, 8)
    with pytest.raises(ProtocolError, match=r"message at offset 7 of t on a, queue 3.*failOnDataLoss=false"):
        strict.flush()
    lenient = rows(["body"], strict=False)
    lenient.take(bytes(damaged), 7, 8)
    assert listed(lenient) == [{"body": None}]


def test_text_that_is_not_utf8_stops_nothing() -> None:
    bad = encode_message(StoredMessage("t", b"x", b"n\x01\xff\x02", queue_offset=0))
    taken = rows(["properties"])
    taken.take(bad, 0, 1)
    assert listed(taken) == [{"properties": [("n", "�")]}]


def test_a_batch_is_bounded_in_bytes() -> None:
    taken = rows(["body"])
    taken.take(record(0, b"x" * (BYTES_MAX - 200)), 0, 1)
    assert not taken.full
    taken.take(record(1) + record(2), 1, 3)
    assert taken.full


TEXT = st.text("ab\u00e4\u20ac \x01=", max_size=5)
PROPERTIES = st.lists(st.tuples(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "n", "", "\u00e4"]), TEXT), max_size=6)
MESSAGES = st.lists(
    st.tuples(
        st.binary(max_size=40), PROPERTIES, st.booleans(), st.sampled_from(["127.0.0.1", "::1"]),
        st.sampled_from(["10.0.0.7", "2001:db8::5"]), st.sampled_from([MAGIC_V1, MAGIC_V2]),
    ),
    min_size=1, max_size=8,
)  # fmt: skip


@given(MESSAGES)
def test_many_at_once_are_what_each_is_alone(messages: list[Any]) -> None:
    stored: list[StoredMessage] = []
    for number, (body, properties, packed, born_host, store_host, magic) in enumerate(messages):
        raw = "".join(f"{name}\x01{value}\x02" for name, value in properties).encode()
        kept = compress(body, Compression.ZLIB) if packed else body
        stored.append(StoredMessage(
            "t", kept, raw, queue_id=3, queue_offset=number, physical_offset=number * 1000,
            sysflag=compression_sysflag(Compression.ZLIB) if packed else 0, born_timestamp_ms=number, magic=magic,
            store_timestamp_ms=2 * number, born_host=born_host, store_host=store_host, reconsume_times=number % 3,
        ))  # fmt: skip
    taken = rows()
    assert taken.take(b"".join(map(encode_message, stored)), 0, len(stored)) == []
    for row, message in zip(listed(taken), stored, strict=True):
        at = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        wanted = message.properties
        assert row == {
            "topic": "t", "brokerName": "a", "queueId": 3, "queueOffset": message.queue_offset,
            "body": message.decompressed_body(), "tags": wanted.get("TAGS"), "keys": wanted.get("KEYS"),
            "properties": list(wanted.items()), "reconsumeTimes": message.reconsume_times,
            "bornTimestamp": at + datetime.timedelta(milliseconds=message.born_timestamp_ms),
            "storeTimestamp": at + datetime.timedelta(milliseconds=message.store_timestamp_ms),
            "messageId": message.message_id, "record": encode_message(message),
        }  # fmt: skip


@given(st.binary(max_size=3), st.integers(0, 120), st.integers(0, 255))
def test_damaged_records_are_refused_or_read_and_never_anything_else(body: bytes, place: int, value: int) -> None:
    data = bytearray(record(0, body, TAGS="red") * 2)
    data[place % len(data)] = value
    taken = rows(strict=False)
    with contextlib.suppress(ProtocolError):
        taken.take(bytes(data), 0, 2)
        taken.flush()


@pytest.mark.parametrize(
    "texts",
    [
        ["a\x01b\x02", "", "c\x01d\x02e\x01f\x02"],
        ["", ""],
        ["a\x01b", "c\x01d\x02"],  # 4.x writes no last separator
        ["a\x01b\x01c\x02", "d\x01e\x02"],  # a value with the separator in it: Java cuts there, and so do we
        ["a\x02", "b\x01c\x02"],
        ["a\x01", "\x02"],
        ["a\x01\x02\x01b\x02c\x01d\x02", "ü\x01€\x02"],
        ["a\x01b\x02a\x01c\x02"],
    ],
)
def test_properties_are_those_that_one_record_alone_would_have(texts: list[str]) -> None:
    found = Properties(pa.array(texts, pa.string()))
    columns: Any = found.maps()
    maps = columns.to_pylist()
    assert [dict(one) for one in maps] == [decode_properties(text) for text in texts]


def test_messages_with_many_names_of_their_own_take_the_memory_of_what_they_hold() -> None:
    own = {0: 3000, 700: 3000, 1400: 3000, 1999: 3000}
    texts = [
        "".join(f"{number}-{name}\x01v\x02" for name in range(own[number])) if number in own else "TAGS\x01red\x02"
        for number in range(2000)
    ]
    tracemalloc.start()
    try:
        found = Properties(pa.array(texts, pa.string()))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20
    names = ["a" * (1 + number) for number in range(40)]
    twice = "".join(f"{name}\x01v\x02" for name in [*names, names[7]])
    maps: Any = Properties(pa.array([twice, *[""] * 2000], pa.string())).maps()
    assert maps.to_pylist()[0] == [(name, "v") for name in names], "the last one counts"
    column: Any = found.column("TAGS")
    assert column.null_count == len(own)


@pytest.mark.parametrize("born_ms", [2**62, -(2**62), TIME_MAX_MS + 1, TIME_MIN_MS - 1])
def test_a_time_that_no_calendar_has_is_null(born_ms: int) -> None:
    taken = rows(["bornTimestamp", "queueOffset"])
    stored = [
        StoredMessage("t", b"", b"", queue_id=3, queue_offset=number, born_timestamp_ms=time)
        for number, time in enumerate((born_ms, TIME_MAX_MS, TIME_MIN_MS))
    ]
    taken.take(b"".join(map(encode_message, stored)), 0, 3)
    assert [row["bornTimestamp"] and row["bornTimestamp"].year for row in listed(taken)] == [None, 9999, 1]


# Rows to messages.


def test_a_row_is_a_message_with_a_key_of_its_own() -> None:
    form = row_form([("body", "binary"), ("tags", "string"), ("keys", "string"), ("topic", "string"),
                     ("properties", "map<string,string>"), ("queueOffset", "bigint")], None)  # fmt: skip
    pairs = pa.array([[("n", "1"), ("UNIQ_KEY", "old"), ("gone", None)], None], pa.map_(pa.string(), pa.string()))
    batch = pa.RecordBatch.from_pydict(
        {
            "body": [b"1", b"2"], "tags": ["red", None], "keys": [None, "mine"], "topic": ["t1", "t2"],
            "properties": pairs, "queueOffset": [7, 8],
        }
    )  # fmt: skip
    first, second = (row.message for row in messages_of(batch, form, RowKeys("job-0-3"), 10))
    own, other = first.properties[ROW_KEY], second.properties[ROW_KEY]
    assert own != other
    assert all(re.fullmatch(r"job-0-3-[0-9a-f]{24}-0", key) for key in (own, other))
    assert (first.topic, first.body, first.tags, first.keys) == ("t1", b"1", "red", own)
    assert first.properties == {"n": "1", ROW_KEY: own}
    assert (second.topic, second.tags, second.keys) == ("t2", "", "mine")
    assert second.properties == {ROW_KEY: other}
    again = [row.message for row in messages_of(batch, form, RowKeys("job-0-3"), 10)]
    assert again == [first, second]


def keyed(rows: list[dict[str, Any]], keys: RowKeys | None = None) -> list[tuple[str, bytes, str]]:
    """Key, body and tags of the messages of these rows."""
    schema = pa.schema([("body", pa.string()), ("tags", pa.string())])
    batch = pa.RecordBatch.from_pylist(rows, schema)
    found = messages_of(batch, row_form([("body", "string"), ("tags", "string")], "t"), keys or RowKeys("q-7-0"), 0)
    return [(row.message.properties[ROW_KEY], row.message.body, row.message.tags) for row in found]


def test_rows_of_a_task_that_is_run_again_in_another_order_have_the_keys_that_they_had() -> None:
    """Behind a shuffle they come as they arrive: by their number alone, a reader that drops what it saw would drop others."""
    rows = [{"body": str(number % 7), "tags": "red" if number % 3 else None} for number in range(60)]
    first, again = keyed(rows), keyed(rows[25:] + rows[:25][::-1])
    assert len({key for key, *_ in first}) == 60
    assert sorted(again) == sorted(first)
    died = keyed(rows[:20])
    seen = {key: rest for key, *rest in died}
    assert all(seen.get(key, rest) == rest for key, *rest in again)


def test_what_differs_in_any_column_has_a_key_of_its_own() -> None:
    rows: list[dict[str, Any]] = [
        {"body": "1", "tags": "2"}, {"body": "12", "tags": None}, {"body": "1", "tags": None}, {"body": "11", "tags": "2"},
    ]  # fmt: skip
    assert len({key for key, *_ in keyed(rows)}) == 4
    assert all(key.endswith("-0") for key, *_ in keyed(rows))


def test_the_rows_that_are_known_are_bounded_and_no_two_have_one_key() -> None:
    keys = RowKeys("q-7-0", known_max=10)
    rows = [{"body": str(number % 25), "tags": None} for number in range(400)]
    found = [key for at in range(0, 400, 40) for key, *_ in keyed(rows[at : at + 40], keys)]
    assert len(set(found)) == 400


def test_the_option_topic_wins_over_the_column_as_in_kafkas_sink() -> None:
    form = row_form([("body", "string"), ("topic", "string")], "all")
    batch = pa.RecordBatch.from_pydict({"body": ["1", "2"], "topic": ["t1", None]})
    assert [row.message.topic for row in messages_of(batch, form, RowKeys("k"), 0)] == ["all", "all"]


def test_a_row_may_say_which_queue_and_when() -> None:
    kinds = {"body": "string", "shardingKey": "string", "toBrokerName": "string", "toQueueId": "int", "delayLevel": "int",
             "delayMs": "bigint", "deliverTimestamp": "timestamp"}  # fmt: skip
    form = row_form(list(kinds.items()), "t")
    at = datetime.datetime(2026, 1, 31, 8, 0, 0, 250_000, datetime.UTC)
    rows = [
        {"body": "0"},
        {"body": "1", "shardingKey": "customer-7", "delayLevel": 3},
        {"body": "2", "shardingKey": "c", "toQueueId": 1, "toBrokerName": "b", "delayMs": 1500},
        {"body": "3", "toQueueId": 1, "deliverTimestamp": at},
    ]
    schema = pa.schema(
        [("body", pa.string()), ("shardingKey", pa.string()), ("toBrokerName", pa.string()), ("toQueueId", pa.int32()),
         ("delayLevel", pa.int32()), ("delayMs", pa.int64()), ("deliverTimestamp", pa.timestamp("us", tz="UTC"))]
    )  # fmt: skip
    batch = pa.RecordBatch.from_pylist([{name: row.get(name) for name in kinds} for row in rows], schema)
    free, keyed, placed, timed = messages_of(batch, form, RowKeys("k"), 0)
    assert [row.ordered for row in (free, keyed, placed, timed)] == [False, True, True, True]
    assert keyed.message.properties["__SHARDINGKEY"] == "customer-7"
    delays = [
        (row.message.delay_level, row.message.delay_ms, row.message.deliver_at_ms)
        for row in (free, keyed, placed, timed)
    ]
    assert delays == [(0, 0, 0), (3, 0, 0), (0, 1500, 0), (0, 0, 1_769_846_400_250)]
    queues = [MessageQueue("t", broker, number) for broker in ("a", "b") for number in range(3)]
    assert keyed.queue(queues) == by_key("customer-7")(queues)
    assert placed.queue(queues) == MessageQueue("t", "b", 1)
    with pytest.raises(UsageError, match=r"queue 1 of topic t is on several brokers \(a, b\): add toBrokerName"):
        timed.queue(queues)
    with pytest.raises(UsageError, match="queue 1 of topic t on broker b does not exist, or cannot be written"):
        placed.queue(queues[:3])


@pytest.mark.parametrize(
    ("schema", "topic", "said"),
    [
        ([("value", "binary")], "t", "column value is no part of a message"),
        ([("tags", "string")], "t", "there is no column body"),
        ([("body", "int")], "t", "column body is int: cast it to binary or string"),
        ([("body", "string")], None, "where to? give option topic, or a column topic"),
    ],
)
def test_tables_that_are_no_messages(schema: list[tuple[str, str]], topic: str | None, said: str) -> None:
    with pytest.raises(UsageError, match="rocketmq: ") as raised:
        row_form(schema, topic)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"body": None}, "row 4 of its partition cannot be sent: its body is null"),
        ({"body": ""}, "has an empty body"),
        ({"body": "x", "topic": None}, "its topic is null, and option topic is not given"),
        ({"body": "x", "topic": ""}, "its topic is null, and option topic is not given"),
        ({"body": "x", "topic": "a b"}, "illegal characters"),
    ],
)
def test_rows_that_cannot_be_sent(row: dict[str, str | None], said: str) -> None:
    schema = pa.schema([(name, pa.string()) for name in row])
    form = row_form([(name, "string") for name in row], None if "topic" in row else "t")
    with pytest.raises(UsageError) as raised:
        list(messages_of(pa.RecordBatch.from_pylist([row], schema), form, RowKeys("k"), 4))
    assert said in str(raised.value)


def test_a_write_that_has_a_name_has_the_same_keys_again() -> None:
    assert write_key("", "job", None, None) == "job-0"
    assert write_key("nightly", "job", None, None) == write_key("nightly", "another", None, None) == "nightly-0"
    assert write_key("a", "job", "query", "7") == "a-query-7"
    assert write_key("", "job", "query", "7") == "job-0", "two writes of one batch must not have the same keys"
