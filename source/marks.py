"""By which message a queue is known again, and what it means when that one is gone. Pure; brokers' facts come in.

- The mark of a queue is the last message that was read of it, or the one before where reading began: its offset, and when it
  was stored. While it is there, all before it is what was read.
- It is gone where the queue ends before it, or has another message at its offset, also when the queue is longer again by
  now. What the queue got in place of it was stored later, so the first message stored after the mark is the first that was
  not read: reading goes on there, at the queue's end when there is none. (The clocks of two brokers are taken to be less
  apart than it takes one to stand in for the other.)
- A replica that lacks the mark proves nothing; one that has another message at its offset does.
- Where the first message that was not read is the first of all, nothing in the queue is as old as what was read: the topic
  was made anew. Else the queue is the same, and a broker lost its end: it failed over to a replica that lagged, or its
  machine stopped.
- A mark may lie further back: a replica gave no newer one. While it is there the queue is the same, and if that is
  shorter now than what was read, reading goes on at its end.
- Where retention has deleted the message that would be the mark, and none was kept before, the mark is that nothing was
  there (`Mark.stored_ms`): a message that is there later, and is not older, is of another queue. 4.9 does not move the
  first offset of a queue when all of it is deleted (ConsumeQueue.java, correctMinOffset): its messages cannot be read.
  What a replica does not have proves nothing: its master may keep more.
- A process that has seen the queue, and sees it shorter, goes on no later than at what was stored since it last looked: what
  a broker whose clock is behind stored before it reached the mark's time is not passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..remoting.queues import MessageQueue
from .errors import DataLossError
from .offsets import Mark, Marks, Offsets, names
from .positions import Facts, shorter

ANEW, LOST_END = "the topic was made anew", "a broker lost the queue's end"
Overtaken = dict[MessageQueue, tuple[int, Mark]]
"""Where a mark should be, and the one that the batch leaves."""
SOUND_S = 60.0
"""A look costs a pull of one message, which may be large, and there are ten looks a second. A queue that is as long as before
is nearly always the same; one that lost its end and was filled to the same length is found out after this time, or when the
next batch would go on in it."""


class Sound(NamedTuple):
    """That a mark was there: how long its queue was then, and when, in seconds of the process's clock."""

    mark: Mark
    maximum: int
    at_s: float


def looks_for(
    marks: Marks, facts: Mapping[MessageQueue, Facts], sound: Mapping[MessageQueue, Sound], now_s: float
) -> Offsets:
    """The offsets of the marks whose messages are looked at: not those that were there a moment ago, when the queue was as
    long. What a replica lacks proves nothing, nor does what retention has deleted."""
    return {
        queue: mark.offset
        for queue, mark in marks.items()
        if (known := facts.get(queue)) is not None
        and known.minimum <= mark.offset < known.maximum
        and (
            (last := sound.get(queue)) is None
            or (last.mark, last.maximum) != (mark, known.maximum)
            or now_s - last.at_s >= SOUND_S
        )
    }


def gone(marks: Marks, facts: Mapping[MessageQueue, Facts], stored_ms: Mapping[MessageQueue, int | None]) -> Marks:
    """The marks that are gone. `stored_ms`: when the messages at `looks_for` were stored, None where nobody knows."""
    return {
        queue: mark
        for queue, mark in marks.items()
        if (known := facts.get(queue)) is not None
        and (
            (known.final and known.maximum <= mark.offset)
            or ((ms := stored_ms.get(queue)) is not None and not mark.fits(ms))
        )
    }


def goes_on(lost: Marks, after: Mapping[MessageQueue, int]) -> Offsets:
    """Where reading goes on in queues whose marks are gone. `after`: the first offset stored after each mark.

    The message at the mark's own offset is another one, whatever brokers' clocks say: so it was not read.
    """
    return {queue: min(after[queue], mark.offset) for queue, mark in lost.items()}


def same_and_shorter(
    start: Offsets, marks: Marks, facts: Mapping[MessageQueue, Facts], stored_ms: Mapping[MessageQueue, int | None]
) -> Offsets:
    """Where reading goes on in queues that lost an end behind a mark that is still there."""
    return {
        queue: facts[queue].maximum
        for queue in shorter(start, facts)
        if queue in marks and marks[queue].fits(stored_ms.get(queue))
    }


def what_happened(back: Offsets, facts: Mapping[MessageQueue, Facts]) -> dict[MessageQueue, str]:
    """To each queue in which reading does not go on where it was, for people."""
    return {queue: LOST_END if at > facts[queue].minimum else ANEW for queue, at in back.items()}


def refused(back: Offsets, facts: Mapping[MessageQueue, Facts]) -> DataLossError:
    """The error where no data may be lost."""
    said = what_happened(back, facts)
    told = [
        f"{names(queue for queue in back if said[queue] == what)}: {what} since it was read{so}"
        for what, so in (
            (ANEW, ", so that its offsets are those of other messages"),
            (LOST_END, " (it failed over, or its machine stopped), and messages that were read or planned with it"),
        )
        if what in said.values()
    ]
    return DataLossError(
        f"rocketmq: {'; '.join(told)}. Begin with a new checkpoint (always, if this is another cluster than before), or set"
        " failOnDataLoss=false to go on at the first message stored since"
    )


def places_of_new(start: Offsets, ends: Offsets, marks: Marks, facts: Mapping[MessageQueue, Facts]) -> Offsets:
    """Where the marks are that a batch leaves: the last message before its end, of each queue in which it moves, or that has
    no mark yet."""
    return {
        queue: end - 1
        for queue, end in ends.items()
        if queue in facts and (queue not in marks or end != start.get(queue, end)) and end > facts[queue].minimum
    }


def left(
    marks: Marks,
    ends: Offsets,
    facts: Mapping[MessageQueue, Facts],
    stored_ms: Mapping[MessageQueue, int | None],
    deleted_ms: int,
    looked_ms: int,
) -> Marks:
    """The marks that go into the checkpoint with `ends`. `stored_ms`: when the messages at `places_of_new` were stored.

    Else the marks before, if reading stays behind them. Else, where a master has nothing there, that it was deleted: it is
    older than `deleted_ms`. What it only could not read may be there later, and be as young as the look, at `looked_ms`.
    """
    new = {queue: Mark(ends[queue] - 1, ms) for queue, ms in stored_ms.items() if ms is not None}
    known = {queue: mark for queue, mark in marks.items() if mark.offset < ends[queue]} | new
    return known | {
        queue: Mark(end - 1, -(deleted_ms if end <= facts[queue].minimum else looked_ms))
        for queue, end in ends.items()
        if queue not in known
        and queue in facts
        and facts[queue].final
        and (0 < end <= facts[queue].minimum or stored_ms.get(queue, 0) is None)
    }


def overtaken(
    start: Offsets, ends: Offsets, marks: Marks, new: Marks, facts: Mapping[MessageQueue, Facts]
) -> Overtaken:
    """The queues that may have changed between the look and the marks that a batch leaves, `new`: the message before its end
    should be there and is not, or the stream goes back to behind one that is younger than what was read."""
    return {
        queue: (place, new[queue])
        for queue, place in places_of_new(start, ends, marks, facts).items()
        if facts[queue].final
        and (
            new[queue].offset != place
            or new[queue].stored_ms < 0
            or (queue in marks and place < marks[queue].offset and new[queue].latest_ms > marks[queue].latest_ms)
        )
    }


def unmarked(ends: Offsets, new: Marks, facts: Mapping[MessageQueue, Facts]) -> list[MessageQueue]:
    """The queues by no message of which they would be known again, as they are away, or a replica lags."""
    return [
        queue
        for queue, end in ends.items()
        if end > 0 and queue not in new and not ((known := facts.get(queue)) is not None and known.final)
    ]
