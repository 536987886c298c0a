"""(e) One message's way from the producer through the embedded broker to the handler, p50 and p99.

The time begins when the producer sends, so that it includes storing; the handler takes the second time as its first act.

    python bench/latency.py [--rate 1000] [--seconds 10] [--runs 5]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow.ipc
from measure import Crew, EmbeddedBroker, interruptible, median, report, wait_done

from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer

TOPIC = "latency"
SEND_MS = 60_000
"""A busy machine is late with answers; what is measured begins behind them."""
WARM_UP = 200


def message() -> OutgoingMessage:
    """With the time of its sending."""
    return OutgoingMessage(TOPIC, str(time.time_ns()).encode())


async def send(name_server: str, rate: int, count: int) -> None:
    """Send at a steady rate, each message with the time of its sending."""
    producer = Producer(name_server, "bench-producer")
    producer.start()
    try:
        begin = time.perf_counter()
        tasks: set[asyncio.Task[object]] = set()
        for number in range(count):
            delay = begin + number / rate - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            tasks.add(asyncio.create_task(producer.send(message(), timeout_ms=SEND_MS)))
        await asyncio.gather(*tasks)
    finally:
        await producer.close()


def run(rate: int, seconds: int) -> list[float]:
    """Milliseconds of every message after the first few."""
    count = WARM_UP + rate * seconds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker = EmbeddedBroker(folder)
        try:
            asyncio.run(send(broker.name_server, rate, 1))  # makes the topic
            crew = Crew(folder, broker.name_server, "latency", TOPIC)
            wait_done(crew, 1)
            asyncio.run(send(broker.name_server, rate, count))
            wait_done(crew, count + 1)
            crew.stop()
            rows = [
                row
                for path in sorted((crew.slot / "segments" / "ready").glob("*.arrows"))
                for row in pyarrow.ipc.open_stream(path.read_bytes()).read_all().to_pylist()
            ]
        finally:
            broker.stop()
    rows.sort(key=lambda row: row["sent_ns"])
    return [(row["handled_ns"] - row["sent_ns"]) / 1e6 for row in rows[WARM_UP:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    interruptible()
    found = [statistics.quantiles(run(options.rate, options.seconds), n=100) for _ in range(options.runs)]
    report("latency", [{
        "rate": options.rate, "runs": options.runs,
        "p50_ms": median(entry[49] for entry in found), "p99_ms": median(entry[98] for entry in found),
    }])  # fmt: skip


if __name__ == "__main__":
    main()
