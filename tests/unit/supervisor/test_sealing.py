"""What the supervisor notes of messages without rows is on the disk before an offset is sent, and reaches the loader."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "broker"))

from recorded_disk import RecordedDisk

from rocketcrew.durable.facts import facts_from_bytes
from rocketcrew.durable.files import CALLS, FileCalls
from rocketcrew.durable.intervals import Intervals, IntervalSet, QueueKey
from rocketcrew.durable.outcomes import FILTERED, NO_ROWS, RECOVERED, SENT_BACK, SETTLED, Outcomes
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.spark.staging import Staging
from rocketcrew.supervisor.core.actions import JournalCommitted, JournalDone
from rocketcrew.supervisor.core.journal import JournalState
from rocketcrew.supervisor.core.outcome_notes import OutcomeNotes
from rocketcrew.supervisor.sealing import FILE_BYTES_MAX, FactFiles, Sealing
from rocketcrew.supervisor.slot import Slot, take_slot

CASES, FULL_CASES = 120, 10_000
MQ = MessageQueue("orders", "broker-a", 3)
OTHER = MessageQueue("orders", "broker-b", 1)
KEY = QueueKey("g", "orders", "broker-a", 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outcomes").mkdir()
    return tmp_path / "outcomes"


def found(folder: Path) -> Outcomes:
    return Outcomes.union(facts_from_bytes(path.read_bytes()) for path in folder.iterdir())


def seal(files: FactFiles, notes: OutcomeNotes) -> None:
    files.gather(notes)
    if files.waiting:
        files.seal()


def test_notes_are_joined_and_taken_once() -> None:
    notes = OutcomeNotes()
    for offset in (4, 5, 7, 6, 4):
        notes.add(NO_ROWS, MQ, offset, offset + 1)
    notes.add(SENT_BACK, MQ, 9, 10)
    taken = notes.take("g")
    assert taken.of_queue(NO_ROWS, KEY).pieces == ((4, 8),)
    assert taken.of_queue(SENT_BACK, KEY).pieces == ((9, 10),)
    assert not notes.take("g")


def test_what_a_killed_run_finished_behind_its_last_notes_is_noted_by_the_next() -> None:
    journal = JournalState()
    journal.apply(JournalCommitted(MQ, 10, 20))
    journal.apply(JournalDone(MQ, 22, 25, "", 0))
    notes = OutcomeNotes()
    notes.recovered(journal, {})
    assert notes.take("g").of_queue(RECOVERED, KEY).pieces == ((22, 25),), (
        "of the rest facts were sealed before its offset"
    )
    notes.recovered(journal, {MQ: Intervals([(10, 24)])})
    assert notes.take("g").of_queue(RECOVERED, KEY).pieces == ((24, 25),), "of what is settled notes were sealed"
    notes.recovered(journal, {MQ: Intervals([(10, 30)])})
    assert not notes.take("g")


def test_the_next_file_contains_the_last_one_until_the_loader_takes_it(tmp_path: Path, folder: Path) -> None:
    files, notes = FactFiles(tmp_path, "g"), OutcomeNotes()
    seal(files, notes)
    assert list(folder.iterdir()) == [], "nothing noted, nothing written"
    notes.add(NO_ROWS, MQ, 0, 1)
    seal(files, notes)
    (first,) = folder.iterdir()
    before = first.read_bytes()
    notes.add(FILTERED, MQ, 1, 3)
    seal(files, notes)
    seal(files, notes)
    (path,) = folder.iterdir()
    assert path.name > first.name, "a file never changes: another one takes its place"
    first.write_bytes(before)
    assert found(folder).of_queue(NO_ROWS, KEY).pieces == ((0, 1),)
    assert found(folder).of_queue(FILTERED, KEY).pieces == ((1, 3),)
    first.unlink()
    path.unlink()
    notes.add(NO_ROWS, MQ, 8, 9)
    seal(files, notes)
    assert found(folder).of_queue(NO_ROWS, KEY).pieces == ((8, 9),), "what was taken is not written again"


def test_a_large_file_is_left_and_the_next_one_begun(tmp_path: Path, folder: Path) -> None:
    files, notes = FactFiles(tmp_path, "g"), OutcomeNotes()
    for offset in range(0, FILE_BYTES_MAX, 2):
        notes.add(NO_ROWS, MQ, offset, offset + 1)
    seal(files, notes)
    notes.add(NO_ROWS, MQ, 1, 2)
    seal(files, notes)
    assert len(list(folder.iterdir())) == 2
    assert found(folder).of_queue(NO_ROWS, KEY).count() == FILE_BYTES_MAX // 2 + 1


def test_many_queues_have_one_file_however_long_nobody_takes_it(tmp_path: Path, folder: Path) -> None:
    files, notes, queues = FactFiles(tmp_path, "g"), OutcomeNotes(), 1_000
    for turn in range(12):
        for queue in range(queues):
            mq = MessageQueue("orders", f"broker-{queue // 16}", queue % 16)
            for kind in (NO_ROWS, SETTLED):
                notes.add(kind, mq, 10**8 + turn * 100, 10**8 + turn * 100 + 100)
        seal(files, notes)
        (path,) = folder.iterdir()
        assert path.stat().st_size > FILE_BYTES_MAX
    assert found(folder).of_kind(NO_ROWS).count() == queues * 1200


def test_what_the_disk_refused_is_sealed_later(tmp_path: Path) -> None:
    files, notes = FactFiles(tmp_path, "g"), OutcomeNotes()
    notes.add(NO_ROWS, MQ, 0, 1)
    with pytest.raises(FileNotFoundError):
        seal(files, notes)
    (tmp_path / "outcomes").mkdir()
    notes.add(NO_ROWS, MQ, 5, 6)
    seal(files, notes)
    assert found(tmp_path / "outcomes").of_queue(NO_ROWS, KEY).pieces == ((0, 1), (5, 6))


def test_a_draft_that_a_killed_run_left_is_deleted_and_no_other(tmp_path: Path, folder: Path) -> None:
    for name in (f".{1:020d}-77.facts.new", ".w-1.arrows.facts.new", f"{1:020d}-77.facts"):
        (folder / name).touch()
    FactFiles(tmp_path, "g")
    assert {path.name for path in folder.iterdir()} == {".w-1.arrows.facts.new", f"{1:020d}-77.facts"}


class PowerCut(Exception):
    """The power is gone."""


def cut_at_random(place: Path, seed: int, cases: int, *, keeps: bool) -> int:
    """In how many of so many power cuts something was lost of what had been sealed when the power went."""
    random = Random(seed)
    losses = 0
    for number in range(cases):
        root = place / f"{seed}-{number}"
        (root / "outcomes").mkdir(parents=True)
        disk = RecordedDisk(root, keeps=keeps)
        files, notes = FactFiles(root, "g", disk), OutcomeNotes()
        promised = in_table = IntervalSet.of([])
        left = random.randrange(60)

        def count() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerCut

        disk.on_step = count
        noted = IntervalSet.of([])
        try:
            while True:
                start = random.randrange(3_000)
                offsets = range(start, start + random.choice((1, 50, 2_500)), 2)  # up to several pages
                for offset in offsets:
                    notes.add(NO_ROWS, MQ, offset, offset + 1)
                noted |= IntervalSet.from_offsets(offsets)
                seal(files, notes)
                promised = noted
                if random.random() < 0.3:  # the loader commits what it finds, and deletes it
                    (path,) = (root / "outcomes").glob("[!.]*")
                    in_table |= facts_from_bytes(path.read_bytes()).of_queue(NO_ROWS, KEY)
                    disk.unlink(str(path))
        except PowerCut:
            disk.on_step = lambda: None
        disk.cut(random, place / "cut")
        _, after = Staging(place / "cut").noted()
        lost = promised - in_table - after.of_queue(NO_ROWS, KEY)
        losses += bool(lost)
        assert not lost or not keeps, f"seed {seed}, case {number}: lost {lost}"
        shutil.rmtree(place / "cut")
        shutil.rmtree(root)
    return losses


@pytest.mark.parametrize("seed", range(2))
def test_what_was_sealed_survives_any_power_cut(tmp_path: Path, seed: int, full_numbers: bool) -> None:
    assert cut_at_random(tmp_path, seed, (FULL_CASES if full_numbers else CASES) // 2, keeps=True) == 0


def test_without_syncs_it_would_be_lost(tmp_path: Path) -> None:
    """The control: else the test above would prove nothing."""
    assert cut_at_random(tmp_path, 0, 40, keeps=False) > 10


class FullDisk(FileCalls):
    """Makes files and takes no byte, as long as it is full."""

    full = True

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().pwrite(fd, data, position)


class SlowDisk(FileCalls):
    """Holds its first fsync until it may go on."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def fsync(self, fd: int) -> None:
        self.begun.set()
        assert self.go_on.wait(60)
        super().fsync(fd)


class Member:
    """A slot, what a core has noted, and the offsets that were sent, each with what the disk had of it then."""

    def __init__(self, place: Path, *, wanted: bool = True) -> None:
        self.slot: Slot = take_slot(place, "g")
        self.folder = self.slot.segments / "outcomes"
        state: Any = SimpleNamespace(outcomes=OutcomeNotes())
        self.state = state
        self.wanted = wanted
        self.failed = asyncio.Event()
        self.put_on(CALLS)

    def put_on(self, disk: FileCalls) -> None:
        self.sealing = Sealing(self.slot, self.state, 3_600_000, self.failed.set, wanted=self.wanted, calls=disk)

    def finish(self, end: int) -> None:
        self.state.outcomes.add(NO_ROWS, MQ, end - 1, end)
        self.settle(end)

    def settle(self, end: int) -> None:
        self.state.outcomes.add(SETTLED, MQ, end - 1, end)

    def on_disk(self, kind: str = NO_ROWS) -> list[tuple[int, int]]:
        return list(found(self.folder).of_queue(kind, KEY).pieces)


def live(story: Callable[[Member], Any], place: Path, *, wanted: bool = True) -> None:
    async def run() -> None:
        member = Member(place, wanted=wanted)
        try:
            await story(member)
        finally:
            await member.sealing.kill()
            member.slot.release()

    asyncio.run(run())


def test_offsets_that_are_sent_together_wait_for_one_file(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        names: set[str] = set()

        async def send(end: int) -> None:
            assert await member.sealing.sealed()
            ((start, stop),) = member.on_disk()
            assert start == 0
            assert stop >= end
            names.update(path.name for path in member.folder.iterdir())

        for end in range(1, 9):
            member.finish(end)
        await asyncio.gather(*(send(end) for end in range(1, 9)))
        assert len(names) == 1
        assert member.on_disk() == [(0, 8)]
        assert member.on_disk(SETTLED) == [(0, 8)], "and so do not wait in the table's holes"
        await asyncio.gather(*(send(8) for _ in range(3)))
        assert {path.name for path in member.folder.iterdir()} == names, "nothing new: nothing is written"

    live(story, tmp_path)


def test_no_offset_waits_for_what_is_settled_alone(tmp_path: Path) -> None:
    """All of it has rows, in segments that are sealed: the loader learns by the next file that it is finished."""

    async def story(member: Member) -> None:
        member.settle(1)
        member.folder.rmdir()
        assert member.sealing.all_sealed()
        assert await member.sealing.sealed()
        await member.sealing._write()
        assert member.sealing.all_sealed(), "the disk has refused it, and it waits on"
        member.folder.mkdir()
        member.finish(2)
        assert not member.sealing.all_sealed()
        assert await member.sealing.sealed()
        assert (member.on_disk(), member.on_disk(SETTLED)) == ([(1, 2)], [(0, 2)])

    live(story, tmp_path)


def test_what_is_noted_while_a_file_is_being_sealed_is_waited_for(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        member.finish(1)
        first = asyncio.create_task(member.sealing.sealed())
        await asyncio.sleep(0)  # it has taken what there was
        member.finish(2)
        assert await member.sealing.sealed()
        assert member.on_disk() == [(0, 2)]
        assert await first

    live(story, tmp_path)


def test_a_disk_that_refuses_holds_offsets_back_until_it_takes_them(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        member.folder.rmdir()
        member.finish(1)
        assert not await member.sealing.sealed()
        assert not await member.sealing.sealed(), "and it still waits"
        member.folder.mkdir()
        assert await member.sealing.sealed()
        assert member.on_disk() == [(0, 1)]

    live(story, tmp_path)


def test_what_the_disk_refused_leaves_no_draft_and_is_no_longer_refused_then(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        disk = FullDisk()
        member.put_on(disk)
        member.finish(1)
        for _ in range(3):
            assert not await member.sealing.sealed()
        assert os.listdir(member.folder) == []
        disk.full = False
        assert await member.sealing.sealed()
        assert member.on_disk() == [(0, 1)]

    live(story, tmp_path)


def test_a_pull_takes_an_offset_along_only_while_all_is_sealed(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        assert member.sealing.all_sealed()
        member.finish(1)
        assert not member.sealing.all_sealed()
        writing = asyncio.create_task(member.sealing.sealed())
        while member.state.outcomes:  # until it has taken what there was
            assert not member.sealing.all_sealed()
            await asyncio.sleep(0)
        assert not member.sealing.all_sealed() or member.on_disk() == [(0, 1)]
        assert await writing
        assert member.sealing.all_sealed()

    live(story, tmp_path)


def test_one_that_is_cancelled_is_waited_for_by_the_next(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        disk = SlowDisk()
        member.put_on(disk)
        member.finish(1)
        first = asyncio.create_task(member.sealing.sealed())
        assert await asyncio.to_thread(disk.begun.wait, 60)
        first.cancel()
        member.finish(2)
        second = asyncio.create_task(member.sealing.sealed())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not second.done()
        disk.go_on.set()
        assert await second
        assert member.on_disk() == [(0, 2)]

    live(story, tmp_path)


def test_the_last_writing_has_all(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        member.sealing.start()
        member.finish(1)
        await asyncio.sleep(0)
        member.finish(2)
        await member.sealing.end()
        assert member.on_disk() == [(0, 2)]
        assert member.on_disk(SETTLED) == [(0, 2)]

    live(story, tmp_path)


def test_a_writing_that_fails_as_nobody_expected_is_counted_and_is_not_the_last_one(tmp_path: Path) -> None:
    """As where no thread can be started."""

    class NoThread(FileCalls):
        left = 1

        def fsync(self, fd: int) -> None:
            if self.left:
                self.left -= 1
                raise RuntimeError("can't start new thread")
            super().fsync(fd)

    async def story(member: Member) -> None:
        member.put_on(NoThread())
        member.finish(1)
        member.sealing.start()
        await asyncio.wait_for(member.failed.wait(), 60)
        assert not member.sealing.all_sealed()
        assert member.sealing._task is not None
        assert not member.sealing._task.done(), "it is tried again"
        await member.sealing.end()
        assert member.sealing.all_sealed()

    live(story, tmp_path)


def test_without_rows_nothing_is_written(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        member.sealing.start()
        member.finish(1)
        assert await member.sealing.sealed()
        await member.sealing.end()
        assert os.listdir(member.folder) == []
        assert not member.state.outcomes.take("g"), "and nothing gathers in memory"

    live(story, tmp_path, wanted=False)
