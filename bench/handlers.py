"""Handlers of the benchmarks, imported by worker processes from this folder."""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from pathlib import Path

from rocketcrew import Message, handler

SCHEMA = "n bigint"


@handler(schema=SCHEMA)
def no_op(message: Message) -> None:
    """Nothing at all."""


@handler(schema=SCHEMA)
def read_body(message: Message) -> None:
    """Looks at the body: decoded, its checksum compared."""
    assert message.body


@handler(schema=SCHEMA, batch=True)
def no_op_batch(messages: list[Message]) -> None:
    """Nothing at all, for a list."""


@handler(schema=SCHEMA, batch=True)
def read_body_batch(messages: list[Message]) -> None:
    """Looks at every body."""
    for message in messages:
        assert message.body


def burn(cpu_ns: int) -> None:
    """Use that much CPU time of this thread, in pure Python."""
    end = time.thread_time_ns() + cpu_ns
    while time.thread_time_ns() < end:
        pass


class Calls:
    """How often this process's handler was called, and the CPU time of these calls in ns, in a file of its own in the folder
    that BENCH_CALLS names, to be read at any moment: what a worker uses beyond that is not the handler's."""

    def __init__(self) -> None:
        self._pid = 0
        self._words = memoryview(bytearray(16)).cast("q")

    def burn(self, cpu_ns: int) -> None:
        begin = time.thread_time_ns()
        burn(cpu_ns)
        words = self._words if self._pid == os.getpid() else self._open()
        words[0] += 1
        words[1] += time.thread_time_ns() - begin

    def _open(self) -> memoryview[int]:
        self._pid = os.getpid()
        if folder := os.environ.get("BENCH_CALLS"):
            with (Path(folder) / str(self._pid)).open("w+b") as file:
                file.truncate(16)
                self._words = memoryview(mmap.mmap(file.fileno(), 16)).cast("q")
        return self._words


CALLS = Calls()


@handler(schema=SCHEMA)
def burn_100us(_message: Message) -> None:
    CALLS.burn(100_000)


@handler(schema=SCHEMA)
def row_100us(message: Message) -> dict[str, int]:
    """A row for each message."""
    CALLS.burn(100_000)
    return {"n": len(message.body)}


@handler(schema=SCHEMA)
def row_1ms(message: Message) -> dict[str, int]:
    CALLS.burn(1_000_000)
    return {"n": len(message.body)}


@handler(schema=SCHEMA)
def row_10ms(message: Message) -> dict[str, int]:
    CALLS.burn(10_000_000)
    return {"n": len(message.body)}


@handler(schema=SCHEMA)
def nap_1ms(_message: Message) -> None:
    """Takes a place, and no processor."""
    time.sleep(0.001)


@handler(schema=SCHEMA)
def burn_1ms(_message: Message) -> None:
    CALLS.burn(1_000_000)


@handler(schema=SCHEMA)
def burn_10ms(_message: Message) -> None:
    CALLS.burn(10_000_000)


@handler(schema=SCHEMA)
async def returns(_message: Message) -> None:
    """Nothing is awaited."""


@handler(schema=SCHEMA)
async def waits_0(_message: Message) -> None:
    """The other calls go first, once."""
    await asyncio.sleep(0)


@handler(schema=SCHEMA)
async def waits_row(message: Message) -> dict[str, int]:
    """The same, and a row."""
    await asyncio.sleep(0)
    return {"n": message.queue_offset}


@handler(schema=SCHEMA)
async def waits_1ms(_message: Message) -> None:
    await asyncio.sleep(0.001)


@handler(schema=SCHEMA)
async def waits_10ms(_message: Message) -> None:
    await asyncio.sleep(0.01)


@handler(schema="sent_ns bigint, handled_ns bigint")
def latency(message: Message) -> dict[str, int]:
    """The body is the time of sending in ns; the row has both times."""
    return {"sent_ns": int(message.body), "handled_ns": time.time_ns()}


LATENCIES: list[tuple[int, int]] = []
"""(stored in ms, handled in ns) of every message of this worker."""


def write_latencies() -> None:
    """To a file of this worker's in the folder that BENCH_LATENCIES names."""
    lines = "".join(f"{stored_ms} {handled_ns}\n" for stored_ms, handled_ns in LATENCIES)
    (Path(os.environ["BENCH_LATENCIES"]) / f"latencies-{os.getpid()}").write_text(lines)


@handler(schema=SCHEMA, teardown=write_latencies)
def store_latency(message: Message) -> None:
    """Notes when the broker stored it, and the time now."""
    handled_ns = time.time_ns()
    LATENCIES.append((message.store_timestamp_ms, handled_ns))


BURNS = {"burn_100us": 100_000, "burn_1ms": 1_000_000, "burn_10ms": 10_000_000}
ROWS = {"row_100us": 100_000, "row_1ms": 1_000_000, "row_10ms": 10_000_000}
