"""Message traces: what happened to a message, as records that `mqadmin queryMsgTraceById` and the dashboard read.

Fields are separated by \\x01, every record ends with \\x02; several records are one trace message, whose KEYS are all their
message ids and keys, so that the broker's index finds it. Java writes a value that it does not have as `null`, and its
reader splits without trailing empty fields: both are kept here.

    Pub             timestamp region group topic msgId tags keys storeHost bodyLength cost msgType offsetMsgId success
    SubBefore       timestamp region group requestId msgId retryTimes keys
    SubAfter        requestId msgId cost success keys contextCode timestamp group
    EndTransaction  timestamp region group topic msgId tags keys storeHost msgType transactionId state fromCheck
    Recall          timestamp region group topic msgId success

Source: client/trace/{TraceDataEncoder,TraceContext,TraceBean}.java. Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from .properties import divided_keys

FIELD_SEPARATOR = "\x01"
RECORD_SEPARATOR = "\x02"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TRACE_GROUP_PREFIX = "_INNER_TRACE_PRODUCER"
_NULL = "null"


class MessageType(IntEnum):
    """common/message/MessageType.java."""

    NORMAL = 0
    TRANS_HALF = 1
    TRANS_COMMIT = 2
    DELAY = 3
    ORDER = 4


class ConsumeReturn(IntEnum):
    """How a listener's call ended: the contextCode (client/consumer/listener/ConsumeReturnType.java)."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class TraceRecord(NamedTuple):
    """One or more records of one event, and the keys under which they are found."""

    text: str
    keys: tuple[str, ...]


class TracedMessage(NamedTuple):
    """A consumed message as traces name it; `keys` separated by blanks, empty for none."""

    message_id: str
    keys: str
    retry_times: int


def pub_record(
    *,
    timestamp_ms: int,
    region: str,
    group: str,
    topic: str,
    message_id: str,
    tags: str,
    keys: str,
    store_host: str,
    body_bytes: int,
    cost_ms: int,
    kind: MessageType,
    offset_message_id: str,
    success: bool,
) -> TraceRecord:
    """A message was sent."""
    text = _record(
        "Pub", timestamp_ms, region, group, topic, message_id, tags, keys, store_host, body_bytes, cost_ms, int(kind),
        offset_message_id, success,
    )  # fmt: skip
    return TraceRecord(text, _keys(message_id, keys))


def sub_before_record(
    *, timestamp_ms: int, region: str, group: str, request_id: str, messages: Sequence[TracedMessage]
) -> TraceRecord:
    """A handler is about to be called with these messages."""
    text = "".join(
        _record("SubBefore", timestamp_ms, region, group, request_id, m.message_id, m.retry_times, m.keys)
        for m in messages
    )
    return TraceRecord(text, _keys_of(messages))


def sub_after_record(
    *,
    timestamp_ms: int,
    group: str,
    request_id: str,
    cost_ms: int,
    success: bool,
    code: ConsumeReturn,
    messages: Sequence[TracedMessage],
) -> TraceRecord:
    """The handler returned; `cost_ms` per message."""
    text = "".join(
        _record("SubAfter", request_id, m.message_id, cost_ms, success, m.keys, int(code), timestamp_ms, group)
        for m in messages
    )
    return TraceRecord(text, _keys_of(messages))


def end_transaction_record(
    *,
    timestamp_ms: int,
    region: str,
    group: str,
    topic: str,
    message_id: str,
    tags: str,
    keys: str,
    store_host: str,
    transaction_id: str,
    state: str,
    from_check: bool,
) -> TraceRecord:
    """The broker was told how a transaction ended; `state` is the name of a LocalTransactionState."""
    text = _record(
        "EndTransaction", timestamp_ms, region, group, topic, message_id, tags, keys, store_host,
        int(MessageType.TRANS_COMMIT), transaction_id, state, from_check,
    )  # fmt: skip
    return TraceRecord(text, _keys(message_id, keys))


def recall_record(
    *, timestamp_ms: int, region: str, group: str, topic: str, message_id: str, success: bool
) -> TraceRecord:
    """A delayed message was recalled."""
    return TraceRecord(
        _record("Recall", timestamp_ms, region, group, topic, message_id, success), _keys(message_id, "")
    )


def _record(*values: object) -> str:
    return FIELD_SEPARATOR.join(map(_text, values)) + RECORD_SEPARATOR


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if not text:
        return _NULL
    return text.replace(FIELD_SEPARATOR, " ").replace(RECORD_SEPARATOR, " ")


def _keys(message_id: str, keys: str) -> tuple[str, ...]:
    """An id may be its sender's own UNIQ_KEY, and brokers divide all keys at blanks."""
    return (*divided_keys(message_id), *divided_keys(keys))


def _keys_of(messages: Iterable[TracedMessage]) -> tuple[str, ...]:
    return tuple(key for message in messages for key in _keys(message.message_id, message.keys))
