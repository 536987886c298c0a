"""Where a new group begins on a topic that has lost its first messages: no young-topic rule, only consumeFromWhere.

The broker has small files, and loses its first one.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from crowd import Crowd, crowd_of
from fault_servers import Site, run_site
from harness import Crew, patient_producer, send_numbers, wait_until
from needs import need_jars

from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.member.commits import BrokersOffsets
from rocketcrew.supervisor.member.first_offset import FirstOffset

JavaClasses = Callable[[str], str]
FILE_BYTES = 1 << 20
BODY_BYTES = 16_000
BEFORE, AFTER, LAST_NUMBER = 20, 10, 1000
TOPIC, RETRY = "aged", "%RETRY%aged"
LAST, FIRST, TIMESTAMP = "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP"
OLD = "broker-old"
"""In the site; to clients it is broker-a, as everywhere."""
SETTINGS = {"brokerName": "broker-a", "mappedFileSizeCommitLog": FILE_BYTES}


@dataclass(frozen=True)
class Aged:
    """Servers with a topic and a retry topic whose first messages are gone. `second` is a whole second since 1970, before the
    last AFTER messages of the topic and behind all others."""

    site: Site
    second: int
    first_kept: int
    end: int
    retry_end: int


@pytest.fixture(params=["5.5.0", "4.9.7"], scope="module")
def aged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aged]:
    need_jars(request.param)
    with run_site(request.param, tmp_path_factory.mktemp(f"aged-{request.param}")) as site:
        yield made_old(site)


def made_old(site: Site) -> Aged:
    """The first file of the store is taken away between two runs of the broker: the clean-up itself comes after a minute."""
    site.make_whole(OLD, settings=SETTINGS)
    for topic in (TOPIC, RETRY):
        site.create_topic(topic, 1)
    with patient_producer(site, compress_from_bytes=FILE_BYTES) as producer:
        for topic in (TOPIC, RETRY) * 2:
            filler = OutgoingMessage(topic, b"0".ljust(BODY_BYTES))
            producer.send_many(filler for _ in range(FILE_BYTES // BODY_BYTES // 2))
    send_numbers(site, TOPIC, range(BEFORE))
    send_numbers(site, RETRY, range(BEFORE))
    second = int(time.time()) + 1
    wait_until(lambda: time.time() >= second, what="the next second")
    send_numbers(site, TOPIC, range(BEFORE, BEFORE + AFTER))
    site.broker(OLD).stop()
    files = sorted((site.folder / OLD / "store" / "commitlog").iterdir())
    assert len(files) > 1
    files[0].unlink()
    site.make_whole(OLD, settings=SETTINGS)
    assert min(bounds(site, TOPIC)[0], bounds(site, RETRY)[0]) > 0
    first_kept, end = bounds(site, TOPIC)
    return Aged(site, second, first_kept, end, bounds(site, RETRY)[1])


def bounds(site: Site, topic: str) -> tuple[int, int]:
    mq = MessageQueue(topic, "broker-a", 0)

    async def ask() -> tuple[int, int]:
        async with open_cluster(site.name_server) as cluster:
            operations = Operations(cluster)
            return await operations.min_offset(mq), await operations.max_offset(mq)

    return asyncio.run(ask())


def ours(aged: Aged, topic: str, where: str, second: int) -> tuple[int, str]:
    async def find() -> tuple[int, str]:
        async with open_cluster(aged.site.name_server) as cluster:
            operations = Operations(cluster)
            first = FirstOffset(operations, BrokersOffsets(operations, "nobody"), where, second * 1000)
            return await first.find(MessageQueue(topic, "broker-a", 0))

    return asyncio.run(find())


def javas(crowd: Crowd, member: str, topic: str) -> int:
    """Where Java's member begins; asked again while it says -1, which is a broker that was too slow for it."""
    found: list[int] = []

    def says() -> bool:
        found.append(crowd.first(member, topic))
        return found[-1] >= 0

    wait_until(says, what=f"where Java begins {topic}")
    return found[-1]


def words_of(second: int) -> str:
    """yyyyMMddHHmmss, in local time."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(second))


def test_an_old_topic_is_begun_where_java_begins_it(aged: Aged, tmp_path: Path, java_classes: JavaClasses) -> None:
    """Every consumeFromWhere, with a time in the middle and one before all that is kept; and the retry topic."""
    long_ago = aged.second - 30 * 60
    found: dict[tuple[str, str, int], tuple[int, str]] = {}
    asked = [(LAST, long_ago), (FIRST, long_ago), (TIMESTAMP, long_ago), (TIMESTAMP, aged.second)]
    with crowd_of(tmp_path, java_classes(aged.site.version), aged.site.name_server) as crowd:
        for number, (where, second) in enumerate(asked):
            member = f"m{number}"
            crowd.join(member, f"aged-{member}", "aged-idle", where=f"{where}={words_of(second)}")
            for topic in (TOPIC, RETRY):
                mine = ours(aged, topic, where, second)
                assert mine[0] == javas(crowd, member, topic), (topic, where, second)
                found[topic, where, second] = mine
            crowd.leave(member)
    assert found[TOPIC, LAST, long_ago] == (aged.end, LAST)
    assert found[TOPIC, FIRST, long_ago] == (0, FIRST)
    assert found[TOPIC, TIMESTAMP, long_ago] == (aged.first_kept, f"{TIMESTAMP} {long_ago * 1000}")
    # 4.x finds the message that is closest in time, which may be the one before.
    offset, reason = found[TOPIC, TIMESTAMP, aged.second]
    assert offset in (aged.end - AFTER, aged.end - AFTER - aged.site.version.startswith("4."))
    assert reason == f"{TIMESTAMP} {aged.second * 1000}"
    assert found[RETRY, LAST, long_ago] == (0, "a retry topic: its beginning")
    assert found[RETRY, FIRST, long_ago] == (0, "a retry topic: its beginning")
    assert found[RETRY, TIMESTAMP, long_ago][0] == aged.retry_end


def _is_begun(crew: Crew) -> bool:
    """The queue of the topic is opened, and not only that of the retry topic."""
    return any(each["topic"] == TOPIC for each in crew.logged("queue_opened"))


def _has_the_last(crew: Crew) -> bool:
    """Also where all before it was committed, the broker may not have shown that message yet."""
    return LAST_NUMBER in crew.staged_rows().column("number").to_pylist() and crew.lag() == 0


def test_members_that_begin_there_get_what_is_kept(aged: Aged, tmp_path: Path) -> None:
    """FIRST begins at 0, and the broker corrects it; TIMESTAMP in the middle; LAST gets only what comes later."""
    time_settings = {"consumer.consume_timestamp": words_of(aged.second)}
    for where in (FIRST, TIMESTAMP, LAST):
        (tmp_path / where).mkdir()
    crews = [
        Crew(
            tmp_path / where,  # each has a log of its own, in which it says where it began
            aged.site,
            "numbers_handler:slow_plain_number",
            TOPIC,
            load=False,
            group=f"kept-{where}",
            **{"consumer.consume_from_where": where, "workers.count": 1, **time_settings},
        )
        for where in (FIRST, TIMESTAMP, LAST)
    ]
    with contextlib.ExitStack() as started:
        for crew in crews:
            crew.start()
            started.callback(crew.stop)
        # Whoever looked for the end only now would find it after this message.
        wait_until(lambda: all(map(_is_begun, crews)), what="all first offsets")
        send_numbers(aged.site, TOPIC, range(LAST_NUMBER, LAST_NUMBER + 1))
        wait_until(lambda: all(map(_has_the_last, crews)), what="all committed")
        assert [crew.stop() for crew in crews] == [0, 0, 0]
    first, timestamp, last = crews
    kept = aged.end - aged.first_kept
    numbers = {crew.group: sorted(crew.staged_rows().column("number").to_pylist()) for crew in crews}
    assert len(numbers[first.group]) == kept + 1
    assert numbers[timestamp.group][-AFTER - 1 :] == [*range(BEFORE, BEFORE + AFTER), LAST_NUMBER]
    assert len(numbers[timestamp.group]) <= AFTER + 2
    assert numbers[last.group] == [LAST_NUMBER]
    assert "pull_offset_illegal" in first.child.log.read_text()
