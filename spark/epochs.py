"""Epochs of a queue: when its offsets begin anew, its rows are loaded although the loaded set knows these numbers. Pure.

Two things open one. A topic that was deleted and made again: a record whose offset is loaded already and not above all that
has rows, but which was stored later than everything that was loaded of its queue, can only be another record (a broker
stores a queue in the order of its offsets). And a deliberate re-run: `rocketcrew reset --reprocess` asks for it by a file
beside the segments, which names those that were sealed before.

A plan has one epoch for each queue. Segments of before and after an opening are planned apart, those of before first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..durable.intervals import OffsetSet, QueueKey
from .plan import Ends, SegmentFacts, Top

REQUEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class EpochRequest:
    """What `reset --reprocess` asks for: these queues, each in the epoch that is to be open, for all but `segments`."""

    queues: tuple[QueueKey, ...]
    segments: frozenset[str]

    def to_json(self) -> str:
        """The request file's text."""
        told = {
            "version": REQUEST_VERSION,
            "queues": [key.to_json() for key in sorted(self.queues)],
            "segments": sorted(self.segments),
        }
        return json.dumps(told, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: bytes) -> EpochRequest:
        """What `to_json` wrote. Raises ValueError for anything else."""
        try:
            data: dict[str, Any] = json.loads(text)
            if data["version"] != REQUEST_VERSION:
                raise ValueError(f"version {data['version']!r}, this program knows {REQUEST_VERSION}")
            return cls(
                tuple(QueueKey.from_json(key) for key in data["queues"]),
                frozenset(str(one) for one in data["segments"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a request for epochs: {type(error).__name__}: {error}") from None


NO_REQUEST = EpochRequest((), frozenset())


def joined_requests(requests: Iterable[EpochRequest]) -> EpochRequest:
    """What several staging folders are asked for, as one: each queue in its highest epoch, and all of the segments."""
    newest: dict[QueueKey, int] = {}
    segments: set[str] = set()
    for request in requests:
        segments |= request.segments
        for key in request.queues:
            base = key.in_epoch(0)
            newest[base] = max(key.epoch, newest.get(base, 0))
    return EpochRequest(tuple(sorted(base.in_epoch(epoch) for base, epoch in newest.items())), frozenset(segments))


class Opening(NamedTuple):
    """A queue that begins anew: its key in the new epoch, and what shows it."""

    key: QueueKey
    ends: Ends
    top: Top


class Stretch(NamedTuple):
    """The segments to plan next, and the epochs in which they are; `openings` are among them."""

    length: int
    epochs: tuple[QueueKey, ...]
    openings: tuple[Opening, ...]


def opened(queues: Iterable[QueueKey]) -> dict[QueueKey, int]:
    """The newest epoch of each queue that is not in its first, by its key in epoch 0."""
    newest: dict[tuple[str, str, str, int], int] = {}
    for group, topic, broker, queue_id, epoch in queues:
        if epoch > newest.get(base := (group, topic, broker, queue_id), 0):
            newest[base] = epoch
    return {QueueKey(*base): epoch for base, epoch in newest.items()}


def next_stretch(
    segments: Sequence[SegmentFacts], loaded: OffsetSet, tops: Mapping[QueueKey, Top], request: EpochRequest
) -> Stretch:
    """As many segments from the first one on as are in the same epochs. `segments` are as read: in epoch 0."""
    current = opened(loaded.queues)
    first: tuple[QueueKey, ...] | None = None
    openings: tuple[Opening, ...] = ()
    for place, segment in enumerate(segments):
        epochs, found = _epochs_of(segment, current, loaded, tops, request)
        if first is None:
            first, openings = epochs, found
            current = {**current, **{opening.key.in_epoch(0): opening.key.epoch for opening in found}}
            tops = {**tops, **{opening.key: Top(-1, -1, opening.ends.first_us) for opening in found}}
        elif epochs != first or found:
            return Stretch(place, first, openings)
    return Stretch(len(segments), first or (), openings)


def _epochs_of(
    segment: SegmentFacts, current: Mapping[QueueKey, int], loaded: OffsetSet, tops: Mapping[QueueKey, Top],
    request: EpochRequest,
) -> tuple[tuple[QueueKey, ...], tuple[Opening, ...]]:  # fmt: skip
    epochs = dict(current)
    for key in request.queues:
        base = key.in_epoch(0)
        if segment.name in request.segments:
            epochs[base] = min(epochs.get(base, 0), key.epoch - 1)
        else:
            epochs[base] = max(epochs.get(base, 0), key.epoch)
    openings: list[Opening] = []
    for base, ends in segment.ends.items():
        key = base.in_epoch(epochs.get(base, 0))
        top = tops.get(key)
        if top is None:
            continue
        if top.since_us and ends.last_us < top.since_us:
            epochs[base] = key.epoch - 1  # sealed late: of the topic as it was
        elif (
            ends.first_offset <= top.offset
            and ends.first_us > top.stored_us
            and ends.first_offset in loaded.of_queue(key)
        ):
            opening = Opening(key.in_epoch(key.epoch + 1), ends, top)
            openings.append(opening)
            epochs[base] = opening.key.epoch
    return tuple(sorted(base.in_epoch(epoch) for base, epoch in epochs.items() if epoch)), tuple(openings)


def in_epochs(segment: SegmentFacts, epochs: Iterable[QueueKey]) -> SegmentFacts:
    """The segment's facts with its queues in the given epochs."""
    newest = {key.in_epoch(0): key for key in epochs}
    if not newest:
        return segment

    def rename(key: QueueKey) -> QueueKey:
        return newest.get(key, key)

    ends = {rename(key): one for key, one in segment.ends.items()}
    return replace(
        segment, offsets=segment.offsets.rekeyed(rename), ends=ends, finished=segment.finished.rekeyed(rename)
    )


def tops_after(
    tops: Mapping[QueueKey, Top], segments: Iterable[SegmentFacts], since: Mapping[QueueKey, int]
) -> dict[QueueKey, Top]:
    """The tops with what these segments (in their epochs) bring; `since`: of epochs that begin with them (`Top.since_us`)."""
    after = dict(tops)
    for segment in segments:
        for key, ends in segment.ends.items():
            top = after.get(key, Top(-1, -1, since.get(key, 0)))
            after[key] = Top(max(top.offset, ends.last_offset), max(top.stored_us, ends.last_us), top.since_us)
    return after
