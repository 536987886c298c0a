"""The embedded broker beside a genuine RocketMQ broker, with Java's clients at both; and what the embedded one costs alone.

Clients: RocketMQ's own benchmark producer (8 threads, 1 KiB), then its push consumer with 20 threads that do nothing, as a
new group each time (Bench.java). Runs of both brokers alternate, with the same flush mode; medians and ratios are printed, of
sends by the store times in the topic. The first tenth of messages warms up and is not counted. Then the push consumer waits
for messages at a steady rate: milliseconds from the broker's store time to the listener (wake-up).

Alone: resident memory with many topics, then with idle connections, in plain text and by TLS; CPU while idle with many held
pulls, and how many of them one send wakes; and seconds and CPU time of a start after kill -9 with a large log, with a
checkpoint some seconds old and without one.

    python bench/broker.py [--version 5.5.0] [--runs 3] [--messages 30000] [--flush async sync] [--rate 500] [--seconds 5]
        [--topics 1000] [--connections 2000] [--held 10000] [--idle-seconds 20] [--log-messages 300000] [--log-body-bytes 200]
        [--only clients memory held start]

The full numbers: --messages 300000, --log-messages 5000000. Needs java, javac and mvn for the clients; where they are missing
it says so in one line and measures the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import resource
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

import psutil
import trustme
from java import QUEUES, SERVER_OPTIONS, Bench, Site, progress, whole_cpu_us
from measure import HERE, EmbeddedBroker, cpu_us, interruptible, median, report

for _folder in ("system", "interop"):
    sys.path.insert(0, str(HERE.parent / "tests" / _folder))

from fault_servers import run_site  # noqa: E402
from servers import CLIENT_OPTIONS, Java, compiled, missing_programs, resolved  # noqa: E402

from rocketcrew.broker.config import BrokerConfig  # noqa: E402
from rocketcrew.broker.server import EmbeddedBroker as BrokerHere  # noqa: E402
from rocketcrew.client.access import Access, TlsOptions  # noqa: E402
from rocketcrew.client.admin import Admin  # noqa: E402
from rocketcrew.client.clock import wall_ms  # noqa: E402
from rocketcrew.client.cluster import Cluster  # noqa: E402
from rocketcrew.client.opening import open_cluster  # noqa: E402
from rocketcrew.client.operations import Operations, parse_pull  # noqa: E402
from rocketcrew.client.sync import run_with_cluster  # noqa: E402
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig, TopicConfig  # noqa: E402
from rocketcrew.remoting.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode  # noqa: E402
from rocketcrew.remoting.command import Command  # noqa: E402
from rocketcrew.remoting.frame import FrameReader, encode  # noqa: E402
from rocketcrew.remoting.headers import PullRequest, SendRequest  # noqa: E402
from rocketcrew.remoting.stored import StoredMessage, decode_messages  # noqa: E402

SENDER_THREADS = 8
BODY_BYTES = 1024
GENUINE_FLUSH = {"async": "ASYNC_FLUSH", "sync": "SYNC_FLUSH"}
PARTS = ("clients", "memory", "held", "start")
START_S = 600.0
PUT_AT_ONCE = 64
SINCE_CHECKPOINT = 50_000  # a checkpoint comes every 5 s
HELD_CONNECTIONS, HELD_QUEUES = 100, 1_000
HELD_FOR_MS = 3_600_000  # asked for; the broker holds for a minute at most


class Embedded:
    """Our broker as a process, as the benchmarks of the clients take it."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.name_server = broker.name_server
        self.pid = broker.child.pid

    def create_topic(self, topic: str, queues: int) -> None:
        async def create(cluster: Cluster) -> None:
            config = TopicConfig(topic, read_queue_nums=queues, write_queue_nums=queues)
            await Admin(cluster).create_topic_everywhere(config)
            await cluster.queues_to_read(topic, refresh=True)

        run_with_cluster(self.name_server, create)


class Run(NamedTuple):
    """One run of the clients at one broker: messages a second, and the broker's CPU time by message in µs."""

    sent_per_s: float
    send_cpu_us: float
    consumed_per_s: float
    consume_cpu_us: float
    wake_p50_ms: float
    wake_p99_ms: float
    failed: float


def send_by_benchmark(folder: Path, classes: str, name_server: str, topic: str, messages: int) -> int:
    """RocketMQ's own benchmark producer; returns how many sends failed."""
    words = ["org.apache.rocketmq.example.benchmark.Producer", "-n", name_server, "-t", topic,
             "-w", str(SENDER_THREADS), "-s", str(BODY_BYTES), "-q", str(messages)]  # fmt: skip
    options = [option for option in CLIENT_OPTIONS if not option.startswith("-XX:TieredStop")]
    producer = Java(f"producer-{topic}", folder, classes, words, options)
    try:
        text = "\n".join(producer.finish(START_S))
    finally:
        producer.stop()
    found = re.search(r"\[Complete\] Send Total: (\d+) .*Send Failed: (\d+) .*Response Failed: (\d+)", text)
    assert found is not None, text
    total, *failed = map(int, found.groups())
    assert total == messages, text
    return sum(failed)


async def sent_per_second(cluster: Cluster, topic: str) -> float:
    """Messages a second by their store times, from the first tenth of each queue to its end."""
    operations = Operations(cluster)
    counted, first_ms, last_ms = 0, list[int](), list[int]()
    for mq in await cluster.queues_to_read(topic, refresh=True):
        address, end = await cluster.address_of(mq), await operations.max_offset(mq)
        for offset, times in ((end // 10, first_ms), (end - 1, last_ms)):
            header = PullRequest(
                "bench-times", topic, mq.queue_id, offset, 1, PULL_SUBSCRIPTION, 0, 0, 0, "*", "TAG",
                broker_name=mq.broker_name,
            )  # fmt: skip
            result = parse_pull(await operations.pull(address, header), address)
            times.append(decode_messages(bytes(result.body))[0].store_timestamp_ms)
        counted += end - end // 10
    return counted * 1000 / max(max(last_ms) - min(first_ms), 1)


class Sides:
    """Both brokers, and runs of Java's clients at each."""

    def __init__(
        self, sides: dict[str, tuple[Site, int]], folder: Path, classes: str, options: argparse.Namespace
    ) -> None:
        """`sides`: what there is to measure, by its name, with the broker's process."""
        self.folder = folder
        self.messages: int = options.messages
        self.examples = resolved(
            f"example-{options.version}", [f"org.apache.rocketmq:rocketmq-example:{options.version}"]
        )
        self.benches = {name: Bench(site, pid, folder, classes, options) for name, (site, pid) in sides.items()}
        self._runs = 0

    def run(self, name: str) -> Run:
        bench = self.benches[name]
        site, pid = bench.site, bench.broker_pid
        self._runs += 1
        topic, waked = f"sent-{self._runs}", f"waked-{self._runs}"
        site.create_topic(topic, QUEUES)
        site.create_topic(waked, QUEUES)
        cpu = whole_cpu_us(pid)
        failed = send_by_benchmark(self.folder, self.examples, site.name_server, topic, self.messages)
        send_cpu = whole_cpu_us(pid) - cpu
        sent = run_with_cluster(site.name_server, lambda cluster: sent_per_second(cluster, topic))
        bench.messages = self.messages - failed  # at least these are there
        consumed = bench.java_rate(1, topic)
        latencies = quantiles(bench.java_latency(waked), n=100)
        return Run(
            sent, send_cpu / self.messages, consumed.per_s, consumed.broker_us, latencies[49], latencies[98], failed,
        )  # fmt: skip


@contextmanager
def both(folder: Path, flush: str, options: argparse.Namespace) -> Iterator[Sides]:
    """A genuine broker and ours, with one flush mode."""
    embedded_folder = folder / "embedded"
    embedded_folder.mkdir()
    with ExitStack() as ends:
        site = ends.enter_context(run_site(options.version, folder, SERVER_OPTIONS))
        classes_folder = folder / "classes"
        classes_folder.mkdir()
        classes = compiled(options.version, classes_folder)
        site.make_whole("broker-a", settings={"flushDiskType": GENUINE_FLUSH[flush]})
        ours = EmbeddedBroker(embedded_folder, {"broker.flush": flush})
        ends.callback(ours.stop)
        embedded = Embedded(ours)
        sides: dict[str, tuple[Site, int]] = {
            "genuine": (site, site.broker("broker-a").pid),
            "embedded": (embedded, embedded.pid),
        }
        yield Sides(sides, folder, classes, options)


def clients(options: argparse.Namespace) -> list[dict[str, object]]:
    """A row for each broker and flush mode, and one with the ratios of ours to the genuine one's."""
    rows: list[dict[str, object]] = []
    for flush in options.flush:
        found: dict[str, list[Run]] = {"genuine": [], "embedded": []}
        with tempfile.TemporaryDirectory() as name, both(Path(name), flush, options) as sides:
            for number in range(options.runs):
                for side in found if number % 2 == 0 else reversed(found):
                    run = sides.run(side)
                    found[side].append(run)
                    progress(
                        f"{flush}, run {number + 1} of {options.runs}, {side}: sent {run.sent_per_s:,.0f}/s "
                        f"({run.send_cpu_us:.0f} µs), consumed {run.consumed_per_s:,.0f}/s ({run.consume_cpu_us:.0f} µs), "
                        f"wake-up p50 {run.wake_p50_ms:.1f} ms, p99 {run.wake_p99_ms:.1f} ms, {run.failed} failed"
                    )
        medians = {side: Run(*map(median, zip(*runs, strict=True))) for side, runs in found.items()}
        ratio = {
            part: getattr(medians["embedded"], part) / (getattr(medians["genuine"], part) or 1)
            for part in Run._fields[:-1]
        }
        for side, run in medians.items():
            rows.append({"flush": flush, "broker": side, **run._asdict()})
        rows.append({"flush": flush, "broker": "ratio", **ratio})
    return rows


# Alone.


def resident_mib(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / (1 << 20)


def question(number: int) -> bytes:
    return encode(Command(RequestCode.GET_MAX_OFFSET, {"topic": "TBW102", "queueId": "0"}, opaque=number))


def idle_connections(address: str, count: int, tls: ssl.SSLContext | None) -> list[socket.socket]:
    """So many connections, of which each has asked once and been answered."""
    host, _, port = address.rpartition(":")
    taken: list[socket.socket] = []
    for number in range(count):
        plain = socket.create_connection((host, int(port)))
        one = tls.wrap_socket(plain) if tls is not None else plain
        one.sendall(question(number))
        assert one.recv(1 << 16)
        taken.append(one)
    return taken


async def make_topics(access: Access, count: int) -> None:
    """Topics of QUEUES queues, with a message in each queue."""
    async with open_cluster(access) as cluster:
        (address,) = await Admin(cluster).master_addresses()
        for number in range(count):
            topic = f"topic-{number}"
            await Admin(cluster).create_topic(address, TopicConfig(topic, QUEUES, QUEUES))
            for queue_id in range(QUEUES):
                fields = {"producerGroup": "bench", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
                          "queueId": str(queue_id), "sysFlag": "0", "bornTimestamp": "1", "flag": "0",
                          "properties": ""}  # fmt: skip
                command = Command(RequestCode.SEND_MESSAGE, fields, b"x" * 100)
                answer = await cluster.remoting.request(address, command, timeout_ms=60_000)
                assert answer.code == 0, answer.remark


def memory(options: argparse.Namespace) -> list[dict[str, object]]:
    """Resident MiB of the embedded broker: at its start, with topics, and with idle connections beside them."""
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    rows: list[dict[str, object]] = []
    for kind in ("plain", "tls"):
        with tempfile.TemporaryDirectory() as name, ExitStack() as ends:
            folder = Path(name)
            settings: dict[str, object] = {}
            tls: TlsOptions | None = None
            context: ssl.SSLContext | None = None
            if kind == "tls":
                authority = trustme.CA()
                authority.cert_pem.write_to_path(str(folder / "ca.pem"))
                authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
                    str(folder / "server.pem")
                )
                settings["broker.tls_cert_path"] = folder / "server.pem"
                tls = TlsOptions(trust_cert_path=str(folder / "ca.pem"))
                context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
                context.check_hostname = False
            broker = EmbeddedBroker(folder, settings)
            ends.callback(broker.stop)
            at_start = resident_mib(broker.child.pid)
            asyncio.run(make_topics(Access(broker.name_server, tls=tls), options.topics))
            with_topics = resident_mib(broker.child.pid)
            for one in idle_connections(broker.address, options.connections, context):
                ends.enter_context(closing(one))
            rows.append({
                "connections": kind, "start_mib": at_start, f"{options.topics}_topics_mib": with_topics,
                f"{options.connections}_more_mib": resident_mib(broker.child.pid) - with_topics,
            })  # fmt: skip
    return rows


class Holder:
    """One connection whose pulls are held."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self._frames = FrameReader()
        self._asked = 0

    def pull(self, queue_id: int) -> None:
        header = PullRequest(
            "held", "held", queue_id, 0, 1, PULL_SUBSCRIPTION | PULL_SUSPEND, 0, HELD_FOR_MS, 0, "*", "TAG"
        )
        self._asked += 1
        self.socket.sendall(encode(Command(RequestCode.PULL_MESSAGE, header.to_fields(), opaque=self._asked)))

    def answered(self) -> int:
        """How many pulls were answered until now: requests of a connection are served in their order, and this asks one."""
        self.socket.sendall(question(0))
        count = 0
        while True:
            received = self.socket.recv(1 << 16)
            if not received:
                raise ConnectionError("the broker closed a connection with held pulls")
            self._frames.feed(received)
            while (answer := self._frames.next()) is not None:
                if answer.opaque == 0:
                    return count
                count += 1


async def make_held_topic(broker: EmbeddedBroker) -> None:
    async with open_cluster(broker.name_server) as cluster:
        admin = Admin(cluster)
        await admin.create_topic(broker.address, TopicConfig("held", HELD_QUEUES, HELD_QUEUES))
        await admin.create_group(broker.address, SubscriptionGroupConfig("held"))


def idle_percent(pid: int, seconds: float) -> float:
    """Share of a core that a process takes while nothing is asked of it."""
    begin, cpu = time.perf_counter(), cpu_us(pid)
    time.sleep(seconds)
    return (cpu_us(pid) - cpu) / (time.perf_counter() - begin) / 1e4


def held(options: argparse.Namespace) -> list[dict[str, object]]:
    """CPU while idle, without held pulls and with them, and how many pulls one send wakes."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as ends:
        broker = EmbeddedBroker(Path(name))
        ends.callback(broker.stop)
        asyncio.run(make_held_topic(broker))
        holders = [Holder(broker.address) for _ in range(HELD_CONNECTIONS)]
        for holder in holders:
            ends.enter_context(closing(holder.socket))
        sum(holder.answered() for holder in holders)  # all are there
        without = idle_percent(broker.child.pid, options.idle_seconds)
        begin = cpu_us(broker.child.pid)
        for number in range(options.held):
            holders[number % HELD_CONNECTIONS].pull(number % HELD_QUEUES)
        at_once = sum(holder.answered() for holder in holders)
        hold_us = (cpu_us(broker.child.pid) - begin) / options.held
        idle = idle_percent(broker.child.pid, options.idle_seconds)
        timed_out = sum(holder.answered() for holder in holders)
        asyncio.run(send_one(broker))
        woken = sum(holder.answered() for holder in holders)
        return [{
            "held": options.held - at_once - timed_out, "connections": HELD_CONNECTIONS, "queues": HELD_QUEUES,
            "hold_us": hold_us, "idle_percent_without": without, "idle_percent": idle, "woken_by_a_send": woken,
        }]  # fmt: skip


async def send_one(broker: EmbeddedBroker) -> None:
    async with open_cluster(broker.name_server) as cluster:
        header = SendRequest("bench", "held", "TBW102", 4, 7, 0, 1, 0, "")
        command = Command(RequestCode.SEND_MESSAGE, header.to_fields(), b"x")
        answer = await cluster.remoting.request(broker.address, command, timeout_ms=60_000)
        assert answer.code == 0, answer.remark


async def write_log(folder: Path, messages: int, body_bytes: int, since: int) -> None:
    """A store as kill -9 leaves it, with so many messages since its last checkpoint."""
    config = BrokerConfig(flush="async", checkpoint_interval_ms=1 << 40)
    broker = BrokerHere(folder, config=config)
    await broker.start()
    body = os.urandom(body_bytes)
    async with open_cluster(broker.name_server) as cluster:
        await Admin(cluster).create_topic(broker.address, TopicConfig("log", QUEUES, QUEUES))
    store = broker.core.state.store
    saved = False
    for number in range(0, messages, PUT_AT_ONCE):
        if not saved and messages - number <= since < messages:
            store.checkpoint_now()
            saved = True
        count = min(PUT_AT_ONCE, messages - number)
        queue_id = number // PUT_AT_ONCE % QUEUES
        records = [StoredMessage("log", body, b"", queue_id=queue_id) for _ in range(count)]
        store.put_all(wall_ms(), records, [0] * count)
        if number // PUT_AT_ONCE % 64 == 0:
            await asyncio.sleep(0)
    await broker.crash()


def is_ready(broker: EmbeddedBroker) -> bool:
    return "broker.ready" in broker.child.log.read_text()


def start(options: argparse.Namespace) -> list[dict[str, object]]:
    """Seconds and CPU time of the embedded broker's start on a large log."""
    rows: list[dict[str, object]] = []
    for since in (SINCE_CHECKPOINT, options.log_messages):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            asyncio.run(write_log(folder / "broker", options.log_messages, options.log_body_bytes, since))
            begin = time.perf_counter()
            broker = EmbeddedBroker(folder, {"broker.flush": "async"})  # it listens before it has read the log
            try:
                broker.child.wait_for(partial(is_ready, broker), START_S, "read its log")
                seconds, cpu_us = time.perf_counter() - begin, whole_cpu_us(broker.child.pid)
                read = re.findall(r'"records_read": (\d+)', broker.child.log.read_text())
            finally:
                broker.stop()
            taken = sum(file.stat().st_blocks * 512 for file in (folder / "broker" / "commitlog").iterdir())
            rows.append({
                "messages": options.log_messages, "log_gib": taken / (1 << 30), "since_checkpoint": since,
                "read": int(read[-1]) if read else -1, "seconds": seconds, "cpu_s": cpu_us / 1e6,
            })  # fmt: skip
    return rows


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", default="5.5.0")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--messages", type=int, default=30_000)
    parser.add_argument("--flush", nargs="+", choices=sorted(GENUINE_FLUSH), default=["async", "sync"])
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--connections", type=int, default=2_000)
    parser.add_argument("--held", type=int, default=10_000)
    parser.add_argument("--idle-seconds", type=float, default=20)
    parser.add_argument("--log-messages", type=int, default=300_000)
    parser.add_argument("--log-body-bytes", type=int, default=200)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args(words)
    interruptible()
    if "clients" in options.only:
        if missing := missing_programs("java", "javac", "mvn"):
            print(f"no comparison with a genuine broker: {' and '.join(missing)} missing on the PATH")
        else:
            report("broker-clients", clients(options))
    if "memory" in options.only:
        report("broker-memory", memory(options))
    if "held" in options.only:
        report("broker-held", held(options))
    if "start" in options.only:
        report("broker-start", start(options))
    print(f"load average {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
