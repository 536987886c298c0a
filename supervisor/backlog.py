"""What waits on disk: sealed segments that the loader has not taken yet, and the room that is left.

Bytes of sealed segments are the queue between workers and the table: above the high-water mark nothing more is pulled,
below half of it pulling goes on. The same when the disk runs out of room, before a worker meets its end. Neither loses
anything: the offsets stay where they are.

With `results.commit_after = loaded` a segment counts as loaded when it is gone from ready/ and was not set aside in bad/:
the loader deletes one only after its rows are in the table.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from ..conf.segment_format import BAD_DIR, READY_DIR, REASON_SUFFIX, segment_name
from .core import events as ev
from .core.decisions import Core
from .keeping import keep

INTERVAL_S = 0.25
RESUME_SHARE = 0.5
"""Of the high-water mark: pulling goes on below it, so that it does not stutter at the mark."""
ROOM_SHARE = 2.0
"""Of the room that must be left: pulling goes on above it."""
TELL_AGAIN_S = 60.0

log = structlog.get_logger("rocketcrew.backlog")


@dataclass(frozen=True, slots=True)
class Marks:
    """`high_bytes` of sealed segments at most, `free_bytes` of the disk at least; 0 = no such bound."""

    high_bytes: int
    free_bytes: int

    def holds_backlog(self, held: bool, waiting_bytes: int) -> bool:
        """Whether pulling is held up by what waits for the loader; `held`: it was until now."""
        return bool(self.high_bytes) and waiting_bytes > self.high_bytes * (RESUME_SHARE if held else 1)

    def holds_disk(self, held: bool, free_bytes: int) -> bool:
        """Whether pulling is held up by a disk that is nearly full."""
        return bool(self.free_bytes) and free_bytes < self.free_bytes * (ROOM_SHARE if held else 1)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Sealed segments that wait for the loader; `oldest_s`: for how long the first of them does."""

    segments: int = 0
    bytes: int = 0
    oldest_s: float = 0.0


class Backlog:
    """Looks at the folders every quarter of a second, and tells the core; `acted` is called afterwards.

    Where no rows are kept it is not started: nothing waits, and nothing holds up pulling.
    """

    def __init__(self, core: Core, segments: Path, marks: Marks, acted: Callable[[], None]) -> None:
        self._core = core
        self._ready = segments / READY_DIR
        self._bad = segments / BAD_DIR
        self._marks = marks
        self._acted = acted
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._names: set[str] = set()
        self._told_bad: dict[str, float] = {}
        self.waiting = Waiting()

    def start(self) -> None:
        self._task = self._loop.create_task(keep("backlog", self._watch, self._core.unexpected_error))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def status(self) -> dict[str, float]:
        """What waits, for the status and the metrics."""
        return asdict(self.waiting)

    async def _watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(INTERVAL_S)

    def look(self) -> None:
        """One look: marks first, then what is loaded."""
        try:
            self._list()
            free_bytes = shutil.disk_usage(self._ready).free
        except OSError as error:
            log.error("backlog_unreadable", folder=str(self._ready), error=str(error))
            return
        paused = self._core.state.paused
        self._hold("backlog", self._marks.holds_backlog("backlog" in paused, self.waiting.bytes),
                   waiting_mib=self.waiting.bytes >> 20, high_water_mib=self._marks.high_bytes >> 20)  # fmt: skip
        self._hold("disk", self._marks.holds_disk("disk" in paused, free_bytes),
                   free_mib=free_bytes >> 20, wanted_mib=self._marks.free_bytes >> 20)  # fmt: skip
        self._tell_loaded()
        self._acted()

    def _list(self) -> None:
        self._names.clear()
        size, oldest_ns = 0, 0
        with os.scandir(self._ready) as entries:
            for entry in entries:
                try:
                    state = entry.stat()
                except FileNotFoundError:
                    continue  # loaded meanwhile
                self._names.add(entry.name)
                size += state.st_size
                oldest_ns = min(oldest_ns or state.st_mtime_ns, state.st_mtime_ns)
        age_s = max(0.0, time.time() - oldest_ns / 1e9) if oldest_ns else 0.0
        self.waiting = Waiting(len(self._names), size, round(age_s, 1))

    def _hold(self, reason: str, hold: bool, **facts: int) -> None:
        held = reason in self._core.state.paused
        if hold and not held:
            log.warning("pulling_paused", reason=reason, **facts)
            self._core.handle(ev.Pause(reason), self._loop.time())
        elif held and not hold:
            log.info("pulling_resumed", reason=reason, **facts)
            self._core.handle(ev.Resume(reason), self._loop.time())

    def _tell_loaded(self) -> None:
        for worker_id, seq in list(self._core.state.unloaded):
            name = segment_name(worker_id, seq)
            if name in self._names:
                continue
            if self._is_bad(name):
                self._tell_bad(name)
            elif not (self._ready / name).exists():  # else it was moved back just now, after the listing
                self._core.handle(ev.Loaded(worker_id, seq), self._loop.time())

    def _is_bad(self, name: str) -> bool:
        """Whether the file itself lies in bad/. The reason beside it stays for ever, also of a file that was repaired."""
        return any(not path.name.endswith(REASON_SUFFIX) for path in self._bad.glob(f"{name}*"))

    def _tell_bad(self, name: str) -> None:
        """Its offsets are not passed: whoever repairs the file moves it back into ready/."""
        now = self._loop.time()
        if now - self._told_bad.get(name, float("-inf")) >= TELL_AGAIN_S:
            self._told_bad[name] = now
            log.error("segment_not_loaded", segment=name, reason=f"set aside by the loader, see {self._bad}",
                      remedy="repair it and move it back into ready/; until then its offsets are not committed")  # fmt: skip
