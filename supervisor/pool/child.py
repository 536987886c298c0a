"""One worker process and our end of its link, as the pool holds it by worker id. Its life is the core's record."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ...remoting.errors import RocketcrewError
from ...workers import packets
from ...workers.boot import WorkerBoot
from ...workers.link import SupervisorLink
from ...workers.slab_memory import SharedFd
from ...workers.spawn import WorkerProcess
from ...workers.stack_dump import StackFile
from ..core.state import Worker
from ..core.states import ENDED
from ..core.time_limits import Look

KNOWN_QUEUES_MIN = 64
"""Below so many known queues none is forgotten."""


class HandlerError(RocketcrewError):
    """The handler cannot be imported or set up: the text names it, with the user's own frames."""


class KnownQueues:
    """Queues that were introduced to a worker, by handle. When they are many, those whose assignment has ended are forgotten
    here and in the worker: at most twice as many are known as there are."""

    __slots__ = ("_handles", "_max")

    def __init__(self) -> None:
        self._handles: set[int] = set()
        self._max = KNOWN_QUEUES_MIN

    def __contains__(self, handle: int) -> bool:
        return handle in self._handles

    def __len__(self) -> int:
        return len(self._handles)

    def meet(self, handles: Collection[int], alive: Callable[[], AbstractSet[int]]) -> tuple[list[int], list[int]]:
        """Packets about these handles are about to be sent: which ones the worker may forget, and which are new to it.

        `alive()` are the handles that can still be used; it is asked now and then.
        """
        new = sorted(handle for handle in handles if handle not in self._handles)
        gone: list[int] = []
        if new and len(self._handles) >= self._max:
            gone = sorted(self._handles - alive() - set(handles))
            self._handles.difference_update(gone)
            self._max = max(KNOWN_QUEUES_MIN, 2 * len(self._handles))
        self._handles.update(new)
        return gone, new


@dataclass(frozen=True, slots=True)
class NewWorker:
    """What the pool decides about a worker that is started."""

    worker_id: str
    index: int
    """0, 1, ...; a worker that takes the place of another gets its index."""
    cell_slot: int
    """Its cell in the cell file; never that of another worker that lives, also not of the one it replaces."""
    link: socket.socket
    """The worker's end."""
    stacks: SharedFd
    salvage: tuple[Path, ...]


class BootMaker(Protocol):
    """Makes the start parameters of one worker."""

    def __call__(self, new: NewWorker, /) -> WorkerBoot: ...


@dataclass(slots=True, eq=False)
class Child:
    """The process of one worker and what goes with it. What becomes of the worker is in its record alone."""

    worker: Worker
    """The record of its life, which the core keeps."""
    cell_slot: int
    process: WorkerProcess
    link: SupervisorLink
    stack_file: StackFile
    salvaged: dict[str, list[packets.QueueRanges]] = field(default_factory=dict[str, list[packets.QueueRanges]])
    """Parts of SALVAGED packets so far, by file."""
    chunks_sent: int = 0
    """As the worker counts them (workers/claims.py); in order, dispatches."""
    reports: int = 0
    """Packets of reports that were read (workers/unreported.py)."""
    call_read: tuple[int, ...] = ()
    """The call in which its cell was read last, and `reports` then: as long as it goes on, there is nothing new to read."""
    known_queues: KnownQueues = field(default_factory=KnownQueues)
    progress: str = ""
    """How far the handler is with the message in hand, as it reported itself."""
    look: Look = field(default_factory=Look)
    """Of the time limits' watch (watching.py)."""
    cut_off: bool = False
    """It was killed because its end of the link was closed, and it went on."""
    rss_peak_bytes: int = 0
    rss_last_bytes: int = 0
    """Resident memory as sampled during long calls, 0 = never."""
    sampled_call_ns: int = 0
    """Start of the call during which that was."""

    @property
    def worker_id(self) -> str:
        return self.worker.worker_id

    @property
    def ended(self) -> bool:
        """Its process is dead, and the core knows."""
        return self.worker.state in ENDED
