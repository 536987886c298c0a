"""Replays of all letters that were interrupted: they go on, and a kill at any point repeats one letter at most."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcrew.cli.letters import PURGED, REPLAYED, Letter, Notes
from rocketcrew.cli.unfinished import Unfinished
from rocketcrew.remoting.errors import RocketcrewError, UsageError
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage

NOW = "2026-01-31T00:00:00.000Z"
LETTERS = [
    Letter(
        MessageQueue("%DLQ%billing", "broker-a", 0),
        StoredMessage("%DLQ%billing", b"x", encode_properties({"UNIQ_KEY": f"id-{n}"}).encode(), queue_offset=n),
    )
    for n in range(4)
]


class Killed(Exception):
    """Where the process is killed."""


class Replays:
    """One command, run again and again on one folder, and killed after so many steps. A step is a file or a send."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.sent: list[int] = []

    def run(self, steps: int) -> bool:
        """Whether it came to its end."""
        left = steps

        def step() -> None:
            nonlocal left
            if not left:
                raise Killed
            left -= 1

        notes, path = Notes.read(self._folder / "notes"), self._folder / "unfinished"
        unfinished = Unfinished(path)
        found = unfinished.of("all", notes)
        letters = LETTERS if found is None else found.left(LETTERS, notes)
        try:
            if found is None:
                step()
                unfinished.begin("all", letters, notes, NOW)
            for letter in letters:
                step()
                self.sent.append(letter.message.queue_offset)
                step()
                notes.add(letter, REPLAYED)
            step()
            Unfinished(path).end("all")
        except Killed:
            return False
        return True


@pytest.mark.parametrize("steps", range(11))
def test_a_kill_at_any_step_repeats_the_letter_in_flight_at_most(tmp_path: Path, steps: int) -> None:
    for letter in LETTERS:
        Notes.read(tmp_path / "notes").add(letter, REPLAYED)  # of an earlier replay: all are done already
    replays = Replays(tmp_path)
    ended = replays.run(steps)
    assert ended == (steps == 10)
    assert ended or replays.run(99)
    assert sorted(set(replays.sent)) == [0, 1, 2, 3]
    assert len(replays.sent) - 4 == (1 if steps in {2, 4, 6, 8} else 0)
    assert Unfinished(tmp_path / "unfinished").of("all", Notes.read(tmp_path / "notes")) is None


def test_another_command_begins_its_own_and_what_it_sends_is_not_sent_again(tmp_path: Path) -> None:
    notes, file = Notes.read(tmp_path / "notes"), tmp_path / "unfinished"
    Unfinished(file).begin("all", LETTERS[:3], notes, NOW)
    notes.add(LETTERS[0], REPLAYED)
    unfinished = Unfinished(file)
    assert unfinished.of("others", notes) is None
    unfinished.begin("others", LETTERS[1:], notes, NOW)
    notes.add(LETTERS[1], REPLAYED)
    notes.add(LETTERS[2], PURGED)
    found = Unfinished(file).of("all", notes)
    assert found is not None
    assert found.left(LETTERS, notes) == [LETTERS[2]]
    other = Unfinished(file).of("others", notes)
    assert other is not None
    assert other.left(LETTERS, notes) == LETTERS[2:]


def test_without_the_notes_nobody_knows_what_was_sent(tmp_path: Path) -> None:
    notes, file = Notes.read(tmp_path / "notes"), tmp_path / "unfinished"
    notes.add(LETTERS[0], REPLAYED)
    Unfinished(file).begin("all", LETTERS, notes, NOW)
    assert Unfinished(file).of("all", Notes.read(tmp_path / "gone")) is None


def test_a_file_of_something_else_and_one_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    file = tmp_path / "unfinished"
    for content in (b"[1]", b"{", b"\xff", b'{"all": 1}', b'{"all": {"began": "", "notes": 0, "letters": [1]}}'):
        file.write_bytes(content)
        with pytest.raises(
            UsageError, match="unfinished: not a list of replays that have not ended; move the file away"
        ):
            Unfinished(file)
    with pytest.raises(RocketcrewError, match="nowhere/unfinished cannot be written: No such file or directory"):
        Unfinished(tmp_path / "nowhere" / "unfinished").begin("all", LETTERS, Notes(tmp_path / "notes"), NOW)
