"""A message to be sent, and the command that sends it. Pure: ids and the clock are handed in.

Sources: common/message/{Message,MessageConst}.java, client/impl/producer/DefaultMQProducerImpl.java (sendKernelImpl),
client/Validators.java (checkMessage), common/message/MessageBatch.java.

Where we differ from Java: a compressed body that did not get smaller is sent as it was; separators in property values are
refused (Java writes them and every reader cuts the value there).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypedDict, cast

from ..remoting.arguments import FLAG, INT32_MAX, INT64_MAX, check, plain, refuse, whole
from ..remoting.batch import encode_batch
from ..remoting.codes import SYSFLAG_TRANSACTION_PREPARED, RequestCode
from ..remoting.command import Command
from ..remoting.compression import LEVEL_DEFAULT, Compression, compress, compression_sysflag
from ..remoting.errors import UsageError
from ..remoting.headers import SendRequestV2
from ..remoting.names import DELAY_LEVEL_MAX, RETRY_PREFIX
from ..remoting.namespaces import wrap
from ..remoting.properties import (
    PROPERTIES_MAX_BYTES,
    PROPERTY_DELAY,
    PROPERTY_INSTANCE_ID,
    PROPERTY_KEYS,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRAN_MSG,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    encode_properties,
)
from ..remoting.queues import MessageQueue
from .validation import Keys, check_topic_to_send, check_user_properties, joined_keys

BODY_MAX_BYTES = 4 * 1024 * 1024
COMPRESS_FROM_BYTES = 4096
BATCH_MAX = 10_000
_NUMBER: Final = whole(-INT64_MAX, INT64_MAX)
"""Of the right type: which of them are possible, `check` of the message says."""
_RULES: Final = {
    "delay_level": _NUMBER,
    "flag": _NUMBER,
    "wait_stored": FLAG,
    "delay_sec": _NUMBER,
    "delay_ms": _NUMBER,
    "deliver_at_ms": _NUMBER,
}

Body = bytes | bytearray | memoryview | str
BYTES = (bytes, bytearray, memoryview)


class MessageFields(TypedDict, total=False):
    """What `send(topic, body, ...)` takes of a message by name."""

    tags: str | None
    keys: Keys
    delay_level: int
    properties: Mapping[str, str]
    flag: int
    wait_stored: bool
    delay_sec: int
    delay_ms: int
    deliver_at_ms: int


@dataclass(frozen=True, slots=True, init=False)
class OutgoingMessage:
    """What a user sends.

    - `body`: bytes; a str is encoded in UTF-8. Of a bytearray or memoryview a copy is kept.
    - `tags`: one tag, for subscriptions to filter by.
    - `keys`: those by which tools find it. Given as one str, in which blanks divide them, or as several without blanks;
      here they are always one str, joined by blanks, as in a `Message` that is read. No tag and no keys: "", or None.
    - `delay_level`: 0 at once, 1..127 a level of the broker (18 by default: 1s 5s 10s 30s 1m ... 2h), or its highest where
      that is lower.
    - `delay_sec`, `delay_ms`, `deliver_at_ms`: brokers since 5.0 deliver after a time, or at a time (ms since 1970), to the
      second, at most three days ahead by their default. At most one of the four delays; 0: none. A 4.9 broker knows only
      levels and delivers at once.
    - `properties`: the user's own; names of the system are refused.
    - `system_properties`: for those who forward messages of others (a dead letter with its origin); not checked.
    - `flag`: an int32 of the user, not looked at by brokers. `wait_stored`: whether a synchronously flushing broker answers
      only after the flush.
    """

    topic: str
    body: bytes | str
    tags: str = ""
    keys: str = ""
    delay_level: int = 0
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    flag: int = 0
    wait_stored: bool = True
    system_properties: Mapping[str, str] = field(default_factory=dict[str, str])
    delay_sec: int = 0
    delay_ms: int = 0
    deliver_at_ms: int = 0

    def __init__(
        self, topic: str, body: Body, tags: str | None = None, keys: Keys = None, delay_level: int = 0,
        properties: Mapping[str, str] | None = None, flag: int = 0, wait_stored: bool = True,
        system_properties: Mapping[str, str] | None = None, delay_sec: int = 0, delay_ms: int = 0, deliver_at_ms: int = 0,
    ) -> None:  # fmt: skip
        """Raises UsageError naming the field that is of a wrong type."""
        properties = {} if properties is None else properties
        if not _check_types(topic, body, tags, properties):
            topic, tags = plain(topic), plain(tags)
            properties = {plain(name): plain(value) for name, value in properties.items()}
        if not isinstance(body, bytes | str):
            body = bytes(body)  # its owner goes on with it, and what is sent later must be what was given
        if not (
            type(delay_level) is type(flag) is type(delay_sec) is type(delay_ms) is type(deliver_at_ms) is int
            and type(wait_stored) is bool
        ):
            given = {
                "delay_level": delay_level, "flag": flag, "wait_stored": wait_stored, "delay_sec": delay_sec,
                "delay_ms": delay_ms, "deliver_at_ms": deliver_at_ms,
            }  # fmt: skip
            taken = check(f"a message for topic {topic}", given, _RULES)
            delay_level, flag, wait_stored, delay_sec, delay_ms, deliver_at_ms = taken.values()
        if system_properties and not isinstance(system_properties, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            refuse(f"a message for topic {topic}", "system_properties", system_properties, "a dict of str to str")
        keys = joined_keys(keys, f"of a message for topic {topic}")
        values = (
            topic, body, tags or "", keys, delay_level, properties, flag, wait_stored, system_properties or {}, delay_sec,
            delay_ms, deliver_at_ms,
        )  # fmt: skip
        for name, value in zip(OutgoingMessage.__slots__, values, strict=True):
            object.__setattr__(self, name, value)  # frozen for others

    @property
    def body_bytes(self) -> bytes:
        """The body as it is sent."""
        return self.body.encode() if isinstance(self.body, str) else self.body

    def check(self, body_max_bytes: int = BODY_MAX_BYTES) -> None:
        """Raises UsageError saying what cannot be sent and why, before anything is."""
        check_topic_to_send(self.topic)
        if isinstance(self.body, str):
            _utf8(self.body, "the body", self.topic)
        size = len(self.body_bytes)
        if size == 0:
            raise UsageError(f"a message for topic {self.topic} has an empty body: RocketMQ refuses those")
        if size > body_max_bytes:
            raise UsageError(
                f"a message for topic {self.topic} has a body of {size} bytes; at most {body_max_bytes} are allowed"
            )
        if not 0 <= self.delay_level <= DELAY_LEVEL_MAX:
            raise UsageError(f"delay level {self.delay_level} is outside 0..{DELAY_LEVEL_MAX}")
        delays = {name: getattr(self, name) for name in ("delay_level", "delay_sec", "delay_ms", "deliver_at_ms")}
        for name, value in delays.items():
            if not 0 <= value <= INT64_MAX:
                raise UsageError(f"{name} {value} of a message for topic {self.topic} is outside 0..{INT64_MAX}")
        given = [name for name, value in delays.items() if value]
        if len(given) > 1:
            raise UsageError(f"a message for topic {self.topic} has {' and '.join(given)}: give one delay only")
        if not -INT32_MAX - 1 <= self.flag <= INT32_MAX:
            raise UsageError(f"flag {self.flag} is not an int32")
        check_user_properties(self.properties)

    @property
    def is_delayed(self) -> bool:
        return bool(self.delay_level or self.delay_sec or self.delay_ms or self.deliver_at_ms)

    def all_properties(self, unique_id: str) -> dict[str, str]:
        """The properties as they are sent; a UNIQ_KEY that is there already stays (MessageClientIDSetter.setUniqID)."""
        found = {**self.system_properties, **self.properties}
        if self.keys:
            found[PROPERTY_KEYS] = self.keys
        if self.tags:
            found[PROPERTY_TAGS] = self.tags
        if self.delay_level:
            found[PROPERTY_DELAY] = str(self.delay_level)
        if self.delay_sec:
            found[PROPERTY_TIMER_DELAY_SEC] = str(self.delay_sec)
        if self.delay_ms:
            found[PROPERTY_TIMER_DELAY_MS] = str(self.delay_ms)
        if self.deliver_at_ms:
            found[PROPERTY_TIMER_DELIVER_MS] = str(self.deliver_at_ms)
        found.setdefault(PROPERTY_WAIT, "true" if self.wait_stored else "false")
        found.setdefault(PROPERTY_UNIQ_KEY, unique_id)
        return found


def as_message(message: OutgoingMessage | str, body: Body | None, fields: MessageFields) -> OutgoingMessage:
    """What a send is called with: a whole message, or its topic, body and fields. Raises UsageError for a mixture."""
    if isinstance(message, str):
        if body is None:
            raise UsageError(f"there is no body: call send({message!r}, body), or send(OutgoingMessage(...))")
        return OutgoingMessage(message, body, **fields)
    if not isinstance(message, OutgoingMessage):  # pyright: ignore[reportUnnecessaryIsInstance]  a user's mistake
        raise UsageError(
            f"what is to be sent is of type {type(message).__name__}: give a topic and a body, as in send('orders', b'...'),"
            " or an OutgoingMessage"
        )
    given = [*(["body"] if body is not None else []), *fields]
    if given:
        raise UsageError(f"send was given a whole message and also {', '.join(given)}: give them in the message")
    return message


def _check_types(topic: Any, body: Any, tags: Any, properties: Any) -> bool:
    """Whether all texts are Python's own str, and no subclass (an Enum). Raises UsageError naming the field: nothing is
    guessed from what Python makes of it as text."""
    if not isinstance(topic, str):
        raise UsageError(f"the topic of a message is of type {type(topic).__name__}: give its name, a str")
    where = f"of a message for topic {plain(topic)}"
    if not isinstance(body, (*BYTES, str)):
        raise UsageError(f"the body {where} is of type {type(body).__name__}: give bytes, or a str")
    if not isinstance(tags, str | None):
        raise UsageError(f"tags {where} is of type {type(tags).__name__}: a message has one tag, give a str")
    if not isinstance(properties, Mapping):
        raise UsageError(f"properties {where} is of type {type(properties).__name__}: give a dict of str to str")
    own = type(topic) is str and (tags is None or type(tags) is str)
    for name, value in cast("Mapping[object, object]", properties).items():
        if type(name) is not str or type(value) is not str:
            if not (isinstance(name, str) and isinstance(value, str)):
                raise UsageError(f"properties {where}: {name!r} with {value!r}: both must be str")
            own = False
    return own


@dataclass(frozen=True, slots=True)
class SendOptions:
    """What all messages of a producer have in common; sizes in bytes."""

    group: str
    default_topic: str
    default_topic_queue_nums: int
    body_max_bytes: int = BODY_MAX_BYTES
    compress_from_bytes: int = COMPRESS_FROM_BYTES
    compression: Compression = Compression.ZLIB
    compress_level: int = LEVEL_DEFAULT
    namespace: str = ""
    unit_mode: bool = False

    def placed(self, message: OutgoingMessage) -> OutgoingMessage:
        """The message as it goes out, in the producer's namespace (DefaultMQProducerImpl.sendKernelImpl)."""
        if not self.namespace:
            return message
        marks = {**message.system_properties, PROPERTY_INSTANCE_ID: self.namespace}
        return replace(message, topic=wrap(self.namespace, message.topic), system_properties=marks)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A message (or batch) ready to be sent to any queue of its topic: checked, with its id, compressed."""

    topic: str
    message_id: str
    code: RequestCode
    header: SendRequestV2
    body: bytes
    messages: Sequence[OutgoingMessage]

    def command(self, mq: MessageQueue) -> Command:
        """The request for one queue; a new one for each attempt."""
        header = replace(self.header, queue_id=mq.queue_id, broker_name=mq.broker_name)
        return Command(int(self.code), header.to_fields(), self.body)


def prepare(message: OutgoingMessage, options: SendOptions, *, unique_id: str, now_ms: int) -> Prepared:
    """Make one message ready. Raises UsageError as `OutgoingMessage.check`, or when its properties are too long."""
    given, message = message, options.placed(message)
    message.check(options.body_max_bytes)
    properties = message.all_properties(unique_id)
    body, sysflag = _maybe_compressed(message.body_bytes, options)
    header = _header(message, options, now_ms, sysflag, _property_text(properties, message.topic))
    if message.topic.startswith(RETRY_PREFIX):
        # The numbers travel in the header too, for brokers since 3.4.9; the property string keeps them as Java's does.
        header = replace(
            header,
            reconsume_times=_number(properties, PROPERTY_RECONSUME_TIME) or 0,
            max_reconsume_times=_number(properties, PROPERTY_MAX_RECONSUME_TIMES),
        )
    return Prepared(message.topic, properties[PROPERTY_UNIQ_KEY], RequestCode.SEND_MESSAGE_V2, header, body, (given,))


def prepare_half(message: OutgoingMessage, options: SendOptions, *, unique_id: str, now_ms: int) -> Prepared:
    """Make a transaction's message ready: the broker shows it to nobody before the transaction is committed.

    A delay level is taken off, as by Java (DefaultMQProducerImpl.sendMessageInTransaction). Raises UsageError as `prepare`.
    """
    marks = {PROPERTY_TRAN_MSG: "true", PROPERTY_PRODUCER_GROUP: options.group}
    half = replace(message, delay_level=0, system_properties={**message.system_properties, **marks})
    prepared = prepare(half, options, unique_id=unique_id, now_ms=now_ms)
    header = prepared.header
    return replace(prepared, header=replace(header, sys_flag=header.sys_flag | SYSFLAG_TRANSACTION_PREPARED))


def prepare_batch(
    messages: Sequence[OutgoingMessage], options: SendOptions, *, next_id: Callable[[], str], now_ms: int
) -> Prepared:
    """Make a batch ready: one request, one queue, stored as so many messages; never compressed.

    Raises UsageError when messages differ in topic or `wait_stored`, are delayed or for a retry topic, are none or more than
    10,000, or are together larger than the largest body (client: MessageBatch.generateFromList, broker: same checks).
    """
    if not 0 < len(messages) <= BATCH_MAX:
        raise UsageError(f"a batch has 1..{BATCH_MAX} messages, not {len(messages)}")
    given, messages = messages, [options.placed(message) for message in messages]
    first = messages[0]
    for message in messages:
        message.check(options.body_max_bytes)
        if message.topic != first.topic:
            raise UsageError(f"a batch has one topic, not {first.topic} and {message.topic}: send them apart")
        if message.wait_stored != first.wait_stored:
            raise UsageError("all messages of a batch must have the same wait_stored")
        if message.is_delayed:
            raise UsageError("messages of a batch cannot be delayed: send them one by one")
    if first.topic.startswith(RETRY_PREFIX):
        raise UsageError(f"a batch cannot be sent to a retry topic ({first.topic})")
    all_properties = [message.all_properties(next_id()) for message in messages]
    body = encode_batch(
        (message.flag, message.body_bytes, _property_text(properties, first.topic))
        for message, properties in zip(messages, all_properties, strict=True)
    )
    if len(body) > options.body_max_bytes:
        raise UsageError(
            f"a batch of {len(messages)} messages has {len(body)} bytes; at most {options.body_max_bytes} are allowed:"
            " split it"
        )
    own = {PROPERTY_WAIT: "true" if first.wait_stored else "false", PROPERTY_UNIQ_KEY: next_id()}
    header = replace(_header(first, options, now_ms, 0, encode_properties(own)), flag=0, batch=True)
    ids = ",".join(properties[PROPERTY_UNIQ_KEY] for properties in all_properties)
    return Prepared(first.topic, ids, RequestCode.SEND_BATCH_MESSAGE, header, body, tuple(given))


def _header(
    message: OutgoingMessage, options: SendOptions, now_ms: int, sysflag: int, properties: str
) -> SendRequestV2:
    return SendRequestV2(
        producer_group=options.group,
        topic=message.topic,
        default_topic=options.default_topic,
        default_topic_queue_nums=options.default_topic_queue_nums,
        queue_id=-1,
        sys_flag=sysflag,
        born_timestamp=now_ms,
        flag=message.flag,
        properties=properties,
        reconsume_times=0,
        unit_mode=options.unit_mode,
        batch=False,
    )


def _maybe_compressed(body: bytes, options: SendOptions) -> tuple[bytes, int]:
    """The body as it is sent, and the sysFlag that says how."""
    if len(body) < options.compress_from_bytes:
        return body, 0
    smaller = compress(body, options.compression, options.compress_level)
    if len(smaller) >= len(body):
        return body, 0
    return smaller, compression_sysflag(options.compression)


def _utf8(text: str, what: str, topic: str) -> bytes:
    """Raises UsageError for half a character (a lone surrogate), which no bytes stand for."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        part = text[max(0, error.start - 10) : error.end]
        raise UsageError(
            f"{what} of a message for topic {topic} can't be written as UTF-8: {error.reason} in {part!r}"
        ) from None


def _property_text(properties: Mapping[str, str], topic: str) -> str:
    text = encode_properties(properties)
    size = len(_utf8(text, "the properties", topic))
    if size > PROPERTIES_MAX_BYTES:
        raise UsageError(
            f"the properties of a message for topic {topic} have {size} bytes; at most {PROPERTIES_MAX_BYTES} are allowed"
        )
    return text


def _number(properties: Mapping[str, str], name: str) -> int | None:
    text = properties.get(name)
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
