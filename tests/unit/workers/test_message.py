from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.remoting.compression import Compression, compress, compression_sysflag
from rocketcrew.remoting.errors import ProtocolError
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.workers.message import Message, expand_inner_batch, make_message
from rocketcrew.workers.packets import QueueInfo

QUEUE = QueueInfo("group", "TopicTest", "broker-a", 3)
Make = Callable[..., bytes]


def stored(body: bytes = b"body", **more: object) -> StoredMessage:
    properties = more.pop("properties", {})
    assert isinstance(properties, dict)
    return StoredMessage("TopicTest", body, encode_properties(properties).encode(), **more)  # type: ignore[arg-type]


@given(
    st.binary(max_size=300),
    st.sampled_from(["10.0.0.1", "2001:db8::1"]),
    st.sampled_from(["10.0.0.2", "2001:db8::2"]),
    st.dictionaries(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "own"]), st.text("abcäß ", min_size=1)),
    st.sampled_from([None, *Compression]),
    st.binary(max_size=20),
)
def test_every_attribute_is_that_of_the_record(
    body: bytes, born: str, store: str, properties: dict[str, str], kind: Compression | None, before: bytes
) -> None:
    sysflag = 0 if kind is None else compression_sysflag(kind)
    whole = stored(
        body if kind is None else compress(body, kind),
        properties=properties,
        queue_offset=2**40,
        physical_offset=77,
        sysflag=sysflag,
        born_timestamp_ms=11,
        store_timestamp_ms=22,
        born_host=born,
        born_port=1,
        store_host=store,
        store_port=2,
        reconsume_times=5,
        flag=9,
    )
    message = Message(before + encode_message(whole) + b"more", len(before), QUEUE)
    assert message.body == body
    assert message.body is message.body
    assert message.tags == properties.get("TAGS")
    assert dict(message.properties) == properties
    assert message.tags == properties.get("TAGS")
    assert message.keys == properties.get("KEYS")
    assert message.message_id == properties.get("UNIQ_KEY", whole.offset_message_id)
    assert message.offset_message_id == message.origin_message_id == whole.offset_message_id
    assert (message.queue_offset, message.physical_offset, message.reconsume_times) == (2**40, 77, 5)
    assert (message.born_timestamp_ms, message.store_timestamp_ms, message.flag) == (11, 22, 9)
    assert (message.topic, message.broker_name, message.queue_id) == ("TopicTest", "broker-a", 3)
    assert message.born_host == f"{born}:1"
    assert message.store_host == f"{store}:2"


def test_attributes_are_read_only() -> None:
    message = make_message(b"x", properties={"a": "b"})
    for name in ("body", "topic", "properties", "queue_offset", "anything"):
        with pytest.raises(AttributeError):
            setattr(message, name, b"changed")
    with pytest.raises(TypeError):
        message.properties["a"] = "c"  # type: ignore[index]


def test_a_retry_shows_the_topic_it_was_sent_to_and_the_queue_it_was_pulled_from() -> None:
    queue = QUEUE._replace(topic="%RETRY%group")
    properties = {"RETRY_TOPIC": "Orders", "ORIGIN_MESSAGE_ID": "0A", "UNIQ_KEY": "U"}
    message = Message(encode_message(stored(properties=properties)), 0, queue)
    assert message.topic == "Orders"
    assert message.queue.topic == "%RETRY%group"
    assert message.origin_message_id == "0A"
    assert message.message_id == "U"
    plain = Message(encode_message(stored()), 0, queue)
    assert plain.topic == "%RETRY%group"


def test_retry_topic_as_a_property_of_an_ordinary_message_changes_nothing() -> None:
    message = make_message(b"", properties={"RETRY_TOPIC": "Other"}, topic="Mine")
    assert message.topic == "Mine"


def test_a_damaged_body_is_refused_when_it_is_read(make_record: Make, spoil: Callable[[bytes], bytes]) -> None:
    message = Message(spoil(make_record(b"hello", offset=42)), 0, QUEUE)
    assert message.queue_offset == 42
    assert message.tags is None
    with pytest.raises(ProtocolError, match="offset 42 of TopicTest queue 3: body checksum"):
        _ = message.body


def test_a_damaged_compressed_body_is_refused(make_record: Make, spoil: Callable[[bytes], bytes]) -> None:
    compressed = make_record(compress(b"hello" * 50), sysflag=compression_sysflag(Compression.ZLIB))
    with pytest.raises(ProtocolError, match="checksum"):
        _ = Message(spoil(compressed), 0, QUEUE).body
    lying = make_record(b"this is not zlib", sysflag=compression_sysflag(Compression.ZLIB))
    with pytest.raises(ProtocolError, match="zlib"):
        _ = Message(lying, 0, QUEUE).body


def test_a_body_length_that_lies_is_refused(make_record: Make) -> None:
    data = bytearray(make_record(b"hello") + make_record(b"next"))
    data[84:88] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(ProtocolError, match="body length"):
        _ = Message(bytes(data), 0, QUEUE).body


def test_properties_that_are_not_utf8_are_refused() -> None:
    message = Message(encode_message(StoredMessage("T", b"", b"a\x01\xff\xfe")), 0, QUEUE)
    with pytest.raises(ProtocolError, match="UTF-8"):
        _ = message.properties
    assert message.body == b""


def test_a_pickled_message_takes_only_its_own_record_along() -> None:
    records = encode_message(stored(b"a" * 50_000)) + encode_message(stored(b"mine", queue_offset=1))
    message = Message(records, len(records) - len(encode_message(stored(b"mine", queue_offset=1))), QUEUE)
    copy = pickle.loads(pickle.dumps(message))
    assert (copy.body, copy.queue_offset, copy.queue) == (b"mine", 1, QUEUE)
    assert len(pickle.dumps(message)) < 1_000


def test_an_inner_batch_expands(make_inner_batch: Make) -> None:
    data = make_inner_batch([b"a", b"b", b"c"], offset=10, tags=["x", "y", "x"])
    parts = expand_inner_batch(data, 0, len(data), QUEUE)
    assert [(part.body, part.queue_offset, part.tags) for part in parts] == [
        (b"a", 10, "x"),
        (b"b", 11, "y"),
        (b"c", 12, "x"),
    ]


def test_messages_made_by_hand() -> None:
    message = make_message(b"x", topic="T", tags="A", keys="k1 k2", queue_offset=3, reconsume_times=1)
    assert (message.body, message.tags, message.keys, message.reconsume_times) == (b"x", "A", "k1 k2", 1)
    assert "offset 3" in repr(message)
    none = make_message(b"", tags="", keys="")
    assert (none.tags, none.keys) == (None, None)


def test_in_a_namespace_the_topic_is_the_plain_one() -> None:
    queue = QueueInfo("n%group", "n%orders", "broker-a", 3, None, "n")
    assert Message(encode_message(stored()), 0, queue).topic == "orders"
    retried = encode_message(stored(properties={"RETRY_TOPIC": "n%orders"}))
    assert Message(retried, 0, queue._replace(topic="%RETRY%n%group")).topic == "orders"
    assert Message(retried, 0, queue._replace(topic="%RETRY%n%group")).queue.topic == "%RETRY%n%group"
