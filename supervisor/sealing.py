"""What the core has noted, on the disk for the loader: files of facts in `outcomes/`.

Facts are sealed (draft, fsync, rename) before an offset is sent: what the broker counts as consumed has its rows in a segment
or is named in a file of facts, also when the power is cut right then. An offset waits for that in a task of its own and a
thread does it, so the loop goes on. Offsets are sent together every few seconds: the first of them seals for all. A pull
waits for nothing: it takes an offset along only while all that was noted is sealed.

A file of facts never changes. While the loader has not taken the last one and it is small, or has few intervals for each
queue, the next one contains it, and it is deleted once the next one is on the disk. A power cut or a kill in between leaves
both, which does no harm: facts are sets.

What is settled is in the same files, and no offset waits for it: no record is settled in there that has no rows and no fact.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from ..conf.segment_format import OUTCOMES_DIR
from ..durable.facts import FACTS_SUFFIX, facts_to_text
from ..durable.files import CALLS, FileCalls, write_atomically
from ..durable.outcomes import NO_OFFSET_WAITS, Outcomes
from .core.outcome_notes import OutcomeNotes
from .core.state import State
from .keeping import keep
from .slot import Slot

FILE_BYTES_MAX = 64 * 1024
"""A file that is larger is left alone, so that each writing stays short: unless it only is so for its number of queues."""
PIECES_MAX = 8
"""Intervals of a queue and kind, on average, that a larger file may have: another file would name the same queues again."""
_DRAFT: Final = re.compile(rf"\.\d{{20}}-\d+{re.escape(FACTS_SUFFIX)}\.new")

log = structlog.get_logger("rocketcrew.slot")


class Sealing:
    """Has it on the disk for a slot: every few seconds, and when an offset is to be sent. The loop's."""

    def __init__(
        self, slot: Slot, state: State, interval_ms: int, failed: Callable[[], None], *, wanted: bool,
        calls: FileCalls = CALLS,
    ) -> None:  # fmt: skip
        """`failed` counts what nobody expected. `wanted` False: there are no rows and no table, and nothing is written."""
        self._slot = slot
        self._state = state
        self._interval_s = interval_ms / 1000
        self._failed = failed
        self._files = FactFiles(slot.segments, slot.key_group, calls) if wanted else None
        self._one_at_a_time = asyncio.Lock()
        self._refused = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Write now, and every `interval_ms` until `end`. What fails, as for want of a disk or a thread, is tried again."""
        self._task = asyncio.create_task(keep("sealing", self._write_often, self._failed))

    async def _write_often(self) -> None:
        while True:
            await self._write()
            await asyncio.sleep(self._interval_s)

    def all_sealed(self) -> bool:
        """Whether all that an offset depends on is on the disk, of what the core has noted so far."""
        return self._files is None or not (self._state.outcomes or self._files.waiting.without(*NO_OFFSET_WAITS))

    async def sealed(self) -> bool:
        """Have on the disk all that the core has noted so far; False when the disk refuses, which is logged."""
        return self.all_sealed() or await self._write()

    async def end(self) -> None:
        """Write for the last time."""
        if self._task is not None:
            async with self._one_at_a_time:  # never in the middle of a writing: its thread would go on
                self._task.cancel()
            self._task = None
            await self._write()

    async def kill(self) -> None:
        """Write no more; what is being written is."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _write(self) -> bool:
        """Who waits for it may be cancelled: its thread goes on, and so the next one has to wait for that."""
        return await asyncio.shield(self._write_noted())

    async def _write_noted(self) -> bool:
        async with self._one_at_a_time:
            if self._files is None:
                self._state.outcomes.take(self._slot.key_group)
                return True
            self._files.gather(self._state.outcomes)
            if not self._files.waiting:
                return True
            try:
                await asyncio.to_thread(self._files.seal)
            except OSError as error:
                if not self._refused:  # once, and not for each queue's offset
                    log.error("facts_not_sealed", folder=str(self._slot.segments), error=str(error),
                              effect="offsets are not sent until it is written")  # fmt: skip
                self._refused = True
                return False
            if self._refused:
                log.info("facts_sealed_again", folder=str(self._slot.segments))
            self._refused = False
            return True


class FactFiles:
    """Seals notes in the slot's `segments/outcomes/`. `gather` and `seal` are never called at the same time."""

    def __init__(self, segments: Path, group: str, calls: FileCalls = CALLS) -> None:
        """Drafts that an earlier run of the slot left are deleted: the caller holds its lock."""
        self._folder = segments / OUTCOMES_DIR
        self._group = group
        self._calls = calls
        self._last: Path | None = None
        self._sealed = Outcomes()
        """What that file says."""
        self.waiting = Outcomes()
        """What is to be sealed."""
        for path in self._folder.glob(f".*{FACTS_SUFFIX}.new"):
            if _DRAFT.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def gather(self, notes: OutcomeNotes) -> None:
        """Take what was noted, for `seal`."""
        self.waiting = Outcomes.union([self.waiting, notes.take(self._group)])

    def seal(self) -> None:
        """What waits is on the disk when this returns. Raises OSError; then it still waits."""
        before = self._last
        if before is not None and not before.exists():  # the loader has taken it
            before, self._last = None, None
        facts = self.waiting if before is None else Outcomes.union([self._sealed, self.waiting])
        text = facts_to_text(facts)
        path = self._folder / f"{time.time_ns():020d}-{os.getpid()}{FACTS_SUFFIX}"
        write_atomically(path, text, durable=True, calls=self._calls)
        if len(text) > FILE_BYTES_MAX and is_in_pieces(facts):
            self._last, self._sealed = None, Outcomes()
        else:
            self._last, self._sealed = path, facts
        self.waiting = Outcomes()
        if before is not None:
            with contextlib.suppress(FileNotFoundError):  # the loader has taken it meanwhile
                self._calls.unlink(str(before))


def is_in_pieces(facts: Outcomes) -> bool:
    """Whether these facts have many intervals for their queues and kinds: then a new file is shorter than a longer one."""
    each = [offsets for records in facts.kinds.values() for offsets in records.queues.values()]
    return sum(len(offsets.pieces) for offsets in each) > PIECES_MAX * len(each)
