"""Makes worker processes, with one forkserver per generation of user code, and never blocks the loop.

A forkserver that has started a worker starts the next in a few milliseconds. One that has not is importing the handler's
module, which may take long, so its first worker is waited for in a thread. The forkserver itself is started by the main
thread always: its parent-death signal belongs to the thread that starts it.

A moment after a start the forkserver is asked for a spare, so that the next start finds a process that is forked already.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

import structlog

from ...conf.limits import is_no_thread, with_remedy
from ...workers.spawn import Forkserver, WorkerProcess, WorkerStartError
from .child import BootMaker, NewWorker
from .stacks import Helper

SPARE_DELAY_S = 0.1
"""After a start, so that the spare does not take the processor from the worker that boots."""
Launched = Callable[[WorkerProcess | WorkerStartError], None]

log = structlog.get_logger("rocketcrew.pool")


def _not_started(error: Exception) -> WorkerStartError:
    return error if isinstance(error, WorkerStartError) else WorkerStartError(with_remedy(error))


@dataclass(slots=True, eq=False)
class Generation:
    """One generation of user code and settings."""

    forkserver: Forkserver
    make_boot: BootMaker
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a thread waits for the forkserver."""
    spare_timer: asyncio.TimerHandle | None = None


class Launcher:
    """The generations, by number; there are several during a reload."""

    def __init__(self) -> None:
        self._generations: dict[int, Generation] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, generation: int, forkserver: Forkserver, make_boot: BootMaker) -> None:
        """A new generation; its forkserver is started now, from the main thread."""
        try:
            forkserver.start()
        except BaseException:
            forkserver.stop()
            raise
        self._generations[generation] = Generation(forkserver, make_boot)

    def launch(self, generation: int, new: NewWorker, launched: Launched, wanted: Callable[[], bool]) -> None:
        """Start a worker; `launched` is called with the process or the error, now or when the forkserver is ready. One that
        is not `wanted` any more when its turn comes is not started."""
        of = self._generations[generation]
        boot = of.make_boot(new)
        if of.forkserver.warm:
            try:
                process = of.forkserver.start_worker(boot)
            except Exception as error:  # noqa: BLE001  as below
                launched(_not_started(error))
            else:
                launched(process)
                self._spare_soon(generation)
            return

        async def in_turn() -> None:
            try:
                async with of.turn:
                    if generation not in self._generations:
                        raise WorkerStartError(f"worker {new.worker_id}: its generation was dropped")
                    if not wanted():
                        raise WorkerStartError(f"worker {new.worker_id}: it was given up before its turn to be started")
                    of.forkserver.start()
                    process = await asyncio.get_running_loop().run_in_executor(None, of.forkserver.start_worker, boot)
            except Exception as error:  # noqa: BLE001  whatever it is, the staffing must know that there is no worker
                launched(_not_started(error))
            else:
                launched(process)
                self._spare_soon(generation)

        self._run(in_turn())

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _spare_soon(self, generation: int) -> None:
        """Once nothing was started for a moment, have a spare forked."""
        of = self._generations.get(generation)
        if of is None:
            return
        if of.spare_timer is not None:
            of.spare_timer.cancel()

        async def make() -> None:
            # A forkserver that is gone takes its spare along; the next start makes both anew.
            with contextlib.suppress(OSError, EOFError):
                try:
                    await asyncio.get_running_loop().run_in_executor(None, of.forkserver.make_spare)
                except RuntimeError as error:  # a spare is not worth a word
                    if not is_no_thread(error):
                        raise

        def due() -> None:
            if of.forkserver.warm:
                self._run(make())

        of.spare_timer = asyncio.get_running_loop().call_later(SPARE_DELAY_S, due)

    def interrupt(self, generation: int) -> None:
        """End a forkserver that makes no progress (an import hangs); who waits for it gets an error."""
        self._generations[generation].forkserver.stop()

    def helpers(self) -> list[Helper]:
        """The forkservers, and the workers that are forked ahead."""
        found: list[Helper] = []
        for number, of in self._generations.items():
            name = f"generation-{number}"
            if (pid := of.forkserver.pid) is not None:
                found.append(Helper("forkserver", name, pid, of.forkserver.stack_file))
            if (pid := of.forkserver.spare_pid) is not None:
                found.append(Helper("spare", name, pid, None, "waits until a worker is needed"))
        return found

    def drop(self, generation: int) -> None:
        """No worker of the generation is left: end its forkserver."""
        of = self._generations.pop(generation)
        if of.spare_timer is not None:
            of.spare_timer.cancel()
        of.forkserver.stop()

    async def stop(self) -> None:
        """End all forkservers, and with them every worker that is left. One that fails to end keeps nobody from stopping."""
        for generation in list(self._generations):
            try:
                self.drop(generation)
            except OSError:
                log.exception("forkserver_not_stopped", generation=generation)
        if self._tasks:
            await asyncio.wait(self._tasks)
