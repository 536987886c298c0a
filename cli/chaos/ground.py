"""Where `rocketcrew chaos` happens: its own broker or a configured cluster, its own supervisor, and numbered messages.

Everything is in one folder, one topic and one group that it makes for itself. Processes are ended by handle, or by a number
that was found below the own supervisor a moment before; nothing else is ever signalled.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from ...client.access import Access
from ...client.admin import Admin
from ...client.opening import new_cluster
from ...client.operations import Operations
from ...client.outgoing import OutgoingMessage
from ...client.producer import Producer
from ...conf.segment_format import LOADER_STATUS_FILE, READY_DIR
from ...conf.settings import Settings
from ...conf.sources import without_settings
from ...remoting.admin_bodies import TopicConfig
from ...remoting.codes import ResponseCode
from ...remoting.errors import BrokerError, RocketcrewError, UsageError
from ...remoting.queues import MessageQueue
from ...spark.status import LoaderStatus, read_status
from ...supervisor.control import ask
from ...supervisor.member.access import access_of
from ..asking import committed_offsets
from ..children import Child, ChildError, free_ports
from ..watch import lag_of
from .handler import TRACE
from .verdict import Line, parse, standing

QUEUES: Final = 4
KEYS: Final = 16
SPECIAL: Final = 1_000_000_000
"""Numbers of messages that are told to go wrong begin here."""
CHUNK_MESSAGES_MAX: Final = 64
CHUNKS_IN_FLIGHT: Final = 2
HARD_LIMIT_MS: Final = 5_000
DELAY_LEVELS: Final = "100ms 200ms 200ms 200ms 300ms 300ms 300ms 300ms"
"""The embedded broker's: retries come at once, what is looked at is whether they come."""
START_S: Final = 60.0
STOP_S: Final = 60.0
POLL_S: Final = 0.02
FEED_EVERY_S: Final = 0.02
REFUSED_PAUSE_S: Final = 0.2
SEND_TIMEOUT_MS: Final = 1_000
SENDS_AT_ONCE_MAX: Final = 256
AHEAD_MAX: Final = 1_000


class Ground:
    """One run's processes and messages. Belongs to one event loop."""

    def __init__(
        self, settings: Settings, folder: Path, name: str, *, embedded: bool, order: str, workers: int,
        more: Mapping[str, object],
    ) -> None:  # fmt: skip
        """`name` is that of topic and group; `more` are settings of the supervisor beside the usual."""
        self.folder, self.name, self.order, self.workers_wanted = folder, name, order, workers
        self.broker: Child | None = None
        self.supervisor: Child | None = None
        self.sent: set[int] = set()
        self.uncertain: set[int] = set()
        self.meant_to_die: set[int] = set()
        self.violations = 0
        self.next_number = 0
        self.feeding_over = asyncio.Event()
        self._more = more
        self._env = without_settings(os.environ)  # a variable would override the file that they get
        self._starts = 0
        self._special = SPECIAL
        self._trace = TraceReader(folder / TRACE)
        self._ports = free_ports(2)
        if embedded:
            from ..embedded import on_own_broker  # a configured cluster needs none of it

            settings = on_own_broker(settings, (f"127.0.0.1:{self._ports[0]}",), None)
            cluster = dataclasses.replace(settings.cluster, namespace="", namespace_v2="")
            settings = dataclasses.replace(settings, cluster=cluster)
        self._settings = settings
        self.embedded = embedded
        self.access: Access = access_of(settings)
        self.topic, self.group = self.access.wrap(name), self.access.wrap(name)

    # The processes.

    async def open(self) -> None:
        """Broker (where it is ours), topic, producer, supervisor."""
        if self.embedded:
            await self.start_broker()
        access = dataclasses.replace(self.access, poll_interval_ms=1000)
        self._cluster = new_cluster(access)
        self._operations = Operations(self._cluster)
        self._admin = Admin(self._cluster)
        await self._admin.create_topic_everywhere(TopicConfig(self.topic, QUEUES, QUEUES))
        self._producer = Producer(access, "rocketcrew-chaos", send_timeout_ms=SEND_TIMEOUT_MS, retries=0)
        self._producer.start()
        await self.start_supervisor()

    async def start_broker(self) -> None:
        """The embedded broker, on the ports and the folder that it had."""
        name_server_port, port = self._ports
        words = ["broker", "--json", "--name-server-port", str(name_server_port), "--port", str(port)]
        words += ["--dir", str(self.folder / "broker"), "--delay-levels", DELAY_LEVELS, "--host", "127.0.0.1"]
        self.broker = Child(
            "broker", words, log=self.folder / "broker.log", cwd=self.folder, announces=True, env=self._env
        )
        await asyncio.to_thread(self.broker.announcement, START_S)

    async def start_supervisor(self) -> None:
        """The supervisor, on the state that it left; returns when it answers."""
        self._starts += 1
        file = self.folder / "cluster.toml"
        _write_private(file, cluster_file(self._settings))
        words = [
            "run",
            "rocketcrew.cli.chaos.handler:numbered",
            "--topic",
            self.name,
            "--group",
            self.name,
            "-c",
            str(file),
        ]
        if self._settings.cluster.name_servers:
            words += ["-n", ";".join(self._settings.cluster.name_servers)]
        for key, value in {**self._usual(), **self._more}.items():
            words += ["--set", f"{key}={value}"]
        self.supervisor = Child(
            "supervisor", words, log=self.folder / f"supervisor-{self._starts}.log", cwd=self.folder, env=self._env
        )
        await self.until(self._answers, START_S, "the supervisor to start")

    def _usual(self) -> dict[str, object]:
        return {
            "consumer.order": self.order,
            "consumer.consume_from_where": "CONSUME_FROM_FIRST_OFFSET",
            "consumer.rebalance_interval_ms": 1000,
            "consumer.persist_consumer_offset_interval_ms": 1000,
            "consumer.suspend_current_queue_time_ms": 100,
            "workers.count": self.workers_wanted,
            "workers.chunk_messages_max": CHUNK_MESSAGES_MAX,
            "workers.chunks_in_flight": CHUNKS_IN_FLIGHT,
            "workers.hard_time_limit_ms": HARD_LIMIT_MS,
            "supervisor.data_dir": self.folder / "state",
            "supervisor.send_back_retry_ms": 500,
            "cluster.poll_name_server_interval_ms": 1000,
            "spark.load": "false",
            "spark.target": self.folder / "table",
            "log.format": "json",
        }

    async def _answers(self) -> bool:
        assert self.supervisor is not None
        self.supervisor.check()
        return await self.status() is not None

    async def status(self) -> dict[str, Any] | None:
        """The supervisor's picture of itself; None while it does not answer."""
        try:
            return await ask(self.folder / "state" / self.group / "0", "status")
        except UsageError:
            return None

    async def worker_pids(self) -> list[int]:
        """Its workers that are ready."""
        status = await self.status()
        return [worker["pid"] for worker in status["workers"] if worker["state"] == "ready"] if status else []

    def signal_below(self, pid: int, number: signal.Signals) -> bool:
        """Signal a process of the supervisor's; False when it is none (any more)."""
        assert self.supervisor is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if any(parent.pid == self.supervisor.pid for parent in process.parents()):
                process.send_signal(number)
                return True
        return False

    def signal_supervisor(self, number: signal.Signals) -> None:
        """Signal our own child."""
        assert self.supervisor is not None
        assert self.supervisor.poll() is None
        os.kill(self.supervisor.pid, number)

    async def until(self, condition: Callable[[], bool | Awaitable[bool]], timeout_s: float, what: str) -> float:
        """Wait until true; the seconds that took. Raises ChildError after `timeout_s`."""
        begin = time.monotonic()
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return time.monotonic() - begin
            if time.monotonic() - begin > timeout_s:
                raise ChildError(f"waited {timeout_s:.0f} s in vain for {what}")
            await asyncio.sleep(POLL_S)

    # The messages.

    async def feed(self, messages: int, seconds: float) -> None:
        """Send so many in so many seconds, evenly, and go on at that pace until the faults are over. Never far ahead of the
        handlers: what takes them longer is to be seen in the times, not in a heap of messages."""
        begin = time.monotonic()
        while self.next_number < messages or not self.feeding_over.is_set():
            due = int((time.monotonic() - begin) * messages / seconds)
            if self.feeding_over.is_set():
                due = min(due, messages)
            upto = min(due, self.next_number + SENDS_AT_ONCE_MAX, self._trace.done() + len(self.uncertain) + AHEAD_MAX)
            numbers = range(self.next_number, upto)
            self.next_number = max(self.next_number, upto)
            stored = await asyncio.gather(*(self._send(number) for number in numbers))
            await asyncio.sleep(FEED_EVERY_S if all(stored) else REFUSED_PAUSE_S)

    async def _send(self, number: int, evil: str = "") -> bool:
        body = f"{number} {evil}".strip().encode()
        try:
            await self._producer.send(OutgoingMessage(self.name, body, keys=f"k{number % KEYS}"))
        except RocketcrewError:
            self.uncertain.add(number)
            return False
        self.sent.add(number)
        return True

    async def send_special(self, evil: str, *, dies: bool) -> int:
        """A message that is told to go wrong; its number. `dies`: it must become a dead letter."""
        while True:
            self._special += 1
            number = self._special
            if dies:
                self.meant_to_die.add(number)
            if await self._send(number, evil):
                return number

    def lines(self) -> list[Line]:
        """Everything that handlers told so far."""
        return self._trace.lines()

    def ended(self, mark: int) -> bool:
        """Whether a usual message with this number or a later one was handled to its end."""
        self._trace.read_on()
        return self._trace.latest >= mark

    async def lag(self) -> int:
        """Messages of the topic and of the retry topic that are not committed; -1 while that cannot be known."""
        found = 0
        for topic in (self.topic, f"%RETRY%{self.group}"):
            try:
                queues = await self._cluster.queues_to_read(topic, refresh=True)
                found += sum(row.lag for row in await lag_of(self._operations, queues, self.group))
            except BrokerError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    return -1
            except RocketcrewError:
                return -1
        return found

    async def offsets(self) -> dict[MessageQueue, int]:
        """What the broker has of the group in the queues of its topics, as far as it answers."""
        found: dict[MessageQueue, int] = {}
        for topic in (self.topic, f"%RETRY%{self.group}"):
            with contextlib.suppress(RocketcrewError):
                queues = await self._cluster.queues_to_read(topic, refresh=True)
                offsets = await committed_offsets(self._operations, self.group, queues)
                found |= {mq: offset for mq, offset in zip(queues, offsets, strict=True) if offset is not None}
        return found

    async def has_offsets(self, before: Mapping[MessageQueue, int]) -> bool:
        """Whether the broker has all of these offsets again, or later ones."""
        found = await self.offsets()
        return all(found.get(mq, -1) >= offset for mq, offset in before.items())

    async def dead_letters(self) -> int:
        """How many dead letters the group has; -1 while that cannot be known."""
        try:
            queues = await self._cluster.queues_to_read(f"%DLQ%{self.group}", refresh=True)
            return sum(row.end for row in await lag_of(self._operations, queues, self.group))
        except BrokerError as error:
            return 0 if error.code == ResponseCode.TOPIC_NOT_EXIST else -1
        except RocketcrewError:
            return -1

    # The end.

    def stop_supervisor(self) -> int:
        """TERM; the exit code."""
        assert self.supervisor is not None
        return self.supervisor.stop(STOP_S)

    async def _clean(self) -> list[str]:
        """Remove topic, retry topic, dead letters and group from a cluster that is not ours; what could not be removed."""
        left: list[str] = []
        if self.embedded or not hasattr(self, "_admin"):
            return left
        try:
            addresses = await self._admin.master_addresses()
        except RocketcrewError as error:
            return [f"topic and group {self.name}: {error}"]
        for address in addresses:
            for topic in (self.topic, f"%RETRY%{self.group}", f"%DLQ%{self.group}"):
                try:
                    await self._admin.delete_topic(address, topic)
                except RocketcrewError as error:
                    left.append(f"topic {topic} on {address}: {error}")
            try:
                await self._admin.delete_group(address, self.group)
            except RocketcrewError as error:
                left.append(f"group {self.group} on {address}: {error}")
        for topic in (self.topic, f"%RETRY%{self.group}", f"%DLQ%{self.group}"):
            with contextlib.suppress(RocketcrewError):
                await self._admin.delete_route(topic)
        return left

    async def close(self) -> list[str]:
        """End every process that is left, clean up, close the connections; what could not be removed from the cluster."""
        for child in (self.supervisor, self.broker):
            if child is not None:
                if child.poll() is None:
                    os.kill(child.pid, signal.SIGCONT)  # one that stands still does not hear TERM
                child.stop(STOP_S)
        left = await self._clean()
        if hasattr(self, "_producer"):
            await self._producer.close()
        if hasattr(self, "_cluster"):
            await self._cluster.close()
            await self._cluster.remoting.close()
        return left

    def loader_status(self) -> LoaderStatus | None:
        """How the loader is doing; None before the first one."""
        return read_status(self.folder / "state" / self.group / "0" / "segments" / LOADER_STATUS_FILE)

    def rows(self) -> dict[int, int]:
        """For each number how often it stands in the results: sealed segments, and the table."""
        import pyarrow.ipc
        import pyarrow.parquet

        parquet: Any = pyarrow.parquet  # its stubs know only parts of its types
        segments = [pyarrow.ipc.open_stream(path.read_bytes()).read_all()
                    for path in (self.folder / "state").glob(f"*/*/segments/{READY_DIR}/*.arrows")]  # fmt: skip
        table = [parquet.read_table(path) for path in (self.folder / "table").glob("batch_id=*/*.parquet")]
        return standing(_rows_of(segments), _rows_of(table))


def _rows_of(tables: list[Any]) -> Iterator[tuple[Any, ...]]:
    names = ("_topic", "_broker", "_queue_id", "_offset", "number")
    for table in tables:
        yield from zip(*(table.column(name).to_pylist() for name in names), strict=True)


class TraceReader:
    """The handlers' file, read on from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._lines: list[Line] = []
        self._done: set[int] = set()
        self.latest = -1
        """The highest usual number that was handled to its end."""

    def read_on(self) -> None:
        """Take in the whole lines since the last look."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        found = parse(whole.decode())
        self._lines += found
        self._done.update(line.number for line in found if line.what == "END" and line.number < SPECIAL)
        self.latest = max(self.latest, *(line.number for line in found if line.number in self._done), -1)

    def done(self) -> int:
        """How many usual messages were handled to their end."""
        self.read_on()
        return len(self._done)

    def lines(self) -> list[Line]:
        """All of them."""
        self.read_on()
        return self._lines


def cluster_file(settings: Settings) -> str:
    """A settings file that says how the cluster is reached, so that no secret stands on a command line."""
    lines: list[str] = []
    for section in ("cluster", "security"):
        lines.append(f"[{section}]")
        for field in dataclasses.fields(getattr(settings, section)):
            value = getattr(getattr(settings, section), field.name)
            # Texts, numbers, booleans and lists of texts are written in TOML as in JSON.
            lines.append(f"{field.name} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _write_private(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
