"""A genuine broker's store, of several segments and killed, opened by the embedded one: whole, with its offsets kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers import VERSIONS, Kind, run_servers

from rocketcrew.broker.checking import check
from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.core import BrokerCore
from rocketcrew.broker.disk import DiskStorage
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.sync import SyncProducer, run_with_cluster
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, decode_messages

TOPIC, GROUP = "from-a-genuine-broker", "its-group"
MESSAGES = 3_000
SEGMENT_BYTES = 1 << 20
BATCH = 50


def body_of(number: int) -> bytes:
    return b"%06d" % number + b"x" * (number % 1_500)


async def ends_of(cluster: Cluster) -> list[int]:
    return [await Operations(cluster).max_offset(MessageQueue(TOPIC, "broker-a", queue_id)) for queue_id in range(4)]


def read(core: BrokerCore, topic: str, queue_id: int) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while (fetched := core.state.store.get(topic, queue_id, len(found), 32)).count:
        found += decode_messages(fetched.body)
        assert [message.queue_offset for message in found[-fetched.count :]] == list(
            range(len(found) - fetched.count, len(found))
        )
    return found


@pytest.mark.parametrize("kind", VERSIONS, ids=str)
def test_a_killed_genuine_store_is_read_whole(kind: Kind, tmp_path: Path) -> None:
    delayed = range(MESSAGES, MESSAGES + 10)
    with run_servers(kind, tmp_path, settings=f"mappedFileSizeCommitLog={SEGMENT_BYTES}\n") as servers:
        servers.create_topic(TOPIC, 4)
        with SyncProducer(servers.name_server) as producer:
            for first in range(0, MESSAGES, BATCH):
                batch = [OutgoingMessage(TOPIC, body_of(number)) for number in range(first, first + BATCH)]
                producer.send_batch(batch)
            for number in delayed:
                producer.send(OutgoingMessage(TOPIC, body_of(number), delay_level=18))
        ends = run_with_cluster(servers.target, ends_of)
    store = tmp_path / "store"
    assert len(list((store / "commitlog").iterdir())) >= 3, "several segments, and BLANKs between them"
    for _ in range(2):  # as it was left, and after our own kill
        storage = DiskStorage(store)
        core = BrokerCore(BrokerConfig(message_delay_level=" ".join(["1s"] * 18)), storage)
        found = [read(core, TOPIC, queue_id) for queue_id in range(4)]
        numbers = sorted(int(message.body[:6]) for messages in found for message in messages)
        assert all(len(messages) >= end for messages, end in zip(found, ends, strict=True))
        assert set(range(MESSAGES)) <= set(numbers)
        assert len(numbers) == len(set(numbers)), "nothing twice"
        assert all(message.body == body_of(int(message.body[:6])) for messages in found for message in messages)
        assert core.state.store.found.damaged_ranges == 0
        assert storage.aside() == []
        storage.abandon()
    storage = DiskStorage(store)
    report = check(storage)
    assert (report.damaged, report.torn_bytes, report.tables) == ([], 0, {})
    storage.abandon()
