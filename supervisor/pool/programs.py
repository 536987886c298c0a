"""Ends the programs that handlers of dead workers have left running: each is in its worker's process group.

A worker that was killed, or has crashed, has left them unfinished, and its messages run again: each attempt would leave one
more. They get TERM first, since a program may want to clear up. And multiprocessing's resource tracker ignores TERM: it
removes the shared memory of all who have ended, and then ends by itself. What is left a moment later gets KILL.

Who leads a session of its own (`start_new_session=True`) has left the group, and is not reached. When the supervisor itself
is killed, its forkserver sends TERM to all (workers/parent_death.py), and nobody is left for KILL.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Final

from ...workers.spawn import WorkerProcess

GRACE_S: Final = 2.0
"""From TERM to KILL. A stop by force waits for it, where somebody does not obey."""
LOOK_S: Final = 0.05
"""Who has ended is looked for so often."""


class Programs:
    """Of all dead workers of a pool."""

    def __init__(self) -> None:
        self._left: dict[WorkerProcess, float] = {}
        """Workers whose group had somebody in it, and until when they may clear up (loop time)."""
        self._none_left = asyncio.Event()
        self._none_left.set()

    def end(self, process: WorkerProcess) -> None:
        """End those of this worker, which is dead; takes over `process`, which is closed here."""
        if not process.signal_group(signal.SIGTERM):
            process.close()
            return
        loop = asyncio.get_running_loop()
        self._left[process] = loop.time() + GRACE_S
        if self._none_left.is_set():
            self._none_left.clear()
            loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        for process, until in list(self._left.items()):
            late = loop.time() >= until
            some_left = process.signal_group(signal.SIGKILL if late else 0)
            if late or not some_left:
                del self._left[process]
                process.close()
        if self._left:
            loop.call_later(LOOK_S, self._look)
        else:
            self._none_left.set()

    async def ended(self) -> None:
        """Returns when all have ended, or got KILL."""
        await self._none_left.wait()
