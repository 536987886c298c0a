"""What store times say of records that count as loaded: the proof that one which comes with such an offset is another. Pure.

A broker stores a queue in the order of its offsets. So of what was loaded, no record at or below an offset was stored
later than the latest of these: one that comes with such an offset and a later time is not among them, whatever the clocks
of brokers did. It is of a topic that was made again. The same holds from below: what was stored before all that was loaded
from an offset on is of another time of the topic too.

The newest record of a queue says that of all that is loaded (`Top`). It is not enough: where the first batch of a topic that
was made again lies above the old top, the new top is as new as the records below it, which come later. All of these were
stored in the time between the old top and the first record above it, from which nothing is loaded. So the state keeps the
*cuts* between records of which store times differ most. Each goes on being true whatever is loaded later. One that is dropped
makes no wrong proof, but takes one along: a record that only it told from what is loaded counts as a repeat.

This is certain of single records whose store times were seen when they were loaded. A piece of a segment has others beside
them, so what it seems to prove is asked of its loaded records (epochs.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, Final

from .plan import Cut, Ends, Top

CUTS_MAX: Final = 7
"""Of a queue's newest epoch, the one before its first record among them: about 30 bytes each in a state file."""
EARLIER_CUTS_MAX: Final = 2
"""Of the epoch before that, of which hardly anything comes."""
NO_TOP: Final = Top(-1, -1)


class Proof(Enum):
    """What store times say of a piece of a segment, compared with what is loaded of its queue."""

    NONE = "it may be the same"
    NEWER = "all of it was stored later than what has these offsets"
    OLDER = "all of it was stored before what has these offsets"
    MIXED = "part of it was"


def proof(top: Top, piece: Ends) -> Proof:
    """What is known of a piece by the queue's top and cuts."""
    if comes_behind(top, piece):
        return Proof.NONE  # the usual case: no cut lies so high, or is so late
    if newer_than(top, piece) is not None:
        return Proof.NEWER
    if any(piece.last_offset >= cut.above and piece.last_us < cut.from_us for cut in top.cuts):
        return Proof.OLDER
    mixed = any(piece.last_offset <= below and piece.last_us > until_us for below, until_us, *_ in _marks(top)) or any(
        piece.first_offset >= cut.above and piece.first_us < cut.from_us for cut in top.cuts
    )
    return Proof.MIXED if mixed else Proof.NONE


def comes_behind(top: Top, piece: Ends) -> bool:
    """Whether it is above all that is loaded, and was stored later."""
    return piece.first_offset > top.offset and piece.first_us >= top.stored_us


def newer_than(top: Top, piece: Ends) -> Cut | None:
    """The highest place up to which all that is loaded is older than the piece, which begins at or below it."""
    found = [mark for mark in _marks(top) if piece.first_offset <= mark.below and piece.first_us > mark.until_us]
    return max(found, default=None)


def above_all(top: Top, cut: Cut) -> bool:
    """Whether nothing is loaded above that place."""
    return cut.below >= top.offset


def _marks(top: Top) -> Iterator[Cut]:
    yield from top.cuts
    yield Cut(top.offset, top.stored_us, top.offset + 1, top.stored_us)


def top_with(top: Top, piece: Ends) -> Top:
    """The queue's top and cuts when the piece is loaded too."""
    if comes_behind(top, piece):
        cut = Cut(top.offset, top.stored_us, piece.first_offset, piece.first_us)
        return top._replace(offset=piece.last_offset, stored_us=piece.last_us, cuts=_with_last(top.cuts, cut))
    cuts = [after for cut in top.cuts for after in moved(cut, piece)]
    if piece.first_offset > top.offset:
        cuts.append(Cut(top.offset, top.stored_us, piece.first_offset, piece.first_us))
    since_us = min(top.since_us, piece.first_us)  # 0 stays: it did not begin because the topic was made again
    return Top(max(top.offset, piece.last_offset), max(top.stored_us, piece.last_us), since_us, longest(cuts, CUTS_MAX))


def top_with_pieces(top: Top, ends: Ends, pieces: Iterable[Ends]) -> Top:
    """The same for all pieces of a segment. As a rule they come in order, and none has a silence that is worth a cut."""
    if (
        len(top.cuts) >= CUTS_MAX
        and comes_behind(top, ends)
        and ends.last_us - top.stored_us < min([from_us - until_us for _, until_us, _, from_us in top.cuts])
    ):
        return Top(ends.last_offset, ends.last_us, top.since_us, top.cuts)
    for piece in pieces:
        top = top_with(top, piece)
    return top


def _with_last(cuts: tuple[Cut, ...], cut: Cut) -> tuple[Cut, ...]:
    """The longest of them where `cut` lies above all others, which stay as they are."""
    if cut.from_us <= cut.until_us:
        return cuts
    if len(cuts) < CUTS_MAX:
        return (*cuts, cut)
    shortest = min(cuts, key=_length)
    return cuts if _length(cut) < _length(shortest) else (*(one for one in cuts if one is not shortest), cut)


def _length(cut: Cut) -> tuple[int, int]:
    return cut.from_us - cut.until_us, cut.below


def moved(cut: Cut, piece: Ends) -> Iterator[Cut]:
    """The cut, moved by what is loaded now; two where the piece lies between."""
    until_us, from_us = max(cut.until_us, piece.last_us), min(cut.from_us, piece.first_us)
    lower, upper = piece.first_offset <= cut.below, piece.last_offset >= cut.above
    if lower and upper:
        yield Cut(cut.below, until_us, cut.above, from_us)
    elif lower:
        yield Cut(max(cut.below, piece.last_offset), until_us, cut.above, cut.from_us)
    elif upper:
        yield Cut(cut.below, cut.until_us, min(cut.above, piece.first_offset), from_us)
    else:
        yield Cut(cut.below, cut.until_us, piece.first_offset, from_us)
        yield Cut(piece.last_offset, until_us, cut.above, cut.from_us)


def longest(cuts: Iterable[Cut], most: int) -> tuple[Cut, ...]:
    """Those with the longest silence, by offset; none without any."""
    silent = {cut for cut in cuts if cut.from_us > cut.until_us}
    by_length = sorted(silent, key=_length, reverse=True)
    return tuple(sorted(by_length[:most]))


def divided(top: Top, above: int, since_us: int) -> tuple[Top, Top]:
    """The tops of an epoch and of the next one, which inherits what is loaded from `above` on; together they had `top`.

    The one before keeps what proves that, however long the silences inside the new topic are: what lies above is not its own.
    """
    first = max(cut for cut in top.cuts if cut.above <= above)
    lower = tuple(cut for cut in top.cuts if cut.above <= first.below)
    upper = tuple(cut for cut in top.cuts if cut.below >= above)
    before = Top(first.below, first.until_us, top.since_us, lower)
    return before, Top(top.offset, top.stored_us, since_us, (Cut(-1, -1, above, first.from_us), *upper))


def cuts_to_json(top: Top) -> list[int]:
    """Four numbers for each cut, short ones."""
    return [
        number
        for cut in top.cuts
        for number in (
            top.offset - cut.below, top.stored_us - cut.until_us, cut.above - cut.below, cut.from_us - cut.until_us,
        )
    ]  # fmt: skip


def with_cuts(top: Top, numbers: Iterable[Any]) -> Top:
    """The top with the cuts that `cuts_to_json` wrote. Raises ValueError or TypeError for anything else."""
    flat = [int(number) for number in numbers]
    parts = zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
    cuts = (
        Cut(top.offset - below, top.stored_us - until, top.offset - below + above, top.stored_us - until + silence)
        for below, until, above, silence in parts
    )
    return top._replace(cuts=tuple(cuts))
