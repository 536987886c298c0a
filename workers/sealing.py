"""Finished segment files are made durable in the background.

fsync of the file, rename from `open/` to `ready/`, fsync of `ready/`: that takes a disk 10 to 200 ms, in which a worker would
run nothing. So its loop only closes the file, and a thread does the rest, one file after the other in the order of their
numbers, since SEALED stands for every earlier segment too. The loop takes what is done and reports it, so one thread
still sends all that a worker reports, messages before the seal of their rows. A worker killed in between leaves
files in `open/` or in `ready/`, complete; salvage.py finds both.

The thread lives as long as there is something to do. It opens the file anew, because a handler may close descriptors that it
does not know; it takes no signals, because those of the time limits are for the thread that runs the handler. In a child
that a handler forked there is no such thread, and nobody asks for one. Where no thread can be had, or one died, the loop
seals from then on: what ends that too ends the worker, with its traceback.

A disk that refuses is tried again; where it was the fsync of a file, with a copy, since a second one says nothing. Of what it
has lost nothing brings back (NFS at a close, say): that ends the worker.

A handler may hold all descriptors that there are, as a pool of connections does, and fail by nothing: so one is kept for the
files here, beside that of the segment that is open meanwhile. Where there is none all the same, the thread leaves the file to
the loop, and the worker ends.

No more than FILES_MAX wait: while the disk refuses them all, the loop waits with them, as it does when it cannot write.
"""

from __future__ import annotations

import errno
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ..conf.segment_format import OPEN_DIR, SEGMENT_NAME, SEGMENT_SUFFIX
from ..durable.files import CALLS, FileCalls, SyncError, out_of_the_way, sync_copy, sync_path
from ..remoting.errors import RocketcrewError
from .descriptors import SpareDescriptor
from .link import DescriptorsClosedError
from .own_thread import NoThreadError, OwnThread
from .packets import Sealed

FILES_MAX: Final = 4
"""With one open file more: so many segments of a worker can be in `open/`."""
WAIT_S: Final = 0.25
"""Between two looks, while waiting for the thread, whether the supervisor is still there."""
Pause = Callable[[str, OSError], None]
"""Called with what failed and why; returns when it should be tried again, or raises to give up."""


class OwnCalls(FileCalls):
    """The handler runs meanwhile, and may close a descriptor of its own twice: what it opens next would be synced instead.
    `spare` serves where no descriptor is left."""

    def __init__(self, spare: SpareDescriptor | None = None) -> None:
        self._spare = spare

    def open(self, path: str, flags: int) -> int:
        open_file = os.open if self._spare is None else self._spare.open
        return out_of_the_way(open_file(path, flags | os.O_CLOEXEC, 0o666))

    def close(self, fd: int) -> None:
        if self._spare is None or not self._spare.take_over(fd):
            super().close(fd)


OWN_CALLS: Final = OwnCalls()


class Sealer:
    """The files of one worker on their way to `ready/`."""

    def __init__(
        self, ready_dir: Path, *, pause: Pause, waits: Callable[[], None] | None,
        goes_on: Callable[[], None] = lambda: None, calls: FileCalls = OWN_CALLS,
        begin: Callable[[Callable[[], None]], OwnThread] = OwnThread,
    ) -> None:  # fmt: skip
        """`waits` is called every WAIT_S while the loop waits for the thread, and raises to give up; None = there is no
        thread, files are sealed when they come. `pause` raises nothing in the thread but DescriptorsClosedError; `goes_on` is
        called when what failed is sealed."""
        self._ready_dir = ready_dir
        self._pause = pause
        self._goes_on = goes_on
        self._waits = waits
        self._calls = calls
        self._todo: deque[tuple[Path, Sealed]] = deque()
        """The thread takes an entry away when it is done with it."""
        self._done: deque[Sealed] = deque()
        self._begin = begin
        self._thread: OwnThread | None = None
        self._alone = waits is None
        """The loop seals: there is to be no thread, none can be had, or one died."""

    @property
    def busy(self) -> bool:
        """There are files that are not sealed, or whose seal is not reported."""
        return bool(self._todo or self._done)

    def add(self, path: Path, sealed: Sealed) -> None:
        """Take over a complete, closed file in `open/`; `sealed` is what to say of it. Blocks while too many wait."""
        self._wait_while(lambda: len(self._todo) >= FILES_MAX)
        self._todo.append((path, sealed))
        self._look()

    def take(self) -> list[Sealed]:
        """What is durable by now and was not taken yet, in the order of the segments."""
        self._look()
        found: list[Sealed] = []
        while self._done:
            found.append(self._done.popleft())
        return found

    def finish(self) -> None:
        """Wait until everything is sealed."""
        self._wait_while(lambda: bool(self._todo))

    def _wait_while(self, condition: Callable[[], bool]) -> None:
        while condition():
            thread = self._look()
            if thread is not None and not self._alone:
                thread.join(WAIT_S)
                self._is_waiting()

    def _look(self) -> OwnThread | None:
        """The thread, started when there is something to do: one that was just about to end did not see what came last."""
        if not self._alone and self._todo and (self._thread is None or not self._thread.alive):
            try:
                self._thread = self._begin(self._run)
            except NoThreadError:
                self._alone = True
        if self._alone:
            self._seal_all(self._is_waiting)
        return self._thread

    def _is_waiting(self) -> None:
        if self._waits is not None:
            self._waits()

    def _run(self) -> None:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            self._seal_all(lambda: None)
        except DescriptorsClosedError:
            self._alone = True
        except BaseException:
            self._alone = True
            raise

    def _seal_all(self, waits: Callable[[], None]) -> None:
        while self._todo:
            path, sealed = self._todo[0]
            self._insist(path, sealed, waits)
            self._done.append(sealed)
            self._todo.popleft()

    def _insist(self, path: Path, sealed: Sealed, waits: Callable[[], None]) -> None:
        failed = anew = False
        while True:
            try:
                seal_file(path, self._ready_dir, sealed.bytes if anew else None, self._calls)
            except OSError as error:
                failed, anew = True, anew or isinstance(error, SyncError)
                self._pause("sealing a segment", error)
                waits()
            else:
                if failed:
                    self._goes_on()
                return


class SegmentLostError(RocketcrewError):
    """Some of what was written into a segment is not in it. That ends its worker: what is whole is salvaged then."""


def open_segments(folder: Path, worker_ids: Sequence[str] | None = None) -> list[Path]:
    """Segments in `open/` of a slot's `segments/` folder, oldest number first; of these workers only when given."""
    found: list[tuple[str, int, Path]] = []
    for path in (folder / OPEN_DIR).glob(f"*{SEGMENT_SUFFIX}"):
        match = SEGMENT_NAME.fullmatch(path.name)
        if match is not None and (worker_ids is None or match["worker"] in worker_ids):
            found.append((match["worker"], int(match["seq"]), path))
    return [path for _, _, path in sorted(found)]


def seal_file(path: Path, ready_dir: Path, copied_bytes: int | None = None, calls: FileCalls = CALLS) -> None:
    """Make a complete file durable in `ready/`; `copied_bytes`: a copy of it, because a sync of it has failed, and of so many
    bytes. Raises SyncError, OSError; a second try after the rename went through is harmless."""
    if path.exists():
        if copied_bytes is not None:
            put_copy(path, copied_bytes, calls)
        else:
            sync_path(path, calls)
    publish(path, ready_dir, calls)


def put_copy(path: Path, size_bytes: int, calls: FileCalls = CALLS) -> None:
    """Put a synced copy in the place of a segment: of its first `size_bytes`, which are whole batches.
    Raises OSError, also where some of it cannot be read, and SegmentLostError where some of it is gone for good."""
    from .prefix import complete_prefix  # it brings pyarrow, which the supervisor does without

    def check(copy: Path) -> None:
        if complete_prefix(copy).size_bytes == size_bytes:
            return
        if complete_prefix(path).size_bytes < size_bytes:
            raise SegmentLostError(f"the disk has lost some of {path}: what is whole is kept, the rest runs again")
        raise OSError(errno.EIO, "the copy is not as the segment", str(copy))

    if path.stat().st_size < size_bytes:
        check(path)
    sync_copy(path, size_bytes, calls, check)


def publish(path: Path, ready_dir: Path, calls: FileCalls = CALLS) -> None:
    """Rename a synced file into `ready/` and make the name durable. A retry after the rename went through is harmless."""
    target = ready_dir / path.name
    if path.exists() or not target.exists():
        calls.rename(str(path), str(target))
    sync_path(ready_dir, calls)
