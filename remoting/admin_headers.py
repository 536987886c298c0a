"""Typed header fields of name servers, administration tools and replies; see `headers.py` for the rules."""

from __future__ import annotations

from .fields import Header, Int32, Int64
from .light_dataclass import dataclass

# --- Name server ---


@dataclass(frozen=True, slots=True)
class RegisterBroker(Header):
    """103. `broker_id` 0 is the master; `body_crc32` 0 or absent means unchecked."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = 0


@dataclass(frozen=True, slots=True)
class RegisterBrokerResponse(Header):
    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(frozen=True, slots=True)
class UnregisterBroker(Header):
    """104."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


@dataclass(frozen=True, slots=True)
class QueryDataVersion(Header):
    """322."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


@dataclass(frozen=True, slots=True)
class QueryDataVersionResponse(Header):
    changed: bool


@dataclass(frozen=True, slots=True)
class BrokerHeartbeat(Header):
    """904."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None


@dataclass(frozen=True, slots=True)
class PutKvConfig(Header):
    """100."""

    namespace: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class KvKey(Header):
    """101 and 102."""

    namespace: str
    key: str


@dataclass(frozen=True, slots=True)
class KvValue(Header):
    value: str | None = None


@dataclass(frozen=True, slots=True)
class KvNamespace(Header):
    """219."""

    namespace: str


@dataclass(frozen=True, slots=True)
class TopicsByCluster(Header):
    """224."""

    cluster: str


@dataclass(frozen=True, slots=True)
class TopicInNameServer(Header):
    """216 and 217."""

    topic: str
    cluster_name: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerWritePermission(Header):
    """205 and 327."""

    broker_name: str


@dataclass(frozen=True, slots=True)
class WipeWritePermissionResponse(Header):
    wipe_topic_count: Int32


@dataclass(frozen=True, slots=True)
class AddWritePermissionResponse(Header):
    add_topic_count: Int32


# --- Administration ---


@dataclass(frozen=True, slots=True)
class CreateTopic(Header):
    """17. `topic_filter_type` SINGLE_TAG or MULTI_TAG; `attributes` as "+key=value,-key"."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    order: bool = False
    topic_sys_flag: Int32 | None = None
    attributes: str | None = None
    force: bool | None = None


@dataclass(frozen=True, slots=True)
class TopicName(Header):
    """202, 215, 300 and 351."""

    topic: str


@dataclass(frozen=True, slots=True)
class GroupName(Header):
    """343 and 352."""

    group: str


@dataclass(frozen=True, slots=True)
class DeleteGroup(Header):
    """207."""

    group_name: str
    clean_offset: bool | None = None
    remove_offset: bool | None = None
    """The same for brokers of 4.9, and from its tools."""


@dataclass(frozen=True, slots=True)
class ConsumeStatsRequest(Header):
    """208. `topic_list` is joined by ";" (5.x)."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumerConnectionRequest(Header):
    """203."""

    consumer_group: str


@dataclass(frozen=True, slots=True)
class ProducerConnectionRequest(Header):
    """204."""

    producer_group: str


@dataclass(frozen=True, slots=True)
class GroupAndTopic(Header):
    """345 and 303."""

    group: str
    topic: str


@dataclass(frozen=True, slots=True)
class ConsumeStatsInBroker(Header):
    """317."""

    is_order: bool = False


@dataclass(frozen=True, slots=True)
class QueryConsumeQueue(Header):
    """321."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerStatsRequest(Header):
    """315."""

    stats_name: str
    stats_key: str


# --- Request and reply ---


@dataclass(frozen=True, slots=True)
class PushReply(Header):
    """326: the reply of a request-reply message."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
