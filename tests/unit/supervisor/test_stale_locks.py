"""Locks of killed runs are given up once, and only when nothing of those runs lives."""

from __future__ import annotations

import os
from pathlib import Path

from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.member.stale_locks import NOTE_FILE, OWNERS_MAX, StaleLocks, is_alive, take_over_locks
from rocketcrew.workers.cells import CELLS_FILE, CellFile, map_cell

ONE, TWO = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


def worker(slot: Path, pid: int) -> None:
    """The slot has the cell of a worker with that process number."""
    CellFile(slot / CELLS_FILE, 2).close()
    map_cell(slot / CELLS_FILE, 1, pid)


def test_a_clean_end_leaves_nothing(tmp_path: Path) -> None:
    first = StaleLocks(tmp_path, "first")
    assert first.to_give_up([ONE]) == []
    first.note()
    first.forget()
    assert StaleLocks(tmp_path, "second").owners == ()


def test_each_queue_is_given_up_once_for_every_killed_run(tmp_path: Path) -> None:
    StaleLocks(tmp_path, "first").note()
    StaleLocks(tmp_path, "second").note()
    third = StaleLocks(tmp_path, "third")
    assert third.owners == ("first", "second")
    assert third.to_give_up([ONE, TWO]) == [ONE, TWO]
    assert third.to_give_up([ONE]) == [ONE], "nobody has heard it yet"
    third.given_up([ONE])
    assert third.to_give_up([ONE, TWO]) == [TWO]


def test_nothing_is_given_up_while_a_worker_of_the_dead_lives(tmp_path: Path) -> None:
    worker(tmp_path, 4711)
    StaleLocks(tmp_path, "first").note()
    living = {4711}
    second = StaleLocks(tmp_path, "second", living.__contains__)
    assert second.to_give_up([ONE]) == []
    living.clear()
    assert second.to_give_up([ONE]) == [ONE]
    living.add(4711)
    assert second.to_give_up([ONE]) == [ONE], "a number that is used anew is not that worker"


def test_a_number_that_was_free_at_the_start_is_nobodys(tmp_path: Path) -> None:
    worker(tmp_path, 4711)
    StaleLocks(tmp_path, "first").note()
    living: set[int] = set()
    second = StaleLocks(tmp_path, "second", living.__contains__)
    living.add(4711)  # as in a container, where our own workers get the numbers of the last ones
    assert second.to_give_up([ONE]) == [ONE]


def test_the_note_is_bounded_and_may_be_damaged(tmp_path: Path) -> None:
    for number in range(OWNERS_MAX + 3):
        StaleLocks(tmp_path, f"run-{number}").note()
    owners = StaleLocks(tmp_path, "last").owners
    assert len(owners) == OWNERS_MAX
    assert owners[-1] == f"run-{OWNERS_MAX + 2}"
    (tmp_path / NOTE_FILE).write_text("{")
    assert StaleLocks(tmp_path, "last").owners == ()


def test_a_note_that_cannot_be_written_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / NOTE_FILE).mkdir()
    StaleLocks(tmp_path, "first").note()
    assert os.listdir(tmp_path) == [NOTE_FILE]


def test_locks_of_another_dead_slot_are_taken_over_unless_a_worker_lives(tmp_path: Path) -> None:
    own, dead, busy = tmp_path / "0", tmp_path / "1", tmp_path / "2"
    for folder in (own, dead, busy):
        folder.mkdir()
    StaleLocks(own, "own").note()
    StaleLocks(dead, "dead").note()
    StaleLocks(busy, "busy").note()
    worker(busy, os.getpid())
    take_over_locks(own, dead)
    take_over_locks(own, busy)
    assert StaleLocks(own, "next").owners == ("own", "dead")
    assert not (dead / NOTE_FILE).exists()


def test_this_process_is_alive_and_an_impossible_one_is_not() -> None:
    assert is_alive(os.getpid())
    assert not is_alive(1 << 30)
