"""From places to offsets: where reading begins and ends in each queue, and what is data loss. Pure; brokers' facts come in.

- A search by time says the first message stored at or after it, the queue's end when there is none (searching.py).
- A group without a committed offset begins at the earliest message: nothing is passed over.
- What lies outside of what a queue holds is data loss: an error, or with failOnDataLoss=false the nearest offset there is.
- A group's offset beyond the end of a much shorter queue is of one that had its name before: nothing of this one was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..remoting.errors import UsageError
from ..remoting.queues import MessageQueue
from .errors import DataLossError
from .offsets import EARLIEST, LATEST, Offsets, Place, Spec, name, names

LOST_END_MAX = 10_000
"""Messages that a broker's crash may cost one queue: some seconds of them are not on its disk yet (ASYNC_FLUSH)."""

BEYOND_END = "the group's offset is beyond the queue's end: the topic was made anew, or a broker lost its end"


@dataclass(frozen=True, slots=True)
class Facts:
    """What brokers say of one queue: its first offset, one past its last, the group's offset, and a search's result.

    `final` is False when only a replica could be asked, which may lag: then what it does not have is not lost.
    """

    minimum: int
    maximum: int
    group: int | None = None
    found: int | None = None
    final: bool = True


def check_named(spec: Spec, queues: Iterable[MessageQueue]) -> None:
    """Offsets or times that are told per queue must be told for exactly the queues that are read. Raises UsageError."""
    if spec.timestamp_ms is not None or spec.place not in (Place.OFFSETS, Place.TIMESTAMP):
        return
    there = set(queues)
    if missing := there - set(spec.values):
        raise UsageError(f"rocketmq: option {spec.option} says nothing about {names(missing)}: every queue that is read "
                         "must stand there (-2 is its earliest offset)")  # fmt: skip
    if foreign := set(spec.values) - there:
        raise UsageError(f"rocketmq: option {spec.option} names {names(foreign)}, which is not read: subscribe or assign it, "
                         "or leave it out")  # fmt: skip


def first_offset(spec: Spec, queue: MessageQueue, facts: Facts, *, latest_when_too_late: bool, fail: bool) -> int:
    """Where reading begins. Raises UsageError (nothing is that new), DataLossError."""
    if spec.place is Place.TIMESTAMP and _search(facts) >= facts.maximum and not latest_when_too_late:
        raise UsageError(
            f"rocketmq: option {spec.option}: {name(queue)} has no message stored at or after {spec.timestamp_of(queue)}: "
            "give an earlier time, or startingOffsetsByTimestampStrategy=latest to begin with what comes in"
        )
    return within(_offset(spec, queue, facts), queue, facts, fail=fail, was_read=spec.place is Place.GROUP)


def last_offset(spec: Spec, queue: MessageQueue, facts: Facts, *, fail: bool) -> int:
    """Where a batch read ends (one past the last). Raises DataLossError."""
    return within(_offset(spec, queue, facts), queue, facts, fail=fail)


def within(offset: int, queue: MessageQueue, facts: Facts, *, fail: bool, was_read: bool = False) -> int:
    """`offset`, if the queue reaches from there. Raises DataLossError, or with `fail` off gives the nearest; where what was
    before `offset` `was_read` and the queue was made anew, its first, as none of these messages was.
    """
    if not facts.final:
        return offset
    nearest = min(max(offset, facts.minimum), facts.maximum)
    if was_read and is_anew(offset, facts):
        nearest = facts.minimum
    if fail and nearest != offset:
        raise DataLossError(
            f"rocketmq: {name(queue)} holds offsets {facts.minimum} to {facts.maximum}, and {offset} is asked for: messages "
            "were deleted (retention), a broker lost the queue's end, or the topic was made anew. Begin elsewhere (for a "
            f"stream: with a new checkpoint), or set failOnDataLoss=false to go on at {nearest}"
        )
    return nearest


def check_order(starts: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int], option: str) -> None:
    """An end before its start is a user's mistake. Raises UsageError."""
    for queue, start in starts.items():
        if ends[queue] < start:
            raise UsageError(
                f"rocketmq: option {option}: {name(queue)} would end at {ends[queue]}, before it begins at {start}"
            )


def _offset(spec: Spec, queue: MessageQueue, facts: Facts) -> int:
    match spec.place:
        case Place.EARLIEST:
            return facts.minimum
        case Place.LATEST:
            return facts.maximum
        case Place.GROUP:
            return facts.minimum if facts.group is None else facts.group
        case Place.TIMESTAMP:
            return min(max(_search(facts), facts.minimum), facts.maximum)
        case Place.OFFSETS:
            value = spec.values[queue]
            return {EARLIEST: facts.minimum, LATEST: facts.maximum}.get(value, value)


def _search(facts: Facts) -> int:
    assert facts.found is not None, "a search was not made"
    return facts.found


def known_ends(
    start: Offsets, facts: Mapping[MessageQueue, Facts], back: Offsets, enters: Offsets | None = None, *, fail: bool
) -> Offsets:
    """Where a stream could read to now, given where it stands.

    - A queue that is new to it enters where `enters` says, else at its first offset, with nothing to read yet: that offset
      goes into the checkpoint before anything is read, so a replay begins at the same one.
    - A queue that no route names at the moment (its broker is down) stays where it is, and one whose replica lags.
    - A queue that is not what was read any more, or shorter: the stream goes back in it, with no row of it in this batch.
      `back` says to where (marks.py, or a search). For one that is shorter and not in it: DataLossError, or `within`.
    """
    ends = dict(start)
    for queue, known in facts.items():
        if queue not in start:
            ends[queue] = (enters or {}).get(queue, known.minimum)
        elif queue in back:
            ends[queue] = min(back[queue], known.maximum)
        elif known.maximum >= start[queue]:
            ends[queue] = known.maximum
        elif known.final:
            ends[queue] = within(start[queue], queue, known, fail=fail, was_read=True)
    return ends


def shorter(start: Offsets, facts: Mapping[MessageQueue, Facts]) -> list[MessageQueue]:
    """The queues that end before where the stream stands, and not because a replica lags."""
    return [queue for queue, known in facts.items() if beyond_end(start.get(queue, 0), known)]


def beyond_end(offset: int, facts: Facts) -> bool:
    """Whether the queue is for certain shorter than it was."""
    return facts.final and offset > facts.maximum


def is_anew(offset: int, facts: Facts) -> bool:
    """Whether a queue that does not reach to `offset` any more was made anew, when neither a mark nor this process knows what
    happened: it is much shorter, and all of it is to come.

    A broker that crashed may have lost the last messages, all of which were read: only new ones are to come.
    """
    missing = offset - facts.maximum
    return missing > LOST_END_MAX or missing * 2 > offset > 0
