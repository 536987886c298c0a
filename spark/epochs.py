"""Epochs of a queue: when its offsets begin anew, its rows are loaded although the loaded set knows these numbers. Pure.

Two things open one. A topic that was deleted and made again: a record whose offset is loaded already, but which was stored
later than all that is loaded up to that offset, or one above it, can only be another record (cuts.py). And a deliberate
re-run: `rocketcrew reset --reprocess` asks for it by a file beside the segments, which names those that were sealed before.

The first segment of a topic made again may lie above all that was loaded: then it counts as more of the topic before. When
the lower ones come, their epoch *inherits* it. A segment with records that are known not to be loaded, and that cannot be put
into an epoch without losing some or taking others twice, is unclear: it is set aside, and named.

A plan has one epoch for each queue. Segments of before and after an opening are planned apart, those of before first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from ..conf.segment_format import REQUEST_VERSION
from ..durable.intervals import IntervalSet, OffsetSet, QueueKey
from ..durable.versions import check_version
from .cuts import NO_TOP, Proof, above_all, comes_behind, divided, newer_than, proof, top_with_pieces
from .plan import Ends, SegmentFacts, Top

_NOTHING = OffsetSet()


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
    def from_json(cls, text: bytes, where: object = "the request for epochs") -> EpochRequest:
        """What `to_json` wrote. Raises LaterVersionError for that of a later version, ValueError for anything else."""
        try:
            data: dict[str, Any] = json.loads(text)
            check_version(data["version"], REQUEST_VERSION, where)
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
    """A queue that begins anew: its key in the new epoch, and what shows it.

    `inherits`: from this offset on, what the epoch before has is of the new one too; None: nothing is.
    """

    key: QueueKey
    ends: Ends
    top: Top
    inherits: int | None = None


class Stretch(NamedTuple):
    """The segments to plan next, and the epochs in which they are; `openings` are among them.

    `unclear`: why the first segment can be in none, although it has records that are not loaded: it is alone then.
    """

    length: int
    epochs: tuple[QueueKey, ...]
    openings: tuple[Opening, ...]
    unclear: str = ""


class UnclearError(Exception):
    """Records of a segment are not those that have these offsets in the table, and nobody can tell of which epoch they
    are."""


def opened(queues: Iterable[QueueKey]) -> dict[QueueKey, int]:
    """The newest epoch of each queue that is not in its first, by its key in epoch 0."""
    newest: dict[tuple[str, str, str, int], int] = {}
    for group, topic, broker, queue_id, epoch in queues:
        if epoch > newest.get(base := (group, topic, broker, queue_id), 0):
            newest[base] = epoch
    return {QueueKey(*base): epoch for base, epoch in newest.items()}


Times = Callable[[str, QueueKey, IntervalSet], Iterable[Ends]]
"""Records of a queue (in epoch 0) in the segment of that name, each with its own store time."""


def next_stretch(
    segments: Sequence[SegmentFacts],
    loaded: OffsetSet,
    tops: Mapping[QueueKey, Top],
    request: EpochRequest,
    times: Times,
) -> Stretch:
    """As many segments from the first one on as are in the same epochs. `segments` are as read: in epoch 0.

    Each is compared with those before it too: where a loader comes late, a topic and the one made again wait together.
    `times` is asked where the pieces of a segment do not agree with what is loaded: seldom.
    """
    current = _Current(opened(loaded.queues), request)
    first: tuple[QueueKey, ...] | None = None
    openings: tuple[Opening, ...] = ()
    known = _Known(loaded, dict(tops), times)
    for place, segment in enumerate(segments):
        try:
            epochs, found = _epochs_of(segment, current, known)
        except UnclearError as error:
            return Stretch(place, first or (), openings) if place else Stretch(1, (), (), str(error))
        if first is None:
            first, openings = epochs, found
            current = current.after(found)
            known.begin(first)
            for opening in found:
                known.tops |= begun(known.tops, opening.key, opening.ends.first_us, opening.inherits)
        elif epochs != first or found:
            return Stretch(place, first, openings)
        known.add(segment)
    return Stretch(len(segments), first or (), openings)


class _Current:
    """The epochs in which segments are that show nothing else: of all queues that ever began anew, so they are put together
    once for all segments."""

    def __init__(self, epochs: Mapping[QueueKey, int], request: EpochRequest) -> None:
        self._epochs = epochs
        self._request = request
        early, late = dict(epochs), dict(epochs)
        for key in request.queues:
            base = key.in_epoch(0)
            early[base] = min(early.get(base, 0), key.epoch - 1)
            late[base] = max(late.get(base, 0), key.epoch)
        self._early = early, _keys_of(early)
        self._late = late, _keys_of(late)

    def of(self, segment: SegmentFacts) -> tuple[Mapping[QueueKey, int], tuple[QueueKey, ...]]:
        """By keys in epoch 0, and as keys in order."""
        return self._early if segment.name in self._request.segments else self._late

    def after(self, openings: Iterable[Opening]) -> _Current:
        """These for the next segments."""
        found = {opening.key.in_epoch(0): opening.key.epoch for opening in openings}
        return _Current({**self._epochs, **found}, self._request) if found else self


def _keys_of(epochs: Mapping[QueueKey, int]) -> tuple[QueueKey, ...]:
    return tuple(sorted(base.in_epoch(epoch) for base, epoch in epochs.items() if epoch))


class _Known:
    """What is loaded, and what segments that are planned together bring before another one of them.

    Of these, offsets are put together only where store times are at odds: a plan has many segments.
    """

    def __init__(self, loaded: OffsetSet, tops: dict[QueueKey, Top], times: Times) -> None:
        self.tops = tops
        self._times = times
        self._loaded = loaded
        self._before: list[SegmentFacts] = []
        self._epochs: dict[QueueKey, QueueKey] = {}

    def begin(self, epochs: Iterable[QueueKey]) -> None:
        """Segments that are added are in these epochs."""
        self._epochs = {key.in_epoch(0): key for key in epochs}

    def add(self, segment: SegmentFacts) -> None:
        self._before.append(segment)
        for base in segment.ends:
            key = self._epochs.get(base, base)
            self.tops[key] = top_with_pieces(self.tops.get(key, NO_TOP), segment.ends[base], segment.pieces_of(base))

    def of(self, key: QueueKey, offsets: IntervalSet) -> IntervalSet:
        """Those of `offsets` that count as loaded in this epoch of the queue."""
        base = key.in_epoch(0)
        known = self._loaded.of_queue(key) & offsets
        if self._epochs.get(base, base) != key:
            return known
        before = (segment.offsets.of_queue(base) & offsets for segment in self._before)
        return IntervalSet.of([*known.pieces, *(piece for one in before for piece in one.pieces)])

    def proofs(self, segment: SegmentFacts, key: QueueKey, pieces: Iterable[Ends]) -> set[Proof]:
        """What store times say of those `pieces` of a queue of which records count as loaded in an epoch of it.

        A piece has records beside these, and its times may be of them alone: where a broker's clock was set back, a record
        that comes late looks newer than one above it. So no piece proves what its loaded records do not prove themselves.
        """
        top = self.tops.get(key)
        if top is None:
            return set()
        base = key.in_epoch(0)
        known = self.of(key, segment.offsets.of_queue(base))
        spans = [(piece, known & IntervalSet(((piece.first_offset, piece.last_offset + 1),))) for piece in pieces]
        found = {proof(top, piece) for piece, some in spans if some}
        if found <= {Proof.NONE}:
            return found
        asked = IntervalSet.of(span for _, some in spans for span in some.pieces)
        if all(proof(top, one) is Proof.NONE for one in self._times(segment.name, base, asked)):
            return {Proof.NONE}
        return found


def _epochs_of(
    segment: SegmentFacts, current: _Current, known: _Known
) -> tuple[tuple[QueueKey, ...], tuple[Opening, ...]]:
    """Raises UnclearError."""
    epochs, keys = current.of(segment)
    changed: dict[QueueKey, int] = {}
    openings: list[Opening] = []
    for base in segment.ends:
        key = base.in_epoch(epochs.get(base, 0))
        top = known.tops.get(key)
        if top is None:
            continue
        if (late := _of_before(segment, key, top, known)) is not None:
            changed[base] = late.epoch
            continue
        opening = _opening(segment, key, top, known)
        if opening is not None:
            openings.append(opening)
            changed[base] = opening.key.epoch
    return _keys_of({**epochs, **changed}) if changed else keys, tuple(openings)


def _of_before(segment: SegmentFacts, key: QueueKey, top: Top, known: _Known) -> QueueKey | None:
    """The epoch before `key` of which the segment is, where it was sealed late. Raises UnclearError."""
    base = key.in_epoch(0)
    pieces = segment.pieces_of(base)
    late = [piece for piece in pieces if piece.last_us < top.since_us]
    if not late:
        return None
    before = key.in_epoch(key.epoch - 1)
    proofs = known.proofs(segment, before, late)
    if proofs == {Proof.NEWER}:
        return None  # of the topic made again, and stored before what showed that
    if len(late) < len(pieces) and proofs:
        raise UnclearError(_unclear(key, "some were stored before the topic was made again, and some after"))
    if not proofs <= {Proof.NONE}:
        raise UnclearError(_unclear(key, "they were stored between two times at which the topic was made again"))
    if len(late) < len(pieces):
        return None
    began = known.tops.get(before, NO_TOP).since_us
    if segment.ends[base].last_us >= began:
        return before
    closed = key.in_epoch(before.epoch - 1)
    if known.of(closed, segment.offsets.of_queue(base)):
        raise UnclearError(_unclear(key, "the topic was made again twice since they were stored, or more often"))
    return closed


def _opening(segment: SegmentFacts, key: QueueKey, top: Top, known: _Known) -> Opening | None:
    """The epoch after `key`, if the segment is of it. Raises UnclearError."""
    base = key.in_epoch(0)
    pieces = segment.pieces_of(base)
    if comes_behind(top, segment.ends[base]) or all(proof(top, piece) is Proof.NONE for piece in pieces):
        return None  # the usual case, in which no sets are compared
    proofs = known.proofs(segment, key, pieces)
    if proofs <= {Proof.NONE}:
        return None
    if not proofs <= {Proof.NONE, Proof.NEWER} or any(one.last_us > other.first_us for one, other in pairwise(pieces)):
        raise UnclearError(_unclear(key, "all or some were stored before what the table has, or before others of them"))
    ends = segment.ends[base]
    cut = max(cut for cut in (newer_than(top, piece) for piece in pieces) if cut is not None)
    lower = (piece for piece in pieces if piece.first_offset <= cut.below)
    if known.proofs(segment, key, lower) != {Proof.NEWER} or (not above_all(top, cut) and cut.from_us < ends.first_us):
        raise UnclearError(_unclear(key, "what the table has around them is of the topic before and after"))
    return Opening(key.in_epoch(key.epoch + 1), ends, top, None if above_all(top, cut) else cut.above)


def _unclear(key: QueueKey, why: str) -> str:
    return (
        f"records of {key.topic} {key.broker} {key.queue_id} in it are other ones than the table has with their offsets, and"
        f" of no epoch: {why}. Was the topic made again, and more than once, the end of the queue lost in a failover, or the"
        " clock of its broker set back? To keep these rows, load the file into another table"
    )


def begun(tops: Mapping[QueueKey, Top], key: QueueKey, since_us: int, inherits: int | None) -> dict[QueueKey, Top]:
    """The top of the epoch `key` before its first segment, and that of the epoch from which it inherits something."""
    if inherits is None:
        return {key: NO_TOP._replace(since_us=since_us)}
    before = key.in_epoch(key.epoch - 1)
    return dict(zip((before, key), divided(tops[before], inherits, since_us), strict=True))


def inherited(openings: Iterable[Opening], loaded: OffsetSet) -> OffsetSet:
    """What the epochs that open begin with: what is loaded from an offset on of the epoch before."""
    return OffsetSet.of(
        (one.key, IntervalSet.of((max(start, one.inherits), stop) for start, stop in pieces))
        for one in openings
        if one.inherits is not None
        for pieces in [loaded.of_queue(one.key.in_epoch(one.key.epoch - 1)).pieces]
    )


def in_epochs(segment: SegmentFacts, epochs: Iterable[QueueKey]) -> SegmentFacts:
    """The segment's facts with its queues in the given epochs."""
    newest: dict[tuple[str, str, str, int, int], QueueKey] = {(*key[:4], 0): key for key in epochs}
    if not newest:
        return segment

    def rename(key: QueueKey) -> QueueKey:
        return newest.get(key, key)

    ends = {rename(key): one for key, one in segment.ends.items()}
    return replace(
        segment, offsets=segment.offsets.rekeyed(rename), ends=ends, finished=segment.finished.rekeyed(rename),
        pieces={rename(key): some for key, some in segment.pieces.items()},
    )  # fmt: skip


def tops_after(
    tops: Mapping[QueueKey, Top],
    segments: Iterable[SegmentFacts],
    since: Mapping[QueueKey, int],
    inherits: OffsetSet = _NOTHING,
) -> dict[QueueKey, Top]:
    """The tops with what these segments (in their epochs) bring; `since`: of epochs that begin with them (`Top.since_us`),
    `inherits`: what these epochs have of those before."""
    after = dict(tops)
    for key, since_us in since.items():
        if key not in after:
            pieces = inherits.of_queue(key).pieces
            after |= begun(tops, key, since_us, pieces[0][0] if pieces else None)
    for segment in segments:
        for key in segment.ends:
            after[key] = top_with_pieces(after.get(key, NO_TOP), segment.ends[key], segment.pieces_of(key))
    return after
