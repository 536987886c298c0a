"""Dead slots beside a member that runs: what is sealed there gets into the table without a start.

A member that was killed or scaled down leaves sealed segments, and its loader is dead too. The next start takes over all of
its slot (`adopt` in slot.py); until then, which may be weeks, the rows would be missing while nothing looks wrong. So each
member that keeps rows looks now and then; one with a loader moves what is sealed into its own folder, where that finds it.

A slot is taken, or named, only if it was free at two looks: a member that is restarted at once, or starts with this one when
the host does, finds its journal and its segments. Of two members that look at the same time the slot's lock decides.

A slot of another member, where one of the two broadcasts, is not taken: what its journal calls finished nobody else runs
again, so its rows, those of open segments too, wait for a start of that very member. Where each start has another client id,
as in a container without a fixed address, that start never comes. So these slots are named, and what they hold is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import structlog

from ..conf.segment_format import READY_DIR, ready_files
from ..remoting.errors import UsageError
from ..workers.sealing import open_segments
from .core.journal import JournalState
from .keeping import keep
from .member.local_offsets import are_kept, kept_by_others
from .slot import Slot, dead_slot, has_client, has_sealed, member_of, other_slots, refuse, take_sealed

LOOK_EVERY_S = 20.0
"""Twice that is how long such rows wait, and what a restart may take to find its slot as it left it."""

NAMED = "of another member"

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
        """With something to take or to name, and held by nobody at the last look."""
        self._stranded: dict[Path, list[os.stat_result]] = {}
        """The slots of other members that are named, and the files of their segments."""
        self._one_at_a_time = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self, *, takes: bool) -> None:
        """Look now and every LOOK_EVERY_S; the start has just taken over what there was. `takes`: there is a loader for what
        is sealed; without one, what only other members take over is named and counted."""
        work = partial(self._look_often, takes=takes)
        self._task = asyncio.create_task(keep("neighbours", work, self._failed, self._sleep))

    async def end(self) -> None:
        """Look no more; a look under way is finished."""
        if self._task is not None:
            async with self._one_at_a_time:
                self._task.cancel()
            self._task = None

    async def _look_often(self, *, takes: bool) -> None:
        while not self._is_stopping():
            async with self._one_at_a_time:
                await asyncio.to_thread(self.look, takes=takes)
            await self._sleep(LOOK_EVERY_S)

    def look(self, *, takes: bool = True) -> None:
        """One look, which takes as long as the disk does."""
        free: set[Path] = set()
        stranded: dict[Path, list[os.stat_result]] = {}
        taken: list[str] = []
        segments = 0
        for path in other_slots(self._slot):
            try:
                member = member_of(path)
                left = [] if member == self._slot.member else _segments_in(path)
                if not left and (not takes or member or self._slot.member or not has_sealed(path)):
                    continue
                with dead_slot(self._slot, path) as other:
                    if other is None:
                        continue
                    free.add(path)
                    if path not in self._free:
                        continue
                    count = None if left else take_sealed(self._slot, other, self._told)
            except (OSError, ValueError, UsageError) as error:  # of a file that is no text or of a later version, too
                refuse(path.name, self._told, reason=str(error), remedy="it is tried again and again")
                continue
            if left:
                stranded[path] = left
                self._name(path, member, len(left))
            if count is not None:
                self._told.pop(path.name, None)
                taken.append(path.name)
                segments += count
        for path in self._stranded.keys() - free:  # their member has come back
            self._told.pop(path.name, None)
        self._free, self._stranded = free, stranded
        if taken:
            log.info("slots_taken_over", slots=taken, segments=segments)

    def _name(self, path: Path, member: str, segments: int) -> None:
        """Once, until the slot has an owner again."""
        if self._told.get(path.name) == NAMED:
            return
        self._told[path.name] = NAMED
        what = f"with {_as_settings(member)}" if member else 'with consumer.message_model = "CLUSTERING"'
        log.warning(
            "slot_of_another_member", slot=path.name, client_id=member, segments=segments,
            reason="rows of messages that are finished wait in these segments, and only that member's next start takes them",
            remedy=f"start the group on this supervisor.data_dir once {what}",
        )  # fmt: skip

    def counted_in(self, backlog: dict[str, float]) -> dict[str, float]:
        """What waits for the loader, with what waits in the slots that are named."""
        files = [state for states in self._stranded.values() for state in states]
        if not files:
            return backlog
        oldest_s = round(max(0.0, time.time() - min(state.st_mtime for state in files)), 1)
        return {
            "segments": backlog["segments"] + len(files),
            "bytes": backlog["bytes"] + sum(state.st_size for state in files),
            "oldest_s": max(backlog["oldest_s"], oldest_s),
        }


def _segments_in(path: Path) -> list[os.stat_result]:
    """The files of the segments that lie in the slot at `path`, open and sealed."""
    segments = path / "segments"
    found: list[os.stat_result] = []
    for file in open_segments(segments):
        with contextlib.suppress(FileNotFoundError):  # of a member that runs: sealed meanwhile
            found.append(file.stat())
    with contextlib.suppress(FileNotFoundError):  # it keeps no rows
        found += [state for _, state in ready_files(segments / READY_DIR)]
    return found


def name_lost_identity(slot: Slot, offsets: Path, known: JournalState) -> None:
    """Warn of a broadcasting member that begins where consumer.consume_from_where says, as its file at `offsets` is not
    there, though it has most likely run before: with another client id, or with a folder of offsets that did not stay. What
    came in while it was away is never handled then. `known`: its journal. Its client id is locked (`has_client`)."""
    if are_kept(offsets):
        return
    if known.queues:
        log.warning(
            "local_offsets_missing", path=str(offsets), client_id=slot.member,
            reason="it has run before, and begins where consumer.consume_from_where says",
            remedy="have consumer.local_offset_store_dir on a disk that stays, as supervisor.data_dir is; if you have removed"
            " the file, nothing is to be done",
        )  # fmt: skip
        return
    others = kept_by_others(offsets)
    for path in other_slots(slot):
        with contextlib.suppress(PermissionError):  # another user's, which `adopt` names
            if (member := member_of(path)) not in ("", slot.member):
                others.setdefault(member, path.stat().st_mtime)
    others = {member: at for member, at in others.items() if not has_client(slot, member)}
    if others:
        last = max(others, key=others.__getitem__)
        log.warning(
            "broadcasting_as_another_member", client_id=slot.member, before=last, others=len(others), path=str(offsets),
            reason="no offsets are kept for this client id, and others that do not run were here before: a member that comes"
            " back under another id does not go on where it was",
            remedy=f"if it is the same member, stop it and set {_as_settings(last)}; in containers, have both fixed. If it is"
            " a new one, nothing is to be done",
        )  # fmt: skip


def _as_settings(client_id: str) -> str:
    """What gives a broadcasting member that id."""
    ip, _, rest = client_id.partition("@")
    instance, _, unit = rest.partition("@")
    named = {"client_ip": ip, "instance_name": instance} | ({"unit_name": unit} if unit else {})
    return " and ".join(f'cluster.{name} = "{value}"' for name, value in named.items())
