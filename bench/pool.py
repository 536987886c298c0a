"""The worker pool against the pools of the standard library, all fed by the same client.

Handlers of 0, 0.1, 1 and 10 ms of CPU against a thread pool, ProcessPoolExecutor.submit and multiprocessing.Pool.apply_async:

- messages a second, and efficiency: bare processes doing the same calls, over what was measured;
- dispatch: milliseconds from a message's sending, through the embedded broker, to the first act of its handler, p50 and p99,
  at a steady rate that keeps no pool busy;
- what attribution and time limits cost at no-op, in CPU µs per message of all processes (what cells and claims cost in the
  worker's loop, where they cannot be switched off, is measured in pairs with the same loop without them). Outcomes by ack
  index are part of every figure;
- recycling: messages a second while each worker is replaced after 500 messages of 1 ms, over the same without.

To reach: 0.98 of ideal cores at 10 ms, 0.96 at 1 ms, 0.88 at 0.1 ms; 10 times ProcessPoolExecutor at 0 ms, 2 times at
0.1 ms; attribution, limits and sparse acks together at most 5 % at no-op.

    python bench/pool.py [--runs 5] [--seconds 3] [--rate 500] [--messages 300000]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import efficiency
import latency
import throughput
from efficiency import QUEUES, WORKERS, bare, crew, feed, messages_for
from handlers import BURNS, burn, no_op
from measure import Crew, EmbeddedBroker, Source, interruptible, median, report, wait_done

from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations, PullStatus, parse_pull
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.remoting.codes import PULL_SUBSCRIPTION
from rocketcrew.remoting.headers import PullRequest
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import SYSFLAG_LOW_BYTE, StoredMessage, decode_messages, encode_message
from rocketcrew.workers.api import as_handler
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.calls import chooser
from rocketcrew.workers.cells import private_cell
from rocketcrew.workers.message import INNER_BATCH_BIT, Message
from rocketcrew.workers.packets import QueueInfo
from rocketcrew.workers.run import Run
from rocketcrew.workers.runner import Runner

NO_OP_MESSAGES = 60_000
"""For the pools at 0 ms; the crew, many times faster, gets ten times as many."""
PAIRS = 100
"""Of the worker's loop with and without attribution."""
CHUNKS_A_PAIR = 200
TOPIC = "dispatch"
GROUP = "bench-dispatch"
LIMITS = {"workers.soft_time_limit_ms": 50_000, "workers.hard_time_limit_ms": 60_000}
STORM = {"workers.recycle_messages": 500}

Submit = Callable[[bytes], "asyncio.Future[float]"]
"""Hands one body to a pool; the result is what the work returned."""


def work(cpu_ns: int, body: bytes) -> float:
    """What a pool runs: 0 means nothing at all. Returns when it began, in ns since 1970."""
    began = time.time_ns()
    assert body
    if cpu_ns:
        burn(cpu_ns)
    return float(began)


@contextmanager
def executor_pool(make: Callable[[int], Executor], cpu_ns: int) -> Generator[Submit]:
    """A pool of concurrent.futures."""
    loop = asyncio.get_running_loop()
    with make(WORKERS) as executor:
        yield lambda body: loop.run_in_executor(executor, work, cpu_ns, body)


@contextmanager
def multiprocessing_pool(cpu_ns: int) -> Generator[Submit]:
    """multiprocessing.Pool, by apply_async; its callbacks come from a thread of its own."""
    loop = asyncio.get_running_loop()
    # Its workers are ended by TERM, which means Ctrl-C in this process.
    with multiprocessing.get_context("fork").Pool(WORKERS, signal.signal, (signal.SIGTERM, signal.SIG_DFL)) as pool:

        def submit(body: bytes) -> asyncio.Future[float]:
            future: asyncio.Future[float] = loop.create_future()
            pool.apply_async(
                work, (cpu_ns, body),
                callback=lambda value: loop.call_soon_threadsafe(future.set_result, value),
                error_callback=lambda error: loop.call_soon_threadsafe(future.set_exception, error),
            )  # fmt: skip
            return future

        yield submit


POOLS: dict[str, Callable[[int], AbstractContextManager[Submit]]] = {
    "threads": lambda cpu_ns: executor_pool(ThreadPoolExecutor, cpu_ns),
    "ProcessPoolExecutor": lambda cpu_ns: executor_pool(ProcessPoolExecutor, cpu_ns),
    "multiprocessing.Pool": multiprocessing_pool,
}


def rate_of_pool(name: str, cpu_ns: int, count: int) -> float:
    """Messages a second through one of the library's pools, warmed up."""
    source = Source(count, queues=QUEUES)

    async def run() -> float:
        with POOLS[name](cpu_ns) as submit:
            await asyncio.gather(*(submit(b"x") for _ in range(WORKERS * 4)))
            begin = time.perf_counter()
            await feed(source.name_server, count, submit)
            return time.perf_counter() - begin

    try:
        return count / asyncio.run(run())
    finally:
        source.stop()


def rates(runs: int, seconds: float) -> list[dict[str, object]]:
    """One row for each handler: the crew, the pools, and what the cores could do."""
    rows: list[dict[str, object]] = []
    for handler, cpu_ns in {"no_op": 0, **BURNS}.items():
        count = messages_for(cpu_ns, seconds) if cpu_ns else NO_OP_MESSAGES // 256 * 256
        found: dict[str, list[float]] = {"crew": [], "overhead": [], "ideal": [], **{name: [] for name in POOLS}}
        for _ in range(runs):
            # Alternating, so that other load on the machine meets all of them.
            rate, overhead_us = of_crew(handler, count)
            found["crew"].append(rate)
            found["overhead"].append(overhead_us)
            for name in POOLS:
                found[name].append(rate_of_pool(name, cpu_ns, count))
            if cpu_ns:
                found["ideal"].append(count / bare(cpu_ns, count))
        middle = {name: median(values) for name, values in found.items() if values}
        row: dict[str, object] = {"cpu_ms": cpu_ns / 1e6, "runs": runs, "crew_per_s": middle["crew"],
                                  "crew_overhead_cpu_us": middle["overhead"]}  # fmt: skip
        row |= {f"{name}_per_s": middle[name] for name in POOLS}
        row["times_ProcessPoolExecutor"] = middle["crew"] / middle["ProcessPoolExecutor"]
        for name in ("crew", *POOLS):
            row[f"{name}_efficiency"] = middle[name] / middle["ideal"] if cpu_ns else ""
        rows.append(row)
    return rows


def of_crew(handler: str, count: int) -> tuple[float, float]:
    """Messages a second of our workers, and CPU µs per message of all processes beyond the handler's own, which decide where
    noise hides the ratio."""
    if handler in BURNS:
        seconds, *parts_us = crew(handler, count)
        return count / seconds, sum(parts_us)
    one = throughput.on_replay(handler, 1, count * 10)
    return one["rate"], one["supervisor_us"] + one["workers_us"]


async def dispatch_of_pool(name: str, name_server: str, rate: int, seconds: int) -> list[float]:
    """Milliseconds from sending to the first act of the work, for messages at a steady rate."""
    count = latency.WARM_UP + rate * seconds
    times: list[tuple[int, float]] = []
    all_done = asyncio.Event()

    async def one(submit: Submit, body: bytes) -> None:
        sent_ns = int(body)
        times.append((sent_ns, (await submit(body) - sent_ns) / 1e6))
        if len(times) == count:
            all_done.set()

    async def listen(operations: Operations, address: str, mq: MessageQueue, submit: Submit) -> None:
        offset = await operations.max_offset(mq)
        async with asyncio.TaskGroup() as group:
            while True:
                header = PullRequest(
                    GROUP, mq.topic, mq.queue_id, offset, 32, PULL_SUBSCRIPTION, 0, 5_000, 0, "*", "TAG"
                )
                answer = parse_pull(await operations.pull(address, header), address)
                offset = answer.header.next_begin_offset
                if answer.status is PullStatus.FOUND:
                    for message in decode_messages(bytes(answer.body)):
                        group.create_task(one(submit, bytes(message.body)))

    async with open_cluster(name_server) as cluster:
        operations = Operations(cluster)
        queues = await cluster.queues_to_read(TOPIC)
        address = await cluster.address_of(queues[0])
        with POOLS[name](0) as submit:
            await asyncio.gather(*(submit(b"1") for _ in range(WORKERS * 4)))
            listening = [asyncio.create_task(listen(operations, address, mq, submit)) for mq in queues]
            await send(name_server, rate, count)
            await all_done.wait()
            for task in listening:
                task.cancel()
            await asyncio.gather(*listening, return_exceptions=True)
    return [ms for _, ms in sorted(times)[latency.WARM_UP :]]


async def send(name_server: str, rate: int, count: int) -> None:
    """Send at a steady rate, each message with the time of its sending."""
    async with Producer(name_server, "bench-producer") as producer:
        begin = time.perf_counter()
        tasks: set[asyncio.Task[object]] = set()
        for number in range(count):
            await asyncio.sleep(max(0.0, begin + number / rate - time.perf_counter()))
            tasks.add(asyncio.create_task(producer.send(OutgoingMessage(TOPIC, str(time.time_ns()).encode()))))
        await asyncio.gather(*tasks)


def dispatch(runs: int, rate: int, seconds: int) -> list[dict[str, object]]:
    """p50 and p99 for the crew and each pool."""
    found: dict[str, list[list[float]]] = {"crew": [], **{name: [] for name in POOLS}}
    for _ in range(runs):
        found["crew"].append(latency.run(rate, seconds))
        for name in POOLS:
            with tempfile.TemporaryDirectory() as folder:
                broker = EmbeddedBroker(Path(folder))
                try:
                    asyncio.run(send(broker.name_server, rate, 1))  # makes the topic
                    found[name].append(asyncio.run(dispatch_of_pool(name, broker.name_server, rate, seconds)))
                finally:
                    broker.stop()
    quantiles = {name: [statistics.quantiles(run, n=100) for run in those] for name, those in found.items()}
    return [
        {"pool": name, "rate": rate, "runs": runs, "p50_ms": median(entry[49] for entry in those),
         "p99_ms": median(entry[98] for entry in those)}
        for name, those in quantiles.items()
    ]  # fmt: skip


class BareRunner(Runner):
    """The worker's loop over a chunk without attribution, claims and the notes for time limits; for plain handlers."""

    def _run_each(self, run: Run, data: bytes, positions: list[int]) -> None:
        function, clock, queue = self._function, self._clock, run.queue
        wants = chooser(queue, self._filter, self._log)
        end = len(run.offsets)
        slowest = 0
        started = last = clock()
        self._look_ns = self._due_ns
        for index, position, _offset in zip(range(end), positions, run.offsets, strict=False):
            message = Message(data, position, queue)
            try:
                if data[position + SYSFLAG_LOW_BYTE] & INNER_BATCH_BIT:
                    self._run_unit(run, index, data, position, positions[index + 1], wants)
                elif wants is not None and not wants(message):
                    run.filtered += 1
                else:
                    result = function(message)
                    if result is not None:
                        self._keep(run, index, [self._prepare(message, result)])
            except Exception as error:  # noqa: BLE001
                self._fail(run, index, message, error, clock() - last)
            now = clock()
            if now - last > slowest:  # noqa: PLR1730
                slowest = now - last
            last = now
            if now >= self._look_ns:
                self._close(run, index + 1, now - started, slowest)
                self._flush()
                run = Run(run.chunk_id, queue, run.offsets, index + 1)
                slowest = 0
                started = last = clock()
                self._look_ns = self._due_ns = last + self._interval_ns
        self._close(run, end, last - started, slowest)


def in_the_worker() -> tuple[float, float]:
    """CPU µs per message of the worker's loop at no-op, with and without attribution; medians of pairs."""
    queue, records = QueueInfo("group", TOPIC, "broker", 0), 64
    body = bytes(1024)
    data = b"".join(encode_message(StoredMessage(TOPIC, body, queue_offset=number)) for number in range(records))
    times: dict[type[Runner], list[float]] = {Runner: [], BareRunner: []}
    runners = {
        kind: kind(as_handler(no_op), None, cell=private_cell(), bounds=WorkerBounds(), clock=time.monotonic_ns,
                   flush=lambda: None)
        for kind in times
    }  # fmt: skip
    for _ in range(PAIRS):
        for kind, runner in runners.items():
            begin = time.thread_time_ns()
            for number in range(CHUNKS_A_PAIR):
                runner.claims.handed()
                runner.run_chunk(number + 1, queue, data, records)
            times[kind].append((time.thread_time_ns() - begin) / CHUNKS_A_PAIR / records / 1000)
            runner.take()
    bare = median(times[BareRunner])
    return bare + median(real - bare for real, bare in zip(times[Runner], times[BareRunner], strict=True)), bare


def costs(runs: int, messages: int) -> list[dict[str, object]]:
    """CPU µs per message of a no-op without and with time limits, and what one message's cell takes of it."""
    found: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(runs):
        for name, settings in (("without", {}), ("with", LIMITS)):
            source = Source(messages)
            try:
                one = throughput.run("no_op", 1, source.name_server, source.messages, "replay", settings)
            finally:
                source.stop()
            found[name].append(one["supervisor_us"] + one["workers_us"])
    with_us, bare_us = in_the_worker()
    cell_us = with_us - bare_us
    without, limited = median(found["without"]), median(found["with"])
    return [{"handler": "no_op", "runs": runs, "cpu_us": without, "cpu_us_with_limits": limited, "worker_loop_us": with_us,
             "of_that_cells_us": cell_us,
             "share_percent": 100 * (limited - without + cell_us) / limited}]  # fmt: skip


def recycled_rate(seconds: float, settings: Mapping[str, object]) -> tuple[float, int]:
    """(messages a second of naps of 1 ms, behind the first tenth; how many workers left on the way)."""
    source = Source(messages_for(1_000_000, seconds), queues=QUEUES)
    with tempfile.TemporaryDirectory() as folder:
        found = Crew(Path(folder), source.name_server, "nap_1ms", "replay", {"workers.count": WORKERS, **settings})
        try:
            wait_done(found, source.messages // 10)
            first, begin = found.done(), time.perf_counter()
            rate = (source.messages - first) / (wait_done(found, source.messages) - begin)
            status = found.status()
            assert status is not None
            return rate, int(status["staff"]["counts"].get("left: messages", 0))
        finally:
            found.stop()
            source.stop()


def recycling(runs: int, seconds: float) -> list[dict[str, object]]:
    """Whether throughput dips while workers are replaced all the time. Naps, so that what the new ones cost in CPU is not
    mistaken for places that stand empty."""
    found: dict[str, list[float]] = {"steady": [], "storm": []}
    left: list[float] = []
    for _ in range(runs):
        found["steady"].append(recycled_rate(seconds, {})[0])
        rate, replaced = recycled_rate(seconds, STORM)
        found["storm"].append(rate)
        left.append(replaced)
    return [{"handler": "nap_1ms", "runs": runs, "rate": median(found["steady"]), "rate_in_a_storm": median(found["storm"]),
             "workers_replaced": median(left),
             "share_percent": 100 * median(b / a for a, b in zip(found["steady"], found["storm"], strict=True))}]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run with a handler that burns CPU")
    parser.add_argument("--rate", type=int, default=500, help="messages a second while dispatch is measured")
    parser.add_argument(
        "--messages", type=int, default=300_000, help="of each run for the cost of attribution and limits"
    )
    options = parser.parse_args()
    interruptible()
    assert efficiency.IN_FLIGHT_MAX >= WORKERS
    report("pool-rates", rates(options.runs, options.seconds))
    report("pool-dispatch", dispatch(options.runs, options.rate, max(1, round(options.seconds))))
    report("pool-costs", costs(options.runs, options.messages))
    report("pool-recycling", recycling(options.runs, options.seconds))
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
