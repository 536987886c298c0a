"""A dead slot in which a later version has written, as one that was tried out beside this one: all of it stays there."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from structlog.testing import capture_logs

from rocketcrew.conf.segment_format import (
    FORMAT_VERSION,
    LEDGER_AT,
    META_GROUP,
    META_VERSION,
    PLAN_VERSION,
    REQUEST_VERSION,
    key_fields,
    segment_name,
)
from rocketcrew.durable.facts import FACTS_VERSION, facts_to_text
from rocketcrew.durable.files import try_lock
from rocketcrew.durable.outcomes import Outcomes
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.spark.table_columns import STATE_VERSION
from rocketcrew.supervisor.core.actions import JournalCommitted, JournalDone
from rocketcrew.supervisor.core.journal import MAGIC, JournalState
from rocketcrew.supervisor.journal_file import JournalFile
from rocketcrew.supervisor.neighbours import Neighbours
from rocketcrew.supervisor.slot import Slot, adopt, take_slot
from rocketcrew.supervisor.slot_versions import check_slot
from rocketcrew.workers.cells import CELLS_FILE, CellFile

pa: Any = pyarrow
SAYS = "was made by a later version of rocketcrew"


def segment(slot: Slot, folder: str, version: int, name: str = segment_name("w", 7)) -> None:
    metadata = {META_GROUP: b"g", META_VERSION: str(version).encode(), b"other": b"x" * 70}
    schema = pa.schema([*key_fields(), pa.field("size", pa.int64(), metadata={META_VERSION: b"77"})], metadata=metadata)
    with pa.OSFile(str(slot.segments / folder / name), "wb") as file, pa.ipc.new_stream(file, schema):
        pass


def sealed(slot: Slot, more: int) -> None:
    segment(slot, "ready", FORMAT_VERSION + more)


def begun(slot: Slot, more: int) -> None:
    segment(slot, "open", FORMAT_VERSION + more)


def set_aside(slot: Slot, more: int) -> None:
    segment(slot, "bad", FORMAT_VERSION + more, f"{segment_name('w', 7)}.1")


def facts(slot: Slot, more: int) -> None:
    _, body, _ = facts_to_text(Outcomes()).split("\n")
    version = FACTS_VERSION + more
    text = f"rocketcrew facts {version} {zlib.crc32(f'{version}{body}'.encode()):08x}\n{body}\n"
    (slot.segments / "outcomes" / "7.left").write_text(text)


def plan(slot: Slot, more: int) -> None:
    (slot.segments / "plan" / "00000001-ab.json").write_text(json.dumps({"version": PLAN_VERSION + more}))


def request(slot: Slot, more: int) -> None:
    told: dict[str, Any] = {"version": REQUEST_VERSION + more, "queues": [], "segments": []}
    (slot.segments / "epochs.json").write_text(json.dumps(told))


def ledger(slot: Slot, more: int) -> None:
    (slot.segments / "ledger").mkdir()
    (slot.segments / "ledger" / "state.json").write_text(json.dumps({"version": STATE_VERSION + more}))


def cells(slot: Slot, more: int) -> None:
    path = slot.path / CELLS_FILE
    CellFile(path, 1).close()
    data = bytearray(path.read_bytes())
    data[7] += more
    path.write_bytes(data)


def journal(slot: Slot, more: int) -> None:
    """A record of a kind that is to come stands behind those that are known."""
    payload = struct.pack("<BIq", 77, 1, 5) if more else b""
    with slot.journal.open("ab") as file:
        file.write(struct.pack("<II", len(payload), zlib.crc32(payload)) + payload)


def whole_journal(slot: Slot, more: int) -> None:
    data = slot.journal.read_bytes()
    slot.journal.write_bytes(MAGIC[:-1] + bytes([MAGIC[-1] + more]) + data[len(MAGIC) :])


LEFT = (sealed, begun, set_aside, facts, plan, request, ledger, cells, journal, whole_journal)


def tried_out(home: Path, leave: Callable[[Slot, int], None], more: int = 1) -> tuple[Slot, Slot]:
    """A member that runs, and the slot of one that was killed, with a segment of this version too."""
    mine, dead = take_slot(home, "g"), take_slot(home, "g")
    segment(dead, "ready", FORMAT_VERSION, segment_name("w", 1))
    file = JournalFile(dead.journal, JournalState(), 1 << 20)
    mq = MessageQueue("orders", "broker-a", 3)
    file.append([JournalCommitted(mq, 5, 10), JournalDone(mq, 12, 15, "", 0)])
    file.close()
    leave(dead, more)
    dead.release()
    return mine, dead


def files(slot: Slot) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(slot.path.rglob("*")) if path.is_file() and path.name != "lock"}


@pytest.mark.parametrize("leave", LEFT)
def test_neither_a_start_nor_a_member_that_runs_takes_anything_of_it(
    tmp_path: Path, leave: Callable[[Slot, int], None]
) -> None:
    mine, dead = tried_out(tmp_path, leave)
    before = files(mine), files(dead)
    told: dict[str, str] = {}
    neighbours = Neighbours(mine, told, lambda: None, lambda: False)
    with capture_logs() as logs:
        assert adopt(mine, told)[2] == []
        if leave not in (request, ledger):  # which only a start takes over, whatever their version
            for _ in range(3):
                neighbours.look()
    (line,) = logs
    assert (line["event"], line["slot"]) == ("slot_not_taken_over", dead.path.name)
    assert SAYS in line["reason"]
    assert line["remedy"]
    assert (files(mine), files(dead)) == before


@pytest.mark.parametrize("leave", LEFT)
def test_what_this_version_or_an_earlier_one_has_left_is_none(
    tmp_path: Path, leave: Callable[[Slot, int], None]
) -> None:
    _, dead = tried_out(tmp_path, leave, 0)
    check_slot(dead.path)


def test_a_segment_that_is_cut_off_or_damaged_in_its_head_is_none(tmp_path: Path) -> None:
    _, dead = tried_out(tmp_path, sealed, 0)
    path = dead.segments / "ready" / segment_name("w", 7)
    data = path.read_bytes()
    for at in range(0, len(data), 11):
        path.write_bytes(data[:at])
        check_slot(dead.path)
    for at in range(8, 64):  # lengths and places among them
        path.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
        check_slot(dead.path)


def test_where_a_loader_lives_nothing_is_read(tmp_path: Path) -> None:
    """A look each 20 s replayed a journal of 30 MiB for that, and who started meanwhile found the slot locked."""
    mine, dead = tried_out(tmp_path, journal)
    loader = try_lock(dead.segments / "plan" / "lock")
    assert loader is not None
    with capture_logs() as logs:
        Neighbours(mine, {}, lambda: None, lambda: False).look()
        assert adopt(mine, {})[2] == []
    os.close(loader)
    assert not [line for line in logs if SAYS in line.get("reason", "")]


def test_what_is_no_file_or_nested_without_end_is_none(tmp_path: Path) -> None:
    _, dead = tried_out(tmp_path, plan, 0)
    (dead.segments / "plan" / "00000002-ab.json").mkdir()
    (dead.segments / "plan" / "00000003-ab.json").write_text("[" * 200_000)
    (dead.segments / "outcomes" / "8.facts").mkdir()
    (dead.segments / LEDGER_AT).write_text(f"{dead.segments / 'epochs.json'}/below\n")
    check_slot(dead.path)
