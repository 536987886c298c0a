"""Access control of the embedded broker: signatures as genuine clients make them, permissions as plain_acl has them, TLS."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
from dataclasses import replace

import pytest
import structlog
import trustme

from rocketcrew.broker.acl import parse_acl
from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.core import HANDLERS
from rocketcrew.broker.refusal import Refused
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.access import Access, Credentials, TlsOptions
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.request_rules import sign
from rocketcrew.remoting.admin_bodies import ClusterInfo
from rocketcrew.remoting.admin_headers import PutKvConfig
from rocketcrew.remoting.bodies import ConsumerData, HeartbeatData, LockBatch, ProducerData, SubscriptionData
from rocketcrew.remoting.codes import SYSFLAG_TRANSACTION_COMMIT, RequestCode, ResponseCode
from rocketcrew.remoting.command import Command, Serialization
from rocketcrew.remoting.errors import RocketcrewError, UsageError
from rocketcrew.remoting.headers import (
    ConsumeDirectly,
    EndTransaction,
    GetRoute,
    MaxOffset,
    QueryMessage,
    SendBack,
    UpdateOffset,
    ViewMessage,
)
from rocketcrew.remoting.ids import parse_offset_message_id
from rocketcrew.remoting.pop_headers import BatchAck, BatchAckBody, PopRequest

from .wire_client import until

FILE = """
[[accounts]]
accessKey = "administrator"
secretKey = "admin-secret"
admin = true

[[accounts]]
accessKey = "crewmember"
secretKey = "crew-secret"
defaultTopicPerm = "SUB"
defaultGroupPerm = "SUB"
topicPerms = ["orders=PUB|SUB", "only-sent=PUB", "hidden=DENY", "rmq_sys_wheel_timer=DENY"]
groupPerms = ["audit=DENY"]

[[accounts]]
accessKey = "nothing-given"
secretKey = "other-secret"
"""
ACCOUNT = '[[accounts]]\naccessKey = "crewmember"\nsecretKey = "SECRET-1"\n'
ADMIN = Credentials("administrator", "admin-secret")
CREW = Credentials("crewmember", "crew-secret")
ACL = parse_acl(FILE, "acl.toml")


LOOKED_INTO = {
    RequestCode.HEART_BEAT,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.END_TRANSACTION,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
}


def refusal(code, fields=None, body=b"", who=CREW, check=ACL.check_broker):
    """What a signed request is refused with, "" for nothing."""
    command = Command(code, dict(fields or {}), body)
    if who is not None:
        sign(command, who)
    try:
        check(command)
    except Refused as refused:
        return refused.remark if refused.code == ResponseCode.NO_PERMISSION else f"code {refused.code}"
    return ""


@pytest.mark.parametrize(
    ("who", "says"),
    [
        (None, "No accessKey is configured"),
        (Credentials("nobody-here", "any-secret"), "No acl config for nobody-here"),
        (Credentials("crewmember", "wrong-secret"), "Check signature failed for accessKey=crewmember"),
        (CREW, ""),
        (ADMIN, ""),
        (Credentials("crewmember", "crew-secret", "a token"), ""),
    ],
)
@pytest.mark.parametrize("code", sorted(HANDLERS.keys() - LOOKED_INTO))
def test_every_request_needs_a_signature(code, who, says):
    found = refusal(code, {"x": "1"}, b"body", who)
    assert found == says or (not says and found.startswith("Need admin permission"))


def test_the_signature_is_the_genuine_one():
    """HMAC-SHA1 over the values in the order of their names, then the body; with a binary header an empty value is "null"."""
    for serialization, text in (
        (Serialization.JSON, b"crewmember1body"),
        (Serialization.ROCKETMQ, b"crewmember1nullbody"),
    ):
        signature = base64.b64encode(hmac.new(b"crew-secret", text, hashlib.sha1).digest()).decode()
        fields = {"a": "1", "empty": "", "AccessKey": "crewmember", "Signature": signature}
        ACL.check_broker(Command(RequestCode.GET_MAX_OFFSET, fields, b"body", serialization=serialization))
        for changed in ({"a": "2"}, {"b": "1"}, {"Signature": ""}, {"Signature": "ä"}, {"AccessKey": "nothing-given"}):
            command = Command(RequestCode.GET_MAX_OFFSET, fields | changed, b"body", serialization=serialization)
            with pytest.raises(Refused, match="Check signature failed"):
                ACL.check_broker(command)


def heartbeat(group, topic):
    consumer = ConsumerData(group, subscription_data_set=(SubscriptionData(topic),))
    return HeartbeatData("c", consumer_data_set=(consumer,)).encode()


@pytest.mark.parametrize(
    ("code", "fields", "says"),
    [
        (RequestCode.SEND_MESSAGE, {"topic": "orders"}, ""),
        (RequestCode.SEND_MESSAGE_V2, {"b": "only-sent"}, ""),
        (RequestCode.SEND_MESSAGE_V2, {"b": "other"}, "No default permission for other"),
        (RequestCode.SEND_BATCH_MESSAGE, {"b": "hidden"}, "No permission for hidden"),
        (RequestCode.SEND_MESSAGE_V2, {"b": "%RETRY%g"}, ""),
        (RequestCode.SEND_MESSAGE_V2, {"b": "%RETRY%audit"}, "No permission for %RETRY%audit"),
        (RequestCode.PULL_MESSAGE, {"topic": "other", "consumerGroup": "g"}, ""),
        (RequestCode.PULL_MESSAGE, {"topic": "only-sent", "consumerGroup": "g"}, "No permission for only-sent"),
        (RequestCode.PULL_MESSAGE, {"topic": "orders", "consumerGroup": "audit"}, "No permission for %RETRY%audit"),
        (RequestCode.POP_MESSAGE, {"topic": "hidden", "consumerGroup": "g"}, "No permission for hidden"),
        (RequestCode.ACK_MESSAGE, {"topic": "orders", "consumerGroup": "audit"}, "No permission for %RETRY%audit"),
        (RequestCode.ACK_MESSAGE, {"topic": "%RETRY%g", "consumerGroup": "g"}, ""),
        (RequestCode.ACK_MESSAGE, {"topic": "%RETRY%g_hidden", "consumerGroup": "g"}, "No permission for hidden"),
        (RequestCode.ACK_MESSAGE, {"topic": "%RETRY%h_orders", "consumerGroup": "g"}, ""),
        (RequestCode.SEND_REPLY_MESSAGE, {"topic": "other"}, "No default permission for other"),
        (RequestCode.SEND_REPLY_MESSAGE_V2, {"b": "other"}, "No default permission for other"),
        (RequestCode.SEND_REPLY_MESSAGE_V2, {"b": "orders"}, ""),
        (RequestCode.RECALL_MESSAGE, {"topic": "other"}, "No default permission for other"),
        (RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "audit"}, "No permission for %RETRY%audit"),
        (RequestCode.UPDATE_CONSUMER_OFFSET, {"topic": "hidden", "consumerGroup": "g"}, "No permission for hidden"),
        (RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "p"}, ""),
    ],
)
def test_permissions_of_topics_and_groups(code, fields, says):
    assert refusal(code, fields) == says
    assert refusal(code, fields, who=ADMIN) == ""


def test_heartbeats_and_batches_are_looked_into():
    assert refusal(RequestCode.HEART_BEAT, body=heartbeat("g", "orders")) == ""
    assert refusal(RequestCode.HEART_BEAT, body=heartbeat("g", "hidden")) == "No permission for hidden"
    assert refusal(RequestCode.HEART_BEAT, body=heartbeat("audit", "orders")) == "No permission for %RETRY%audit"
    nobody = Credentials("nothing-given", "other-secret")
    assert refusal(RequestCode.HEART_BEAT, body=heartbeat("g", "t"), who=nobody) == "No default permission for %RETRY%g"
    batch = b'{"acks":[{"c":"audit","t":"orders","r":"0","so":0,"q":0,"rq":0,"pt":0,"it":0,"b":"AQ=="}]}'
    assert refusal(RequestCode.BATCH_ACK_MESSAGE, body=batch) == "No permission for %RETRY%audit"


@pytest.mark.parametrize("code", [RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME])
@pytest.mark.parametrize("topic", ["orders", "%RETRY%billing", "%RETRY%billing_orders", "%RETRY%billing+orders"])
def test_what_was_popped_from_a_retry_topic_can_be_acknowledged(code, topic):
    """A member with just the permissions that it needs was refused: the retry topic was taken for another group's."""
    acl = parse_acl(ACCOUNT + 'topicPerms = ["orders=SUB"]\ngroupPerms = ["billing=SUB"]', "acl.toml")
    who = Credentials("crewmember", "SECRET-1")
    assert refusal(code, {"topic": topic, "consumerGroup": "billing"}, who=who, check=acl.check_broker) == ""
    batch = BatchAckBody((BatchAck("billing", topic, 0, 0, 0, "AQ=="),))
    assert refusal(RequestCode.BATCH_ACK_MESSAGE, body=batch.encode(), who=who, check=acl.check_broker) == ""


def guarded(make, text):
    """A broker with a message in "secret" and a half message for it, its ACL on, and what signs requests for it."""
    broker = make()
    sent = broker.send("secret", b"s")
    half = broker.send("secret", b"h", properties={"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "u"}, sys_flag=4)
    broker.core.acl = parse_acl(text, "acl.toml")

    def ask(code, header=None, body=b"", channel=1):
        command = Command(code, header.to_fields() if header else {}, body, 77)
        sign(command, Credentials("crewmember", "SECRET-1"))
        return broker.core.handle(broker.now_ms, channel, "127.0.0.1:1", command)

    places = [parse_offset_message_id(answer.fields["msgId"]).physical_offset for answer in (sent, half)]
    return broker, ask, sent.fields["msgId"], *places


@pytest.mark.parametrize("may", [False, True])
def test_a_message_that_is_named_by_its_place_needs_permission_for_its_topic(make, tools, may):
    """Whoever had an account, with nothing granted, read and ended what it could count to."""
    own = 'topicPerms = ["secret=PUB|SUB"]' if may else ""
    broker, ask, msg_id, place, half = guarded(make, ACCOUNT + 'groupPerms = ["g=SUB"]\n' + own)
    requests = [
        (RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(place)),
        (RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(half)),
        (RequestCode.CONSUMER_SEND_MSG_BACK, SendBack(place, "g", 1)),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeDirectly("g", "nobody", msg_id)),
        (RequestCode.END_TRANSACTION, EndTransaction("pg", 0, half, SYSFLAG_TRANSACTION_COMMIT, "u")),
    ]
    for code, header in requests:
        ((_, answer),) = tools.replies(ask(code, header))
        assert (answer.code == ResponseCode.NO_PERMISSION) == (not may), (code, answer.remark)
        assert may or answer.remark == "No default permission for secret"
    ((_, unknown),) = tools.replies(ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(7)))
    assert unknown.code == ResponseCode.SYSTEM_ERROR
    assert broker.core.state.store.max_offset("secret", 0) == 1 + may


WAITING_TOPICS = [
    "SCHEDULE_TOPIC_XXXX",
    "rmq_sys_wheel_timer",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
]


@pytest.mark.parametrize("topic", WAITING_TOPICS)
def test_what_waits_in_topics_of_the_broker_s_own_only_administrators_read(make, tools, topic):
    """Whoever had SUB by default read there what waits of topics that are denied."""
    text = ACCOUNT + 'defaultTopicPerm = "PUB|SUB"\ndefaultGroupPerm = "SUB"\ntopicPerms = ["secret=DENY"]\n'
    says = f"Need admin permission for topic {topic}"
    broker, ask, *_ = guarded(make, text)
    pull = broker.pull_header(topic=topic)
    by_key = QueryMessage(topic, "u", 32, 0, 2**62)
    readers = [(code, pull, b"") for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)]
    readers += [
        (RequestCode.QUERY_MESSAGE, by_key, b""),
        (RequestCode.POP_MESSAGE, PopRequest("g", topic, -1, 32, 60_000, 0, broker.now_ms, 0), b""),
        (RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("CID_RMQ_SYS_TRANS", topic, 0, 9), b""),
        (RequestCode.HEART_BEAT, None, heartbeat("g", topic)),
    ]
    for code, header, body in readers:
        ((_, answer),) = tools.replies(ask(code, header, body))
        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, says), code
        assert refusal(code, header and header.to_fields(), body, ADMIN) == ""
    for code in (RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
        assert refusal(code, {"topic": topic, "consumerGroup": "g"}) == says
    ((_, bounds),) = tools.replies(ask(RequestCode.GET_MAX_OFFSET, MaxOffset(topic, 0)))
    assert bounds.code == 0, "offsets show no message"


@pytest.mark.parametrize("may", [False, True])
def test_a_delayed_message_is_found_by_its_unique_key_by_who_may_read_where_it_goes(make, tools, may):
    """And a half message by nobody but administrators."""
    text = ACCOUNT + f'defaultTopicPerm = "SUB"\ntopicPerms = ["secret={"SUB" if may else "DENY"}"]\n'
    broker, ask, *_ = guarded(make, text)
    broker.core.acl = None
    broker.send("secret", b"later", properties={"DELAY": "5", "UNIQ_KEY": "d"})
    broker.core.acl = parse_acl(text, "acl.toml")
    by_key = QueryMessage("SCHEDULE_TOPIC_XXXX", "d", 32, 0, 2**62, unique_key_query=True)
    ((_, answer),) = tools.replies(ask(RequestCode.QUERY_MESSAGE, by_key))
    assert (answer.code, b"later" in answer.body) == (0 if may else ResponseCode.QUERY_NOT_FOUND, may)
    half = replace(by_key, topic="RMQ_SYS_TRANS_HALF_TOPIC", key="u")
    ((_, answer),) = tools.replies(ask(RequestCode.QUERY_MESSAGE, half))
    assert answer.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("may", [False, True])
def test_the_question_after_a_transaction_goes_to_who_may_send_there(make, tools, may):
    own = 'topicPerms = ["secret=PUB"]' if may else ""
    broker, ask, *_ = guarded(make, ACCOUNT + own)
    ask(RequestCode.HEART_BEAT, body=HeartbeatData("c", (ProducerData("pg"),)).encode(), channel=5)
    asked = [channel for channel, _ in tools.pushes(broker.later(60_000))]
    assert asked == [5] * may
    broker.core.channel_closed(broker.now_ms, 5)
    assert broker.core.state.accounts == {}


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
def test_queues_are_locked_for_a_group_that_one_may_read_for(code):
    for group, says in (("g", ""), ("audit", "No permission for %RETRY%audit")):
        assert refusal(code, body=LockBatch(group, "c", ()).encode()) == says


def test_what_changes_the_servers_needs_an_administrator():
    says = "Need admin permission for request code=17, but accessKey=crewmember is not"
    assert refusal(RequestCode.UPDATE_AND_CREATE_TOPIC) == says
    assert refusal(RequestCode.UPDATE_AND_CREATE_TOPIC, who=ADMIN) == ""
    fields = PutKvConfig("n", "k", "v").to_fields()
    check = ACL.check_name_server
    assert refusal(RequestCode.PUT_KV_CONFIG, fields, check=check).startswith(
        "Need admin permission for request code=100"
    )
    assert refusal(RequestCode.PUT_KV_CONFIG, fields, who=None, check=check) == "No accessKey is configured"
    assert refusal(RequestCode.PUT_KV_CONFIG, fields, who=ADMIN, check=check) == ""
    assert refusal(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("T").to_fields(), who=None, check=check) == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "needs \\[\\[accounts\\]\\]"),
        ("accounts = [", "is no TOML"),
        ("accounts = [1]", "account 1 is no table"),
        (ACCOUNT + "x = 1", "account 1: x is not known"),
        (ACCOUNT.replace("crewmember", "short"), "account 1: accessKey must be a text of more than 6"),
        (ACCOUNT + ACCOUNT, "account 2: accessKey crewmember is there already"),
        (ACCOUNT + 'admin = "yes"', "admin must be true or false"),
        (ACCOUNT + 'defaultTopicPerm = "ALL"', "defaultTopicPerm = 'ALL': one of DENY, PUB"),
        (ACCOUNT + 'topicPerms = ["a"]', "topicPerms: 'a' must be"),
        (ACCOUNT + 'topicPerms = ["%RETRY%g=SUB"]', r'topicPerms: .* use groupPerms = \["g=SUB"\] for %RETRY%g'),
        (
            ACCOUNT + 'topicPerms = ["SCHEDULE_TOPIC_XXXX=SUB"]',
            "SCHEDULE_TOPIC_XXXX has .* only administrators read it",
        ),
        (ACCOUNT + 'groupPerms = ["a=b"]', "groupPerms: a = 'b': one of"),
        (ACCOUNT + 'groupPerms = "a=SUB"', "groupPerms must be a list"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name(text, says):
    with pytest.raises(UsageError, match=says) as refused:
        parse_acl(text, "acl.toml")
    assert "acl.toml" in str(refused.value)
    assert "SECRET-1" not in str(refused.value)


def test_a_broker_with_tls_and_an_acl_lets_in_who_has_both(tmp_path):
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    other.cert_pem.write_to_path(str(tmp_path / "other.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    (tmp_path / "acl.toml").write_text(FILE)
    config = BrokerConfig(acl_file=str(tmp_path / "acl.toml"), tls_cert_path=str(tmp_path / "server.pem"))
    tls = TlsOptions(trust_cert_path=str(tmp_path / "ca.pem"))

    async def answer(broker, credentials, tls):
        access = Access(broker.name_server, credentials=credentials, tls=tls)
        async with open_cluster(access) as cluster:
            command = Command(RequestCode.GET_MAX_OFFSET, {"topic": "TBW102", "queueId": "0"}, b"x" * 1_000_000)
            return await cluster.remoting.request(broker.address, command, timeout_ms=10_000)

    async def scenario():
        async with EmbeddedBroker(config=config) as broker:
            large = await answer(broker, CREW, tls)
            assert (large.code, large.fields["offset"]) == (0, "0")
            refused = await answer(broker, Credentials("crewmember", "wrong-secret"), tls)
            assert (refused.code, "crewmember" in refused.remark) == (ResponseCode.NO_PERMISSION, True)
            for strange in (None, TlsOptions(trust_cert_path=str(tmp_path / "other.pem"))):
                with pytest.raises(RocketcrewError):
                    await answer(broker, CREW, strange)
            assert (await answer(broker, ADMIN, tls)).code == 0, "the others lost nothing"

    asyncio.run(scenario())


def test_a_peer_that_ends_no_handshake_gives_way_to_one_that_does(tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    tls = TlsOptions(trust_cert_path=str(tmp_path / "ca.pem"))
    config = BrokerConfig(tls_cert_path=str(tmp_path / "server.pem"))

    async def scenario():
        async with EmbeddedBroker(config=config) as broker:
            edge = broker._edge
            edge.connections_max = 2
            host, _, port = broker.address.rpartition(":")
            silent = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
            silent[2][1].write(b"no TLS at all")
            async with open_cluster(Access(broker.name_server, tls=tls)) as cluster:
                command = Command(RequestCode.GET_MAX_OFFSET, {"topic": "TBW102", "queueId": "0"})
                assert (await cluster.remoting.request(broker.address, command, timeout_ms=60_000)).code == 0
            assert await silent[0][0].read() == b"", "the oldest is closed"
            for _, writer in silent:
                writer.close()
            await until(lambda: not edge.handshakes and not edge._connections)
            late = await asyncio.open_connection(host, int(port))
            await until(lambda: edge.handshakes)
        assert await late[0].read() == b"", "a stop ends handshakes"
        assert edge.handshakes == {}
        late[1].close()

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_a_broker_registers_signed_and_by_tls(tmp_path):
    """A name server that asks for both had never heard of it."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    (tmp_path / "acl.toml").write_text(FILE)
    acl, pem = str(tmp_path / "acl.toml"), str(tmp_path / "server.pem")
    tls = TlsOptions(trust_cert_path=str(tmp_path / "ca.pem"))

    async def scenario():
        theirs_config = BrokerConfig(name="theirs", acl_file=acl, tls_cert_path=pem)
        async with EmbeddedBroker(config=theirs_config) as theirs:
            config = BrokerConfig(name="ours", register_with=(theirs.name_server,))

            async def known():
                async with open_cluster(Access(theirs.name_server, tls=tls)) as cluster:
                    command = Command(RequestCode.GET_BROKER_CLUSTER_INFO)
                    info = await cluster.remoting.request(theirs.name_server, command, timeout_ms=60_000)
                    return sorted(ClusterInfo.decode(info.body).broker_addr_table)

            with structlog.testing.capture_logs() as lines:
                async with EmbeddedBroker(config=config, access=Access(tls=tls)):
                    await until(lambda: [line for line in lines if line["event"] == "broker.not_registered"])
                assert await known() == ["theirs"]
            async with EmbeddedBroker(config=config, access=Access(tls=tls, credentials=ADMIN)) as ours:
                await until(lambda: ours._registering.rounds)
                assert await known() == ["ours", "theirs"]
            assert await known() == ["theirs"], "it took leave, signed too"

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_files_for_registering_that_are_not_there_are_said_before_anything_is_served(tmp_path):
    async def scenario():
        access = Access(tls=TlsOptions(trust_cert_path=str(tmp_path / "none.pem")))
        config = BrokerConfig(register_with=("127.0.0.1:9",))
        broker = EmbeddedBroker(tmp_path / "data", config=config, access=access)
        with pytest.raises(UsageError, match=r"tls_trust_cert_path .*none\.pem"):
            await broker.start()
        assert not (tmp_path / "data").exists()

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["acl_file", "tls_cert_path"])
def test_files_that_are_not_there_are_said_before_anything_is_served(tmp_path, name):
    async def scenario():
        broker = EmbeddedBroker(tmp_path / "data", config=BrokerConfig(**{name: str(tmp_path / "none")}))
        with pytest.raises(UsageError, match=f"{name} .*none: cannot be read|{name} .*none cannot be read"):
            await broker.start()
        assert not (tmp_path / "data").exists()

    asyncio.run(scenario())


@pytest.mark.parametrize("text", [FILE, "\ufeff" + FILE])
@pytest.mark.parametrize("mode", [0o600, 0o604])
def test_the_file_may_have_a_byte_order_mark_and_one_that_all_can_read_is_named(tmp_path, text, mode):
    path = tmp_path / "acl.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)

    async def scenario():
        with structlog.testing.capture_logs() as lines:
            async with EmbeddedBroker(config=BrokerConfig(acl_file=str(path))):
                pass
        return [(line["setting"], line["file"]) for line in lines if line["event"] == "secret_file_open_to_all"]

    assert asyncio.run(scenario()) == ([("broker.acl_file", str(path))] if mode == 0o604 else [])


def test_a_file_that_is_none_is_refused_at_once(tmp_path):
    """To read a FIFO waited for somebody to write there."""
    os.mkfifo(tmp_path / "acl.toml")

    async def scenario():
        with pytest.raises(UsageError, match=r"^broker\.acl_file [^ ]*acl\.toml is no regular file$"):
            await EmbeddedBroker(config=BrokerConfig(acl_file=str(tmp_path / "acl.toml"))).start()

    asyncio.run(scenario())
