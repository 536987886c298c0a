"""Workers as real processes: boot, both transports, kill -9 at awkward moments, what a successor salvages."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rocketcrew.conf.exit_codes import EXIT_FINE, EXIT_HANDLER
from rocketcrew.workers import packets
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.link import Transport
from rocketcrew.workers.packets import QueueRanges, Ready, Salvaged
from rocketcrew.workers.sealing import open_segments

sys.path.insert(0, str(Path(__file__).parent))

from worker_crew import WAIT_S, WorkerCrew, both, crew, make_crew

__all__ = ["both", "crew", "make_crew"]

UNSEALED = WorkerBounds(seal_idle_ms=3_600_000)
"""Of workers that are to have an open segment when they are stopped or killed: a test may be held up for the second after
which an idle one seals."""


def test_boot_run_seal_stop(make_crew: Callable[[Transport], WorkerCrew], both: Transport) -> None:
    crew = make_crew(both)
    worker = crew.start("system_handlers:rows", bounds=UNSEALED)
    ready = worker.ready()
    assert ready == Ready(worker.process.pid, "system_handlers:rows", "a bigint, b string", False)
    crew.chunk(worker, 1, [b"%d" % n for n in range(32)])
    crew.chunk(worker, 2, [b"x" * 100_000], first_offset=32)
    outcome = worker.outcome()
    assert (outcome.chunk_id, outcome.start, outcome.segment_seq, outcome.failed) == (1, 0, 1, 0)
    assert worker.stop() == EXIT_FINE
    worker.until_closed()
    assert worker.sealed().rows == 33
    assert crew.table() == {n: n for n in range(33)}
    assert worker.process.exitcode == 0
    assert crew.cells.read(0) is None


def test_several_workers_of_one_forkserver(crew: WorkerCrew) -> None:
    workers = [crew.start("system_handlers:silent", segments_dir=None) for _ in range(3)]
    pids = {worker.ready().pid for worker in workers}
    assert len(pids) == 3
    (parent,) = {psutil.Process(pid).ppid() for pid in pids}
    assert parent == crew.servers[0].pid
    for number, worker in enumerate(workers):
        crew.chunk(worker, number + 1, [b"x"] * 8)
    assert [worker.outcome().chunk_id for worker in workers] == [1, 2, 3]
    assert [worker.stop() for worker in workers] == [EXIT_FINE] * 3


def test_a_killed_worker_is_seen_and_its_cell_names_the_message(crew: WorkerCrew) -> None:
    victim = crew.start("system_handlers:spin")
    other = crew.start("system_handlers:silent")
    victim.ready()
    other.ready()
    crew.chunk(victim, 7, [b"a", b"b", b"spin", b"c"])
    cell = crew.until_running(0)
    deadline = time.monotonic() + WAIT_S
    while cell.offset != 2:
        assert time.monotonic() < deadline
        cell = crew.until_running(0)
    assert (cell.chunk_id, cell.records, cell.pid) == (7, 1, victim.process.pid)
    victim.process.kill()
    victim.until_closed()
    assert victim.process.wait(int(WAIT_S * 1_000)) == -signal.SIGKILL
    assert crew.cells.read(0) == cell
    victim.process.kill()  # harmless now
    crew.chunk(other, 8, [b"x"])
    assert other.outcome().chunk_id == 8


def test_the_replacement_salvages_what_was_written(
    make_crew: Callable[[Transport], WorkerCrew], both: Transport
) -> None:
    crew = make_crew(both)
    segments = crew.folder / "segments"
    victim = crew.start("system_handlers:rows", bounds=UNSEALED)
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


def test_many_kills_at_random_instants_lose_no_row_that_was_reported(crew: WorkerCrew) -> None:
    reported: set[int] = set()
    known: set[int] = set()
    salvage: tuple[Path, ...] = ()
    worker = crew.start("system_handlers:rows", bounds=UNSEALED)
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
            assert packet[0] == packets.REPORTS
            for entry in packets.decode_reports(packet)[0]:
                first = round_number * 128 + (entry.chunk_id - 1) * 16 + entry.start
                reported |= set(range(first, first + entry.records))
        assert worker.process.wait(int(WAIT_S * 1_000)) == -signal.SIGKILL
        salvage = tuple(open_segments(crew.folder / "segments", [worker.boot.worker_id]))
        worker = crew.start("system_handlers:rows", cell_slot=0, salvage=salvage, bounds=UNSEALED)
        if salvage:
            part = packets.decode_salvaged(worker.packet(packets.SALVAGED))
            known |= {n for queue in part.messages for start, end in queue.ranges for n in range(start, end)}
    worker.ready()
    assert reported
    assert reported <= known == set(crew.table())


def test_a_handler_that_cannot_be_imported(crew: WorkerCrew, tmp_path: Path) -> None:
    (tmp_path / "explodes.py").write_text("import json\n\ndef table():\n    return {}['key']\n\ntable()\n")
    worker = crew.start("explodes:f")
    failed = packets.decode_boot_failed(worker.packet(packets.BOOT_FAILED))
    assert failed.error == "module \"explodes\": KeyError: 'key' (explodes.py:4)"
    assert [line.strip() for line in failed.traceback.splitlines() if "File" in line] == [
        f'File "{tmp_path}/explodes.py", line 6, in <module>',
        f'File "{tmp_path}/explodes.py", line 4, in table',
    ]
    assert worker.process.wait(int(WAIT_S * 1_000)) == EXIT_HANDLER
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
        ("system_handlers:rwos", 'did you mean "rows"?'),
        ("no_such_module_here:f", 'cannot find module "no_such_module_here"'),
    ],
)
def test_a_handler_that_cannot_be_used(crew: WorkerCrew, target: str, error: str) -> None:
    worker = crew.start(target)
    assert error in packets.decode_boot_failed(worker.packet(packets.BOOT_FAILED)).error
    assert worker.process.wait(int(WAIT_S * 1_000)) == EXIT_HANDLER


def test_columns_that_cannot_be_read_are_a_boot_failure(crew: WorkerCrew) -> None:
    worker = crew.start("system_handlers:rows", schema="a strnig")
    assert "unknown type" in packets.decode_boot_failed(worker.packet(packets.BOOT_FAILED)).error


def test_a_failed_boot_still_salvages_first(crew: WorkerCrew) -> None:
    worker = crew.start("system_handlers:rows", bounds=UNSEALED)
    worker.ready()
    crew.chunk(worker, 1, [b"a"])
    worker.outcome()
    worker.process.kill()
    worker.process.wait(int(WAIT_S * 1_000))
    left = tuple(open_segments(crew.folder / "segments"))
    broken = crew.start("no_such_module_here:f", salvage=left)
    assert packets.decode_salvaged(broken.packet(packets.SALVAGED)).rows == 1
    broken.packet(packets.SALVAGE_DONE)
    broken.packet(packets.BOOT_FAILED)


def test_hooks_run_once_per_worker(crew: WorkerCrew, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    os.environ["NOTES"] = str(notes)
    try:
        worker = crew.start("system_handlers:hooked")
        worker.ready()
        assert notes.read_text().split() == ["up"]
        crew.chunk(worker, 1, [b"x", b"y"])
        worker.outcome()
        assert worker.stop() == EXIT_FINE
    finally:
        del os.environ["NOTES"]
    assert notes.read_text().split() == ["up", "message", "message", "down"]


def test_a_closed_link_ends_the_worker(make_crew: Callable[[Transport], WorkerCrew], both: Transport) -> None:
    crew = make_crew(both)
    worker = crew.start("system_handlers:rows")
    worker.ready()
    worker.link.close()
    assert worker.process.wait(int(WAIT_S * 1_000)) == EXIT_FINE
