"""Counts of worker deaths on disk, and cells that a dead run left."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.charges import NOTED_MAX, SUSPECTS_MAX, Charges
from rocketcrew.supervisor.pool.charges_file import (
    CHARGES_FILE,
    charge_left_cells,
    read_charges,
    take_over_charges,
    write_charges,
)
from rocketcrew.workers.cells import (
    BETWEEN,
    CELLS_FILE,
    LAST,
    RECORDS,
    RSS_PEAK,
    STARTED_NS,
    STATE,
    TEXT,
    TEXT_BYTES,
    CellFile,
    map_cell,
    queue_words,
)

MQ = MessageQueue("orders", "broker-a", 1)


def leave_cell(
    folder: Path, slot: int, offset: int, records: int = 1, *, named: bool = True, started_ns: int = 99
) -> None:
    """A worker dies with its supervisor, and this in hand."""
    CellFile(folder / CELLS_FILE, 8).close()
    cell = map_cell(folder / CELLS_FILE, slot, 4711)
    words, size = queue_words(MQ.topic, MQ.broker_name, MQ.queue_id)
    if named:
        cell[TEXT : TEXT + len(words)], cell[TEXT_BYTES] = words, size
    cell[RSS_PEAK] = 5 << 20
    cell[STARTED_NS], cell[RECORDS], cell[LAST], cell[STATE] = started_ns, records, offset + records - 1, offset + 1


def counts(charges: Charges) -> dict[int, int]:
    return {charge.offset: charge.deaths for charge in charges}


def runs(charges: Charges) -> dict[int, int]:
    return {noted.offset: noted.runs for noted in charges.noted.values()}


def read(folder: Path) -> Charges:
    charges = Charges()
    read_charges(folder, charges)
    return charges


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    charges = Charges()
    charges.charge(MQ, 7, "a", {"cause": "SIGSEGV"}, "ID")
    write_charges(tmp_path, charges)
    again = read(tmp_path)
    found = again.get(MQ, 7)
    assert found is not None
    assert (found.deaths, found.origin, found.facts) == (1, "ID", {"cause": "SIGSEGV"})
    charges.finished(MQ, 7, sent_back=False)
    write_charges(tmp_path, charges)
    assert not (tmp_path / CHARGES_FILE).exists()
    assert read(tmp_path).empty


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"records": [{"offset": 1}], "origins": {}}', "\x00"])
def test_a_damaged_file_begins_anew(text: str, tmp_path: Path) -> None:
    (tmp_path / CHARGES_FILE).write_text(text)
    assert read(tmp_path).empty


def test_what_was_alone_in_the_hands_of_a_dead_run_is_charged_once(tmp_path: Path) -> None:
    leave_cell(tmp_path, 3, 9)
    charges = Charges()
    assert charge_left_cells(tmp_path, charges) == 1
    assert counts(charges) == {9: 1}
    facts = {"end": "whole run died", "cause": "unknown", "pid": "4711", "rss_peak_bytes": str(5 << 20)}
    assert [charge.facts for charge in charges] == [facts]
    assert counts(read(tmp_path)) == {9: 1}, "written before the cells are cleared"
    assert charge_left_cells(tmp_path, read(tmp_path)) == 0
    leave_cell(tmp_path, 3, 9)  # the same call: killed between the file and the clearing
    charge_left_cells(tmp_path, charges)
    assert counts(charges) == {9: 1}


def test_three_kills_of_a_run_during_a_long_message_charge_nobody_when_others_were_in_hand(tmp_path: Path) -> None:
    """The long one is in hand each time, beside another one each time."""
    for kill in range(3):
        leave_cell(tmp_path, 0, 5, started_ns=kill)
        leave_cell(tmp_path, 1, 20 + kill, started_ns=kill)
        charges = read(tmp_path)
        assert charge_left_cells(tmp_path, charges) == 2
    again = read(tmp_path)
    assert counts(again) == {}
    assert runs(again) == {5: 3, 20: 1, 21: 1, 22: 1}


def test_a_run_that_had_more_in_hand_than_is_remembered_keeps_no_start_from_starting(tmp_path: Path) -> None:
    for slot in range(8):
        leave_cell(tmp_path, slot, slot * SUSPECTS_MAX, SUSPECTS_MAX)
    charges = Charges()
    for offset in range(1_000_000, 1_000_000 + NOTED_MAX):
        charges.watch(MQ, offset, 3)
    assert charge_left_cells(tmp_path, charges) == 8
    assert charge_left_cells(tmp_path, charges) == 0


def test_a_kill_while_cells_are_cleared_makes_nobody_alone_to_blame(tmp_path: Path) -> None:
    leave_cell(tmp_path, 0, 5)
    leave_cell(tmp_path, 1, 9)
    charge_left_cells(tmp_path, read(tmp_path))
    leave_cell(tmp_path, 1, 9)  # the other one was cleared before the kill
    charge_left_cells(tmp_path, read(tmp_path))
    assert counts(read(tmp_path)) == {}
    assert runs(read(tmp_path)) == {5: 1, 9: 1}


@pytest.mark.parametrize("records", [1, 3])
def test_a_call_that_names_no_message_was_in_hand_too(records: int, tmp_path: Path) -> None:
    """Coroutines that all waited, or a message that an administrator wanted consumed."""
    leave_cell(tmp_path, 0, BETWEEN - 1)
    leave_cell(tmp_path, 1, 9, records)
    charges = Charges()
    assert charge_left_cells(tmp_path, charges) == 2
    assert counts(charges) == {}
    assert set(runs(charges).values()) == {1}


@pytest.mark.parametrize("records", [1, 3])
def test_a_run_that_was_killed_while_it_stopped_charges_nobody(records: int, tmp_path: Path) -> None:
    leave_cell(tmp_path, 0, 5, records)
    cells = CellFile(tmp_path / CELLS_FILE, 8)
    cells.stopping = True
    cells.close()
    charges = Charges()
    assert charge_left_cells(tmp_path, charges) == 1
    assert charges.empty
    leave_cell(tmp_path, 0, 5)  # the next run, which did not
    charge_left_cells(tmp_path, charges)
    assert counts(charges) == {5: 1}


def test_of_a_batch_all_are_suspected(tmp_path: Path) -> None:
    leave_cell(tmp_path, 0, 5, 3)
    charges = Charges()
    charge_left_cells(tmp_path, charges)
    assert counts(charges) == {5: 0, 6: 0, 7: 0}


def test_of_calls_that_waited_nobody_is_charged(tmp_path: Path) -> None:
    leave_cell(tmp_path, 0, BETWEEN - 1)
    charges = Charges()
    assert charge_left_cells(tmp_path, charges) == 1
    assert charges.empty
    assert charge_left_cells(tmp_path, charges) == 0


def test_a_cell_without_a_name_is_cleared(tmp_path: Path) -> None:
    leave_cell(tmp_path, 0, 5, named=False)
    assert charge_left_cells(tmp_path, Charges()) == 1
    assert charge_left_cells(tmp_path, Charges()) == 0


def test_a_slot_of_a_dead_run_is_taken_over(tmp_path: Path) -> None:
    ours, other = tmp_path / "0", tmp_path / "1"
    ours.mkdir()
    other.mkdir()
    mine, theirs = Charges(), Charges()
    mine.charge(MQ, 1, "a", {})
    theirs.charge(MQ, 2, "b", {})
    theirs.charge(MQ, 2, "c", {})
    write_charges(ours, mine)
    write_charges(other, theirs)
    leave_cell(other, 0, 3)
    for _ in range(2):
        take_over_charges(ours, other)
        assert counts(read(ours)) == {1: 1, 2: 2, 3: 1}
    assert not (other / CHARGES_FILE).exists()
