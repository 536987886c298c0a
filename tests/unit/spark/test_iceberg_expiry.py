"""Old snapshots of an Iceberg table are expired as the table itself says, and nothing that somebody else needs."""

from __future__ import annotations

import time
from typing import Any

import pytest
from loader_world import World
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.update import RemoveSnapshotsUpdate

from rocketcrew.spark.iceberg_catalog import (
    AGE_MAX,
    EXPIRED_MAX,
    LEAST,
    Kept,
    Retention,
    catalog_of,
    expirable,
    retention,
)
from rocketcrew.spark.outcome_levels import FAN
from rocketcrew.spark.targets.iceberg import PROPERTIES, IcebergTarget
from rocketcrew.spark.targets.iceberg_commits import commit_table, requirements, unchanged

TABLES = ("iceberg",)

HOUR = 3_600_000


def branch_at(snapshot: int, least: int | None = None, age_ms: int | None = None) -> SnapshotRef:
    made: Any = SnapshotRef  # it takes names that type checkers do not see
    found: SnapshotRef = made(
        snapshot_id=snapshot, snapshot_ref_type=SnapshotRefType.BRANCH, min_snapshots_to_keep=least,
        max_snapshot_age_ms=age_ms,
    )  # fmt: skip
    return found


def test_only_our_old_snapshots_are_expired_and_so_their_number_is_bounded() -> None:
    """1500 batches, one in 30 s; each FAN batches what is older than the table's six hours goes."""
    kept: list[Kept] = []
    most = 0
    for batch in range(1, 1501):
        kept.append(Kept(batch, batch * 30_000, batch, batch - 1))
        if batch % FAN == 0:
            keep = retention(PROPERTIES, {"main": branch_at(batch)}, batch * 30_000)
            assert keep is not None
            gone = expirable(kept, keep, batch, batch)
            assert gone == sorted(gone)
            kept = [one for one in kept if one.id not in gone]
            assert kept[0].made_ms >= batch * 30_000 - 21_600_000
        most = max(most, len(kept))
    assert most <= 720 + FAN
    mine, foreign, named, unfolded, young, ours = (
        Kept(1, 1, 1), Kept(2, 2, None), Kept(3, 3, 3), Kept(4, 4, 9), Kept(5, 5, 5), Kept(6, 1, 8),
    )  # fmt: skip
    keep = Retention(frozenset({3}), (), 5)
    assert expirable([young, unfolded, named, foreign, mine, ours], keep, 6, 8) == [1]
    many = [Kept(number, number, 1) for number in range(EXPIRED_MAX + 9)]
    assert expirable(many, Retention(frozenset(), (), 10**6), -1, 8) == list(range(EXPIRED_MAX))


@pytest.mark.parametrize(
    ("properties", "main", "gone"),
    [
        ({}, branch_at(200), []),  # Iceberg's default, five days
        ({AGE_MAX: str(6 * HOUR)}, branch_at(200), [*range(1, 94), *range(101, 111)]),
        ({AGE_MAX: str(6 * HOUR), "gc.enabled": "false"}, branch_at(200), None),
        ({AGE_MAX: str(6 * HOUR), "gc.enabled": "FALSE"}, branch_at(200), None),
        ({AGE_MAX: "0"}, branch_at(200), [*range(1, 100), *range(101, 111)]),
        (
            {AGE_MAX: "0", LEAST: "10"},
            branch_at(200), [*range(1, 91), 101],
        ),
        ({AGE_MAX: "0"}, branch_at(200, least=4), [*range(1, 97), *range(101, 111)]),
        (
            {AGE_MAX: "0", LEAST: "3"},
            branch_at(200, least=2), [*range(1, 98), *range(101, 109)],
        ),
        ({AGE_MAX: "0"}, branch_at(200, age_ms=7 * HOUR), [*range(1, 93), *range(101, 111)]),
        ({AGE_MAX: str(9 * HOUR)}, branch_at(200, age_ms=1), [*range(1, 91), *range(101, 111)]),
    ],
)  # fmt: skip
def test_the_table_and_its_branches_say_what_stays(
    properties: dict[str, str], main: SnapshotRef, gone: list[int] | None
) -> None:
    """`main` has a batch of each hour, 1 to 99 and 200; ten of the first hour are on a branch `other` of somebody's."""
    now_ms = 100 * HOUR
    chain = [Kept(hour, hour * HOUR, 1, hour - 1) for hour in range(1, 100)]
    other = [Kept(100 + number, HOUR, 1, 99 + number) for number in range(2, 11)]
    other.append(Kept(101, HOUR, 1, 50))
    other.append(Kept(111, HOUR, 1, 110))
    keep = retention(properties, {"main": main, "other": branch_at(111)}, now_ms)
    assert (keep is None) == (gone is None)
    if keep is not None:
        found = expirable([*chain, *other, Kept(200, now_ms, 1, 99)], keep, 200, 1)
        assert sorted(found) == gone


def test_the_metadata_does_not_grow_with_the_batches(world: World) -> None:
    """What others have appended or named stays; what is in the table does, too."""

    def load(*offsets: int) -> None:
        for offset in offsets:
            world.seal([world.helpers.Record(offset)])
            target = IcebergTarget(world.table, catalog_of(world.table, {}), now_s=lambda: time.time() + 7 * 3600)
            world.drain(world.loader(target=target))

    load(1, 2)
    table = world.target().table()
    named = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_tag(named, "audit").commit()
    load(*range(3, FAN))
    assert len(world.target().table().metadata.snapshots) == FAN, (
        "one a batch, and the one with which the table was made"
    )
    load(FAN, FAN + 1)
    table = world.target().table()
    assert len(table.metadata.snapshots) == 3
    assert table.refs()["audit"].snapshot_id == named
    assert len(list((world.table / "metadata").glob("*.metadata.json"))) <= 11
    world.assert_exact()


@pytest.mark.parametrize("name", ["audit", "made-before"])
def test_a_tag_that_is_made_or_moved_while_snapshots_are_expired_stays(world: World, name: str) -> None:
    world.seal([world.helpers.Record(1)])
    world.drain(world.loader())
    old = world.target().table().current_snapshot().snapshot_id
    world.seal([world.helpers.Record(2)])
    world.drain(world.loader())
    target = world.target()
    newest = target.table().current_snapshot().snapshot_id
    target.table().manage_snapshots().create_tag(newest, "made-before").commit()
    table = target.table()
    needed = (*requirements(table, table.metadata.refs), *unchanged(table))
    changing = world.target().table().manage_snapshots()
    if name in table.refs():
        changing = changing.remove_tag(name)
    changing.create_tag(old, name).commit()
    removes: Any = RemoveSnapshotsUpdate
    with pytest.raises(CommitFailedException):
        commit_table(table, needed, (removes(snapshot_ids=[old]),))
    assert world.target().table().refs()[name].snapshot_id == old
    world.target().table().manage_snapshots().remove_tag(name).commit()
    table = target.table()
    commit_table(table, (*requirements(table, table.metadata.refs), *unchanged(table)), (removes(snapshot_ids=[old]),))
    assert old not in [one.snapshot_id for one in world.target().table().metadata.snapshots]
    world.assert_exact()
