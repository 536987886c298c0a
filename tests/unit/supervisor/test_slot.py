"""Slots: locked, found again, taken over when nobody holds them."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rocketcrew.conf.segment_format import OPEN_DIR, READY_DIR, segment_name
from rocketcrew.durable.facts import facts_to_text
from rocketcrew.durable.files import try_lock
from rocketcrew.durable.intervals import Intervals, IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import SETTLED, Outcomes
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.spark.epochs import EpochRequest
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.staging import Staging
from rocketcrew.spark.targets.ledger import ledger_of
from rocketcrew.supervisor.core.actions import JournalCommitted, JournalDone, forgotten
from rocketcrew.supervisor.core.journal import JournalError, JournalSent, JournalState
from rocketcrew.supervisor.journal_file import JournalFile, read_journal
from rocketcrew.supervisor.slot import SLOTS_MAX, TURN_TRIES, Slot, adopt, slot_mode, take_slot, targets_file
from rocketcrew.workers.cells import CELLS_FILE, STATE, CellFile, Naming, map_cell
from rocketcrew.workers.packets import QueueInfo
from rocketcrew.workers.sealing import open_segments
from rocketcrew.workers.unreported import Unreported

MQ = MessageQueue("orders", "broker-a", 3)
SERVICE, STRANGER = 5001, 5002


def journal(path: Path, *entries: JournalDone | JournalCommitted, bytes_max: int = 1 << 20) -> JournalFile:
    found = JournalFile(path, JournalState(), bytes_max)
    found.append(list(entries))
    return found


def test_the_lowest_free_slot_is_taken_and_found_again(tmp_path: Path) -> None:
    first, second = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    assert (first.path.name, second.path.name) == ("0", "1")
    first.release()
    assert take_slot(tmp_path, "g").path == first.path
    assert take_slot(tmp_path, "other").path.name == "0"


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"supervisor\.data_dir .* cannot be used"):
        take_slot(tmp_path / "file", "g")


def settled_before(slot: Slot, start: int, end: int) -> None:
    facts = Outcomes.of([(SETTLED, OffsetSet.of([(KEY, IntervalSet.of([(start, end)]))]))])
    (slot.segments / "outcomes" / f"{slot.path.name}.facts").write_text(facts_to_text(facts))


def test_what_a_dead_neighbour_left_is_taken_over(tmp_path: Path) -> None:
    mine, dead = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    journal(dead.journal, JournalCommitted(MQ, 5, 10), JournalDone(MQ, 12, 15, "", 0)).close()
    sealed, opened = segment_name("w1.1", 1), segment_name("w1.1", 2)
    (dead.segments / "ready" / sealed).write_bytes(b"sealed")
    (dead.segments / "open" / opened).write_bytes(b"open")
    (dead.segments / "plan" / "7.json").write_text("{}")
    (dead.segments / "kept.json").write_text("of no program that we know")
    (dead.segments / "outcomes" / "7.left").write_text("left")
    for slot, piece in ((mine, (0, 4)), (dead, (5, 10))):
        settled_before(slot, *piece)
    dead.release()

    state, settled, adopted = adopt(mine)
    assert adopted == ["1"]
    assert state.queues[MQ].committed == 10
    assert state.queues[MQ].durable.pairs() == [(12, 15)]
    assert settled[MQ].pairs() == [(0, 4), (5, 10)]
    assert mine.sealed_tokens() == {("w1.1", 1)}
    assert open_segments(mine.segments) == [mine.segments / "open" / opened]
    assert not list((dead.segments / "ready").iterdir())
    assert (mine.segments / "outcomes" / "7.left").read_text() == "left"
    assert not list((dead.segments / "outcomes").iterdir())
    assert (dead.segments / "kept.json").read_text() == "of no program that we know"
    assert not dead.journal.exists()
    assert adopt(mine)[2] == [], "there is nothing left to take over"


def test_a_link_among_the_facts_that_leads_nowhere_keeps_nobody_from_starting(tmp_path: Path) -> None:
    mine = take_slot(tmp_path, "g")
    settled_before(mine, 0, 4)
    (mine.segments / "outcomes" / "x.facts").symlink_to(tmp_path / "nowhere")
    _, settled, _ = adopt(mine)
    assert settled[MQ].pairs() == [(0, 4)]


def test_sealed_segments_of_which_the_journal_does_not_know_are_read_like_open_ones(tmp_path: Path) -> None:
    slot = take_slot(tmp_path, "g")
    for folder, seq in (("ready", 1), ("ready", 2), ("open", 3)):
        (slot.segments / folder / segment_name("w1.1", seq)).write_bytes(b"rows")
    found = slot.left_behind(slot.sealed_tokens() - {("w1.1", 1)})
    assert [path.relative_to(slot.segments) for path in found] == [
        Path("open", segment_name("w1.1", seq)) for seq in (3, 2)
    ]


def plan_files(slot: Slot) -> dict[str, str]:
    return {path.name: path.read_text() for path in (slot.segments / "plan").iterdir()}


def test_a_frozen_plan_comes_along_with_its_segments(tmp_path: Path) -> None:
    """It may have been delivered already, under its number: another plan with that number would be taken for it."""
    mine, dead = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    (dead.segments / "plan" / "00000007-ab.json").write_text("frozen")
    (dead.segments / "plan" / "00000006-cd.done").write_text("done")
    (dead.segments / "plan" / "00000007-ab.staged").mkdir()
    dead.release()
    adopt(mine)
    assert plan_files(mine) == {"00000007-ab.json": "frozen", "00000006-cd.done": "done"}
    assert not [name for name in plan_files(dead) if name != "lock"]


@pytest.mark.parametrize("file", ["state.json", "id"])
def test_the_ledger_of_a_slot_that_is_taken_over_is_used_on(tmp_path: Path, file: str) -> None:
    mine, dead = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    (dead.segments / "ready" / segment_name("w", 1)).write_bytes(b"sealed")
    (dead.segments / "ledger").mkdir()
    (dead.segments / "ledger" / file).write_text("x")
    dead.release()
    adopt(mine)
    assert mine.sealed_tokens() == {("w", 1)}
    assert ledger_of([mine.segments]) == dead.segments / "ledger"


def test_two_names_of_one_ledger_are_no_two_ledgers(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    mine, dead = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    (dead.segments / "ready" / segment_name("w", 1)).write_bytes(b"sealed")
    (dead.segments / "ledger").mkdir()
    (dead.segments / "ledger" / "state.json").write_text("x")
    (mine.segments / "ledger.at").write_text(f"{tmp_path / 'link/g/1/segments/ledger'}\n")
    dead.release()
    adopt(mine)
    assert mine.sealed_tokens() == {("w", 1)}


def test_a_slot_with_another_ledger_is_left_to_a_loader_of_its_own(tmp_path: Path) -> None:
    mine, dead = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    for slot in (mine, dead):
        (slot.segments / "ledger").mkdir()
        (slot.segments / "ledger" / "state.json").write_text("x")
    (dead.segments / "ready" / segment_name("w", 1)).write_bytes(b"sealed")
    dead.release()
    adopt(mine)
    assert not mine.sealed_tokens()
    assert list((dead.segments / "ready").iterdir())


@pytest.mark.parametrize(("master", "mode"), [("local[2]", 0o700), ("sc://host:15002", 0o755)])
def test_what_messages_say_is_read_by_nobody_else(tmp_path: Path, master: str, mode: int) -> None:
    before = os.umask(0o022)
    try:
        slot = take_slot(tmp_path, "g", mode=slot_mode(master))
    finally:
        os.umask(before)
    assert slot.path.stat().st_mode & 0o777 == mode


def test_a_start_that_fails_after_a_take_over_forgets_nothing(tmp_path: Path) -> None:
    """What dead slots knew is in the own journal before theirs go: workers may not boot, or a kill come next."""
    mine, *dead = (take_slot(tmp_path, "g") for _ in range(3))
    journal(mine.journal, JournalDone(MQ, 20, 22, "", 0)).close()
    queues = [MQ._replace(queue_id=number) for number in (1, 2)]
    for number, (slot, mq) in enumerate(zip(dead, queues, strict=True)):
        done = JournalDone(mq, 12, 15, "", 0), JournalDone(mq, 17, 18, f"w{number}", 7)
        journal(slot.journal, JournalCommitted(mq, 5, 10), *done).close()
        (slot.segments / "ready" / segment_name(f"w{number}", 7)).write_bytes(b"sealed")
        slot.release()
    assert len(adopt(mine)[2]) == 2
    mine.release()

    again = take_slot(tmp_path, "g")
    state, _, adopted = adopt(again)
    assert (again.path, adopted) == (mine.path, [])
    assert [state.queues[mq].durable.pairs() for mq in (MQ, *queues)] == [[(20, 22)], [(12, 15)], [(12, 15)]]
    state.join([(f"w{number}", 7, [(mq, [(17, 18)])]) for number, mq in enumerate(queues)], again.sealed_tokens())
    assert [state.queues[mq].durable.pairs() for mq in queues] == [[(12, 15), (17, 18)]] * 2


def left_in_hand(slot: Slot, first: int, offset: int, counts_from: int = 1) -> None:
    """A worker died in the call of that record; those from `first` on had ended, and no report has them."""
    cells = CellFile(slot.path / CELLS_FILE, 1)
    cells.counts_from = counts_from
    cells.close()
    cell = map_cell(slot.path / CELLS_FILE, 0, 7)
    unreported = Unreported(cell)
    unreported.offer()
    Naming(cell, lambda: 1).chunk(4, QueueInfo("g", MQ.topic, MQ.broker_name, MQ.queue_id))
    unreported.begin(first)
    cell[STATE] = offset + 1


@pytest.mark.parametrize("of_neighbour", [False, True])
def test_what_ended_before_a_kill_of_all_and_was_not_reported_counts_as_finished(
    tmp_path: Path, of_neighbour: bool
) -> None:
    mine, dead = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    slot = dead if of_neighbour else mine
    journal(slot.journal, JournalCommitted(MQ, 5, 10), JournalDone(MQ, 12, 15, "", 0)).close()
    left_in_hand(slot, 15, 18)
    dead.release()
    assert adopt(mine)[0].queues[MQ].durable.pairs() == [(12, 18)]
    assert read_journal(mine.journal).queues[MQ].durable.pairs() == [(12, 18)]  # this start may be killed too


def test_what_cells_show_is_taken_from_the_committed_offset_on(tmp_path: Path) -> None:
    slot = take_slot(tmp_path, "g")
    journal(slot.journal, JournalCommitted(MQ, 5, 10)).close()
    left_in_hand(slot, 7, 12)
    assert adopt(slot)[0].queues[MQ].durable.pairs() == [(10, 12)]
    left_in_hand(slot, 7, 9)
    assert adopt(slot)[0].queues[MQ].durable.pairs() == [(10, 12)]


def test_of_a_queue_whose_finished_messages_are_to_run_again_no_cell_counts(tmp_path: Path) -> None:
    """A reset reached the journal and no new offset is committed; or the chunk is from before a reset."""
    slot = take_slot(tmp_path, "g")
    journal(slot.journal, JournalCommitted(MQ, 5, 10), forgotten(MQ)).close()
    left_in_hand(slot, 15, 18)
    assert not adopt(slot)[0].queues[MQ].durable
    journal(slot.journal, JournalCommitted(MQ, 5, 10)).close()
    left_in_hand(slot, 15, 18, counts_from=5)
    assert not adopt(slot)[0].queues[MQ].durable


def test_a_take_over_that_ends_early_keeps_what_the_cells_showed(tmp_path: Path) -> None:
    """They are cleared before the journals are one: until then the own journal of the dead slot has it."""
    mine, dead = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    journal(dead.journal, JournalCommitted(MQ, 5, 10), JournalDone(MQ, 12, 15, "", 0)).close()
    left_in_hand(dead, 15, 18)
    (dead.path / "deaths.json").mkdir()  # the charges cannot be taken over
    dead.release()
    assert MQ not in adopt(mine)[0].queues
    assert read_journal(dead.journal).queues[MQ].durable.pairs() == [(12, 18)]


def test_a_pull_whose_offset_says_nothing_new_writes_nothing(tmp_path: Path) -> None:
    said: list[int] = []

    def write(fd: int, data: memoryview) -> int:
        said.append(len(data))
        return os.write(fd, data)

    file = JournalFile(tmp_path / "journal", JournalState(), 1 << 20, write=write)
    file.append([JournalCommitted(MQ, 5, 10), JournalDone(MQ, 10, 15, "", 0)])
    before = len(said)
    file.append([JournalSent(MQ, 15)])
    assert len(said) == before
    file.append([JournalSent(MQ, 16)])
    assert len(said) == before + 1
    file.close()
    assert read_journal(tmp_path / "journal").queues[MQ].sent == 16


def test_cells_stop_counting_before_an_offset_that_went_back_is_written(tmp_path: Path) -> None:
    said: list[str] = []

    def write(fd: int, data: memoryview) -> int:
        said.append("written")
        return os.write(fd, data)

    path = tmp_path / "journal"
    file = JournalFile(path, JournalState(), 1 << 20, write=write, forgets=lambda: said.append("forgets"))
    for entries in ([JournalCommitted(MQ, 5, 10)], [JournalDone(MQ, 12, 15, "", 0)], [JournalCommitted(MQ, 5, 11)]):
        file.append(entries)
    assert "forgets" not in said
    said.clear()
    for entry in (JournalCommitted(MQ, 3, 3), forgotten(MQ), JournalCommitted(MQ, 20, 20)):  # the last: it begins there
        file.append([entry])
    assert said == ["forgets", "written"] * 3
    file.close()


KEY = QueueKey("g", "orders", "broker-a", 3)
OTHER = QueueKey("g", "orders", "broker-a", 4)


def ask(slot: Slot, segments: set[str], *queues: QueueKey) -> EpochRequest:
    request = EpochRequest(queues, frozenset(segments))
    (slot.segments / "epochs.json").write_text(request.to_json())
    return request


def asked(slot: Slot) -> EpochRequest:
    return EpochRequest.from_json((slot.segments / "epochs.json").read_bytes())


def test_a_slot_that_is_made_after_a_reset_has_its_request(tmp_path: Path) -> None:
    first, second = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    assert not (second.segments / "epochs.json").exists()
    request = ask(first, {"w-00000001.arrows"}, KEY.in_epoch(1))
    assert asked(take_slot(tmp_path, "g")) == request
    (second.segments / "ready" / segment_name("w", 2)).write_bytes(b"of whichever epoch")
    second.release()
    assert take_slot(tmp_path, "g").path == second.path
    assert not (second.segments / "epochs.json").exists()


def test_a_slot_that_is_taken_over_brings_its_request(tmp_path: Path) -> None:
    """Its segments of before a reset stay those of the epoch before, wherever they lie."""
    mine, dead, empty = (take_slot(tmp_path, "g") for _ in range(3))
    ask(mine, {"a"}, KEY.in_epoch(1), OTHER.in_epoch(3))
    ask(dead, {"b"}, KEY.in_epoch(2), OTHER.in_epoch(1))
    dead.release()
    empty.release()
    adopt(mine)
    expected = EpochRequest((KEY.in_epoch(2), OTHER.in_epoch(3)), frozenset({"a", "b"}))
    assert asked(mine) == expected
    adopt(mine)
    assert asked(mine) == expected


@pytest.mark.parametrize("at", [0, 1])
def test_a_damaged_request_moves_no_segment(tmp_path: Path, at: int) -> None:
    slots = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    (slots[at].segments / "epochs.json").write_text("{")
    (slots[1].segments / "ready" / segment_name("w", 1)).write_bytes(b"sealed")
    slots[1].release()
    with pytest.raises(UsageError, match=rf"{at}/segments/epochs\.json is not understood.*Move it away"):
        adopt(slots[0])
    assert not slots[0].sealed_tokens()
    assert slots[1].sealed_tokens()


def test_no_segment_replaces_another_of_its_name(tmp_path: Path) -> None:
    ours, theirs = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    name = segment_name("w1.1", 0)
    (ours.segments / OPEN_DIR / name).write_bytes(b"ours")
    (theirs.segments / READY_DIR / name).write_bytes(b"theirs")
    theirs.release()
    assert adopt(ours)[2] == []
    assert (ours.segments / OPEN_DIR / name).read_bytes() == b"ours"
    assert (theirs.segments / READY_DIR / name).read_bytes() == b"theirs"
    ours.release()


def test_a_slot_that_is_held_is_left_alone(tmp_path: Path) -> None:
    mine, other = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    journal(other.journal, JournalCommitted(MQ, 0, 10)).close()
    state, _, adopted = adopt(mine)
    assert adopted == []
    assert state.queues == {}
    assert other.journal.exists()


@pytest.mark.parametrize("member", ["", "another"])
def test_where_a_killed_supervisor_was_served_is_forgotten_though_its_slot_is_not_taken_again(
    tmp_path: Path, member: str
) -> None:
    mine, dead, held = take_slot(tmp_path, "g"), take_slot(tmp_path, "g", member), take_slot(tmp_path, "g")
    for slot in (dead, held):
        targets_file(slot.path).write_text("[]")
    dead.release()
    assert adopt(mine)[2] == []
    assert not targets_file(dead.path).exists()
    assert targets_file(held.path).exists()


def test_a_slot_whose_loader_still_runs_is_left_alone(tmp_path: Path) -> None:
    import fcntl

    mine, other = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    (other.segments / "ready" / segment_name("w", 1)).write_bytes(b"x")
    other.release()
    fd = os.open(other.segments / "plan" / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert adopt(mine)[2] == []
    assert list((other.segments / "ready").iterdir())
    os.close(fd)


def copies_in(slot: Slot, name: str = "00000001-ab.staged") -> Path:
    copies = slot.segments / "plan" / name
    copies.mkdir()
    (copies / "part-00000.parquet").write_bytes(b"half")
    return copies


@pytest.mark.parametrize("alive", [False, True])
@pytest.mark.parametrize("of_neighbour", [False, True])
def test_copies_that_a_dead_loader_left_go_before_the_start_needs_the_room(
    tmp_path: Path, *, of_neighbour: bool, alive: bool
) -> None:
    slots = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    slot = slots[of_neighbour]
    copies, plan = copies_in(slot), slot.segments / "plan" / "00000001-ab.json"
    plan.write_text("{}")
    for one in slots:
        one.release()
    loader_fd = try_lock(slot.segments / "plan" / "lock") if alive else None
    again = take_slot(tmp_path, "g")
    assert again.path == slots[0].path
    assert copies.exists() is alive
    assert plan.exists()
    if loader_fd is not None:
        os.close(loader_fd)


def test_copies_that_an_outside_loader_left_go_though_the_member_of_their_slot_runs(tmp_path: Path) -> None:
    copies = copies_in(take_slot(tmp_path, "g"))
    take_slot(tmp_path, "g")
    assert not copies.exists()


def test_of_what_lies_beside_plans_only_copies_go_and_no_link_is_followed(tmp_path: Path) -> None:
    mine, dead = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    kept = copies_in(dead, "somebody's")
    links = [dead.segments / "plan" / name for name in ("a.staged", "b")]
    for link in links:
        link.symlink_to(kept)
    mine.release()
    dead.release()
    adopt(take_slot(tmp_path, "g"))
    assert (kept / "part-00000.parquet").exists()
    assert all(link.is_symlink() for link in links)


def test_copies_that_cannot_be_deleted_keep_nobody_from_starting(tmp_path: Path) -> None:
    """Of another user: `sudo rocketcrew load` was killed."""
    mine, dead = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    copies = [copies_in(mine), copies_in(dead), copies_in(dead, "00000002-cd.staged")]
    mine.release()
    refused: list[Path] = []

    def remove(path: Path) -> None:
        refused.append(path)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with capture_logs() as logs:
        assert take_slot(tmp_path, "g", remove=remove).path == mine.path
    assert sorted(refused) == sorted(copies)
    assert [line["event"] for line in logs] == ["copies_not_removed"] * 3
    assert str(copies[0]) in logs[0]["error"]


def test_a_loader_s_lock_that_cannot_be_looked_at_keeps_nobody_from_starting(tmp_path: Path) -> None:
    mine, dead = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    copies = copies_in(dead)
    (dead.segments / "plan" / "lock").mkdir()
    dead.release()
    mine.release()
    with capture_logs() as logs:
        again = take_slot(tmp_path, "g")
        assert adopt(again)[2] == []
    assert copies.exists()
    assert [line["event"] for line in logs] == ["copies_not_removed", "slot_not_taken_over"]


def test_a_loader_that_starts_while_copies_are_deleted_hears_who_does_it(tmp_path: Path) -> None:
    slot = take_slot(tmp_path, "g")
    copies_in(slot)
    (slot.segments / "plan" / "lock").write_text("987654321\n")
    slot.release()
    said: list[str] = []

    def remove(_path: Path) -> None:
        with pytest.raises(LoaderError) as refusal:
            Staging(slot.segments).lock(wait_s=0)
        said.append(str(refusal.value))

    take_slot(tmp_path, "g", remove=remove)
    assert [f"(process {os.getpid()})" in text for text in said] == [True]


def test_a_slot_whose_start_fails_is_free(tmp_path: Path) -> None:
    first = take_slot(tmp_path, "g")
    request = first.segments / "epochs.json"
    request.write_text("{")
    with pytest.raises(UsageError, match="is not understood"):
        take_slot(tmp_path, "g")
    request.unlink()
    assert take_slot(tmp_path, "g").path.name == "1"


def test_a_journal_goes_on_after_a_restart_and_stays_bounded(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    file = journal(path, JournalCommitted(MQ, 0, 0), bytes_max=20_000)
    for number in range(2_000):
        file.append([JournalDone(MQ, 2 * number, 2 * number + 1, "", 0), JournalCommitted(MQ, 0, 2 * number)])
        assert path.stat().st_size < 20_000
    file.close()
    assert file.rewrites > 0
    state = read_journal(path)
    assert state.queues[MQ].committed == 3998
    assert state.queues[MQ].durable.pairs() == [(3998, 3999)]
    assert not path.with_suffix(".new").exists()


class FullDisk:
    """Takes `room` bytes, the last write in part, then refuses until there is room again."""

    def __init__(self, room: int) -> None:
        self.room = room

    def __call__(self, fd: int, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = os.write(fd, data[: self.room])
        self.room -= written
        return written


def test_a_journal_that_a_full_disk_does_not_take_leaves_no_draft(tmp_path: Path) -> None:
    disk = FullDisk(1 << 20)
    path = tmp_path / "journal"
    file = JournalFile(path, JournalState(), 1, write=disk)
    before, disk.room = path.read_bytes(), 30
    for _ in range(2):  # the second one is a rewrite, of which a part is written
        with pytest.raises(OSError, match="No space left"):
            file.append([JournalDone(MQ, 5, 6, "w" * 40, 1)])
        disk.room = 30
    assert os.listdir(tmp_path) == ["journal"]
    assert path.read_bytes().startswith(before)
    file.close()


@pytest.mark.parametrize("room", [*range(0, 400, 7), 700, 1000])
def test_a_full_disk_in_the_middle_of_a_block_costs_nothing_that_is_written_later(tmp_path: Path, room: int) -> None:
    disk = FullDisk(1 << 20)
    path = tmp_path / "journal"
    file = JournalFile(path, JournalState(), 600, write=disk)  # small: it is rewritten on the way, and that fails too
    queues = [MessageQueue("t", "b", number) for number in range(6)]
    file.append([JournalDone(queues[0], 5, 6, "w", 1)])
    disk.room = room
    failures = 0
    for number in range(40):
        try:
            file.append(
                [JournalDone(queues[number % 6], 10 * number, 10 * number + 1, "w" * (1 + number % 3), number % 2)]
            )
        except OSError:
            failures += 1
        # Whatever stands on disk can be read, and never says more than what is finished.
        for mq, log in read_journal(path).queues.items():
            assert set(log.durable.pairs()) <= set(file.state.queues[mq].durable.pairs())
    assert failures
    disk.room = 1 << 20
    file.append([JournalCommitted(queues[1], 0, 0)])
    file.append([JournalDone(queues[5], 9_000, 9_001, "", 0)])
    file.close()
    read = read_journal(path)
    assert {mq: (log.committed, log.durable.pairs()) for mq, log in read.queues.items()} == {
        mq: (log.committed, log.durable.pairs()) for mq, log in file.state.queues.items()
    }
    assert read.pending == file.state.pending


@pytest.mark.parametrize("bytes_max", [1 << 20, 1])  # 1: the block is written, and the rewrite after it fails
def test_a_pull_that_says_nothing_new_hides_no_write_that_failed(tmp_path: Path, bytes_max: int) -> None:
    disk = FullDisk(1 << 20)
    path = tmp_path / "journal"
    file = JournalFile(path, JournalState(), bytes_max, write=disk)
    file.append([JournalCommitted(MQ, 5, 10), JournalDone(MQ, 10, 15, "", 0)])
    disk.room = 100 if bytes_max == 1 else 20
    for entry in (JournalDone(MQ, 20, 30, "", 0), JournalSent(MQ, 15), JournalSent(MQ, 15)):
        with pytest.raises(OSError, match="No space left"):
            for _ in range(100):
                file.append([entry])
    disk.room = 1 << 20
    file.append([JournalSent(MQ, 15)])
    assert read_journal(path).queues[MQ].durable.pairs() == [(10, 15), (20, 30)]
    before = disk.room
    file.append([JournalSent(MQ, 15)])
    assert disk.room == before
    file.close()


def test_something_else_in_the_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"not a journal at all")
    with pytest.raises(JournalError, match="is not a rocketcrew journal"):
        read_journal(tmp_path / "journal")
    assert read_journal(tmp_path / "absent").queues == {}


def test_slots_that_are_all_taken_by_members_with_other_client_ids_are_told_as_such(tmp_path: Path) -> None:
    home = tmp_path / "g"
    for number in range(SLOTS_MAX):
        (home / str(number) / "segments").mkdir(parents=True)
        (home / str(number) / "member").write_text(f"10.0.0.{number}@DEFAULT")
    held = try_lock(home / "0" / "lock")
    assert held is not None
    with pytest.raises(UsageError, match=rf"{SLOTS_MAX - 1} of them by members .* that do not run.*cluster\.client_ip"):
        take_slot(tmp_path, "g", "10.1.0.0@DEFAULT")
    os.close(held)


def test_a_broadcasting_member_waits_for_its_own_slot_while_another_start_looks_at_it(tmp_path: Path) -> None:
    take_slot(tmp_path, "g", "10.0.0.1@DEFAULT").release()
    looked_at = try_lock(tmp_path / "g/0/lock")
    assert looked_at is not None
    slot = take_slot(tmp_path, "g", "10.0.0.1@DEFAULT", sleep=lambda _: os.close(looked_at))
    assert slot.path.name == "0"
    slot.release()


def test_a_broadcasting_member_whose_slot_stays_held_is_not_kept_from_starting(tmp_path: Path) -> None:
    held = take_slot(tmp_path, "g", "10.0.0.1@DEFAULT")
    waits: list[float] = []
    slot = take_slot(tmp_path, "g", "10.0.0.1@DEFAULT", sleep=waits.append)
    assert (slot.path.name, len(waits)) == ("1", TURN_TRIES)
    for taken in (held, slot):
        taken.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes others")
@pytest.mark.parametrize("theirs", ["0", "1"])
def test_a_slot_of_another_user_keeps_nobody_from_starting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], theirs: str
) -> None:
    """As one that was run by sudo for a look has left it."""
    slots = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    for slot in slots:
        slot.release()
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, SERVICE, -1)
    for path in (tmp_path / "g" / theirs, *(tmp_path / "g" / theirs).rglob("*")):
        os.chown(path, STRANGER, -1)
    with contextlib.chdir(tmp_path):  # others have no way to it
        os.seteuid(SERVICE)
        try:
            mine = take_slot(Path(), "g")
            told: dict[str, str] = {}
            assert adopt(mine, told)[2] == []
        finally:
            os.seteuid(0)
    mine.release()
    assert mine.path.name != theirs
    assert told.keys() == {theirs}
    said = capsys.readouterr().out
    assert f"give g/{theirs} and what is in it to the user of this member" in said
    assert "`reset --reprocess`" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes others")
@pytest.mark.parametrize("slots", [1, SLOTS_MAX])
def test_slots_that_are_all_of_another_user_are_told_as_such(tmp_path: Path, slots: int) -> None:
    for number in range(slots):
        (tmp_path / "g" / str(number)).mkdir(parents=True)
        (tmp_path / "g" / str(number) / "lock").touch(0o600)
    os.chown(tmp_path, SERVICE, -1)
    with contextlib.chdir(tmp_path):  # others have no way to it
        os.seteuid(SERVICE)
        try:
            with pytest.raises(UsageError, match=r"cannot be used: Permission denied \(g/0/lock\)"):
                take_slot(Path(), "g")
        finally:
            os.seteuid(0)


def test_what_a_slot_knew_that_cannot_be_taken_over_does_not_count(tmp_path: Path) -> None:
    """Its rows are not here. It is taken over by the next start that can."""
    mine, other = take_slot(tmp_path, "g"), take_slot(tmp_path, "g")
    journal(other.journal, JournalCommitted(MQ, 5, 10), JournalDone(MQ, 12, 15, "", 0)).close()
    (other.segments / "ready" / segment_name("w1", 7)).write_bytes(b"sealed")
    other.release()
    (other.segments / "plan" / "p.json").touch()
    in_the_way = mine.segments / "plan" / "p.json"
    in_the_way.mkdir()  # stands for anything that goes wrong in the middle
    told: dict[str, str] = {}
    state, _, adopted = adopt(mine, told)
    assert (state.queues, adopted, told.keys()) == ({}, [], {"1"})
    in_the_way.rmdir()
    state, _, adopted = adopt(mine, told)
    assert (state.recovered(), adopted) == ({MQ: (10, Intervals([(12, 15)]))}, ["1"])
