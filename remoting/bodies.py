"""Typed bodies of what clients and brokers say to each other all day (PR/{heartbeat,route,body}/*.java).

`X.decode(bytes)` reads one (ProtocolError names the member), `x.encode()` writes it. Administration's are in
`admin_bodies.py`. Misspelt names (`droped`) are so on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Self

from .body import Body
from .errors import ProtocolError
from .fastjson import is_array, is_object, read_queue
from .light_dataclass import dataclass
from .queues import MessageQueue
from .subscription import EXPRESSION_SQL92, EXPRESSION_TAG, parse_subscription

CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
CLUSTERING = "CLUSTERING"
BROADCASTING = "BROADCASTING"
CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class SubscriptionData(Body):
    """One topic of a consumer. `sub_version` is the ms time of its last change and never goes back."""

    topic: str
    sub_string: str = "*"
    tags_set: tuple[str, ...] = ()
    code_set: tuple[int, ...] = ()
    sub_version: int = 0
    expression_type: str = EXPRESSION_TAG
    class_filter_mode: bool = False

    @classmethod
    def of(cls, topic: str, expression: str, sub_version: int, expression_type: str = EXPRESSION_TAG) -> Self:
        """A subscription by its expression; tags are split and hashed here. Raises UsageError as `parse_subscription`."""
        if expression_type == EXPRESSION_SQL92:
            return cls(topic, expression, (), (), sub_version, expression_type)
        sub_string, tags, codes = parse_subscription(expression)
        return cls(topic, sub_string, tags, codes, sub_version, expression_type)


@dataclass(frozen=True, slots=True)
class ConsumerData(Body):
    group_name: str
    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = CONSUME_FROM_LAST_OFFSET
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False


@dataclass(frozen=True, slots=True)
class ProducerData(Body):
    group_name: str


@dataclass(frozen=True, slots=True)
class HeartbeatData(Body):
    """34. A fingerprint of 0 means the first version of heartbeats, the only one here."""

    WIRE: ClassVar[Mapping[str, str]] = {"client_id": "clientID"}
    client_id: str
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


@dataclass(frozen=True, slots=True)
class CheckClientConfig(Body):
    """46."""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumerIds(Body):
    """Answer to 38; may hold an id twice while an old connection of it lingers."""

    consumer_id_list: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueData(Body):
    """How many queues of a topic a broker has; `perm` is made of the PERM_ bits."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class BrokerData(Body):
    """The addresses ("host:port") of a broker by id; 0 is the master."""

    QUOTE_KEYS: ClassVar[bool] = True
    broker_name: str
    broker_addrs: dict[int, str]
    cluster: str | None = None
    zone_name: str | None = None
    enable_acting_master: bool = False


@dataclass(frozen=True, slots=True)
class TopicQueueMappingInfo(Body):
    """Of a static topic of 5.x, as one broker has it: how many global queues there are. Which of them it has is left out."""

    QUOTE_KEYS: ClassVar[bool] = True
    total_queues: int = 0


@dataclass(frozen=True, slots=True)
class TopicRouteData(Body):
    """Answer to 105. Written with quoted keys: every client reads these, those before 4.9.4 too."""

    QUOTE_KEYS: ClassVar[bool] = True
    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    order_topic_conf: str | None = None
    filter_server_table: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None
    """By the name of the broker, never empty; None for every topic that is not static."""

    @classmethod
    def prepare(cls, value: object) -> object:
        """An empty mapping is none: name servers say both of topics that are not static."""
        if is_object(value) and not value.get("topicQueueMappingByBroker"):
            return {name: item for name, item in value.items() if name != "topicQueueMappingByBroker"}
        return value


@dataclass(frozen=True, slots=True)
class LockBatch(Body):
    """41 and 42."""

    consumer_group: str
    client_id: str
    mq_set: tuple[MessageQueue, ...]
    only_this_broker: bool = False


@dataclass(frozen=True, slots=True)
class LockBatchResponse(Body):
    """Answer to 41: the queues that were locked, perhaps none; the code is 0 either way."""

    WIRE: ClassVar[Mapping[str, str]] = {"lock_ok_mq_set": "lockOKMQSet"}
    lock_ok_mq_set: tuple[MessageQueue, ...] = ()


@dataclass(frozen=True, slots=True)
class ResetOffsetBody(Body):
    """220: the new offset of each queue."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict[MessageQueue, int])

    @classmethod
    def prepare(cls, value: object) -> object:
        """Also takes the list `[{topic, brokerName, queueId, offset}]` that a broker sends on behalf of a C++ admin."""
        listed = value.get("offsetTable") if is_object(value) else None
        if not is_array(listed):
            return value
        table: dict[MessageQueue, object] = {}
        for item in listed:
            queue = read_queue(item)
            if queue is None:
                raise ProtocolError("offsetTable lists something that is no message queue", "ResetOffsetBody body")
            table[queue] = item.get("offset", "")
        return {"offsetTable": table}


@dataclass(frozen=True, slots=True)
class DelayOffsets(Body):
    """Answer to 45 (DelayOffsetSerializeWrapper): delay level -> the offset up to which it is delivered."""

    offset_table: dict[int, int] = field(default_factory=dict[int, int])


@dataclass(frozen=True, slots=True)
class ConsumerStatus(Body):
    """Answer to 221 and 223: the offset of each queue, of one client or by client id."""

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict[MessageQueue, int])
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict[str, dict[MessageQueue, int]])


@dataclass(frozen=True, slots=True)
class ProcessQueueInfo(Body):
    """One process queue in running info; timestamps in ms. Java says `locked` for concurrent consumers too."""

    WIRE: ClassVar[Mapping[str, str]] = {"cached_msg_size_in_mib": "cachedMsgSizeInMiB"}
    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = 0
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class PopProcessQueueInfo(Body):
    wait_ack_count: int = 0
    droped: bool = False
    last_pop_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class ConsumeStatus(Body):
    """Rates of one topic in running info: times in ms, TPS per second."""

    WIRE: ClassVar[Mapping[str, str]] = {
        "pull_rt": "pullRT",
        "pull_tps": "pullTPS",
        "consume_rt": "consumeRT",
        "consume_ok_tps": "consumeOKTPS",
        "consume_failed_tps": "consumeFailedTPS",
    }
    pull_rt: float = 0.0
    pull_tps: float = 0.0
    consume_rt: float = 0.0
    consume_ok_tps: float = 0.0
    consume_failed_tps: float = 0.0
    consume_failed_msgs: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo(Body):
    """Answer to 307. `properties` are the consumer's settings as text plus the PROP_ ones of §2.5."""

    properties: dict[str, str] = field(default_factory=dict[str, str])
    subscription_set: tuple[SubscriptionData, ...] = ()
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict[MessageQueue, ProcessQueueInfo])
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = field(
        default_factory=dict[MessageQueue, PopProcessQueueInfo]
    )
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict[str, ConsumeStatus])
    user_consumer_info: dict[str, str] = field(default_factory=dict[str, str])
    jstack: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumeDirectlyResult(Body):
    """Answer to 309. `consume_result` is one of CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, CR_THROW_EXCEPTION,
    CR_RETURN_NULL; `spent_time_mills` in ms."""

    consume_result: str
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: int = 0
