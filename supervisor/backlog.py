"""What waits on disk: sealed segments that the loader has not taken yet, and the room that is left.

Bytes of sealed segments are the queue between workers and the table: above the high-water mark nothing more is pulled,
below half of it pulling goes on. The same when the disk runs out of room, before a worker meets its end. Neither loses
anything: the offsets stay where they are.

A look costs what has changed, not what waits: the kernel says which files came and which went (folder_notices.py). All of the
folder is listed at the start and now and then, at most for LIST_SHARE of the time.

With `results.commit_after = loaded` a segment counts as loaded when it is gone from ready/ and was not set aside in bad/:
the loader deletes one only after its rows are in the table.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from ..conf.segment_format import BAD_DIR, READY_DIR, REASON_SUFFIX, SEGMENT_SUFFIX, segment_name
from ..conf.settings import ROOM_SHARE
from ..conf.units import NS_PER_S
from ..durable.files import free_bytes
from .core import events as ev
from .core.chunks import Token
from .core.decisions import Core
from .core.state import BACKLOG, DISK
from .folder_notices import FolderNotices
from .keeping import keep

INTERVAL_S = 0.25
RESUME_SHARE = 0.5
"""Of the high-water mark: pulling goes on below it, so that it does not stutter at the mark."""
TELL_AGAIN_S = 60.0
LIST_EVERY_S = 60.0
"""With notices: for what other hosts do in the folder. Without, every look lists it."""
LIST_SHARE = 0.005
LIST_SHARE_ALONE = 0.05
"""Of the time may be spent on listing, with notices and without: a listing takes about 5 µs a file."""
STALE_FILES_MAX = 64
"""More entries of files that have gone than this, and than files, are swept out: one that stays would keep all of them."""
BAD_AGAIN_S = 5.0
"""How often it is looked whether somebody has taken a segment out of bad/."""

log = structlog.get_logger("rocketcrew.backlog")


@dataclass(frozen=True, slots=True)
class Marks:
    """`high_bytes` of sealed segments at most, `free_bytes` of the disk at least; 0 = no such bound."""

    high_bytes: int
    free_bytes: int

    @property
    def backlog_resumes_bytes(self) -> float:
        """Once so much or less waits pulling goes on."""
        return self.high_bytes * RESUME_SHARE

    @property
    def disk_resumes_bytes(self) -> float:
        """Once so much is free pulling goes on."""
        return self.free_bytes * ROOM_SHARE

    def holds_backlog(self, held: bool, waiting_bytes: int) -> bool:
        """Whether pulling is held up by what waits for the loader; `held`: it was until now."""
        return bool(self.high_bytes) and waiting_bytes > (self.backlog_resumes_bytes if held else self.high_bytes)

    def holds_disk(self, held: bool, free_bytes: int) -> bool:
        """Whether pulling is held up by a disk that is nearly full."""
        return bool(self.free_bytes) and free_bytes < (self.disk_resumes_bytes if held else self.free_bytes)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Sealed segments that wait for the loader; `oldest_s`: for how long the first of them does."""

    segments: int = 0
    bytes: int = 0
    oldest_s: float = 0.0


class Files:
    """The files of ready/, as they come and go: how many, their bytes, and the oldest."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int]] = {}
        """By name: bytes, and the time of change in ns."""
        self._oldest: list[tuple[int, str]] = []
        """A heap; what has gone is dropped when it comes to the top, or when it is too much."""
        self.bytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def __len__(self) -> int:
        return len(self._known)

    def put(self, name: str, size: int, changed_ns: int) -> None:
        """The file is there, with so many bytes."""
        before = self._known.get(name)
        if before == (size, changed_ns):
            return
        self.bytes += size - (before[0] if before is not None else 0)
        self._known[name] = size, changed_ns
        heapq.heappush(self._oldest, (changed_ns, name))
        if len(self._oldest) > 2 * len(self._known) + STALE_FILES_MAX:
            self._oldest = [(changed_ns, name) for name, (_, changed_ns) in self._known.items()]
            heapq.heapify(self._oldest)

    def drop(self, name: str) -> None:
        """The file is gone."""
        before = self._known.pop(name, None)
        if before is not None:
            self.bytes -= before[0]

    def names(self) -> set[str]:
        return set(self._known)

    def oldest_ns(self) -> int:
        """Of the oldest, 0 = there is none."""
        while self._oldest:
            changed_ns, name = self._oldest[0]
            known = self._known.get(name)
            if known is not None and known[1] == changed_ns:
                return changed_ns
            heapq.heappop(self._oldest)
        return 0


class Backlog:
    """Looks at the folders every quarter of a second, and reports to the core; `acted` is called afterwards.

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
        self._notices: FolderNotices | None = None
        self._files = Files()
        self._list_at = float("-inf")
        """When all of the folder is listed next."""
        self.listings = 0
        self._awaited: dict[str, Token] = {}
        """Segments whose offsets wait for the table, by name."""
        self._seen_unloaded = 0
        self._suspects: dict[str, None] = {}
        """Of these, those that are not in ready/."""
        self._bad_at = float("-inf")
        """When these are looked for in bad/ next."""
        self._told_bad: dict[str, float] = {}
        self.waiting = Waiting()

    def start(self) -> None:
        self._ask_for_notices()
        self._task = self._loop.create_task(keep("backlog", self._watch, self._core.unexpected_error))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._notices is not None:
            self._notices.close()
            self._notices = None

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
            self._take_notices()
            if self._loop.time() >= self._list_at:
                self._list()
            room_bytes = free_bytes(self._ready)
        except OSError as error:
            log.error("backlog_unreadable", folder=str(self._ready), error=str(error))
            return
        oldest_ns = self._files.oldest_ns()
        age_s = max(0.0, time.time() - oldest_ns / NS_PER_S) if oldest_ns else 0.0
        self.waiting = Waiting(len(self._files), self._files.bytes, round(age_s, 1))
        paused = self._core.state.paused
        self._hold(BACKLOG, self._marks.holds_backlog(BACKLOG in paused, self.waiting.bytes),
                   waiting_mib=self.waiting.bytes >> 20, high_water_mib=self._marks.high_bytes >> 20,
                   resumes_at_mib=int(self._marks.backlog_resumes_bytes) >> 20)  # fmt: skip
        self._hold(DISK, self._marks.holds_disk(DISK in paused, room_bytes),
                   free_mib=room_bytes >> 20, wanted_mib=self._marks.free_bytes >> 20,
                   resumes_at_mib=int(self._marks.disk_resumes_bytes) >> 20)  # fmt: skip
        self._report_loaded()
        self._acted()

    # --- the folder ---------------------------------------------------------------------------------------------

    def _ask_for_notices(self) -> None:
        try:
            self._notices = FolderNotices(self._ready)
        except OSError as error:
            log.info("backlog_is_listed", folder=str(self._ready), error=str(error))

    def _take_notices(self) -> None:
        if self._notices is None:
            return
        changes = self._notices.read()
        if changes is None:
            # Too many at once, or another folder is there now, of which these notices will never say anything.
            log.debug("backlog_notices_lost")
            self._notices.close()
            self._notices = None
            self._ask_for_notices()
            self._list_at = float("-inf")
            return
        for name, came in changes.items():
            if came:
                self._came(name)
            else:
                self._went(name)

    def _came(self, name: str) -> None:
        try:
            state = os.stat(self._ready / name)
        except FileNotFoundError:
            self._went(name)  # loaded meanwhile
        else:
            self._files.put(name, state.st_size, state.st_mtime_ns)
            self._suspects.pop(name, None)

    def _went(self, name: str) -> None:
        self._files.drop(name)
        if name in self._awaited:
            self._suspects[name] = None
            self._bad_at = float("-inf")

    def _list(self) -> None:
        """All of the folder; the next time when that takes no more than its share of the time."""
        begin = time.perf_counter()
        self.listings += 1
        gone = self._files.names()
        with os.scandir(self._ready) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # loaded meanwhile
                    state = entry.stat()
                    self._files.put(entry.name, state.st_size, state.st_mtime_ns)
                    self._suspects.pop(entry.name, None)
                    gone.discard(entry.name)
        for name in gone:
            self._went(name)
        took_s = time.perf_counter() - begin
        alone = self._notices is None
        wait_s = took_s / LIST_SHARE_ALONE if alone else max(LIST_EVERY_S, took_s / LIST_SHARE)
        self._list_at = self._loop.time() + (wait_s if wait_s > INTERVAL_S else 0.0)

    # --- the core -----------------------------------------------------------------------------------------------

    def _hold(self, reason: str, hold: bool, **facts: int) -> None:
        held = reason in self._core.state.paused
        if hold and not held:
            log.warning("pulling_paused", reason=reason, **facts)
            self._core.handle(ev.Pause(reason), self._loop.time())
        elif held and not hold:
            log.info("pulling_resumed", reason=reason, **facts)
            self._core.handle(ev.Resume(reason), self._loop.time())

    def _report_loaded(self) -> None:
        """Segments that are in the table: gone from ready/ and not set aside."""
        for token in self._core.state.newly_unloaded(self._seen_unloaded):
            name = segment_name(*token)
            self._awaited[name] = token
            if name not in self._files:
                self._suspects[name] = None
                self._bad_at = float("-inf")
        self._seen_unloaded = self._core.state.unloaded_ever
        now = self._loop.time()
        if not self._suspects or now < self._bad_at:
            return
        self._bad_at = now + BAD_AGAIN_S
        for name in [name for name in self._suspects if (self._ready / name).exists()]:
            self._came(name)  # moved back just now
        # After ready/, from which a file goes there: looked at before, it may be missed in both.
        bad = self._set_aside()
        for name in list(self._suspects):
            if name in bad:
                self._report_bad(name)
            else:
                self._suspects.pop(name)
                self._told_bad.pop(name, None)
                self._core.handle(ev.Loaded(*self._awaited.pop(name)), now)

    def _set_aside(self) -> set[str]:
        """Segments whose file lies in bad/, perhaps under a number. The reason beside it stays for ever, also of a file that
        was repaired."""
        files = (name for name in os.listdir(self._bad) if not name.endswith(REASON_SUFFIX))
        return {name.partition(SEGMENT_SUFFIX)[0] + SEGMENT_SUFFIX for name in files}

    def _report_bad(self, name: str) -> None:
        """Its offsets are not passed: whoever repairs the file moves it back into ready/."""
        now = self._loop.time()
        if now - self._told_bad.get(name, float("-inf")) >= TELL_AGAIN_S:
            self._told_bad[name] = now
            log.error("segment_not_loaded", segment=name, reason=f"set aside by the loader, see {self._bad}",
                      remedy="repair it and move it back into ready/; until then its offsets are not committed")  # fmt: skip
