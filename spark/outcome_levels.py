"""The outcomes of a table's commits: one immutable file a commit, merged in levels, forgotten by age.

    <first>-<last>.<level>.json.gz     the outcomes of these batches, in the table's folder of outcomes
    0-<last>.forgotten.json.gz         of these only the number of rows, which offsets they were about, and which were
                                       not delivered
    <first>-<last>.damaged             the file of these batches as it was found: it ends whoever reads all, until it is whole

Merged files cover the numbers from the lowest up without a hole, so a commit's own file counts exactly when its number is
above all of them. A merged file is on the disk under its name before the first of its parts is deleted: whoever dies leaves
parts that nobody reads, and the next pass deletes them.

There is no lock. A file that was merged away must not look like one that somebody has deleted: who lists the commits' own
files looks at the merged ones again after it, and begins anew when they have changed. So two loaders that merge the same
parts write the same file, or one of them writes none. A reader that finds a listed part gone lists anew.

A damaged file would keep its group from being merged, and so all above it, for merged files have no hole between them: the
files of a table would grow for ever. So a merge sets it aside under the other name, and writes one of the top level in its
place that knows nothing (`UNKNOWN`). That one is merged with no other, so it stays known which batches are unknown: a whole
copy under any name that these batches ever had (`_copies`) is read in its stead from then on, and the next pass writes what
it says into that file.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Final, NamedTuple

from ..client.logs import get_logger
from ..durable.intervals import IntervalSet, OffsetSet
from ..durable.outcomes import FORGOTTEN, PASSED, ROWS, UNDELIVERED, BatchOutcomes, DamagedOutcomesError, Outcomes
from .errors import LoaderError
from .object_store import Place, write_whole

SUFFIX: Final = ".json.gz"
FAN: Final = 32
"""Files of one level that become one of the next: a table has at most FAN - 1 of each below the top."""
LEVEL_MAX: Final = 2
"""A file covers FAN ** LEVEL_MAX = 1024 commits at most: about nine hours at one in 30 s, so age is known well enough."""
SPAN: Final = FAN**LEVEL_MAX
"""Commits of one file of the top level."""
GROUPS_A_PASS_MAX: Final = 8
"""Merges of one pass, so that many files that wait, as after damage, hold up no commit for long."""
FORGOTTEN_PIECES_MAX: Final = 1024
"""Intervals of one queue that are kept of what was forgotten, the highest ones. Joined, they would name what nobody did."""
DRAFT_S: Final = 3600.0
"""Age at which the draft of a file is nobody's any more."""
READS_MAX: Final = 5
"""Listings of one reading, each because a part was merged away under it."""
UNKNOWN: Final = BatchOutcomes(None, Outcomes())
"""Of a commit whose file is gone, or of batches whose file was damaged."""
_FORGOTTEN_LEVEL: Final = LEVEL_MAX + 1
_DAMAGED_LEVEL: Final = -1
_NAME: Final = re.compile(rf"(\d+)-(\d+)\.(\d+|forgotten){re.escape(SUFFIX)}")
_DAMAGED_NAME: Final = re.compile(r"(\d+)-(\d+)\.damaged")
"""Without the suffix of the others: what has that, and is no merged file, is a commit's own."""


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A file with the outcomes of the batches `first` to `last`; level 0 is one commit's own. `path` None: it has none."""

    first: int
    last: int
    level: int
    path: Place | None


class DamagedPartError(LoaderError):
    """A file of outcomes is not what was written."""


class Found(NamedTuple):
    """What lies in the folder, but for commits' own files: merged ones that count, those that lie in others, damaged ones."""

    merged: list[Part]
    covered: list[Part]
    damaged: list[Part]


Piece = list[tuple[Part, BatchOutcomes | None]]
"""Parts that become one file, with what they say; None of a damaged one."""
Singles = Callable[[int], Iterable[Part]]
"""The commits' own files with numbers above the given one, up to the newest commit, in order."""
Which = Callable[[Sequence[Part]], Part]
"""Of several own files of one number, the one of the plan that became it. Raises LoaderError when that is unknown."""


def merges(parts: Sequence[Part], fan: int = FAN) -> list[list[Part]]:
    """Which of the parts, in order of their numbers, become one file of the next level each. Pure."""
    for level in range(LEVEL_MAX):
        same = [part for part in parts if part.level == level]
        groups = [same[at : at + fan] for at in range(0, len(same) - fan + 1, fan)]
        if groups:
            return groups[:GROUPS_A_PASS_MAX]
    return []


class OutcomeLevels:
    """The outcomes of one table, in `folder`; `singles` finds what the commits wrote themselves."""

    def __init__(self, folder: Place, singles: Singles, fan: int = FAN, which: Which | None = None) -> None:
        """`which` is asked where a plan that lost its number may have left a file."""
        self._folder = folder
        self._singles = singles
        self._fan = fan
        self._which = which

    def parts(self) -> list[Part]:
        """What is to be read, in order of the numbers. Raises LoaderError."""
        return list(self._counting())

    def _counting(self) -> Iterator[Part]:
        for _, group in groupby(self._listed(), key=lambda part: (part.first, part.level)):
            same = list(group)
            yield self._which(same) if len(same) > 1 and self._which else same[0]

    def _listed(self) -> list[Part]:
        merged = self._merged().merged
        for _ in range(READS_MAX):
            own = list(self._singles(merged[-1].last if merged else 0))
            before, merged = merged, self._merged().merged
            if merged == before:  # else a file that seems to lack may have been merged away meanwhile
                return sorted([*merged, *own], key=lambda part: (part.first, -part.level))
        raise self._restless()

    def read(self, above: int = 0) -> list[BatchOutcomes]:
        """All outcomes that are kept; rows None: of batches whose outcomes are gone. Raises LoaderError.

        `above`: only of batches with higher numbers; a merged file that has one of them is read whole.
        """
        return [told for _, told in self.told(above)]

    def told(self, above: int = 0) -> list[tuple[Part, BatchOutcomes]]:
        """The same, and which file says it."""
        for _ in range(READS_MAX):
            with contextlib.suppress(FileNotFoundError):
                return list(self._told([part for part in self.parts() if part.last > above]))
        raise self._restless()

    def _told(self, parts: Iterable[Part]) -> Iterator[tuple[Part, BatchOutcomes]]:
        found: Found | None = None
        for part in parts:
            told = read_part(part)
            if told == UNKNOWN and part.path is not None:
                found = found or self._merged()
                copy = self._good_copy(part, found)
                told = copy[1] if copy else read_part(part)  # once more: a pass writes it before it deletes the copies
            yield part, told

    def _good_copy(self, part: Part, found: Found) -> tuple[Part, BatchOutcomes] | None:
        """Another file of the batches of a merged one, and what it says; None when there is none. Raises LoaderError when
        all of them are damaged."""
        damaged: DamagedPartError | None = None
        for copy in self._copies(part, found):
            try:
                return copy, read_part(copy)
            except DamagedPartError as error:
                damaged = error
        if damaged:
            raise damaged
        return None

    def _copies(self, part: Part, found: Found) -> Iterator[Part]:
        """Under the names of before, and under that which damaged ones get."""
        yield from (one for one in found.covered if (one.first, one.last) == (part.first, part.last))
        if part.first == part.last:
            own = list(takewhile(lambda one: one.first == part.first, self._singles(part.first - 1)))
            same = [one for one in own if one.path is not None]
            yield from [self._which(same)] if len(same) > 1 and self._which else same[:1]
        yield from (one for one in found.damaged if (one.first, one.last) == (part.first, part.last))

    def _restless(self) -> LoaderError:
        return LoaderError(f"{self._folder} changes faster than it can be read: try again")

    def tidy(self, now_s: float, keep_s: float) -> None:
        """One pass: merge what is due, forget what is older than `keep_s`, delete what is covered. Raises OSError.

        `now_s` is wall-clock time. What is damaged is set aside as it is, for whoever reads it to name.
        """
        self._heal()
        self._delete_covered()
        self._delete_drafts(now_s - DRAFT_S)
        try:
            self._merge()
        except FileNotFoundError:
            pass  # another loader was faster
        except LoaderError as error:
            _warn_once(str(self._folder), str(error))
        with contextlib.suppress(FileNotFoundError, LoaderError):
            self._forget(now_s - keep_s)

    def _heal(self) -> None:
        """Where a file knows nothing and a copy of it is whole: it gets what the copy says, and the copies go."""
        found = self._merged()
        hurt = {(one.first, one.last) for one in (*found.damaged, *found.covered)}
        for part in found.merged:
            if (part.first, part.last) in hurt or (part.level == LEVEL_MAX and part.first == part.last):
                with contextlib.suppress(FileNotFoundError, LoaderError):
                    self._heal_part(part, found)

    def _heal_part(self, part: Part, found: Found) -> None:
        assert part.path is not None
        if read_part(part) == UNKNOWN:
            copy = self._good_copy(part, found)
            if copy is None:
                return
            self._replace([copy[0]], part.path.name.removesuffix(SUFFIX), copy[1])
        for aside in found.damaged:
            if aside.path is not None and (aside.first, aside.last) == (part.first, part.last):
                aside.path.unlink(missing_ok=True)

    def _merge(self) -> None:
        for _ in range(LEVEL_MAX):
            parts = self._sure()
            for group in merges(parts, self._fan):
                higher = [part.first for part in parts if part.level > group[0].level]
                for piece in in_whole_pieces([(part, self._readable(part)) for part in group], higher):
                    self._merge_piece(piece)

    def _merge_piece(self, piece: Piece) -> None:
        told = [one for _, one in piece if one is not None]
        if told:
            first, last = piece[0][0], piece[-1][0]
            self._replace([part for part, _ in piece], f"{first.first}-{last.last}.{first.level + 1}", joined(told))
        else:
            for part, _ in piece:
                self._make_unknown(part)

    def _make_unknown(self, part: Part) -> None:
        self._replace([part], f"{part.first}-{part.last}.{LEVEL_MAX}", UNKNOWN)

    def _readable(self, part: Part) -> BatchOutcomes | None:
        """What the part says; None of a damaged one, of which a copy is on the disk under the other name then."""
        try:
            return read_part(part)
        except DamagedPartError as error:
            assert part.path is not None
            aside = self._folder / f"{part.first}-{part.last}.damaged"
            write_whole(aside, part.path.read_bytes())
            get_logger().error(
                "outcomes_set_aside", file=str(part.path), moved_to=str(aside), error=str(error.__cause__)
            )
            return None

    def _sure(self) -> list[Part]:
        """What is to be read, up to the first number of which it is unknown what is."""
        found: list[Part] = []
        try:
            for part in self._counting():
                found.append(part)  # noqa: PERF402 -- what was found before it raises is kept
        except LoaderError as error:
            _warn_once(str(self._folder), str(error))
        return found

    def _forget(self, before_s: float) -> None:
        """What was set aside is as old as that: there is as much time to put a good copy in its place."""
        merged, _, damaged = self._merged()
        old: list[Part] = []
        asides: list[Part] = []
        for part in merged:
            aside = [one for one in damaged if (one.first, one.last) == (part.first, part.last)]
            if part.level != _FORGOTTEN_LEVEL and any(_changed_s(one) >= before_s for one in (part, *aside)):
                break
            old.append(part)
            asides += aside
        if all(part.level == _FORGOTTEN_LEVEL for part in old):
            return
        told = [(part, self._readable(part)) for part in old]
        hurt = [part for part, one in told if one is None]
        for part in hurt:
            self._make_unknown(part)
        if not hurt:
            said = forgotten(joined([one for _, one in told if one is not None]))
            self._replace([*old, *asides], f"0-{old[-1].last}.forgotten", said)

    def _replace(self, parts: Sequence[Part], name: str, told: BatchOutcomes) -> None:
        """Write the file that has what `parts` have, then delete these; on a disk it is as old as the newest of them."""
        path = self._folder / f"{name}{SUFFIX}"
        newest = max((_changed_s(part) for part in parts if part.path is not None), default=0.0)
        write_whole(path, told.pack(), as_old_as=newest)
        for part in parts:
            if part.path is not None and part.path != path:
                part.path.unlink(missing_ok=True)

    def _delete_covered(self) -> None:
        merged, covered, damaged = self._merged()
        for aside in damaged:  # of the very batches of a merged one it is its copy (`_heal`)
            if any(one.first <= aside.first and aside.last <= one.last for one in merged) and not any(
                (one.first, one.last) == (aside.first, aside.last) for one in merged
            ):
                covered.append(aside)
        for part in covered:
            assert part.path is not None
            part.path.unlink(missing_ok=True)
        if merged:
            for part in self._singles(merged[-1].last - FAN):
                if part.path is not None and part.last <= merged[-1].last:
                    part.path.unlink(missing_ok=True)

    def _delete_drafts(self, before_s: float) -> None:
        """What a kill left of a file. By the time of its last change: drafts of merged files are dated back."""
        for draft in self._folder.glob(".*.new"):
            with contextlib.suppress(FileNotFoundError):
                if draft.stat().st_ctime < before_s:
                    draft.unlink()

    def _merged(self) -> Found:
        found: list[Part] = []
        damaged: list[Part] = []
        try:
            paths: list[Place] = [*self._folder.iterdir()]
        except FileNotFoundError:
            return Found([], [], [])
        for path in paths:
            if match := _DAMAGED_NAME.fullmatch(path.name):
                damaged.append(Part(int(match[1]), int(match[2]), _DAMAGED_LEVEL, path))
            elif match := _NAME.fullmatch(path.name):
                level = _FORGOTTEN_LEVEL if match[3] == "forgotten" else int(match[3])
                found.append(Part(int(match[1]), int(match[2]), level, path))
        counting: list[Part] = []
        covered: list[Part] = []
        for part in sorted(found, key=lambda one: (one.first, -one.last, -one.level)):
            (covered if counting and part.last <= counting[-1].last else counting).append(part)
        return Found(counting, covered, damaged)


def _changed_s(part: Part) -> float:
    assert part.path is not None
    return part.path.stat().st_mtime


@functools.cache
def _warn_once(folder: str, said: str) -> None:
    get_logger().warning("outcomes_not_merged", folder=folder, error=said)


def check_whole(told: Iterable[BatchOutcomes], *, passed: bool = False) -> None:
    """Raise LoaderError when outcomes of a batch are gone that may say that a hole was filled. In order of the batches.

    `passed`: a hole was passed before the first of them.
    """
    for one in told:
        if passed and one.rows is None:
            raise LoaderError(
                "the table's outcomes of some batch are gone, so it is unknown which records are in the table."
                " Put the file back (_outcomes.json.gz of a batch's folder, or _rocketcrew/outcomes/). Where that does not"
                " help, as it was not there when others were merged, load into a new table (spark.target)"
            )
        passed = passed or bool(one.outcomes.of_kind(PASSED))


def in_whole_pieces(found: Iterable[tuple[Part, BatchOutcomes | None]], higher: Collection[int] = ()) -> list[Piece]:
    """Cut where one file would hide what several that follow each other show. Pure.

    - A damaged part (None) is alone, so that a good copy has a file to take the place of.
    - So is what lies on the two sides of a part of a higher level, given by its first number: it came to be in this way.
    - Where outcomes are gone that may say that a hole before them was filled (`check_whole`) a new piece begins.
    """
    pieces: list[Piece] = []
    passed = False
    for part, told in found:
        before, one_before = pieces[-1][-1] if pieces else (None, None)
        lost = told is None or one_before is None or (passed and told.rows is None)
        if before is None or lost or any(before.last < number < part.first for number in higher):
            pieces.append([])
            passed = False
        pieces[-1].append((part, told))
        passed = passed or (told is not None and bool(told.outcomes.of_kind(PASSED)))
    return pieces


def forgotten(told: BatchOutcomes) -> BatchOutcomes:
    """Of these outcomes, what outlives them: the number of rows, the offsets that they were about, and which of these nobody
    delivered, for age explains none. Where they are too many, the lowest are not among those that are forgotten either."""
    kinds = told.outcomes.kinds
    undelivered = told.outcomes.of_kind(UNDELIVERED) - told.outcomes.of_kind(ROWS)
    about = OffsetSet.union(records for kind, records in kinds.items() if kind not in (PASSED, UNDELIVERED))
    named = _highest(undelivered)
    kept = _highest(about - (undelivered - named))
    return BatchOutcomes(told.rows, Outcomes.of([(FORGOTTEN, kept), (UNDELIVERED, named)]))


def _highest(records: OffsetSet) -> OffsetSet:
    return OffsetSet.of(
        (key, IntervalSet(offsets.pieces[-FORGOTTEN_PIECES_MAX:])) for key, offsets in records.queues.items()
    )


def joined(told: Sequence[BatchOutcomes]) -> BatchOutcomes:
    """What several files say together."""
    rows = [one.rows for one in told]
    known = [count for count in rows if count is not None]
    return BatchOutcomes(sum(known) if len(known) == len(rows) else None, Outcomes.union(one.outcomes for one in told))


def read_part(part: Part) -> BatchOutcomes:
    """What the file says. Raises FileNotFoundError, LoaderError."""
    path = part.path
    if path is None:
        return UNKNOWN
    try:
        return BatchOutcomes.unpack(path.read_bytes())
    except DamagedOutcomesError as error:
        raise DamagedPartError(
            f"{path} can't be used: {error}. Put a good copy in its place, or move it away to go on without what it explains"
        ) from error
    except ValueError as error:
        raise LoaderError(
            f"{path} can't be used: {error}. Load with the version that wrote it, or a newer one"
        ) from None
