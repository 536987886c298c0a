"""What is kept grows with what is there, not with all that ever was: behind one old entry, and of many reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rocketcrew.durable.intervals import Intervals
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.backlog import STALE_FILES_MAX, Files
from rocketcrew.supervisor.core.actions import JournalCommitted, JournalDone, JournalLost, JournalSealed
from rocketcrew.supervisor.core.journal import BLOCK_BYTES, JournalState, replay, snapshot
from rocketcrew.supervisor.core.ledger import STALE_STARTS_MAX, Ledger
from rocketcrew.supervisor.journal_file import JournalFile, keep_journal, read_journal

A, B = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)
TOKEN = ("w1", 1)


def test_behind_a_file_that_stays_those_that_come_and_go_are_forgotten() -> None:
    files = Files()
    files.put("stays.arrows", 1, 1)
    for number in range(2_000):
        files.put(f"w-{number}.arrows", 100, 1_000 + number)
        files.drop(f"w-{number}.arrows")
        assert files.oldest_ns() == 1
    assert len(files) == 1
    assert len(files._oldest) <= 2 + STALE_FILES_MAX  # pyright: ignore[reportPrivateUsage]
    files.put("later.arrows", 1, 7)
    files.drop("stays.arrows")
    assert files.oldest_ns() == 7


def test_a_file_that_is_written_again_and_again_is_one_entry_or_a_few() -> None:
    files = Files()
    files.put("stays.arrows", 1, 1)
    for number in range(2_000):
        files.put("grows.arrows", number, 10 + number)
    assert len(files._oldest) <= 4 + STALE_FILES_MAX  # pyright: ignore[reportPrivateUsage]
    files.drop("stays.arrows")
    assert files.oldest_ns() == 10 + 1_999


def test_behind_a_segment_that_is_held_those_that_are_released_are_forgotten() -> None:
    ledger = Ledger(0)
    ledger.hold(TOKEN, 0, 1, 1)
    ledger.finish(0, 1)
    for number in range(1, 2_000):
        ledger.hold(("w1", number + 1), number, number + 1, 1)
        ledger.finish(number, number + 1)
        ledger.release(("w1", number + 1))
        assert ledger.head == 0
    assert len(ledger._starts) <= 2 + STALE_STARTS_MAX  # pyright: ignore[reportPrivateUsage]
    ledger.hold(("w2", 1), 2_000, 2_001, 1)
    ledger.finish(2_000, 2_001)
    ledger.release(TOKEN)
    assert ledger.head == 2_000


def test_what_waits_for_a_segment_is_an_interval_however_many_reports_it_came_in() -> None:
    state = JournalState()
    for at in range(3_000):
        state.apply(JournalDone(A, at, at + 1, *TOKEN))
        state.apply(JournalDone(B, 2 * at, 2 * at + 2, *TOKEN))
    assert state.pending == {TOKEN: {A: Intervals([(0, 3_000)]), B: Intervals([(0, 6_000)])}}
    assert len(snapshot(state)[0]) < 300


def test_what_waits_is_forgotten_by_queue_and_by_segment() -> None:
    state = JournalState()
    for mq in (A, B):
        state.apply(JournalCommitted(mq, 5, 10))
        state.apply(JournalDone(mq, 10, 12, *TOKEN))
        state.apply(JournalDone(mq, 12, 14, "w1", 2))
    assert state.apply(JournalCommitted(A, 5, 5))  # a reset
    assert state.pending == {TOKEN: {B: Intervals([(10, 12)])}, ("w1", 2): {B: Intervals([(12, 14)])}}
    state.apply(JournalLost("w1", 2))
    state.apply(JournalSealed(*TOKEN))
    assert state.pending == {}
    assert state.recovered() == {B: (10, Intervals([(10, 12)]))}


def test_what_two_slots_knew_of_a_segment_is_by_queue_what_the_later_one_knew() -> None:
    mine, other = JournalState(), JournalState()
    for state, committed in ((mine, 3), (other, 5)):
        state.apply(JournalCommitted(A, 0, committed))
        state.apply(JournalDone(A, committed, committed + 3, *TOKEN))
    other.apply(JournalDone(B, 0, 1, *TOKEN))
    mine.merge(other)
    assert mine.pending == {TOKEN: {A: Intervals([(5, 8)]), B: Intervals([(0, 1)])}}


def test_a_state_longer_than_a_block_is_cut_into_several_and_read_back_whole() -> None:
    state = JournalState()
    state.apply(JournalCommitted(A, 0, 0))
    state.apply(JournalCommitted(B, 5, 5))
    state.apply(JournalDone(B, 7, 9, "", 0))
    for at in range(1, 120_000, 2):  # each is an interval of its own
        state.apply(JournalDone(A, at, at + 1, *TOKEN))
    data, encoder = snapshot(state)
    assert len(data) > BLOCK_BYTES
    assert replay(data, "j") == (state, len(data))
    assert replay(data[:-1], "j")[1] > BLOCK_BYTES, "one block for all: torn, it would take everything with it"
    later = JournalDone(B, 11, 12, "w1", 2)
    state.apply(later)
    assert replay(data + encoder.blocks([later]), "j")[0] == state


def test_the_file_stays_small_while_one_segment_waits_for_the_table(tmp_path: Path) -> None:
    file = JournalFile(tmp_path / "journal", JournalState(), 20_000)
    for at in range(3_000):
        file.append([JournalDone(A, at, at + 1, *TOKEN)])
    file.close()
    assert (tmp_path / "journal").stat().st_size <= 10_100
    assert read_journal(tmp_path / "journal").pending == {TOKEN: {A: Intervals([(0, 3_000)])}}


@pytest.mark.parametrize("lost", [0, 1, 10])
def test_a_journal_that_is_not_read_to_its_end_is_reported(tmp_path: Path, lost: int) -> None:
    path, state = tmp_path / "journal", JournalState()
    state.apply(JournalDone(A, 3, 5, "", 0))
    keep_journal(path, state)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - lost])
    with capture_logs() as logs:
        found = read_journal(path)
    if not lost:
        assert (found, logs) == (state, [])
        return
    assert found == JournalState()
    assert [(line["event"], line["file"]) for line in logs] == [("journal_cut_short", str(path))]
    assert logs[0]["read_bytes"] + logs[0]["lost_bytes"] == len(whole) - lost
