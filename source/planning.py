"""Which offsets one batch takes, and how they are split into partitions. Pure.

All of it is a function of its arguments, so that a batch that is planned again has the same partitions with the same
rows in them; keys of written rows depend on it.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..remoting.queues import MessageQueue
from .offsets import Offsets


class Range(NamedTuple):
    """Offsets `start` to `end` (not included) of one queue."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def ranges_between(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> list[Range]:
    """What lies between two offsets of a stream, queue by queue.

    A queue that the start does not know has nothing yet, nor has one where the stream goes back (positions.known_ends).
    """
    ranges = (Range(queue, start.get(queue, end[queue]), end[queue]) for queue in sorted(end))
    return [part for part in ranges if part.size > 0]


def limited(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], most: int) -> Offsets:
    """`end`, brought back so that at most `most` offsets lie between, each queue getting its share of them.

    A queue with anything to read gets at least one, so that it is not starved by long ones. Where even that is too many,
    queues take turns: which are first depends on how far the whole is.
    """
    sizes = {queue: end[queue] - start.get(queue, end[queue]) for queue in sorted(end)}
    # Where the stream goes back in a queue there is nothing to cut.
    waiting = {queue: size for queue, size in sizes.items() if size > 0}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    shares = dict.fromkeys(waiting, 0)
    if most < len(waiting):
        queues = list(waiting)
        first = sum(start[queue] for queue in queues) % len(queues)
        for queue in (queues + queues)[first : first + most]:
            shares[queue] = 1
    else:
        spare, rest = most - len(waiting), total - len(waiting)
        for queue, size in waiting.items():
            shares[queue] = 1 + (size - 1) * spare // rest
        left = most - sum(shares.values())
        for queue in sorted(waiting, key=lambda queue: (shares[queue] - waiting[queue], queue)):
            more = min(left, waiting[queue] - shares[queue], 1)
            shares[queue] += more
            left -= more
    return {queue: start[queue] + shares[queue] if queue in shares else last for queue, last in end.items()}


def split(ranges: Sequence[Range], at_least: int, size_max: int = 0) -> list[Range]:
    """The ranges, long ones cut so that there are about `at_least`, sorted by queue and offset.

    As with Kafka's source a hint: a range is never cut into more parts than it has offsets. Each cut goes to the range whose
    parts are the longest. No part has more than `size_max` offsets (0: no such limit).
    """
    whole = sorted(part for part in ranges if part.size > 0)
    parts = [-(-part.size // size_max) if size_max else 1 for part in whole]
    longest = [(-part.size / count, at) for at, (part, count) in enumerate(zip(whole, parts, strict=True))]
    heapq.heapify(longest)
    for _ in range(at_least - sum(parts) if whole else 0):
        length, at = longest[0]
        if -length <= 1:
            break
        parts[at] += 1
        heapq.heapreplace(longest, (-whole[at].size / parts[at], at))
    return [cut for part, count in zip(whole, parts, strict=True) for cut in _cut(part, count)]


def _cut(part: Range, count: int) -> list[Range]:
    edges = [part.start + part.size * at // count for at in range(count + 1)]
    return [Range(part.queue, first, last) for first, last in pairwise(edges)]


def waits(
    start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], least: int, since_ms: float, delay_ms: int
) -> bool:
    """Whether a trigger is left out: there is less than `minOffsetsPerTrigger`, and the last was no `maxTriggerDelay` ago.

    Going back in a queue waits for nothing.
    """
    if not least or since_ms >= delay_ms or any(end[queue] < offset for queue, offset in start.items() if queue in end):
        return False
    return sum(part.size for part in ranges_between(start, end)) < least
