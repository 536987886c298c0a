"""The user's life-cycle hooks (section [hooks]): what happened goes to them by a bounded line, one call at a time.

They run in one process of their own (workers/lifecycle.py), which is started only where hooks are named. While the member
runs, nothing waits for them: an event is put into the line and the loop goes on. Its start waits until they are imported,
its stop for what they have not heard of yet, both within bounds. A call that fails is logged once a minute for each hook and
counted; one that takes too long ends the process, and the next event starts a new one. Events are what the core logs anyhow,
and the assigned queues, which are compared once a second.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

import structlog

from ..conf.settings import Settings, logs_as
from ..remoting.errors import UsageError
from ..remoting.queues import MessageQueue
from .core import actions as act
from .core.decisions import Core
from .core.states import QueueState
from .keeping import keep
from .member.user_process import UserProcess, UserProcessError

ON_START, ON_REBALANCE = "on_start", "on_rebalance"
OF_LOG: Final[Mapping[str, str]] = {"message_dead_lettered": "on_dead_letter", "worker_died": "on_worker_death"}
"""Which hook hears of what the core logs."""
EVENTS_MAX: Final = 1_000
LOOK_S: Final = 1.0
LOG_EVERY_S: Final = 60.0
END_S: Final = 1.0
"""For what the hooks' process does at its end (atexit)."""

log = structlog.get_logger("rocketcrew.hooks")


class Line:
    """Events that wait, at most EVENTS_MAX; what finds no room is counted."""

    def __init__(self, named: Collection[str]) -> None:
        """`named` are the hooks that somebody wants."""
        self._named = frozenset(named)
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, hook: str, event: Mapping[str, Any]) -> bool:
        """False: nobody wants it, or there is no room."""
        if hook not in self._named:
            return False
        if len(self._waiting) >= EVENTS_MAX:
            self.dropped += 1
            return False
        self._waiting.append((hook, dict(event)))
        return True

    def next(self) -> tuple[str, dict[str, Any]]:
        return self._waiting.popleft()


class Faults:
    """Which failures of a hook are logged: the first, then one a minute with how many there were since."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}

    def times(self, hook: str, now: float) -> int:
        """How many failures the line to be logged now counts; 0 = it is not logged."""
        logged_at, since = self._seen.get(hook, (float("-inf"), 0))
        if now - logged_at < LOG_EVERY_S:
            self._seen[hook] = logged_at, since + 1
            return 0
        self._seen[hook] = now, 0
        return since + 1


def assigned_queues(core: Core) -> frozenset[MessageQueue]:
    """What this member consumes now, pulled or popped."""
    pulled = (q.pq.mq for q in core.state.pulled.values() if q.pq.state is QueueState.ASSIGNED)
    return frozenset(pulled) | core.popping.loops.keys()


def moved(before: frozenset[MessageQueue], after: frozenset[MessageQueue]) -> dict[str, Any] | None:
    """The event of a rebalance; None when nothing has changed."""
    if before == after:
        return None
    return {
        "assigned": sorted(map(list, after)),
        "added": sorted(map(list, after - before)),
        "removed": sorted(map(list, before - after)),
    }


def hooks_named(settings: Settings) -> dict[str, str]:
    """The import paths that are set, by hook."""
    hooks = {name: getattr(settings.hooks, name) for name in (ON_START, ON_REBALANCE, *OF_LOG.values())}
    return {name: path for name, path in hooks.items() if path}


def hooks_process(settings: Settings) -> UserProcess:
    """The process that imports the hooks and calls them."""
    arguments = [f"{name}={path}" for name, path in hooks_named(settings).items()]
    return UserProcess("hooks", "rocketcrew.workers.lifecycle", arguments, log=logs_as(settings))


class Lifecycle:
    """Hears of what happens, and calls the hooks."""

    def __init__(self, settings: Settings, core: Core) -> None:
        self._named = hooks_named(settings)
        self._timeout_s = settings.hooks.timeout_ms / 1000
        self._core = core
        self._line = Line(self._named)
        self._faults = Faults()
        self._process = hooks_process(settings)
        self._renew = False
        self._more = asyncio.Event()
        self._idle = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Raises UsageError for a hook that cannot be had; does nothing where none is named."""
        if not self._named:
            return
        try:
            await self._process.start()
        except UserProcessError as error:
            raise UsageError(str(error)) from error
        self._tasks = [self._kept("hooks", self._deliver)]

    def _kept(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return self._loop.create_task(keep(name, work, self._core.unexpected_error))

    def started(self, pid: int, topics: tuple[str, ...]) -> None:
        """The group was joined."""
        if ON_REBALANCE in self._named:
            self._tasks.append(self._kept("rebalances", self._watch))
        config = self._core.state.config
        facts = {"group": config.group, "client_id": config.client_id, "pid": pid, "topics": list(topics)}
        self._put(ON_START, facts)

    def logged(self, action: act.Log) -> None:
        """The core has logged something."""
        hook = OF_LOG.get(action.event)
        if hook is not None:
            self._put(hook, action.keys)

    def renew(self) -> None:
        """The code was reloaded: the next event goes to a new process."""
        self._renew = True

    def _put(self, hook: str, event: Mapping[str, Any]) -> None:
        counters = self._core.state.counters
        if self._line.put(hook, event):
            self._idle.clear()
            self._more.set()
        counters.hook_events_dropped = self._line.dropped

    async def _watch(self) -> None:
        before: frozenset[MessageQueue] = frozenset()
        while True:
            after = assigned_queues(self._core)
            event = moved(before, after)
            if event is not None and not self._core.state.stopping:
                self._put(ON_REBALANCE, event)
                before = after
            await asyncio.sleep(LOOK_S)

    async def _deliver(self) -> None:
        while True:
            if not self._line:
                self._idle.set()
                self._more.clear()
                await self._more.wait()
            hook, event = self._line.next()
            await self._call(hook, event)

    async def _call(self, hook: str, event: dict[str, Any]) -> None:
        counters = self._core.state.counters
        counters.hook_calls += 1
        try:
            if self._renew:
                self._renew = False
                await self._process.stop(END_S)
            reply = await self._process.ask({"hook": hook, "event": event}, self._timeout_s)
            error = str(reply.get("error", ""))
        except UserProcessError as failed:
            error = str(failed)
        if error:
            counters.hook_failures += 1
            times = self._faults.times(hook, self._loop.time())
            if times:
                log.warning("hook_failed", hook=hook, function=self._named[hook], error=error, times=times)

    async def finish(self, timeout_s: float) -> None:
        """Wait until the hooks have heard of everything, for so long at most; then their process may end by itself."""
        if not self._tasks:
            return
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            log.warning("hooks_not_finished", waiting=len(self._line))
            return
        await self._end_tasks()
        await self._process.stop(END_S)

    async def kill(self) -> None:
        """End the process, whatever it does."""
        await self._end_tasks()
        await self._process.kill()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
