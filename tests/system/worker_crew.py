"""A forkserver, a slab and worker processes, as the supervisor has them, for the tests of workers alone.

Tests wait for what a worker says, with a deadline; nothing sleeps for a fixed time.
"""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from rocketcrew.conf.units import NS_PER_S
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.workers import packets
from rocketcrew.workers.boot import WorkerBoot
from rocketcrew.workers.cells import Cell, CellFile
from rocketcrew.workers.link import LinkClosedError, SupervisorLink, Transport, choose_transport, link_pair
from rocketcrew.workers.loading import describe
from rocketcrew.workers.packets import QueueInfo, Ready, Report, Sealed
from rocketcrew.workers.slab_memory import SlabMemory
from rocketcrew.workers.spawn import Forkserver, WorkerProcess

WAIT_S = 120.0
QUEUE = QueueInfo("group", "TopicTest", "broker-a", 0)

HANDLERS = """
import ctypes, itertools, os, signal, subprocess, sys, time
from pathlib import Path
from rocketcrew.workers.api import handler

def rows(message):
    return {"a": message.queue_offset, "b": message.body.decode()}

def silent(message):
    len(message.body)

def spin(message):
    if message.body == b"spin":
        for _ in itertools.repeat(None):
            pass
    return {"a": 1}

def environment(message):
    return {"a": os.getpid(), "b": ",".join([
        str(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL),
        "ROCKETCREW_FORKSERVER" in os.environ and "leaked" or "clean",
        subprocess.run([sys.executable, "-c",
            "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"],
            capture_output=True, text=True).stdout.strip(),
    ])}

def forked(message):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else 1)
    return {"a": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}

def note(text):
    with open(os.environ["NOTES"], "a") as file:
        file.write(text + "\\n")

@handler(setup=lambda: note("up"), teardown=lambda: note("down"))
def hooked(message):
    note("message")

@handler(setup=lambda: 1 / 0)
def broken_setup(message):
    pass

async def coroutine(message):
    pass
"""


@dataclass
class Running:
    """One worker and our end of its link."""

    process: WorkerProcess
    link: SupervisorLink
    boot: WorkerBoot
    said: list[bytes]

    def packet(self, *kinds: int) -> bytes:
        """The next packet of one of these kinds."""
        deadline = time.monotonic() + WAIT_S
        while True:
            for number, packet in enumerate(self.said):
                if packet[0] in kinds:
                    del self.said[: number + 1]
                    return packet
            assert not self.link.closed, f"the worker is gone, exit code {self.process.wait(int(WAIT_S * 1_000))}"
            self.wait(deadline)

    def wait(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        assert left > 0, "the worker said nothing"
        select.select([self.link], [], [], left)
        self.said += self.link.receive()

    def until_closed(self) -> None:
        deadline = time.monotonic() + WAIT_S
        while not self.link.closed:
            self.wait(deadline)

    def ready(self) -> Ready:
        return packets.decode_ready(self.packet(packets.READY))

    def outcome(self) -> Report:
        return packets.decode_reports(self.packet(packets.REPORTS))[0][0]

    def until_done(self, records: int) -> Report:
        """Wait until so many records are reported (in parts when the machine is slow); the last part."""
        done = 0
        while True:
            outcome = self.outcome()
            done += outcome.records
            if done >= records:
                return outcome

    def sealed(self) -> Sealed:
        return packets.decode_sealed(self.packet(packets.SEALED))

    def stop(self, within_s: float = 0) -> int | None:
        by_ns = round((time.monotonic() + within_s) * NS_PER_S) if within_s else 0
        self.link.send(packets.encode_stop(by_ns))
        return self.process.wait(int(WAIT_S * 1_000))


class WorkerCrew:
    """A forkserver, a slab and workers, as the supervisor has them."""

    def __init__(self, folder: Path, transport: Transport) -> None:
        self.folder = folder
        self.transport = transport
        self.slab = SlabMemory(1 << 20)
        self.cells = CellFile(folder / "cells", 8)
        self.servers: list[Forkserver] = []
        self.running: list[Running] = []
        self._slab_end = 0

    def server(self, *modules: str) -> Forkserver:
        self.servers.append(Forkserver(modules))
        return self.servers[-1]

    def start(self, target: object, *, server: Forkserver | None = None, **changes: Any) -> Running:
        spec = describe(target)
        if server is None:
            server = self.servers[-1] if self.servers else self.server(*filter(None, [spec.module]))
        link, sock = link_pair(self.transport)
        number = len(self.running)
        boot = WorkerBoot(
            worker_id=f"w.{number}",
            index=number,
            handler=spec,
            link=sock,
            transport=self.transport,
            slab=self.slab.handle() if self.transport is Transport.SLAB else None,
            group="group",
            segments_dir=self.folder / "segments",
            schema="a bigint, b string",
            cells_path=self.folder / "cells",
            cell_slot=number,
        )
        boot = replace(boot, **changes)
        self.running.append(Running(server.start_worker(boot), link, boot, []))
        with contextlib.suppress(LinkClosedError):  # a worker whose handler cannot be had may be gone already
            link.send(packets.encode_queue(1, QUEUE))
        return self.running[-1]

    def chunk(self, worker: Running, chunk_id: int, bodies: list[bytes], first_offset: int = 0) -> None:
        data = b"".join(
            encode_message(StoredMessage(QUEUE.topic, body, queue_offset=first_offset + number))
            for number, body in enumerate(bodies)
        )
        start = self._slab_end
        self._slab_end += len(data)
        self.slab.view[start : self._slab_end] = data
        payload = None if self.transport is Transport.SLAB else data
        assert worker.link.send(packets.encode_chunk(chunk_id, 1, start, len(data), len(bodies)), payload)

    def until_running(self, slot: int) -> Cell:
        """Wait until the worker says that a handler call is under way."""
        deadline = time.monotonic() + WAIT_S
        while (cell := self.cells.read(slot)) is None:
            assert time.monotonic() < deadline
            select.select([], [], [], 0.005)
        return cell

    def table(self) -> dict[int, Any]:
        """Offset -> value of column a, of everything that is sealed."""
        found: dict[int, Any] = {}
        for path in sorted((self.folder / "segments" / "ready").glob("*")):
            for row in pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist():
                assert row["_offset"] not in found
                found[row["_offset"]] = row["a"]
        return found

    def close(self) -> None:
        for worker in self.running:
            worker.link.close()
            worker.process.kill()
        for server in self.servers:
            server.stop()
        self.slab.close()
        self.cells.close()


@pytest.fixture(params=[Transport.SLAB, Transport.STREAM])
def both(request: pytest.FixtureRequest) -> Transport:
    transport: Transport = request.param
    return transport


@pytest.fixture
def make_crew(tmp_path: Path) -> Iterator[Callable[[Transport], WorkerCrew]]:
    module = tmp_path / "system_handlers.py"
    module.write_text(HANDLERS)
    sys.path.insert(0, str(tmp_path))
    crews: list[WorkerCrew] = []

    def make(transport: Transport) -> WorkerCrew:
        crews.append(WorkerCrew(tmp_path, transport))
        return crews[-1]

    yield make
    sys.path.remove(str(tmp_path))
    for crew in crews:
        crew.close()


@pytest.fixture
def crew(make_crew: Callable[[Transport], WorkerCrew]) -> WorkerCrew:
    return make_crew(choose_transport("auto"))


def is_gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_gone(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + WAIT_S
    while left := [process for process in processes if not is_gone(process)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        select.select([], [], [], 0.01)
