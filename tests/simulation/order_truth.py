"""What order means, known from outside: which lanes there are, what runs in each, and what of it is done.

A lane is a queue (order = "queue") or one key of a queue. At every begin: nothing else of the lane runs anywhere, and every
earlier message of it was handled or stored as a retry by the broker. A message that was handled by a worker that died before
it told is not handled. What an operator skipped, or nobody subscribed, is of no account. A broker that is killed forgets
its locks: what a worker was handed before that may meet the next owner's first messages, until its lock would have ended
(Java's consumer goes on for as long: ProcessQueue.isLockExpired).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from .world import Violation, World

if TYPE_CHECKING:
    from .worker import SimWorker

QueueKey = tuple[str, int]
"""(topic, queue id) on the one broker."""


class OrderTruth:
    """One for all members of a world. `lane_of` gives None for a message in no order."""

    def __init__(self, world: World, lane_of: Callable[[QueueKey, int], Hashable | None]) -> None:
        self._world = world
        self._lane = lane_of
        self._keyless: set[tuple[QueueKey, int]] = set()
        self.is_done: Callable[[QueueKey, int], bool] = lambda _key, _offset: False
        """Stored as a retry, not subscribed, or skipped: nothing of it has to run."""
        self._handled: dict[QueueKey, dict[int, set[str]]] = {}
        """By offset: the workers that handled it."""
        self._running: dict[Hashable, tuple[SimWorker, int]] = {}
        self._from: dict[Hashable, int] = {}
        """Everything of the lane below this is done."""
        self._untold: dict[str, list[tuple[QueueKey, int]]] = {}
        self.broker_died_ms = -1.0

    def loses_its_key(self, key: QueueKey, offset: int) -> None:
        """Workers died again and again while they were asked for it: from now on the message is in no order."""
        self._world.note("a message lost its key to the deaths of workers")
        self._keyless.add((key, offset))

    def _lane_of(self, key: QueueKey, offset: int) -> Hashable | None:
        return None if (key, offset) in self._keyless else self._lane(key, offset)

    def begins(self, worker: SimWorker, key: QueueKey, offset: int) -> None:
        lane = self._lane_of(key, offset)
        if lane is None:
            return
        other = self._running.get(lane)
        # Either of the two may be the one that the killed broker had given the lock to.
        if other is not None and other[0].alive and min(worker.handed_ms, other[0].handed_ms) > self.broker_died_ms:
            raise Violation(f"{lane}: {offset} begins in {worker.worker_id} while {other[0].worker_id} runs {other[1]}")
        done = self._handled.setdefault(key, {})
        at = self._from.get(lane, 0)
        while at < offset:
            if not done.get(at) and self._lane_of(key, at) == lane and not self.is_done(key, at):
                raise Violation(f"{lane}: {offset} begins in {worker.worker_id}, but {at} is not done")
            at += 1
        self._from[lane] = max(self._from.get(lane, 0), at)
        self._running[lane] = (worker, offset)

    def ends(self, worker: SimWorker, key: QueueKey, offset: int, *, handled: bool) -> None:
        lane = self._lane_of(key, offset)
        if lane is None:
            return
        running = self._running.get(lane)
        if running is not None and running[0] is worker:
            del self._running[lane]
        if handled:
            self._handled.setdefault(key, {}).setdefault(offset, set()).add(worker.worker_id)
            self._untold.setdefault(worker.worker_id, []).append((key, offset))

    def undone(self, worker: SimWorker, key: QueueKey, offset: int) -> None:
        """Rolled back, or its worker died before it reported."""
        lane = self._lane_of(key, offset)
        self._handled.setdefault(key, {}).setdefault(offset, set()).discard(worker.worker_id)
        if lane is not None:
            self._from[lane] = min(self._from.get(lane, 0), offset)
        untold = self._untold.get(worker.worker_id, [])
        if (key, offset) in untold:
            untold.remove((key, offset))

    def told(self, worker: SimWorker, key: QueueKey, offset: int) -> None:
        """Its rows are written or its outcome is sent: a death of the worker does not undo it."""
        untold = self._untold.get(worker.worker_id, [])
        if (key, offset) in untold:
            untold.remove((key, offset))

    def died(self, worker: SimWorker) -> None:
        for key, offset in list(self._untold.pop(worker.worker_id, ())):
            self.undone(worker, key, offset)
