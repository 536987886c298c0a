"""Which workers there should be: started, replaced, recycled, reloaded, scaled. Pure: events in, actions out.

It reads the workers' records in the core's state, and moves them by the core's events alone.

Every index 0..count-1 has one worker that serves. A replacement is ready before the one that it replaces leaves; at most
a set share is under replacement at a time, those that still leave included. A worker that died is replaced at once; one
that cannot boot, or dies as soon as it is ready without a message to blame, with doubling delays, index by index. What a
dead worker left on disk is salvaged by the next one that boots. Nobody serves and nobody can boot: the service gives up and
says why.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf
from zlib import crc32

from ...conf.printed import counted
from . import events as ev
from .decisions import Core
from .reloading import RELOAD, ROLLING_FAILURES_MAX, Reload, ReloadEvent, canary_verdict
from .state import NEVER, Worker
from .states import ENDED, WorkerState, move

BACK_OFF_MIN_S = 0.1
BACK_OFF_MAX_S = 5.0
QUICK_DEATH_S = 1.0
QUICK_DEATHS_FREE = 3
"""Deaths right after ready, with no message in hand, that are replaced at once; then with delays up to a second."""
KILL_AGAIN_S = 5.0
"""A worker that was killed ends within milliseconds, unless the kill failed."""
LEAVING_PATIENCE_S = 10.0
"""A reload goes on beside those that take longer to leave (they have a long message): recycling has time, it has not."""
RELOADS_TOLD_MAX = 16
"""How many of the last results are told: whoever asked for one looks ten times a second, and others may end meanwhile."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that decide; 0 = no such limit. See [workers] in conf/defaults.toml."""

    count: int
    recycle_messages: int = 0
    recycle_jitter_percent: int = 10
    recycle_age_s: float = 0.0
    recycle_share_percent: int = 25
    boot_timeout_s: float = 60.0
    canary_messages: int = 0
    canary_s: float = 60.0
    leave_max_s: float = 900.0
    """So long one that leaves counts for the share; by then it has ended, unless its handler has other limits."""

    @property
    def replaced_at_once_max(self) -> int:
        """Workers that may be under replacement at the same time."""
        return max(1, self.count * self.recycle_share_percent // 100)


@dataclass(frozen=True, slots=True)
class Start:
    """Start this worker."""

    worker_id: str
    index: int
    generation: int
    salvages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kill:
    """End it: it does not get ready."""

    worker_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class DropGeneration:
    """No worker of this generation is left, and none will be started."""

    generation: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No worker can boot."""

    error: str


@dataclass(frozen=True, slots=True)
class Note:
    """An event for the log."""

    level: str
    event: str
    keys: dict[str, object]


StaffingAction = Start | Kill | DropGeneration | GiveUp | Note


class Staffing:
    """All workers of one supervisor. Times are seconds of the core's clock, passed in."""

    def __init__(self, core: Core, policy: Policy, run_id: str, *, left_behind: tuple[str, ...] = ()) -> None:
        """`left_behind` names what earlier runs left to be salvaged; the first worker gets it."""
        self._core = core
        self.policy = policy
        self.generation = 0
        """Of the workers that are started."""
        self.reload = Reload.IDLE
        self.counts: Counter[str] = Counter()
        self.last_reload = ""
        self.reloads_ended = 0
        """Those that were refused too."""
        self.reload_results: dict[int, str] = {}
        """Of the last of them, by their number: the first that ends is 1."""
        self.last_boot_error = ""
        self._coming = 0
        self._probe: str | None = None
        self._rolling_failures = 0
        self._run_id = run_id
        self._numbers = 0
        self._generations = {0}
        self._unsalvaged: list[str] = list(left_behind)
        self._failures: Counter[int] = Counter()
        self._quick: Counter[int] = Counter()
        self._not_before: dict[int, float] = {}
        self._nobody_since: float | None = None
        self._served = False
        self._large = -1
        """The last generation whose workers have too much memory when they start."""
        self._stopping = False
        self._actions: list[StaffingAction] = []

    # --- questions ----------------------------------------------------------------------------------------------

    def workers(self) -> list[Worker]:
        """Those that have not ended, the oldest first."""
        return [worker for worker in self._core.state.workers.values() if worker.state not in ENDED]

    def serving(self) -> list[Worker]:
        """Those that are ready, the oldest first."""
        return [worker for worker in self._core.state.workers.values() if worker.state is WorkerState.READY]

    def _serves(self, index: int) -> list[Worker]:
        return [worker for worker in self.serving() if worker.index == index]

    def _boots(self, index: int) -> bool:
        return any(worker.index == index and not worker.booted for worker in self.workers())

    def _living(self, worker_id: str | None) -> Worker | None:
        worker = self._core.state.workers.get(worker_id or "")
        return None if worker is None or worker.state in ENDED else worker

    @property
    def tried(self) -> bool:
        """Every index has a worker that serves, or one that could not boot, and one does serve.

        Where none does, those that failed may still be ending; then comes a `GiveUp`, and until then no group is joined.
        """
        return bool(self.serving()) and all(
            self._serves(index) or self._failures[index] for index in range(self.policy.count)
        )

    # --- events -------------------------------------------------------------------------------------------------

    def run(self, now: float) -> list[StaffingAction]:
        """What is to be done now; call it after every event, and at `next_due`."""
        if not self._stopping:
            self._end_late_boots(now)
            self._watch_canary(now)
            self._fill(now)
            self._let_go(now)
            self._replace(now)
            self._finish_reload()
            self._give_up_if_nobody(now)
        actions, self._actions = self._actions, []
        return actions

    def stop(self) -> None:
        """Nothing is started or replaced any more."""
        self._stopping = True

    def salvaging(self, worker_id: str, now: float) -> None:
        """It is done with one segment: how many there are says nothing about its boot, which has its whole time from here."""
        self._core.state.workers[worker_id].boots_since = now

    def salvaged(self, worker_id: str) -> None:
        """What it was to salvage is done: no other has to, whatever becomes of it."""
        self._core.state.workers[worker_id].salvages = ()

    def ready(self, worker_id: str) -> None:
        """The core knows that it is ready; without effect where its end was decided before."""
        worker = self._core.state.workers[worker_id]
        if worker.state is not WorkerState.READY:
            return
        self._served = True
        self._nobody_since = None
        self._failures[worker.index] = 0
        self._not_before.pop(worker.index, None)
        if worker.generation == self._coming:
            self._rolling_failures = 0
        if worker_id == self._probe:
            self._move_reload(ReloadEvent.BOOTED)
        self._look_again(worker)

    def starts_large(self, worker_id: str, rss_bytes: int) -> None:
        """Before its first message it has as much memory as when it is to be replaced. Said once for a generation."""
        generation = self._core.state.workers[worker_id].generation
        if generation > self._large:
            self._large = generation
            has = f"it has {rss_bytes >> 20} MiB when it starts, so each worker is replaced after its first messages"
            self._note("warning", "workers_start_over_memory_limit", worker=worker_id, rss_bytes=rss_bytes,
                       hint=f"{has}: raise workers.recycle_memory_mib")  # fmt: skip

    def boot_failed(self, worker_id: str, error: str) -> None:
        """It said why; its end follows."""
        self._core.state.workers[worker_id].boot_error = error

    def ended(self, worker: Worker, was: WorkerState, now: float, *, charged: bool, leaves: bool) -> None:
        """It is dead, and was in state `was` before. `charged` = it had a message in hand; `leaves` = there is something to
        salvage."""
        self._unsalvaged.extend(() if worker.booted else worker.salvages)
        if leaves:
            self._unsalvaged.append(worker.worker_id)
        if self._stopping:
            return
        if not worker.booted:
            self._could_not_boot(worker, now)
        elif was is not WorkerState.STOPPING:
            self.counts["respawned"] += 1
            self._died(worker, now, charged)
        if worker.worker_id == self._probe:
            self._probe_ended(worker)
        if worker.booted and self._nobody_since is None and not self.serving():
            self._nobody_since = now

    def progress(self, worker_id: str) -> None:
        """It has reported `look_at_messages` messages."""
        self._look_again(self._core.state.workers[worker_id])

    def _look_again(self, worker: Worker) -> None:
        """After how many messages of the worker `run` may have something to decide."""
        if worker.worker_id == self._probe:
            worker.look_at_messages = worker.messages + 1
        else:
            worker.look_at_messages = worker.messages_max if worker.messages < worker.messages_max else NEVER

    def wants_out(self, worker_id: str, reason: str) -> None:
        """It asked to be replaced (memory), or somebody did."""
        worker = self._living(worker_id)
        if worker is not None and not worker.wish:
            worker.wish = reason

    def leaves(self, worker_id: str, reason: str, now: float) -> None:
        """It ends by itself, for that reason, and will have reported and sealed everything."""
        worker = self._living(worker_id)
        if worker is None:
            return
        if worker.state is WorkerState.READY:
            self.wants_out(worker_id, reason)
            if self.reload is Reload.CANARY and worker_id == self._probe:
                self._roll_back(f"the first worker left after {counted(worker.messages, 'message')}: {worker.wish}")
            self._retire(worker, worker.wish, now)
        self._core.handle(ev.WorkerStops(worker_id), now)

    def set_policy(self, policy: Policy) -> None:
        """New settings; limits hold for workers that are started from now on."""
        self.policy = policy
        for index in [index for index in self._not_before if index >= policy.count]:
            del self._not_before[index]

    def begin_reload(self, generation: int, now: float) -> bool:
        """Replace all workers by ones of `generation`. False while an earlier reload is under way."""
        if self.reload is not Reload.IDLE or self._stopping:
            return False
        self._move_reload(ReloadEvent.ASKED)
        self._generations.add(generation)
        self._coming = generation
        self._rolling_failures = 0
        old = next(iter(self.serving()), None)
        self._probe = self._start(old.index if old else 0, generation, now, old.worker_id if old else None)
        return True

    def refuse_reload(self, why: str) -> None:
        """One that was to begin, and cannot."""
        self.last_reload = f"refused: {why}"
        self._reload_ended()

    def next_due(self, now: float) -> float | None:
        """When run() has something to do by the clock alone; what is due already was looked at by run(now)."""
        workers = self.workers()
        due = [
            worker.boots_since + self.policy.boot_timeout_s for worker in workers if worker.state is WorkerState.BOOTING
        ]
        due += [worker.kill_again_at for worker in workers if worker.kill_again_at != inf]
        due += [worker.ready_at + worker.age_max_s for worker in self.serving() if worker.age_max_s and not worker.wish]
        leaving = [worker.leaves_at for worker in workers if worker.leaves_at != inf]
        due += [since + patience_s for since in leaving for patience_s in (LEAVING_PATIENCE_S, self.policy.leave_max_s)]
        due += self._not_before.values()
        canary = self._living(self._canary())
        if self.reload is Reload.CANARY and canary is not None:
            due.append(canary.ready_at + self.policy.canary_s)
        if self._nobody_since is not None:
            due.append(self._nobody_since + self.policy.boot_timeout_s)
        return min((at for at in due if at > now), default=None)

    # --- starting -----------------------------------------------------------------------------------------------

    def _start(self, index: int, generation: int, now: float, successor_of: str | None = None) -> str:
        """Its limits are a little below the policy's, each worker's another little: workers that started together and share
        the work would otherwise all be due together."""
        self._numbers += 1
        worker_id = f"{self._run_id}.{self._numbers}"
        salvages, self._unsalvaged = tuple(self._unsalvaged), []
        policy = self.policy
        less = 1 - policy.recycle_jitter_percent / 100 * (crc32(worker_id.encode()) / (1 << 32))
        worker = Worker(
            worker_id,
            index=index,
            generation=generation,
            started_at=now,
            boots_since=now,
            successor_of=successor_of,
            salvages=salvages,
            messages_max=max(1, round(policy.recycle_messages * less)) if policy.recycle_messages else 0,
            age_max_s=policy.recycle_age_s * less,
        )
        self._core.handle(ev.WorkerStarted(worker), now)
        self._actions.append(Start(worker_id, index, generation, salvages))
        return worker_id

    def _fill(self, now: float) -> None:
        # One that was killed keeps its index until it has ended: its successor salvages what it left.
        taken = {worker.index for worker in self.workers() if worker.leaves_at == inf}
        vacant = [index for index in range(self.policy.count) if index not in taken]
        for index in vacant:
            if self._may_start(index, now):
                self._start(index, self.generation, now)
        if self._unsalvaged and not vacant and self._may_start(0, now):
            # Nobody is missed, but what a worker left waits: one more boots for it, and then there is one too many.
            self._start(0, self.generation, now)

    def _may_start(self, index: int, now: float) -> bool:
        return self._not_before.get(index, now) <= now

    def _end_late_boots(self, now: float) -> None:
        for worker in self.workers():
            if worker.state is WorkerState.BOOTING and now >= worker.boots_since + self.policy.boot_timeout_s:
                # One that said why it cannot boot may have a thread that keeps it from ending.
                worker.boot_error = worker.boot_error or self._too_late(worker)
                self._core.handle(ev.WorkerKilled(worker.worker_id), now)
                worker.kill_again_at = now
            if worker.state is WorkerState.KILLED and now >= worker.kill_again_at:
                # Its place is taken until it has ended, so a kill that failed is repeated.
                worker.kill_again_at = now + KILL_AGAIN_S
                self._actions.append(Kill(worker.worker_id, "not ready in time"))

    def _too_late(self, worker: Worker) -> str:
        limit = f"workers.boot_timeout_ms = {self.policy.boot_timeout_s * 1000:.0f}"
        if worker.salvages:
            return (
                f"a worker was not done with one segment of a dead one within {limit}: is the disk of the data folder"
                " slow or broken? Raise the limit, or move the file out of segments/open or segments/ready, whose messages"
                " then run again"
            )
        late = "its handler's set-up hook had not ended" if worker.sets_up else "its handler's module was not imported"
        return (
            f"a worker was not ready within {limit}: {late} by then. Each worker imports the"
            " module and runs the hook when it starts: shorten that, or raise the limit"
        )

    def _could_not_boot(self, worker: Worker, now: float) -> None:
        self.counts["boot_failures"] += 1
        self.last_boot_error = worker.boot_error or "it died while it booted"
        if worker.worker_id == self._probe:
            return
        if worker.generation == self._coming and self.reload is Reload.ROLLING:
            self._rolling_failures += 1
            if self._rolling_failures >= ROLLING_FAILURES_MAX:
                self._roll_back(self.last_boot_error)
        self._failures[worker.index] += 1
        self._back_off(worker.index, now, self._failures[worker.index], BACK_OFF_MAX_S)

    def _died(self, worker: Worker, now: float, charged: bool) -> None:
        if charged or now - worker.ready_at >= QUICK_DEATH_S:
            self._quick[worker.index] = 0
            return
        self._quick[worker.index] += 1
        if self._quick[worker.index] > QUICK_DEATHS_FREE:
            self._back_off(worker.index, now, self._quick[worker.index] - QUICK_DEATHS_FREE, QUICK_DEATH_S)

    def _back_off(self, index: int, now: float, times: int, longest_s: float) -> None:
        delay = min(BACK_OFF_MIN_S * 2.0 ** min(times - 1, 20), longest_s)
        self._not_before[index] = now + delay
        self._note("warning", "worker_delayed", index=index, delay_s=delay, times=times)

    def _give_up_if_nobody(self, now: float) -> None:
        booting = any(not worker.booted for worker in self.workers())
        if self.serving() or booting or not self.last_boot_error:
            return
        all_failed = all(self._failures[index] for index in range(self.policy.count))
        late = self._nobody_since is not None and now >= self._nobody_since + self.policy.boot_timeout_s
        if all_failed and (late or not self._served):
            self._stopping = True
            self._actions.append(GiveUp(self.last_boot_error))

    # --- leaving ------------------------------------------------------------------------------------------------

    def _let_go(self, now: float) -> None:
        """Those above the count, and those whose successor serves; not the canary, whose reload waits for it."""
        serving = [worker for worker in self.serving() if worker.worker_id != self._canary()]
        for worker in serving:
            if worker.index >= self.policy.count:
                self._retire(worker, "scaled down", now)
        for index in range(self.policy.count):
            for worker in [worker for worker in serving if worker.index == index][:-1]:
                self._retire(worker, self._reason(worker, now) or "one too many", now)

    def _retire(self, worker: Worker, reason: str, now: float) -> None:
        """Let it finish what it has, seal and end."""
        self._core.handle(ev.RetireWorker(worker.worker_id), now)
        self.counts["left: " + reason] += 1
        self._note("info", "worker_leaves", worker=worker.worker_id, reason=reason)

    # --- replacing ----------------------------------------------------------------------------------------------

    def _reason(self, worker: Worker, now: float) -> str:
        """Why it is to be replaced; empty = it is not."""
        if worker.generation != self.generation:
            return "rolled back" if worker.generation == self._coming else "reload"
        if worker.wish:
            return worker.wish
        if 0 < worker.messages_max <= worker.messages:
            return "messages"
        return "age" if worker.age_max_s and now >= worker.ready_at + worker.age_max_s else ""

    def _replace(self, now: float) -> None:
        due = [worker for worker in self.serving() if self._reason(worker, now) and worker.worker_id != self._canary()]
        due.sort(key=lambda worker: (not worker.wish, worker.ready_at))
        for worker in due:
            patience_s = self.policy.leave_max_s if worker.generation == self.generation else LEAVING_PATIENCE_S
            if self._under_replacement(now, patience_s) >= self.policy.replaced_at_once_max:
                continue
            if not self._boots(worker.index) and self._may_start(worker.index, now):
                self._start(worker.index, self.generation, now, worker.worker_id)

    def _under_replacement(self, now: float, patience_s: float) -> int:
        """How many leave, those that began so long ago left out, and how many boot for one that will."""
        return sum(
            now < worker.leaves_at + patience_s
            if worker.leaves_at != inf
            else not worker.booted and self._living(worker.successor_of) is not None
            for worker in self.workers()
        )

    # --- reload -------------------------------------------------------------------------------------------------

    def _canary(self) -> str | None:
        """The worker of the new code that is watched beside the one it will replace."""
        return self._probe if self.reload in (Reload.PROBING, Reload.CANARY) else None

    def _watch_canary(self, now: float) -> None:
        worker = self._living(self._probe)
        if self.reload is not Reload.CANARY or worker is None:
            return
        over = now >= worker.ready_at + self.policy.canary_s
        verdict = canary_verdict(worker.messages, worker.failed, self.policy.canary_messages, over=over)
        if verdict is ReloadEvent.PASSED:
            self._move_reload(verdict)
            self.generation = self._coming
            self._probe = None
        elif verdict is ReloadEvent.FAILED:
            self._roll_back(f"{worker.failed} of the first {counted(worker.messages, 'message')} failed")
            self._retire(worker, "rolled back", now)

    def _probe_ended(self, worker: Worker) -> None:
        self._probe = None
        if self.reload is Reload.PROBING:
            self._roll_back(self.last_boot_error)
        elif self.reload is Reload.CANARY:
            self._roll_back(f"the first worker died after {counted(worker.messages, 'message')}")

    def _roll_back(self, why: str) -> None:
        """The new code is no good: everything as it was before."""
        self.last_reload = f"rolled back: {why}"
        self._move_reload(ReloadEvent.FAILED)
        old = max(self._generations - {self._coming})
        self.generation = old
        self.counts["rolled_back"] += 1
        self._note("error", "reload_rolled_back", generation=self._coming, back_to=old, reason=why)

    def _finish_reload(self) -> None:
        others = [worker for worker in self.workers() if worker.generation != self.generation]
        if self.reload in (Reload.ROLLING, Reload.ROLLING_BACK) and all(worker.leaves_at != inf for worker in others):
            if self.reload is Reload.ROLLING:
                self.counts["reloaded"] += 1
                self.last_reload = f"generation {self.generation} serves"
                self._note("info", "reloaded", generation=self.generation, workers=len(self.serving()))
            self._move_reload(ReloadEvent.REPLACED)
        if self.reload is Reload.IDLE:
            for generation in sorted(self._generations - {worker.generation for worker in others} - {self.generation}):
                self._generations.discard(generation)
                self._actions.append(DropGeneration(generation))

    def _move_reload(self, event: ReloadEvent) -> None:
        self.reload = move(RELOAD, self.reload, event)
        if self.reload is Reload.IDLE:
            self._reload_ended()

    def _reload_ended(self) -> None:
        self.reloads_ended += 1
        self.reload_results[self.reloads_ended] = self.last_reload
        self.reload_results.pop(self.reloads_ended - RELOADS_TOLD_MAX, None)

    def _note(self, level: str, event: str, **keys: object) -> None:
        self._actions.append(Note(level, event, keys))
