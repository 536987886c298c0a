"""Our producer against genuine brokers: every way of sending, order, delays, recall, transactions with check-back."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import SEND_TIMEOUT_MS, patient_producer
from reading import on_cluster, read_until
from servers import START_TIMEOUT_S, VERSIONS, Kind, Servers

from rocketcrew import (
    CheckedMessage,
    LocalTransactionState,
    OutgoingMessage,
    Producer,
    SendRules,
    SendStatus,
    by_key,
    by_random,
    to_queue,
)
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.producer import RETRIES
from rocketcrew.remoting.compression import Compression
from rocketcrew.remoting.errors import BrokerError

BINARY = Kind("4.9.7", binary_headers=True)
ON_ALL = pytest.mark.parametrize("servers", [*VERSIONS, BINARY], ids=str, indirect=True, scope="session")
ON_BOTH = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
ON_5 = pytest.mark.parametrize("servers", [Kind("5.5.0")], ids=str, indirect=True, scope="session")
QUEUES = 4
DELAY_MS = 1500
RECALLED_AFTER_MS = 15_000
"""Until what is to be recalled would be delivered."""

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
UNKNOW = LocalTransactionState.UNKNOW


def patient(cluster: Cluster, group: str, **options: Any) -> Producer:
    """A message that no broker has answered in time is sent again, and may be there twice."""
    return Producer(cluster, group, send_timeout_ms=SEND_TIMEOUT_MS, **options)


@ON_ALL
def test_every_way_of_sending(servers: Servers) -> None:
    topic = "ways"
    servers.create_topic(topic, QUEUES)

    async def work(cluster: Cluster) -> None:
        async with patient(cluster, "ways-group", rules=SendRules(latency_faults=True)) as producer:
            one = await producer.send(OutgoingMessage(topic, b"one", tags="t", keys=["k1", "k2"], flag=7))
            assert one.status is SendStatus.SEND_OK
            assert 1 <= one.attempts <= 1 + RETRIES  # a broker that is busy refuses
            await producer.send_oneway(OutgoingMessage(topic, b"oneway"), selector=to_queue(one.mq))
            many = await asyncio.gather(*(producer.send(OutgoingMessage(topic, b"many")) for _ in range(20)))
            assert {result.mq.queue_id for result in many} == set(range(QUEUES))
            batch = await producer.send_batch([OutgoingMessage(topic, f"b{n}".encode()) for n in range(10)])
            assert len(batch.offset_message_id.split(",")) == 10
            for kind in Compression:
                packer = patient(cluster, "ways-group", compression=kind)
                await packer.send(OutgoingMessage(topic, b"packed" * 2000, tags=kind.name))
        batched = [f"b{n}".encode() for n in range(10)]
        sent = [b"one", b"oneway", *[b"many"] * 20, *batched, *[b"packed" * 2000] * len(Compression)]
        found = await read_until(cluster, topic, sent)
        assert sorted(message.decompressed_body() for message in found) == sorted(sent)
        first = next(message for message in found if message.body == b"one")
        assert (first.message_id, first.flag, first.properties["TAGS"]) == (one.message_id, 7, "t")
        assert first.properties["KEYS"] == "k1 k2"

    on_cluster(servers, work)


@ON_BOTH
def test_what_has_one_key_keeps_its_order(servers: Servers) -> None:
    topic, keys = "ordered", [f"order-{n}" for n in range(7)]
    servers.create_topic(topic, QUEUES)
    sent = [f"{key} {n}" for n in range(20) for key in keys]
    with patient_producer(servers, "ordered-group") as producer:
        for text in sent:
            producer.send(OutgoingMessage(topic, text.encode()), selector=by_key(text.partition(" ")[0]))
        producer.send(OutgoingMessage(topic, b"random 0"), selector=by_random(random.randrange))
        producer.send(OutgoingMessage(topic, b"last 0"), selector=lambda queues: queues[-1])
    sent += ["random 0", "last 0"]

    async def work(cluster: Cluster) -> None:
        found = await read_until(cluster, topic, map(str.encode, sent))
        places = {
            text.decode(): (queue, at) for text, queue, at in ((m.body, m.queue_id, m.queue_offset) for m in found)
        }
        for key in keys:
            mine = [places[text] for text in sent if text.startswith(f"{key} ")]
            assert len({queue for queue, _ in mine}) == 1
            assert mine == sorted(mine)
        assert places["last 0"][0] == QUEUES - 1
        assert len(found) == len(sent)

    on_cluster(servers, work)


@ON_BOTH
def test_delay_levels(servers: Servers) -> None:
    topic = "levels"
    servers.create_topic(topic, 1)

    async def work(cluster: Cluster) -> None:
        producer = patient(cluster, "levels-group")
        await producer.send(OutgoingMessage(topic, b"later", delay_level=1))
        (found,) = await read_until(cluster, topic, [b"later"])
        assert found.body == b"later"
        assert found.store_timestamp_ms - found.born_timestamp_ms >= 900
        assert found.properties["DELAY"] == "1"

    on_cluster(servers, work)


@ON_5
def test_timers_of_5_x(servers: Servers) -> None:
    topic = "timers"
    servers.create_topic(topic, 1)

    async def work(cluster: Cluster) -> None:
        producer = patient(cluster, "timers-group")
        await producer.send(OutgoingMessage(topic, b"ms", delay_ms=DELAY_MS))
        await producer.send(OutgoingMessage(topic, b"sec", delay_sec=2))
        at_ms = time.time_ns() // 1_000_000 + DELAY_MS
        await producer.send(OutgoingMessage(topic, b"at", deliver_at_ms=at_ms))
        found = {message.body: message for message in await read_until(cluster, topic, [b"ms", b"sec", b"at"])}
        assert set(found) == {b"ms", b"sec", b"at"}
        due = {
            b"ms": found[b"ms"].born_timestamp_ms + DELAY_MS,
            b"sec": found[b"sec"].born_timestamp_ms + 2000,
            b"at": at_ms,
        }
        early = {body: due[body] - message.store_timestamp_ms for body, message in found.items()}
        assert all(ms <= 200 for ms in early.values()), early  # the wheel's precision is 100 ms

    on_cluster(servers, work)


@ON_5
def test_a_message_is_recalled(servers: Servers) -> None:
    topic = "recalled"
    servers.create_topic(topic, 1)

    async def work(cluster: Cluster) -> None:
        producer = patient(cluster, "recall-group")
        at_ms = time.time_ns() // 1_000_000 + RECALLED_AFTER_MS
        gone = await producer.send(OutgoingMessage(topic, b"gone", deliver_at_ms=at_ms))
        assert gone.recall_handle is not None
        assert await producer.recall(topic, gone.recall_handle) == gone.message_id
        await producer.send(OutgoingMessage(topic, b"stays", deliver_at_ms=at_ms + 1_000))
        found = await read_until(cluster, topic, [b"stays"])
        assert [message.body for message in found] == [b"stays"]

    on_cluster(servers, work)


@pytest.mark.parametrize("servers", [Kind("4.9.7")], ids=str, indirect=True, scope="session")
def test_4_9_has_no_recall_and_says_so(servers: Servers) -> None:
    topic = "recalled"
    servers.create_topic(topic, 1)

    async def work(cluster: Cluster) -> None:
        producer = patient(cluster, "recall-group")
        sent = await producer.send(OutgoingMessage(topic, b"x"))
        assert sent.recall_handle is None
        with pytest.raises(BrokerError, match="3 REQUEST_CODE_NOT_SUPPORTED"):
            await producer.recall(topic, "djEgcmVjYWxsZWQgYnJva2VyLWEgMTcwMDAwMDAwMDAwMCBV")

    on_cluster(servers, work)


@ON_ALL
def test_transactions(servers: Servers) -> None:
    topic = "transactions"
    servers.create_topic(topic, QUEUES)
    truth = {f"commit-{n}": COMMIT for n in range(3)} | {f"rollback-{n}": ROLLBACK for n in range(3)}
    late = {"unknown-0": COMMIT, "unknown-1": ROLLBACK}
    asked: dict[str, int] = {}
    rolled_back = asyncio.Event()

    async def check(message: CheckedMessage) -> LocalTransactionState:
        """The late ones are known at the second question."""
        name = message.body.decode()
        assert message.topic == topic
        asked[name] = asked.get(name, 0) + 1
        if name in late and asked[name] == 1:
            return UNKNOW
        if name == "unknown-1":
            rolled_back.set()
        return {**truth, **late}[name]

    async def work(cluster: Cluster) -> None:
        async with patient(cluster, "transactions-group", check=check) as producer:

            async def run(name: str, state: LocalTransactionState) -> str:
                done = await producer.send_in_transaction(OutgoingMessage(topic, name.encode()), lambda *_: state)
                return done.send.message_id

            ids = {name: await run(name, state) for name, state in truth.items()}
            ids |= {name: await run(name, UNKNOW) for name in late}
            wanted = {name: ids[name] for name, state in {**truth, **late}.items() if state is COMMIT}
            found = await read_until(cluster, topic, map(str.encode, wanted))
            await asyncio.wait_for(rolled_back.wait(), START_TIMEOUT_S)
            assert {message.body.decode(): message.message_id for message in found} == wanted
            committed = next(message for message in found if message.body == b"unknown-0")
            assert committed.sysflag & 0xC == 8
            assert min(asked[name] for name in late) >= 2

    on_cluster(servers, work)


@ON_BOTH
def test_another_member_of_the_group_is_asked(servers: Servers) -> None:
    topic = "orphans"
    servers.create_topic(topic, 1)
    known = threading.Event()

    def check(message: CheckedMessage) -> LocalTransactionState:
        known.set()
        return COMMIT

    async def leave(cluster: Cluster) -> None:
        """A broker that asks this one before it has left hears nothing new."""
        async with patient(cluster, "orphans-group", check=lambda _: UNKNOW) as producer:
            await producer.send_half(OutgoingMessage(topic, b"orphan"))

    on_cluster(servers, leave)
    with patient_producer(servers, "orphans-group", check=check) as producer:
        producer.send(OutgoingMessage(topic, b"hello"))
        assert known.wait(START_TIMEOUT_S)

        async def both(cluster: Cluster) -> None:
            found = await read_until(cluster, topic, [b"orphan", b"hello"])
            assert {message.body for message in found} == {b"orphan", b"hello"}

        on_cluster(servers, both)
