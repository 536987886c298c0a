"""Traces on their way out: batches, bounds, what a producer records; against the embedded broker."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.client.trace import QUEUE_MAX, TraceDispatcher, trace_messages
from rocketcrew.client.transactions import LocalTransactionState
from rocketcrew.remoting.properties import decode_properties
from rocketcrew.remoting.traces import TRACE_TOPIC, TraceRecord

from ..remoting.trace_records import split_records
from .conftest import PATIENT_MS

TOPIC = "orders"


class Seen:
    """Trace messages as they reach the broker."""

    def __init__(self, broker, topic=TRACE_TOPIC):
        self.topic = topic
        self.messages = []
        broker.intercepts.append(self)

    def __call__(self, command):
        if command.code == 310 and command.fields["b"] == self.topic:
            keys = decode_properties(command.fields["i"])["KEYS"].split()
            self.messages.append((command.fields["a"], keys, split_records(bytes(command.body).decode())))

    @property
    def records(self):
        return [record for _, _, records in self.messages for record in records]


@contextlib.asynccontextmanager
async def tracing(trace=True, config=None, **options):
    async with (
        EmbeddedBroker(config=config) as broker,
        Producer(broker.name_server, "senders", trace=trace, send_timeout_ms=PATIENT_MS, **options) as producer,
    ):
        yield producer, Seen(broker, trace if isinstance(trace, str) else TRACE_TOPIC), broker
    # closing the producer has sent the rest


async def test_a_send_is_traced():
    async with tracing() as (producer, seen, broker):
        result = await producer.send(OutgoingMessage(TOPIC, b"body", tags="red", keys="k1 k2"))
    ((group, keys, (pub,)),) = seen.messages
    assert group.startswith("_INNER_TRACE_PRODUCER-senders-PRODUCE-")
    assert keys == [result.message_id, "k1", "k2"]
    assert [pub[0], *pub[2:10]] == [
        "Pub", "DefaultRegion", "senders", TOPIC, result.message_id, "red", "k1 k2", broker.address, "4"
    ]  # fmt: skip
    assert pub[11:] == ["0", result.offset_message_id, "true"]


async def test_each_message_of_a_batch_has_a_record_of_its_own():
    async with tracing("my-traces") as (producer, seen, _):
        result = await producer.send_batch([OutgoingMessage(TOPIC, str(n).encode()) for n in range(3)])
    assert [record[5] for record in seen.records] == result.message_id.split(",")
    assert [record[12] for record in seen.records] == result.offset_message_id.split(",")


async def test_the_kinds_of_messages():
    async with tracing(check=lambda _: LocalTransactionState.UNKNOW) as (producer, seen, _):
        await producer.send(OutgoingMessage(TOPIC, b"x", delay_level=1))
        await producer.send_in_transaction(
            OutgoingMessage(TOPIC, b"x", tags="t"), lambda *_: LocalTransactionState.COMMIT_MESSAGE
        )
        await producer.send_oneway(OutgoingMessage(TOPIC, b"nobody knows"))
    delayed, half, end = seen.records
    assert (delayed[11], half[11]) == ("3", "1")
    assert [end[0], end[6], end[11], end[12]] == ["EndTransaction", "t", "COMMIT_MESSAGE", "false"]
    assert end[5] == end[10] == half[5]


async def test_a_broker_that_wants_no_traces_gets_none():
    def untraced(command):
        if command.code != 310 or command.fields["b"] != TOPIC:
            return None
        fields = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "0", "TRACE_ON": "false"}
        return command.response(0, fields)

    async with tracing() as (producer, seen, broker):
        broker.intercepts.insert(0, untraced)
        await producer.send(OutgoingMessage(TOPIC, b"x"))
    assert seen.messages == []


async def test_records_go_out_in_batches():
    async with tracing() as (producer, seen, _):
        await producer.send_many(OutgoingMessage(TOPIC, b"x") for _ in range(25))
    assert sum(len(records) for _, _, records in seen.messages) == 25
    assert max(len(records) for _, _, records in seen.messages) == 10


async def test_nobody_waits_for_traces():
    async with tracing(config=BrokerConfig(auto_create_topic=False)) as (producer, _, _):
        dispatcher: TraceDispatcher = producer._trace.dispatcher
        taken = [dispatcher.append(TraceRecord("x\x02", ("k",))) for _ in range(QUEUE_MAX + 5)]
        assert taken.count(False) == dispatcher.dropped == 5
        await asyncio.sleep(0)


async def test_what_its_sender_has_named_is_traced_under_that_name():
    async with tracing() as (producer, seen, _):
        for name in ("order 1", "order,2"):
            await producer.send(OutgoingMessage(TOPIC, b"x", system_properties={"UNIQ_KEY": name}))
    assert [record[5] for record in seen.records] == ["order 1", "order,2"]
    assert [keys for _, keys, _ in seen.messages] == [["order", "1", "order,2"]]


async def test_records_that_no_message_can_carry_are_dropped_alone():
    async with tracing() as (producer, seen, _):
        dispatcher: TraceDispatcher = producer._trace.dispatcher
        for _ in range(20):  # a batch for the running dispatcher, and one for its end
            dispatcher.append(TraceRecord("x\x02", ("a key",)))
        dispatcher.append(TraceRecord("y\x02", ("k",)))
    assert [record[0] for record in seen.records] == ["y"]


def test_large_records_are_spread_over_messages():
    records = [TraceRecord("x" * 50_000, (f"k{n}",)) for n in range(5)]
    messages = trace_messages(records, "traces")
    assert [len(message.body) for message in messages] == [100_000, 100_000, 50_000]
    assert [message.keys for message in messages] == ["k0 k1", "k2 k3", "k4"]


@pytest.mark.parametrize("records", [[], [TraceRecord("a\x02", ("k", "k"))]])
def test_keys_stand_once(records):
    assert [message.keys for message in trace_messages(records, "traces")] == ["k"] * len(records)
