"""Our producer and our supervisor against genuine servers: nothing lost, nothing twice, everything committed.

Numbered messages; `numbers_handler` fails some at first (two retries) and some always (dead letters), so every run goes
through send-back, the broker's delay, the retry topic and the dead-letter topic.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import (
    SEND_TIMEOUT_MS,
    WAIT_S,
    Crew,
    duplicate_keys,
    patient_producer,
    send_numbers,
    stored_messages,
    wait_for_end,
    wait_until,
)
from servers import VERSIONS, Kind, Servers, answers

from rocketcrew.cli.watch import Watch
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.command import Command, Serialization
from rocketcrew.remoting.compression import Compression

BINARY = [Kind(version, binary_headers=True) for version in ("5.5.0", "4.9.7")]
ON_BOTH = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
ON_ALL = pytest.mark.parametrize("servers", [*VERSIONS, *BINARY], ids=str, indirect=True, scope="session")
ON_OLD_BINARY = pytest.mark.parametrize("servers", BINARY[1:], ids=str, indirect=True, scope="session")
ON_BINARY = pytest.mark.parametrize("servers", BINARY, ids=str, indirect=True, scope="session")

QUEUES = 4
MESSAGES = 2_000
PART = MESSAGES // 5
PADDED_BYTES = 8_000
BATCH = 50
HOPELESS = {number for number in range(MESSAGES) if number % 1000 == 999}
"""Those that always fail."""
RETRIES_MAX = 3

CrewMaker = Callable[..., Crew]


@pytest.fixture
def new_crew(tmp_path: Path, servers: Servers, request: pytest.FixtureRequest) -> Iterator[CrewMaker]:
    """Crews of this test's own topic and group, stopped at its end."""
    name = request.node.name.partition("[")[0]
    servers.create_topic(name, QUEUES)
    made: list[Crew] = []

    def make(handler: str = "number", slot: int = 0, **settings: object) -> Crew:
        crew = Crew(tmp_path, servers, f"numbers_handler:{handler}", name, load=False, slot=slot, group=f"{name}-group",
                    **{"consumer.max_reconsume_times": RETRIES_MAX, **settings})  # fmt: skip
        crew.start()
        made.append(crew)
        return crew

    yield make
    for crew in made:
        crew.stop()


def send_every_kind(servers: Servers, topic: str) -> None:
    """A fifth of the numbers each: as they are, compressed in three ways, in batches."""
    send_numbers(servers, topic, range(PART))
    for index, kind in enumerate((Compression.ZLIB, Compression.LZ4, Compression.ZSTD), 1):
        with patient_producer(servers, compression=kind) as producer:
            producer.send_many(
                OutgoingMessage(topic, str(number).encode().ljust(PADDED_BYTES), keys=f"n{number}")
                for number in range(index * PART, (index + 1) * PART)
            )
    with patient_producer(servers) as producer:
        for start in range(4 * PART, MESSAGES, BATCH):
            numbers = range(start, start + BATCH)
            producer.send_batch([OutgoingMessage(topic, str(number).encode()) for number in numbers])


def dead_letters(crew: Crew) -> Counter[int]:
    """How many there are of each number."""
    if crew.dead_letters() == 0:
        return Counter()
    found = stored_messages(crew.broker.name_server, f"%DLQ%{crew.group}")
    return Counter(int(message.decompressed_body()) for message in found)


def wait_until_finished(crew: Crew) -> None:
    """Each number has a row, the hopeless ones are dead letters, and everything is committed. A count of retries would not
    do: one whose send-back was made twice stands for another that is still to come."""
    wanted = set(range(MESSAGES)) - HOPELESS

    def finished() -> bool:
        rows = set(crew.staged_rows().column("number").to_pylist())
        return wanted <= rows and dead_letters(crew).keys() >= HOPELESS and crew.lag() == 0

    wait_until(lambda: answers(finished), WAIT_S, "all messages finished")


def verdict(crew: Crew, rows_of: Callable[[Crew], pa.Table]) -> set[int]:
    """Stop; what was written is what was sent, and the broker's committed offsets are its ends. How many dead letters
    there are of a number."""
    status = crew.status()
    assert status is not None
    assert status["counters"]["invariant_violations"] == 0
    assert crew.stop() == 0
    rows = rows_of(crew)
    attempts = dict(zip(rows.column("number").to_pylist(), rows.column("attempt").to_pylist(), strict=True))
    wanted = {number: 2 * (number % 50 == 7) for number in range(MESSAGES) if number not in HOPELESS}
    lost = sorted(wanted.keys() - attempts.keys())
    assert not lost, f"lost: {lost[:20]}"
    assert attempts == wanted
    assert duplicate_keys(rows) == 0
    dead = dead_letters(crew)
    assert dead.keys() == HOPELESS
    with Watch(crew.broker.name_server) as watch:
        ends = {row.mq: row.end for row in watch.lag(crew.group, [crew.topic, f"%RETRY%{crew.group}"]) if row.end}
        offsets = {row.mq: row.committed for row in watch.lag(crew.group, [crew.topic, f"%RETRY%{crew.group}"])}
    assert {mq: offsets[mq] for mq in ends} == ends
    assert sum(end for mq, end in ends.items() if mq.topic == crew.topic) == MESSAGES
    return set(dead.values())


@ON_ALL
def test_every_kind_of_message_is_consumed_once(servers: Servers, new_crew: CrewMaker) -> None:
    crew = new_crew()
    send_every_kind(servers, crew.topic)
    wait_until_finished(crew)
    # Before any loader drops what it knows: nothing ran twice.
    assert verdict(crew, Crew.staged_rows) == {1}


@ON_BINARY
def test_what_binary_servers_answer_in(servers: Servers) -> None:
    """4.9 as it is asked, 5.x always in its own way: so each frame says for itself how it is to be read."""
    old_era = servers.kind.version.startswith("4.")
    codes = {servers.name_server: RequestCode.GET_BROKER_CLUSTER_INFO, servers.address: RequestCode.GET_BROKER_CONFIG}

    async def ask() -> None:
        async with open_cluster(servers.name_server) as cluster:
            for address, code in codes.items():
                for asked in Serialization:
                    command = Command(code, serialization=asked)
                    answer = await cluster.remoting.request(address, command, timeout_ms=SEND_TIMEOUT_MS)
                    wanted = asked if old_era else Serialization.ROCKETMQ
                    assert (answer.code, answer.serialization) == (0, wanted), address

    asyncio.run(ask())


@ON_OLD_BINARY
def test_notices_in_binary_are_understood(servers: Servers, new_crew: CrewMaker) -> None:
    """Requests of the broker's own have the headers that it prefers; only they make us look again in time."""
    settings: dict[str, object] = {"consumer.rebalance_interval_ms": 60_000}
    one = new_crew(**settings)
    wait_until(lambda: len(one.assigned()) == QUEUES, what="all queues for the first member")
    two = new_crew(slot=1, **settings)
    wait_until(lambda: len(one.assigned()) == len(two.assigned()) == QUEUES // 2, what="an even split")
    assert two.stop() == 0
    wait_until(lambda: len(one.assigned()) == QUEUES, what="all queues for the member that stays")


@ON_BOTH
def test_a_killed_supervisor_loses_nothing(servers: Servers, new_crew: CrewMaker) -> None:
    crew = new_crew("slow_number")
    send_every_kind(servers, crew.topic)
    wait_until(lambda: crew.counter("done_messages") > MESSAGES // 4, what="the first quarter")
    workers = crew.workers()
    crew.kill()
    wait_for_end(workers, "the workers' end")
    crew.start()
    wait_until_finished(crew)
    verdict(crew, Crew.load)  # not of each one dead letter: a send-back that the killed one did not note is made again
