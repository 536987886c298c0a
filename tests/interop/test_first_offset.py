"""Where a new group begins, by consumeFromWhere, on young and on older topics: as Java's consumer of that version decides."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from crowd import crowd_of
from harness import send_numbers
from reading import wait_until_readable
from servers import VERSIONS, Servers

from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.member.commits import BrokersOffsets
from rocketcrew.supervisor.member.first_offset import FirstOffset

ON_BOTH = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
JavaClasses = Callable[[str], str]
WHERE = ("CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP")
MESSAGES = 7
IN_MEMORY = "accessMessageInMemoryMaxRatio"


@contextmanager
def nothing_in_memory(servers: Servers) -> Iterator[None]:
    """While it lasts, the broker holds no message to be in memory, as it is with topics that have grown."""
    servers.set(IN_MEMORY, 0)
    try:
        yield
    finally:
        servers.set(IN_MEMORY, 40)


def ours(servers: Servers, group: str, mq: MessageQueue, where: str, timestamp_ms: int) -> tuple[int, str]:
    async def find() -> tuple[int, str]:
        async with open_cluster(servers.name_server) as cluster:
            operations = Operations(cluster)
            return await FirstOffset(operations, BrokersOffsets(operations, group), where, timestamp_ms).find(mq)

    return asyncio.run(find())


@ON_BOTH
def test_a_new_group_begins_where_javas_does(servers: Servers, tmp_path: Path, java_classes: JavaClasses) -> None:
    old_era = servers.kind.version.startswith("4.")
    half_an_hour_ago = int(time.time() * 1000) - 30 * 60 * 1000
    topics = {"first-old": MESSAGES, "first-empty": 0, "%RETRY%first-retry": 0}
    for topic in topics:
        servers.create_topic(topic, 1)
    send_numbers(servers, "first-old", range(MESSAGES))
    wait_until_readable(servers.name_server, "first-old", MESSAGES)
    found: dict[tuple[str, str, bool], tuple[int, str]] = {}
    numbers = count()
    with crowd_of(tmp_path, java_classes(servers.kind.version), servers.name_server) as crowd:
        for young in (True, False):
            with nullcontext() if young else nothing_in_memory(servers):
                for where in WHERE:
                    member = f"m{next(numbers)}"
                    crowd.join(member, f"first-{member}", "first-idle", where=where)
                    for topic in topics:
                        mq = MessageQueue(topic, "broker-a", 0)
                        mine = ours(servers, f"first-our-{member}", mq, where, half_an_hour_ago)
                        if not topic.startswith("%RETRY%"):
                            assert mine[0] == crowd.first(member, topic), (topic, where, young)
                        found[topic, where, young] = mine
                    crowd.leave(member)
    for where in WHERE:
        assert found["first-old", where, True][0] == 0, "the young-topic rule"
    reasons = {found["first-old", where, True][1] for where in WHERE}
    assert all(("stored offset" if old_era else "young queue") in reason for reason in reasons)
    if not old_era:  # an empty queue has no offset, and a 5.x broker takes what its system keeps cached for "in memory"
        assert {where: found["first-empty", where, True][1].split()[0] for where in WHERE} == {
            where: where for where in WHERE
        }
        return
    assert found["first-old", "CONSUME_FROM_LAST_OFFSET", False] == (MESSAGES, "CONSUME_FROM_LAST_OFFSET")
    assert found["first-old", "CONSUME_FROM_FIRST_OFFSET", False] == (0, "CONSUME_FROM_FIRST_OFFSET")
    wanted = (0, f"CONSUME_FROM_TIMESTAMP {half_an_hour_ago}")
    assert found["first-old", "CONSUME_FROM_TIMESTAMP", False] == wanted
