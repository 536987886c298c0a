"""A damaged file of outcomes: named by who reads it, and in nobody's way else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from loader_world import World
from structlog.testing import capture_logs

from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import FORGOTTEN, PASSED, ROWS, BatchOutcomes, Outcomes
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.outcome_levels import FAN, OutcomeLevels, check_whole, joined
from rocketcrew.spark.table_keys import table_facts
from rocketcrew.spark.table_state import ledger_outcomes

QUEUE = QueueKey("g", "orders", "broker-a", 0)
NOW_S = 10.0**9


def told(batch: int, *kinds: str) -> BatchOutcomes:
    records = OffsetSet({QUEUE: IntervalSet.of([(2 * batch, 2 * batch + 1)])})
    return BatchOutcomes(1, Outcomes.of([(kind, records) for kind in kinds or (ROWS,)]))


class Ledger:
    """The files of a table with a log, and their levels, of `fan` files each."""

    def __init__(self, root: Path, fan: int = 4) -> None:
        self.root = root
        self.folder = root / "outcomes"
        self.folder.mkdir()
        self.fan = fan
        self.newest = 0

    def commit(self, count: int, *kinds: str) -> None:
        for _ in range(count):
            self.newest += 1
            self.own(self.newest).write_bytes(told(self.newest, *kinds).pack())
            self.tidy()

    def own(self, batch: int) -> Path:
        return self.folder / f"{batch}-{batch:08d}-ab12.json.gz"

    def levels(self) -> OutcomeLevels:
        return ledger_outcomes(self.root, self.newest, self.fan)

    def tidy(self, keep_s: float = 30.0) -> None:
        self.levels().tidy(NOW_S, keep_s)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


def damage(path: Path) -> bytes:
    """The bytes as they were; now one of the compressed part is another one."""
    good = path.read_bytes()
    path.write_bytes(good[:12] + bytes([good[12] ^ 0x10]) + good[13:])
    return good


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


def test_the_others_are_merged_all_the_same_and_files_stay_few(ledger: Ledger) -> None:
    ledger.commit(2)
    damage(ledger.own(2))
    with capture_logs() as logs:
        ledger.commit(5 * 16 + 1)
    first = ["1-1.2.json.gz", "2-2.2.json.gz", "2-2.damaged", "3-12.2.json.gz"]
    merged = [f"{at + 1}-{at + 16}.2.json.gz" for at in range(12, 76, 16)]
    assert ledger.names() == sorted(
        [*first, *merged, "77-80.1.json.gz", *(ledger.own(batch).name for batch in (81, 82, 83))]
    )
    (entry,) = [line for line in logs if line["log_level"] != "info"]
    assert (entry["event"], entry["file"]) == ("outcomes_set_aside", str(ledger.own(2)))
    assert entry["moved_to"] == str(ledger.folder / "2-2.damaged")
    assert "Error" in entry["error"]


def test_who_reads_it_is_told_which_it_is_and_what_to_do(ledger: Ledger) -> None:
    ledger.commit(5)
    damage(ledger.own(5))
    for name in (ledger.own(5).name, "5-5.damaged"):
        with pytest.raises(LoaderError, match=rf"{name} can't be used.*Put a good copy in its place, or move it away"):
            ledger.levels().read()
        ledger.commit(4)
    assert [one.rows for one in ledger.levels().read(8)] == [4, 1], "later ones are read without it"


def test_a_good_copy_in_its_place_is_read(ledger: Ledger) -> None:
    ledger.commit(2)
    good = damage(ledger.own(2))
    ledger.commit(3)
    (ledger.folder / "2-2.damaged").write_bytes(good)
    expected = joined([told(batch) for batch in range(1, 6)])
    assert joined(ledger.levels().read()).outcomes == expected.outcomes


def test_without_it_it_is_unknown_how_many_rows_there_are(ledger: Ledger) -> None:
    ledger.commit(2)
    damage(ledger.own(2))
    ledger.commit(3)
    (ledger.folder / "2-2.damaged").unlink()
    found = ledger.levels().read()
    assert [one.rows for one in found] == [1, None, 2, 1]
    assert joined(found).outcomes == joined([told(batch) for batch in (1, 3, 4, 5)]).outcomes


def test_that_it_may_have_filled_a_hole_is_not_forgotten_by_a_merge(ledger: Ledger) -> None:
    """Of what was passed before it, it may have said that it came: a file merged with no other shows that for ever."""
    ledger.commit(2, ROWS, PASSED)
    ledger.commit(1)
    damage(ledger.own(3))
    ledger.commit(40)
    (ledger.folder / "3-3.damaged").unlink()
    assert {"1-2.2.json.gz", "3-3.2.json.gz", "4-12.2.json.gz", "13-28.2.json.gz"} <= set(ledger.names()), (
        "and all above go on"
    )
    with pytest.raises(LoaderError, match="outcomes of some batch are gone"):
        check_whole(ledger.levels().read())


def test_a_merged_file_is_set_aside_too(ledger: Ledger) -> None:
    ledger.commit(8)
    damage(ledger.folder / "5-8.1.json.gz")
    ledger.commit(8)
    assert ledger.names() == ["1-4.2.json.gz", "5-8.2.json.gz", "5-8.damaged", "9-16.2.json.gz"]


def test_age_ends_it_too(ledger: Ledger) -> None:
    """One that is noticed so late that its time is over is set aside first, and counts from then on."""
    ledger.commit(8)
    damage(ledger.folder / "5-8.1.json.gz")
    ledger.tidy(keep_s=-(10.0**10))
    assert ledger.names() == ["1-4.1.json.gz", "5-8.2.json.gz", "5-8.damaged"]
    set_aside_s = (ledger.folder / "5-8.damaged").stat().st_mtime
    os.utime(ledger.folder / "1-4.1.json.gz", (1.0, 1.0))
    os.utime(ledger.folder / "5-8.2.json.gz", (1.0, 1.0))
    ledger.tidy(keep_s=NOW_S - set_aside_s)
    assert ledger.names() == ["0-4.forgotten.json.gz", "5-8.2.json.gz", "5-8.damaged"]
    ledger.tidy(keep_s=NOW_S - set_aside_s - 1)
    assert ledger.names() == ["0-8.forgotten.json.gz"]
    assert [(one.rows, list(one.outcomes.kinds)) for one in ledger.levels().read()] == [(None, [FORGOTTEN])]


def assert_whole(ledger: Ledger) -> None:
    found = ledger.levels().read()
    check_whole(found)
    passed = [told(2, PASSED)]
    assert joined(found) == joined([*passed, *(told(batch) for batch in range(1, ledger.newest + 1) if batch != 2)])


def passed_and_damaged(ledger: Ledger, name: str, before: int, after: int) -> bytes:
    """What the file of that name said: it was damaged after `before` commits, the second of which has passed a hole."""
    ledger.commit(1)
    ledger.commit(1, PASSED)
    ledger.commit(before - 2)
    good = damage(ledger.folder / name)
    ledger.commit(after)
    with pytest.raises(LoaderError, match=r"\.damaged can't be used"):
        ledger.levels().read()
    return good


OWN, MERGED = "6-00000006-ab12.json.gz", "5-8.1.json.gz"


@pytest.mark.parametrize("after", [5, 13, 45])
@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize(
    ("damaged", "before", "put"),
    [(OWN, 6, "6-6.damaged"), (OWN, 6, OWN), (MERGED, 8, "5-8.damaged"), (MERGED, 8, MERGED)],
)
def test_a_good_copy_under_either_name_heals_it_after_a_hole(
    ledger: Ledger, damaged: str, before: int, put: str, removed: bool, after: int
) -> None:
    """A loader that has to know ends before a commit, and so before a pass: it is read before that, and as well after it."""
    good = passed_and_damaged(ledger, damaged, before, max(after, 16 - before))
    (aside,) = ledger.folder.glob("*.damaged")
    if removed:
        aside.unlink()
        with pytest.raises(LoaderError, match="outcomes of some batch are gone"):
            check_whole(ledger.levels().read())
    (ledger.folder / put).write_bytes(good)
    assert_whole(ledger)
    ledger.tidy()
    assert_whole(ledger)
    assert put not in ledger.names()
    assert not list(ledger.folder.glob("*.damaged"))
    ledger.commit(40)
    assert_whole(ledger)


def test_a_copy_that_is_damaged_too_is_no_loss(ledger: Ledger) -> None:
    good = passed_and_damaged(ledger, OWN, 6, 5)
    ledger.own(6).write_bytes(good[:-9])
    with pytest.raises(LoaderError, match=r"6-6\.damaged can't be used"):
        ledger.levels().read()
    (ledger.folder / "6-6.damaged").write_bytes(good)
    assert_whole(ledger)
    ledger.tidy()
    assert_whole(ledger)


def test_one_that_was_good_again_before_a_merge_leaves_no_file(ledger: Ledger) -> None:
    """A merge was killed after it had made the copy."""
    ledger.commit(2)
    (ledger.folder / "2-2.damaged").write_bytes(b"damaged")
    ledger.commit(2)
    ledger.tidy()
    assert ledger.names() == ["1-4.1.json.gz"]


def test_a_kill_between_its_copy_and_its_end_changes_nothing(ledger: Ledger) -> None:
    ledger.commit(2)
    damage(ledger.own(2))
    (ledger.folder / "2-2.damaged").write_bytes(ledger.own(2).read_bytes())
    with pytest.raises(LoaderError, match=r"2-2\.damaged can't be used|2-00000002-ab12\.json\.gz can't be used"):
        ledger.levels().read()
    ledger.commit(2)
    assert ledger.names() == ["1-1.1.json.gz", "2-2.2.json.gz", "2-2.damaged", "3-4.1.json.gz"]


@pytest.mark.parametrize("world", ["parquet", "deltalake"], indirect=True)
def test_a_table_with_one_goes_on_and_reconcile_says_which(world: World, segments: Any) -> None:
    loader = world.loader()
    own, good = Path(), b""
    folder = world.table / ("_outcomes" if world.format == "parquet" else "_rocketcrew/outcomes")
    for offset in range(2 * FAN + 1):
        world.seal([segments.Record(offset)])
        world.drain(loader)
        if offset == 2:
            own = world.table / "batch_id=2/_outcomes.json.gz"
            own = own if world.format == "parquet" else next(folder.glob("2-*.json.gz"))
            good = damage(own)
            with pytest.raises(LoaderError, match=r"/2-00.*can't be used|batch_id=2/_outcomes\.json\.gz can't be used"):
                table_facts(world.table, world.roots)
    assert {"1-1.1.json.gz", "2-2.damaged", "3-32.1.json.gz", "33-64.1.json.gz"} <= {
        path.name for path in folder.iterdir()
    }
    with pytest.raises(LoaderError, match=r"2-2\.damaged can't be used"):
        table_facts(world.table, world.roots)
    (folder / "2-2.damaged").unlink()
    facts, _ = table_facts(world.table, world.roots)
    assert facts.rows is None
    own.write_bytes(good)
    facts, _ = table_facts(world.table, world.roots)
    assert facts.rows == (2 * FAN + 1, 2 * FAN + 1)
    assert facts.loaded == facts.present
