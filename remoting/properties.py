"""The properties of a message: `name \\x01 value \\x02` repeated (CO/message/{MessageDecoder,MessageConst}.java).

Rules of Java's reader, kept here: segments without a name or without a value are dropped (so empty values vanish), a name
that repeats has its last value, the last \\x02 may be missing (4.9 leaves it out, 5.x writes it).
"""

from __future__ import annotations

from collections.abc import Mapping

from .errors import ProtocolError, UsageError

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
PROPERTIES_MAX_BYTES = 32767
KEY_SEPARATOR = " "

PROPERTY_KEYS = "KEYS"
PROPERTY_TAGS = "TAGS"
PROPERTY_WAIT = "WAIT"
PROPERTY_DELAY = "DELAY"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
PROPERTY_RECONSUME_TIME = "RECONSUME_TIME"
PROPERTY_MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
PROPERTY_UNIQ_KEY = "UNIQ_KEY"
PROPERTY_EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO"
PROPERTY_MIN_OFFSET = "MIN_OFFSET"
PROPERTY_MAX_OFFSET = "MAX_OFFSET"
PROPERTY_CONSUME_START_TIME = "CONSUME_START_TIME"
PROPERTY_MSG_REGION = "MSG_REGION"
PROPERTY_TRACE_ON = "TRACE_ON"
PROPERTY_CLUSTER = "CLUSTER"
PROPERTY_INSTANCE_ID = "INSTANCE_ID"
PROPERTY_TRAN_MSG = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_TRANSACTION_ID = "__transactionId__"
PROPERTY_TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_CHECK_IMMUNITY_TIME = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
PROPERTY_TIMER_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
PROPERTY_TIMER_OUT_MS = "TIMER_OUT_MS"
PROPERTY_TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
PROPERTY_TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
PROPERTY_TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
PROPERTY_TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
PROPERTY_TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
PROPERTY_POP_CK = "POP_CK"
PROPERTY_POP_CK_OFFSET = "POP_CK_OFFSET"
PROPERTY_FIRST_POP_TIME = "1ST_POP_TIME"
PROPERTY_INNER_NUM = "INNER_NUM"
PROPERTY_INNER_BASE = "INNER_BASE"
PROPERTY_INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
PROPERTY_INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
PROPERTY_SHARDING_KEY = "__SHARDINGKEY"
PROPERTY_CORRELATION_ID = "CORRELATION_ID"
PROPERTY_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PROPERTY_TTL = "TTL"
PROPERTY_MSG_TYPE = "MSG_TYPE"
PROPERTY_ARRIVE_TIME = "ARRIVE_TIME"
PROPERTY_PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
PROPERTY_DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
PROPERTY_DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
PROPERTY_BUYER_ID = "BUYER_ID"
PROPERTY_TRANSFER_FLAG = "TRANSFER_FLAG"
PROPERTY_CORRECTION_FLAG = "CORRECTION_FLAG"
PROPERTY_MQ2_FLAG = "MQ2_FLAG"
PROPERTY_DUP_INFO = "DUP_INFO"
PROPERTY_REDIRECT = "REDIRECT"
PROPERTY_FORWARD_QUEUE_ID = "PROPERTY_FORWARD_QUEUE_ID"
PROPERTY_TRACE_CONTEXT = "TRACE_CONTEXT"
PROPERTY_BORN_HOST = "__BORNHOST"
PROPERTY_BORN_TIMESTAMP = "BORN_TIMESTAMP"
PROPERTY_CRC32 = "__CRC32#"

# Names that a user may not set as a property of their own: those of MessageConst.STRING_HASH_SET. And what brokers write into
# records, or we make of the message's fields (TIMER_DELAY_MS): else a copy of a message would bring the original's along.
RESERVED_PROPERTIES = frozenset(
    value for name, value in list(globals().items()) if name.startswith("PROPERTY_") and name != "PROPERTY_SEPARATOR"
) - {PROPERTY_SHARDING_KEY, PROPERTY_CHECK_IMMUNITY_TIME, PROPERTY_INNER_MULTI_DISPATCH, PROPERTY_TRACE_CONTEXT}


def decode_properties(data: bytes | bytearray | memoryview | str, *, strict: bool = True) -> dict[str, str]:
    """The properties of a stored record, batch entry or request header.

    Raises ProtocolError when they are not UTF-8; with `strict` False each byte that is not becomes U+FFFD, as in Java.
    """
    if isinstance(data, str):
        text = data
    else:
        try:
            text = str(data, "utf-8", "strict" if strict else "replace")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"not UTF-8: {error}", "message properties") from None
    result: dict[str, str] = {}
    for segment in text.split("\x02"):
        name, _, value = segment.partition("\x01")
        if name and value:
            result[name] = value
    return result


def encode_properties(properties: Mapping[str, str]) -> str:
    """The property string, with the last separator as 5.x writes it.

    Raises UsageError when a name or value holds a separator (a reader would cut it there). An empty value is written, but
    vanishes in every reader, Java's too. The limit of 32767 bytes is checked where the bytes are written.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    if text.count("\x01") != len(properties) or text.count("\x02") != len(properties):
        bad = next(n for n, v in properties.items() if not {"\x01", "\x02"}.isdisjoint(n + v))
        raise UsageError(f"property {bad!r}: neither name nor value may hold the characters \\x01 and \\x02")
    return text


def divided_keys(keys: str) -> list[str]:
    """The keys in the property KEYS, as brokers index them: what is between blanks, and no other white space."""
    return [key for key in keys.split(KEY_SEPARATOR) if key]


def find_property(data: bytes, name: bytes) -> bytes | None:
    """The value of one property without decoding the others; the last one when the name repeats; None if absent.

    Meant for the hot path (tag checks); `name` must be a whole, non-empty name.
    """
    key = name + b"\x01"
    position = len(data)
    while True:
        position = data.rfind(key, 0, position)
        if position < 0:
            return None
        if position == 0 or data[position - 1] == 2:
            start = position + len(key)
            end = data.find(b"\x02", start)
            value = data[start:] if end < 0 else data[start:end]
            if value:
                return value
        position += len(key) - 1  # an overlapping occurrence may begin further left, never at the same place
