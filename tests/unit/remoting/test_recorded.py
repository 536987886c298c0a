"""Everything here against frames recorded between genuine RocketMQ servers and Java clients (wire/*.jsonl)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rocketcrew.remoting.batch import decode_batch, encode_batch
from rocketcrew.remoting.bodies import (
    CheckClientConfig,
    ConsumerIds,
    ConsumerRunningInfo,
    HeartbeatData,
    LockBatch,
    LockBatchResponse,
    SubscriptionData,
    TopicRouteData,
)
from rocketcrew.remoting.body import Body
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.command import Command, Serialization
from rocketcrew.remoting.compression import Compression, decompress
from rocketcrew.remoting.errors import ProtocolError
from rocketcrew.remoting.fastjson import dumps_object_keys, loads
from rocketcrew.remoting.frame import FrameReader, decode, encode, encode_head, parse_head
from rocketcrew.remoting.hashing import java_hash
from rocketcrew.remoting.headers import SendRequestV2, SendResponse
from rocketcrew.remoting.ids import parse_offset_message_id
from rocketcrew.remoting.properties import decode_properties, encode_properties, find_property
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import (
    crc32_body,
    decode_message,
    decode_messages,
    encode_message,
    record_info,
    split_inner_batch,
    walk,
)

from .header_index import REQUEST_HEADERS, RESPONSE_HEADERS

WIRE = Path(__file__).parent / "wire"


class Recorded(NamedTuple):
    source: str
    number: int
    request: RequestCode
    is_response: bool
    frame: bytes


def load_all() -> list[Recorded]:
    result: list[Recorded] = []
    for path in sorted(WIRE.glob("*.jsonl")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            row: dict[str, Any] = json.loads(line)
            frame = base64.b64decode(row["frame"])
            request = RequestCode(row["request_code"])
            result.append(Recorded(path.name, number, request, row["kind"] == "response", frame))
    return result


ALL = load_all()
PULLED = [r for r in ALL if r.request == RequestCode.PULL_MESSAGE and r.is_response and decode(r.frame).body]
BODIES: dict[tuple[RequestCode, bool], type[Body]] = {
    (RequestCode.GET_ROUTEINFO_BY_TOPIC, True): TopicRouteData,
    (RequestCode.HEART_BEAT, False): HeartbeatData,
    (RequestCode.GET_CONSUMER_LIST_BY_GROUP, True): ConsumerIds,
    (RequestCode.LOCK_BATCH_MQ, False): LockBatch,
    (RequestCode.LOCK_BATCH_MQ, True): LockBatchResponse,
    (RequestCode.UNLOCK_BATCH_MQ, False): LockBatch,
    (RequestCode.CHECK_CLIENT_CONFIG, False): CheckClientConfig,
    (RequestCode.GET_CONSUMER_RUNNING_INFO, True): ConsumerRunningInfo,
}


def label(recorded: Recorded) -> str:
    direction = "response" if recorded.is_response else "request"
    return f"{recorded.source[9:14]}:{recorded.number}-{recorded.request.name}-{direction}"


every_frame = pytest.mark.parametrize("recorded", ALL, ids=label)
every_pull_body = pytest.mark.parametrize("recorded", PULLED, ids=label)


def test_all_frames_are_there() -> None:
    assert len(ALL) == 178
    assert len(PULLED) == 24


@every_frame
def test_frame_decodes_and_encodes(recorded: Recorded) -> None:
    command = decode(recorded.frame)
    assert command.is_response == recorded.is_response
    if not recorded.is_response:
        assert command.code == recorded.request
    again = encode(command)
    assert encode_head(command, len(command.body)) + command.body == again
    if command.serialization == Serialization.ROCKETMQ:
        assert again == recorded.frame
    else:
        assert decode(again) == command
        assert json.loads(json_header(again)) == {"extFields": {}, **json.loads(json_header(recorded.frame))}


def json_header(frame: bytes) -> bytes:
    return frame[8 : 8 + parse_head(frame).header_len]


@every_frame
def test_the_other_serialization_says_the_same(recorded: Recorded) -> None:
    command = decode(recorded.frame)
    command.serialization = Serialization(1 - command.serialization)
    assert decode(encode(command)) == command


@every_frame
def test_typed_header_has_every_field(recorded: Recorded) -> None:
    command = decode(recorded.frame)
    header = (RESPONSE_HEADERS if command.is_response else REQUEST_HEADERS).get(recorded.request)
    if header is None or (command.is_response and command.code not in (0, 19, 20, 21)):
        assert command.fields == {}
        return
    typed = header.from_fields(command.fields)
    assert header.from_fields(typed.to_fields()) == typed
    assert typed.to_fields() == command.fields


@every_frame
def test_json_body_decodes(recorded: Recorded) -> None:
    command = decode(recorded.frame)
    if bytes(command.body[:1]) != b"{":
        return
    body = BODIES[recorded.request, recorded.is_response].decode(command.body)
    assert type(body).decode(body.encode()) == body
    # Nothing of what Java wrote is lost: only members that the other version has are added, with their defaults.
    written, ours = loads(command.body), body.to_json()
    for name, value in written.items():
        if name != "brokerDatas":
            assert loads(dumps_object_keys(ours[name])) == value
    if recorded.request != RequestCode.GET_ROUTEINFO_BY_TOPIC:
        assert dumps_object_keys(written) == command.body


@pytest.mark.parametrize("source", sorted({r.source for r in ALL}))
@pytest.mark.parametrize("step", [1, 7, 4096, 1 << 30])
def test_a_stream_of_frames_in_any_split(source: str, step: int) -> None:
    frames = [r.frame for r in ALL if r.source == source and (step > 1 or len(r.frame) < 10_000)]
    stream, reader, commands = b"".join(frames), FrameReader(), list[Command]()
    for position in range(0, len(stream), step):
        reader.feed(stream[position : position + step])
        while (command := reader.next()) is not None:
            commands.append(command)
    reader.finish()
    assert reader.buffered_bytes == 0
    assert commands == [decode(frame) for frame in frames]


@every_pull_body
def test_pulled_messages(recorded: Recorded) -> None:
    command = decode(recorded.frame)
    body = bytes(command.body)
    positions, offsets = walk(body)
    assert positions[-1] == len(body)
    messages = decode_messages(body)
    assert [m.queue_offset for m in messages] == offsets
    assert offsets[-1] < int(command.fields["nextBeginOffset"])
    for message, (start, end) in zip(messages, pairwise(positions), strict=True):
        assert encode_message(message) == body[start:end]
        info = record_info(body, start)
        assert info.end == end
        assert body[info.topic_start : info.topic_start + info.topic_len].decode() == message.topic
        assert crc32_body(message.body) == info.body_crc
        assert split_inner_batch(message) == [message]
        assert parse_offset_message_id(message.offset_message_id) == (
            message.store_host,
            message.store_port,
            message.physical_offset,
        )
        assert message.message_id == message.properties["UNIQ_KEY"]
        written = encode_properties(message.properties).encode()
        # 4.9 leaves the last separator out, and repeats names in records that came in a batch.
        if len(message.raw_properties.split(b"\x01")) - 1 == len(message.properties):
            assert message.raw_properties in (written, written[:-1])
        for name, value in message.properties.items():
            assert find_property(message.raw_properties, name.encode()) == value.encode()


def test_walking_a_pull_body_inside_a_larger_buffer() -> None:
    body = bytes(decode(PULLED[0].frame).body)
    positions, offsets = walk(memoryview(bytearray(b"x" * 11 + body + b"y" * 200)), 11, 11 + len(body))
    assert positions == [11 + p for p in walk(body)[0]]
    assert offsets == walk(body)[1]


def test_sent_compressed_bodies_come_back_in_pulled_messages() -> None:
    kinds: dict[int, set[bytes]] = {}
    for recorded in ALL:
        command = decode(recorded.frame)
        if recorded.request == RequestCode.SEND_MESSAGE_V2 and not recorded.is_response:
            sysflag = SendRequestV2.from_fields(command.fields).sys_flag
            if sysflag & 1:
                kinds.setdefault(sysflag >> 8, set()).add(decompress(command.body, sysflag))
    assert set(kinds) == set(Compression)
    (plain,) = set.union(*kinds.values())
    assert plain.startswith(b"line 0 payload\n")
    pulled = [m for r in PULLED for m in decode_messages(decode(r.frame).body) if m.sysflag & 1]
    assert {m.sysflag >> 8 for m in pulled} == set(Compression)
    assert {m.decompressed_body() for m in pulled} == {plain}


def test_batches_encode_byte_for_byte() -> None:
    batches = [r for r in ALL if r.request == RequestCode.SEND_BATCH_MESSAGE and not r.is_response]
    assert len(batches) == 2
    for recorded in batches:
        body = bytes(decode(recorded.frame).body)
        entries = decode_batch(body)
        assert len(entries) == 5
        assert encode_batch(entries) == body
        assert all(decode_properties(entry.properties)["TAGS"] == "tagBatch" for entry in entries)


def test_answers_to_sends_name_the_records_that_were_pulled() -> None:
    sent = set[str]()
    for recorded in ALL:
        command = decode(recorded.frame)
        if recorded.is_response and RESPONSE_HEADERS.get(recorded.request) is SendResponse:
            sent.update(SendResponse.from_fields(command.fields).msg_id.split(","))
    pulled = {m.offset_message_id for r in PULLED for m in decode_messages(decode(r.frame).body)}
    assert len(sent) > 8
    assert sent & pulled


def subscriptions() -> list[SubscriptionData]:
    heartbeats = [r for r in ALL if r.request == RequestCode.HEART_BEAT and not r.is_response]
    found = [HeartbeatData.decode(decode(r.frame).body) for r in heartbeats]
    return [s for h in found for c in h.consumer_data_set for s in c.subscription_data_set]


def test_tags_hash_and_parse_as_java_did() -> None:
    with_tags = [s for s in subscriptions() if s.tags_set]
    assert with_tags
    for subscription in with_tags:
        assert {java_hash(tag) for tag in subscription.tags_set} == set(subscription.code_set)
    for subscription in subscriptions():
        ours = SubscriptionData.of(
            subscription.topic, subscription.sub_string, subscription.sub_version, subscription.expression_type
        )
        assert sorted(ours.tags_set) == sorted(subscription.tags_set)
        assert sorted(ours.code_set) == sorted(subscription.code_set)


def test_running_info_has_object_keys() -> None:
    infos = [
        ConsumerRunningInfo.decode(decode(r.frame).body)
        for r in ALL
        if r.request == RequestCode.GET_CONSUMER_RUNNING_INFO and r.is_response
    ]
    assert len(infos) == 4
    for info in infos:
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert all(isinstance(queue, MessageQueue) for queue in info.mq_table)
        assert info.jstack is not None
    assert any(queue.topic == "cap_topic" for info in infos for queue in info.mq_table)


SMALL = [r for r in ALL if len(r.frame) < 1500]


@pytest.mark.parametrize("read", [decode, lambda frame: decode_message(decode(frame).body)], ids=["frame", "message"])
def test_cut_off_anywhere_is_one_typed_error(read: Callable[[bytes], object]) -> None:
    for recorded in SMALL[::9]:
        for length in range(len(recorded.frame)):
            with pytest.raises(ProtocolError):
                read(recorded.frame[:length])
