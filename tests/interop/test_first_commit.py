"""Brokers lose commits of a topic that come at once while it has none of the group; ours come one by one until one is in.

ConsumerOffsetManager.commitOffset of 4.9 makes the table of a topic and group with the first offset, and puts it over what
another thread has put there meanwhile: both are answered with success, one is lost. Here the race is forced: every queue has
a connection of its own, so that commits of one group arrive at once, until one is lost; the commits that a member makes over
the same connections are all there, for as many groups and more.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import SEND_TIMEOUT_MS
from load import VERDICTS
from servers import VERSIONS, Kind, Servers

from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import OFFSET_TIMEOUT_MS, Operations
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.actions import Commit
from rocketcrew.supervisor.core.allocation import average
from rocketcrew.supervisor.core.decisions import Core
from rocketcrew.supervisor.core.slab import UNIT_BYTES, Slab
from rocketcrew.supervisor.core.state import CoreConfig
from rocketcrew.supervisor.member.commits import Commits

TOPIC, QUEUES = "first_commits", 16
GROUPS_MIN, GROUPS_MAX = 200, 2000
DELETED_GROUPS = 40
GroupCommit = Callable[[str, Sequence[MessageQueue]], Awaitable[None]]


class Spread(Operations):
    """Commits over a connection for each queue. They wait longer for an answer than a member does: that one commits again,
    here it would count as lost."""

    def __init__(self, clusters: Sequence[Cluster]) -> None:
        super().__init__(clusters[0])
        self._each = [Operations(cluster) for cluster in clusters]

    async def update_consumer_offset(
        self, group: str, mq: MessageQueue, offset: int, *, timeout_ms: int = OFFSET_TIMEOUT_MS
    ) -> None:
        patience_ms = max(timeout_ms, SEND_TIMEOUT_MS)
        await self._each[mq.queue_id].update_consumer_offset(group, mq, offset, timeout_ms=patience_ms)

    async def connect(self, mq: MessageQueue) -> None:
        for operations in self._each:
            await operations.max_offset(mq)


async def lost_of(operations: Operations, group: str, mqs: Sequence[MessageQueue], commit: GroupCommit) -> int:
    """Commit offset 1 of all queues of a fresh group; how many of them the broker does not have."""
    await commit(group, mqs)

    async def ask(mq: MessageQueue) -> int | None:
        return await operations.query_consumer_offset(
            group, mq, set_zero_if_not_found=False, timeout_ms=SEND_TIMEOUT_MS
        )

    stored = await asyncio.gather(*map(ask, mqs))
    return sum(offset != 1 for offset in stored)


def commits_of(cluster: Cluster, operations: Operations, group: str) -> Commits:
    core = Core(CoreConfig("me", group, (TOPIC,), average), Slab(2), bytearray(2 * UNIT_BYTES))
    core.begin()
    return Commits(cluster, operations, core, group, asyncio.get_running_loop().time)


async def commit_all(commits: Commits, mqs: Sequence[MessageQueue], offset: int, *, guarded: bool) -> None:
    """All at once; `guarded` as in a stop, by a member that has committed it before."""
    each = (Commit(number, mq, offset, guarded, known=offset) for number, mq in enumerate(mqs))
    await asyncio.gather(*map(commits.commit, each))


async def both_ways(cluster: Cluster, operations: Spread, mqs: Sequence[MessageQueue]) -> tuple[int, int, int]:
    """(groups, commits lost of a member, commits lost of plain ones)."""

    async def plain(group: str, mqs: Sequence[MessageQueue]) -> None:
        await asyncio.gather(*(operations.update_consumer_offset(group, mq, 1) for mq in mqs))

    async def members(group: str, mqs: Sequence[MessageQueue]) -> None:
        await commit_all(commits_of(cluster, operations, group), mqs, 1, guarded=False)

    await operations.connect(mqs[0])
    groups = lost_plain = lost_ours = 0
    while groups < GROUPS_MIN or (lost_plain == 0 and groups < GROUPS_MAX):
        groups += 1
        lost_plain += await lost_of(operations, f"plain-{groups}", mqs, plain)
        lost_ours += await lost_of(operations, f"ours-{groups}", mqs, members)
    return groups, lost_ours, lost_plain


@pytest.mark.parametrize("servers", [Kind("4.9.7")], ids=str, indirect=True, scope="session")
def test_the_first_commits_of_a_topic_are_all_kept(servers: Servers) -> None:
    servers.create_topic(TOPIC, QUEUES)

    async def run() -> tuple[int, int, int]:
        async with AsyncExitStack() as open_ones:
            clusters = [await open_ones.enter_async_context(open_cluster(servers.name_server)) for _ in range(QUEUES)]
            return await both_ways(clusters[0], Spread(clusters), await clusters[0].queues_to_read(TOPIC))

    groups, ours, plain = asyncio.run(run())
    VERDICTS.append(
        f"VERDICT first_commits 4.9.7: {groups} fresh groups of {QUEUES} queues, lost {ours} of a member's commits,"
        f" {plain} of plain ones"
    )
    assert ours == 0


@pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
def test_the_last_commits_of_a_stop_are_kept_where_the_group_was_deleted_with_its_offsets(servers: Servers) -> None:
    """Both brokers say 0 for an offset that they do not have and whose queue has its first message in memory; 5.x are asked
    not to. It is no reset of an operator."""
    topic = "last_commits"
    servers.create_topic(topic, QUEUES)

    async def run() -> int:
        async with AsyncExitStack() as open_ones:
            clusters = [await open_ones.enter_async_context(open_cluster(servers.name_server)) for _ in range(QUEUES)]
            cluster, operations = clusters[0], Spread(clusters)
            admin, mqs = Admin(cluster), await cluster.queues_to_read(topic)
            lost = 0
            for number in range(DELETED_GROUPS):
                group = f"deleted-{number}"
                await admin.create_group(servers.address, SubscriptionGroupConfig(group))
                commits = commits_of(cluster, operations, group)
                await commit_all(commits, mqs, 1, guarded=False)
                await admin.delete_group(servers.address, group)
                await admin.create_group(servers.address, SubscriptionGroupConfig(group))

                async def stop(_group: str, mqs: Sequence[MessageQueue], commits: Commits = commits) -> None:
                    await commit_all(commits, mqs, 1, guarded=True)

                lost += await lost_of(operations, group, mqs, stop)
            return lost

    assert asyncio.run(run()) == 0
