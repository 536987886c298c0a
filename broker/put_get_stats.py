"""How many messages were put into a topic and got by a group, in the last minute, hour and day (BrokerStatsManager.java).

Buckets of ten seconds and of ten minutes, only those in which something happened. A name that nobody used for a day is
forgotten; of too many names, new ones are not counted.
"""

from __future__ import annotations

from collections import deque

from ..conf.units import DAY_MS, HOUR_MS, MINUTE_MS

TOPIC_PUT_NUMS, GROUP_GET_NUMS = "TOPIC_PUT_NUMS", "GROUP_GET_NUMS"
SHORT_MS, LONG_MS = 10_000, 600_000
NAMES_MAX = 20_000


class _Counter:
    """Ascending buckets: [number, count]."""

    __slots__ = ("long", "short")

    def __init__(self) -> None:
        self.short: deque[list[int]] = deque()
        self.long: deque[list[int]] = deque()

    def add(self, now_ms: int, count: int) -> None:
        for buckets, step_ms, kept_ms in ((self.short, SHORT_MS, MINUTE_MS), (self.long, LONG_MS, DAY_MS)):
            number = now_ms // step_ms
            if buckets and buckets[-1][0] == number:
                buckets[-1][1] += count
                continue
            buckets.append([number, count])
            while buckets[0][0] <= number - kept_ms // step_ms:
                buckets.popleft()

    def sum(self, now_ms: int, span_ms: int) -> int:
        buckets, step_ms = (self.short, SHORT_MS) if span_ms == MINUTE_MS else (self.long, LONG_MS)
        first = now_ms // step_ms - span_ms // step_ms
        return sum(count for number, count in buckets if number > first)


class PutGetStats:
    """Counters by (name of the statistic, its key)."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str], _Counter] = {}
        self._forgot_at = -1  # the long bucket in which that was done last; within one, no more names become unused

    def add(self, now_ms: int, name: str, key: str, count: int) -> None:
        counter = self._counters.get((name, key))
        if counter is None:
            if len(self._counters) >= NAMES_MAX:
                self._forget(now_ms)
            if len(self._counters) >= NAMES_MAX:
                return
            counter = self._counters[name, key] = _Counter()
        counter.add(now_ms, count)

    def _forget(self, now_ms: int) -> None:
        if self._forgot_at == now_ms // LONG_MS:
            return
        self._forgot_at = now_ms // LONG_MS
        for key in [key for key, counter in self._counters.items() if not counter.sum(now_ms, DAY_MS)]:
            del self._counters[key]

    def sums(self, now_ms: int, name: str, key: str) -> dict[int, int] | None:
        """Messages in the last minute, hour and day, by that time in ms; None for a key that was never counted."""
        counter = self._counters.get((name, key))
        if counter is None:
            return None
        return {span_ms: counter.sum(now_ms, span_ms) for span_ms in (MINUTE_MS, HOUR_MS, DAY_MS)}
