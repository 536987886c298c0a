"""The message that a handler gets: immutable, small to make, decoded as far as it is looked at.

A `Message` is three references: the bytes of its chunk (copied out of the slab once, never a view into it), where its
record starts, and the queue. Body and properties are cut out, checked and decoded at the first look. So a body that does
not match its checksum raises a ProtocolError from `message.body`, which fails that message and no other.

What was pulled and what is shown differ for a retry of the group's own: it is pulled from `%RETRY%group`, and `topic` is the
one that the group had it of first (CL/impl/consumer/DefaultMQPushConsumerImpl.java, resetRetryAndNamespace). Retries and dead
letters of another group, which this one subscribes, are messages of that topic: handlers are found by the names they gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import is_
from struct import Struct
from types import MappingProxyType
from typing import Any, ClassVar, Final

from isal import isal_zlib

from ..client.validation import Keys, joined_keys
from ..remoting.codes import SYSFLAG_COMPRESSED
from ..remoting.compression import decompress
from ..remoting.errors import ProtocolError
from ..remoting.ids import host_text
from ..remoting.log_keys import place_keys
from ..remoting.names import RETRY_PREFIX, popped_topic
from ..remoting.namespaces import unwrap, wrap
from ..remoting.properties import (
    PROPERTIES_MAX_BYTES,
    PROPERTY_CONSUME_START_TIME,
    PROPERTY_KEYS,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    decode_properties,
    encode_properties,
    find_property,
)
from ..remoting.stored import HOSTS_V6 as _HOSTS_V6
from ..remoting.stored import (
    RecordInfo,
    StoredMessage,
    decode_message,
    encode_message,
    offset_message_id,
    record_info,
    split_inner_batch,
)
from .packets import QueueInfo

_crc32: Callable[[bytes], int] = isal_zlib.crc32  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

# Size, body crc, sysFlag and body length of a record with IPv4 hosts (the table in remoting/stored.py).
_BODY_V4 = Struct(">I4xI24xI44xI")
_BODY_START_V4: Final = _BODY_V4.size
_UNUSUAL: Final = _HOSTS_V6 | SYSFLAG_COMPRESSED
_QUEUE_OFFSET = Struct(">20xq")
INNER_BATCH_BIT: Final = 0x80
_NOT_PLAIN: Final = _UNUSUAL | INNER_BATCH_BIT


class Message:
    """One message. All attributes are read-only; those that decode may raise ProtocolError for a damaged record."""

    part: int = 0
    """Which message of its inner batch it is, from 0 on; 0 where it is the record's only one."""
    call_clock: ClassVar[list[Callable[[], int]]] = []
    """In a worker one entry: when the call in hand began, ms since 1970. It is the property CONSUME_START_TIME of Java."""

    __slots__ = ("_body", "_data", "_info", "_position", "_properties", "_queue", "_trace_id")
    _trace_id: str

    def __init__(self, data: bytes, position: int, queue: QueueInfo) -> None:
        self._data = data
        self._position = position
        self._queue = queue
        self._body: bytes | None = None
        self._info: RecordInfo | None = None
        self._properties: dict[str, str] | None = None

    @property
    def body(self) -> bytes:
        """The body as it was sent: its checksum verified, decompressed."""
        body = self._body
        if body is None:
            data = self._data
            position = self._position
            size, crc, sysflag, length = _BODY_V4.unpack_from(data, position)
            start = position + _BODY_START_V4
            if sysflag & _UNUSUAL or length > size:
                return self._unusual_body(crc, sysflag)
            body = data[start : start + length]
            if _crc32(body) & 0x7FFFFFFF != crc and length:
                raise self._damaged(crc, body)
            self._body = body
        return body

    def _unusual_body(self, crc: int, sysflag: int) -> bytes:
        info = self._record
        stored = self._data[info.body_start : info.body_start + info.body_len]
        if _crc32(stored) & 0x7FFFFFFF != crc and stored:
            raise self._damaged(crc, stored)
        body = self._body = decompress(stored, sysflag)
        return body

    def _damaged(self, crc: int, body: bytes) -> ProtocolError:
        found = _crc32(body) & 0x7FFFFFFF
        where = f"message at offset {self.queue_offset} of {self._queue.topic} queue {self._queue.queue_id}"
        return ProtocolError(f"body checksum is {found:#x}, the record says {crc:#x}", where)

    @property
    def _record(self) -> RecordInfo:
        info = self._info
        if info is None:
            info = self._info = record_info(self._data, self._position)
        return info

    def _decoded(self) -> dict[str, str]:
        properties = self._properties
        if properties is None:
            info = self._record
            properties = self._properties = decode_properties(self._data[info.properties_start : info.end])
            if Message.call_clock:
                properties[PROPERTY_CONSUME_START_TIME] = str(Message.call_clock[0]())
        return properties

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, the system's included."""
        return MappingProxyType(self._decoded())

    @property
    def tags(self) -> str | None:
        """The tag, None when it has none."""
        if self._properties is not None:
            return self._properties.get(PROPERTY_TAGS)
        info = self._record
        found = find_property(self._data[info.properties_start : info.end], b"TAGS")
        return None if found is None else found.decode("utf-8", "replace")

    @property
    def keys(self) -> str | None:
        """The keys as one str, joined by blanks as in its OutgoingMessage (`keys.split(" ")` are several); None = none."""
        return self._decoded().get(PROPERTY_KEYS)

    @property
    def topic(self) -> str:
        """The topic that the group subscribes the message of, also when it comes back as a retry; without the namespace."""
        queue = self._queue
        topic = queue.topic
        if topic.startswith(RETRY_PREFIX):
            topic = self._topic_of_retry(topic)
        return unwrap(queue.namespace, topic) if queue.namespace else topic

    def _topic_of_retry(self, topic: str) -> str:
        group = wrap(self._queue.namespace, self._queue.group)
        if topic == RETRY_PREFIX + group:
            return self._decoded().get(PROPERTY_RETRY_TOPIC, topic)
        return popped_topic(topic, group) if self._queue.popped else topic

    @property
    def queue(self) -> QueueInfo:
        """The queue it was pulled from (`%RETRY%group` for a retry)."""
        return self._queue

    @property
    def broker_name(self) -> str:
        """Broker of the queue it was pulled from."""
        return self._queue.broker_name

    @property
    def queue_id(self) -> int:
        """Queue it was pulled from."""
        return self._queue.queue_id

    @property
    def queue_offset(self) -> int:
        """Offset in that queue."""
        offset: int = _QUEUE_OFFSET.unpack_from(self._data, self._position)[0]
        return offset

    @property
    def physical_offset(self) -> int:
        """Offset of the record in the broker's commit log."""
        return self._record.physical_offset

    @property
    def born_timestamp_ms(self) -> int:
        """When the producer made it, milliseconds since 1970."""
        return self._record.born_timestamp_ms

    @property
    def store_timestamp_ms(self) -> int:
        """When the broker stored this record, milliseconds since 1970."""
        return self._record.store_timestamp_ms

    @property
    def born_host(self) -> str:
        """Address of the producer, `ip:port`."""
        return f"{host_text(self._record.born_address)}:{self._record.born_port}"

    @property
    def store_host(self) -> str:
        """Address of the broker that stored it, `ip:port`."""
        return f"{host_text(self._record.store_address)}:{self._record.store_port}"

    @property
    def reconsume_times(self) -> int:
        """How often it was sent back before, 0 at the first delivery."""
        return self._record.reconsume_times

    @property
    def flag(self) -> int:
        """The producer's own flag."""
        return self._record.flag

    @property
    def message_id(self) -> str:
        """The id that clients show: the producer's unique key, else the offset id."""
        return self._decoded().get(PROPERTY_UNIQ_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The id made of broker address and commit-log offset."""
        info = self._record
        return offset_message_id(host_text(info.store_address), info.store_port, info.physical_offset)

    @property
    def origin_message_id(self) -> str:
        """The offset id of the record that began the chain of retries; the message's own at the first delivery.

        As ORIGIN_MESSAGE_ID, which the broker sets at the first send-back (BK/processor/AbstractSendMessageProcessor).
        """
        return self._decoded().get(PROPERTY_ORIGIN_MESSAGE_ID) or self.offset_message_id

    def __repr__(self) -> str:
        queue = self._queue
        return f"<Message {queue.topic} {queue.broker_name}/{queue.queue_id} offset {self.queue_offset}>"

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        # Only its own record travels, not the whole chunk.
        return Message, (self._data[self._position : self._record.end], 0, self._queue)


def plain_messages(data: bytes, positions: Sequence[int], queue: QueueInfo) -> list[Message] | None:
    """A message for each record, its body looked at; None when one is an inner batch or damaged.

    What `Message.body` does for nearly every record is written out here: a batch handler's every message comes this way.
    """
    messages: list[Message] = []
    unpack, crc32, body_start, not_plain = _BODY_V4.unpack_from, _crc32, _BODY_START_V4, _NOT_PLAIN
    try:
        for position in positions:
            size, crc, sysflag, length = unpack(data, position)
            message = Message(data, position, queue)
            if sysflag & not_plain or length > size:
                if sysflag & INNER_BATCH_BIT:
                    return None
                _ = message.body
            else:
                start = position + body_start
                body = message._body = data[start : start + length]  # pyright: ignore[reportPrivateUsage]
                if crc32(body) & 0x7FFFFFFF != crc and length:
                    return None
            messages.append(message)
    except ProtocolError:
        return None
    return messages


class _Part(Message):
    """A message of an inner batch."""

    __slots__ = ("part",)

    def __init__(self, data: bytes, queue: QueueInfo, part: int) -> None:
        super().__init__(data, 0, queue)
        self.part = part

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _Part, (self._data, self._queue, self.part)


def expand_inner_batch(data: bytes, position: int, end: int, queue: QueueInfo) -> list[Message]:
    """The messages of the inner batch at `position`. Raises ProtocolError when it is damaged or empty.

    What a broker noted on the record when it was sent back, each of them shows: its first topic, and its first id.
    """
    whole = decode_message(data, position, end)
    notes = b"".join(
        name + b"\x01" + value + b"\x02"
        for name in (PROPERTY_RETRY_TOPIC.encode(), PROPERTY_ORIGIN_MESSAGE_ID.encode())
        if (value := find_property(whole.raw_properties, name))
    )
    found: list[Message] = []
    for number, part in enumerate(split_inner_batch(whole)):
        own = part.raw_properties
        noted = own + (b"\x02" if notes and own and not own.endswith(b"\x02") else b"") + notes
        known = replace(part, raw_properties=noted) if len(noted) <= PROPERTIES_MAX_BYTES else part
        found.append(_Part(encode_message(known), queue, number))
    return found


_LIST: Any = list


def _noting(method: Callable[..., Any]) -> Any:
    def noted(self: HandedList, *args: Any, **keys: Any) -> Any:
        self.moved = True
        return method(self, *args, **keys)

    return noted


class HandedList(list[Any]):
    """The list that a batch handler gets, its own to change. `moved`: what stands in it may have come to another place, which
    the list does not show in the end where each item was replaced after a sort."""

    moved = False

    def __init__(self, handed: Sequence[Any]) -> None:
        super().__init__(handed)
        self._handed = handed

    sort = _noting(_LIST.sort)
    reverse = _noting(_LIST.reverse)
    insert = _noting(_LIST.insert)
    pop = _noting(_LIST.pop)
    remove = _noting(_LIST.remove)
    clear = _noting(_LIST.clear)
    __delitem__ = _noting(_LIST.__delitem__)
    __imul__ = _noting(_LIST.__imul__)

    def __setitem__(self, index: Any, value: Any, /) -> None:
        size, replaced = len(self), super().__getitem__(index)
        super().__setitem__(index, value)
        # What was replaced is looked at, too: `list.sort(messages)` and `heapq.heapify(messages)` call none of these methods.
        if index.__class__ is slice:
            self.moved = self.moved or len(self) != size or self._elsewhere(index, replaced)
            self.moved = self.moved or self._elsewhere(index, super().__getitem__(index))
        elif self._places.get(id(replaced), index) != index or self._places.get(id(value), index) != index:
            at = slice(index, None)
            self.moved = self.moved or self._elsewhere(at, (replaced,)) or self._elsewhere(at, (value,))

    def is_unchanged(self) -> bool:
        # Not by ==, which runs the code of what a handler put there; and a copy's iteration does not note what is taken.
        return len(self) == len(self._handed) and all(map(is_, self._handed, self.copy()))

    def in_place(self) -> bool:
        """Items were replaced at most, as each body by what was made of it: none is at another's place, nor was before."""
        return not self.moved and len(self) == len(self._handed) and not self._elsewhere(slice(None), self.copy())

    def _elsewhere(self, at: slice, items: Iterable[object]) -> bool:
        """Whether one of the items in this slice is one that the list was handed with, and at another place."""
        own, handed = self._places, self._handed
        return any(
            own.get(id(item), place) != place and (place >= len(handed) or handed[place] is not item)
            for place, item in zip(range(len(self))[at], items, strict=False)
        )

    @cached_property
    def _places(self) -> dict[int, int]:
        """By item, a place where it was handed; a small number may have several."""
        return {id(item): place for place, item in enumerate(self._handed)}

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        """A handler may hand it to another process: there it is a plain list."""
        return list, (self.copy(),)


def make_message(
    body: bytes = b"",
    *,
    topic: str = "TopicTest",
    tags: str | None = None,
    keys: Keys = None,
    properties: Mapping[str, str] | None = None,
    queue_id: int = 0,
    queue_offset: int = 0,
    broker_name: str = "broker-a",
    group: str = "group",
    reconsume_times: int = 0,
    store_timestamp_ms: int = 0,
) -> Message:
    """A message made by hand, for the tests of a handler: `my_handler(make_message(b"…"))`."""
    keys = joined_keys(keys, f"of a message for topic {topic}")
    every = dict(properties or {})
    every |= {name: value for name, value in ((PROPERTY_TAGS, tags), (PROPERTY_KEYS, keys)) if value}
    stored = StoredMessage(
        topic,
        body,
        encode_properties(every).encode(),
        queue_id=queue_id,
        queue_offset=queue_offset,
        reconsume_times=reconsume_times,
        born_timestamp_ms=store_timestamp_ms,
        store_timestamp_ms=store_timestamp_ms,
    )
    return Message(encode_message(stored), 0, QueueInfo(group, topic, broker_name, queue_id))


def origin_topic(message: Message) -> str:
    """The topic of the first record of the chain, as far as brokers have noted it: rows have it as `_origin_topic`."""
    queue = message._queue  # pyright: ignore[reportPrivateUsage]
    topic = queue.topic
    if topic.startswith(RETRY_PREFIX):
        topic = message.properties.get(PROPERTY_RETRY_TOPIC, topic)
    return unwrap(queue.namespace, topic)


def note_trace(message: Message, trace_id: str) -> None:
    """Its call has a span in this trace: what is logged of the message says so also when the span has ended."""
    message._trace_id = trace_id  # pyright: ignore[reportPrivateUsage]


def message_keys(message: Message) -> dict[str, object]:
    """What identifies a message in a log line, as far as it can be decoded: its place (a retry's is in the group's retry
    topic), the topic that it was first sent to where that is another one, its id, its keys, its finished attempts, and the
    trace of its call's span, where it has one."""
    queue = message.queue
    keys: dict[str, object] = {**place_keys(queue, message.queue_offset)}
    try:
        if message.topic != unwrap(queue.namespace, queue.topic):
            keys["origin_topic"] = message.topic
        keys["msg_id"] = message.message_id
        keys["keys"] = message.keys
        keys["reconsume_times"] = message.reconsume_times
    except ProtocolError as error:
        keys["undecodable"] = str(error)
    if trace_id := getattr(message, "_trace_id", ""):  # only a message that has one pays for it
        keys["trace_id"] = trace_id
    return keys
