"""What every request gets: signature, namespace fields, the vip port; and that no secret is ever shown."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from rocketcrew.client.access import Access, Credentials, TlsOptions, access_to
from rocketcrew.client.key_files import read_key_file
from rocketcrew.client.request_rules import VIP_CODES, RequestRules, sign
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.command import Command, Serialization
from rocketcrew.remoting.errors import UsageError

KEYS = Credentials("RocketMQ", "12345678")


def signature(text, secret="12345678"):
    return base64.b64encode(hmac.new(secret.encode(), text, hashlib.sha1).digest()).decode()


def test_the_signature_is_java_s():
    """AclSignerTest.java: the text "RocketMQ" and the key "12345678"; our only field is an access key of that value."""
    command = Command(10)
    sign(command, KEYS)
    assert command.fields == {"AccessKey": "RocketMQ", "Signature": "IUc8rrO/0gDch8CjObLQsW2rsiA="}


def test_values_in_the_order_of_their_names_then_the_body():
    command = Command(10, {"topic": "t", "a": "1", "Zone": "z"}, b"\x00body")
    sign(command, Credentials("key", "secret", "token"))
    # AccessKey, SecurityToken, Zone, a, topic: upper case sorts first
    assert command.fields["Signature"] == signature(b"keytokenz1t\x00body", "secret")
    assert command.fields["SecurityToken"] == "token"


@pytest.mark.parametrize("body", [bytearray(b"body"), memoryview(b"body")])
def test_bodies_of_every_kind(body):
    command = Command(10, {}, body)
    sign(command, KEYS)
    assert command.fields["Signature"] == signature(b"RocketMQbody")


def test_a_command_that_is_sent_again_is_signed_anew():
    command = Command(10, {"a": "1"})
    sign(command, KEYS)
    first = command.fields["Signature"]
    sign(command, KEYS)
    assert command.fields["Signature"] == first
    command.fields["a"] = "2"
    sign(command, KEYS)
    assert command.fields["Signature"] == signature(b"RocketMQ2")


def test_empty_values_are_read_as_null_from_binary_headers():
    json, binary = (Command(10, {"a": ""}, serialization=kind) for kind in Serialization)
    sign(json, KEYS)
    sign(binary, KEYS)
    assert json.fields["Signature"] == signature(b"RocketMQ")
    assert binary.fields["Signature"] == signature(b"RocketMQnull")


def test_the_second_namespace_is_part_of_what_is_signed():
    command = Command(10, {"topic": "t"})
    RequestRules(Access(namespace_v2="space", credentials=KEYS)).finish(command)
    assert (command.fields["nsd"], command.fields["ns"]) == ("true", "space")
    assert command.fields["Signature"] == signature(b"RocketMQspacetruet")


def test_without_access_nothing_is_added():
    command = Command(10, {"topic": "t"})
    rules = RequestRules(Access())
    rules.finish(command)
    assert command.fields == {"topic": "t"}
    assert rules.address_for("h:10911", Command(RequestCode.SEND_MESSAGE_V2)) == "h:10911"


def test_the_vip_channel_is_two_ports_below_and_not_for_everything():
    rules = RequestRules(Access(vip_channel_enabled=True))
    assert rules.address_for("h:10911", Command(RequestCode.SEND_MESSAGE_V2)) == "h:10909"
    assert rules.address_for("[::1]:10911", Command(RequestCode.LOCK_BATCH_MQ)) == "[::1]:10909"
    straight = {
        RequestCode.PULL_MESSAGE,
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.END_TRANSACTION,
    }
    assert not straight & VIP_CODES
    assert all(rules.address_for("h:10911", Command(code)) == "h:10911" for code in straight)


def test_no_secret_is_part_of_a_repr():
    access = Access("h:1", credentials=Credentials("key", "SECRET", "SECRET"), tls=TlsOptions(key_password="SECRET"))
    assert "key" in repr(access)
    assert "SECRET" not in repr(access)


@pytest.mark.parametrize(("key", "secret"), [("", "s"), ("k", ""), ("", "")])
def test_both_keys_or_none(key, secret):
    with pytest.raises(UsageError, match="both an access key and a secret key"):
        Credentials(key, secret)


def test_a_list_of_name_servers_stands_for_an_access():
    access = Access("h:1")
    assert access_to(access) is access
    assert access_to("h:1") == access
    assert access_to(["h:1", "h:2"]).name_servers == ("h:1", "h:2")
    assert access_to("http://MQ_INST_1973_abc.example.com:80").namespace == "MQ_INST_1973_abc"
    assert not access_to("MQ_INST_1973_abc.example.com:80;h:1").namespace


def test_a_key_file_as_java_reads_it(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# of ops\nAccessKey = me\nSecretKey=a=b=\n\nSecurityToken=t\nOther=x\n")
    assert read_key_file(str(file), "f") == Credentials("me", "a=b=", "t")
    file.write_text("AccessKey=me\n")
    with pytest.raises(UsageError, match=r"^f needs the lines"):
        read_key_file(str(file), "f")
