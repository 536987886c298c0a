"""Messages that are named by their place in the log: only what a queue's entry names is one, whatever bodies look like.

Everybody who sends knows where its bodies stand, so a body can hold a whole record at its own position.
"""

from __future__ import annotations

import struct

import pytest

from rocketcrew.broker.acl import parse_acl
from rocketcrew.broker.storage import MemoryFile, MemoryStorage
from rocketcrew.broker.transactions import HALF_TOPIC
from rocketcrew.client.access import Credentials
from rocketcrew.client.request_rules import sign
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.headers import EndTransaction, SendBack, SendRequestV2, ViewMessage
from rocketcrew.remoting.ids import parse_offset_message_id
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import StoredMessage, decode_message, encode_message

BODY_AT = 88
VICTIM, EVIL = Credentials("victim1", "victim-secret"), Credentials("evil001", "evil-secret")
ACL = """
[[accounts]]
accessKey = "victim1"
secretKey = "victim-secret"
topicPerms = ["secret=PUB"]

[[accounts]]
accessKey = "evil001"
secretKey = "evil-secret"
topicPerms = ["mine=PUB|SUB"]
"""
HALF = {"TRAN_MSG": "true", "PGROUP": "pgv", "UNIQ_KEY": "U1"}


class CountingLog(MemoryFile):
    """Counts the bytes that are read of the commit log."""

    __slots__ = ("read_bytes",)

    def __init__(self, segment_bytes: int, buffered: bool) -> None:
        super().__init__(segment_bytes, buffered)
        self.read_bytes = 0

    def read(self, position: int, length_bytes: int) -> bytes:
        found = super().read(position, length_bytes)
        self.read_bytes += len(found)
        return found


class CountingStorage(MemoryStorage):
    def open(self, name: str, segment_bytes: int, buffered: bool) -> MemoryFile:
        if name == "commitlog" and name not in self._files:
            self._files[name] = CountingLog(segment_bytes, buffered)
        return super().open(name, segment_bytes, buffered)


def place_of(answer):
    return parse_offset_message_id(answer.fields["msgId"]).physical_offset


def signed(broker, who, code, header, body=b""):
    command = Command(code, header.to_fields(), body, 77, version=475)
    sign(command, who)
    (effect,) = broker.core.handle(broker.now_ms, 1, "127.0.0.1:4000", command)
    return effect.command


def send(broker, who, topic, body, properties="", sys_flag=0):
    header = SendRequestV2("pg", topic, "TBW102", 4, 0, sys_flag, 1, 0, properties)
    return signed(broker, who, RequestCode.SEND_MESSAGE_V2, header, body)


def forged(broker, message):
    """What makes the next body, sent without properties to "mine", hold `message` as a record at its own place, and that."""
    message.physical_offset = broker.core.state.store.log_end + BODY_AT
    return encode_message(message), message.physical_offset


def test_nobody_ends_the_transaction_of_another_by_a_record_in_a_body(make):
    broker = make()
    for topic in ("secret", "mine"):
        broker.send(topic)
    broker.core.acl = parse_acl(ACL, "acl.toml")
    half = send(broker, VICTIM, "secret", b"the victim's", encode_properties(HALF), 4)
    offset, place = int(half.fields["queueOffset"]), place_of(half)
    properties = encode_properties(HALF | {"REAL_TOPIC": "mine", "REAL_QID": "0"}).encode()
    body, at = forged(broker, StoredMessage(HALF_TOPIC, b"forged", properties, queue_offset=offset))
    assert send(broker, EVIL, "mine", body).code == 0
    assert broker.core.state.store.message_at(at) is None
    refused = signed(broker, EVIL, RequestCode.END_TRANSACTION, EndTransaction("pgv", offset, at, 12, "U1"))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert signed(broker, VICTIM, RequestCode.END_TRANSACTION, EndTransaction("pgv", offset, place, 8, "U1")).code == 0
    broker.core.acl = None
    assert [message.body for message in broker.read("secret")] == [b"x", b"the victim's"]


@pytest.mark.parametrize("topic", ["mine", "other", "no-such-topic"])
def test_a_record_in_a_body_is_neither_shown_nor_sent_back(make, topic):
    broker = make()
    broker.heartbeat(subscriptions={"mine": "*"})
    for name in ("mine", "other"):
        broker.send(name)
    for offset in (0, 1, 5):
        body, at = forged(broker, StoredMessage(topic, b"forged", queue_offset=offset))
        broker.send("mine", body)
        assert broker.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(at)).code == ResponseCode.SYSTEM_ERROR
        assert broker.call(RequestCode.CONSUMER_SEND_MSG_BACK, SendBack(at, "g", 1)).code == ResponseCode.SYSTEM_ERROR


def test_each_record_is_found_by_its_place(make):
    broker = make()
    long_name = "%RETRY%" + "g" * 200  # more than 127 bytes: another form of record
    places = {}
    for number, topic in enumerate(("T", "U", long_name) * 3):
        message = StoredMessage(
            topic, b"%d" % number, queue_id=number % 2, born_host="::1" if number % 4 else "1.2.3.4"
        )
        broker.core.state.store.put(broker.now_ms, message, 0)
        places[message.physical_offset] = topic, message.body
    store = broker.core.state.store
    found = {place: decode_message(store.record_at(place)) for place in places}
    assert {place: (message.topic, message.body) for place, message in found.items()} == places
    assert all(store.record_at(place) is None for place in range(store.log_end + 9) if place not in places)


def test_a_place_in_a_body_is_looked_at_and_not_read(make):
    """The four bytes there say how long the record is, and may say anything."""
    broker = make(CountingStorage())
    size_said = 1 << 20
    for _ in range(3):
        broker.send(body=struct.pack(">i", size_said) * (size_said // 4))
    store = broker.core.state.store
    body, at = forged(broker, StoredMessage("T", b"forged" * 100, queue_offset=2))
    broker.send("mine", body)
    log = broker.storage.open("commitlog", 1, buffered=False)
    for place in (BODY_AT, BODY_AT + 4, at):
        log.read_bytes = 0
        assert store.record_at(place) is None
        assert log.read_bytes < 200
