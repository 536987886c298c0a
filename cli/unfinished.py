"""Replays with --all that have not ended: what each was about, so that the same command goes on with it.

Without --all a replay leaves out what is noted as done. With it that would be no help, so its letters are written down before
the first is sent, with how many notes there were: what is noted after them has been sent by this replay or since. Notes stay
the one place that says what was sent; a kill between a broker's answer and its note repeats that one letter, and no other.

The first note of such a replay is of its beginning. Where that is not at its place any more, the notes are gone, or others:
nobody knows what was sent, and the replay cannot go on. A replay that begins beside one that has not ended sends letters that
were sent already; so it is reported, with how many.

A replay is known by its command: the same conditions at the same cluster, with times as milliseconds. It ends when it has
come to the end of its letters, also where a handler failed on some, or where brokers have deleted some. One that was
interrupted stays, and so does one with letters that are not found, as their broker may come back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from ..durable.files import write_atomically
from ..remoting.errors import RocketcrewError, UsageError
from .letters import NO_KEY, Key, Letter, Notes

UNFINISHED_FILE: Final = "dead-letters-unfinished.json"
UNFINISHED_MAX: Final = 100
"""Commands; of more the oldest are forgotten, and would begin anew."""


@dataclass(frozen=True, slots=True)
class Round:
    """One replay that has not ended. `notes`: how many there were when it began, `last`: the key of the last of them, which
    notes its beginning."""

    began: str
    notes: int
    letters: frozenset[Key]
    last: Key = NO_KEY

    def known(self, notes: Notes) -> bool:
        """Whether these are the notes that it began with."""
        return self.notes <= notes.count and (self.last == NO_KEY or notes.sent[self.notes - 1] == self.last)

    def sent(self, letters: list[Letter], notes: Notes) -> int:
        """How many of `letters` it has sent: at most, where its notes are not known; 0 where it has sent all of its own."""
        own = {one.key for one in letters} & self.letters
        if not self.known(notes):
            return len(own)
        done = notes.sent_since(self.notes)
        return len(own & done) if self.letters - done else 0

    def left(self, letters: list[Letter], notes: Notes) -> list[Letter]:
        """Those of its letters that nothing was sent for, nor handled, since it began."""
        done = notes.sent_since(self.notes)
        return [one for one in letters if one.key in self.letters and one.key not in done]

    def not_found(self, letters: list[Letter], notes: Notes) -> frozenset[Key]:
        """Those of its letters that are not done, and not among `letters`, which are all that brokers have now."""
        return self.letters - notes.sent_since(self.notes) - {one.key for one in letters}

    def done(self, notes: Notes) -> int:
        """How many of its letters were sent or handled since it began."""
        return len(self.letters & notes.sent_since(self.notes))


class Unfinished:
    """The file of a group."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError for a file that is not such a one."""
        self._path = path
        self._rounds: dict[str, Round] = {}
        if not path.is_file():
            return
        try:
            found: dict[str, Any] = json.loads(path.read_bytes())
            for command, one in found.items():
                letters = frozenset((str(a), int(b), int(c), str(d)) for a, b, c, d in one["letters"])
                a, b, c, d = one.get("last", NO_KEY)
                last = str(a), int(b), int(c), str(d)
                self._rounds[command] = Round(str(one["began"]), int(one["notes"]), letters, last)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(f"{path}: not a list of replays that have not ended; move the file away") from None

    def of(self, command: str, notes: Notes) -> Round | None:
        """The replay that this command has begun. None also where notes are gone since: nobody knows what it has sent."""
        found = self._rounds.get(command)
        return found if found is not None and found.known(notes) else None

    def others(self, command: str, notes: Notes) -> dict[str, Round]:
        """By their commands, those that `command` does not go on with."""
        return {name: one for name, one in self._rounds.items() if name != command or not one.known(notes)}

    def begin(self, command: str, letters: list[Letter], notes: Notes, now: str) -> None:
        """Write it down, before the first is sent; those whose notes are gone are forgotten. Raises RocketcrewError."""
        self._rounds = {name: one for name, one in self._rounds.items() if name != command and one.known(notes)}
        last = notes.begin(now)
        self._rounds[command] = Round(now, notes.count, frozenset(one.key for one in letters), last)
        self._write()

    def end(self, command: str) -> None:
        """It has come to the end of its letters. Raises RocketcrewError."""
        if self._rounds.pop(command, None) is not None:
            self._write()

    def _write(self) -> None:
        kept = list(self._rounds.items())[-UNFINISHED_MAX:]
        text = json.dumps(
            {
                command: {"began": one.began, "notes": one.notes, "letters": sorted(one.letters), "last": one.last}
                for command, one in kept
            }
        )
        try:
            write_atomically(self._path, text, durable=True)
        except OSError as error:
            raise RocketcrewError(f"{self._path} cannot be written: {error.strerror or error}") from error


class Course:
    """One run of a replay, from the file of a group. Without --all nothing is read or written."""

    def __init__(self, path: Path, command: str, notes: Notes, *, anew: bool = False) -> None:
        """`command`: what names the replay, empty without --all. `anew`: it begins again. Raises UsageError for a file that
        is not such a one, before anything is sent."""
        self._command = command
        self._notes = notes
        self._unfinished = Unfinished(path) if command else None
        self.round = self._unfinished.of(command, notes) if self._unfinished and not anew else None
        """What this run goes on with, if there is such a one."""
        self.not_found = 0
        """Letters of it that no broker has now, and that may come again."""
        self.deleted = 0
        """Letters of it that brokers have deleted."""

    def left(self, letters: list[Letter], read_to: Mapping[tuple[str, int], int]) -> list[Letter]:
        """What is left of `round`; `letters` are all that brokers have now. `read_to`, by broker and queue id: what is in the
        queue below this offset is among `letters`, so what is not is deleted for certain."""
        assert self.round is not None
        missing = self.round.not_found(letters, self._notes)
        deleted = [one for one in missing if one[2] < read_to.get((one[0], one[1]), 0)]
        self.deleted, self.not_found = len(deleted), len(missing) - len(deleted)
        return self.round.left(letters, self._notes)

    @property
    def sends_again(self) -> str:
        """What --anew does besides, as the end of a sentence; empty where nothing was sent."""
        count = 0 if self.round is None else self.round.done(self._notes)
        return f", and sends the {count} that {'was' if count == 1 else 'were'} sent already again" if count else ""

    def repeats(self, letters: list[Letter]) -> list[str]:
        """Why some of `letters` would be sent a second time: a line for each other replay that has not ended."""
        if self._unfinished is None or self.round is not None:
            return []
        found: list[str] = []
        for command, one in self._unfinished.others(self._command, self._notes).items():
            count = one.sent(letters, self._notes)
            if not count:
                continue
            begun = f"a replay of this group with --all, begun {one.began}, has not ended"
            if not one.known(self._notes):
                found.append(
                    f"{begun}, and the notes of what it sent are gone or were replaced ({self._notes.path}):"
                    f" up to {_were(count)} sent by it, and would be sent again"
                )
            else:
                found.append(
                    f"{begun}: {_were(count)} sent by it already, and would be sent again; its own command goes on with it"
                    f" ({differences(command, self._command)})"
                )
        return found

    def begin(self, letters: list[Letter], now: str) -> None:
        """Before the first of `letters` is sent. Raises RocketcrewError."""
        if self._unfinished and self.round is None:
            self._unfinished.begin(self._command, letters, self._notes, now)

    def end(self) -> None:
        """After the last. The replay stays while letters are not found that may come again. Raises RocketcrewError."""
        if self._unfinished and not self.not_found:
            self._unfinished.end(self._command)


def command_of(given: Mapping[str, Any], name_servers: Iterable[str], from_ms: int, to_ms: int) -> str:
    """What names a replay: at which cluster, which letters, and what is done with them. `given` are the options of its
    command; `from_ms` and `to_ms` are --since and --until in milliseconds since 1970, as "2h" is another time each time."""
    names = ("error", "line", "topic", "key", "limit", "handler", "handled")
    return json.dumps(
        {name: given[name] for name in names}
        | {"names": sorted(given["names"]), "from_ms": from_ms, "to_ms": to_ms, "cluster": sorted(name_servers)}
    )


def differences(command: str, other: str) -> str:
    """What `command` has and `other` has not, in words; of a text that is no command that text."""
    try:
        own: dict[str, Any] = json.loads(command)
        others: dict[str, Any] = json.loads(other)
    except ValueError:
        return command
    return ", ".join(f"{name} {_shown(value)}" for name, value in own.items() if others.get(name) != value)


def _were(count: int) -> str:
    return f"{count} of these letters {'was' if count == 1 else 'were'}"


def _shown(value: object) -> str:
    if not isinstance(value, list):
        return json.dumps(value)
    return ",".join(map(str, cast("list[object]", value))) or "none"
