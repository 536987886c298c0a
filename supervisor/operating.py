"""What an operator can ask of a running supervisor, by signal and by the control socket; both do the same.

    TERM, INT   drain and stop; another one forces        QUIT   stop now, without draining
    HUP         reload the handler's code and settings    USR1   stacks of all processes into the log
    TTIN, TTOU  one worker more, one fewer                TSTP   pause pulling        CONT   resume

The names are those of gunicorn and Celery. A signal only starts what the loop then does. A supervisor that is stopping
changes nothing any more: it shows its status and stacks, and can be stopped at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from ..conf.formats import on_s3
from ..conf.settings import Settings
from ..remoting.errors import RocketcrewError, UsageError
from .control import Command
from .core import events as ev
from .core.changes import Merged, merge
from .core.decisions import Core
from .core.order import Order, check_same
from .core.reloading import Reload
from .core.sizing import ChunkSizer
from .core.state import OPERATOR
from .file_watch import Picture, Settled, watch
from .keeping import keep
from .notify import Notify
from .pool.hearing import order_said
from .pool.stacks import ProcessStack
from .pool.worker_pool import Pool
from .terminal import Terminal
from .wiring import Boots, forkserver_for, renewed_config, staff_policy, table_spec

WORKERS_MAX: Final = 256
"""workers.count allows as many."""

log = structlog.get_logger("rocketcrew.supervisor")


def hold_signals(loop: asyncio.AbstractEventLoop, terminal: Terminal, stop: Callable[[], None]) -> None:
    """Until an Operator listens: its signals do nothing, instead of ending a supervisor that is starting. But HUP stops one
    whose terminal was closed."""
    for number in (signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR1, signal.SIGTSTP, signal.SIGCONT):
        loop.add_signal_handler(number, lambda: None)
    loop.add_signal_handler(signal.SIGHUP, terminal.hung_up, partial(_stop_with_terminal, stop))


def _stop_with_terminal(stop: Callable[[], None]) -> None:
    log.warning("terminal_closed", hint="it stops as by TERM; nohup or a service manager lets it go on")
    stop()


def check_changes(core: Core) -> None:
    """Raise UsageError when it is stopping: what is changed then would be gone in a moment, or start what has to end."""
    if core.state.stopping:
        raise UsageError("it is stopping: nothing is changed any more. Ask the next one, when it has started")


class Operator:
    """Carries out what is asked. `reread` reads the configuration again, None = it cannot be; `stop` stops in order, `quick`
    at once."""

    def __init__(
        self, core: Core, pool: Pool, boots: Boots, *, order: Order, acted: Callable[[], None],
        reread: Callable[[], Settings] | None, stacks: Callable[[], Any], stop: Callable[[], None],
        quick: Callable[[], None], notify: Notify, terminal: Terminal,
    ) -> None:  # fmt: skip
        self._core = core
        self._pool = pool
        self._boots = boots
        self._order = order
        self._acted = acted
        self._reread = reread
        self._stacks = stacks
        self._stop, self._quick = stop, quick
        self._notify = notify
        self._terminal = terminal
        self._loop = asyncio.get_running_loop()
        self._generations = 0
        self._coming: tuple[int, Boots] | None = None
        self._again = False
        self._scaled: int | None = None
        """What an operator scaled to, kept over reloads that do not change workers.count."""
        self._logging: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    def watch_files(self, folder: Path, as_booted: Picture) -> None:
        """Reload whenever a Python file below the folder is not as it was before, at first before workers imported it."""
        settled = Settled(as_booted)
        self._watching = self._loop.create_task(
            keep("file watch", lambda: watch(folder, settled, self._reload_by_signal), self._core.unexpected_error)
        )

    async def end(self) -> None:
        """Nothing more is asked."""
        for task in (self._watching, self._logging):
            if task is not None:
                task.cancel()

    def listen(self) -> None:
        """Obey the signals from now on."""
        for number, do in self.signals().items():
            self._loop.add_signal_handler(number, do)

    def signals(self) -> dict[signal.Signals, Callable[[], object]]:
        """What each signal does."""
        return {
            signal.SIGQUIT: self._quick,
            signal.SIGHUP: self._hung_up,
            signal.SIGTTIN: lambda: self._by_signal(lambda: self._scale_by(1), signal.SIGTTIN),
            signal.SIGTTOU: lambda: self._by_signal(lambda: self._scale_by(-1), signal.SIGTTOU),
            signal.SIGUSR1: self._log_stacks_soon,
            signal.SIGTSTP: lambda: self._by_signal(self.pause, signal.SIGTSTP),
            signal.SIGCONT: self._continued,
        }

    def commands(self) -> dict[str, Command]:
        """The same for the control socket."""
        return {
            "pause": lambda _: self.pause(),
            "resume": lambda _: self.resume(),
            "scale": lambda request: self.scale(_number(request)),
            "reload": lambda _: self.reload(),
            "stacks": self._asked_for_stacks,
        }

    def _hung_up(self) -> None:
        if not self._terminal.hung_up(partial(_stop_with_terminal, self._stop)):
            self._reload_by_signal()

    def _continued(self) -> None:
        """Who sends TERM may send this with it, to a process that is not paused."""
        if OPERATOR in self._core.state.paused:
            self._by_signal(self.resume, signal.SIGCONT)

    def _by_signal(self, do: Callable[[], object], number: signal.Signals) -> None:
        try:
            do()
        except UsageError as error:
            log.warning("signal_refused", signal=number.name, reason=str(error))

    # --- pause --------------------------------------------------------------------------------------------------

    def pause(self) -> dict[str, Any]:
        """Pull nothing; what was pulled is finished, and the membership stays. Raises UsageError."""
        check_changes(self._core)
        if OPERATOR not in self._core.state.paused:
            log.info("paused")
            self._core.handle(ev.Pause(OPERATOR), self._loop.time())
        return {"paused": True}

    def resume(self) -> dict[str, Any]:
        """Pull again. Raises UsageError."""
        check_changes(self._core)
        if OPERATOR in self._core.state.paused:
            log.info("resumed")
            self._core.handle(ev.Resume(OPERATOR), self._loop.time())
            self._acted()
        return {"paused": bool(self._core.state.paused), "paused_by": sorted(self._core.state.paused)}

    # --- scale --------------------------------------------------------------------------------------------------

    def scale(self, workers: int) -> dict[str, Any]:
        """Have so many workers, 1 to WORKERS_MAX. Raises UsageError."""
        check_changes(self._core)
        if not 1 <= workers <= WORKERS_MAX:
            raise UsageError(f"{workers} workers: 1 to {WORKERS_MAX} are possible")
        before = self._pool.staffing.policy.count
        self._scaled = workers
        self._pool.staffing.set_policy(dataclasses.replace(self._pool.staffing.policy, count=workers))
        log.info("scaled", workers=workers, before=before)
        self._pool.run_staffing()
        return {"workers": workers, "before": before}

    def _scale_by(self, by: int) -> None:
        workers = self._pool.staffing.policy.count + by
        if 1 <= workers <= WORKERS_MAX:
            self.scale(workers)

    # --- reload -------------------------------------------------------------------------------------------------

    def reload(self) -> dict[str, Any]:
        """Begin to replace all workers by ones with the code and the settings as they are now on disk.

        One that is asked for during another follows it; `ends` is its number among the status' `reload_results`.
        Raises UsageError for a configuration that is wrong, or has another order: then nothing changes; and for one that is
        stopping. New code with another order ends in its boot. Raises RocketcrewError when the system refuses the processes
        that it takes: nothing changes either.
        """
        check_changes(self._core)
        ends = self._pool.staffing.reloads_ended + (self._pool.staffing.reload is not Reload.IDLE) + 1
        if self._coming is not None:
            self._again = True
            return {"reloading": True, "after": "the reload that is under way", "ends": ends, "pid": os.getpid()}
        merged = self._read()
        for name in merged.kept:
            log.warning("setting_needs_restart", setting=name)
        # An S3 server is not asked, as this loop stands still meanwhile: the columns are those of our start.
        there = on_s3(self._boots.table.target)
        table = self._boots.table if there else table_spec(merged.settings, self._boots.slot)
        boots = dataclasses.replace(self._boots, settings=merged.settings, table=table)
        self._generations += 1
        try:
            self._pool.launcher.add(self._generations, forkserver_for(boots.handler, boots.settings), boots)
        except OSError as error:
            raise RocketcrewError(f"new workers cannot be started: {error}") from error
        self._coming = (self._generations, boots)
        log.info("reloading", generation=self._generations, changed=list(merged.changed))
        self._notify.reloading()
        policy = staff_policy(merged.settings)
        count = self._pool.staffing.policy.count
        self._pool.staffing.set_policy(dataclasses.replace(policy, count=count))
        self._pool.staffing.begin_reload(self._generations, self._loop.time())
        self._pool.run_staffing()
        return {"reloading": True, "generation": self._generations, "changed": list(merged.changed),
                "needs_restart": list(merged.kept), "ends": ends, "pid": os.getpid()}  # fmt: skip

    def _read(self) -> Merged:
        if self._reread is None:
            return Merged(self._boots.settings, (), ())
        settings = self._reread()
        before, after = self._boots.settings.consumer, settings.consumer
        if (after.order, after.order_key) != (before.order, before.order_key):
            check_same(self._order, after, order_said(self._pool.said))
        return merge(self._boots.settings, settings)

    def _reload_by_signal(self) -> None:
        try:
            self.reload()
        except RocketcrewError as error:
            log.error("reload_refused", error=str(error))
            self._pool.staffing.refuse_reload(str(error))
            if not self._core.state.stopping and self._coming is None:
                self._notify.reloading()  # systemd waits for the answer to its HUP
                self._notify.ready(f"reload refused: {error}")

    def reload_ended(self, generation: int) -> bool:
        """`generation` serves now: the new one (True), or the old one again."""
        if self._coming is None:
            return False
        (number, boots), self._coming = self._coming, None
        self._notify.ready("reloaded" if number == generation else "reload failed: the old code goes on")
        if number == generation:
            self._take_over(boots)
        else:
            count = self._pool.staffing.policy.count
            self._pool.staffing.set_policy(dataclasses.replace(staff_policy(self._boots.settings), count=count))
        if self._again:
            self._again = False
            self._loop.call_soon(self._reload_by_signal)
        return number == generation

    def _take_over(self, boots: Boots) -> None:
        before, self._boots = self._boots, boots
        settings = boots.settings
        policy = staff_policy(settings)
        if settings.workers.count != before.settings.workers.count:
            self._scaled = None
        self._pool.staffing.set_policy(dataclasses.replace(policy, count=self._scaled or policy.count))
        state = self._core.state
        state.config = renewed_config(state.config, settings)
        state.sizer = ChunkSizer(state.config.chunk_target_us, state.config.chunk_messages_max)
        self._loop.call_soon(self._pool.run_staffing)

    # --- stacks -------------------------------------------------------------------------------------------------

    async def _asked_for_stacks(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        return {"processes": [each.as_dict() for each in await self._stacks()]}

    def _log_stacks_soon(self) -> None:
        self._logging = self._loop.create_task(self._log_stacks())

    async def _log_stacks(self) -> None:
        try:
            found: list[ProcessStack] = await self._stacks()
        except Exception:
            log.exception("stacks_not_logged")
            self._core.unexpected_error()
            return
        report_stacks(found)


def report_stacks(found: Iterable[ProcessStack]) -> None:
    """Log them as warnings: on a terminal `run` shows nothing less, and somebody has asked for them."""
    for each in found:
        log.warning("stack", of=each.process, name=each.name, of_pid=each.pid, running=each.running and str(each.running),
                    stack=each.text, **({"note": each.note} if each.note else {}))  # fmt: skip


def _number(request: Mapping[str, Any]) -> int:
    workers = request.get("workers")
    if not isinstance(workers, int) or isinstance(workers, bool):
        raise UsageError('scale needs "workers": a whole number')
    return workers
