"""Reading topics of a genuine cluster without a group: every message that is stored now."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from servers import START_TIMEOUT_S, Servers, wait_until_answered

from rocketcrew.cli.watch import Watch
from rocketcrew.client.access import Access
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations, PullStatus, parse_pull
from rocketcrew.remoting.codes import PULL_SUBSCRIPTION
from rocketcrew.remoting.errors import RocketcrewError
from rocketcrew.remoting.headers import PullRequest
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, decode_messages

POLL_S = 0.05
GROUP = "TOOLS_CONSUMER"

T = TypeVar("T")


def on_cluster(servers: Servers, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Run `work` with a cluster of its own."""

    async def run() -> T:
        async with open_cluster(servers.name_server) as cluster:
            return await work(cluster)

    return asyncio.run(run())


def wait_until_readable(target: Access | str, topic: str, count: int) -> None:
    """Until the ends of the topic's queues count so many messages: a broker answers a send before it has put the message into
    its queue, and whoever reads up to the end at once misses it."""
    with Watch(target) as watch:
        wait_until_answered(lambda: watch.stored(GROUP, topic) >= count, f"{count} messages in the queues of {topic}")


async def read_topic(cluster: Cluster, topic: str) -> list[StoredMessage]:
    """All messages of a topic, queue by queue."""
    found: list[StoredMessage] = []
    for mq in await cluster.queues_to_read(topic, refresh=True):
        found += await read_queue(cluster, mq)
    return found


async def read_queue(cluster: Cluster, mq: MessageQueue) -> list[StoredMessage]:
    operations = Operations(cluster)
    address = await cluster.address_of(mq)
    offset, found = await operations.min_offset(mq), list[StoredMessage]()
    while offset < await operations.max_offset(mq):
        header = PullRequest(
            GROUP, mq.topic, mq.queue_id, offset, 32, PULL_SUBSCRIPTION, 0, 0, 0, "*", "TAG", broker_name=mq.broker_name
        )
        result = parse_pull(await operations.pull(address, header), address)
        if result.status is PullStatus.FOUND:
            found += decode_messages(bytes(result.body))
        offset = result.header.next_begin_offset
    return found


async def read_until(
    cluster: Cluster, topic: str, bodies: Iterable[bytes], timeout_s: float = START_TIMEOUT_S
) -> list[StoredMessage]:
    """The topic's messages as soon as these bodies are among them: a broker shows a message a moment after it has taken it,
    and one of them may be there twice before another is there at all."""
    wanted = Counter(bodies)
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                found = await read_topic(cluster, topic)
            except RocketcrewError:
                found = []
            if wanted <= Counter(message.decompressed_body() for message in found):
                return found
            await asyncio.sleep(POLL_S)
