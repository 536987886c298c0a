"""One script of sends, failures and restarts, run by Java's DefaultMQPushConsumer and by us; the ends must be equal.

Each consumer has a fresh topic and group with equal queues at one genuine broker, and gets the same messages in the same
queues. Compared are: what the handler saw of every attempt (retry count, topic, queue, length, properties), the committed
offsets and the ends of all queues, and every record of the retry topic and of the dead-letter topic with its properties.
Ids and names that must differ are replaced by what they mean; what else may differ is in `CLIENT_SIDE`, with its reason in
docs/differences-from-java.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import WAIT_S, Crew, patient_producer, wait_until
from load import VERDICTS, stored
from servers import CLIENT_OPTIONS, VERSIONS, Java, Servers, answers

from rocketcrew.cli.watch import Watch
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.remoting.properties import decode_properties
from rocketcrew.remoting.stored import StoredMessage

JavaClasses = Callable[[str], str]

QUEUES = 4
EXPRESSION = "tagA || tagB"
MAX_RECONSUME_TIMES = 2
RULES = (
    "ok:0",
    "later:1",
    "ok:0",
    "throw:2",
    "none:1",
    "level:1:2",
    "level:9:-1",
    "ok:0",
    "later:9",
    "ok:0",
    "level:2:1",
)
"""By number: how the handler fails, and until which retry; see script_handler.py."""
SENDS = (range(60), range(60, 110), range(110, 150), range(150, 180))
BATCHED = range(160, 170)
PADDED_BYTES = 8_000

CLIENT_SIDE = frozenset({"CONSUME_START_TIME", "MIN_OFFSET", "MAX_OFFSET"})
"""What Java's client adds to the properties of a message in memory."""


def rule_of(number: int) -> str:
    return RULES[number % len(RULES)]


def tag_of(number: int) -> str:
    return ("tagA", "tagB", "tagA", "tagC", "tagB", "tagA", "")[number % 7]


def attempts_of(number: int) -> int:
    """How often the handler must see it: not at all when the filter drops it."""
    if tag_of(number) not in ("tagA", "tagB"):
        return 0
    _, until, *level = rule_of(number).split(":")
    return 1 if level == ["-1"] else min(int(until), MAX_RECONSUME_TIMES) + 1


def is_hopeless(number: int) -> bool:
    return int(rule_of(number).split(":")[1]) > MAX_RECONSUME_TIMES and attempts_of(number) > 0


# The two consumers.


class Subject(Protocol):
    """A consumer that the script starts, stops and kills."""

    group: str
    topic: str

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def lines(self) -> list[str]: ...


@dataclass
class JavaSubject:
    """Scripted.java in a process of its own."""

    servers: Servers
    folder: Path
    classes: str
    topic: str = "script_java"
    group: str = "script_java_group"
    runs: list[Java] = field(default_factory=list[Java])

    def start(self) -> None:
        words = ["Scripted", self.servers.name_server, self.group, self.topic, EXPRESSION]
        fast = ("-Drocketmq.client.rebalance.waitInterval=1000",)
        java = Java(f"scripted-{len(self.runs)}", self.folder, self.classes, words, (*CLIENT_OPTIONS, *fast))
        self.runs.append(java)
        java.wait_for(lambda: "STARTED" in java.lines(), "start")

    def stop(self) -> None:
        self.runs[-1].finish()

    def kill(self) -> None:
        os.kill(self.runs[-1].pid, 9)
        self.runs[-1].stop()

    def lines(self) -> list[str]:
        return [line for run in self.runs for line in run.lines() if line.startswith("SEEN\t")]


class OurSubject:
    """A crew with script_handler.py."""

    def __init__(self, servers: Servers, folder: Path) -> None:
        self.topic, self.group = "script_ours", "script_ours_group"
        self._log = folder / "seen.log"
        self.crew = Crew(
            folder, servers, "script_handler:scripted", f"{self.topic}:{EXPRESSION}", load=False, group=self.group,
            **{"consumer.max_reconsume_times": MAX_RECONSUME_TIMES, "consumer.dead_letter_errors": False},
        )  # fmt: skip

    def start(self) -> None:
        os.environ["SCRIPT_LOG"] = str(self._log)
        self.crew.start()

    def stop(self) -> None:
        assert self.crew.stop() == 0

    def kill(self) -> None:
        self.crew.kill()

    def lines(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []


@contextmanager
def both(servers: Servers, folder: Path, classes: str) -> Iterator[tuple[JavaSubject, OurSubject]]:
    """Both consumers, with nothing of them left at the end."""
    java, ours = JavaSubject(servers, folder, classes), OurSubject(servers, folder)
    try:
        yield java, ours
    finally:
        for run in java.runs:
            run.stop()
        if ours.crew.starts:
            ours.crew.stop()


# The script.


def send(servers: Servers, topic: str, numbers: range) -> None:
    """Send these numbers, each to the queue that it has in every run."""

    def message(number: int) -> OutgoingMessage:
        body = f"{number}".encode()
        return OutgoingMessage(
            topic, body.ljust(PADDED_BYTES) if number % 9 == 4 else body, tags=tag_of(number), keys=f"n{number}",
            delay_level=1 if number % 13 == 5 and number not in BATCHED else 0,
            properties={"number": str(number), "rule": rule_of(number), "color": "blue"},
        )  # fmt: skip

    with patient_producer(servers) as producer:
        for number in numbers:
            if number not in BATCHED:
                producer.send(message(number), selector=lambda queues, n=number: queues[n % len(queues)])
        batch = [message(number) for number in numbers if number in BATCHED]
        if batch:
            producer.send_batch(batch, selector=lambda queues: queues[0])


def wait_until_settled(servers: Servers, subject: Subject, sent: int) -> None:
    """The first `sent` numbers are in the topic, also those that were delayed and that no filter lets through; every attempt
    was made, dead letters are dead, and everything is committed."""
    attempts = sum(attempts_of(number) for number in range(sent))
    dead = sum(is_hopeless(number) for number in range(sent))
    with Watch(servers.name_server) as watch:

        def settled() -> bool:
            if len(subject.lines()) < attempts or watch.stored(subject.group, subject.topic) < sent:
                return False
            if watch.stored(subject.group, f"%DLQ%{subject.group}") < dead:
                return False
            return all(row.lag == 0 for row in watch.lag(subject.group, [subject.topic, f"%RETRY%{subject.group}"]))

        wait_until(lambda: answers(settled), WAIT_S, f"{attempts} attempts and {dead} dead letters of {subject.group}")


def play(servers: Servers, subject: Subject) -> Iterator[int]:
    """The script. Where it goes on when everything so far is settled, it gives how many messages were sent so far."""
    servers.create_topic(subject.topic, QUEUES)
    send(servers, subject.topic, SENDS[0])
    subject.start()  # a new group finds a backlog
    yield SENDS[0].stop
    send(servers, subject.topic, SENDS[1])  # while it runs
    yield SENDS[1].stop
    subject.stop()
    send(servers, subject.topic, SENDS[2])  # while it is away
    subject.start()
    yield SENDS[2].stop
    subject.kill()
    send(servers, subject.topic, SENDS[3])  # while it is dead
    subject.start()
    yield SENDS[3].stop
    subject.stop()


def play_all(servers: Servers, subjects: Sequence[Subject]) -> None:
    """All play the script part by part: one works while another is waited for."""
    for parts in zip(*(play(servers, subject) for subject in subjects), strict=True):
        for subject, sent in zip(subjects, parts, strict=True):
            wait_until_settled(servers, subject, sent)


# What is compared.

Properties = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class End:
    """What is left when the script is over; names and ids by their meaning."""

    attempts: tuple[tuple[str, ...], ...]
    """(number, retries, topic, queue of the original topic, length, properties) as the handler saw them, sorted."""
    offsets: Mapping[tuple[str, int], tuple[int, int | None]]
    """(end, committed) by topic and queue."""
    records: Mapping[str, tuple[tuple[object, ...], ...]]
    """All records of the retry and the dead-letter topic: (number, retries, length, flags, properties), sorted."""


def end_of(servers: Servers, subject: Subject) -> End:
    names = {
        subject.topic: "TOPIC",
        f"%RETRY%{subject.group}": "RETRY",
        f"%DLQ%{subject.group}": "DLQ",
        subject.group: "GROUP",
    }
    for record in stored(servers.name_server, subject.group, subject.topic):
        # As delivered: a delayed message is stored anew when it is due, and 4.9 gives those of a batch one id.
        number = record.properties["number"]
        names[record.offset_message_id] = f"offset id of {number}"
        names[record.properties["UNIQ_KEY"] + number] = "its unique id"
    attempts: list[tuple[str, ...]] = []
    for line in subject.lines():
        _, number, times, topic, queue, length, text = line.split("\t")
        properties = meant(decode_properties(text.encode()), names)
        queue = queue if times == "0" else ""
        attempts.append((number, times, names[topic], queue, length, *(f"{key}={value}" for key, value in properties)))
    with Watch(servers.name_server) as watch:
        topics = [subject.topic, f"%RETRY%{subject.group}", f"%DLQ%{subject.group}"]
        offsets = {(names[row.mq.topic], row.mq.queue_id): (row.end, row.committed)
                   for row in watch.lag(subject.group, topics)}  # fmt: skip
    records = {
        names[topic]: tuple(
            sorted(recorded(record, names) for record in stored(servers.name_server, subject.group, topic))
        )
        for topic in topics[1:]
    }
    return End(tuple(sorted(attempts)), offsets, records)


def meant(properties: Mapping[str, str], names: Mapping[str, str]) -> Properties:
    found = {key: names.get(value, value) for key, value in properties.items() if key not in CLIENT_SIDE}
    unique_id = found["UNIQ_KEY"]
    found["UNIQ_KEY"] = names.get(unique_id + properties["number"], unique_id)
    return tuple(sorted(found.items()))


def recorded(record: StoredMessage, names: Mapping[str, str]) -> tuple[object, ...]:
    properties = record.properties
    return (int(properties["number"]), record.reconsume_times, len(record.body), record.sysflag, record.flag,
            meant(properties, names))  # fmt: skip


def differing(ours: Iterable[object], javas: Iterable[object]) -> set[object]:
    """What only one of them has."""
    return set(ours) ^ set(javas)


@pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
def test_java_and_we_end_the_script_alike(servers: Servers, tmp_path: Path, java_classes: JavaClasses) -> None:
    with both(servers, tmp_path, java_classes(servers.kind.version)) as (java, ours):
        play_all(servers, (java, ours))
        ends = [end_of(servers, subject) for subject in (java, ours)]
    numbers = range(SENDS[-1].stop)
    assert len(ends[0].attempts) == sum(attempts_of(number) for number in numbers), "Java did not play the script"
    assert ends[1].offsets == ends[0].offsets
    assert differing(ends[1].attempts, ends[0].attempts) == set()
    for topic, records in ends[1].records.items():
        assert differing(records, ends[0].records[topic]) == set(), topic
    assert ends[1] == ends[0]
    VERDICTS.append(
        f"VERDICT differential {servers.kind.version}: {len(numbers)} messages, {len(ends[0].attempts)} attempts,"
        f" {len(ends[0].records['RETRY'])} retry records and {len(ends[0].records['DLQ'])} dead letters alike"
    )
