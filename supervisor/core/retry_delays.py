"""How many messages of each queue wait for the delay of their retry, by this member's own send-backs. Pure.

Brokers keep messages of all groups that wait for a delay in one topic, by level, and do not say whose they are. So the
member counts: a message waits from the moment that its broker has taken it back until the delay is over. The delays of
levels are RocketMQ's defaults; where brokers have others (`messageDelayLevel`), the numbers fall too early or too late.
What was sent back before this member's start is not in them.

Moments are rounded up to a small part of the delay, so that many failures of one queue are a few numbers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from heapq import heappop, heappush
from math import ceil
from typing import Final

from ...conf.formats import DELAY_LEVELS, UNIT_MS, delay_levels_ms
from ...remoting.queues import MessageQueue

LEVELS_S: Final = [level_ms // UNIT_MS["s"] for level_ms in delay_levels_ms(DELAY_LEVELS)]
"""By delay level, from 1 on; a level above the last is the last."""
PARTS: Final = 32
"""Of a delay: so exact is a moment."""
RETRY_DELAYS = "rocketcrew.retry_delays"
"""Messages of each queue that wait for the delay of their retry, in userConsumerInfo, which is free text: as
`[["orders", "broker-a", 0, 3], ...]`."""


def level_delay_s(level: int) -> int:
    """`level` from 1 on."""
    return LEVELS_S[min(level, len(LEVELS_S)) - 1]


class RetryDelays:
    """Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._counts: dict[tuple[float, MessageQueue], int] = {}
        self._ends: list[tuple[float, MessageQueue]] = []
        """A heap of the same: moments when something is over, and of which queue."""

    def waits(self, mq: MessageQueue, delay_s: float, now: float) -> None:
        """One message of the queue waits from now on, so long."""
        part_s = delay_s / PARTS
        end = ceil((now + delay_s) / part_s) * part_s, mq
        if end not in self._counts:
            heappush(self._ends, end)
        self._counts[end] = self._counts.get(end, 0) + 1

    def forget(self, now: float) -> None:
        """Drop what is over."""
        while self._ends and self._ends[0][0] <= now:
            del self._counts[heappop(self._ends)]

    def waiting(self, now: float) -> dict[MessageQueue, int]:
        """Messages that wait at that moment, of each queue that has any."""
        found: Counter[MessageQueue] = Counter()
        for (end, mq), count in self._counts.items():
            if end > now:
                found[mq] += count
        return dict(found)


def encode_counts(counts: Mapping[MessageQueue, int]) -> str:
    """A number by queue as one text."""
    return json.dumps([[*mq, count] for mq, count in sorted(counts.items())])


def decode_counts(text: str) -> dict[MessageQueue, int]:
    """The reverse; what is none of ours is empty."""
    try:
        return {MessageQueue(str(topic), str(broker), int(number)): int(count)
                for topic, broker, number, count in json.loads(text) if count > 0}  # fmt: skip
    except (TypeError, ValueError, OverflowError, RecursionError):
        return {}
