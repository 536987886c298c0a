"""Which workers there should be: started, replaced, recycled, reloaded, scaled. Pure: events in, orders out.

Every index 0..count-1 has one worker that serves. A replacement is ready before the one that it replaces leaves; at most
a set share is under replacement at a time, those that still leave included. A worker that died is replaced at once; one
that cannot boot, or dies as soon as it is ready without a message to blame, with doubling delays, index by index. What a
dead worker left on disk is salvaged by the next one that boots. Nobody serves and nobody can boot: the service gives up and
says why.
"""

from __future__ import annotations

from collections import Counter

from .posts import (
    POST,
    DropGeneration,
    GiveUp,
    Hand,
    Kill,
    Note,
    Order,
    Policy,
    Post,
    PostEvent,
    Retire,
    Start,
    new_hand,
)
from .reloading import RELOAD, ROLLING_FAILURES_MAX, Reload, ReloadEvent, canary_verdict
from .states import move

BACK_OFF_MIN_S = 0.1
BACK_OFF_MAX_S = 5.0
QUICK_DEATH_S = 1.0
QUICK_DEATHS_FREE = 3
"""Deaths right after ready, with no message in hand, that are replaced at once; then with delays up to a second."""
LEAVING_PATIENCE_S = 10.0
"""A reload goes on beside those that take longer to leave (they have a long message): recycling has time, it has not."""


class Staff:
    """All workers of one supervisor. Times are seconds of one monotonic clock, passed in."""

    def __init__(self, policy: Policy, run_id: str, *, left_behind: tuple[str, ...] = ()) -> None:
        """`left_behind` names what earlier runs left to be salvaged; the first worker gets it."""
        self.policy = policy
        self.hands: dict[str, Hand] = {}
        self.generation = 0
        """Of the workers that are started."""
        self.reload = Reload.IDLE
        self.counts: Counter[str] = Counter()
        self.last_reload = ""
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
        self._stopping = False
        self._orders: list[Order] = []

    # --- questions ----------------------------------------------------------------------------------------------

    def at(self, index: int, *posts: Post) -> list[Hand]:
        """Those of this index in one of these posts, the oldest first."""
        return [hand for hand in self.hands.values() if hand.index == index and hand.post in posts]

    def serving(self) -> list[Hand]:
        return [hand for hand in self.hands.values() if hand.post is Post.SERVING]

    @property
    def tried(self) -> bool:
        """Every index has a worker that serves, or one that could not boot, and one does serve.

        Where none does, those that failed may still be ending; then comes a `GiveUp`, and until then no group is joined.
        """
        return bool(self.serving()) and all(
            self.at(index, Post.SERVING) or self._failures[index] for index in range(self.policy.count)
        )

    # --- events -------------------------------------------------------------------------------------------------

    def run(self, now: float) -> list[Order]:
        """What is to be done now; call it after every event, and at `next_due`."""
        if not self._stopping:
            self._end_late_boots(now)
            self._watch_canary(now)
            self._fill(now)
            self._let_go(now)
            self._replace(now)
            self._finish_reload()
            self._give_up_if_nobody(now)
        orders, self._orders = self._orders, []
        return orders

    def stop(self) -> None:
        """Nothing is started or replaced any more."""
        self._stopping = True

    def salvaged(self, worker_id: str) -> None:
        """What it was to salvage is done: no other has to, whatever becomes of it."""
        self.hands[worker_id].salvages = ()

    def ready(self, worker_id: str, now: float) -> None:
        hand = self.hands[worker_id]
        self._move(hand, PostEvent.READY, now)
        self._served = True
        self._nobody_since = None
        self._failures[hand.index] = 0
        self._not_before.pop(hand.index, None)
        if hand.generation == self._coming:
            self._rolling_failures = 0
        if worker_id == self._probe:
            self._move_reload(ReloadEvent.BOOTED)

    def boot_failed(self, worker_id: str, error: str) -> None:
        """It said why; its end follows."""
        self.hands[worker_id].boot_error = error

    def ended(self, worker_id: str, now: float, *, expected: bool, charged: bool, leaves: bool) -> None:
        """It is dead. `charged` = it had a message in hand; `leaves` = there is something to salvage."""
        hand = self.hands.pop(worker_id)
        self._unsalvaged.extend(hand.salvages if hand.post is Post.BOOTING else ())
        if leaves:
            self._unsalvaged.append(worker_id)
        if self._stopping:
            return
        if expected and hand.post is Post.SERVING:
            self.counts["left: " + (hand.wish or "asked")] += 1
        if hand.post is Post.BOOTING:
            self._could_not_boot(hand, now)
        elif not expected:
            self.counts["respawned"] += 1
            self._died(hand, now, charged)
        if worker_id == self._probe:
            self._probe_ended(hand, expected)
        if hand.post is Post.SERVING and not self.serving():
            self._nobody_since = now

    def progress(self, worker_id: str, messages: int, failed: int) -> None:
        """So many messages it has finished in all, and so many of them failed."""
        hand = self.hands.get(worker_id)
        if hand is not None:
            hand.messages, hand.failed = messages, failed

    def look_at(self, worker_id: str) -> int:
        """After so many messages of the worker, progress() and run() may have something to decide; 0 = never."""
        hand = self.hands.get(worker_id)
        if hand is None:
            return 0
        if worker_id == self._probe:
            return hand.messages + 1
        return hand.messages_max if hand.messages < hand.messages_max else 0

    def wants_out(self, worker_id: str, reason: str) -> None:
        """It asked to be replaced (memory), or somebody did."""
        hand = self.hands.get(worker_id)
        if hand is not None and not hand.wish:
            hand.wish = reason

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

    def next_due(self, now: float) -> float | None:
        """When run() has something to do by the clock alone; what is due already was looked at by run(now)."""
        due = [hand.since + self.policy.boot_timeout_s for hand in self.hands.values() if hand.post is Post.BOOTING]
        due += [hand.since + hand.age_max_s for hand in self.serving() if hand.age_max_s and not hand.wish]
        leaving = [hand.since for hand in self.hands.values() if hand.post is Post.LEAVING]
        due += [since + patience_s for since in leaving for patience_s in (LEAVING_PATIENCE_S, self.policy.leave_max_s)]
        due += self._not_before.values()
        if self.reload is Reload.CANARY and self._probe in self.hands:
            due.append(self.hands[self._probe].since + self.policy.canary_s)
        if self._nobody_since is not None:
            due.append(self._nobody_since + self.policy.boot_timeout_s)
        return min((at for at in due if at > now), default=None)

    # --- starting -----------------------------------------------------------------------------------------------

    def _start(self, index: int, generation: int, now: float, successor_of: str | None = None) -> str:
        self._numbers += 1
        worker_id = f"{self._run_id}.{self._numbers}"
        salvages, self._unsalvaged = tuple(self._unsalvaged), []
        self.hands[worker_id] = new_hand(self.policy, worker_id, index, generation, now, successor_of, salvages)
        self._orders.append(Start(worker_id, index, generation, salvages))
        return worker_id

    def _fill(self, now: float) -> None:
        vacant = [i for i in range(self.policy.count) if not self.at(i, Post.BOOTING, Post.SERVING)]
        for index in vacant:
            if self._may_start(index, now):
                self._start(index, self.generation, now)
        if self._unsalvaged and not vacant and self._may_start(0, now):
            # Nobody is missed, but what a worker left waits: one more boots for it, and then there is one too many.
            self._start(0, self.generation, now)

    def _may_start(self, index: int, now: float) -> bool:
        return self._not_before.get(index, now) <= now

    def _end_late_boots(self, now: float) -> None:
        for hand in self.hands.values():
            if hand.post is Post.BOOTING and now >= hand.since + self.policy.boot_timeout_s and not hand.boot_error:
                hand.boot_error = (
                    f"a worker was not ready within workers.boot_timeout_ms = {self.policy.boot_timeout_s * 1000:.0f}:"
                    " does the handler's module do long work when it is imported? Move it into the set-up hook, or"
                    " raise the limit"
                )
                self._orders.append(Kill(hand.worker_id, "not ready in time"))

    def _could_not_boot(self, hand: Hand, now: float) -> None:
        self.counts["boot_failures"] += 1
        self.last_boot_error = hand.boot_error or "it died while it booted"
        if hand.worker_id == self._probe:
            return
        if hand.generation == self._coming and self.reload is Reload.ROLLING:
            self._rolling_failures += 1
            if self._rolling_failures >= ROLLING_FAILURES_MAX:
                self._roll_back(self.last_boot_error)
        self._failures[hand.index] += 1
        self._back_off(hand.index, now, self._failures[hand.index], BACK_OFF_MAX_S)

    def _died(self, hand: Hand, now: float, charged: bool) -> None:
        if charged or now - hand.since >= QUICK_DEATH_S:
            self._quick[hand.index] = 0
            return
        self._quick[hand.index] += 1
        if self._quick[hand.index] > QUICK_DEATHS_FREE:
            self._back_off(hand.index, now, self._quick[hand.index] - QUICK_DEATHS_FREE, QUICK_DEATH_S)

    def _back_off(self, index: int, now: float, times: int, longest_s: float) -> None:
        delay = min(BACK_OFF_MIN_S * 2.0 ** min(times - 1, 20), longest_s)
        self._not_before[index] = now + delay
        self._note("warning", "worker_delayed", index=index, delay_s=delay, times=times)

    def _give_up_if_nobody(self, now: float) -> None:
        booting = any(hand.post is Post.BOOTING for hand in self.hands.values())
        if self.serving() or booting or not self.last_boot_error:
            return
        all_failed = all(self._failures[index] for index in range(self.policy.count))
        late = self._nobody_since is not None and now >= self._nobody_since + self.policy.boot_timeout_s
        if all_failed and (late or not self._served):
            self._stopping = True
            self._orders.append(GiveUp(self.last_boot_error))

    # --- leaving ------------------------------------------------------------------------------------------------

    def _let_go(self, now: float) -> None:
        """Those above the count, and those whose successor serves."""
        for hand in self.serving():
            if hand.index >= self.policy.count:
                self._retire(hand, "scaled down", now)
        for index in range(self.policy.count):
            here = [hand for hand in self.at(index, Post.SERVING) if hand.worker_id != self._canary()]
            for hand in here[:-1]:
                self._retire(hand, self._reason(hand, now) or "one too many", now)

    def _retire(self, hand: Hand, reason: str, now: float) -> None:
        self._move(hand, PostEvent.RETIRED, now)
        self.counts["left: " + reason] += 1
        self._orders.append(Retire(hand.worker_id, reason))

    # --- replacing ----------------------------------------------------------------------------------------------

    def _reason(self, hand: Hand, now: float) -> str:
        """Why it is to be replaced; empty = it is not."""
        if hand.generation != self.generation:
            return "rolled back" if hand.generation == self._coming else "reload"
        if hand.wish:
            return hand.wish
        if 0 < hand.messages_max <= hand.messages:
            return "messages"
        return "age" if hand.age_max_s and now >= hand.since + hand.age_max_s else ""

    def _replace(self, now: float) -> None:
        due = [hand for hand in self.serving() if self._reason(hand, now) and hand.worker_id != self._canary()]
        due.sort(key=lambda hand: (not hand.wish, hand.since))
        for hand in due:
            patience_s = self.policy.leave_max_s if hand.generation == self.generation else LEAVING_PATIENCE_S
            if self._under_replacement(now, patience_s) >= self.policy.replaced_at_once_max:
                continue
            if not self.at(hand.index, Post.BOOTING) and self._may_start(hand.index, now):
                self._start(hand.index, self.generation, now, hand.worker_id)

    def _under_replacement(self, now: float, patience_s: float) -> int:
        """How many leave, those that began so long ago left out, and how many boot for one that will."""
        return sum(
            now < hand.since + patience_s
            if hand.post is Post.LEAVING
            else hand.post is Post.BOOTING and hand.successor_of in self.hands
            for hand in self.hands.values()
        )

    # --- reload -------------------------------------------------------------------------------------------------

    def _canary(self) -> str | None:
        """The worker of the new code that is watched beside the one it will replace."""
        return self._probe if self.reload in (Reload.PROBING, Reload.CANARY) else None

    def _watch_canary(self, now: float) -> None:
        hand = self.hands.get(self._probe or "")
        if self.reload is not Reload.CANARY or hand is None:
            return
        over = now >= hand.since + self.policy.canary_s
        verdict = canary_verdict(hand.messages, hand.failed, self.policy.canary_messages, over=over)
        if verdict is ReloadEvent.PASSED:
            self._move_reload(verdict)
            self.generation = self._coming
            self._probe = None
        elif verdict is ReloadEvent.FAILED:
            self._roll_back(f"{hand.failed} of the first {hand.messages} messages failed")
            self._retire(hand, "rolled back", now)

    def _probe_ended(self, hand: Hand, expected: bool) -> None:
        self._probe = None
        if self.reload is Reload.PROBING:
            self._roll_back(self.last_boot_error)
        elif self.reload is Reload.CANARY and not expected:
            self._roll_back(f"the first worker died after {hand.messages} messages")

    def _roll_back(self, why: str) -> None:
        """The new code is no good: everything as it was before."""
        self._move_reload(ReloadEvent.FAILED)
        old = max(self._generations - {self._coming})
        self.generation = old
        self.counts["rolled_back"] += 1
        self.last_reload = f"rolled back: {why}"
        self._note("error", "reload_rolled_back", generation=self._coming, back_to=old, reason=why)

    def _finish_reload(self) -> None:
        others = [hand for hand in self.hands.values() if hand.generation != self.generation]
        if self.reload in (Reload.ROLLING, Reload.ROLLING_BACK) and not any(
            hand.post is not Post.LEAVING for hand in others
        ):
            if self.reload is Reload.ROLLING:
                self.counts["reloaded"] += 1
                self.last_reload = f"generation {self.generation} serves"
                self._note("info", "reloaded", generation=self.generation, workers=len(self.serving()))
            self._move_reload(ReloadEvent.REPLACED)
        if self.reload is Reload.IDLE:
            for generation in sorted(self._generations - {hand.generation for hand in others} - {self.generation}):
                self._generations.discard(generation)
                self._orders.append(DropGeneration(generation))

    # --- both ---------------------------------------------------------------------------------------------------

    def _move(self, hand: Hand, event: PostEvent, now: float) -> None:
        hand.post = move(POST, hand.post, event)
        hand.since = now

    def _move_reload(self, event: ReloadEvent) -> None:
        self.reload = move(RELOAD, self.reload, event)

    def _note(self, level: str, event: str, **keys: object) -> None:
        self._orders.append(Note(level, event, keys))
