"""NameServerCore: who has which topic, and where (NS/routeinfo/RouteInfoManager.java, NS/processor/*.java).

Rules:
- Only the KV configuration is kept over a restart (kvConfig.json, as RocketMQ writes it); brokers register again within
  their interval.
- A master that registers with another data version than before replaces all its topics; the same version only renews.
- What brokers of others register is bounded, each time and in all, and so is the KV configuration, all of which is written
  with each change: the broker of this process shares the loop with it.
- A broker is gone when its connection closes or when it was silent for longer than it announced itself. The broker that
  lives in the same process has no connection; it registers by `register`, and renews itself from its own tick.
- Routes are written with quoted keys for clients that read them (version >= 401 or when asked), with raw ones else;
  106 is always raw, as every version of the genuine server does it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ..remoting.admin_bodies import (
    ClusterInfo,
    DataVersion,
    KvConfig,
    KvTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicList,
)
from ..remoting.admin_headers import (
    AddWritePermissionResponse,
    BrokerHeartbeat,
    BrokerWritePermission,
    KvKey,
    KvNamespace,
    KvValue,
    PutKvConfig,
    QueryDataVersion,
    QueryDataVersionResponse,
    RegisterBroker,
    RegisterBrokerResponse,
    TopicInNameServer,
    TopicsByCluster,
    UnregisterBroker,
    WipeWritePermissionResponse,
)
from ..remoting.bodies import BrokerData, QueueData, TopicRouteData
from ..remoting.codes import PERM_WRITE, VERSION_QUOTED_ROUTE_KEYS, RequestCode, ResponseCode
from ..remoting.command import Command
from ..remoting.errors import ProtocolError, UsageError
from ..remoting.fastjson import dumps_object_keys
from ..remoting.headers import GetRoute
from ..remoting.names import MASTER_ID
from ..remoting.registration import DEFLATED, TOPICS_MAX, decode_compressed_registration
from .acl import Acl
from .effects import SILENCE, CloseChannel, Effect, Intercept, Later, Reply, intercepted
from .refusal import FAQ, Refused
from .storage import DiskFailed, Storage, StorageError

DEFAULT_TIMEOUT_MS = 120_000
SCAN_INTERVAL_MS = 5_000
KV_ENTRIES_MAX = 10_000
KV_VALUE_MAX_BYTES = 64 << 10
KV_TABLE_MAX_BYTES = 2 << 20  # as its file has it
NAME_MAX_CHARS = 512  # of topics, brokers and what else a registration names; RocketMQ's own topics have up to 255
REGISTRATION_MAX_BYTES = 8 << 20  # of TOPICS_MAX topics as JSON: some 4 MB, more with attributes
VERSION_MAX_BYTES = 64 << 10  # what any other request has as its body
BROKERS_MAX = 1_000  # addresses
TOPICS_OF_ALL_MAX = 200_000  # each counts for each broker that has it
ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
KV_TABLE = "config/kvConfig.json"

# Topics that the genuine name server calls its own (CO/topic/TopicValidator.java, system topics).
NAME_SERVER_TOPICS = ("SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "TBW102", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT")


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker says of itself (request 103)."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    table: TopicConfigTable
    timeout_ms: int = DEFAULT_TIMEOUT_MS


@dataclass(slots=True)
class LiveBroker:
    """One registered address."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    timeout_ms: int
    updated_ms: int
    data_version: DataVersion | None
    channel: int | None

    def is_same(self, registration: Registration) -> bool:
        """Whether the address comes as the broker that it was; else it is a new one, and leaves what it had."""
        return (self.broker_name, self.broker_id) == (registration.broker_name, registration.broker_id)


@dataclass(slots=True)
class Tables:
    """The route tables: topic -> broker -> queues, broker -> addresses, and who is alive."""

    topics: dict[str, dict[str, QueueData]] = field(default_factory=dict[str, dict[str, QueueData]])
    brokers: dict[str, BrokerData] = field(default_factory=dict[str, BrokerData])
    live: dict[tuple[str, str], LiveBroker] = field(default_factory=dict[tuple[str, str], LiveBroker])
    kv: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])


class NameServerCore:
    """Pure core of a name server; see `BrokerCore` for how effects and channels work."""

    def __init__(self, storage: Storage | None = None, config: Mapping[str, str] | None = None) -> None:
        """`storage` keeps the KV configuration; `config` is what getNamesrvConfig shows. Raises UsageError for a table that
        cannot be read."""
        self.intercepts: list[Intercept] = []
        self.acl: Acl | None = None
        """Who may change what is kept here; None lets everybody."""
        self.failed: str | None = None
        """Why nothing is promised any more: the disk did not keep what it had taken. The process has to stop."""
        self._storage = storage
        self._config = dict(config or {})
        self._tables = Tables(kv=self._load_kv())
        self._next_scan_ms = 0
        self._handlers: dict[int, Callable[[int, int, Command], Command]] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.REGISTER_BROKER: self._register_broker,
            RequestCode.UNREGISTER_BROKER: self._unregister_broker,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.BROKER_HEARTBEAT: self._broker_heartbeat,
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._kv_list,
            RequestCode.GET_NAMESRV_CONFIG: self._show_config,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write,
        }

    # The core's interface

    def handle(self, now_ms: int, channel: int, address: str, command: Command) -> list[Effect]:
        """Serve one request. A response is not for us and ignored."""
        if command.is_response:
            return []
        handler = self._handlers.get(command.code)
        try:
            wished = intercepted(self.intercepts, command)
            response = None if isinstance(wished, Later) else wished
            if response is not None:
                pass
            elif handler is None:
                remark = f" request type {command.code} not supported"
                response = command.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
            else:
                refuse_long_body(command)
                if self.acl is not None:
                    self.acl.check_name_server(command)
                response = handler(now_ms, channel, command)
        except Refused as refused:
            response = command.response(refused.code, refused.fields, remark=refused.remark)
        except (ProtocolError, StorageError) as error:
            if isinstance(error, DiskFailed):
                self.failed = str(error)
            response = command.response(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return [] if command.is_oneway or response is SILENCE else [Reply(channel, response)]

    def tick(self, now_ms: int) -> list[Effect]:
        """Forget brokers that were silent for too long; closes their connections."""
        if now_ms < self._next_scan_ms:
            return []
        self._next_scan_ms = now_ms + SCAN_INTERVAL_MS
        expired = [live for live in self._tables.live.values() if now_ms - live.updated_ms > live.timeout_ms]
        effects: list[Effect] = []
        for live in expired:
            self._forget(live)
            if live.channel is not None:
                effects.append(CloseChannel(live.channel))
        return effects

    def channel_closed(self, now_ms: int, channel: int) -> list[Effect]:
        for live in [live for live in self._tables.live.values() if live.channel == channel]:
            self._forget(live)
        return []

    def channel_full(self, channel: int, *, is_full: bool) -> list[Effect]:
        """Nothing is sent here that nobody asked for."""
        return []

    # Brokers

    def register(self, now_ms: int, registration: Registration, channel: int | None = None) -> None:
        """Take a broker in, or renew it. The table is replaced when its data version is another than before."""
        tables = self._tables
        name, address = registration.broker_name, registration.address
        key = (registration.cluster, address)
        known = tables.live.get(key)
        replaces_topics = brings_topics(known, registration)
        if known is not None and not known.is_same(registration):
            self._forget(known)
        broker = tables.brokers.get(name) or BrokerData(name, {}, registration.cluster)
        tables.brokers[name] = replace(broker, broker_addrs={**broker.broker_addrs, registration.broker_id: address})
        if replaces_topics:
            self._replace_topics(name, registration.table)
        tables.live[key] = LiveBroker(
            registration.cluster,
            name,
            registration.broker_id,
            address,
            registration.timeout_ms,
            now_ms,
            registration.table.data_version,
            channel,
        )

    def change_topic(self, key: tuple[str, str], name: str, topic: TopicConfig | None, version: DataVersion) -> bool:
        """Take over one topic of the broker with `key` (cluster, address), None = it has it no more.

        Costs the same whatever the number of topics. False for a broker that is not registered: it has to `register`.
        """
        live = self._tables.live.get(key)
        if live is None or live.broker_id != MASTER_ID:
            return False
        if topic is not None:
            self._tables.topics.setdefault(name, {})[live.broker_name] = queue_data(live.broker_name, topic)
        elif live.broker_name in self._tables.topics.get(name, {}):
            self._drop_queues(name, live.broker_name)
        live.data_version = version
        return True

    def _replace_topics(self, broker_name: str, table: TopicConfigTable) -> None:
        topics = self._tables.topics
        named = table.topic_config_table
        for name in [name for name, queues in topics.items() if broker_name in queues and name not in named]:
            self._drop_queues(name, broker_name)
        for topic in named.values():
            topics.setdefault(topic.topic_name, {})[broker_name] = queue_data(broker_name, topic)

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        queues = self._tables.topics[topic]
        del queues[broker_name]
        if not queues:
            del self._tables.topics[topic]

    def _is_last(self, live: LiveBroker) -> bool:
        """Whether its name has no other address, so that the topics go with this one."""
        broker = self._tables.brokers.get(live.broker_name)
        return broker is not None and set(broker.broker_addrs.values()) <= {live.address}

    def _forget(self, live: LiveBroker) -> None:
        tables = self._tables
        tables.live.pop((live.cluster, live.address), None)
        broker = tables.brokers.get(live.broker_name)
        if broker is None:
            return
        addresses = {number: at for number, at in broker.broker_addrs.items() if at != live.address}
        if addresses:
            tables.brokers[live.broker_name] = replace(broker, broker_addrs=addresses)
            return
        del tables.brokers[live.broker_name]
        for topic in [topic for topic, queues in tables.topics.items() if live.broker_name in queues]:
            self._drop_queues(topic, live.broker_name)

    def _register_broker(self, now_ms: int, channel: int, command: Command) -> Command:
        request = RegisterBroker.from_fields(command.fields)
        body = bytes(command.body)
        if request.body_crc32 and request.body_crc32 != zlib.crc32(body) & 0x7FFFFFFF:
            raise Refused(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        # Brokers since 5.0 say `compressed=false` of every body (BrokerOuterAPI.java), so its first byte is looked at too.
        if body and (request.compressed or body.startswith(DEFLATED)):
            table = decode_compressed_registration(body).topic_config_serialize_wrapper
        else:
            refuse_many_topics(body.count(b'"topicName"'))
            table = RegisterBrokerBody.decode(body).topic_config_serialize_wrapper if body else TopicConfigTable()
        refuse_many_topics(len(table.topic_config_table))  # also when they are written in another way
        topics = (topic.topic_name for topic in table.topic_config_table.values())
        refuse_long_names(request.cluster_name, request.broker_name, request.broker_addr, *topics)
        registration = Registration(
            request.cluster_name,
            request.broker_name,
            request.broker_id,
            request.broker_addr,
            table,
            request.heartbeat_timeout_millis or DEFAULT_TIMEOUT_MS,
        )
        self._refuse_beyond_bounds(registration)
        self.register(now_ms, registration, channel)
        master = self._tables.brokers[request.broker_name].broker_addrs.get(MASTER_ID)
        slave = request.broker_id != MASTER_ID
        response = RegisterBrokerResponse(request.ha_server_addr, master if slave else None)
        orders = KvTable(dict(self._tables.kv.get(ORDER_NAMESPACE, {}))).encode()
        return command.response(ResponseCode.SUCCESS, response.to_fields(), orders)

    def _refuse_beyond_bounds(self, registration: Registration) -> None:
        """Raises Refused where another broker, or its topics, would be too many."""
        tables = self._tables
        known = tables.live.get((registration.cluster, registration.address))
        if known is None and len(tables.live) >= BROKERS_MAX:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"this name server has {BROKERS_MAX} brokers already, and takes no more"
            )
        if not brings_topics(known, registration):
            return
        own = {registration.broker_name}
        if known is not None and self._is_last(known):
            own.add(known.broker_name)
        of_others = sum(len(queues) - len(own & queues.keys()) for queues in tables.topics.values())
        if of_others + len(registration.table.topic_config_table) > TOPICS_OF_ALL_MAX:
            remark = (
                f"this name server keeps at most {TOPICS_OF_ALL_MAX} topics of all brokers, and others have {of_others}"
            )
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)

    def _unregister_broker(self, now_ms: int, channel: int, command: Command) -> Command:
        request = UnregisterBroker.from_fields(command.fields)
        live = self._tables.live.get((request.cluster_name, request.broker_addr))
        if live is not None:
            self._forget(live)
        return command.response(ResponseCode.SUCCESS)

    def _query_data_version(self, now_ms: int, channel: int, command: Command) -> Command:
        request = QueryDataVersion.from_fields(command.fields)
        live = self._tables.live.get((request.cluster_name, request.broker_addr))
        known = live.data_version if live is not None else None
        changed = known is None or known != DataVersion.decode(command.body)
        if live is not None:
            live.updated_ms = now_ms
        fields = QueryDataVersionResponse(changed).to_fields()
        return command.response(ResponseCode.SUCCESS, fields, known.encode() if known else b"")

    def _broker_heartbeat(self, now_ms: int, channel: int, command: Command) -> Command:
        request = BrokerHeartbeat.from_fields(command.fields)
        live = self._tables.live.get((request.cluster_name, request.broker_addr))
        if live is not None:
            live.updated_ms = now_ms
        return command.response(ResponseCode.SUCCESS)

    def _cluster_info(self, now_ms: int, channel: int, command: Command) -> Command:
        brokers = self._tables.brokers
        clusters: dict[str, tuple[str, ...]] = {}
        for broker in brokers.values():
            clusters[broker.cluster or ""] = (*clusters.get(broker.cluster or "", ()), broker.broker_name)
        return command.response(ResponseCode.SUCCESS, body=ClusterInfo(dict(brokers), clusters).encode())

    def _wipe_write(self, now_ms: int, channel: int, command: Command) -> Command:
        count = self._change_permission(command, lambda perm: perm & ~PERM_WRITE)
        return command.response(ResponseCode.SUCCESS, WipeWritePermissionResponse(count).to_fields())

    def _add_write(self, now_ms: int, channel: int, command: Command) -> Command:
        count = self._change_permission(command, lambda perm: perm | PERM_WRITE)
        return command.response(ResponseCode.SUCCESS, AddWritePermissionResponse(count).to_fields())

    def _change_permission(self, command: Command, change: Callable[[int], int]) -> int:
        name = BrokerWritePermission.from_fields(command.fields).broker_name
        holders = [queues for queues in self._tables.topics.values() if name in queues]
        for queues in holders:
            queues[name] = replace(queues[name], perm=change(queues[name].perm))
        return len(holders)

    # Topics

    def _route(self, now_ms: int, channel: int, command: Command) -> Command:
        request = GetRoute.from_fields(command.fields)
        queues = self._tables.topics.get(request.topic, {})
        brokers = [self._tables.brokers[name] for name in queues if name in self._tables.brokers]
        if not brokers:
            remark = f"No topic route info in name server for the topic: {request.topic}{FAQ}"
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, remark)
        orders = self._tables.kv.get(ORDER_NAMESPACE, {}).get(request.topic)
        route = TopicRouteData(tuple(queues.values()), tuple(brokers), orders)
        quoted = command.version >= VERSION_QUOTED_ROUTE_KEYS or request.accept_standard_json_only
        body = route.encode() if quoted else dumps_object_keys(route.to_json())
        return command.response(ResponseCode.SUCCESS, body=body)

    def _all_topics(self, now_ms: int, channel: int, command: Command) -> Command:
        return command.response(ResponseCode.SUCCESS, body=TopicList(tuple(sorted(self._tables.topics))).encode())

    def _topics_by_cluster(self, now_ms: int, channel: int, command: Command) -> Command:
        cluster = TopicsByCluster.from_fields(command.fields).cluster
        members = {broker.broker_name for broker in self._tables.brokers.values() if broker.cluster == cluster}
        names = sorted(name for name, queues in self._tables.topics.items() if not members.isdisjoint(queues))
        return command.response(ResponseCode.SUCCESS, body=TopicList(tuple(names)).encode())

    def _system_topics(self, now_ms: int, channel: int, command: Command) -> Command:
        names = {*NAME_SERVER_TOPICS}
        for broker in self._tables.brokers.values():
            names |= {broker.broker_name, broker.cluster or broker.broker_name}
        return command.response(ResponseCode.SUCCESS, body=TopicList(tuple(sorted(names))).encode())

    def _delete_topic(self, now_ms: int, channel: int, command: Command) -> Command:
        self._tables.topics.pop(TopicInNameServer.from_fields(command.fields).topic, None)
        return command.response(ResponseCode.SUCCESS)

    def _show_config(self, now_ms: int, channel: int, command: Command) -> Command:
        text = "".join(f"{name}={value}\n" for name, value in sorted(self._config.items()))
        return command.response(ResponseCode.SUCCESS, body=text.encode())

    # KV configuration

    def _load_kv(self) -> dict[str, dict[str, str]]:
        """The table, or the generation before where the last one is damaged."""
        if self._storage is None:
            return {}
        damaged: ProtocolError | None = None
        for text in (self._storage.load(KV_TABLE), self._storage.load_previous(KV_TABLE)):
            if text and text.strip(b"\0 \t\r\n"):
                try:
                    return {name: dict(part) for name, part in KvConfig.decode(text).config_table.items()}
                except ProtocolError as error:
                    damaged = damaged or error
        if damaged is not None:
            raise UsageError(
                f"{KV_TABLE} in the broker's data folder cannot be read ({damaged}): put a good copy back, or remove it"
            )
        return {}

    def _keep_kv(self, namespace: str, key: str, value: str | None) -> None:
        """Set a value, None = remove it, when the disk has it. Raises StorageError or Refused, and then all is as before."""
        kv = {name: dict(part) for name, part in self._tables.kv.items()}
        part = kv.setdefault(namespace, {})
        if value is None:
            part.pop(key, None)
            if not part:
                del kv[namespace]
        else:
            part[key] = value
        text = KvConfig(kv).encode()
        if value is not None and len(text) > KV_TABLE_MAX_BYTES:
            remark = f"the name server keeps at most {KV_TABLE_MAX_BYTES} bytes of values with their keys: delete some"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        if self._storage is not None:
            self._storage.replace(KV_TABLE, text, sync=True)
        self._tables.kv = kv

    def _put_kv(self, now_ms: int, channel: int, command: Command) -> Command:
        request = PutKvConfig.from_fields(command.fields)
        kv = self._tables.kv
        value_bytes = len(request.value.encode())
        if value_bytes > KV_VALUE_MAX_BYTES:
            remark = f"a value of {value_bytes} bytes; the name server keeps at most {KV_VALUE_MAX_BYTES} of each"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        if request.key not in kv.get(request.namespace, {}) and sum(map(len, kv.values())) >= KV_ENTRIES_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the name server keeps at most {KV_ENTRIES_MAX} values")
        self._keep_kv(request.namespace, request.key, request.value)
        return command.response(ResponseCode.SUCCESS)

    def _get_kv(self, now_ms: int, channel: int, command: Command) -> Command:
        request = KvKey.from_fields(command.fields)
        value = self._tables.kv.get(request.namespace, {}).get(request.key)
        if value is None:
            remark = f"No config item, Namespace: {request.namespace} Key: {request.key}"
            raise Refused(ResponseCode.QUERY_NOT_FOUND, remark)
        return command.response(ResponseCode.SUCCESS, KvValue(value).to_fields())

    def _delete_kv(self, now_ms: int, channel: int, command: Command) -> Command:
        request = KvKey.from_fields(command.fields)
        if request.key in self._tables.kv.get(request.namespace, {}):
            self._keep_kv(request.namespace, request.key, None)
        return command.response(ResponseCode.SUCCESS)

    def _kv_list(self, now_ms: int, channel: int, command: Command) -> Command:
        namespace = KvNamespace.from_fields(command.fields).namespace
        values = self._tables.kv.get(namespace)
        if values is None:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return command.response(ResponseCode.SUCCESS, body=KvTable(dict(values)).encode())


def refuse_long_body(command: Command) -> None:
    """Raises Refused. Bodies are JSON, and reading them must not hold others up."""
    bytes_max = REGISTRATION_MAX_BYTES if command.code == RequestCode.REGISTER_BROKER else VERSION_MAX_BYTES
    if len(command.body) > bytes_max:
        remark = f"a body of {len(command.body)} bytes; this name server takes at most {bytes_max} of such a request"
        raise Refused(ResponseCode.SYSTEM_ERROR, remark)


def refuse_many_topics(count: int) -> None:
    if count > TOPICS_MAX:
        remark = f"a registration of {count} topics; this name server takes at most {TOPICS_MAX} of one broker"
        raise Refused(ResponseCode.SYSTEM_ERROR, remark)


def refuse_long_names(*names: str) -> None:
    longest = max(map(len, names))
    if longest > NAME_MAX_CHARS:
        remark = f"a registration with a name of {longest} characters; this name server takes at most {NAME_MAX_CHARS}"
        raise Refused(ResponseCode.SYSTEM_ERROR, remark)


def brings_topics(known: LiveBroker | None, registration: Registration) -> bool:
    """Whether the table of a registration is taken; `known` is what its address is registered as."""
    if registration.broker_id != MASTER_ID:
        return False
    return known is None or not known.is_same(registration) or known.data_version != registration.table.data_version


def queue_data(broker_name: str, topic: TopicConfig) -> QueueData:
    return QueueData(broker_name, topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag)
