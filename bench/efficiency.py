"""(b) and (d): handlers that burn 0.1, 1 and 10 ms of CPU, against bare processes and against the pools of the library.

efficiency = (as many bare processes as workers doing the same calls) over measured, taken right after each other; overhead =
CPU µs per message of all processes beyond the handler's own, which decides where noise hides the ratio. The pools
(threads, ProcessPoolExecutor) are fed by the same client from the same source.

    python bench/efficiency.py [--runs 5] [--seconds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from handlers import BURNS, burn
from measure import HERE, Crew, Source, interruptible, median, report, wait_done

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


def burnt_us(cpu_ns: int) -> float:
    """What one call of the handler really uses: it looks at the clock, and ends some µs late."""
    calls = max(10, 200_000_000 // cpu_ns)
    begin = time.thread_time_ns()
    for _ in range(calls):
        burn(cpu_ns)
    return (time.thread_time_ns() - begin) / calls / 1000


def crew(handler: str, count: int) -> tuple[float, float]:
    """(seconds for the last nine tenths scaled to all, overhead in CPU µs per message)."""
    source = Source(count, queues=QUEUES)
    with tempfile.TemporaryDirectory() as folder:
        found = Crew(Path(folder), source.name_server, handler, "replay", {"workers.count": WORKERS})
        try:
            wait_done(found, count // 10)
            first, (supervisor, workers) = found.done(), found.cpu()
            begin = time.perf_counter()
            end = wait_done(found, count)
            supervisor_end, workers_end = found.cpu()
            counted = count - first
            used = (supervisor_end - supervisor + workers_end - workers) / counted
            return (end - begin) * count / counted, used - burnt_us(BURNS[handler])
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    interruptible()
    rows: list[dict[str, object]] = []
    for handler, cpu_ns in BURNS.items():
        count = messages_for(cpu_ns, options.seconds)
        ratios: dict[str, list[float]] = {"crew": [], "threads": [], "processes": []}
        overheads: list[float] = []
        for _ in range(options.runs):
            ideal = bare(cpu_ns, count)
            seconds, overhead = crew(handler, count)
            overheads.append(overhead)
            ratios["crew"].append((ideal + bare(cpu_ns, count)) / 2 / seconds)
            ratios["threads"].append(ideal / pool(ThreadPoolExecutor, cpu_ns, count))
            ratios["processes"].append(ideal / pool(ProcessPoolExecutor, cpu_ns, count))
        rows.append({
            "handler": handler, "messages": count, "runs": options.runs,
            "efficiency": median(ratios["crew"]), "overhead_cpu_us": median(overheads),
            "thread_pool": median(ratios["threads"]), "process_pool": median(ratios["processes"]),
        })  # fmt: skip
    report("efficiency", rows)


if __name__ == "__main__":
    main()
