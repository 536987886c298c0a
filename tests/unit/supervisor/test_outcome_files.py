"""What the supervisor notes of messages without rows, and how it reaches the loader."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcrew.durable.intervals import Intervals, QueueKey
from rocketcrew.durable.outcomes import FILTERED, NO_ROWS, RECOVERED, SENT_BACK, Outcomes, notes_from_json
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.actions import JournalCommitted, JournalDone
from rocketcrew.supervisor.core.journal import JournalState
from rocketcrew.supervisor.core.outcome_notes import OutcomeNotes
from rocketcrew.supervisor.outcome_files import FILE_BYTES_MAX, OutcomeFiles

MQ = MessageQueue("orders", "broker-a", 3)
KEY = QueueKey("g", "orders", "broker-a", 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outcomes").mkdir()
    return tmp_path / "outcomes"


def found(folder: Path) -> Outcomes:
    return Outcomes.union(notes_from_json(path.read_bytes()) for path in folder.iterdir())


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
    notes.recovered(journal, {MQ: Intervals([(10, 15)])})
    assert notes.take("g").of_queue(RECOVERED, KEY).pieces == ((15, 20), (22, 25))
    notes.recovered(journal, {MQ: Intervals([(10, 30)])})
    assert not notes.take("g"), "settled.json is written behind the notes"


def test_a_file_grows_until_the_loader_takes_it(tmp_path: Path, folder: Path) -> None:
    files, notes = OutcomeFiles(tmp_path, "g"), OutcomeNotes()
    files.write(notes)
    assert list(folder.iterdir()) == [], "nothing noted, nothing written"
    notes.add(NO_ROWS, MQ, 0, 1)
    files.write(notes)
    notes.add(FILTERED, MQ, 1, 3)
    files.write(notes)
    files.write(notes)
    (path,) = folder.iterdir()
    assert found(folder).of_queue(NO_ROWS, KEY).pieces == ((0, 1),)
    assert found(folder).of_queue(FILTERED, KEY).pieces == ((1, 3),)
    path.unlink()
    notes.add(NO_ROWS, MQ, 8, 9)
    files.write(notes)
    assert found(folder).of_queue(NO_ROWS, KEY).pieces == ((8, 9),), "what was taken is not written again"
    assert path.name != next(iter(folder.iterdir())).name


def test_a_large_file_is_left_and_the_next_one_begun(tmp_path: Path, folder: Path) -> None:
    files, notes = OutcomeFiles(tmp_path, "g"), OutcomeNotes()
    for offset in range(0, FILE_BYTES_MAX, 2):
        notes.add(NO_ROWS, MQ, offset, offset + 1)
    files.write(notes)
    notes.add(NO_ROWS, MQ, 1, 2)
    files.write(notes)
    assert len(list(folder.iterdir())) == 2
    assert found(folder).of_queue(NO_ROWS, KEY).count() == FILE_BYTES_MAX // 2 + 1


def test_what_the_disk_refused_is_written_later(tmp_path: Path) -> None:
    files, notes = OutcomeFiles(tmp_path, "g"), OutcomeNotes()
    notes.add(NO_ROWS, MQ, 0, 1)
    with pytest.raises(FileNotFoundError):
        files.write(notes)
    (tmp_path / "outcomes").mkdir()
    notes.add(NO_ROWS, MQ, 5, 6)
    files.write(notes)
    assert found(tmp_path / "outcomes").of_queue(NO_ROWS, KEY).pieces == ((0, 1), (5, 6))
