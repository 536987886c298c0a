"""(b) and (d): handlers that burn 0.1, 1 and 10 ms of CPU, against bare processes and against the pools of the library.

efficiency = (as many bare processes as workers doing the same calls) over measured, taken right after each other; overhead =
CPU µs per message of all processes beyond the handler's own, which decides where noise hides the ratio: the handlers note
their own. The pools (threads, ProcessPoolExecutor) are fed by the same client from the same source. With `--all` the same of
handlers that return a row, and in order.

    python bench/efficiency.py [--runs 5] [--seconds 3] [--all]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from handlers import BURNS, ROWS, burn
from measure import HERE, Crew, Source, cpu_us, interruptible, median, report, wait_done

from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations, parse_pull
from rocketcrew.remoting.headers import PullRequest
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import decode_messages

WORKERS = os.cpu_count() or 1
QUEUES = 8
IN_FLIGHT_MAX = 1000


def messages_for(cpu_ns: int, seconds: float) -> int:
    """Enough for so many seconds on all cores, a multiple of what the source gives out evenly."""
    step = QUEUES * 32
    return max(1, round(seconds * WORKERS / (cpu_ns / 1e9) / step)) * step


def bare(cpu_ns: int, count: int) -> float:
    """Seconds that bare processes need for the same calls: from the first start of work to the last end."""
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[3]); from handlers import burn\n"
        "sys.stdin.readline(); t = time.perf_counter()\n"
        "for _ in range(int(sys.argv[2])): burn(int(sys.argv[1]))\n"
        "print(time.perf_counter() - t)"
    )
    each = str(count // WORKERS)
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(cpu_ns), each, str(HERE)], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True)
        for _ in range(WORKERS)
    ]  # fmt: skip
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return max(float(process.communicate()[0]) for process in processes)


class Used(NamedTuple):
    """CPU of a crew so far, in µs, and what of it its handlers took in how many calls."""

    supervisor_us: float
    workers_us: float
    burnt_us: float
    calls: int

    def beside(self, before: Used) -> tuple[float, float]:
        """µs of CPU a call beside the handler's since then: in the supervisor, and in the workers."""
        calls = self.calls - before.calls
        workers_us = self.workers_us - before.workers_us - (self.burnt_us - before.burnt_us)
        return (self.supervisor_us - before.supervisor_us) / calls, workers_us / calls


def used(crew: Crew, folder: Path) -> Used:
    """The handlers note their calls in the folder (handlers.py, Calls)."""
    workers = crew.workers()
    noted = [struct.unpack("qq", (folder / str(pid)).read_bytes()) for pid in workers]
    return Used(
        cpu_us(crew.child.pid), sum(map(cpu_us, workers)), sum(ns for _, ns in noted) / 1000, sum(n for n, _ in noted)
    )


def crew(handler: str, count: int, settings: Mapping[str, object] = {}) -> tuple[float, float, float]:
    """(seconds for the last nine tenths scaled to all; CPU µs a message beside the handler's in the supervisor, and in the
    workers)."""
    source = Source(count, queues=QUEUES)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as calls:
        os.environ["BENCH_CALLS"] = calls
        found = Crew(Path(folder), source.name_server, handler, "replay", {"workers.count": WORKERS, **settings})
        try:
            wait_done(found, count // 10)
            first, before = found.done(), used(found, Path(calls))
            begin = time.perf_counter()
            end = wait_done(found, count)
            supervisor_us, workers_us = used(found, Path(calls)).beside(before)
            return (end - begin) * count / (count - first), supervisor_us, workers_us
        finally:
            found.stop()
            source.stop()


async def feed(name_server: str, count: int, submit: Callable[[bytes], asyncio.Future[Any]]) -> None:
    """Pull every queue of the source with our client and hand each body to the pool, a bounded number at a time."""
    room = asyncio.Semaphore(IN_FLIGHT_MAX)
    tasks: set[asyncio.Future[Any]] = set()

    def finished(task: asyncio.Future[Any]) -> None:
        tasks.discard(task)
        room.release()

    async def queue(cluster_operations: Operations, address: str, mq: MessageQueue, end: int) -> None:
        offset = 0
        while offset < end:
            header = PullRequest("bench", mq.topic, mq.queue_id, offset, 32, 2, 0, 15_000, 0)
            answer = parse_pull(await cluster_operations.pull(address, header), address)
            offset = answer.header.next_begin_offset
            for message in decode_messages(answer.body):
                await room.acquire()
                task = submit(message.body)
                tasks.add(task)
                task.add_done_callback(finished)

    async with open_cluster(name_server) as cluster:
        operations = Operations(cluster)
        queues = await cluster.queues_to_read("replay")
        address = await cluster.address_of(queues[0])
        await asyncio.gather(*(queue(operations, address, mq, count // QUEUES) for mq in queues))
        await asyncio.gather(*tasks)


def work(cpu_ns: int, body: bytes) -> None:
    """What a pool runs."""
    assert body
    burn(cpu_ns)


def pool(make: Callable[[int], Executor], cpu_ns: int, count: int) -> float:
    """Seconds with a pool of the standard library."""
    source = Source(count, queues=QUEUES)

    async def run() -> float:
        loop = asyncio.get_running_loop()
        with make(WORKERS) as executor:
            await asyncio.gather(*(loop.run_in_executor(executor, work, 0, b"x") for _ in range(WORKERS * 4)))
            begin = time.perf_counter()
            await feed(source.name_server, count, lambda body: loop.run_in_executor(executor, work, cpu_ns, body))
            return time.perf_counter() - begin

    try:
        return asyncio.run(run())
    finally:
        source.stop()


def measured(handler: str, cpu_ns: int, runs: int, seconds: float, *, order: str, pools: bool) -> dict[str, object]:
    count = messages_for(cpu_ns, seconds)
    ratios: dict[str, list[float]] = {"crew": [], "threads": [], "processes": []}
    beside: list[tuple[float, float]] = []
    for _ in range(runs):
        ideal = bare(cpu_ns, count)
        took, supervisor_us, workers_us = crew(handler, count, {"consumer.order": order})
        beside.append((supervisor_us, workers_us))
        ratios["crew"].append((ideal + bare(cpu_ns, count)) / 2 / took)
        if pools:
            ratios["threads"].append(ideal / pool(ThreadPoolExecutor, cpu_ns, count))
            ratios["processes"].append(ideal / pool(ProcessPoolExecutor, cpu_ns, count))
    return {
        "handler": handler, "order": order, "messages": count, "runs": runs, "efficiency": median(ratios["crew"]),
        "overhead_cpu_us": median(sum(each) for each in beside), "of_supervisor_us": median(each[0] for each in beside),
        "thread_pool": median(ratios["threads"]) if pools else "",
        "process_pool": median(ratios["processes"]) if pools else "",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--all", action="store_true", help="handlers that return a row, and order = queue, too")
    options = parser.parse_args()
    interruptible()
    rows = [
        measured(handler, cpu_ns, options.runs, options.seconds, order=order, pools=first)
        for handlers, order, first in (
            (BURNS, "concurrent", True), (ROWS, "concurrent", False), (BURNS, "queue", False), (ROWS, "queue", False)
        )
        if first or options.all
        for handler, cpu_ns in handlers.items()
    ]  # fmt: skip
    report("efficiency", rows)


if __name__ == "__main__":
    main()
