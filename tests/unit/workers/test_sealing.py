"""Segments are sealed beside the work: in order, again and again while the disk refuses, and waited for at the end."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.conf.segment_format import OPEN_DIR, READY_DIR
from rocketcrew.durable.files import FileCalls
from rocketcrew.workers import packets
from rocketcrew.workers.own_thread import NoThreadError, OwnThread
from rocketcrew.workers.packets import Report, Sealed
from rocketcrew.workers.sealing import FILES_MAX, Sealer, seal_file

Make = Callable[..., Any]
DEADLINE_S = 20.0


def files(folder: Path, count: int) -> list[tuple[Path, Sealed]]:
    (folder / OPEN_DIR).mkdir()
    (folder / READY_DIR).mkdir()
    found: list[tuple[Path, Sealed]] = []
    for seq in range(1, count + 1):
        path = folder / OPEN_DIR / f"w-{seq}"
        path.write_bytes(b"rows")
        found.append((path, Sealed(seq, 1, 4, path.name)))
    return found


class Disk:
    """Refuses until `refuses` is cleared; the sealing thread waits here between its tries."""

    def __init__(self, folder: Path) -> None:
        self.ready = folder / READY_DIR
        self.refused = threading.Event()
        self.again = threading.Event()
        self.threads: list[threading.Thread] = []
        self.masks: list[set[int]] = []

    def fill(self) -> None:
        """There is no folder to rename into."""
        self.ready.rmdir()

    def free(self) -> None:
        self.ready.mkdir()
        self.again.set()

    def pause(self, what: str, error: OSError) -> None:
        assert what == "sealing a segment"
        assert error.errno == errno.ENOENT
        self.threads.append(threading.current_thread())
        self.masks.append({int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())})
        self.refused.set()
        assert self.again.wait(DEADLINE_S)


def test_the_loop_goes_on_while_a_thread_seals_in_order(tmp_path: Path) -> None:
    found, disk = files(tmp_path, 3), Disk(tmp_path)
    disk.fill()
    sealer = Sealer(disk.ready, pause=disk.pause, waits=lambda: None)
    for path, sealed in found:
        sealer.add(path, sealed)
    assert disk.refused.wait(DEADLINE_S)
    assert sealer.busy
    assert sealer.take() == []
    assert threading.current_thread() not in disk.threads
    assert int(signal.SIGTERM) in disk.masks[0]  # signals are for the thread that runs the handler
    disk.free()
    sealer.finish()
    assert sealer.take() == [sealed for _, sealed in found]
    assert not sealer.busy
    assert sorted(path.name for path in disk.ready.iterdir()) == ["w-1", "w-2", "w-3"]


def test_a_file_that_is_sealed_after_all_is_the_end_of_the_trouble(tmp_path: Path) -> None:
    """Said once a file that was refused, and by that only."""
    found, story = files(tmp_path, 2), list[str]()
    (tmp_path / READY_DIR).rmdir()

    def pause(what: str, _error: OSError) -> None:
        story.append(what)
        if len(story) == 2:
            (tmp_path / READY_DIR).mkdir()

    sealer = Sealer(tmp_path / READY_DIR, pause=pause, waits=None, goes_on=lambda: story.append("goes on"))
    for path, sealed in found:
        sealer.add(path, sealed)
    assert story == ["sealing a segment", "sealing a segment", "goes on"]


def test_a_later_file_finds_a_thread_again(tmp_path: Path) -> None:
    found = files(tmp_path, 2)
    sealer = Sealer(tmp_path / READY_DIR, pause=pytest.fail, waits=lambda: None)
    for path, sealed in found:
        sealer.add(path, sealed)
        sealer.finish()
        assert sealer.take() == [sealed]


def test_where_no_thread_can_be_had_the_loop_seals_and_asks_no_more(tmp_path: Path) -> None:
    """After a handler that took all memory that its limit allows: the worker would stand still at each file."""
    found, asked = files(tmp_path, 2), list[str]()

    def refuses(_run: Callable[[], None]) -> OwnThread:
        asked.append("thread")
        raise NoThreadError("can't start new thread")

    sealer = Sealer(tmp_path / READY_DIR, pause=pytest.fail, waits=lambda: None, begin=refuses)
    for path, sealed in found:
        sealer.add(path, sealed)
        assert sealer.take() == [sealed]
    sealer.finish()
    assert asked == ["thread"]


def test_a_loop_that_seals_looks_after_the_supervisor_while_the_disk_refuses(tmp_path: Path) -> None:
    ((path, sealed),) = files(tmp_path, 1)
    (tmp_path / READY_DIR).rmdir()

    class GoneError(Exception):
        pass

    def gone() -> None:
        raise GoneError

    def refuses(_run: Callable[[], None]) -> OwnThread:
        raise NoThreadError("can't start new thread")

    sealer = Sealer(tmp_path / READY_DIR, pause=lambda _what, _error: None, waits=gone, begin=refuses)
    with pytest.raises(GoneError):
        sealer.add(path, sealed)


def test_what_ends_the_thread_is_raised_in_the_loop_where_it_lasts_and_over_where_it_does_not(tmp_path: Path) -> None:
    """A MemoryError: no thread after thread is started for it, and nobody waits for one that is gone."""
    found = files(tmp_path, 1)
    refused, story = [MemoryError(), MemoryError()], list[str]()

    class Short(FileCalls):
        def fsync(self, fd: int) -> None:
            story.append("sync")
            if refused:
                raise refused.pop()
            super().fsync(fd)

    def runs_here(run: Callable[[], None], _arguments: tuple[()]) -> int:
        story.append("thread")
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        with pytest.raises(MemoryError):
            run()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return 1

    sealer = Sealer(
        tmp_path / READY_DIR, pause=pytest.fail, waits=lambda: None, calls=Short(),
        begin=lambda run: OwnThread(run, runs_here),
    )  # fmt: skip
    with pytest.raises(MemoryError):
        sealer.add(*found[0])
    assert sealer.take() == [found[0][1]]
    assert story.count("thread") == 1


def test_only_so_many_wait_and_the_loop_looks_after_the_supervisor_meanwhile(tmp_path: Path) -> None:
    found, disk = files(tmp_path, FILES_MAX + 1), Disk(tmp_path)
    disk.fill()

    class GoneError(Exception):
        pass

    def gone() -> None:
        raise GoneError

    sealer = Sealer(disk.ready, pause=disk.pause, waits=gone)
    for path, sealed in found[:-1]:
        sealer.add(path, sealed)
    with pytest.raises(GoneError):
        sealer.add(*found[-1])
    with pytest.raises(GoneError):
        sealer.finish()
    disk.free()


def test_a_second_try_behind_the_rename_is_harmless(tmp_path: Path) -> None:
    ((path, _),) = files(tmp_path, 1)
    seal_file(path, tmp_path / READY_DIR)
    seal_file(path, tmp_path / READY_DIR)
    assert (tmp_path / READY_DIR / path.name).read_bytes() == b"rows"


def test_outcomes_come_before_their_seal_and_a_stop_waits_for_it(
    bench: Make, make_record: Make, tmp_path: Path
) -> None:
    b = bench(lambda m: {"text": "x"}, schema="text string", folder=tmp_path, beside=True)
    b.chunk([make_record(offset=0)], 1)
    b.link.send(packets.encode_seal())
    b.chunk([make_record(offset=1)], 2)
    b.link.send(packets.encode_stop())
    b.worker.run()
    story = b.story()
    assert [type(said) for said in story if isinstance(said, (Report, Sealed))].count(Sealed) == 2
    places = {said.segment_seq: at for at, said in enumerate(story) if isinstance(said, Report)}
    seals = {said.seq: at for at, said in enumerate(story) if isinstance(said, Sealed)}
    assert list(seals) == [1, 2]
    assert all(places[seq] < at for seq, at in seals.items())


def test_an_idle_worker_tells_of_the_seal(bench: Make, make_record: Make, tmp_path: Path) -> None:
    b = bench(lambda m: {"text": "x"}, schema="text string", folder=tmp_path, beside=True)
    b.chunk([make_record(offset=0)], 1)
    b.link.send(packets.encode_seal())
    b.steps(3)
    found = [said for said in b.story() if isinstance(said, Sealed)]
    b.sealer.finish()
    b.steps(1)
    found += [said for said in b.story() if isinstance(said, Sealed)]
    assert [said.seq for said in found] == [1]
