from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocketcrew.conf.segment_format import key_fields
from rocketcrew.remoting.errors import ProtocolError
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.workers import row_keys
from rocketcrew.workers.message import Message, expand_inner_batch
from rocketcrew.workers.packets import QueueInfo
from rocketcrew.workers.row_keys import Key, key_columns, key_of

HOSTS = ["127.0.0.1", "10.255.0.200", "::1", "2001:db8::ff00:42:8329"]
QUEUES = [
    QueueInfo("group", "TopicTest", "broker-a", 3),
    QueueInfo("group", "TopicTest", "broker-a", 4),
    QueueInfo("group", "ns%TopicTest", "broker-b", 0, None, "ns"),
    QueueInfo("group", "%RETRY%group", "broker-a", 0),
    QueueInfo("group", "%RETRY%ns%group", "broker-a", 0, None, "ns"),
]
PIECES = [
    b"UNIQ_KEY\x01", b"UNIQ_KEY", b"ORIGIN_MESSAGE_ID\x01", b"RETRY_TOPIC\x01", b"KEYS\x01", b"XUNIQ_KEY\x01", b"\x01",
    b"\x02", b"\x02", b"value", b"7F0000010000000000000000000000AB", b"f\xc3\xbcnf", b"\xff",
]  # fmt: skip
properties = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join),
    st.dictionaries(
        st.sampled_from(["UNIQ_KEY", "ORIGIN_MESSAGE_ID", "RETRY_TOPIC", "KEYS"]),
        st.text("aé", min_size=1, max_size=40),
    ).map(lambda pairs: b"".join(f"{name}\x01{value}\x02".encode() for name, value in pairs.items())),
)
records = st.builds(
    StoredMessage,
    topic=st.sampled_from(["TopicTest", "t", "T" * 200]),
    body=st.binary(max_size=20),
    raw_properties=properties,
    queue_offset=st.integers(0, 2**62),
    physical_offset=st.integers(-(2**63), 2**63 - 1),
    store_timestamp_ms=st.integers(-(2**53), 2**53),
    store_host=st.sampled_from(HOSTS),
    born_host=st.sampled_from(HOSTS),
    store_port=st.integers(-(2**31), 2**31 - 1),
    reconsume_times=st.integers(-(2**31), 2**31 - 1),
    sysflag=st.sampled_from([0, 1, 0x10, 0x100]),
)
chunks = st.tuples(st.sampled_from(QUEUES), st.lists(records, min_size=1, max_size=4))


def messages_of(found: list[tuple[QueueInfo, list[StoredMessage]]]) -> list[Message]:
    messages: list[Message] = []
    for queue, stored in found:
        encoded = [encode_message(each) for each in stored]
        data, at = b"".join(encoded), 0
        for record in encoded:
            messages.append(Message(data, at, queue))
            at += len(record)
    return messages


def by_decoding(group: str, messages: list[Message], counts: list[int]) -> list[Any]:
    """The columns as key_of gives them."""
    rows: list[tuple[Any, ...]] = []
    for message, count in zip(messages, counts, strict=True):
        key: Key = key_of(Message(message._data, message._position, message._queue))  # pyright: ignore[reportPrivateUsage]
        rows += [(group, *key[:4], seq, *key[4:]) for seq in range(count)]
    kinds: list[Any] = [field.type for field in key_fields()]
    return [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]


@given(st.lists(chunks, min_size=1, max_size=3), st.data())
@example([(QUEUES[0], [StoredMessage("TopicTest", b"", b"UNIQ_KEY\x01a\x02UNIQ_KEY\x01\x02")])], None)
@example([(QUEUES[0], [StoredMessage("TopicTest", b"", b"UNIQ_KEY\x01a\x02UNIQ_KEY\x01")])], None)
@example([(QUEUES[0], [StoredMessage("TopicTest", b"", b"UNIQ_KEY\x01a"), StoredMessage("TopicTest", b"")])], None)
def test_columns_are_those_that_decoding_gives(found: list[tuple[QueueInfo, list[StoredMessage]]], data: Any) -> None:
    messages = messages_of(found)
    counts = [1 if data is None else data.draw(st.integers(1, 3)) for _ in messages]
    try:
        wanted = by_decoding("group", messages, counts)
    except ProtocolError as error:
        with pytest.raises(ProtocolError, match=re.escape(str(error))):
            key_columns("group", messages, counts)
        return
    columns = key_columns("group", messages, counts)
    assert [column.type for column in columns] == [field.type for field in key_fields()]
    for column in columns:
        column.validate(full=True)
    assert columns == wanted
    if counts == [1] * len(counts):
        assert key_columns("group", messages, None) == wanted


@given(
    records,
    st.lists(st.integers(0, 40), min_size=30, max_size=60),
    st.lists(
        st.tuples(st.integers(0, 59), st.integers(0, 400), st.sampled_from(b"\x00\x01\x02\x03KU\x7f\x80\xff")),
        max_size=3,
    ),
    st.sampled_from([None, [1, 3], [2]]),
)
@example(StoredMessage("T" * 85, b"", b"NIQ_KEY\x01UNIQ_KEY\x01a"), [0] * 30, [], None)
@example(StoredMessage("t", b"", b"KEYS\x01b\x02UNIQ_KEY\x01ab\x02"), [3] * 30, [(4, 111, 2)], [2])
@example(StoredMessage("t", b"", b"UNIQ_KEY\x01" + b"a" * 500), [3] * 30, [], None)
@example(StoredMessage("t", b""), [0] * 30, [], None)
def test_many_records_that_differ_little(
    stored: StoredMessage, bodies: list[int], damages: list[tuple[int, int, int]], every: list[int] | None
) -> None:
    encoded = [encode_message(replace(stored, body=bytes(size), queue_offset=at)) for at, size in enumerate(bodies)]
    for number, at, byte in damages:
        record = bytearray(encoded[number % len(encoded)])
        record[at % len(record)] = byte
        encoded[number % len(encoded)] = bytes(record)
    messages = [Message(record, 0, QUEUES[number // 20]) for number, record in enumerate(encoded)]
    counts = [1] * len(messages) if every is None else [every[at % len(every)] for at in range(len(messages))]
    try:
        wanted = by_decoding("group", messages, counts)
    except (ProtocolError, pa.ArrowException, OverflowError):
        with pytest.raises((ProtocolError, pa.ArrowException, OverflowError)):
            key_columns("group", messages, counts)
        return
    columns = key_columns("group", messages, None if every is None else counts)
    for column in columns:
        column.validate(full=True)
    assert columns == wanted


@given(records, st.integers(0, 500), st.integers(0, 255))
def test_a_record_that_is_damaged_is_read_or_refused_as_by_decoding(stored: StoredMessage, at: int, byte: int) -> None:
    data = bytearray(encode_message(stored))
    data[at % len(data)] = byte
    message = Message(bytes(data), 0, QUEUES[0])
    try:
        wanted = by_decoding("group", [message], [1])
    except (ProtocolError, pa.ArrowException, OverflowError) as error:
        with pytest.raises(type(error)):
            key_columns("group", [message], None)
        return
    assert key_columns("group", [message], None) == wanted


def test_no_long_column_is_kept_for_the_next_block() -> None:
    """Of blocks that all have another length."""
    made = [row_keys._constant("group", row_keys._KEPT_ROWS_MAX + more) for more in range(3)]  # pyright: ignore[reportPrivateUsage]
    assert [len(column) - len(made[0]) for column in made] == [0, 1, 2]
    queues = row_keys._kept_queue.cache_info().currsize  # pyright: ignore[reportPrivateUsage]
    kept = row_keys._kept_constant.cache_info()  # pyright: ignore[reportPrivateUsage]
    for rows in (10, 10, row_keys._KEPT_ROWS_MAX + 10):  # pyright: ignore[reportPrivateUsage]
        row_keys._constant("a group of its own", rows)  # pyright: ignore[reportPrivateUsage]
    now = row_keys._kept_constant.cache_info()  # pyright: ignore[reportPrivateUsage]
    assert (now.hits - kept.hits, now.misses - kept.misses) == (1, 1)
    [long] = {len(column) for column in row_keys._queue_columns([QUEUES[0]], [row_keys._KEPT_ROWS_MAX])}  # pyright: ignore[reportPrivateUsage]
    assert (long, row_keys._kept_queue.cache_info().currsize) == (row_keys._KEPT_ROWS_MAX, queues)  # pyright: ignore[reportPrivateUsage]


def test_store_times_and_offset_ids_that_differ_much_are_as_exact() -> None:
    """Those of one time and one broker's address are made together."""
    stored = StoredMessage("TopicTest", b"", b"", store_timestamp_ms=1_700_000_000_000, physical_offset=2**32 - 2)
    near = [replace(stored, store_timestamp_ms=stored.store_timestamp_ms + at, physical_offset=2**32 - 2 + at)
            for at in range(30)]  # fmt: skip
    far = [replace(each, store_timestamp_ms=-(at * 2**33), store_host=f"10.0.{at}.1") for at, each in enumerate(near)]
    for several in (
        near,
        far,
        [replace(stored, store_timestamp_ms=2**48 - 1)],
        [replace(stored, store_timestamp_ms=2**48)],
    ):
        messages = messages_of([(QUEUES[0], several)])
        assert key_columns("group", messages, None) == by_decoding("group", messages, [1] * len(messages))


def test_nothing_is_decoded_that_the_handler_did_not_look_at() -> None:
    stored = [StoredMessage("TopicTest", b"body", b"UNIQ_KEY\x01id\x02", queue_offset=at) for at in range(300)]
    messages = messages_of([(QUEUES[0], stored[:200]), (QUEUES[1], stored[200:])])
    columns = key_columns("group", messages, None)
    assert columns[4].to_pylist() == list(range(300))
    assert {(message._info, message._properties, message._body) for message in messages} == {(None, None, None)}  # pyright: ignore[reportPrivateUsage]


def test_messages_of_an_inner_batch(make_inner_batch: Any) -> None:
    data = make_inner_batch([b"one", b"two"], offset=7)
    messages = expand_inner_batch(data, 0, len(data), QUEUES[0])
    columns = key_columns("group", messages, [2, 1])
    assert columns == by_decoding("group", messages, [2, 1])
    assert [column.to_pylist() for column in columns[4:6]] == [[7, 7, 8], [0, 1, 0]]
