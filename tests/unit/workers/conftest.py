from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rocketcrew.conf.segment_format import READY_DIR
from rocketcrew.remoting.batch import encode_batch
from rocketcrew.remoting.codes import SYSFLAG_INNER_BATCH, SYSFLAG_NEED_UNWRAP
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.workers.api import as_handler
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.cells import private_cell
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.failures import Failure
from rocketcrew.workers.link import SupervisorLink, Transport, WorkerLink, link_pair
from rocketcrew.workers.packets import (
    REPORTS,
    SEALED,
    QueueInfo,
    Report,
    Sealed,
    decode_reports,
    decode_sealed,
    encode_chunk,
    encode_queue,
)
from rocketcrew.workers.rows import RowBuffer
from rocketcrew.workers.sealing import Sealer
from rocketcrew.workers.segment import SegmentWriter
from rocketcrew.workers.worker import WorkerLoop

QUEUE = QueueInfo("group", "TopicTest", "broker-a", 3)


class Clock:
    """Monotonic nanoseconds that move by hand only."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def __call__(self) -> int:
        return self.now_ns

    def advance_ms(self, ms: float) -> None:
        self.now_ns += int(ms * 1_000_000)


class Log:
    """Keeps log events."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def _add(self, event: str, **keys: Any) -> None:
        self.events.append({"event": event} | keys)

    debug = info = warning = error = _add


def record(body: bytes = b"body", *, offset: int = 0, topic: str = "TopicTest", **more: Any) -> bytes:
    properties = more.pop("properties", {})
    return encode_message(
        StoredMessage(topic, body, encode_properties(properties).encode(), queue_offset=offset, **more)
    )


def inner_batch(bodies: list[bytes], *, offset: int = 0, tags: list[str] | None = None) -> bytes:
    entries = [
        (0, body, encode_properties({"TAGS": tags[number]} if tags else {}).encode())
        for number, body in enumerate(bodies)
    ]
    return record(encode_batch(entries), offset=offset, sysflag=SYSFLAG_NEED_UNWRAP | SYSFLAG_INNER_BATCH)


def spoil_body(stored: bytes) -> bytes:
    """The record with one bit of its body turned over (bodies of IPv4 records begin at byte 88)."""
    data = bytearray(stored)
    data[88] ^= 1
    return bytes(data)


class Bench:
    """A worker in this process and the supervisor's end of its link."""

    def __init__(
        self,
        handler: object,
        *,
        schema: str | None = None,
        folder: Path | None = None,
        transport: Transport = Transport.STREAM,
        bounds: WorkerBounds | None = None,
        write: Callable[[int, memoryview], int] | None = None,
        beside: bool = False,
        cell: Any = None,
    ) -> None:
        """`beside`: segments are sealed by a thread, as in production. `cell`: None for one that nobody reads."""
        self.clock = Clock()
        self.log = Log()
        self.link: SupervisorLink
        self.link, sock = link_pair(transport)
        self.worker_link = WorkerLink(sock, transport)
        self.paused: list[str] = []
        self.cell = private_cell() if cell is None else cell
        self.slab = mmap.mmap(-1, 1 << 20) if transport is Transport.SLAB else None
        self._slab_end = 0
        bounds = bounds or WorkerBounds()
        rows = self.segments = self.sealer = None
        if folder is not None:
            rows = RowBuffer[Any](None if schema is None else parse_ddl(schema), "group")
            more = {} if write is None else {"write": write}
            self.segments = SegmentWriter(
                folder,
                "w1",
                rows.schema,
                seal_rows=bounds.seal_rows,
                seal_bytes=bounds.seal_bytes,
                seal_idle_ms=bounds.seal_idle_ms,
                pause=lambda what, _error: self.paused.append(what),
                **more,
            )
            self.sealer = Sealer(
                folder / READY_DIR,
                pause=lambda what, _error: self.paused.append(what),
                waits=self.waits if beside else None,
            )
        self.worker = WorkerLoop(
            self.worker_link,
            as_handler(handler),
            bounds=bounds,
            slab=self.slab,
            rows=rows,
            segments=self.segments,
            sealer=self.sealer,
            clock=self.clock,
            cell=self.cell,
            log=self.log,
        )
        self.queue(QUEUE)

    def waits(self) -> None:
        """The loop waits for the thread."""

    def queue(self, queue: QueueInfo, handle: int = 1) -> None:
        self.link.send(encode_queue(handle, queue))

    def chunk(
        self, records: list[bytes], chunk_id: int = 1, handle: int = 1, *, window_open: bool = False,
        journalled: bool = True,
    ) -> None:  # fmt: skip
        data = b"".join(records)
        offset: int = 0
        payload: bytes | None = data
        if self.slab is not None:
            offset, payload = self._slab_end, None
            self._slab_end += len(data)
            self.slab[offset : self._slab_end] = data
        packet = encode_chunk(
            chunk_id, handle, offset, len(data), len(records), window_open=window_open, journalled=journalled
        )
        self.link.send(packet, payload)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.worker.step()

    def packets(self) -> list[bytes]:
        return self.link.receive()

    def outcomes(self) -> tuple[list[Report], list[tuple[int, Failure]]]:
        entries: list[Report] = []
        failures: list[tuple[int, Failure]] = []
        for packet in self.packets():
            if packet[0] == REPORTS:
                more, failed = decode_reports(packet)
                entries += more
                failures += failed
        return entries, failures

    def story(self) -> list[Report | tuple[int, Failure] | Sealed]:
        """Everything the worker said, in order."""
        said: list[Report | tuple[int, Failure] | Sealed] = []
        for packet in self.packets():
            if packet[0] == REPORTS:
                entries, failures = decode_reports(packet)
                said += [*entries, *failures]
            elif packet[0] == SEALED:
                said.append(decode_sealed(packet))
        return said

    def close(self) -> None:
        self.link.close()
        self.worker_link.close()
        if self.segments is not None and self.segments.is_open:
            os.close(self.segments._fd)  # pyright: ignore[reportPrivateUsage]
            self.segments = None


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(handler: object, **more: Any) -> Bench:
        made.append(Bench(handler, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def read_ready() -> Callable[[Path], pa.Table]:
    """All rows in the sealed segments of a folder."""

    def read(folder: Path) -> pa.Table:
        tables = [
            pa.ipc.open_stream(path.read_bytes()).read_all() for path in sorted((folder / READY_DIR).glob("*.arrows"))
        ]
        return pa.concat_tables(tables)

    return read


@pytest.fixture
def make_record() -> Callable[..., bytes]:
    return record


@pytest.fixture
def make_inner_batch() -> Callable[..., bytes]:
    return inner_batch


@pytest.fixture
def spoil() -> Callable[[bytes], bytes]:
    return spoil_body


@pytest.fixture
def queue() -> QueueInfo:
    return QUEUE
