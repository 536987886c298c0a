"""Which offsets a batch of the stream is made of, and which of them are done. Pure.

A batch's number alone says little: Spark writes down what a batch is made of before it runs, and when that record is lost
(the checkpoint's files are not always on disk when the machine fails), the same number is planned anew, up to where queues
end by then. So the engine goes by offsets: its own state says up to which offset each queue is done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..remoting.queues import MessageQueue
from ..source.offsets import Offsets, from_json, to_json


class Planned(NamedTuple):
    """The offsets of one batch, queue by queue: `start` to `end` (not included); queues that only `end` has are new."""

    start: Offsets
    end: Offsets

    def goes_back(self, queue: MessageQueue) -> bool:
        """The queue became shorter, and the stream goes on at `end`; the batch has no row of it."""
        return self.end[queue] < self.start.get(queue, 0)

    def to_json(self) -> dict[str, Any]:
        """As the manifest has it."""
        return {"start": to_json(self.start), "end": to_json(self.end)}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Planned:
        """What `to_json` gave. Raises UsageError, KeyError."""
        return cls(from_json(told["start"]), from_json(told["end"]))


def parse_checkpoint(text: str) -> Offsets:
    """The offsets in a file of the checkpoint's `offsets/`: a version, facts of Spark's own, then one line for each source.

    Raises ValueError for another version.
    """
    version, _, *sources = text.splitlines()
    if version != "v1" or len(sources) != 1:
        raise ValueError(f"version {version!r} with {len(sources)} sources, this program knows v1 with one")
    return from_json(json.loads(sources[0]))


def is_known(ends: Mapping[MessageQueue, int], planned: Planned) -> bool:
    """Whether nothing of the batch is left to do. `ends`: up to where each queue is done."""
    for queue, end in planned.end.items():
        if planned.goes_back(queue):
            if ends.get(queue) != end:
                return False
        elif planned.start.get(queue, end) < end and ends.get(queue, 0) < end:
            return False
    return True


def done_before(ends: Mapping[MessageQueue, int], planned: Planned) -> Offsets:
    """Of queues whose range begins with messages that are done: the first that is not."""
    return {
        queue: ends[queue]
        for queue in planned.end
        if queue in ends and not planned.goes_back(queue) and planned.start.get(queue, ends[queue]) < ends[queue]
    }


def ends_after(ends: Mapping[MessageQueue, int], planned: Planned) -> Offsets:
    """Up to where each queue is done when this batch is."""
    found = dict(ends)
    for queue, end in planned.end.items():
        found[queue] = end if planned.goes_back(queue) else max(end, found.get(queue, 0))
    return found
