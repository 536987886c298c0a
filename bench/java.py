"""Java's DefaultMQPushConsumer and rocketcrew side by side on one genuine RocketMQ broker.

Rate: both consume the same backlog of a topic with 8 queues, each run as a new group, no-op handlers, Java with its 20
threads, we with a worker per core; consume batch 1 and 32. A third case, on our side only, returns a row of five columns for
each message (written and sealed, not loaded); it is compared with Java's batch of 1, which returns nothing. The first tenth
warms up and is not counted, nor is a first run of each case, during which the broker's compiler is at work. Runs alternate;
medians and the ratio of the medians are printed, and the CPU time by message of all processes of each consumer, which other
load on the machine changes least, and of the broker: where it runs on the same cores, the rate is at most cores / (consumer +
broker), whatever the consumer does besides. Latency: messages stored at a steady rate;
milliseconds from the broker's store timestamp (whole milliseconds, so 0.5 ms of it on average are rounding, for both) to the
handler's first act. Of 300,000 messages a JVM runs most before its own compiler is done: its rate is then two thirds of that
at 1,200,000.

    python bench/java.py [--version 5.5.0] [--runs 5] [--messages 1200000] [--body-bytes 1024] [--rate 1000] [--seconds 10]

Needs java, javac and mvn; says so in one line where they are missing, and measures nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import psutil
from measure import HERE, Crew, interruptible, median, report, wait_done

for folder in ("system", "interop"):
    sys.path.insert(0, str(HERE.parent / "tests" / folder))

from fault_servers import run_site  # noqa: E402
from servers import JAVA_OPTIONS, Java, compiled, missing_programs  # noqa: E402

from rocketcrew.client.outgoing import OutgoingMessage  # noqa: E402
from rocketcrew.client.producer import Producer  # noqa: E402

BROKER = "broker-a"
QUEUES = 8
SEND_BATCH = 32
SENDS_IN_FLIGHT = 8
WARM_UP_LATENCIES = 500
RUN_S = 300.0
SERVER_OPTIONS = tuple(option for option in JAVA_OPTIONS if not option.startswith("-XX:TieredStop"))
JAVA_CONSUMER_OPTIONS = ("-Xms512m", "-Xmx512m", "-Djava.net.preferIPv4Stack=true")


async def fill(name_server: str, topic: str, messages: int, body_bytes: int) -> None:
    """A backlog of messages with tags and keys, in batches."""
    turns = asyncio.Semaphore(SENDS_IN_FLIGHT)

    async def send(producer: Producer, start: int) -> None:
        numbers = range(start, min(start + SEND_BATCH, messages))
        body = os.urandom(body_bytes)
        async with turns:
            await producer.send_batch([OutgoingMessage(topic, body, tags="tag", keys=f"n{n}") for n in numbers])

    async with Producer(name_server, "bench-producer") as producer:
        for part in range(0, messages, SEND_BATCH * 64):
            starts = range(part, min(part + SEND_BATCH * 64, messages), SEND_BATCH)
            await asyncio.gather(*(send(producer, start) for start in starts))


async def send_steadily(name_server: str, topic: str, rate: int, count: int) -> None:
    """One message after the other at a steady rate, whatever the answers take."""
    async with Producer(name_server, "bench-producer") as producer, asyncio.TaskGroup() as tasks:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for number in range(count):
            await asyncio.sleep(max(0.0, begin + number / rate - loop.time()))
            tasks.create_task(producer.send(OutgoingMessage(topic, b"x" * 100)))


def whole_cpu_us(pid: int) -> float:
    """CPU time of a process so far, in µs, to a tick of 10 ms: also that of threads that have ended, as in a JVM."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system) * 1e6


class Case(NamedTuple):
    """What our side does with the backlog, and Java's batch size that it is compared with."""

    name: str
    batch: int
    module: str
    handler: str


CASES = (
    Case("no-op, batch 1", 1, "handlers", "no_op"),
    Case("no-op, batch 32", 32, "handlers", "no_op_batch"),
    Case("a row each, batch 1", 1, "row_handlers", "dict5"),
)
JAVA_BATCHES = tuple(dict.fromkeys(case.batch for case in CASES))


class Rate(NamedTuple):
    """Of one run: messages a second, and the CPU time by message of the consumer's processes and of the broker, in µs."""

    per_s: float
    cpu_us: float
    broker_us: float


class Site(Protocol):
    """A name server and brokers that run."""

    @property
    def name_server(self) -> str: ...

    def create_topic(self, topic: str, queues: int) -> None:
        """Returns when the topic has its route."""
        ...


class Bench:
    """One site, its topics filled, and runs of both consumers on it."""

    def __init__(self, site: Site, broker_pid: int, folder: Path, classes: str, options: argparse.Namespace) -> None:
        self.site, self.broker_pid, self.folder, self.classes = site, broker_pid, folder, classes
        self.messages: int = options.messages
        self.rate: int = options.rate
        self.measured: int = options.rate * options.seconds
        self.latency_messages = WARM_UP_LATENCIES + self.measured
        self._runs = 0

    def _group(self) -> str:
        self._runs += 1
        return f"bench-{self._runs}"

    @contextmanager
    def _java(self, topic: str, batch: int, warm_up: int, count: int, latencies: str) -> Iterator[Java]:
        words = ["Bench", self.site.name_server, self._group(), topic, str(batch), str(warm_up), str(count), latencies]
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        java = Java("bench", folder, self.classes, words, JAVA_CONSUMER_OPTIONS)
        try:
            java.wait_for(lambda: "STARTED" in java.lines(), "start")
            yield java
        finally:
            java.stop()

    @contextmanager
    def _crew(self, module: str, handler: str, topic: str, **settings: object) -> Iterator[Crew]:
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            crew = Crew(
                Path(folder), self.site.name_server, handler, topic, settings, group=self._group(), module=module
            )
            try:
                yield crew
            finally:
                crew.stop()

    def _broker_us(self) -> float:
        return whole_cpu_us(self.broker_pid)

    def java_rate(self, batch: int, topic: str = "backlog") -> Rate:
        with self._java(topic, batch, self.messages // 10, self.messages, "-") as java:
            java.wait_for(lambda: "WARM" in java.lines(), "warm up", RUN_S)
            cpu, broker, counted = whole_cpu_us(java.pid), self._broker_us(), self.messages - self.messages // 10
            java.wait_for(lambda: any(line.startswith("RATE ") for line in java.lines()), "consume", RUN_S)
            cpu, broker = whole_cpu_us(java.pid) - cpu, self._broker_us() - broker
            _, count, seconds = next(line for line in java.lines() if line.startswith("RATE ")).split()
        return Rate(int(count) / float(seconds), cpu / counted, broker / counted)

    def our_rate(self, case: Case) -> Rate:
        settings = {"consumer.consume_message_batch_max_size": case.batch}
        with self._crew(case.module, case.handler, "backlog", **settings) as crew:
            wait_done(crew, self.messages // 10)
            begin, first, cpu, broker = time.perf_counter(), crew.done(), sum(crew.cpu()), self._broker_us()
            seconds = wait_done(crew, self.messages, RUN_S) - begin
            counted = self.messages - first
            return Rate(counted / seconds, (sum(crew.cpu()) - cpu) / counted, (self._broker_us() - broker) / counted)

    def java_latency(self, topic: str) -> list[float]:
        file = self.folder / "latencies"
        with self._java(topic, 1, WARM_UP_LATENCIES, self.latency_messages, str(file)) as java:
            asyncio.run(send_steadily(self.site.name_server, topic, self.rate, WARM_UP_LATENCIES))
            java.wait_for(lambda: "WARM" in java.lines(), "warm up")
            asyncio.run(send_steadily(self.site.name_server, topic, self.rate, self.measured))
            java.finish()
        return [float(line) for line in file.read_text().split()]

    def our_latency(self, topic: str) -> list[float]:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        os.environ["BENCH_LATENCIES"] = str(folder)
        with self._crew("handlers", "store_latency", topic) as crew:
            asyncio.run(send_steadily(self.site.name_server, topic, self.rate, WARM_UP_LATENCIES))
            wait_done(crew, WARM_UP_LATENCIES)
            asyncio.run(send_steadily(self.site.name_server, topic, self.rate, self.measured))
            wait_done(crew, self.latency_messages)
        found = [tuple(map(int, line.split())) for file in folder.iterdir() for line in file.read_text().splitlines()]
        found.sort(key=lambda times: times[1])
        return [handled_ns / 1e6 - stored_ms for stored_ms, handled_ns in found[WARM_UP_LATENCIES:]]


def progress(line: str) -> None:
    """A full run takes minutes."""
    print(f"{line} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)


def rates(bench: Bench, runs: int) -> list[dict[str, object]]:
    """A row for each case; runs of both alternate, and the first of each does not count."""
    java: dict[int, list[Rate]] = {}
    ours: dict[Case, list[Rate]] = {}

    def noted(name: str, run: Rate) -> Rate:
        progress(f"{name}: {run.per_s:,.0f}/s, {run.cpu_us:.1f} µs, broker {run.broker_us:.1f} µs")
        return run

    for number in range(runs + 1):
        of_runs = f"run {number} of {runs}" if number else "warm-up"
        for batch in JAVA_BATCHES:
            java.setdefault(batch, []).append(noted(f"{of_runs}, java, batch {batch}", bench.java_rate(batch)))
            for case in CASES:
                if case.batch == batch:
                    ours.setdefault(case, []).append(noted(f"{of_runs}, ours, {case.name}", bench.our_rate(case)))
    return [compared(case, java[case.batch][1:], ours[case][1:]) for case in CASES]


def compared(case: Case, java: list[Rate], ours: list[Rate]) -> dict[str, object]:
    """Medians of both and their ratio."""
    per_s = {"java_per_s": median(run.per_s for run in java), "ours_per_s": median(run.per_s for run in ours)}
    return {
        "case": case.name, "runs": len(ours), **per_s, "ratio": per_s["ours_per_s"] / per_s["java_per_s"],
        "java_cpu_us": median(run.cpu_us for run in java), "ours_cpu_us": median(run.cpu_us for run in ours),
        "java_broker_us": median(run.broker_us for run in java), "ours_broker_us": median(run.broker_us for run in ours),
    }  # fmt: skip


def latencies(bench: Bench, runs: int) -> list[dict[str, object]]:
    """p50 and p99 of both, each the median of alternating runs."""
    found: dict[str, list[list[float]]] = {"java": [], "ours": []}
    for number in range(runs):
        for name, measure in (("java", bench.java_latency), ("ours", bench.our_latency)):
            topic = f"latency-{name}-{number}"
            bench.site.create_topic(topic, QUEUES)
            quantiles = statistics.quantiles(measure(topic), n=100)
            found[name].append(quantiles)
            progress(f"run {number + 1} of {runs}, {name}: p50 {quantiles[49]:.2f} ms, p99 {quantiles[98]:.2f} ms")
    return [
        {"consumer": name, "runs": runs, "rate": bench.rate, "p50_ms": median(run[49] for run in of_runs),
         "p99_ms": median(run[98] for run in of_runs)}
        for name, of_runs in found.items()
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", default="5.5.0")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--messages", type=int, default=1_200_000)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=10)
    options = parser.parse_args()
    if missing := missing_programs("java", "javac", "mvn"):
        print(f"no comparison with Java: {' and '.join(missing)} missing on the PATH")
        return 0
    interruptible()
    with tempfile.TemporaryDirectory() as name, run_site(options.version, Path(name), SERVER_OPTIONS) as site:
        classes_folder = Path(name) / "classes"
        classes_folder.mkdir()
        classes = compiled(options.version, classes_folder)
        site.make_whole(BROKER)
        site.create_topic("backlog", QUEUES)
        asyncio.run(fill(site.name_server, "backlog", options.messages, options.body_bytes))
        bench = Bench(site, site.broker(BROKER).pid, Path(name), classes, options)
        load_before = os.getloadavg()[0]
        report("java-rate", rates(bench, options.runs))
        report("java-latency", latencies(bench, max(1, options.runs // 2)))
        print(f"load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after")
    return 0


if __name__ == "__main__":
    sys.exit(main())
