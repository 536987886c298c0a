"""Typed header fields: one frozen dataclass per request and response (PR/header/**/*.java).

`to_fields()` gives the extFields to send, `from_fields()` reads what arrived and raises a ProtocolError naming the field.
Here are those of clients; name server and administration are in `admin_headers.py`. `broker_name` is the `bname` that Java
clients send along since 4.9.5; brokers that do not know it ignore it.

Names that look wrong are so on the wire: `clientID` of unregister beside `clientId` elsewhere, `proxyFrowardClientId`,
`isForce` with its prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from .fields import Header, Int32, Int64
from .light_dataclass import dataclass

BNAME: Mapping[str, str] = {"broker_name": "bname"}


# --- Finding and joining ---


@dataclass(frozen=True, slots=True)
class GetRoute(Header):
    """105. With `accept_standard_json_only` (or a version >= 401) the answer's map keys are quoted."""

    topic: str
    accept_standard_json_only: bool | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatResponse(Header):
    """34, the answer of a 5.x broker; 4.x sends neither. The broker's version is that of the answer's command."""

    WIRE: ClassVar[Mapping[str, str]] = {
        "is_support_heartbeat_v2": "IS_SUPPORT_HEART_BEAT_V2",
        "is_sub_change": "IS_SUB_CHANGE",
    }
    is_support_heartbeat_v2: bool | None = None
    is_sub_change: bool | None = None


@dataclass(frozen=True, slots=True)
class Unregister(Header):
    """35: this client is no longer a producer or consumer of the group."""

    WIRE: ClassVar[Mapping[str, str]] = {"client_id": "clientID", **BNAME}
    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumerList(Header):
    """38: who is in the group."""

    WIRE: ClassVar[Mapping[str, str]] = BNAME
    consumer_group: str
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumerIdsChanged(Header):
    """40, broker to client, one-way: rebalance now."""

    consumer_group: str


# --- Consuming ---


@dataclass(frozen=True, slots=True)
class PullRequest(Header):
    """11 and 361. `sys_flag` is made of the PULL_ bits; times in milliseconds, `max_msg_bytes` is 5.x only."""

    WIRE: ClassVar[Mapping[str, str]] = {"proxy_forward_client_id": "proxyFrowardClientId", **BNAME}
    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_forward_client_id: str | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class PullResponse(Header):
    """The four required ones are in answers with code 0, 19, 20 and 21; refusals (24, 25, ...) have none of them."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


@dataclass(frozen=True, slots=True)
class QueryOffset(Header):
    """14."""

    WIRE: ClassVar[Mapping[str, str]] = BNAME
    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class UpdateOffset(Header):
    """15. The broker overwrites what it has, even with a lower one."""

    WIRE: ClassVar[Mapping[str, str]] = BNAME
    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class MaxOffset(Header):
    """30."""

    WIRE: ClassVar[Mapping[str, str]] = BNAME
    topic: str
    queue_id: Int32
    committed: bool | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class MinOffset(Header):
    """31."""

    WIRE: ClassVar[Mapping[str, str]] = BNAME
    topic: str
    queue_id: Int32
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class SearchOffset(Header):
    """29. `timestamp` in ms since 1970; `boundary_type` "LOWER" or "UPPER" (5.x; older brokers do LOWER)."""

    WIRE: ClassVar[Mapping[str, str]] = BNAME
    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class EarliestStoreTime(Header):
    """32."""

    WIRE: ClassVar[Mapping[str, str]] = BNAME
    topic: str
    queue_id: Int32
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetResponse(Header):
    """Answer to 14, 29, 30 and 31."""

    offset: Int64


@dataclass(frozen=True, slots=True)
class TimestampResponse(Header):
    """Answer to 32, ms since 1970."""

    timestamp: Int64


@dataclass(frozen=True, slots=True)
class SendBack(Header):
    """36. `offset` is that of the commit log; `delay_level` -1 dead letter queue, 0 the broker decides, else the level."""

    WIRE: ClassVar[Mapping[str, str]] = BNAME
    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class QueryMessage(Header):
    """12. `unique_key_query` looks `key` up as a unique id."""

    WIRE: ClassVar[Mapping[str, str]] = {"unique_key_query": "_UNIQUE_KEY_QUERY"}
    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key_query: bool | None = None


@dataclass(frozen=True, slots=True)
class QueryMessageResponse(Header):
    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


@dataclass(frozen=True, slots=True)
class ViewMessage(Header):
    """33. `offset` is that of the commit log."""

    WIRE: ClassVar[Mapping[str, str]] = BNAME
    offset: Int64
    topic: str | None = None
    broker_name: str | None = None


# --- Sending ---


@dataclass(frozen=True, slots=True)
class SendRequest(Header):
    """10 and 324, with whole names. `queue_id` -1 lets the broker choose; `properties` is a property string."""

    WIRE: ClassVar[Mapping[str, str]] = BNAME
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class SendRequestV2(SendRequest):
    """310, 320 and 325: the same, each name one letter."""

    WIRE: ClassVar[Mapping[str, str]] = {
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_nums": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born_timestamp": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "unit_mode": "k",
        "max_reconsume_times": "l",
        "batch": "m",
        "broker_name": "n",
    }


@dataclass(frozen=True, slots=True)
class SendResponse(Header):
    """`msg_id` is the offset id (a comma list for a batch), `transaction_id` the unique id (5.x).

    Java dereferences the extFields of this answer, so a broker always sends `region_id` and `trace_on` too.
    """

    WIRE: ClassVar[Mapping[str, str]] = {"region_id": "MSG_REGION", "trace_on": "TRACE_ON"}
    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region_id: str | None = None
    trace_on: bool | None = None


@dataclass(frozen=True, slots=True)
class RecallMessage(Header):
    """370 (5.3)."""

    WIRE: ClassVar[Mapping[str, str]] = BNAME
    topic: str
    recall_handle: str
    producer_group: str | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class RecallMessageResponse(Header):
    msg_id: str


@dataclass(frozen=True, slots=True)
class EndTransaction(Header):
    """37, one-way. `commit_or_rollback` 0 unknown, 8 commit, 12 rollback."""

    WIRE: ClassVar[Mapping[str, str]] = BNAME
    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None
    broker_name: str | None = None


# --- Broker to client ---


@dataclass(frozen=True, slots=True)
class CheckTransaction(Header):
    """39, one-way, to producers."""

    WIRE: ClassVar[Mapping[str, str]] = BNAME
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class ResetOffset(Header):
    """220 (broker to client) and 222 (admin to broker). `timestamp` in ms; below 0 means the maximum."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool
    queue_id: Int32 | None = None
    offset: Int64 | None = None


@dataclass(frozen=True, slots=True)
class ConsumerStatusRequest(Header):
    """221 (broker to client) and 223 (admin to broker)."""

    topic: str
    group: str
    client_addr: str | None = None


@dataclass(frozen=True, slots=True)
class RunningInfoRequest(Header):
    """307, admin to broker to client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@dataclass(frozen=True, slots=True)
class ConsumeDirectly(Header):
    """309, admin to broker to client. `msg_id` is an offset id; the client gets the message as the body."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
