"""Ends the programs that handlers of dead workers have left running: each is in its worker's process group.

A worker that was killed, or has crashed, has left them unfinished, and its messages run again: each attempt would leave one
more. They get TERM first, since a program may want to clear up. And multiprocessing's resource tracker ignores TERM: it
removes the shared memory of all who have ended, and then ends by itself. What is left a moment later gets KILL.

Who leads a group or a session of its own (`process_group=0`, `start_new_session=True`) has left that one, and is not reached.
When the supervisor itself is killed, its forkserver sends TERM to all (workers/parent_death.py), and nobody is left for KILL.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Final

from ...workers.parent_death import PROGRAMS_GRACE_S, reap
from ...workers.spawn import WorkerProcess

LOOK_S: Final = 0.05
"""Who has ended is looked for so often."""


class Programs:
    """Of all dead workers of a pool."""

    def __init__(self, *, grace_s: float = PROGRAMS_GRACE_S) -> None:
        self._grace_s = grace_s
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
        self._left[process] = loop.time() + self._grace_s
        if self._none_left.is_set():
            self._none_left.clear()
            loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        for process, until in list(self._left.items()):
            late_s = loop.time() - until
            reap(process.pid)  # of the children that others here wait for, none is in a worker's group
            some_left = process.signal_group(signal.SIGKILL if late_s >= 0 else 0)
            if late_s >= LOOK_S or not some_left:
                del self._left[process]
                process.close()
        if self._left:
            loop.call_later(LOOK_S, self._look)
        else:
            self._none_left.set()

    async def ended(self) -> None:
        """Returns when all have ended, or got KILL: a stop by force waits for that, where somebody does not obey."""
        await self._none_left.wait()
