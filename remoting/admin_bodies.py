"""Typed bodies of name servers and administration (PR/body/*.java, CO/TopicConfig.java); see `bodies.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from .bodies import BrokerData, SubscriptionData
from .body import Body
from .codes import PERM_READ, PERM_WRITE
from .light_dataclass import dataclass
from .queues import MessageQueue


@dataclass(frozen=True, slots=True)
class DataVersion(Body):
    """How often and when (ms) a table changed."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


@dataclass(frozen=True, slots=True)
class TopicConfig(Body):
    """A topic on a broker. `topic_filter_type` is SINGLE_TAG or MULTI_TAG."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class TopicConfigTable(Body):
    """Answer to 21, and part of 103."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict[str, TopicConfig])
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(frozen=True, slots=True)
class RegisterBrokerBody(Body):
    """103, not compressed."""

    topic_config_serialize_wrapper: TopicConfigTable = field(default_factory=TopicConfigTable)
    filter_server_list: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicList(Body):
    """Answer to 206, 224, 304 and 343."""

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None


@dataclass(frozen=True, slots=True)
class GroupList(Body):
    """Answer to 300."""

    group_list: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupSubscription(Body):
    """Answer to 345."""

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None


@dataclass(frozen=True, slots=True)
class ClusterInfo(Body):
    """Answer to 106; always with raw keys."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict[str, BrokerData])
    cluster_addr_table: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@dataclass(frozen=True, slots=True)
class KvTable(Body):
    """Answer to 28, 103 and 219."""

    table: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class KvConfig(Body):
    """A name server's kvConfig.json: namespace -> key -> value."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])


@dataclass(frozen=True, slots=True)
class TopicOffset(Body):
    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class TopicStats(Body):
    """Answer to 202."""

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict[MessageQueue, TopicOffset])
    topic_put_tps: float = 0.0


@dataclass(frozen=True, slots=True)
class OffsetWrapper(Body):
    """Broker's end and group's committed offset of one queue; `last_timestamp` is the store time in ms."""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class ConsumeStats(Body):
    """Answer to 208."""

    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict[MessageQueue, OffsetWrapper])
    consume_tps: float = 0.0


@dataclass(frozen=True, slots=True)
class ClientConnection(Body):
    client_id: str
    client_addr: str = ""
    language: str = "JAVA"
    version: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerConnections(Body):
    """Answer to 203."""

    connection_set: tuple[ClientConnection, ...] = ()
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict[str, SubscriptionData])
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerConnections(Body):
    """Answer to 204."""

    connection_set: tuple[ClientConnection, ...] = ()


@dataclass(frozen=True, slots=True)
class ProducerInfo(Body):
    """One member of a producer group. `remote_ip` is Java's text of a socket's address: "/host:port"."""

    WIRE: ClassVar[Mapping[str, str]] = {"remote_ip": "remoteIP"}
    client_id: str
    remote_ip: str = ""
    language: str = "JAVA"
    version: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class ProducerTable(Body):
    """Answer to 328: the members of each producer group."""

    data: dict[str, tuple[ProducerInfo, ...]] = field(default_factory=dict[str, tuple[ProducerInfo, ...]])


@dataclass(frozen=True, slots=True)
class HaClientRuntimeInfo(Body):
    """How a slave follows its master; of a master all is empty."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    activated: bool = False


@dataclass(frozen=True, slots=True)
class HaConnectionInfo(Body):
    """One slave of a master."""

    addr: str | None = None
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


@dataclass(frozen=True, slots=True)
class HaRuntimeInfo(Body):
    """Answer to 907."""

    master: bool = True
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: tuple[HaConnectionInfo, ...] = ()
    ha_client_runtime_info: HaClientRuntimeInfo = field(default_factory=HaClientRuntimeInfo)


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig(Body):
    """200, and answer to 352: how a broker treats a consumer group."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class SubscriptionGroupTable(Body):
    """Answer to 201."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(
        default_factory=dict[str, SubscriptionGroupConfig]
    )
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(frozen=True, slots=True)
class ConsumeStatsList(Body):
    """Answer to 317: group -> one ConsumeStats for each of its topics."""

    consume_stats_list: tuple[dict[str, tuple[ConsumeStats, ...]], ...] = ()
    broker_addr: str | None = None
    total_diff: int = 0
    total_inflight_diff: int = 0


@dataclass(frozen=True, slots=True)
class ConsumeQueueData(Body):
    """An entry of a consume queue."""

    physic_offset: int
    physic_size: int
    tags_code: int
    eval: bool = False


@dataclass(frozen=True, slots=True)
class ConsumeQueueEntries(Body):
    """Answer to 321."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: tuple[ConsumeQueueData, ...] = ()
    max_queue_index: int = 0
    min_queue_index: int = 0


@dataclass(frozen=True, slots=True)
class BrokerStatsItem(Body):
    """Messages in a time, and a second."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(frozen=True, slots=True)
class BrokerStatsData(Body):
    """Answer to 315."""

    stats_minute: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = field(default_factory=BrokerStatsItem)
