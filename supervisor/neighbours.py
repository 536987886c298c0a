"""Dead slots beside a member that runs: what is sealed there gets into the table without a start.

A member that was killed or scaled down leaves sealed segments, and its loader is dead too. The next start takes over all of
its slot (`adopt` in slot.py); until then, which may be weeks, the rows would be missing while nothing looks wrong. So each
member with a loader looks now and then, and moves what is sealed into its own folder, where its loader finds it.

A slot is taken only if it was free at two looks: a member that is restarted at once finds its journal and its segments. Of
two members that look at the same time the slot's lock decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from .keeping import keep
from .slot import Slot, dead_slot, has_sealed, member_of, other_slots, refuse, take_sealed

LOOK_EVERY_S = 20.0
"""Twice that is how long such rows wait, and what a restart may take to find its slot as it left it."""

log = structlog.get_logger("rocketcrew.slot")


class Neighbours:
    """Looks at the other slots of the group from time to time, until a stop is asked for."""

    def __init__(
        self, slot: Slot, told: dict[str, str], failed: Callable[[], None], is_stopping: Callable[[], bool],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        """`told`: slots of which it was said why they are not taken over. `failed` counts what nobody expected."""
        self._slot = slot
        self._told = told
        self._failed = failed
        self._is_stopping = is_stopping
        self._sleep = sleep
        self._free: set[Path] = set()
        """With something sealed, and held by nobody at the last look."""
        self._one_at_a_time = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look every LOOK_EVERY_S; the start has just taken over what there was."""
        self._task = asyncio.create_task(keep("neighbours", self._look_often, self._failed, self._sleep))

    async def end(self) -> None:
        """Look no more; a look under way is finished."""
        if self._task is not None:
            async with self._one_at_a_time:
                self._task.cancel()
            self._task = None

    async def _look_often(self) -> None:
        while True:
            await self._sleep(LOOK_EVERY_S)
            if self._is_stopping():
                return
            async with self._one_at_a_time:
                await asyncio.to_thread(self.look)

    def look(self) -> None:
        """One look, which takes as long as the disk does."""
        free: set[Path] = set()
        taken: list[str] = []
        segments = 0
        for path in other_slots(self._slot):
            try:
                # Of a broadcasting member nobody else runs again what its journal calls finished.
                if self._slot.member or not has_sealed(path) or member_of(path):
                    continue
                with dead_slot(self._slot, path) as other:
                    if other is None:
                        continue
                    free.add(path)
                    count = take_sealed(self._slot, other, self._told) if path in self._free else None
            except (OSError, ValueError) as error:  # of a file that is no text, too
                refuse(path.name, self._told, reason=str(error), remedy="it is tried again and again")
                continue
            if count is not None:
                self._told.pop(path.name, None)
                taken.append(path.name)
                segments += count
        self._free = free
        if taken:
            log.info("slots_taken_over", slots=taken, segments=segments)
