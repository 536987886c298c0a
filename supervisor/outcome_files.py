"""What the core has settled and noted, written beside the segments for the loader: settled.json and `outcomes/`.

One file of outcomes is written again and again until the loader has renamed it or it is large, then the next one begins.
Should the loader rename it in the moment between our look and our writing, it gets the same notes twice, which is once: they
are sets.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import structlog

from ..conf.segment_format import OUTCOMES_DIR
from ..durable.outcomes import Outcomes, notes_to_json
from .core.outcome_notes import OutcomeNotes
from .core.state import State
from .slot import Slot, write_settled

FILE_BYTES_MAX = 256 * 1024
"""A file that is larger is left alone, so that each writing stays short."""


log = structlog.get_logger("rocketcrew.slot")


class Published:
    """Writes both for a slot."""

    def __init__(self, slot: Slot, interval_ms: int) -> None:
        self._slot = slot
        self._interval_s = interval_ms / 1000
        self._files = OutcomeFiles(slot.segments, slot.key_group)
        self._timer: asyncio.TimerHandle | None = None

    def start(self, state: State) -> None:
        """Write now, and every `interval_ms` until `end`. A disk that refuses is tried again."""
        try:
            self._write(state)
        finally:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self.start, state)

    def end(self, state: State) -> None:
        """Write for the last time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._write(state)

    def _write(self, state: State) -> None:
        try:
            self._files.write(state.outcomes)
            write_settled(self._slot.segments, self._slot.key_group, state.settled)
        except OSError as error:
            log.error("settled_write_failed", error=str(error))


class OutcomeFiles:
    """Writes notes into the slot's `segments/outcomes/`."""

    def __init__(self, segments: Path, group: str) -> None:
        self._folder = segments / OUTCOMES_DIR
        self._group = group
        self._path: Path | None = None
        self._written = Outcomes()
        self._unwritten = Outcomes()

    def write(self, notes: OutcomeNotes) -> None:
        """Add what is new to the file. Raises OSError; then the notes are kept for the next try."""
        self._unwritten = Outcomes.union([self._unwritten, notes.take(self._group)])
        if not self._unwritten:
            return
        if self._path is None or not self._path.exists():  # the first one, or the loader has taken it
            self._written = Outcomes()
            self._path = self._folder / f"{time.time_ns():020d}-{os.getpid()}.json"
        together = Outcomes.union([self._written, self._unwritten])
        text = notes_to_json(together)
        draft = self._path.with_name(f".{self._path.name}.new")
        draft.write_text(text)
        draft.replace(self._path)
        self._written, self._unwritten = together, Outcomes()
        if len(text) > FILE_BYTES_MAX:
            self._path = None
