from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from struct import pack, pack_into

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketcrew.remoting.batch import BatchEntry, count_batch, decode_batch, encode_batch
from rocketcrew.remoting.codes import SYSFLAG_BORN_HOST_V6, SYSFLAG_STORE_HOST_V6
from rocketcrew.remoting.compression import Compression, compress, compression_sysflag
from rocketcrew.remoting.errors import ProtocolError, UsageError
from rocketcrew.remoting.stored import (
    BLANK_MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_MIN_BYTES,
    StoredMessage,
    decode_message,
    decode_messages,
    encode_message,
    is_inner_batch,
    record_info,
    split_inner_batch,
    store_timestamp_of,
    walk,
)

INNER = 0xC0
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
hosts = st.ip_addresses().map(str)
messages = st.builds(
    StoredMessage,
    topic=st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    body=st.binary(max_size=60),
    raw_properties=st.binary(max_size=60),
    queue_id=int32,
    flag=int32,
    queue_offset=int64,
    physical_offset=int64,
    sysflag=st.sampled_from([0, 2, 8, 0x301]),
    born_timestamp_ms=int64,
    born_host=hosts,
    born_port=int32,
    store_timestamp_ms=int64,
    store_host=hosts,
    store_port=int32,
    reconsume_times=int32,
    prepared_transaction_offset=int64,
)
entries = st.lists(
    st.builds(BatchEntry, flag=int32, body=st.binary(max_size=20), properties=st.binary(max_size=20)), max_size=5
)


def message(number: int = 0, **changes: object) -> StoredMessage:
    plain = StoredMessage(
        "topic", b"body %d" % number, b"TAGS\x01a\x02", queue_offset=number, physical_offset=number * 100
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def body_of(count: int) -> bytes:
    return b"".join(encode_message(message(i)) for i in range(count))


def inner_batch(parts: list[tuple[int, bytes, bytes]], sysflag: int = INNER, **changes: object) -> StoredMessage:
    return message(100, body=encode_batch(parts), sysflag=sysflag, **changes)


@settings(max_examples=150)
@given(messages)
def test_round_trip(wanted: StoredMessage) -> None:
    record = encode_message(wanted)
    got = decode_message(record)
    v6 = (SYSFLAG_BORN_HOST_V6 if ":" in wanted.born_host else 0) | (
        SYSFLAG_STORE_HOST_V6 if ":" in wanted.store_host else 0
    )
    assert got == replace(wanted, sysflag=wanted.sysflag | v6, magic=got.magic)
    assert got.magic == (MAGIC_V2 if len(wanted.topic.encode()) > 127 else MAGIC_V1)
    assert encode_message(got) == record
    assert store_timestamp_of(record, 0) == wanted.store_timestamp_ms
    if len(record) >= RECORD_MIN_BYTES:
        assert walk(record) == ([0, len(record)], [wanted.queue_offset])


@settings(max_examples=150)
@given(st.lists(messages, min_size=1, max_size=4), st.data())
def test_a_changed_body_is_messages_or_one_typed_error(wanted: list[StoredMessage], data: st.DataObject) -> None:
    body = bytearray(b"".join(encode_message(m) for m in wanted))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    for part in (body, body[:cut]):
        with suppress(ProtocolError):
            positions, offsets = walk(part)
            assert positions[0] == 0
            assert positions[-1] == len(part)
            assert len(offsets) == len(positions) - 1
            for found in decode_messages(part):
                split_inner_batch(found)
                assert found.properties is not None
                found.decompressed_body()


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_junk(data: bytes) -> None:
    for read in (walk, decode_message, record_info, decode_batch):
        with suppress(ProtocolError):
            read(data)


def test_nothing_is_no_message() -> None:
    assert walk(b"") == ([0], [])
    assert decode_messages(b"") == []


def test_walk_of_many() -> None:
    body = body_of(5)
    size = len(body) // 5
    assert walk(body) == ([0, size, 2 * size, 3 * size, 4 * size, 5 * size], [0, 1, 2, 3, 4])
    assert walk(memoryview(body), size, 3 * size) == ([size, 2 * size, 3 * size], [1, 2])
    with pytest.raises(UsageError, match="do not lie"):
        walk(body, 0, len(body) + 1)
    with pytest.raises(UsageError, match="do not lie"):
        walk(body, 10, 5)
    with pytest.raises(UsageError, match="do not lie"):
        record_info(body, 0, len(body) + 1)
    with pytest.raises(UsageError, match="do not lie"):
        record_info(body, -1)


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize(
    ("offset", "value", "wrong"),
    [
        (0, 0, "size 0 is outside"),
        (0, -1, "size -1 is outside"),
        (0, 90, "size 90 is outside"),
        (0, 1 << 30, "behind the data"),
        (4, 0, "magic 0x00000000"),
        (4, BLANK_MAGIC, "blank end"),
    ],
)
def test_walk_refuses(at: int, offset: int, value: int, wrong: str) -> None:
    body = bytearray(body_of(3))
    start = len(body) // 3 * at
    pack_into(">i", body, start + offset, value)
    with pytest.raises(ProtocolError, match=wrong) as caught:
        walk(body)
    assert caught.value.where == f"record at byte {start}"
    with pytest.raises(ProtocolError, match=wrong.replace("behind the data", "is outside")):
        decode_message(body, start)


@pytest.mark.parametrize("field", [0, 1, 3, 4, 7, 20, 27, 36, 39])
@pytest.mark.parametrize("index", [0, 1, 4])
@pytest.mark.parametrize("value", [0, 1, 0x80, 0xC0, 0xFF])
def test_records_of_one_size_are_read_as_any_others(index: int, field: int, value: int) -> None:
    """Behind a record of another size they are read one by one."""
    body = bytearray(body_of(5))
    body[index * (len(body) // 5) + field] = value
    other = encode_message(message(body=b"of another size"))
    assert read_behind(b"", body) == read_behind(other, body)


def read_behind(before: bytes, body: bytes) -> object:
    try:
        positions, offsets = walk(before + body)
    except ProtocolError as error:
        return error.what
    return [position - len(before) for position in positions if position >= len(before)], offsets[-5:]


def test_walk_says_where_the_rest_begins() -> None:
    body = body_of(2)
    with pytest.raises(ProtocolError, match="5 bytes are too few") as caught:
        walk(body + b"12345")
    assert caught.value.where == f"record at byte {len(body)}"


BODY_AT = 84  # of a record with IPv4 hosts; body length, then the 6 bytes "body 0", topic length 5, properties length 7


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ((8, ">i", 1), "body crc"),
        ((BODY_AT, ">i", -1), "body length -1"),
        ((BODY_AT, ">i", 1 << 30), "body length"),
        ((BODY_AT, ">i", 7), "topic length 116"),
        ((BODY_AT + 10, ">b", -5), "topic length -5"),
        ((BODY_AT + 10, ">b", 127), "topic length 127"),
        ((BODY_AT + 16, ">h", -1), "properties length -1"),
        ((BODY_AT + 16, ">h", 6), "properties length 6, but 7"),
        ((BODY_AT + 16, ">h", 8), "properties length 8, but 7"),
        ((BODY_AT + 11, ">B", 0xFF), "topic is not UTF-8"),
        ((36, ">i", 0x30), "too few"),
    ],
)
def test_records_whose_parts_lie(change: tuple[int, str, int], wrong: str) -> None:
    record = bytearray(encode_message(message()))
    position, form, value = change
    pack_into(form, record, position, value)
    with pytest.raises(ProtocolError, match=wrong) as caught:
        decode_message(record)
    assert caught.value.where == "record at byte 0"


def test_the_crc_check_can_be_left_to_someone_else() -> None:
    record = bytearray(encode_message(message()))
    record[8] ^= 1
    assert decode_message(record, check_crc=False) == replace(message(), magic=MAGIC_V1)


def test_properties_that_are_no_text_are_read_as_java_reads_them() -> None:
    found = decode_message(encode_message(message(raw_properties=b"a\xff\x01x\x02KEYS\x01k\x02")))
    assert found.properties == {"a\ufffd": "x", "KEYS": "k"}


def test_long_topics_are_v2_and_v2_stays_v2() -> None:
    for topic, magic in (("t" * 127, MAGIC_V1), ("t" * 128, MAGIC_V2), ("%RETRY%" + "g" * 255, MAGIC_V2)):
        found = decode_message(encode_message(message(topic=topic)))
        assert (found.topic, found.magic) == (topic, magic)
    short = encode_message(message(magic=MAGIC_V2))
    assert decode_message(short).magic == MAGIC_V2
    assert encode_message(decode_message(short)) == short


def test_record_info_of_all_host_kinds() -> None:
    for born in ("10.0.0.1", "2001:db8::1"):
        for store in ("127.0.0.1", "::1"):
            wanted = message(7, born_host=born, store_host=store, store_port=10911)
            record = b"pad" + encode_message(wanted)
            info = record_info(record, 3)
            assert record[info.body_start : info.body_start + info.body_len] == wanted.body
            assert record[info.topic_start : info.topic_start + info.topic_len] == b"topic"
            assert record[info.properties_start : info.properties_start + info.properties_len] == wanted.raw_properties
            assert (info.end, info.queue_offset, info.physical_offset) == (len(record), 7, 700)
            found = decode_message(record, 3)
            assert (found.born_host, found.store_host) == (born, store)
            assert len(found.offset_message_id) == (56 if ":" in store else 32)


def test_ids_of_a_message() -> None:
    plain = message(1, store_host="127.0.0.1", store_port=10911, physical_offset=0x180DE52A)
    assert plain.offset_message_id == "7F00000100002A9F00000000180DE52A"
    assert plain.message_id == plain.offset_message_id
    assert message(raw_properties=b"UNIQ_KEY\x01ABC\x02").message_id == "ABC"


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"topic": "t" * 128, "magic": MAGIC_V1}, "topic of 128 bytes"),
        ({"topic": "t" * 40_000}, "topic of 40000 bytes"),
        ({"magic": 5}, "magic"),
        ({"raw_properties": bytes(32768)}, "properties of 32768"),
        ({"queue_id": 1 << 31}, "does not fit"),
        ({"born_host": "localhost"}, "not an IP address"),
    ],
)
def test_what_cannot_be_stored(changes: dict[str, object], wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        encode_message(message(**changes))


def test_an_inner_batch_is_one_unit_that_ends_at_its_last_offset() -> None:
    batch = inner_batch([(1, b"a", b"TAGS\x01x\x02"), (2, b"b", b""), (3, b"c", b"K\x01v\x02")])
    body = encode_message(message(99)) + encode_message(batch) + encode_message(message(103))
    positions, offsets = walk(body)
    assert offsets == [99, 102, 103]
    assert record_info(body, positions[1]).queue_offset == 100
    whole = decode_message(body, positions[1])
    assert is_inner_batch(whole.sysflag)
    parts = split_inner_batch(whole)
    assert [(p.queue_offset, p.flag, p.body, p.sysflag) for p in parts] == [
        (100, 1, b"a", 0),
        (101, 2, b"b", 0),
        (102, 3, b"c", 0),
    ]
    assert [dict(p.properties) for p in parts] == [{"TAGS": "x"}, {}, {"K": "v"}]
    assert {(p.topic, p.physical_offset, p.store_host) for p in parts} == {("topic", 10_000, "127.0.0.1")}


def test_a_compressed_inner_batch() -> None:
    packed = compress(encode_batch([(0, b"a", b""), (0, b"b", b"")]), Compression.ZSTD)
    record = encode_message(message(5, body=packed, sysflag=INNER | compression_sysflag(Compression.ZSTD)))
    assert walk(record)[1] == [6]
    assert [p.decompressed_body() for p in split_inner_batch(decode_message(record))] == [b"a", b"b"]


def test_only_both_flags_make_an_inner_batch() -> None:
    for sysflag in (0x40, 0x80):
        record = encode_message(message(5, sysflag=sysflag))
        assert walk(record)[1] == [5]
        assert split_inner_batch(decode_message(record))[0].body == b"body 5"


@pytest.mark.parametrize("body", [b"", b"nonsense"])
def test_a_damaged_inner_batch(body: bytes) -> None:
    record = encode_message(message(5, body=body, sysflag=INNER))
    with pytest.raises(ProtocolError):
        walk(record)
    with pytest.raises(ProtocolError):
        split_inner_batch(decode_message(record))


@settings(max_examples=80)
@given(entries)
def test_batch_round_trip(wanted: list[BatchEntry]) -> None:
    assert decode_batch(encode_batch(wanted)) == wanted
    assert count_batch(encode_batch(wanted)) == len(wanted)


@settings(max_examples=100)
@given(entries.filter(bool), st.data())
def test_a_changed_batch_is_messages_or_one_typed_error(wanted: list[BatchEntry], data: st.DataObject) -> None:
    body = bytearray(encode_batch(wanted))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    for part in (body, body[:cut]):
        with suppress(ProtocolError):
            decode_batch(part)


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (bytes(21), "too few"),
        (pack(">iiiiih", 0, 0, 0, 0, 0, 0), "size 0"),
        (pack(">iiiiih", -5, 0, 0, 0, 0, 0), "size -5"),
        (pack(">iiiiih", 23, 0, 0, 0, 0, 0), "size 23"),
        (pack(">iiiiih", 22, 0, 0, 0, -1, 0), "body length -1"),
        (pack(">iiiiih", 22, 0, 0, 0, 1, 0), "body length 1"),
        (pack(">iiiiih", 22, 0, 0, 0, 0, -1), "properties length -1"),
        (pack(">iiiiih", 22, 0, 0, 0, 0, 1), "properties length 1"),
    ],
)
def test_batches_that_lie(data: bytes, wrong: str) -> None:
    with pytest.raises(ProtocolError, match=wrong):
        decode_batch(data)


def test_what_cannot_be_in_a_batch() -> None:
    with pytest.raises(UsageError, match="32768"):
        encode_batch([(0, b"", bytes(32768))])
    with pytest.raises(UsageError, match="int32"):
        encode_batch([(1 << 31, b"", "a\x01b\x02")])
