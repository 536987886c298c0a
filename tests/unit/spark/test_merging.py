"""Which small files are merged: few of them stay, a row is written anew seldom, and partitions stay apart."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from rocketcrew.spark.merging import FILES_LEAST, FLOOR_BYTES, MergeBounds, SmallFile, merge_groups, tier_of

MIB = 1 << 20
BOUNDS = MergeBounds(file_bytes=32 * MIB, file_rows=1_000_000, bytes_at_once=64 * MIB, files_at_once=100)


def small(number: int, size: int = 1000, partition: str = "", rows: int = 1) -> SmallFile:
    return SmallFile(f"f{number}", size, rows, partition, number)


@pytest.mark.parametrize("seed", range(60))
def test_every_group_keeps_the_bounds_and_no_file_is_in_two(seed: int) -> None:
    dice = random.Random(seed)
    files = [
        small(n, int(2 ** dice.uniform(0, 27)), dice.choice("abc"), dice.choice((0, 1, 1000, 300_000)))
        for n in range(dice.randrange(600))
    ]
    groups = merge_groups(dice.sample(files, len(files)), BOUNDS)
    assert groups == merge_groups(files, BOUNDS), "the order in which a log lists them does not matter"
    chosen = [one for group in groups for one in group]
    assert len(set(chosen)) == len(chosen) <= BOUNDS.files_at_once
    assert sum(one.bytes for one in chosen) <= BOUNDS.bytes_at_once
    for group in groups:
        assert len(group) > 1
        assert len({(one.partition, tier_of(one.bytes)) for one in group}) == 1
        assert sum(one.bytes for one in group) <= BOUNDS.file_bytes
        assert sum(one.rows for one in group) <= BOUNDS.file_rows
        assert [one.made_ms for one in group] == sorted(one.made_ms for one in group)


@pytest.mark.parametrize("seed", range(10))
def test_merging_comes_to_an_end_and_keeps_every_row(seed: int) -> None:
    dice = random.Random(seed)
    files = [small(n, dice.randrange(1, 40 * MIB), dice.choice("ab"), dice.randrange(5)) for n in range(300)]
    rows = sum(one.rows for one in files)
    for look in range(len(files)):
        if not (groups := merge_groups(files, BOUNDS)):
            break
        files = merged(files, groups, look)
        assert sum(one.rows for one in files) == rows
    assert merge_groups(files, BOUNDS) == []
    assert max(Counter((one.partition, tier_of(one.bytes)) for one in files if one.bytes < 16 * MIB).values()) < 8


def merged(files: list[SmallFile], groups: list[list[SmallFile]], look: int) -> list[SmallFile]:
    gone = {one for group in groups for one in group}
    made = [
        replace(
            group[0],
            path=f"m{look}-{number}",
            bytes=sum(one.bytes for one in group),
            rows=sum(one.rows for one in group),
        )
        for number, group in enumerate(groups)
    ]
    return [one for one in files if one not in gone] + made


@pytest.mark.parametrize("size", [2_000, 200_000])
def test_of_many_small_commits_few_files_stay_and_a_row_is_written_anew_a_few_times(size: int) -> None:
    """Were the merged file merged again with each look, the bytes would grow with the square."""
    files: list[SmallFile] = []
    written = looked_at = 0
    for number in range(10_000):
        files.append(small(number, size))
        if number % 32 == 31:
            looked_at += len(files)
            groups = merge_groups(files, BOUNDS)
            written += sum(one.bytes for group in groups for one in group)
            files = merged(files, groups, number)
    assert len(files) <= 32 + 8 * 5 + 10_000 * size // (BOUNDS.file_bytes // 2)
    assert written <= 6 * 10_000 * size
    assert looked_at <= 4 * 10_000, "a look costs what is there, not what ever was"


def test_files_are_merged_when_there_are_enough_of_them_or_the_result_is_large() -> None:
    few = [small(n) for n in range(FILES_LEAST - 1)]
    assert merge_groups(few, BOUNDS) == []
    assert merge_groups([*few, small(99)], BOUNDS) == [[*few, small(99)]]
    halves = [small(n, 10 * MIB) for n in range(2)]
    assert merge_groups(halves, BOUNDS) == [halves]
    assert merge_groups([small(n, 20 * MIB) for n in range(3)], BOUNDS) == [], "these are large enough"


def test_partitions_stay_apart_and_so_do_sizes() -> None:
    apart = [small(n, partition=f"day={n}") for n in range(100)]
    assert merge_groups(apart, BOUNDS) == []
    one_large = [small(0, MIB), *(small(n) for n in range(1, FILES_LEAST + 1))]
    assert merge_groups(one_large, BOUNDS) == [one_large[1:]]


def test_what_a_file_is_is_asked_only_where_there_is_something_to_merge() -> None:
    asked: list[SmallFile] = []

    def kind(one: SmallFile) -> int:
        asked.append(one)
        return one.made_ms % 2

    few = [small(n, partition="few") for n in range(FILES_LEAST - 1)]
    large = [small(n, 20 * MIB, "large") for n in range(100)]
    assert merge_groups([*few, *large], BOUNDS, kind) == []
    assert asked == []
    many = [small(n, partition="many") for n in range(2 * FILES_LEAST)]
    assert merge_groups([*few, *large, *many], BOUNDS, kind) == [many[::2], many[1::2]]
    assert sorted(asked, key=many.index) == many


@pytest.mark.parametrize("bounds", [BOUNDS, MergeBounds.all_small(32 * MIB)])
@pytest.mark.parametrize("seed", range(30))
def test_files_of_two_kinds_are_merged_as_those_of_two_partitions(seed: int, bounds: MergeBounds) -> None:
    dice = random.Random(seed)
    count = dice.randrange(1, 80)
    files = [
        small(n, int(2 ** dice.uniform(0, 25)), dice.choice("ab"), dice.choice((0, 1, 300_000))) for n in range(count)
    ]
    kinds = {one.path: dice.choice("xy") for one in files}
    apart = merge_groups([replace(one, partition=(one.partition, kinds[one.path])) for one in files], bounds)
    found = merge_groups(files, bounds, lambda one: kinds[one.path])
    assert [[one.path for one in group] for group in found] == [[one.path for one in group] for group in apart]


def test_a_row_limit_bounds_files_of_much_compressed_rows() -> None:
    files = [small(n, rows=400_000) for n in range(20)]
    assert [len(group) for group in merge_groups(files, BOUNDS)] == [2] * 10


def test_the_smallest_files_go_first_when_not_all_may() -> None:
    tiny, larger = [small(n) for n in range(60)], [small(n, MIB) for n in range(100, 160)]
    assert [set(group) for group in merge_groups([*larger, *tiny], BOUNDS)] == [set(tiny), set(larger[:32])]


def test_tiers_are_eight_times_as_large_each() -> None:
    assert [tier_of(size) for size in (0, FLOOR_BYTES - 1, FLOOR_BYTES, 8 * FLOOR_BYTES - 1, 8 * FLOOR_BYTES)] == [
        0, 0, 1, 1, 2,
    ]  # fmt: skip
