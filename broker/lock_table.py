"""Who may consume which queue in order (BR/client/rebalance/RebalanceLockManager.java).

A lock belongs to a client id, not to a connection, and lasts `expiry_ms` from its last confirmation: the same client
refreshes it, anybody takes over an expired one. Granting is all a batch does; what is not granted is simply not named.
Nothing is kept for what is not granted, and the locks of all groups are bounded: names of groups and clients are free.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..remoting.errors import UsageError
from ..remoting.queues import MessageQueue

LOCKS_MAX = 200_000  # of all groups: an ordered group has one for each of its queues


@dataclass(slots=True)
class QueueLock:
    client_id: str
    confirmed_ms: int


class LockTable:
    """Locks per group and message queue."""

    def __init__(self, expiry_ms: int) -> None:
        self._expiry_ms = expiry_ms
        self._groups: dict[str, dict[MessageQueue, QueueLock]] = {}

    def lock(self, now_ms: int, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """The queues among `queues` that the client holds from now on. Where there is no room for more, those that it held;
        raises UsageError when these are none."""
        held = self._groups.get(group, {})
        granted: dict[MessageQueue, QueueLock] = {}
        for queue in queues:
            lock = held.get(queue)
            if lock is None or lock.client_id == client_id or self._expired(now_ms, lock):
                granted[queue] = QueueLock(client_id, now_ms)
        fresh = granted.keys() - held.keys()
        if fresh:
            count = sum(map(len, self._groups.values())) + len(fresh)
            if count <= LOCKS_MAX:
                self._groups[group] = held
            elif fresh != granted.keys():
                granted = {queue: lock for queue, lock in granted.items() if queue in held}
            else:
                raise UsageError(f"{count} locks of queues: this broker keeps at most {LOCKS_MAX} of all groups")
        held.update(granted)
        return [*granted]

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give up what the client holds among `queues`; another client's lock stays."""
        held = self._groups.get(group, {})
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]
        if not held:
            self._groups.pop(group, None)

    def any_valid(self, now_ms: int, group: str) -> bool:
        """Whether the group holds any lock, which tells an orderly group (RebalanceLockManager.isLockAllExpired)."""
        return any(not self._expired(now_ms, lock) for lock in self._groups.get(group, {}).values())

    def expire(self, now_ms: int) -> None:
        """Forget expired locks, so that groups that are gone take no memory."""
        for group in list(self._groups):
            held = self._groups[group]
            for queue in [queue for queue, lock in held.items() if self._expired(now_ms, lock)]:
                del held[queue]
            if not held:
                del self._groups[group]

    def _expired(self, now_ms: int, lock: QueueLock) -> bool:
        return now_ms - lock.confirmed_ms > self._expiry_ms
