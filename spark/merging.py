"""Which small files of a table are merged into one, of Delta's and Iceberg's. Pure: the files and the bounds are handed in.

A file is merged with files of its partition and of about its size (of one tier, each TIER_BITS bits wide), so that a row is
written anew once a tier and not with every merge. A group is worth a merge when it has FILES_LEAST files, or when what it
makes is a file that is not small any more. A group that can't be merged is dropped, and keeps no other one from it.

Who asks for it once, and not behind every few commits, has all small files merged: the tiers and the number are for rows that
would be written anew again and again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

FILES_LEAST: Final = 8
TIER_BITS: Final = 3
FLOOR_BYTES: Final = 64 * 1024
"""Below that a Parquet file is mostly its own description: all such files are of one tier."""
LOOKS_MAX: Final = 4
"""How often groups are chosen where none of those before could be merged."""


@dataclass(frozen=True, slots=True)
class SmallFile:
    """One data file of a table's newest version. `partition`: equal for files that may be merged with each other."""

    path: str
    bytes: int
    rows: int
    partition: Hashable = ()
    made_ms: int = 0


@dataclass(frozen=True, slots=True)
class MergeBounds:
    """What one look may merge. `file_bytes`, `file_rows`: of a file that a merge makes, at most and about; the others: of all
    files that are read. `tiered`: only files of about one size, `files_least` of them, where the result is small itself."""

    file_bytes: int
    file_rows: int = 10_000_000
    bytes_at_once: int = 64 * 1024 * 1024
    files_at_once: int = 1024
    files_least: int = FILES_LEAST
    tiered: bool = True

    @classmethod
    def all_small(cls, file_bytes: int) -> MergeBounds:
        """Whatever saves a file, at once."""
        return cls(file_bytes, bytes_at_once=sys.maxsize, files_at_once=sys.maxsize, files_least=2, tiered=False)

    @property
    def merged_bytes(self) -> int:
        """Of a merged file: what is read at once bounds that too."""
        return min(self.file_bytes, self.bytes_at_once)


def merge_groups(
    files: Iterable[SmallFile], bounds: MergeBounds, kind: Callable[[SmallFile], Hashable] = lambda _: None
) -> list[list[SmallFile]]:
    """The groups to be merged into one file each, within the bounds; the smallest files first, as those save most.

    A group is of one partition and one `kind`, its oldest file first. Nothing to do: no group. `kind` may be costly: it is
    asked for where there would be something to do if all were of one, as without that there is nothing with it either.
    """
    alike: dict[tuple[int, Hashable], list[SmallFile]] = {}
    for one in files:
        if _is_small(one, bounds):
            alike.setdefault((tier_of(one.bytes) if bounds.tiered else 0, one.partition), []).append(one)
    groups: list[list[SmallFile]] = []
    for several in alike.values():
        if _worth(several, bounds):
            of_kind: dict[Hashable, list[SmallFile]] = {}
            for one in several:
                of_kind.setdefault(kind(one), []).append(one)
            groups += [group for these in of_kind.values() for group in _worth(these, bounds)]
    chosen: list[list[SmallFile]] = []
    bytes_left, files_left = bounds.bytes_at_once, bounds.files_at_once
    for group in sorted(groups, key=lambda group: (tier_of(group[0].bytes), _age(group[0]))):
        size = sum(one.bytes for one in group)
        if size <= bytes_left and len(group) <= files_left:
            bytes_left, files_left = bytes_left - size, files_left - len(group)
            chosen.append(group)
    return chosen


def merge_each(
    files: Iterable[SmallFile],
    bounds: MergeBounds,
    merge: Callable[[Sequence[SmallFile]], bool],
    kind: Callable[[SmallFile], Hashable] = lambda _: None,
) -> list[Sequence[SmallFile]]:
    """The groups that `merge` has merged; False from it drops the group. Where none could be, the files behind those are
    looked at: a damaged file is chosen anew each time, and its group may be all that the bounds let through.
    """
    left = list(files)
    for _ in range(LOOKS_MAX):
        groups = merge_groups(left, bounds, kind)
        if merged := [group for group in groups if merge(group)]:
            return list(merged)
        if not groups:
            break
        dropped = {one.path for group in groups for one in group}
        left = [one for one in left if one.path not in dropped]
    return []


def _age(one: SmallFile) -> tuple[int, str]:
    return one.made_ms, one.path


def tier_of(size: int) -> int:
    """0 for what is below FLOOR_BYTES; each further one is 1 << TIER_BITS times as large."""
    return ((size // FLOOR_BYTES).bit_length() + TIER_BITS - 1) // TIER_BITS


def _is_small(one: SmallFile, bounds: MergeBounds) -> bool:
    return one.bytes < bounds.merged_bytes // 2 and one.rows < bounds.file_rows // 2


def _worth(files: Iterable[SmallFile], bounds: MergeBounds) -> list[list[SmallFile]]:
    """Neighbours that fit into one file together, where that is worth a merge."""
    groups: list[list[SmallFile]] = []
    size = rows = 0
    for one in sorted(files, key=_age):
        size, rows = size + one.bytes, rows + one.rows
        last = groups[-1] if groups else None
        if last and size <= bounds.merged_bytes and rows <= bounds.file_rows and len(last) < bounds.files_at_once:
            last.append(one)
        else:
            groups.append([one])
            size, rows = one.bytes, one.rows
    return [group for group in groups if _is_worth(group, bounds)]


def _is_worth(group: Sequence[SmallFile], bounds: MergeBounds) -> bool:
    if len(group) >= bounds.files_least:
        return True
    large = 2 * sum(one.bytes for one in group) >= bounds.merged_bytes
    long = 2 * sum(one.rows for one in group) >= bounds.file_rows
    return len(group) > 1 and (large or long)
