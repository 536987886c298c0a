"""One worker process as the pool holds it, and what the pool needs to make one."""

from __future__ import annotations

import socket
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
from ..core.time_limits import Look

NEVER = 1 << 62


class HandlerError(RocketcrewError):
    """The handler cannot be imported or set up: the text names it, with the user's own frames."""


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
class Member:
    """One worker process and our end of its link."""

    worker_id: str
    index: int
    cell_slot: int
    process: WorkerProcess
    link: SupervisorLink
    stack_file: StackFile
    salvage_of: tuple[str, ...]
    """Dead workers whose segments it salvages before its handler is set up; empty when it has."""
    salvaged: dict[str, list[packets.QueueRanges]] = field(default_factory=dict[str, list[packets.QueueRanges]])
    """Parts of SALVAGED packets so far, by file."""
    chunks_sent: int = 0
    """As the worker counts them (workers/claims.py)."""
    reports: int = 0
    """Packets of outcomes that were read (workers/unreported.py)."""
    known_queues: set[int] = field(default_factory=set[int])
    generation: int = 0
    messages: int = 0
    """Finished by it, failed ones included."""
    failed: int = 0
    look_at_messages: int = NEVER
    """When so many are finished, the staffing is asked."""
    progress: str = ""
    """How far the handler says that it is with the message in hand."""
    ready: bool = False
    stopping: bool = False
    """It was told to leave: its end is expected and charged to nobody."""
    killed: bool = False
    """We killed it, for what it said or did not do: charged to nobody."""
    ended: bool = False
    look: Look = field(default_factory=Look)
    """Of the time limits' watch (watching.py)."""
    rss_peak_bytes: int = 0
    rss_last_bytes: int = 0
    """Resident memory as sampled during long calls, 0 = never."""
    sampled_call_ns: int = 0
    """Start of the call during which that was."""
