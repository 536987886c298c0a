"""Dead slots beside a member that runs: what is sealed there is taken over without a start."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rocketcrew.conf.segment_format import segment_name
from rocketcrew.durable.files import FileCalls, try_lock
from rocketcrew.durable.intervals import QueueKey
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.spark.epochs import EpochRequest
from rocketcrew.supervisor.core.actions import JournalCommitted, JournalDone, forgotten
from rocketcrew.supervisor.core.journal import JournalRun, JournalState
from rocketcrew.supervisor.journal_file import JournalFile
from rocketcrew.supervisor.member.local_offsets import check_offsets_folder, offsets_path
from rocketcrew.supervisor.neighbours import LOOK_EVERY_S, Neighbours, name_lost_identity
from rocketcrew.supervisor.slot import (
    Slot,
    adopt,
    dead_slot,
    lock_client,
    take_sealed,
    take_slot,
    unlock_client,
)

MQ = MessageQueue("orders", "broker-a", 3)
SEALED = {f"ready/{segment_name('w1', 1)}", f"ready/{segment_name('w1', 2)}"}
BAD = {f"bad/{segment_name('w1', 0)}", f"bad/{segment_name('w1', 0)}.reason.json"}
FACTS = {"outcomes/00000000000000000001-7.facts", "outcomes/6.left"}
OPEN = f"open/{segment_name('w1', 3)}"
PLAN = "plan/00000007-ab.json"


def put(slot: Slot, *names: str) -> None:
    for name in names:
        (slot.segments / name).parent.mkdir(exist_ok=True)
        (slot.segments / name).write_text(name)


def files_in(slot: Slot) -> set[str]:
    paths = (path for path in slot.segments.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(slot.segments)) for path in paths}


def killed(home: Path, member: str = "") -> Slot:
    """A slot whose member was killed, and its loader with it: 12-14 are finished and have their rows in a sealed segment."""
    slot = take_slot(home, "g", member)
    put(slot, *SEALED, *BAD, *FACTS, OPEN, PLAN)
    file = JournalFile(slot.journal, JournalState(), 1 << 20)
    file.append([JournalCommitted(MQ, 5, 10), JournalDone(MQ, 12, 15, "", 0)])
    file.close()
    slot.release()
    return slot


def neighbours_of(slot: Slot, **options: Any) -> Neighbours:
    return Neighbours(slot, {}, lambda: None, lambda: False, **options)


def looks(neighbours: Neighbours, count: int) -> list[Any]:
    """What is logged of so many looks."""
    with capture_logs() as logs:
        for _ in range(count):
            neighbours.look()
    return list(logs)


def test_what_a_dead_neighbour_has_sealed_is_taken_by_a_member_that_runs(tmp_path: Path) -> None:
    mine, dead = take_slot(tmp_path, "g"), killed(tmp_path)
    neighbours = neighbours_of(mine)
    assert looks(neighbours, 1) == []
    assert not files_in(mine), "a member that is restarted at once finds all of its own"
    (line,) = looks(neighbours, 3)
    assert (line["event"], line["slots"], line["segments"]) == ("slots_taken_over", ["1"], 2)
    assert files_in(mine) == SEALED | BAD | FACTS
    assert files_in(dead) == {OPEN, PLAN}, "these need a start"
    adopt(mine)
    assert files_in(mine) == SEALED | BAD | FACTS | {OPEN, PLAN}


def test_who_starts_where_segments_were_taken_runs_again_what_has_its_rows_in_them(tmp_path: Path) -> None:
    """It would be reported as settled, and taken for loaded, while its rows wait in another folder."""
    mine, dead = take_slot(tmp_path, "g"), killed(tmp_path)
    looks(neighbours_of(mine), 2)
    again = take_slot(tmp_path, "g")
    assert again.path == dead.path
    assert not adopt(again)[0].recovered()


def finished_by_a_start(slot: Slot) -> dict[MessageQueue, Any]:
    """What a start in the slot calls finished, where its open segments hold 20-22, which nobody has reported."""
    state = adopt(slot)[0]
    left = slot.left_behind(slot.sealed_tokens() & state.pending.keys())
    state.join([("w1", 3, [(MQ, [(20, 22)])]) for path in left if path.name == Path(OPEN).name], ())
    return {mq: done.pairs() for mq, (_, done) in state.recovered().items()}


def taken(slot: Slot) -> None:
    """By this member, which runs: what is sealed, and with it goes the journal."""
    looks(neighbours_of(slot), 2)


def interrupted(slot: Slot) -> None:
    """A take-over meets an error of the disk when the open segments are there, and before the journals are one. The start
    goes on, and so does the next one."""
    blocked = slot.segments / PLAN
    blocked.mkdir()
    assert finished_by_a_start(slot) == {}
    blocked.rmdir()


@pytest.mark.parametrize("meanwhile", [taken, interrupted])
def test_an_open_segment_whose_journal_is_gone_finishes_nothing_that_a_reset_asks_for(
    tmp_path: Path, meanwhile: Callable[[Slot], object]
) -> None:
    """This member opened the queue after the dead one, and met a reset."""
    mine, dead = take_slot(tmp_path, "g"), killed(tmp_path)
    file = JournalFile(mine.journal, JournalState(), 1 << 20)
    file.append([JournalRun(None, "w2"), JournalCommitted(MQ, 10, 10, 2), JournalCommitted(MQ, 10, 30)])
    file.append([forgotten(MQ), JournalCommitted(MQ, 0, 0), JournalCommitted(MQ, 0, 11)])
    file.close()
    meanwhile(mine)
    assert finished_by_a_start(mine) == {}
    assert not list((dead.segments / "open").iterdir()), "it is taken over"


def test_a_slot_without_sealed_segments_keeps_all_for_the_next_start(tmp_path: Path) -> None:
    mine, dead = take_slot(tmp_path, "g"), killed(tmp_path)
    for name in SEALED:
        (dead.segments / name).unlink()
    before = files_in(dead)
    assert looks(neighbours_of(mine), 3) == []
    assert files_in(dead) == before
    assert dead.journal.exists()


@pytest.mark.parametrize("held", ["lock", "segments/plan/lock"])
def test_a_slot_that_runs_or_whose_loader_does_is_left_alone(tmp_path: Path, held: str) -> None:
    mine, dead = take_slot(tmp_path, "g"), killed(tmp_path)
    before, neighbours = files_in(dead), neighbours_of(mine)
    fd = try_lock(dead.path / held)
    assert fd is not None
    assert looks(neighbours, 3) == []
    assert files_in(dead) == before
    Slot(dead.path, "g", fd).release()
    looks(neighbours, 2)
    assert files_in(mine) >= SEALED


def of_another_ledger(mine: Slot, dead: Slot) -> None:
    put(mine, "ledger/state.json")
    put(dead, "ledger/state.json")


def of_a_ledger_where_we_have_none(_: Slot, dead: Slot) -> None:
    put(dead, "ledger/state.json")


def of_one_ledger_with_a_frozen_plan(mine: Slot, dead: Slot) -> None:
    put(dead, "ledger/state.json")
    (mine.segments / "ledger.at").write_text(f"{dead.segments / 'ledger'}\n")


def of_our_names(mine: Slot, _: Slot) -> None:
    put(mine, OPEN.replace("-00000003", "-00000001"))


def of_another_request(mine: Slot, dead: Slot) -> None:
    for slot, epoch in ((mine, 1), (dead, 2)):
        request = EpochRequest((QueueKey("g", "orders", "broker-a", 3, epoch),), frozenset())
        (slot.segments / "epochs.json").write_text(request.to_json())


def of_an_unreadable_member(_: Slot, dead: Slot) -> None:
    (dead.path / "member").unlink()
    (dead.path / "member").mkdir()


def of_another_user(_: Slot, dead: Slot) -> None:
    (dead.path / "lock").unlink()
    (dead.path / "lock").mkdir()


@pytest.mark.parametrize(
    "make",
    [
        of_another_ledger, of_a_ledger_where_we_have_none, of_one_ledger_with_a_frozen_plan, of_our_names,
        of_another_request, of_an_unreadable_member, of_another_user,
    ],
)  # fmt: skip
def test_a_slot_that_cannot_be_taken_is_named_once(tmp_path: Path, make: Callable[[Slot, Slot], None]) -> None:
    mine, dead = take_slot(tmp_path, "g"), killed(tmp_path)
    make(mine, dead)
    before = files_in(mine), files_in(dead)
    (line,) = looks(neighbours_of(mine), 4)
    assert (line["event"], line["slot"]) == ("slot_not_taken_over", "1")
    assert line["reason"]
    assert line["remedy"]
    assert (files_in(mine), files_in(dead)) == before
    assert dead.journal.exists()


def test_a_slot_with_the_same_request_is_taken(tmp_path: Path) -> None:
    mine, dead = take_slot(tmp_path, "g"), killed(tmp_path)
    for slot in (mine, dead):
        put(slot, "epochs.json")
    looks(neighbours_of(mine), 2)
    assert files_in(mine) >= SEALED


def test_another_slot_of_a_broadcasting_member_is_left_to_its_next_start(tmp_path: Path) -> None:
    """Nobody else would run again what its journal calls finished."""
    mine, dead = take_slot(tmp_path, "g", "one"), killed(tmp_path, "one")
    before = files_in(dead)
    assert looks(neighbours_of(mine), 3) == []
    assert files_in(dead) == before


OWN, OTHER = "10.0.0.2@DEFAULT", "10.0.0.1@pod-1@u"
LEFT = SEALED | {OPEN}


@pytest.mark.parametrize(
    ("members", "remedy"),
    [
        (("", OTHER), 'cluster.client_ip = "10.0.0.1" and cluster.instance_name = "pod-1" and cluster.unit_name = "u"'),
        ((OWN, OTHER), 'cluster.client_ip = "10.0.0.1" and cluster.instance_name = "pod-1"'),
        ((OWN, ""), 'consumer.message_model = "CLUSTERING"'),
    ],
)
def test_what_only_another_member_can_take_over_is_named_once_and_counted(
    tmp_path: Path, members: tuple[str, str], remedy: str
) -> None:
    mine, dead = take_slot(tmp_path, "g", members[0]), killed(tmp_path, members[1])
    before, neighbours = files_in(dead), neighbours_of(mine)
    nothing = {"segments": 1, "bytes": 10, "oldest_s": 0.0}
    assert looks(neighbours, 1) == [], "it may be a restart"
    assert neighbours.counted_in(nothing) == nothing
    (line,) = looks(neighbours, 3)
    assert (line["event"], line["slot"], line["client_id"]) == ("slot_of_another_member", "1", members[1])
    assert line["segments"] == len(LEFT)
    assert remedy in line["remedy"]
    assert files_in(dead) == before
    os.utime(dead.segments / OPEN, (1, 1))
    looks(neighbours, 1)
    counted = neighbours.counted_in(nothing)
    assert (counted["segments"], counted["bytes"]) == (1 + len(LEFT), 10 + sum(map(len, LEFT)))
    assert counted["oldest_s"] > 1e9


def run_between(slot: Slot, pauses: Sequence[Callable[[Neighbours], object]], *, takes: bool) -> list[str]:
    """What is logged of the looks of a member that runs; these happen between them, and it is stopped after the last look."""
    left = iter(pauses)

    async def run() -> None:
        done = asyncio.Event()

        async def sleep(seconds: float) -> None:
            assert seconds == LOOK_EVERY_S
            if (happens := next(left, None)) is None:
                done.set()
                await asyncio.Event().wait()
            else:
                happens(neighbours)

        neighbours = neighbours_of(slot, sleep=sleep)
        neighbours.start(takes=takes)
        await done.wait()
        await neighbours.end()

    with capture_logs() as logs:
        asyncio.run(run())
    return [line["event"] for line in logs]


def test_a_member_that_starts_with_this_one_is_not_named(tmp_path: Path) -> None:
    """As when their host starts again: it was free at the start's look, and it is there at the next."""
    mine = take_slot(tmp_path, "g", OWN)
    back = killed(tmp_path, OTHER)
    assert not run_between(mine, [lambda _: take_slot(tmp_path, "g", OTHER)], takes=True)
    assert files_in(back) >= LEFT


def test_a_member_without_a_loader_names_and_counts_until_the_other_is_back(tmp_path: Path) -> None:
    mine = take_slot(tmp_path, "g", OWN)
    killed(tmp_path, OTHER)
    counted: list[float] = []

    def count(neighbours: Neighbours) -> None:
        counted.append(neighbours.counted_in({"segments": 0, "bytes": 0, "oldest_s": 0.0})["segments"])

    def come_back(neighbours: Neighbours) -> None:
        count(neighbours)
        take_slot(tmp_path, "g", OTHER)

    assert run_between(mine, [count, come_back, count], takes=False) == ["slot_of_another_member"]
    assert counted == [0, len(LEFT), 0]


def test_a_member_without_a_loader_takes_nothing(tmp_path: Path) -> None:
    mine, dead = take_slot(tmp_path, "g"), killed(tmp_path)
    assert not run_between(mine, [id, id, id], takes=False)
    assert not files_in(mine)
    assert dead.journal.exists()


def test_a_slot_of_another_member_that_has_come_back_is_none_until_it_is_killed_again(tmp_path: Path) -> None:
    mine = take_slot(tmp_path, "g", OWN)
    killed(tmp_path, OTHER)
    neighbours, nothing = neighbours_of(mine), {"segments": 0, "bytes": 0, "oldest_s": 0.0}
    looks(neighbours, 2)
    back = take_slot(tmp_path, "g", OTHER)
    assert looks(neighbours, 2) == []
    assert neighbours.counted_in(nothing) == nothing
    back.release()
    assert [line["event"] for line in looks(neighbours, 2)] == ["slot_of_another_member"]
    for name in LEFT:
        (back.segments / name).unlink()
    assert looks(neighbours, 1) == []
    assert neighbours.counted_in(nothing) == nothing


def lost_identity(slot: Slot, offsets: Path, known: JournalState | None = None) -> list[Any]:
    with capture_logs() as logs:
        name_lost_identity(slot, offsets, known or JournalState())
    return list(logs)


def kept(home: Path, client_id: str, at_s: int, name: str = "offsets.json") -> Path:
    path = offsets_path("", client_id, "g", home)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(name).touch()
    os.utime(path.with_name(name), (at_s, at_s))
    return path


def test_a_broadcaster_that_begins_anew_beside_the_offsets_of_one_that_does_not_run_hears_of_it(tmp_path: Path) -> None:
    slot = take_slot(tmp_path, "g", OWN)
    own = offsets_path("", OWN, "g", tmp_path)
    check_offsets_folder(own)
    assert lost_identity(slot, own) == [], "the first member of all"
    kept(tmp_path, "10.0.0.9@DEFAULT", 5)
    kept(tmp_path, OTHER, 6)
    runs = lock_client(tmp_path, "g", "10.0.0.8@DEFAULT")
    kept(tmp_path, "10.0.0.8@DEFAULT", 7)
    (own.parents[2] / "file").touch()
    (own.parents[2] / "of another group" / "h").mkdir(parents=True)
    (line,) = lost_identity(slot, own)
    assert (line["event"], line["client_id"]) == ("broadcasting_as_another_member", OWN)
    assert (line["before"], line["others"]) == (OTHER, 2), "the one that was here last"
    assert 'cluster.client_ip = "10.0.0.1"' in line["remedy"]
    unlock_client(tmp_path, "g", "10.0.0.8@DEFAULT", runs)


def test_so_does_one_beside_a_slot_of_one_that_does_not_run(tmp_path: Path) -> None:
    """The offsets were in the container, and the slot on its volume."""
    slot = take_slot(tmp_path, "g", OWN)
    for member in (OTHER, ""):
        take_slot(tmp_path, "g", member).release()
    own = offsets_path("", OWN, "g", tmp_path / "home")
    check_offsets_folder(own)
    (line,) = lost_identity(slot, own)
    assert (line["event"], line["before"], line["others"]) == ("broadcasting_as_another_member", OTHER, 1)


@pytest.mark.parametrize("name", ["offsets.json", "offsets.json.bak"])
def test_a_broadcaster_that_goes_on_from_its_own_offsets_hears_nothing(tmp_path: Path, name: str) -> None:
    slot = take_slot(tmp_path, "g", OWN)
    kept(tmp_path, OTHER, 6)
    state = JournalState()
    state.apply(JournalCommitted(MQ, 5, 10))
    assert lost_identity(slot, kept(tmp_path, OWN, 5, name), state) == []


def test_a_broadcaster_whose_journal_is_there_and_whose_offsets_are_not_hears_of_that(tmp_path: Path) -> None:
    slot, state = take_slot(tmp_path, "g", OWN), JournalState()
    state.apply(JournalCommitted(MQ, 5, 10))
    own = offsets_path("", OWN, "g", tmp_path)
    check_offsets_folder(own)
    (line,) = lost_identity(slot, own, state)
    assert (line["event"], line["path"]) == ("local_offsets_missing", str(own))


class KilledError(BaseException):
    """Nobody catches it."""


class KilledAt(FileCalls):
    """Dies instead of the call with that number."""

    def __init__(self, number: int) -> None:
        self._left = number

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise KilledError

    def fsync(self, fd: int) -> None:
        self._count()
        super().fsync(fd)

    def link(self, path: str, new_path: str) -> None:
        self._count()
        super().link(path, new_path)

    def rename(self, path: str, new_path: str) -> None:
        self._count()
        super().rename(path, new_path)

    def unlink(self, path: str) -> None:
        self._count()
        super().unlink(path)


STEPS = 2 + 2 * len(SEALED | BAD) + 2 + len(FACTS)


@pytest.mark.parametrize("number", range(STEPS))
@pytest.mark.parametrize("by_start", [False, True])
def test_a_kill_at_any_instant_loses_nothing(tmp_path: Path, number: int, *, by_start: bool) -> None:
    mine, third, dead = take_slot(tmp_path, "g"), take_slot(tmp_path, "g"), killed(tmp_path)
    with pytest.raises(KilledError), dead_slot(mine, dead.path) as other:
        assert other is not None
        take_sealed(mine, other, {}, KilledAt(number))
    taken, left = files_in(mine), files_in(dead)
    assert taken | left == SEALED | BAD | FACTS | {OPEN, PLAN}
    assert not (taken and dead.journal.exists()), "it would call finished what has its rows elsewhere"
    for there in (taken, left):
        assert not there & FACTS or there >= SEALED | BAD, "they would be taken for loaded before their rows are listed"
    mine.release()
    if by_start:
        again = take_slot(tmp_path, "g")
        adopt(again)
        assert files_in(again) == SEALED | BAD | FACTS | {OPEN, PLAN}
        return
    looks(neighbours_of(third), 2)
    assert files_in(third) == SEALED | BAD | FACTS, "each from where the kill has left it"
    assert files_in(dead) == {OPEN, PLAN}
    assert not files_in(mine)


class NoLinks(FileCalls):
    def link(self, path: str, new_path: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", path)


class Full(FileCalls):
    def rename(self, path: str, new_path: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)


def test_a_disk_without_links_has_them_moved(tmp_path: Path) -> None:
    mine, dead = take_slot(tmp_path, "g"), killed(tmp_path)
    with dead_slot(mine, dead.path) as other:
        assert other is not None
        assert take_sealed(mine, other, {}, NoLinks()) == len(SEALED)
    assert files_in(mine) == SEALED | BAD | FACTS
    assert files_in(dead) == {OPEN, PLAN}


def test_whoever_gets_the_slot_after_an_error_of_the_disk_has_rows_and_facts(tmp_path: Path) -> None:
    mine, dead = take_slot(tmp_path, "g"), killed(tmp_path)
    with pytest.raises(OSError, match="No space"), dead_slot(mine, dead.path) as other:
        assert other is not None
        take_sealed(mine, other, {}, Full())
    assert files_in(dead) == SEALED | BAD | FACTS | {OPEN, PLAN}
    assert files_in(mine) == SEALED | BAD


def test_what_was_refused_for_a_while_is_told_when_it_is_taken(tmp_path: Path) -> None:
    mine, dead = take_slot(tmp_path, "g"), killed(tmp_path)
    put(dead, "ledger/state.json")
    neighbours = neighbours_of(mine)
    looks(neighbours, 3)
    shutil.rmtree(dead.segments / "ledger")
    put(mine, OPEN.replace("-00000003", "-00000001"))
    assert [line["event"] for line in looks(neighbours, 2)] == ["slot_not_taken_over"], "for another reason"
    (mine.segments / OPEN.replace("-00000003", "-00000001")).unlink()
    assert [line["event"] for line in looks(neighbours, 2)] == ["slots_taken_over"]


def test_copies_that_the_dead_loader_made_are_removed(tmp_path: Path) -> None:
    mine, dead = take_slot(tmp_path, "g"), killed(tmp_path)
    put(dead, "plan/00000007-ab.staged/part-00000.parquet")
    looks(neighbours_of(mine), 2)
    assert files_in(dead) == {OPEN, PLAN}


def test_all_steps_of_a_take_over_are_tried(tmp_path: Path) -> None:
    mine, dead = take_slot(tmp_path, "g"), killed(tmp_path)
    with dead_slot(mine, dead.path) as other:
        assert other is not None
        assert take_sealed(mine, other, {}, KilledAt(STEPS)) == len(SEALED)
        assert take_sealed(mine, other, {}, KilledAt(0)) is None, "there is nothing left to take"


def test_of_two_that_look_at_the_same_time_one_takes_it(tmp_path: Path) -> None:
    mine, third, dead = take_slot(tmp_path, "g"), take_slot(tmp_path, "g"), killed(tmp_path)
    neighbours = neighbours_of(third)
    looks(neighbours, 1)
    with dead_slot(mine, dead.path) as other:
        assert other is not None
        looks(neighbours, 1)
        assert not files_in(third)
        assert take_sealed(mine, other, {}) == len(SEALED)
    looks(neighbours, 2)
    assert not files_in(third)


def test_a_member_looks_until_it_is_to_stop(tmp_path: Path) -> None:
    mine = take_slot(tmp_path, "g")
    killed(tmp_path)
    pauses: list[float] = []

    async def run() -> None:
        stopping = asyncio.Event()

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)

        def is_stopping() -> bool:
            if len(pauses) > 2:
                stopping.set()
            return stopping.is_set()

        neighbours = Neighbours(mine, {}, lambda: None, is_stopping, sleep)
        neighbours.start(takes=True)
        await stopping.wait()
        await neighbours.end()

    asyncio.run(run())
    assert pauses == [LOOK_EVERY_S] * 3
    assert files_in(mine) >= SEALED
