"""The name server's core: registration, routes in both spellings, expiry, lists, KV configuration."""

from __future__ import annotations

import zlib
from typing import ClassVar

import pytest

from rocketcrew.broker.effects import CloseChannel, Reply
from rocketcrew.broker.name_server import (
    BROKERS_MAX,
    KV_TABLE_MAX_BYTES,
    KV_VALUE_MAX_BYTES,
    NAME_MAX_CHARS,
    REGISTRATION_MAX_BYTES,
    TOPICS_OF_ALL_MAX,
    VERSION_MAX_BYTES,
    NameServerCore,
    Registration,
)
from rocketcrew.broker.storage import DiskFailed, MemoryStorage, StorageError
from rocketcrew.remoting.admin_bodies import (
    ClusterInfo,
    DataVersion,
    KvTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicList,
)
from rocketcrew.remoting.admin_headers import (
    BrokerHeartbeat,
    BrokerWritePermission,
    KvKey,
    KvNamespace,
    PutKvConfig,
    QueryDataVersion,
    RegisterBroker,
    TopicInNameServer,
    TopicName,
    TopicsByCluster,
    UnregisterBroker,
)
from rocketcrew.remoting.bodies import TopicRouteData
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.headers import GetRoute
from rocketcrew.remoting.registration import INFLATED_MAX_BYTES, TOPICS_MAX

T0 = 1_700_000_000_000
HEADER = RegisterBroker("b1", "1.1.1.1:1", "c", "", 0)


class Server:
    def __init__(self):
        self.core = NameServerCore()
        self.now_ms = T0

    def call(self, code, header=None, body=b"", channel=1, version=475):
        command = Command(code, header.to_fields() if header else {}, body, 5, version=version)
        (effect,) = self.core.handle(self.now_ms, channel, "127.0.0.1:1", command)
        assert isinstance(effect, Reply)
        assert (effect.channel, effect.command.opaque) == (channel, 5)
        return effect.command

    def register(self, topics, name="b1", address="1.1.1.1:1", counter=1, broker_id=0, channel=1, **more):
        table = TopicConfigTable({topic: TopicConfig(topic, 4, 4) for topic in topics}, DataVersion(counter=counter))
        body = RegisterBrokerBody(table).encode()
        header = RegisterBroker(name, address, "c", "1.1.1.1:2", broker_id, **more)
        return self.call(RequestCode.REGISTER_BROKER, header, body, channel)

    def route(self, topic, **more):
        answer = self.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute(topic), **more)
        return None if answer.code == ResponseCode.TOPIC_NOT_EXIST else answer.body

    def brokers(self, topic):
        body = self.route(topic)
        return None if body is None else sorted(item.broker_name for item in TopicRouteData.decode(body).queue_datas)


@pytest.fixture
def server():
    return Server()


def test_a_route(server):
    server.register(["T", "U"])
    answer = server.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("T"))
    assert answer.body == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"1.1.1.1:1"},"brokerName":"b1","cluster":"c",'
        b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"b1","perm":6,'
        b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    missing = server.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("no"))
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST
    assert missing.remark.startswith("No topic route info in name server for the topic: no\nSee ")


def test_old_clients_get_raw_keys(server):
    server.register(["T", "U"])
    assert b'"brokerAddrs":{0:"1.1.1.1:1"}' in server.route("T", version=400)
    assert b'"brokerAddrs":{"0":"1.1.1.1:1"}' in server.route("T", version=401)
    asked = server.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("T", True), version=1)
    assert b'{"0":' in asked.body


def test_several_brokers_slaves_and_clusters(server):
    server.register(["T"], "b1", "1:1")
    server.register(["T", "U"], "b2", "2:2")
    answer = server.register(["X"], "b1", "1:9", broker_id=1)
    assert answer.fields == {"haServerAddr": "1.1.1.1:2", "masterAddr": "1:1"}
    assert server.brokers("T") == ["b1", "b2"]
    assert server.brokers("X") is None, "a slave brings no topics"
    data = {item.broker_name: item.broker_addrs for item in TopicRouteData.decode(server.route("T")).broker_datas}
    assert data == {"b1": {0: "1:1", 1: "1:9"}, "b2": {0: "2:2"}}
    answer = server.call(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert b'"brokerAddrs":{0:"1:1",1:"1:9"}' in answer.body
    assert ClusterInfo.decode(answer.body).cluster_addr_table == {"c": ("b1", "b2")}


def test_topics_change_with_the_data_version_only(server):
    server.register(["T", "U"], counter=1)
    server.register(["V"], counter=1)
    assert server.brokers("V") is None
    server.register(["U", "V"], counter=2)
    assert (server.brokers("T"), server.brokers("U"), server.brokers("V")) == (None, ["b1"], ["b1"])


def test_unregister_and_closed_connections(server):
    server.register(["T"], channel=3)
    server.register(["T"], "b2", "2:2", channel=4)
    server.call(RequestCode.UNREGISTER_BROKER, UnregisterBroker("b1", "1.1.1.1:1", "c", 0))
    assert server.brokers("T") == ["b2"]
    assert server.core.channel_closed(T0, 4) == []
    assert server.brokers("T") is None
    assert server.call(RequestCode.UNREGISTER_BROKER, UnregisterBroker("b9", "9:9", "c", 0)).code == 0


def test_silent_brokers_expire(server):
    server.register(["T"], channel=3, heartbeat_timeout_millis=20_000)
    server.now_ms += 15_000
    heartbeat = BrokerHeartbeat("c", "1.1.1.1:1", "b1")
    assert server.call(RequestCode.BROKER_HEARTBEAT, heartbeat).code == 0
    server.now_ms += 15_000
    assert server.core.tick(server.now_ms) == []
    server.now_ms += 15_000
    assert server.core.tick(server.now_ms) == [CloseChannel(3)]
    assert server.route("T") is None


def test_data_version_query(server):
    version = DataVersion(counter=1).encode()
    header = QueryDataVersion("b1", "1.1.1.1:1", "c", 0)
    assert server.call(RequestCode.QUERY_DATA_VERSION, header, version).fields == {"changed": "true"}
    server.register(["T"])
    answer = server.call(RequestCode.QUERY_DATA_VERSION, header, version)
    assert (answer.fields, DataVersion.decode(answer.body).counter) == ({"changed": "false"}, 1)


def test_bodies_that_cannot_be(server):
    assert server.register(["T"], body_crc32=1).remark == "crc32 not match"
    assert server.register(["T"], compressed=True).code == ResponseCode.SYSTEM_ERROR, "it is not deflated"
    body = RegisterBrokerBody().encode()
    header = RegisterBroker("b1", "1:1", "c", "", 0, body_crc32=zlib.crc32(body) & 0x7FFFFFFF)
    assert server.call(RequestCode.REGISTER_BROKER, header, body).code == 0
    assert server.call(RequestCode.REGISTER_BROKER, header, b"{").code == ResponseCode.SYSTEM_ERROR
    assert server.call(RequestCode.GET_ROUTEINFO_BY_TOPIC).code == ResponseCode.SYSTEM_ERROR


def test_lists(server):
    server.register(["T", "U"])

    def names(code, header=None):
        return TopicList.decode(server.call(code, header).body).topic_list

    assert names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == ("T", "U")
    assert names(RequestCode.GET_TOPICS_BY_CLUSTER, TopicsByCluster("c")) == ("T", "U")
    assert names(RequestCode.GET_TOPICS_BY_CLUSTER, TopicsByCluster("d")) == ()
    assert {"b1", "c", "TBW102"} <= set(names(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS))
    server.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, TopicInNameServer("T"))
    assert server.brokers("T") is None


def test_kv_configuration_and_ordered_topics(server):
    key = KvKey("ORDER_TOPIC_CONFIG", "T")
    assert server.call(RequestCode.GET_KV_CONFIG, key).code == ResponseCode.QUERY_NOT_FOUND
    assert server.call(RequestCode.GET_KVLIST_BY_NAMESPACE, KvNamespace("n")).code == ResponseCode.QUERY_NOT_FOUND
    server.call(RequestCode.PUT_KV_CONFIG, PutKvConfig("ORDER_TOPIC_CONFIG", "T", "b1:4"))
    assert server.call(RequestCode.GET_KV_CONFIG, key).fields == {"value": "b1:4"}
    table = KvTable.decode(server.call(RequestCode.GET_KVLIST_BY_NAMESPACE, KvNamespace("ORDER_TOPIC_CONFIG")).body)
    assert table.table == {"T": "b1:4"}
    assert KvTable.decode(server.register(["T"]).body).table == {"T": "b1:4"}
    assert TopicRouteData.decode(server.route("T")).order_topic_conf == "b1:4"
    server.call(RequestCode.DELETE_KV_CONFIG, key)
    assert server.call(RequestCode.GET_KV_CONFIG, key).code == ResponseCode.QUERY_NOT_FOUND


def test_the_kv_configuration_is_bounded(server):
    """All of it is written with each change: at 72 MB every sender waited 3 s for each put."""

    def put(key, value):
        return server.call(RequestCode.PUT_KV_CONFIG, PutKvConfig("n", key, value))

    long = "v" * KV_VALUE_MAX_BYTES
    answer = put("k", "é" * (KV_VALUE_MAX_BYTES // 2 + 1))
    assert (answer.code, f"at most {KV_VALUE_MAX_BYTES}" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
    most = KV_TABLE_MAX_BYTES // KV_VALUE_MAX_BYTES - 1
    for number in range(most):
        assert put(f"k{number}", long).code == 0
    answer = put("more", long)
    assert (answer.code, "delete some" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
    assert put("k0", long).code == 0, "what is there can be changed"
    server.call(RequestCode.DELETE_KV_CONFIG, KvKey("n", "k0"))
    assert put("more", long).code == 0


def test_a_namespace_without_values_is_not_kept(server):
    """Its name took memory, and a place in the file, for ever."""
    server.call(RequestCode.PUT_KV_CONFIG, PutKvConfig("n", "k", "v"))
    server.call(RequestCode.DELETE_KV_CONFIG, KvKey("n", "k"))
    assert server.call(RequestCode.GET_KVLIST_BY_NAMESPACE, KvNamespace("n")).code == ResponseCode.QUERY_NOT_FOUND
    assert server.core._tables.kv == {}


def test_write_permission_of_a_broker(server):
    server.register(["T", "U"])
    assert server.call(RequestCode.WIPE_WRITE_PERM_OF_BROKER, BrokerWritePermission("b1")).fields == {
        "wipeTopicCount": "2"
    }
    assert TopicRouteData.decode(server.route("T")).queue_datas[0].perm == 4
    assert server.call(RequestCode.ADD_WRITE_PERM_OF_BROKER, BrokerWritePermission("b1")).fields == {
        "addTopicCount": "2"
    }
    assert TopicRouteData.decode(server.route("T")).queue_datas[0].perm == 6


def test_what_is_not_for_a_name_server(server):
    assert server.call(RequestCode.PULL_MESSAGE).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert server.core.handle(T0, 1, "1:1", Command(0, flag=1)) == []
    assert server.core.handle(T0, 1, "1:1", Command(RequestCode.GET_BROKER_CLUSTER_INFO, flag=2)) == []


def test_the_broker_of_the_same_process_stays_registered(broker):
    for _ in range(20):
        broker.later(30_000)
        broker.name_server.tick(broker.now_ms)
    assert broker.ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("TBW102")).code == 0
    broker.now_ms += 120_001
    broker.name_server.tick(broker.now_ms)
    assert broker.ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("TBW102")).code == 17


def test_topics_that_come_one_by_one_are_registered_as_if_at_once(make):
    broker = make()
    for number in range(20):
        broker.send(f"T{number}", default_topic_queue_nums=1 + number % 4)
    broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("T3"))
    one_by_one = dict(broker.name_server._tables.topics)
    versions = [live.data_version for live in broker.name_server._tables.live.values()]
    broker.start()
    assert dict(broker.name_server._tables.topics) == one_by_one
    assert [live.data_version.counter for live in broker.name_server._tables.live.values()] == [versions[0].counter]
    assert "T3" not in one_by_one


def compressed(topics, attributes=""):
    """As RegisterBrokerBody.encode(true) of a 5.x broker."""

    def part(text):
        return len(text).to_bytes(4, "big") + text

    words = [f"{name} 4 3 6 SINGLE_TAG {attributes}".encode() for name in topics]
    parts = [part(b'{"counter":7,"stateVersion":0,"timestamp":5}'), len(words).to_bytes(4, "big"), *map(part, words)]
    return zlib.compress(b"".join([*parts, part(b"[]"), bytes(4)]))


def register_compressed(server, body, said=True):
    header = RegisterBroker("b1", "1.1.1.1:1", "c", "", 0, compressed=said, body_crc32=zlib.crc32(body) & 0x7FFFFFFF)
    return server.call(RequestCode.REGISTER_BROKER, header, body)


@pytest.mark.parametrize("said", [True, False])
def test_a_compressed_registration_is_as_a_plain_one(server, said):
    """Brokers since 5.0 say of each body that it is not compressed."""
    assert register_compressed(server, compressed(["T", "U"], '{"message.type":"NORMAL"}'), said).code == 0
    (queues,) = TopicRouteData.decode(server.route("T")).queue_datas
    assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (4, 3, 6)
    version = DataVersion(timestamp=5, counter=7).encode()
    header = QueryDataVersion("b1", "1.1.1.1:1", "c", 0)
    assert server.call(RequestCode.QUERY_DATA_VERSION, header, version).fields == {"changed": "false"}
    assert register_compressed(server, compressed(["T"])).code == 0


@pytest.mark.parametrize(
    "inflated",
    [b"", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\x02{}\x7f\xff\xff\xff", b"\0\0\0\x02{}\0\0\0\1\0\0\0\1T"],
)
def test_a_compressed_registration_that_lies_is_refused(server, inflated):
    answer = register_compressed(server, zlib.compress(inflated))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "registration" in answer.remark


def test_topics_of_one_registration_are_counted_before_they_are_read(server):
    """600,000 in a body of 1.5 MB held up name server and broker for 14 s."""
    topics = [f"t{number}" for number in range(TOPICS_MAX + 1)]
    for answer in (
        register_compressed(server, zlib.compress(b"\0\0\0\2{}" + len(topics).to_bytes(4, "big") + b"never read")),
        server.call(RequestCode.REGISTER_BROKER, HEADER, b'{"topicName"' * len(topics) + b"never read"),
        register_compressed(server, compressed(topics)),
        server.register(topics),
    ):
        assert (answer.code, str(TOPICS_MAX) in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
    assert server.register(topics[:-1]).code == 0


@pytest.mark.parametrize(
    ("code", "bytes_max"),
    [(RequestCode.REGISTER_BROKER, REGISTRATION_MAX_BYTES), (RequestCode.QUERY_DATA_VERSION, VERSION_MAX_BYTES)],
)
def test_a_long_body_is_not_read(server, code, bytes_max):
    answer = server.call(code, HEADER, b"[" * (bytes_max + 1))
    assert (answer.code, "takes at most" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)


def fill(server):
    """Brokers b0, b1... that have as many topics as there may be; all have the same ones, which are returned."""
    topics = {f"t{number}": TopicConfig(f"t{number}", 4, 4) for number in range(TOPICS_MAX)}
    table = TopicConfigTable(topics, DataVersion(counter=1))
    for number in range(TOPICS_OF_ALL_MAX // TOPICS_MAX):
        server.core.register(T0, Registration("c", f"b{number}", 0, f"1.1.1.1:{number}", table))
    return topics


def test_brokers_and_the_topics_of_all_of_them_are_bounded(server):
    """Each of them may come from anybody who can connect."""
    rounds = TOPICS_OF_ALL_MAX // TOPICS_MAX
    fill(server)
    assert server.register(["one"], "more", "1.1.1.1:9999").code == ResponseCode.SYSTEM_ERROR
    assert server.register(["one", "other"], "b0", "1.1.1.1:0", counter=2).code == 0, "instead of its own"
    assert server.register(["one"], "more", "1.1.1.1:9999").code == 0
    for number in range(rounds + 1, BROKERS_MAX):
        assert server.register([], "b", f"1.1.1.1:{number}", broker_id=number).code == 0
    assert server.register([], "b", "1.1.1.1:9998").code == ResponseCode.SYSTEM_ERROR
    assert server.register(["other"], "b1", "1.1.1.1:1", counter=2).code == 0, "those that are there are renewed"


@pytest.mark.parametrize("long", [{"topics": ["x"]}, {"name": "x"}, {"address": "x"}])
def test_names_of_a_registration_are_bounded(server, long):
    """As the numbers of them are: each could have megabytes."""
    for count, code in ((NAME_MAX_CHARS, 0), (NAME_MAX_CHARS + 1, ResponseCode.SYSTEM_ERROR)):
        names = {name: [value[0] * count] if name == "topics" else value * count for name, value in long.items()}
        assert server.register(**{"topics": ["T"]} | names).code == code


@pytest.mark.parametrize("first", [{"name": "x"}, {"broker_id": 1}, {"name": "x", "broker_id": 1}])
def test_the_bound_over_all_topics_holds_for_a_broker_that_comes_as_another(server, first):
    """From the same address and with the same data version, its table is taken as that of one who was not there."""
    fill(server)
    assert server.register([], address="2.2.2.2:1", **first | {"name": first.get("name", "more")}).code == 0
    answer = server.register(["one"], "more", "2.2.2.2:1")
    assert (answer.code, server.route("one")) == (ResponseCode.SYSTEM_ERROR, None)


@pytest.mark.parametrize(("slave", "expected"), [(False, ResponseCode.SUCCESS), (True, ResponseCode.SYSTEM_ERROR)])
def test_what_a_broker_leaves_under_its_old_name_is_not_counted(server, slave, expected):
    """Unless it stays, as the name has another address."""
    topics = fill(server)
    if slave:
        assert server.register([], "b0", "2.2.2.2:1", broker_id=1).code == 0
    assert server.register(list(topics), "renamed", "1.1.1.1:0").code == expected
    assert server.brokers("t0")[-1] == (f"b{TOPICS_OF_ALL_MAX // TOPICS_MAX - 1}" if slave else "renamed")


def test_a_broker_that_changes_its_name_leaves_nothing_under_the_old_one(server):
    server.register(["T", "U"], "before")
    server.register(["T"], "after")
    assert (server.brokers("T"), server.route("U")) == (["after"], None)
    info = ClusterInfo.decode(server.call(RequestCode.GET_BROKER_CLUSTER_INFO).body)
    assert list(info.broker_addr_table) == ["after"]


def test_a_body_that_grows_beyond_measure_is_refused(server):
    answer = register_compressed(server, zlib.compress(bytes(INFLATED_MAX_BYTES + 1)))
    assert "more than" in answer.remark


def test_kv_configuration_is_kept_over_a_restart():
    storage, server = MemoryStorage(), Server()
    server.core = NameServerCore(storage)
    for key in ("a", "b"):
        server.call(RequestCode.PUT_KV_CONFIG, PutKvConfig("n", key, key * 2))
    server.call(RequestCode.DELETE_KV_CONFIG, KvKey("n", "a"))
    server.core = NameServerCore(storage)
    table = KvTable.decode(server.call(RequestCode.GET_KVLIST_BY_NAMESPACE, KvNamespace("n")).body)
    assert table.table == {"b": "bb"}
    storage.replace("config/kvConfig.json", b"{")
    server.core = NameServerCore(storage)
    assert server.call(RequestCode.GET_KV_CONFIG, KvKey("n", "b")).code == 0, "the generation before"
    storage.replace("config/kvConfig.json", b"{")
    with pytest.raises(UsageError, match=r"kvConfig\.json"):
        NameServerCore(storage)


def test_kv_configuration_is_on_the_disk_before_the_answer():
    class Recorded(MemoryStorage):
        synced: ClassVar[list[bool]] = []

        def replace(self, table, content, *, sync=False):
            self.synced.append(sync)
            super().replace(table, content, sync=sync)

    server = Server()
    server.core = NameServerCore(Recorded())
    assert server.call(RequestCode.PUT_KV_CONFIG, PutKvConfig("n", "a", "1")).code == 0
    assert server.call(RequestCode.DELETE_KV_CONFIG, KvKey("n", "a")).code == 0
    assert Recorded.synced == [True, True]


@pytest.mark.parametrize("failure", [StorageError, DiskFailed])
def test_what_the_disk_did_not_take_is_refused_and_not_there(make, failure):
    class Full(MemoryStorage):
        is_full = False

        def replace(self, table, content, *, sync=False):
            if self.is_full:
                raise failure(f"cannot write {table}: No space left on device")
            super().replace(table, content, sync=sync)

    storage, server = Full(), Server()
    server.core = NameServerCore(storage)
    assert server.call(RequestCode.PUT_KV_CONFIG, PutKvConfig("n", "a", "1")).code == 0
    storage.is_full = True
    for code, header in (
        (RequestCode.PUT_KV_CONFIG, PutKvConfig("n", "a", "2")),
        (RequestCode.DELETE_KV_CONFIG, KvKey("n", "a")),
    ):
        answer = server.call(code, header)
        assert (answer.code, "No space left" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
        assert server.call(RequestCode.GET_KV_CONFIG, KvKey("n", "a")).fields["value"] == "1"
    assert (server.core.failed is not None) == (failure is DiskFailed)
    broker = make()
    broker.core.state.name_server.failed = server.core.failed
    broker.later(0)
    assert (broker.core.failed is not None) == (failure is DiskFailed), "the process stops"


def test_the_name_server_shows_its_configuration():
    server = Server()
    server.core = NameServerCore(config={"listenPort": "9876", "bindAddress": "127.0.0.1"})
    assert server.call(RequestCode.GET_NAMESRV_CONFIG).body == b"bindAddress=127.0.0.1\nlistenPort=9876\n"
