"""What is true, known from outside: which records were run, finished, sealed, sent back, loaded; and what follows from it.

A record is finished when its rows are in a sealed segment, or a worker ran it without rows, or the broker stored its retry.
No offset, at the broker or in a journal, may pass a record that is not finished. A reset asks for records to be run again:
from then on only what finished after it counts. Written apart from the supervisor's own bookkeeping, record by record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rocketcrew.durable.intervals import Intervals, IntervalSet
from rocketcrew.durable.outcomes import DEAD_LETTER, FILTERED, SENT_BACK, UNDELIVERED, Outcomes

from .coroner import Deaths
from .order_truth import OrderTruth, QueueKey
from .world import Violation, World

OFFSET_MAX = 1 << 62

RESET_HEARD_MS = 3_000
"""Two rebalances: after that, whoever lives has heard of a reset, and has it on the disk."""


@dataclass
class Reset:
    """The last reset of a queue: records from `target` on count only when they finished after `at_ms`."""

    target: int
    at_ms: float
    skipped_below: int
    """What an operator had skipped before."""


class Asker:
    """For which assignment a request is: one whose offset was asked for before a reset may still undo it."""

    __slots__ = ("guarded", "opened_ms", "saw")

    def __init__(self, opened_ms: float, *, guarded: bool = False, saw: int | None = None) -> None:
        self.opened_ms = opened_ms
        self.guarded = guarded
        self.saw = saw
        """The broker's offset that a guarded commit saw before, None = it did not look, -1 = there was none."""


class Truth:
    """Shared by all members, the broker and the loader of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.finished_ms: dict[QueueKey, dict[int, float]] = {}
        """When each record was last finished."""
        self.runs: dict[QueueKey, dict[int, int]] = {}
        """How often a worker began each record."""
        self.without_rows: dict[QueueKey, set[int]] = {}
        self.retried: dict[QueueKey, set[int]] = {}
        """Of which its broker has made another record: a retry or a dead letter."""
        self.made: dict[str, dict[QueueKey, set[int]]] = {SENT_BACK: {}, DEAD_LETTER: {}}
        """The same, by what it is."""
        self.deaths = Deaths()
        self.skipped_below: dict[QueueKey, int] = {}
        """An operator skipped what is below."""
        self.skipped_ever: dict[QueueKey, int] = {}
        self.resets: dict[QueueKey, Reset] = {}
        self.ever_reset: set[QueueKey] = set()
        self.power_cut = False
        self.broker_offsets: dict[QueueKey, int] = {}
        self._upto: dict[QueueKey, int] = {}
        self.strict_resets = True
        """All runs after a reset are looked at. Only where there is one slot: a member that was away during a reset cannot
        know of it once the others have come past the offset that it remembers."""
        self.only_loaded_counts = False
        """A record with rows is finished when they are in the table; otherwise when they are sealed."""
        self.order = OrderTruth(world, lambda _key, _offset: None)
        self.is_filtered: Callable[[QueueKey, int], bool] = lambda _key, _offset: False
        self.max_offset: Callable[[QueueKey], int] = lambda _key: 0
        self.accounted: Callable[[QueueKey], IntervalSet] = lambda _key: IntervalSet.of([])
        """The offsets of a queue of which table, sealed segments and facts say what became of them."""
        self._explained_to: dict[QueueKey, int] = {}
        self.undelivered: dict[QueueKey, Intervals] = {}
        """What sealed facts say was passed over by the broker, and by nobody's wish."""
        self.claims_all = False
        """The members have asked for everything, so that what the broker leaves out was filtered by nobody's wish."""

    # --- facts --------------------------------------------------------------------------------------------------

    def began(self, key: QueueKey, offset: int) -> None:
        runs = self.runs.setdefault(key, {})
        runs[offset] = runs.get(offset, 0) + 1

    def finished(self, key: QueueKey, offset: int) -> None:
        self.finished_ms.setdefault(key, {})[offset] = self.world.now_ms
        self.deaths.finished(*key, offset)

    def done_without_rows(self, key: QueueKey, offset: int) -> None:
        self.without_rows.setdefault(key, set()).add(offset)
        self.finished(key, offset)

    def sent_back(self, key: QueueKey, offset: int, *, dead: bool) -> None:
        self.made[DEAD_LETTER if dead else SENT_BACK].setdefault(key, set()).add(offset)
        sent = self.retried.setdefault(key, set())
        if offset in sent:
            self.world.note("a message was sent back twice")
        sent.add(offset)
        self.finished(key, offset)

    def repeats(self) -> int:
        """How many times a record was run beyond the first."""
        return sum(count - 1 for runs in self.runs.values() for count in runs.values())

    # --- operators and the broker -------------------------------------------------------------------------------

    def reset(self, key: QueueKey, target: int) -> None:
        """An operator's newest order. Going back asks for records to be run again; going forward asks for nothing, also
        not for what a reset before it wanted, which perhaps nobody met."""
        self.deaths.reset(*key)
        self.ever_reset.add(key)
        skipped = self.skipped_below.get(key, 0)
        self.skipped_ever[key] = max(self.skipped_ever.get(key, 0), target)
        before = self.resets.get(key)
        remembered = max(skipped, before.skipped_below if before is not None else 0)
        if target < self.broker_offsets.get(key, 0) and self.strict_resets:
            self.resets[key] = Reset(target, self.world.now_ms, remembered)
            # Also where one that went lower is not done yet: this one takes its place.
            self.skipped_below[key] = min(remembered, target)
            self._upto[key] = min(self._upto.get(key, 0), target)
        else:
            self.resets[key] = Reset(OFFSET_MAX, self.world.now_ms, remembered)
            if target >= self.broker_offsets.get(key, 0):
                self.skipped_below[key] = max(skipped, target)

    def void_reset(self, key: QueueKey) -> None:
        """The reset was undone by somebody's right: a late commit of an older assignment, or a kill of the broker."""
        reset = self.resets.pop(key, None)
        if reset is not None:
            self.skipped_below[key] = max(self.skipped_below.get(key, 0), reset.skipped_below)
            self.world.note("a reset was undone")

    def power_lost(self) -> None:
        """A reset that no member may have heard of yet: what its journal has lost can say that more was finished."""
        self.power_cut = True
        for key, reset in list(self.resets.items()):
            if self.world.now_ms - reset.at_ms < RESET_HEARD_MS:
                self.void_reset(key)
        self._explained_to.clear()
        for key, offset in self.broker_offsets.items():
            self.explained(key, offset, "after a loss of power, the broker's committed offset")

    def broker_killed(self) -> None:
        self.order.broker_died_ms = self.world.now_ms
        self._broker_forgot_resets()

    def _broker_forgot_resets(self) -> None:
        """Resets that wait live in the broker's memory, and the offset they set is saved a little later."""
        for key in list(self.resets):
            self.void_reset(key)

    def broker_offset(self, key: QueueKey, offset: int | None, asker: object) -> None:
        """The broker's committed offset after a request."""
        before = self.broker_offsets.get(key, 0)
        if offset is None or offset == before:
            if offset is None:
                self.broker_offsets.pop(key, None)
            return
        self.broker_offsets[key] = offset
        if offset < before:
            self.world.note("the broker's offset went back")
            if isinstance(asker, Asker) and asker.guarded:
                if asker.saw is None or asker.saw == before:
                    raise Violation(f"a queue that was taken away lowered the broker's offset of {key} to {offset}")
                self.world.note("a guarded commit lost a race")
        self.may_pass(key, offset, "the broker's committed offset", asker)
        self.explained(key, offset, "the broker's committed offset")

    # --- invariants ---------------------------------------------------------------------------------------------

    def upto(self, key: QueueKey, limit: int) -> int:
        """The smallest offset below `limit` that is not finished, else `limit`."""
        at = self._upto.get(key, 0)
        finished = self.finished_ms.get(key, {})
        reset = self.resets.get(key)
        skipped = self.skipped_below.get(key, 0)
        while at < limit:
            when = finished.get(at)
            undone = when is None or (reset is not None and reset.target <= at and when < reset.at_ms)
            if undone and at >= skipped and not self.is_filtered(key, at):
                break
            at += 1
        self._upto[key] = max(self._upto.get(key, 0), at)
        return min(at, limit)

    def may_pass(self, key: QueueKey, offset: int, what: str, asker: object) -> None:
        """Raise unless everything below `offset` is finished."""
        safe = self.upto(key, offset)
        if safe >= offset:
            return
        reset = self.resets.get(key)
        if reset is not None and isinstance(asker, Asker) and asker.opened_ms < reset.at_ms:
            self.void_reset(key)
            safe = self.upto(key, offset)
            if safe >= offset:
                return
        raise Violation(
            f"{what} of {key} is {offset}, but {safe} is not finished (ran {self.runs.get(key, {}).get(safe, 0)} times)"
        )

    def explained(self, key: QueueKey, offset: int, what: str) -> None:
        """Raise unless of everything below `offset` it is known what became of it: the broker will not deliver it again, so
        nobody could find that out later."""
        start = max(self._explained_to.get(key, 0), self.skipped_ever.get(key, 0))
        if start >= offset:
            return
        unknown = IntervalSet.of([(start, offset)]) - self.accounted(key)
        if unknown:
            raise Violation(f"{what} of {key} is {offset}, and what became of {unknown.pieces} is nowhere")
        self._explained_to[key] = offset

    def told_of_retries(self, facts: Outcomes) -> None:
        """Facts are sealed: what they call a retry or a dead letter has become that at its broker."""
        for kind, made in self.made.items():
            for key, offsets in facts.of_kind(kind).queues.items():
                queue = (key.topic, key.queue_id)
                for at in set(self._each(offsets)) - made.get(queue, set()):
                    if not self.is_filtered(queue, at):
                        raise Violation(f"{queue} {at} is recorded as {kind}, and its broker made no such record")

    def told_of_gaps(self, facts: Outcomes) -> None:
        """Facts are sealed: what was delivered was not passed over, and what was asked for was not filtered."""
        for key, offsets in facts.of_kind(UNDELIVERED).queues.items():
            queue = (key.topic, key.queue_id)
            self.undelivered.setdefault(queue, Intervals()).update(offsets.pieces)
            for at in self._each(offsets):
                if not (self.claims_all and self.is_filtered(queue, at)):
                    raise Violation(
                        f"{queue} {at} is called undelivered, and the broker delivers it, or was to filter it"
                    )
        for key, offsets in facts.of_kind(FILTERED).queues.items() if self.claims_all else ():
            if any(self.is_filtered((key.topic, key.queue_id), at) for at in self._each(offsets)):
                raise Violation(f"{key} {offsets.pieces} is called filtered, and everything was asked for")

    @staticmethod
    def _each(offsets: IntervalSet) -> Iterator[int]:
        return (at for start, end in offsets.pieces for at in range(start, end))

    def gaps_named(self, key: QueueKey) -> None:
        """Raise unless each offset that the broker passed over by nobody's wish was named."""
        named = self.undelivered.get(key, Intervals())
        for at in range(self.skipped_ever.get(key, 0), self.max_offset(key) if self.claims_all else 0):
            if self.is_filtered(key, at) and at not in named:
                raise Violation(f"{key} {at} was passed over, and nobody has named it")

    def all_finished(self, key: QueueKey, start: int, end: int, what: str) -> None:
        """Raise unless every record of the interval was finished at some time."""
        finished = self.finished_ms.get(key, {})
        skipped = self.skipped_below.get(key, 0)
        for offset in range(start, min(end, self.max_offset(key))):
            if offset not in finished and offset >= skipped and not self.is_filtered(key, offset):
                raise Violation(f"{what} says that {key} {start}..{end} is finished, but {offset} is not")
