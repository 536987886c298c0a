"""Replays with --all that have not ended: what each was about, so that the same command goes on with it.

Without --all a replay leaves out what is noted as done. With it that would be no help, so its letters are written down before
the first is sent, with how many notes there were: what is noted after them has been sent by this replay or since. Notes stay
the one place that says what was sent; a kill between a broker's answer and its note repeats that one letter, and no other.

A replay is known by its command: the same conditions, in the same words. It ends when all of its letters are done.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..durable.files import write_atomically
from ..remoting.errors import RocketcrewError, UsageError
from .letters import Key, Letter, Notes

UNFINISHED_FILE: Final = "dead-letters-unfinished.json"
UNFINISHED_MAX: Final = 100
"""Commands; of more the oldest are forgotten, and would begin anew."""


@dataclass(frozen=True, slots=True)
class Round:
    """One replay that has not ended. `notes`: how many there were when it began."""

    began: str
    notes: int
    letters: frozenset[Key]

    def left(self, letters: list[Letter], notes: Notes) -> list[Letter]:
        """Those of its letters that nothing was sent for, nor handled, since it began."""
        done = notes.sent_since(self.notes)
        return [one for one in letters if one.key in self.letters and one.key not in done]


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
                self._rounds[command] = Round(str(one["began"]), int(one["notes"]), letters)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(f"{path}: not a list of replays that have not ended; move the file away") from None

    def of(self, command: str, notes: Notes) -> Round | None:
        """The replay that this command has begun. None also where notes are gone since: nobody knows what it has sent."""
        found = self._rounds.get(command)
        return None if found is None or found.notes > notes.count else found

    def begin(self, command: str, letters: list[Letter], notes: Notes, now: str) -> None:
        """Write it down, before the first is sent. Raises RocketcrewError."""
        self._rounds.pop(command, None)
        self._rounds[command] = Round(now, notes.count, frozenset(one.key for one in letters))
        self._write()

    def end(self, command: str) -> None:
        """All of its letters are done. Raises RocketcrewError."""
        if self._rounds.pop(command, None) is not None:
            self._write()

    def _write(self) -> None:
        kept = list(self._rounds.items())[-UNFINISHED_MAX:]
        text = json.dumps(
            {command: {"began": one.began, "notes": one.notes, "letters": sorted(one.letters)} for command, one in kept}
        )
        try:
            write_atomically(self._path, text, durable=True)
        except OSError as error:
            raise RocketcrewError(f"{self._path} cannot be written: {error.strerror or error}") from error
