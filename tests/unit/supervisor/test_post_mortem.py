"""What is said of a dead worker: how it ended in words, and how often the kernel killed for want of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcrew.supervisor.blame import Hand, InHand
from rocketcrew.supervisor.post_mortem import by_itself, cause_of, in_hand_of, oom_kills
from rocketcrew.workers.cells import BETWEEN, Cell


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
    assert found.hand is Hand.SEVERAL
    left = in_hand_of(waiting)
    assert left is not None
    assert left.hand is Hand.WAITING
    assert in_hand_of(waiting, from_outside=True) is None


def test_kills_for_want_of_memory_are_those_of_our_control_group(tmp_path: Path) -> None:
    own, group = tmp_path / "own", tmp_path / "root" / "pods" / "one"
    own.write_text("1:name=systemd:/other\n0::/pods/one\n")
    assert oom_kills(own, tmp_path / "root") == 0, "a system without that file"
    group.mkdir(parents=True)
    (group / "memory.events").write_text("low 0\nhigh 7\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n")
    assert oom_kills(own, tmp_path / "root") == 2
    (group / "memory.events").write_text("low 0\n")
    assert oom_kills(own, tmp_path / "root") == 0
    own.write_text("4:memory:/pods/one\n")
    assert oom_kills(own, tmp_path / "root") == 0, "version 1 of control groups"
    assert oom_kills(tmp_path / "none", tmp_path / "root") == 0
