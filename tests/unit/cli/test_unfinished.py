"""Replays of all letters that were interrupted: they go on, and a kill at any point repeats one letter at most."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcrew.cli.letters import PURGED, REPLAYED, Letter, Notes
from rocketcrew.cli.unfinished import Course, Unfinished, command_of
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

        notes = Notes.read(self._folder / "notes")
        course = Course(self._folder / "unfinished", "all", notes)
        letters = LETTERS if course.round is None else course.left(LETTERS, {})
        try:
            if course.round is None:
                step()
            course.begin(letters, NOW)
            for letter in letters:
                step()
                self.sent.append(letter.message.queue_offset)
                step()
                notes.add(letter, REPLAYED)
            step()
            course.end()
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


@pytest.mark.parametrize("before", [0, 2])
def test_notes_that_are_gone_or_others_are_known_and_what_is_sent_twice_is_reported(
    tmp_path: Path, before: int
) -> None:
    """A replay that began without notes went on without a word, and sent again what it had sent."""
    file = tmp_path / "unfinished"
    notes, others = Notes.read(tmp_path / "notes"), Notes.read(tmp_path / "others")
    for letter in LETTERS[:before]:
        notes.add(letter, REPLAYED)
    Course(file, "all", notes).begin(LETTERS[:3], NOW)
    notes.add(LETTERS[0], REPLAYED)
    for letter in [*LETTERS, *LETTERS]:
        others.add(letter, REPLAYED)
    for replaced in (Notes.read(tmp_path / "gone"), others):
        course = Course(file, "all", replaced)
        assert course.round is None
        (said,) = course.repeats(LETTERS)
        assert NOW in said
        assert "up to 3 of these letters were sent by it, and would be sent again" in said
    course.begin(LETTERS, NOW)
    assert Course(file, "all", others).round is not None, "what cannot be gone on with is forgotten"
    assert Course(file, "more", others).repeats(LETTERS) == []


def test_a_command_that_differs_a_little_says_what_it_would_send_again(tmp_path: Path) -> None:
    notes, file = Notes.read(tmp_path / "notes"), tmp_path / "unfinished"
    command = command_of(GIVEN, ("localhost:9876",), 0, 9)
    other = command_of({**GIVEN, "limit": 5}, ("127.0.0.1:9876",), 0, 9)
    Course(file, command, notes).begin(LETTERS[:3], NOW)
    assert Course(file, other, notes).repeats(LETTERS) == [], "nothing was sent yet"
    notes.add(LETTERS[0], REPLAYED)
    (said,) = Course(file, other, notes).repeats(LETTERS)
    assert "1 of these letters was sent by it already" in said
    assert said.endswith("(limit 0, cluster localhost:9876)")
    assert Course(file, command, notes).repeats(LETTERS) == [], "it goes on"
    assert Course(file, other, notes).repeats(LETTERS[1:]) == []
    for letter in LETTERS[1:3]:
        notes.add(letter, REPLAYED)
    assert Course(file, other, notes).repeats(LETTERS) == [], "it has sent all of its own"


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


GIVEN = dict[str, object](
    names=("broker-a/0/1", "broker-a/0/0"), error="", line="", topic="", key="", since="2h", until="", limit=0, handler="",
    handled=False,
)  # fmt: skip


def test_the_same_folder_with_another_cluster_is_another_replay() -> None:
    command = command_of(GIVEN, ("a:9876", "b:9876"), 0, 9)
    assert command == command_of({**GIVEN, "names": ("broker-a/0/0", "broker-a/0/1")}, ("b:9876", "a:9876"), 0, 9)
    assert command != command_of(GIVEN, ("c:9876",), 0, 9)


def test_two_hours_ago_is_another_time_each_time() -> None:
    command = command_of(GIVEN, ("a:9876",), 1_000, 9_000)
    assert command != command_of(GIVEN, ("a:9876",), 61_000, 9_000)
    assert command == command_of({**GIVEN, "since": "1000"}, ("a:9876",), 1_000, 9_000)


def test_a_replay_in_which_a_letter_failed_has_ended_and_the_next_takes_new_ones(tmp_path: Path) -> None:
    notes, file = Notes.read(tmp_path / "notes"), tmp_path / "unfinished"
    course = Course(file, "all", notes)
    course.begin(LETTERS[:2], NOW)
    notes.add(LETTERS[0], REPLAYED)  # the handler failed on the other
    course.end()
    assert Course(file, "all", notes).round is None


def test_a_replay_whose_letters_are_not_found_does_not_end(tmp_path: Path) -> None:
    notes, file = Notes.read(tmp_path / "notes"), tmp_path / "unfinished"
    Course(file, "all", notes).begin(LETTERS, NOW)
    notes.add(LETTERS[0], REPLAYED)
    course = Course(file, "all", notes)
    assert course.left(LETTERS[:2], {}) == [LETTERS[1]]
    notes.add(LETTERS[1], REPLAYED)
    course.end()
    assert course.not_found == 2
    again = Course(file, "all", notes)
    assert again.left(LETTERS, {}) == LETTERS[2:]
    again.end()
    assert Course(file, "all", notes).round is None


def test_what_the_brokers_retention_has_deleted_ends_with_the_rest(tmp_path: Path) -> None:
    """What a queue was read up to, and has not, never comes again: the replay did not end, and exited with 1."""
    notes, file = Notes.read(tmp_path / "notes"), tmp_path / "unfinished"
    Course(file, "all", notes).begin(LETTERS, NOW)
    notes.add(LETTERS[0], REPLAYED)
    course = Course(file, "all", notes)
    assert course.left(LETTERS[3:], {("broker-a", 0): 2, ("broker-b", 0): 9}) == LETTERS[3:]
    assert (course.deleted, course.not_found) == (1, 1), "the letter at offset 2 is not found and may be"
    assert course.sends_again == ", and sends the 1 that was sent already again"
    course.end()
    course = Course(file, "all", notes)
    assert course.left(LETTERS[3:], {("broker-a", 0): 3}) == LETTERS[3:]
    assert (course.deleted, course.not_found) == (2, 0)
    course.end()
    assert Course(file, "all", notes).round is None


def test_another_beginning_leaves_out_what_is_not_found(tmp_path: Path) -> None:
    notes, file = Notes.read(tmp_path / "notes"), tmp_path / "unfinished"
    Course(file, "all", notes).begin(LETTERS, NOW)
    course = Course(file, "all", notes, anew=True)
    assert course.round is None
    course.begin(LETTERS[:1], NOW)
    course.end()
    assert Course(file, "all", notes).round is None


def test_a_replay_of_what_was_not_done_reads_and_writes_nothing_of_all(tmp_path: Path) -> None:
    file = tmp_path / "unfinished"
    file.write_bytes(b"[1]")
    course = Course(file, "", Notes.read(tmp_path / "notes"))
    course.begin(LETTERS, NOW)
    course.end()
    assert file.read_bytes() == b"[1]"
    with pytest.raises(UsageError, match="move the file away"):
        Course(file, "all", Notes.read(tmp_path / "notes"))
