"""Properties, compression, ids, hashes, subscriptions, queues, errors."""

from __future__ import annotations

import pickle
import zlib
from contextlib import suppress
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.remoting.compression import FRAMES_MAX, Compression, compress, compression_sysflag, decompress
from rocketcrew.remoting.errors import (
    BrokerError,
    ProtocolError,
    RocketcrewError,
    TimedOutError,
    UnreachableError,
    UsageError,
    retriable,
)
from rocketcrew.remoting.hashing import java_hash
from rocketcrew.remoting.ids import (
    UniqueIds,
    host_bytes,
    host_text,
    message_id,
    offset_message_id,
    parse_offset_message_id,
)
from rocketcrew.remoting.properties import (
    PROPERTY_TAGS,
    RESERVED_PROPERTIES,
    decode_properties,
    encode_properties,
    find_property,
)
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.subscription import Subscription, parse_subscription

plain_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=12)
kinds = st.sampled_from(Compression)


# --- properties


@settings(max_examples=100)
@given(st.dictionaries(plain_texts, plain_texts, max_size=6))
def test_properties_round_trip(wanted: dict[str, str]) -> None:
    text = encode_properties(wanted)
    assert decode_properties(text) == wanted
    assert decode_properties(memoryview(text.encode())) == wanted
    assert decode_properties(text[:-1]) == wanted


@settings(max_examples=150)
@given(st.lists(st.sampled_from(["a", "b", "ab", "aa", "", "é", "\x01", "\x02", "\x01\x02"]), max_size=14).map("".join))
def test_finding_one_property_agrees_with_decoding_all(text: str) -> None:
    decoded = decode_properties(text)
    for name in ("a", "b", "ab", "aa", "é"):
        value = find_property(text.encode(), name.encode())
        assert (value.decode() if value is not None else None) == decoded.get(name)


def test_properties_as_java_reads_them() -> None:
    assert decode_properties("a\x011\x02\x02b\x01\x02\x01c\x02d\x02e\x012\x01x\x02a\x013") == {"a": "3", "e": "2\x01x"}
    assert decode_properties(b"") == {}
    with pytest.raises(ProtocolError, match="not UTF-8"):
        decode_properties(b"a\x01\xff")


@pytest.mark.parametrize(("name", "value"), [("a\x01", "b"), ("a", "b\x02"), ("\x01\x02", "x"), ("a", "\x01\x02\x01")])
def test_separators_in_properties_are_refused(name: str, value: str) -> None:
    with pytest.raises(UsageError, match="neither name nor value"):
        encode_properties({"ok": "x", name: value})


def test_reserved_names() -> None:
    assert {PROPERTY_TAGS, "KEYS", "DELAY", "UNIQ_KEY", "RETRY_TOPIC", "WAIT"} <= RESERVED_PROPERTIES
    assert "colour" not in RESERVED_PROPERTIES
    assert {"CHECK_IMMUNITY_TIME_IN_SECONDS", "TRACE_CONTEXT"}.isdisjoint(RESERVED_PROPERTIES), "Java's users set them"
    assert {"TIMER_DELAY_MS", "TRANSACTION_CHECK_TIMES"} <= RESERVED_PROPERTIES, "others set them"
    assert "\x02" not in RESERVED_PROPERTIES


# --- compression


@settings(max_examples=60)
@given(st.binary(max_size=4000), kinds)
def test_compression_round_trip(body: bytes, kind: Compression) -> None:
    assert decompress(compress(body, kind), compression_sysflag(kind)) == body
    assert decompress(memoryview(compress(body, kind)), compression_sysflag(kind)) == body


@settings(max_examples=120)
@given(st.binary(max_size=300), kinds, st.data())
def test_damaged_bodies_are_one_typed_error(body: bytes, kind: Compression, data: st.DataObject) -> None:
    packed = bytearray(compress(body, kind))
    for part in (packed[: data.draw(st.integers(0, len(packed) - 1))], packed + b"junk"):
        with pytest.raises(ProtocolError):
            decompress(part, compression_sysflag(kind))
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError):
        decompress(packed, compression_sysflag(kind))


@pytest.mark.parametrize("kind", Compression)
def test_a_bomb_stops_at_the_limit(kind: Compression) -> None:
    packed = compress(bytes(8_000_000), kind, 9)
    assert len(packed) < 40_000
    with pytest.raises(ProtocolError, match="grows beyond 1000000 bytes"):
        decompress(packed, compression_sysflag(kind), 1_000_000)
    assert decompress(packed, compression_sysflag(kind), 8_000_000) == bytes(8_000_000)


def test_kinds() -> None:
    assert decompress(b"as it is", 0) == b"as it is"
    assert decompress(zlib.compress(b"old"), 1) == b"old"
    assert compression_sysflag(Compression.ZLIB) == 0x301
    with pytest.raises(ProtocolError, match="compression kind 5"):
        decompress(b"x", 0x501)
    with pytest.raises(UsageError, match="level 10"):
        compress(b"x", Compression.ZLIB, 10)


@pytest.mark.parametrize("kind", [Compression.LZ4, Compression.ZSTD])
def test_several_frames_are_one_body(kind: Compression) -> None:
    skippable = bytes.fromhex("502a4d18 04000000") + b"note"
    packed = skippable + compress(b"one ", kind) + skippable + compress(b"two", kind)
    assert decompress(packed, compression_sysflag(kind)) == b"one two"


@pytest.mark.parametrize("kind", [Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize("frame", [bytes.fromhex("502a4d18 00000000"), None])
def test_a_body_of_very_many_frames_is_a_damaged_one(kind: Compression, frame: bytes | None) -> None:
    """Half a million without content took a second."""
    frame = compress(b"", kind) if frame is None else frame
    assert decompress(frame * FRAMES_MAX, compression_sysflag(kind)) == b""
    with pytest.raises(ProtocolError, match=f"damaged: more than {FRAMES_MAX} frames"):
        decompress(frame * (FRAMES_MAX + 1), compression_sysflag(kind))


def test_the_blocks_of_an_lz4_body_stand_alone_as_lz4_java_reads_no_others() -> None:
    packed = compress(bytes(200_000), Compression.LZ4)
    assert packed[:4] == bytes.fromhex("04224d18")
    assert packed[4] & 0x20  # the bit "block independence" of the frame's FLG byte


def test_a_body_of_lz4_java_is_read() -> None:
    packed = bytes.fromhex("04224d18607073130000009f6f726465722031372009009350722031372000000000")
    assert decompress(packed, compression_sysflag(Compression.LZ4)) == b"order 17 " * 20


# --- ids


@settings(max_examples=60)
@given(st.ip_addresses().map(str), st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 63) - 1))
def test_offset_ids_round_trip(host: str, port: int, offset: int) -> None:
    text = offset_message_id(host, port, offset)
    assert text == text.upper()
    assert parse_offset_message_id(text) == (host, port, offset)


def test_offset_ids_of_odd_numbers() -> None:
    assert parse_offset_message_id(offset_message_id("1.2.3.4", -1, -1)) == ("1.2.3.4", -1, -1)
    assert offset_message_id("[::1]", 1, 2) == offset_message_id("::1", 1, 2)


@pytest.mark.parametrize("text", ["", "7F", "z" * 32, "7F00000100002A9F0000000000000 00", "0" * 33, " " * 32, "é" * 32])
def test_bad_offset_ids(text: str) -> None:
    with pytest.raises(ProtocolError, match="offset message id"):
        parse_offset_message_id(text)


def test_message_id() -> None:
    assert message_id({"UNIQ_KEY": "u"}, "1.2.3.4", 1, 2) == "u"
    assert message_id({}, "1.2.3.4", 1, 2) == offset_message_id("1.2.3.4", 1, 2)


def test_hosts() -> None:
    assert host_text(host_bytes("[fe80::1]")) == "fe80::1"
    with pytest.raises(ProtocolError, match="neither IPv4 nor IPv6"):
        host_text(b"12345")
    with pytest.raises(UsageError, match="not an IP address"):
        host_bytes("broker.example")


def ms(*when: int) -> int:
    return int(datetime(*when).timestamp() * 1000)  # type: ignore[arg-type]  # noqa: DTZ001


def test_unique_ids() -> None:
    ids = UniqueIds("192.0.2.2", 0x10203, 0x0A0B0C0D)
    first = ids.next(ms(2026, 11, 1) + 0x1234)
    assert first == "C0000202" + "0203" + "0A0B0C0D" + "00001234" + "0000"
    assert ids.next(ms(2026, 11, 1) + 0x1234)[-4:] == "0001"
    assert ids.next(ms(2026, 10, 1) + 7)[-12:] == "000000070002", "set back: the month is taken anew"
    assert ids.next(ms(2026, 12, 1) + 5)[-12:] == "000000050003"
    assert ids.next(ms(2027, 1, 1))[-12:] == "000000000004"
    assert len(UniqueIds("2001:db8::1", 1, 1).next(ms(2026, 1, 1))) == 56


def test_unique_ids_do_not_repeat_after_the_clock_was_set_back_over_the_start_of_a_month() -> None:
    ids, now = UniqueIds("127.0.0.1", 1, 1), ms(2026, 11, 28)
    ids.next(ms(2027, 1, 1))
    assert len({ids.next(now + index) for index in range(70_000)}) == 70_000


def test_unique_ids_do_not_repeat_while_the_counter_goes_round() -> None:
    ids, now = UniqueIds("127.0.0.1", 1, 1), ms(2026, 11, 1)
    assert len({ids.next(now) for _ in range(65536)}) == 65536


# --- hashes, subscriptions, queues


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("tagA", 3552231),
        ("retryme", 1098393152),
        ("tagBatch", -791160896),
        ("polygenelubricants", -2147483648),
        ("hello", 99162322),
        ("é世界", ((0xE9 * 31 + 0x4E16) * 31 + 0x754C)),
        ("🚀", 0xD83D * 31 + 0xDE80),
        ("\ud800", 0xD800),
    ],
)
def test_java_hash(text: str, value: int) -> None:
    assert java_hash(text) == value
    assert {java_hash(text[at:], java_hash(text[:at])) for at in range(len(text) + 1)} == {value}


def test_subscriptions() -> None:
    for everything in ("", "  ", "*"):
        assert parse_subscription(everything) == Subscription("*", (), ())
    expression = "tagA || tagB||  ||tagA"
    assert parse_subscription(expression) == (expression, ("tagA", "tagB"), (3552231, 3552232))
    assert parse_subscription("Aa||BB").codes == (2112,)  # the best known collision
    with pytest.raises(UsageError, match="names no tag"):
        parse_subscription(" || ")


def test_queues_sort_as_in_java() -> None:
    queues = [
        MessageQueue("t", "b", 10),
        MessageQueue("t", "b", 9),
        MessageQueue("t", "a", 11),
        MessageQueue("s", "z", 1),
    ]
    assert sorted(queues) == [queues[3], queues[2], queues[1], queues[0]]


# --- errors


def test_errors_say_who_and_what_and_survive_pickling() -> None:
    errors: list[tuple[RocketcrewError, str, bool]] = [
        (UsageError("wrong"), "wrong", False),
        (ProtocolError("size 0", "record at byte 7"), "record at byte 7: size 0", False),
        (BrokerError(2, "busy", "PULL_MESSAGE"), "PULL_MESSAGE was refused: 2 SYSTEM_BUSY: busy", True),
        (BrokerError(4711, "", "x"), "x was refused: 4711 unknown code: no remark", False),
        (BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "", "x"), "24 SUBSCRIPTION_NOT_EXIST", False),
        (UnreachableError("h:1"), "h:1: cannot be reached", True),
        (TimedOutError("h:1", "no answer within 3000 ms"), "h:1: no answer within 3000 ms", True),
    ]
    for error, text, again in errors:
        assert text in str(error)
        assert retriable(error) == again
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)
    assert not retriable(KeyError("x"))
