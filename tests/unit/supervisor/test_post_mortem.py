"""What is said of a dead worker: how it ended in words, and how often the kernel killed for want of memory."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.blame import CellContent, Death, End, InHand, Verdict
from rocketcrew.supervisor.core.state import Worker
from rocketcrew.supervisor.core.states import WorkerState
from rocketcrew.supervisor.core.time_limits import Look
from rocketcrew.supervisor.pool.child import Child
from rocketcrew.supervisor.pool.post_mortem import (
    RECENT_NS,
    PostMortem,
    by_itself,
    cause_of,
    ended_in_boot,
    in_hand_of,
    left_open,
    oom_kills,
)
from rocketcrew.workers.cells import (
    BETWEEN,
    CHUNK_ID,
    CONSUMED_DIRECTLY,
    LAST,
    RECORDS,
    RSS_PEAK,
    STARTED_NS,
    STATE,
    Cell,
    CellFile,
    map_cell,
)
from rocketcrew.workers.stack_dump import StackFile

from .conftest import Bench


@pytest.mark.parametrize(
    ("exit_code", "words", "own_doing"),
    [
        (-9, "SIGKILL", False), (-15, "SIGTERM", False), (-11, "SIGSEGV", True), (-6, "SIGABRT", True),
        (-64, "SIGRTMAX", False), (-70, "signal 70", False), (0, "exit code 0", False), (3, "exit code 3", True),
        (None, "unknown", False),
    ],
)  # fmt: skip
def test_the_cause_in_words(exit_code: int | None, words: str, own_doing: bool) -> None:
    assert (cause_of(exit_code), by_itself(exit_code)) == (words, own_doing)


def test_who_waited_is_not_in_hand_of_a_worker_that_was_killed_from_outside() -> None:
    named = Cell(3, 10, 12, 3, 11, 900, 77, 0)
    waiting = named._replace(offset=BETWEEN - 1)
    assert in_hand_of(None) is None
    found = InHand(3, 10, 12, 3, 11, "77:900")
    assert in_hand_of(named) == in_hand_of(named, from_outside=True) == found
    assert found.content is CellContent.SEVERAL
    left = in_hand_of(waiting)
    assert left is not None
    assert left.content is CellContent.WAITING
    assert in_hand_of(waiting, from_outside=True) is None


def test_what_an_administrator_wanted_consumed_is_charged_to_no_record() -> None:
    assert in_hand_of(Cell(CONSUMED_DIRECTLY, 7, 7, 1, None, 5, 1, 0)) is None


def test_kills_for_want_of_memory_are_those_of_our_control_group(tmp_path: Path) -> None:
    own, group = tmp_path / "own", tmp_path / "root" / "pods" / "one"
    own.write_text("1:name=systemd:/other\n0::/pods/one\n")
    assert oom_kills(own, tmp_path / "root") == 0, "a system without that file"
    group.mkdir(parents=True)
    (group / "memory.events").write_text("low 0\nhigh 7\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n")
    assert oom_kills(own, tmp_path / "root") == 2
    (group / "memory.events").write_text("low 0\n")
    assert oom_kills(own, tmp_path / "root") == 0
    assert oom_kills(tmp_path / "none", tmp_path / "root") == 0
    own.write_text("0::/\nno line of that kind\n")
    assert oom_kills(own, group) == 0


def test_version_1_of_control_groups_has_the_number_elsewhere(tmp_path: Path) -> None:
    own, group = tmp_path / "own", tmp_path / "root" / "memory" / "pods" / "one"
    own.write_text("9:cpu,cpuacct:/pods/one\n4:hugetlb,memory:/pods/one\n0::/pods/one\n")
    assert oom_kills(own, tmp_path / "root") == 0, "a kernel that does not count"
    group.mkdir(parents=True)
    (group / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\n")
    assert oom_kills(own, tmp_path / "root") == 0, "before Linux 4.13"
    (group / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert oom_kills(own, tmp_path / "root") == 3


@pytest.mark.parametrize(
    ("line", "file"), [("0::/host/path\n", "memory.events"), ("4:memory:/host/path\n", "memory/memory.oom_control")]
)
def test_what_is_mounted_in_a_container_is_the_group_itself(line: str, file: str, tmp_path: Path) -> None:
    (tmp_path / "own").write_text(line)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("oom_kill 5\n")
    assert oom_kills(tmp_path / "own", tmp_path) == 5


# --- the whole look -----------------------------------------------------------------------------------------------------


BEGAN_NS = 10**15


@dataclass
class Process:
    """A dead one."""

    exitcode: int | None
    pid: int = 4711
    unattended: bool = False


class Scene:
    """A cell file, a control group, and a worker that ends."""

    def __init__(self, folder: Path) -> None:
        self.path, self.own, self.events = folder / "cells", folder / "own", folder / "memory.events"
        self.own.write_text("0::/\n")
        self.killed_for_memory(2)
        self.cells = CellFile(self.path, 2)
        self.now_ns = BEGAN_NS + 3_210_000_000
        self.mortem = PostMortem(self.cells, self.own, folder, lambda: self.now_ns)
        self.stacks = StackFile()

    def killed_for_memory(self, count: int) -> None:
        """So many of the group, in all."""
        self.events.write_text(f"oom {count}\noom_kill {count}\n")

    def in_hand(self, offset: int) -> None:
        """The worker has begun a call."""
        cell = map_cell(self.path, 1, 4711)
        cell[CHUNK_ID], cell[RECORDS], cell[LAST], cell[STARTED_NS] = 5, 1, offset, BEGAN_NS
        cell[RSS_PEAK], cell[STATE] = 3 << 20, offset + 1

    def child(
        self, exit_code: int | None, *, unattended: bool = False, state: WorkerState = WorkerState.READY, **more: Any
    ) -> Child:
        process: Any = Process(exit_code, unattended=unattended)
        link: Any = None
        return Child(Worker("w.1", state), 1, process, link, self.stacks, **more)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    found = Scene(tmp_path)
    yield found
    found.stacks.close()
    found.cells.close()


def test_a_worker_that_was_killed_for_want_of_memory(scene: Scene) -> None:
    scene.in_hand(7)
    scene.killed_for_memory(3)
    death = scene.mortem.look(
        scene.child(-signal.SIGKILL, rss_peak_bytes=9 << 20, rss_last_bytes=8 << 20, sampled_call_ns=BEGAN_NS)
    )
    assert (death.end, death.cause, death.verdict) == (End.CRASHED, "SIGKILL", Verdict.CHARGED)
    assert death.in_hand == InHand(5, 7, 7, 1, None, f"4711:{BEGAN_NS}")
    assert death.facts == {
        "pid": 4711, "exit_code": -9, "run_ms": 3210, "rss_peak_bytes": 9 << 20, "rss_last_bytes": 8 << 20, "oom_kills": 1,
    }  # fmt: skip
    assert "oom_kills" not in scene.mortem.look(scene.child(-signal.SIGKILL)).facts, "that one was counted"
    scene.killed_for_memory(0)
    assert "oom_kills" not in scene.mortem.look(scene.child(-signal.SIGKILL)).facts, "in another group now"


def busy_worker(bench: Bench) -> Worker:
    """One with a message in flight."""
    bench.worker("w.1")
    (handle,) = bench.open(0)
    bench.found(handle, [0])
    bench.dispatched()
    return bench.core.state.workers["w.1"]


def test_who_ends_by_a_fault_or_for_want_of_memory_between_two_calls_was_writing_rows(
    scene: Scene, bench: Bench
) -> None:
    busy = busy_worker(bench)

    def look(exit_code: int) -> Death:
        return scene.mortem.look(dataclasses.replace(scene.child(exit_code), worker=busy))

    scene.killed_for_memory(3)
    dead = [look(-number) for number in (signal.SIGKILL, signal.SIGSEGV)]
    assert [(death.end, death.verdict) for death in dead] == [(End.CRASHED, Verdict.SUSPECTED)] * 2
    assert all(death.in_hand is not None and death.in_hand.content is CellContent.WAITING for death in dead)
    assert look(1).in_hand is None, "who ends by an error has named what it worked on"
    assert look(-signal.SIGKILL).in_hand is None, "killed by somebody"
    assert scene.mortem.look(scene.child(-signal.SIGSEGV)).in_hand is None, "one that has nothing"


def test_who_stood_still_between_two_calls_was_writing_rows(scene: Scene, bench: Bench) -> None:
    busy = busy_worker(bench)

    def look(**more: Any) -> Death:
        child = scene.child(-signal.SIGABRT, look=Look(ended=(0, 0), **more))
        return scene.mortem.look(dataclasses.replace(child, worker=busy))

    alone, with_others = look(), look(by_machine=True)
    assert (alone.end, alone.verdict) == (End.STALLED, Verdict.SUSPECTED)
    assert (with_others.end, with_others.verdict) == (End.MACHINE, Verdict.APART)
    scene.in_hand(7)
    assert look().verdict is Verdict.NOBODY, "it had gone on when it was ended"


def test_who_was_killed_because_it_had_no_link_any_more_is_not_charged_with_what_it_ran_last(
    scene: Scene, bench: Bench
) -> None:
    """What closed its descriptors is among those that it has not reported."""
    busy = busy_worker(bench)
    scene.in_hand(7)
    scene.killed_for_memory(3)
    death = scene.mortem.look(dataclasses.replace(scene.child(-signal.SIGKILL, cut_off=True), worker=busy))
    assert (death.end, death.verdict) == (End.CRASHED, Verdict.SUSPECTED)
    assert death.in_hand is not None
    assert death.in_hand.content is CellContent.WAITING
    assert "oom_kills" not in death.facts, "we killed it"
    found_out = scene.mortem.look(dataclasses.replace(scene.child(8), worker=busy))
    assert found_out.verdict is Verdict.CHARGED, "it has named it itself"


@pytest.mark.parametrize(
    ("exit_code", "verdict", "leaves"),
    [
        (0, Verdict.SUSPECTED, Verdict.NOBODY),
        (3, Verdict.SUSPECTED, Verdict.SUSPECTED),
        (-signal.SIGTERM, Verdict.NOBODY, Verdict.NOBODY),
        (None, Verdict.NOBODY, Verdict.NOBODY),
    ],
)
def test_of_calls_that_waited_one_has_ended_the_worker_unless_somebody_killed_it(
    scene: Scene, exit_code: int | None, verdict: Verdict, leaves: Verdict
) -> None:
    """Code 0 too: sys.exit() in a task that a call awaits ends the loop, and the worker came again and again."""
    scene.in_hand(7)
    cell = map_cell(scene.path, 1, 4711)
    cell[STATE] = BETWEEN
    assert scene.mortem.look(scene.child(exit_code)).verdict is verdict
    assert scene.mortem.look(scene.child(exit_code, state=WorkerState.STOPPING)).verdict is leaves, (
        "it was asked to leave"
    )


def test_a_kill_for_want_of_memory_is_one_death_soon_after_it(scene: Scene) -> None:
    def kills(**more: Any) -> object:
        return scene.mortem.look(scene.child(-signal.SIGKILL, **more)).facts.get("oom_kills", 0)

    scene.killed_for_memory(4)
    assert [kills(), kills(), kills()] == [2, 1, 0], "two at once are two deaths, and the third was killed by somebody"
    scene.killed_for_memory(5)
    assert kills(state=WorkerState.KILLED) == kills(state=WorkerState.STOPPING) == 0, "we killed it ourselves"
    scene.in_hand(7)
    assert kills(look=Look(ended=(8, BEGAN_NS))) == 0, "and for its time limit"
    scene.cells.clear(1)
    scene.mortem.oom_kills.note()
    scene.now_ns += RECENT_NS
    assert kills() == 1, "it took its time to be gone"
    scene.killed_for_memory(1_000_000)
    scene.mortem.oom_kills.note()
    scene.now_ns += RECENT_NS + 1
    assert kills() == 0, "that was the loader, or a process of a handler's"


def test_a_kill_by_somebody_else_and_what_was_sampled_in_another_call(scene: Scene) -> None:
    scene.in_hand(7)
    death = scene.mortem.look(scene.child(-signal.SIGKILL, rss_last_bytes=8 << 20, sampled_call_ns=BEGAN_NS - 1))
    assert death.verdict is Verdict.CHARGED
    assert set(death.facts) == {"pid", "exit_code", "run_ms", "rss_peak_bytes"}
    assert death.facts["rss_peak_bytes"] == 3 << 20, "as the worker measured it itself"
    scene.cells.clear(1)
    idle = scene.mortem.look(scene.child(-signal.SIGKILL, rss_last_bytes=8 << 20))
    assert (idle.in_hand, idle.verdict) == (None, Verdict.NOBODY)
    assert set(idle.facts) == {"pid", "exit_code"}


def test_a_fault_leaves_its_stack_and_other_signals_do_not_count_kills_for_memory(scene: Scene) -> None:
    scene.in_hand(7)
    scene.killed_for_memory(3)
    os.write(scene.stacks.shared.fd, b"asked before\nFatal Python error: Segmentation fault\n\nin f\n")
    death = scene.mortem.look(scene.child(-signal.SIGSEGV))
    assert (death.cause, death.verdict) == ("SIGSEGV", Verdict.CHARGED)
    assert death.facts["stack"] == "Fatal Python error: Segmentation fault\n\nin f"
    assert "oom_kills" not in death.facts


def test_whom_we_end_and_who_ends_with_us_are_charged_with_nothing(scene: Scene) -> None:
    scene.in_hand(7)
    assert scene.mortem.look(scene.child(-signal.SIGKILL, state=WorkerState.STOPPING)).end is End.RETIRED
    assert scene.mortem.look(scene.child(-signal.SIGKILL, state=WorkerState.KILLED)).end is End.OURS
    late = Look(ended=(8, BEGAN_NS))
    assert scene.mortem.look(scene.child(-signal.SIGABRT, look=late)).end is End.TIME_LIMIT
    assert scene.mortem.look(scene.child(-signal.SIGKILL, unattended=True)).end is End.FORKSERVER
    scene.cells.stopping = True
    assert scene.mortem.look(scene.child(-signal.SIGKILL)).end is End.RETIRED
    assert scene.mortem.look(scene.child(-signal.SIGSEGV)).end is End.CRASHED, "that it did to itself"


@pytest.mark.parametrize(
    ("kills", "exit_code", "more", "by_handler", "words"),
    [
        (3, -9, {}, False, "killed by the kernel for want of memory"),
        (2, -9, {}, False, "ended by SIGKILL"),
        (2, -15, {}, False, "ended by SIGTERM"),
        (2, 255, {"unattended": True}, False, "the forkserver ended"),
        (3, -11, {}, True, "(SIGSEGV)"),
        (2, 0, {}, True, "(exit code 0)"),
        (2, 3, {}, True, "(exit code 3)"),
        (3, -9, {"cut_off": True}, True, "closed its link"),
        (3, -9, {"state": WorkerState.KILLED}, True, "(killed by the supervisor)"),
    ],
)
def test_whether_the_handler_has_ended_a_worker_that_booted(
    scene: Scene, kills: int, exit_code: int, more: dict[str, Any], by_handler: bool, words: str
) -> None:
    scene.killed_for_memory(kills)
    child = scene.child(exit_code, **({"state": WorkerState.BOOTING} | more))
    error = ended_in_boot(child, scene.mortem.look(child))
    assert error.by_handler is by_handler
    assert words in str(error)


def test_what_cannot_be_looked_for_runs_again_and_nothing_waits_for_it(bench: Bench, tmp_path: Path) -> None:
    bench.worker("w1")
    bench.open(0)
    (pull,) = bench.take(act.Pull)
    bench.found(pull.handle, [0])
    (chunk,) = bench.dispatched()
    bench.done(chunk, seq=1)
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    unreadable = tmp_path / ("x" * 300)  # no file system takes the name
    assert left_open(bench.core, unreadable, "w1", bench.now) == []
    assert bench.counters.unexpected_errors == 1
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    assert bench.counters.lost_rows_restarts == 1
