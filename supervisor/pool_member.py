"""One worker process as the pool holds it, and what the pool needs to make one."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ..remoting.errors import RocketcrewError
from ..workers import packets
from ..workers.boot import WorkerBoot
from ..workers.link import SupervisorLink
from ..workers.spawn import WorkerProcess


class HandlerError(RocketcrewError):
    """The handler cannot be imported or set up: the text names it, with the user's own frames."""


class BootMaker(Protocol):
    """Makes the start parameters of one worker."""

    def __call__(self, worker_id: str, index: int, link: socket.socket, salvage: tuple[Path, ...]) -> WorkerBoot: ...


@dataclass(slots=True, eq=False)
class Member:
    """One worker process and our end of its link."""

    worker_id: str
    index: int
    process: WorkerProcess
    link: SupervisorLink
    salvage_of: list[str]
    """Dead workers whose segments it salvages before it is ready."""
    salvage_files: list[Path]
    salvaged: dict[str, list[packets.QueueRanges]] = field(default_factory=dict[str, list[packets.QueueRanges]])
    """Parts of SALVAGED packets so far, by file."""
    known_queues: set[int] = field(default_factory=set[int])
    ready: bool = False
    stopping: bool = False
    """It was told to leave: its end is expected and charged to nobody."""
    ended: bool = False
