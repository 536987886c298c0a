"""Workers as real processes: forkserver, both transports, kill -9 at awkward moments, handlers of every origin."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.workers import packets
from rocketcrew.workers.api import handler
from rocketcrew.workers.boot import EXIT_BOOT, EXIT_OK, WorkerBoot, WorkerLimits
from rocketcrew.workers.cells import Cell, CellFile
from rocketcrew.workers.link import LinkClosedError, SupervisorLink, Transport, choose_transport, link_pair
from rocketcrew.workers.loading import describe
from rocketcrew.workers.packets import Outcome, QueueInfo, QueueRanges, Ready, Salvaged, Sealed
from rocketcrew.workers.salvage import open_segments
from rocketcrew.workers.slab_memory import SlabMemory
from rocketcrew.workers.spawn import Forkserver, WorkerProcess, WorkerStartError

WAIT_S = 20.0
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
            assert not self.link.closed, f"the worker is gone, exit code {self.process.wait(1_000)}"
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

    def outcome(self) -> Outcome:
        return packets.decode_outcomes(self.packet(packets.OUTCOMES))[0][0]

    def until_done(self, records: int) -> Outcome:
        """Wait until so many records are reported (in parts when the machine is slow); the last part."""
        done = 0
        while True:
            outcome = self.outcome()
            done += outcome.records
            if done >= records:
                return outcome

    def sealed(self) -> Sealed:
        return packets.decode_sealed(self.packet(packets.SEALED))

    def stop(self) -> int | None:
        self.link.send(packets.encode_stop())
        return self.process.wait(int(WAIT_S * 1_000))


class Crew:
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
def make_crew(tmp_path: Path) -> Iterator[Callable[[Transport], Crew]]:
    module = tmp_path / "system_handlers.py"
    module.write_text(HANDLERS)
    sys.path.insert(0, str(tmp_path))
    crews: list[Crew] = []

    def make(transport: Transport) -> Crew:
        crews.append(Crew(tmp_path, transport))
        return crews[-1]

    yield make
    sys.path.remove(str(tmp_path))
    for crew in crews:
        crew.close()


@pytest.fixture
def crew(make_crew: Callable[[Transport], Crew]) -> Crew:
    return make_crew(choose_transport("auto"))


def is_gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_gone(processes: list[psutil.Process], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while left := [process for process in processes if not is_gone(process)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        select.select([], [], [], 0.01)


def test_boot_run_seal_stop(make_crew: Callable[[Transport], Crew], both: Transport) -> None:
    crew = make_crew(both)
    worker = crew.start("system_handlers:rows")
    ready = worker.ready()
    assert ready == Ready(worker.process.pid, "system_handlers:rows", "a bigint, b string", False)
    crew.chunk(worker, 1, [b"%d" % n for n in range(32)])
    crew.chunk(worker, 2, [b"x" * 100_000], first_offset=32)
    outcome = worker.outcome()
    assert (outcome.chunk_id, outcome.start, outcome.segment_seq, outcome.failed) == (1, 0, 1, 0)
    assert worker.stop() == EXIT_OK
    worker.until_closed()
    assert worker.sealed().rows == 33
    assert crew.table() == {n: n for n in range(33)}
    assert worker.process.exitcode == 0
    assert crew.cells.read(0) is None


def test_several_workers_of_one_forkserver(crew: Crew) -> None:
    workers = [crew.start("system_handlers:silent", segments_dir=None) for _ in range(3)]
    pids = {worker.ready().pid for worker in workers}
    assert len(pids) == 3
    (parent,) = {psutil.Process(pid).ppid() for pid in pids}
    assert parent == crew.servers[0].pid
    for number, worker in enumerate(workers):
        crew.chunk(worker, number + 1, [b"x"] * 8)
    assert [worker.outcome().chunk_id for worker in workers] == [1, 2, 3]
    assert [worker.stop() for worker in workers] == [EXIT_OK] * 3


def test_a_killed_worker_is_seen_at_once_and_its_cell_names_the_message(crew: Crew) -> None:
    victim = crew.start("system_handlers:spin")
    other = crew.start("system_handlers:silent")
    victim.ready()
    other.ready()
    crew.chunk(victim, 7, [b"a", b"b", b"spin", b"c"])
    cell = crew.until_running(0)
    deadline = time.monotonic() + WAIT_S
    while cell.position != 2:
        assert time.monotonic() < deadline
        cell = crew.until_running(0)
    assert (cell.chunk_id, cell.records, cell.pid) == (7, 1, victim.process.pid)
    killed = time.monotonic()
    victim.process.kill()
    victim.until_closed()
    assert time.monotonic() - killed < 1.0
    assert victim.process.wait(1_000) == -signal.SIGKILL
    assert crew.cells.read(0) == cell
    victim.process.kill()  # harmless now
    crew.chunk(other, 8, [b"x"])
    assert other.outcome().chunk_id == 8


def test_the_replacement_salvages_what_was_written(make_crew: Callable[[Transport], Crew], both: Transport) -> None:
    crew = make_crew(both)
    segments = crew.folder / "segments"
    victim = crew.start("system_handlers:rows")
    victim.ready()
    crew.chunk(victim, 1, [b"a", b"b"], first_offset=10)
    assert victim.until_done(2).segment_seq == 1
    victim.process.kill()
    victim.until_closed()
    assert victim.process.wait(int(WAIT_S * 1_000)) == -signal.SIGKILL
    left = open_segments(segments, [victim.boot.worker_id])
    assert len(left) == 1
    with left[0].open("ab") as file:  # as if it had been killed inside the next write
        file.write(b"\xff\xff\xff\xff\x00\x10\x00\x00torn")
    successor = crew.start("system_handlers:rows", salvage=tuple(left))
    found = packets.decode_salvaged(successor.packet(packets.SALVAGED))
    assert found == Salvaged(
        left[0].name, "w.0", 1, left[0].name, 2, found.bytes, (QueueRanges("TopicTest", "broker-a", 0, ((10, 12),)),)
    )
    successor.ready()
    assert not left[0].exists()
    assert crew.table() == {10: 10, 11: 11}


def test_many_kills_at_random_instants_lose_no_row_that_was_reported(crew: Crew) -> None:
    reported: set[int] = set()
    known: set[int] = set()
    salvage: tuple[Path, ...] = ()
    worker = crew.start("system_handlers:rows")
    for round_number in range(12):
        worker.ready()
        for chunk in range(8):
            crew.chunk(worker, chunk + 1, [b"x"] * 16, first_offset=round_number * 128 + chunk * 16)
        if round_number % 3:
            select.select([worker.link], [], [], WAIT_S)
        select.select([worker.process.sentinel], [], [], round_number % 4 * 0.0003)
        worker.process.kill()
        worker.until_closed()
        for packet in worker.said:
            assert packet[0] == packets.OUTCOMES
            for entry in packets.decode_outcomes(packet)[0]:
                first = round_number * 128 + (entry.chunk_id - 1) * 16 + entry.start
                reported |= set(range(first, first + entry.records))
        assert worker.process.wait(int(WAIT_S * 1_000)) == -signal.SIGKILL
        salvage = tuple(open_segments(crew.folder / "segments", [worker.boot.worker_id]))
        worker = crew.start("system_handlers:rows", cell_slot=0, salvage=salvage)
        if salvage:
            part = packets.decode_salvaged(worker.packet(packets.SALVAGED))
            known |= {n for queue in part.messages for start, end in queue.ranges for n in range(start, end)}
    worker.ready()
    assert reported
    assert reported <= known == set(crew.table())


def test_a_handler_that_cannot_be_imported(crew: Crew, tmp_path: Path) -> None:
    (tmp_path / "explodes.py").write_text("import json\n\ndef table():\n    return {}['key']\n\ntable()\n")
    worker = crew.start("explodes:f")
    failed = packets.decode_boot_failed(worker.packet(packets.BOOT_FAILED))
    assert failed.error == "module \"explodes\": KeyError: 'key' (explodes.py:4)"
    assert [line.strip() for line in failed.traceback.splitlines() if "File" in line] == [
        f'File "{tmp_path}/explodes.py", line 6, in <module>',
        f'File "{tmp_path}/explodes.py", line 4, in table',
    ]
    assert worker.process.wait(int(WAIT_S * 1_000)) == EXIT_BOOT
    # The forkserver tried that import too, and lives.
    good = crew.start("system_handlers:silent")
    good.ready()


@pytest.mark.parametrize(
    ("target", "error"),
    [
        (
            "system_handlers:broken_setup",
            "set-up hook of handler system_handlers:broken_setup raised ZeroDivisionError",
        ),
        ("system_handlers:coroutine", "coroutine"),
        ("system_handlers:rwos", 'did you mean "rows"?'),
        ("no_such_module_here:f", 'cannot find module "no_such_module_here"'),
    ],
)
def test_a_handler_that_cannot_be_used(crew: Crew, target: str, error: str) -> None:
    worker = crew.start(target)
    assert error in packets.decode_boot_failed(worker.packet(packets.BOOT_FAILED)).error
    assert worker.process.wait(int(WAIT_S * 1_000)) == EXIT_BOOT


def test_columns_that_cannot_be_read_are_a_boot_failure(crew: Crew) -> None:
    worker = crew.start("system_handlers:rows", schema="a strnig")
    assert "unknown type" in packets.decode_boot_failed(worker.packet(packets.BOOT_FAILED)).error


def test_a_failed_boot_still_salvages_first(crew: Crew) -> None:
    worker = crew.start("system_handlers:rows")
    worker.ready()
    crew.chunk(worker, 1, [b"a"])
    worker.outcome()
    worker.process.kill()
    worker.process.wait(int(WAIT_S * 1_000))
    left = tuple(open_segments(crew.folder / "segments"))
    broken = crew.start("no_such_module_here:f", salvage=left)
    assert packets.decode_salvaged(broken.packet(packets.SALVAGED)).rows == 1
    broken.packet(packets.BOOT_FAILED)


def test_hooks_run_once_per_worker(crew: Crew, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    os.environ["NOTES"] = str(notes)
    try:
        worker = crew.start("system_handlers:hooked")
        worker.ready()
        assert notes.read_text().split() == ["up"]
        crew.chunk(worker, 1, [b"x", b"y"])
        worker.outcome()
        assert worker.stop() == EXIT_OK
    finally:
        del os.environ["NOTES"]
    assert notes.read_text().split() == ["up", "message", "message", "down"]


def test_lambdas_and_closures_reach_the_worker(make_crew: Callable[[Transport], Crew], both: Transport) -> None:
    crew = make_crew(both)
    factor = 7
    decorated = handler(schema="a int", batch=True)(lambda messages: [{"a": len(m.body) * factor} for m in messages])
    worker = crew.start(decorated, schema="", limits=WorkerLimits(batch_messages_max=2))
    assert worker.ready()[2:] == ("a int", True)
    crew.chunk(worker, 1, [b"1", b"22", b"333"])
    assert worker.stop() == EXIT_OK
    assert crew.table() == {0: 7, 1: 14, 2: 21}


MAIN_SCRIPT = """
import socket, sys
from dataclasses import dataclass
from rocketcrew.workers import packets
from rocketcrew.workers.boot import WorkerBoot
from rocketcrew.workers.link import Transport, link_pair
from rocketcrew.workers.loading import describe
from rocketcrew.workers.message import make_message
from rocketcrew.workers.spawn import Forkserver

LIMIT = 5

@dataclass
class Row:
    a: int

def measure(body):
    return min(len(body), LIMIT)

def handle(message):
    return Row(measure(message.body))

# No `if __name__ == "__main__"` guard: the worker must not run this script again.
print("started", flush=True)
link, sock = link_pair(Transport.STREAM)
server = Forkserver()
boot = WorkerBoot(worker_id="w", index=0, handler=describe(handle), link=sock, transport=Transport.STREAM, slab=None,
                  group="g", segments_dir=__import__("pathlib").Path(sys.argv[1]), schema="a int")
worker = server.start_worker(boot)
record, _, queue = make_message(b"0123456789").__reduce__()[1]
link.send(packets.encode_queue(1, queue))
link.send(packets.encode_chunk(1, 1, 0, len(record), 1), record)
link.send(packets.encode_stop())
print("exit code", worker.wait(20_000), flush=True)
server.stop()
"""


def test_functions_of_a_script_without_a_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(MAIN_SCRIPT)
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.stdout.split("\n")[:2] == ["started", "exit code 0"], run.stderr
    (path,) = (tmp_path / "ready").iterdir()
    assert pa.ipc.open_stream(path.read_bytes()).read_all().column("a").to_pylist() == [5]


def test_stop_signals_of_the_terminal_reach_the_supervisor_only(crew: Crew) -> None:
    worker = crew.start("system_handlers:rows")
    worker.ready()
    server = crew.servers[0]
    assert server.pid is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        worker.process.kill(number)
        os.kill(server.pid, number)
    crew.chunk(worker, 1, [b"x"])
    assert worker.outcome().failed == 0
    crew.start("system_handlers:rows").ready()


def test_what_a_handler_starts_has_ordinary_signals(crew: Crew) -> None:
    worker = crew.start("system_handlers:environment")
    worker.ready()
    crew.chunk(worker, 1, [b"x"])
    assert worker.stop() == EXIT_OK
    (path,) = (crew.folder / "segments" / "ready").iterdir()
    assert pa.ipc.open_stream(path.read_bytes()).read_all().column("b").to_pylist() == ["False,clean,True"]
    forks = crew.start("system_handlers:forked")
    forks.ready()
    crew.chunk(forks, 1, [b"x"], first_offset=5)
    assert forks.stop() == EXIT_OK
    assert crew.table()[5] == 0


def test_a_closed_link_ends_the_worker(make_crew: Callable[[Transport], Crew], both: Transport) -> None:
    crew = make_crew(both)
    worker = crew.start("system_handlers:rows")
    worker.ready()
    worker.link.close()
    assert worker.process.wait(int(WAIT_S * 1_000)) == EXIT_OK


def test_a_killed_forkserver_takes_its_workers_along_and_is_started_again(crew: Crew) -> None:
    workers = [crew.start("system_handlers:spin") for _ in range(2)]
    for worker in workers:
        worker.ready()
        crew.chunk(worker, 1, [b"spin"])
    crew.until_running(0)
    crew.until_running(1)
    server = crew.servers[0]
    assert server.pid is not None
    first = server.pid
    os.kill(first, signal.SIGKILL)
    for worker in workers:
        worker.until_closed()
        assert worker.process.wait(int(WAIT_S * 1_000)) is not None
    again = crew.start("system_handlers:silent")
    again.ready()
    assert server.pid not in (None, first)


def test_two_generations_side_by_side(crew: Crew) -> None:
    old, new = crew.server("system_handlers"), crew.server("system_handlers")
    first = crew.start("system_handlers:silent", server=old)
    second = crew.start("system_handlers:silent", server=new)
    assert first.ready().pid != second.ready().pid
    assert old.pid != new.pid
    old.stop()
    first.until_closed()
    assert old.pid is None
    crew.chunk(second, 1, [b"x"])
    assert second.outcome().chunk_id == 1


def test_stopping_a_forkserver_ends_everything_it_started(crew: Crew) -> None:
    worker = crew.start("system_handlers:spin")
    worker.ready()
    crew.chunk(worker, 1, [b"spin"])
    crew.until_running(0)
    assert crew.servers[0].pid is not None
    processes = [psutil.Process(crew.servers[0].pid), psutil.Process(worker.process.pid)]
    crew.servers[0].stop()
    wait_gone(processes, 2.0)
    crew.servers[0].stop()  # twice does no harm


def test_a_module_that_hangs_at_import_is_a_clear_error(make_crew: Callable[[Transport], Crew], tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text("import threading\nthreading.Event().wait()\n")
    crew = make_crew(Transport.STREAM)
    server = Forkserver(["hangs"], start_timeout_ms=500)
    crew.servers.append(server)
    with pytest.raises(WorkerStartError, match="did not answer within 500 ms"):
        crew.start("hangs:f", server=server)


THREADED = """
import queue, threading
asked, answers = queue.Queue(), queue.Queue()

def answer():
    while True:
        answers.put(asked.get() + 1)

threading.Thread(target=answer, daemon=True).start()

def handle(message):
    asked.put(message.queue_offset)
    return {"a": answers.get(timeout=20)}
"""


def test_a_module_that_starts_threads_when_imported_has_them_in_each_worker(crew: Crew, tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(THREADED)
    server = crew.server("threaded")
    server.start()
    pid = server.pid
    for number in range(2):
        worker = crew.start("threaded:handle", server=server)
        worker.ready()
        crew.chunk(worker, 1, [b"x"], first_offset=number)
        assert worker.stop() == EXIT_OK
    assert crew.table() == {0: 1, 1: 2}
    assert server.pid == pid


def test_descriptors_are_given_back(crew: Crew) -> None:
    crew.start("system_handlers:silent").ready()

    def one() -> None:
        worker = crew.start("system_handlers:silent", cell_slot=0)
        worker.ready()
        assert worker.stop() == EXIT_OK
        worker.link.close()
        worker.process.close()

    one()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        one()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_supervisor_s_side_never_loads_pyarrow() -> None:
    code = "import sys, json; from rocketcrew.workers import spawn, packets, link, boot, cells, slab_memory, loading; "
    code += "print(json.dumps(['pyarrow' in sys.modules, 'structlog' in sys.modules]))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(run.stdout) == [False, False]
