"""Numbered messages as a load: sent at a steady rate by a thread, each until a broker has it, and judged at the end.

The verdict is about numbers: lost is one that a broker has accepted and that no row and no dead letter stands for. A number
that was handled more than once is a duplicate, and its rows tell why: the same record twice (it ran again), two retry
records of one origin (an answer to a send-back was lost), or two records of the producer (an answer to a send was lost).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pyarrow as pa
from harness import KEY, Crew, duplicate_keys, wait_until
from servers import answers

from rocketcrew.client.cluster import Cluster
from rocketcrew.client.operations import Operations, PullStatus, parse_pull
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import RETRIES, Producer
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.errors import RocketcrewError
from rocketcrew.remoting.headers import PullRequest
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, decode_message, walk

IN_FLIGHT_MAX = 32
RETRY_S = 0.2
SEND_TIMEOUT_MS = 1000
PULL_SUBSCRIPTION = 0x4
"""PullSysFlag.java: the request itself says what is wanted."""
VERDICTS: list[str] = []
"""One line each, printed at the end of the session."""


class Load:
    """`with Load(...) as load`: sends the numbers; `finish` waits until every one is stored."""

    def __init__(self, name_server: str, topic: str, numbers: range, per_second: float) -> None:
        self._name_server, self._topic, self._numbers, self._per_second = name_server, topic, numbers, per_second
        self.stored: dict[int, str] = {}
        """By number, the broker that accepted it."""
        self.unanswered = 0
        """Attempts that failed: each may have been stored nevertheless."""
        self._given_up = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._given_up = True
        self._thread.join()

    def finish(self, timeout_s: float) -> None:
        """Wait until everything is stored."""
        self._thread.join(timeout_s)
        if self._failure is not None:
            raise self._failure
        assert len(self.stored) == len(self._numbers), (
            f"{len(self.stored)} of {len(self._numbers)} sent in {timeout_s} s"
        )

    def _run(self) -> None:
        try:
            asyncio.run(self._send_all())
        except BaseException as error:  # noqa: BLE001  told by `finish`
            self._failure = error

    async def _send_all(self) -> None:
        begin = time.monotonic()
        room = asyncio.Semaphore(IN_FLIGHT_MAX)
        producer = Producer(self._name_server, send_timeout_ms=SEND_TIMEOUT_MS)
        async with producer, asyncio.TaskGroup() as tasks:
            for index, number in enumerate(self._numbers):
                await asyncio.sleep(max(0.0, begin + index / self._per_second - time.monotonic()))
                await room.acquire()
                task = tasks.create_task(self._send(producer, number))
                task.add_done_callback(lambda _: room.release())
                if self._given_up:
                    return

    async def _send(self, producer: Producer, number: int) -> None:
        while not self._given_up:
            try:
                result = await producer.send(OutgoingMessage(self._topic, str(number).encode(), keys=f"n{number}"))
            except RocketcrewError:
                self.unanswered += 1 + RETRIES
                await asyncio.sleep(RETRY_S)
            else:
                self.unanswered += result.attempts - 1
                self.stored[number] = result.mq.broker_name
                return


def stored(name_server: str, group: str, topic: str) -> list[StoredMessage]:
    """All records of the topic."""

    async def read(cluster: Cluster) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        for mq in await cluster.queues_to_read(topic):
            found += await records_of(cluster, group, mq)
        return found

    return run_with_cluster(name_server, read)


async def records_of(cluster: Cluster, group: str, mq: MessageQueue) -> list[StoredMessage]:
    operations = Operations(cluster)
    address = await cluster.address_of(mq)
    found: list[StoredMessage] = []
    offset = 0
    while True:
        header = PullRequest(group, mq.topic, mq.queue_id, offset, 32, PULL_SUBSCRIPTION, 0, 1000, 0, "*", "TAG")
        result = parse_pull(await operations.pull(address, header), address)
        if result.status is not PullStatus.FOUND:
            return found
        positions, _ = walk(result.body, 0, len(result.body))
        found += [decode_message(bytes(result.body), position) for position in positions[:-1]]
        offset = result.header.next_begin_offset


@dataclass(frozen=True)
class Verdict:
    """What became of the numbers that a broker accepted."""

    sent: int
    lost: tuple[int, ...]
    ran_again: int
    """Rows of a record that had rows before."""
    retried_twice: int
    """Second retry records of one origin."""
    sent_twice: int
    """Second records of the producer."""
    dead: int
    """Dead letters."""
    wrongly_dead: tuple[int, ...]
    """Dead letters of numbers that are not hopeless."""

    def line(self, name: str) -> str:
        """One line for people: what was sent, lost and repeated, and why it was repeated."""
        duplicates = self.ran_again + self.retried_twice + self.sent_twice
        why = (
            f"{self.sent_twice} stored twice as the producer got no answer; {self.retried_twice} sent back twice for"
            f" the same reason; {self.ran_again} run again, as a killed broker forgot commits"
        )
        counts = f"sent {self.sent}, lost {len(self.lost)}, dead letters {self.dead}, duplicates {duplicates}"
        return f"VERDICT {name}: {counts} ({why})"


def successes(numbers: range) -> set[int]:
    """Those that numbers_handler finishes; the others become dead letters."""
    return {number for number in numbers if number % 1000 != 999}


def judged(numbers: range, rows: pa.Table, dead: Counter[int]) -> Verdict:
    """Compare rows and dead letters (by number) with what was sent."""
    names = (*KEY, "_origin_message_id", "number")
    found = Counter(zip(*(rows.column(name).to_pylist() for name in names), strict=True))
    origins = Counter((number, origin) for *_, origin, number in found)
    by_number = Counter(number for number, _ in origins)
    return Verdict(
        len(numbers),
        tuple(sorted(set(numbers) - by_number.keys() - dead.keys())),
        ran_again=sum(found.values()) - len(found),
        retried_twice=len(found) - len(origins),
        sent_twice=len(origins) - len(by_number),
        dead=dead.total(),
        wrongly_dead=tuple(sorted(dead.keys() & successes(numbers))),
    )


def dead_letters(crew: Crew) -> Counter[int]:
    """How many dead letters there are of each number."""
    if crew.dead_letters() == 0:
        return Counter()
    records = stored(crew.broker.name_server, crew.group, f"%DLQ%{crew.group}")
    return Counter(int(record.body) for record in records)


def wait_until_finished(crew: Crew, numbers: range, timeout_s: float) -> None:
    """Every number has a row or is a dead letter, and everything is committed."""
    hopeless = len(numbers) - len(successes(numbers))

    def finished() -> bool:
        if crew.lag() != 0 or crew.dead_letters() < hopeless:
            return False
        return not judged(numbers, crew.staged_rows(), dead_letters(crew)).lost

    wait_until(lambda: answers(finished), timeout_s, "a row or a dead letter for every number, and the commits")


def verdict(
    name: str, crew: Crew, numbers: range, unanswered: int, timeout_s: float, *, forgets: bool = False,
    recreated: bool = False,
) -> Verdict:  # fmt: skip
    """Wait, stop the crew, and compare: nothing lost, nothing twice in the table, repeats only where an answer was lost.

    `unanswered` sends may have been stored twice. `forgets`: a broker was killed and our queues were opened again from what
    it had saved of our commits; what lies above runs again. `recreated`: the topic was made again, with the same offsets.
    """
    try:
        wait_until_finished(crew, numbers, timeout_s)
    finally:
        status = crew.status()
        code = crew.stop()
        staged = crew.staged_rows()
        found = judged(numbers, staged, dead_letters(crew))
        VERDICTS.append(found.line(name))
    line = found.line(name)
    assert not found.lost, f"{line}; {found.lost[:20]}"
    assert not found.wrongly_dead, f"{line}; {found.wrongly_dead[:20]}"
    assert code == 0
    assert status is not None
    assert status["counters"]["invariant_violations"] == 0
    assert found.ran_again == 0 or forgets, line
    rows = crew.load(recreated=recreated)
    assert set(rows.column("number").to_pylist()) == set(staged.column("number").to_pylist()), line
    assert duplicate_keys(rows, *(["_epoch"] if recreated else [])) == 0, line
    assert found.sent_twice <= unanswered, line
    return found
