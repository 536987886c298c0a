from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.remoting.compression import Compression, compress, compression_sysflag
from rocketcrew.remoting.errors import ProtocolError
from rocketcrew.remoting.namespaces import wrap
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.workers.message import Message, expand_inner_batch, make_message, origin_topic, plain_messages
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


@pytest.mark.parametrize("namespace", ["", "n"])
@pytest.mark.parametrize(
    ("pulled", "popped", "shown"),
    [("%RETRY%group", False, "orders"), ("%RETRY%other", False, "%RETRY%other"), ("%DLQ%other", False, "%DLQ%other"),
     ("%RETRY%group_x", False, "%RETRY%group_x"), ("%RETRY%group_x", True, "x"), ("%RETRY%group+x", True, "x")],
)  # fmt: skip
def test_only_the_groups_own_retries_show_their_first_topic(
    pulled: str, popped: bool, shown: str, namespace: str
) -> None:
    record = encode_message(stored(properties={"RETRY_TOPIC": wrap(namespace, "orders")}))
    queue = QUEUE._replace(
        topic=wrap(namespace, pulled), group=wrap(namespace, "group"), namespace=namespace, popped=popped
    )
    message = Message(record, 0, queue)
    assert message.topic == shown
    assert origin_topic(message) == ("orders" if pulled.startswith("%RETRY%") else pulled), (
        "a row's columns are its record's"
    )


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


HOSTS = st.sampled_from(["10.0.0.1", "2001:db8::1"])


@given(
    st.lists(st.tuples(st.binary(max_size=40), HOSTS, HOSTS, st.sampled_from([None, *Compression])), max_size=5),
    st.integers(0, 7),
    st.integers(0, 39),
)
def test_the_messages_of_a_batch_are_those_that_are_looked_at_one_by_one(
    records: list[tuple[bytes, str, str, Compression | None]], spoilt: int, byte: int
) -> None:
    """Of each record the body that `Message.body` gives, and none at all where one of them raises."""
    data, positions = bytearray(), list[int]()
    for number, (body, born, store, compression) in enumerate(records):
        kept = body if compression is None else compress(body, compression)
        sysflag = 0 if compression is None else compression_sysflag(compression)
        positions.append(len(data))
        data += encode_message(stored(kept, sysflag=sysflag, born_host=born, store_host=store, queue_offset=number))
        if number == spoilt:
            data[positions[-1] + 8 + byte // 10] ^= 1 << byte % 8  # a bit of its checksum
    try:
        wanted = [Message(bytes(data), position, QUEUE).body for position in positions]
    except ProtocolError:
        assert plain_messages(bytes(data), positions, QUEUE) is None
        return
    found = plain_messages(bytes(data), positions, QUEUE)
    assert found is not None
    assert [message.body for message in found] == wanted
    assert [message.queue_offset for message in found] == list(range(len(records)))
    assert all(message.queue is QUEUE for message in found)


def test_an_inner_batch_or_a_damaged_body_is_no_plain_batch(
    make_record: Make, make_inner_batch: Make, spoil: Callable[[bytes], bytes]
) -> None:
    good = make_record(b"hello")
    for other in (make_inner_batch([b"a", b"b"], offset=1), spoil(good)):
        assert plain_messages(good + other, [0], QUEUE) is not None
        assert plain_messages(good + other, [0, len(good)], QUEUE) is None
    lying = bytearray(good + good)
    lying[84:88] = (2**31 - 1).to_bytes(4, "big")
    assert plain_messages(bytes(lying), [0], QUEUE) is None


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
