"""Real processes for system tests: a broker, a supervisor, numbered messages, and the table that must come out.

Everything waits for events with a deadline; nothing sleeps for a fixed time in the hope that something happened. Every
process is a child with a parent-death signal and is stopped by its own handle.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.ipc
import pytest
from ports import free_ports
from waiting import came_true

from rocketcrew.cli.children import Child, listens
from rocketcrew.cli.watch import Watch
from rocketcrew.client.access import Access, access_to
from rocketcrew.client.admin import Admin
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations, PullStatus
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.sync import SyncProducer
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.remoting.errors import RocketcrewError, UsageError
from rocketcrew.remoting.names import TOOLS_GROUP
from rocketcrew.remoting.stored import StoredMessage, decode_messages
from rocketcrew.source.searching import look_at
from rocketcrew.spark.arrow_writer import ArrowWriter
from rocketcrew.spark.loader import Loader
from rocketcrew.spark.plan import PlanBounds, Trigger
from rocketcrew.spark.staging import Staging
from rocketcrew.spark.targets.local_folder import LocalFolder
from rocketcrew.spark.targets.parquet import ParquetTarget
from rocketcrew.supervisor.control import ask

HANDLERS = Path(__file__).parent
KEY = ["_group", "_topic", "_broker", "_queue_id", "_offset", "_seq"]
WAIT_S = 180.0
"""Bounds what is waited for, on a machine that is several times slower and does other things too."""
PATIENCE_MS = 240_000
SEND_TIMEOUT_MS = 30_000
"""Of producers whose sends are no test by themselves: a broker's first answers on a busy machine take seconds."""


def wait_until(condition: Callable[[], bool], timeout_s: float = WAIT_S, what: str = "the condition") -> None:
    """Poll until true; fails with what was waited for."""
    assert came_true(condition, timeout_s), f"{what} did not come true within {timeout_s} s"


def log_entries(log: Path, event: str) -> list[dict[str, Any]]:
    """The entries of that event so far, of whole lines. A thread writes the log of a running supervisor: an entry may be a
    moment behind all else that can be seen of what it tells, so wait for it."""
    *lines, _begun = log.read_bytes().split(b"\n")  # bytes: what is being written may end within a character
    found = [json.loads(line) for line in lines if line.startswith(b"{") and f'"{event}"'.encode() in line]
    return [entry for entry in found if entry.get("event") == event]


class Cluster(Protocol):
    """What a crew and a producer need to know of the servers: embedded or genuine ones."""

    @property
    def name_server(self) -> str: ...


def target_of(cluster: Cluster) -> Access | str:
    """What clients take: the address, or where servers have an `access`, all that it needs to be let in."""
    return getattr(cluster, "access", None) or cluster.name_server


class Broker:
    """An embedded broker process on free ports; `kill` and `start` keep its folder and ports."""

    def __init__(
        self, folder: Path, delay_levels: str = "100ms 200ms 200ms 200ms 300ms 300ms", name: str = "broker-a"
    ) -> None:
        self.folder, self.name = folder, name
        self.name_server_port, self.port = free_ports(2)
        self.delay_levels = delay_levels
        self.starts = 0
        self.start()

    @property
    def name_server(self) -> str:
        return f"127.0.0.1:{self.name_server_port}"

    def start(self) -> None:
        self.starts += 1
        self.child = Child("broker", [
            "broker", "--set", f"broker.name={self.name}",
            "--set", f"broker.name_server_port={self.name_server_port}", "--set", f"broker.port={self.port}",
            "--set", f"broker.dir={self.folder / 'broker'}", "--set", f"broker.message_delay_level={self.delay_levels}",
        ], log=self.folder / f"broker-{self.starts}.log")  # fmt: skip
        self.child.wait_for(lambda: listens(self.name_server_port) and listens(self.port), WAIT_S, "start")

    def kill(self) -> None:
        os.kill(self.child.pid, signal.SIGKILL)
        self.child.stop(WAIT_S)

    def stop(self) -> None:
        self.child.stop(WAIT_S)


def one_queue(broker: Broker, topic: str) -> None:
    """The topic has one queue, so that everything comes after what waits there."""

    async def make() -> None:
        async with open_cluster(broker.name_server) as cluster:
            await Admin(cluster).create_topic_everywhere(TopicConfig(topic, 1, 1))

    asyncio.run(make())


def rows_in(table: Path) -> pa.Table:
    """All rows of a folder's batches."""
    files = [str(path) for path in table.glob("batch_id=*/*.parquet")]
    return ds.dataset(files).to_table() if files else pa.table({name: [] for name in [*KEY, "number"]})


class Crew:
    """A supervisor process; `kill` and `start` keep its state folder."""

    def __init__(
        self, folder: Path, broker: Cluster, handler: str, topic: str, *, load: bool, slot: int = 0, group: str = "crew",
        **settings: object,
    ) -> None:  # fmt: skip
        self.folder, self.broker, self.handler, self.topic = folder, broker, handler, topic
        self.group = group
        self.slot = folder / "state" / self.group / str(slot)
        self.table = folder / "table"
        self.settings: dict[str, object] = {
            "consumer.consume_from_where": "CONSUME_FROM_FIRST_OFFSET",
            "consumer.rebalance_interval_ms": 1000,
            "consumer.persist_consumer_offset_interval_ms": 1000,
            "supervisor.data_dir": folder / "state",
            "supervisor.send_back_retry_ms": 500,
            "cluster.poll_name_server_interval_ms": 1000,
            "cluster.connect_timeout_ms": 30_000,  # a start fails where none is made; who is killed refuses at once
            "spark.load": str(load).lower(),
            "spark.target": self.table,
            "spark.max_wait_ms": 1000,
            "spark.driver_memory": "700m",
            "workers.count": 2,
            **settings,
        }
        self.cwd = HANDLERS
        self.flags: list[str] = []
        self.starts = 0

    def start(self) -> None:
        """Returns when every worker is ready: a supervisor begins with the first."""
        wanted = int(str(self.settings["workers.count"]))
        self.begin().wait_for(lambda: len(self.workers()) >= wanted, WAIT_S, "start its workers")

    def begin(self) -> Child:
        """Start the process, and do not wait for it."""
        self.starts += 1
        words = ["run", self.handler, "--topic", self.topic, "--group", self.group, "-n", self.broker.name_server]
        words += self.flags
        for key, value in self.settings.items():
            words += ["--set", f"{key}={value}"]
        self.child = Child(
            "supervisor", words, log=self.folder / f"supervisor-{self.slot.name}-{self.starts}.log", cwd=self.cwd
        )
        return self.child

    def status(self) -> dict[str, Any] | None:
        try:
            return asyncio.run(ask(self.slot, "status"))
        except UsageError:
            return None

    def assigned(self) -> set[int]:
        """Queues of the topic that our member has now."""
        found = (self.status() or {"queues": []})["queues"]
        return {each["queue_id"] for each in found if each["topic"] == self.topic and each["state"] == "assigned"}

    def staff(self) -> dict[str, Any]:
        """The status's counts of workers that come and go."""
        status = self.status()
        assert status is not None
        found: dict[str, Any] = status["staff"]
        return found

    def counter(self, name: str) -> int:
        status = self.status()
        return int(status["counters"][name]) if status else 0

    def logged(self, event: str) -> list[dict[str, Any]]:
        """What the log of the run that is, or was last, has of that event: `log_entries`."""
        return log_entries(self.child.log, event)

    def kill(self) -> None:
        os.kill(self.child.pid, signal.SIGKILL)
        self.child.stop(WAIT_S)

    def stop(self) -> int:
        """TERM; the exit code."""
        return self.child.stop(WAIT_S)

    def workers(self) -> list[int]:
        status = self.status()
        return [worker["pid"] for worker in status["workers"] if worker["state"] == "ready"] if status else []

    def forkserver(self) -> int:
        """The parent of the workers."""
        return psutil.Process(self.workers()[0]).ppid()

    def loader(self) -> int:
        status = self.status()
        return int(status["loader"]["pid"]) if status else 0

    def staged_rows(self) -> pa.Table:
        """All rows of sealed segments, as a loader would read them."""
        tables = [
            pyarrow.ipc.open_stream(path.read_bytes()).read_all()
            for path in sorted((self.slot / "segments" / "ready").glob("*.arrows"))
        ]
        return pa.concat_tables(tables) if tables else pa.table({name: [] for name in [*KEY, "number"]})

    def loaded_rows(self) -> pa.Table:
        """All rows of the table."""
        return rows_in(self.table)

    def load(self, *, leave_gaps: bool = False, recreated: bool = False) -> pa.Table:
        """Load every sealed segment into the table as the loader does, without a JVM; all rows of the table.

        `recreated`: a topic that was made again is a new epoch, as with `spark.on_recreated = epoch`.
        """
        with ThreadPoolExecutor(2) as threads:
            staging = Staging(self.slot / "segments")
            staging.lock()
            loader = Loader(
                staging, ParquetTarget(LocalFolder(self.table, threads), ArrowWriter()), Trigger(1, 1, 0),
                PlanBounds(10**9, 1 << 40), threads=threads, cores=1, new_id=lambda batch: f"test-{batch}-{time.time_ns()}",
                leave_gaps=leave_gaps, epoch_on_recreated=recreated,
            )  # fmt: skip
            loader.recover()
            while loader.step(int(time.time() * 1000), at_once=True) is not None or loader.waiting.segments:
                pass
            staging.unlock()
        return self.loaded_rows()

    def retries(self) -> int:
        """How often a message has come back: by way of the retry topic, and here where no broker took it; -1 while the broker
        is away."""
        try:
            return self._stored("RETRY") + self.counter("local_retries")
        except RocketcrewError:
            return -1

    def _stored(self, kind: str) -> int:
        """How many messages the group's topic of that kind has ever got."""
        with Watch(target_of(self.broker)) as watch:
            return watch.stored(self.group, f"%{kind}%{self.group}")

    def lag(self) -> int:
        """Messages of the topic and of the retry topic that are not committed yet; -1 while the broker is away."""
        try:
            with Watch(target_of(self.broker)) as watch:
                return sum(row.lag for row in watch.lag(self.group, [self.topic, f"%RETRY%{self.group}"]))
        except RocketcrewError:
            return -1

    def sent_back_lag(self) -> int:
        """As `lag`, with what was sent back and waits for its delay: that is in no topic of the group yet; -1 too, also while
        the supervisor does not answer."""
        try:  # in this order: what moves in between is counted twice, never left out
            came_back = self._stored("RETRY") + self._stored("DLQ")
        except RocketcrewError:
            return -1
        lag = self.lag()
        status = self.status()
        if lag < 0 or status is None:
            return -1
        return lag + max(0, int(status["counters"]["sent_back_messages"]) - came_back)

    def dead_letters(self) -> int:
        """How many there are; -1 while the broker is away."""
        try:
            return self._stored("DLQ")
        except RocketcrewError:
            return -1


def say(verdict: str) -> None:
    """The one line of a fault test; the soak run (pytest -s) keeps it."""
    print(f"VERDICT good: {verdict}")  # noqa: T201


def patient(patch: pytest.MonkeyPatch) -> None:
    """For what reads its settings in this test or is started by it: an embedded broker in this process may answer late, and a
    worker boot slowly."""
    for name in ("CLUSTER_REQUEST", "CLUSTER_CONNECT", "WORKERS_BOOT"):
        patch.setenv(f"ROCKETCREW_{name}_TIMEOUT_MS", str(PATIENCE_MS))


def patient_producer(cluster: Cluster, group: str = "", **options: Any) -> SyncProducer:
    """A producer for messages that must get there, whatever else the machine does."""
    named = {"group": group} if group else {}
    # A send asks for the route first, whose time limits are those of the access.
    patient = replace(
        access_to(target_of(cluster)), request_timeout_ms=SEND_TIMEOUT_MS, connect_timeout_ms=SEND_TIMEOUT_MS
    )
    return SyncProducer(patient, send_timeout_ms=SEND_TIMEOUT_MS, **named, **options)


def send_numbers(broker: Cluster, topic: str, numbers: range) -> None:
    """One message for each number, its body the number in decimal; keys too."""
    with patient_producer(broker) as producer:
        producer.send_many(OutgoingMessage(topic, str(number).encode(), keys=f"n{number}") for number in numbers)


def stored_messages(name_server: str, topic: str) -> list[StoredMessage]:
    """All messages that the topic has."""

    async def read() -> list[StoredMessage]:
        found: list[StoredMessage] = []
        async with open_cluster(name_server) as cluster:
            operations = Operations(cluster)
            for mq in await cluster.queues_to_read(topic, refresh=True):
                address, offset = await cluster.address_of(mq), 0
                while offset < await operations.max_offset(mq):
                    result = await look_at(operations, address, [TOOLS_GROUP], mq, offset, 32)
                    if result.status is PullStatus.FOUND:
                        found += decode_messages(bytes(result.body))
                    offset = result.header.next_begin_offset
        return found

    return asyncio.run(read())


def duplicate_keys(rows: pa.Table, *more: str) -> int:
    """Rows whose key, with these columns too, is there more than once."""
    keys = Counter(zip(*(rows.column(name).to_pylist() for name in (*KEY, *more)), strict=True))
    return sum(count - 1 for count in keys.values())


def processes(pids: Iterable[int]) -> list[psutil.Process]:
    """Those of them that there are, each known by its time of creation too: the system gives a number again."""
    found: list[psutil.Process] = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def runs(process: psutil.Process) -> bool:
    """It is still there, and no zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for_end(below: Iterable[int | psutil.Process], what: str) -> None:
    """Until none of them runs. Numbers are looked up now: where time passes in between, the processes are to be given."""
    numbers = [each for each in below if isinstance(each, int)]
    left = [*processes(numbers), *(each for each in below if isinstance(each, psutil.Process))]
    wait_until(lambda: not any(map(runs, left)), what=what)
