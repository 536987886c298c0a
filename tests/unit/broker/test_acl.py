"""Access control of the embedded broker: signatures as genuine clients make them, permissions as plain_acl has them, TLS."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac

import pytest
import trustme

from rocketcrew.broker.acl import parse_acl
from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.core import HANDLERS
from rocketcrew.broker.refusal import Refused
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.access import Access, Credentials, TlsOptions
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.request_rules import sign
from rocketcrew.remoting.admin_headers import PutKvConfig
from rocketcrew.remoting.bodies import ConsumerData, HeartbeatData, SubscriptionData
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command, Serialization
from rocketcrew.remoting.errors import RocketcrewError, UsageError
from rocketcrew.remoting.headers import GetRoute

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
topicPerms = ["orders=PUB|SUB", "only-sent=PUB", "hidden=DENY"]
groupPerms = ["audit=DENY"]

[[accounts]]
accessKey = "nothing-given"
secretKey = "other-secret"
"""
ADMIN = Credentials("administrator", "admin-secret")
CREW = Credentials("crewmember", "crew-secret")
ACL = parse_acl(FILE, "acl.toml")


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
@pytest.mark.parametrize("code", sorted(HANDLERS.keys() - {RequestCode.HEART_BEAT, RequestCode.BATCH_ACK_MESSAGE}))
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
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "audit"}, "No permission for %RETRY%audit"),
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


ACCOUNT = '[[accounts]]\naccessKey = "crewmember"\nsecretKey = "SECRET-1"\n'


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


@pytest.mark.parametrize("name", ["acl_file", "tls_cert_path"])
def test_files_that_are_not_there_are_said_before_anything_is_served(tmp_path, name):
    async def scenario():
        broker = EmbeddedBroker(tmp_path / "data", config=BrokerConfig(**{name: str(tmp_path / "none")}))
        with pytest.raises(UsageError, match=f"{name} .*none: cannot be read|{name} .*none cannot be read"):
            await broker.start()
        assert not (tmp_path / "data").exists()

    asyncio.run(scenario())
