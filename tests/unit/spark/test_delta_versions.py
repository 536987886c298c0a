"""A Delta table that its owner took back to an older version, copied in part, or put into a folder with an odd name."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from loader_world import World

from rocketcrew.cli.reading import dataset
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.compaction import compact
from rocketcrew.spark.delta_log import LOG_DIR
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.reconciling import reconcile
from rocketcrew.spark.table_keys import table_facts
from rocketcrew.spark.targets.delta import DeltaTarget, append_by_delta_rs
from rocketcrew.spark.targets.delta_restores import LOOKED_FIRST, LOOKED_MAX, MARK, Restores, taken_back

TABLES = ("deltalake",)


def fill(world: World, segments: Any) -> None:
    for start in range(5):
        world.seal([segments.Record(10 * start + n) for n in range(3)])
        world.drain(world.loader())


def test_loading_goes_on_after_a_restore_and_what_is_gone_is_named(world: World, segments: Any) -> None:
    """A restore takes files back and no transactions: numbers go on, and the ledger knows what was loaded."""
    fill(world, segments)
    DeltaTable(str(world.table)).restore(2)
    world.seal([segments.Record(99)])
    (report,) = world.drain(world.loader(known_batch=5))
    assert report.batch == 6
    facts, broken = table_facts(world.table, world.roots[:1])
    assert broken == []
    wanted = {offset for key in reconcile(facts, None).to_run_again().queues.values()
              for start, stop in key.pieces for offset in range(start, stop)}  # fmt: skip
    assert wanted == {20, 21, 22, 30, 31, 32, 40, 41, 42}


def restored(capture: pytest.CaptureFixture[str]) -> int:
    return capture.readouterr().err.count("delta_table_restored")


@pytest.mark.parametrize(("to", "told"), [("an older one", 1), ("the newest of ours", 0)])
def test_a_restore_is_told_once(
    world: World, segments: Any, capsys: pytest.CaptureFixture[str], to: str, told: int
) -> None:
    fill(world, segments)
    log = DeltaTable(str(world.table))
    ours = int(log.version())
    log.delete("_offset = 2")
    log.restore(2 if told else ours)
    loader = world.loader()
    counts: list[int] = []
    for offset in (97, 98):
        world.seal([segments.Record(offset)])
        world.drain(loader)
        counts.append(restored(capsys))
    world.load(99)
    assert (counts, restored(capsys)) == ([told, 0], 0)


def test_a_restore_by_time_says_that_it_does_not_know_what_is_gone(
    world: World, segments: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its entry has the time in the words of whoever wrote it, Spark's without a zone."""
    fill(world, segments)
    log = DeltaTable(str(world.table))
    ours = log.history(1)[0]["timestamp"]
    log.delete("_offset = 2")
    log.restore(datetime.fromtimestamp(ours / 1000, UTC))
    world.load(99)
    assert "rows that were loaded after it, if any, are gone" in capsys.readouterr().err


def test_a_restore_is_told_of_however_many_commits_are_behind_it(
    world: World, segments: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(world, segments)
    log = DeltaTable(str(world.table))
    log.restore(2)
    for number in range(LOOKED_FIRST):
        log.alter.set_table_properties({"x.y": str(number)}, raise_if_not_exists=False)
    world.load(99)
    assert restored(capsys) == 1


def noted(world: World, said: object) -> int:
    """An entry of a RESTORE that changes no file, behind the version that is given back."""
    number = int(DeltaTable(str(world.table)).version())
    commit = {"timestamp": 1, "operation": "RESTORE", "operationParameters": said}
    (world.table / LOG_DIR / f"{number + 1:020d}.json").write_text(json.dumps({"commitInfo": commit}) + "\n")
    return number


@pytest.mark.parametrize(
    ("said", "told"),
    [({"version": "2"}, 1), ({"version": "4"}, 1), ({"version": "5"}, 0), ({"version": "null"}, 1), ({"version": {}}, 1),
     ({}, 1), (None, 1)],
)  # fmt: skip
def test_a_restore_in_any_words_stops_no_commit(
    world: World, segments: Any, capsys: pytest.CaptureFixture[str], said: object, told: int
) -> None:
    fill(world, segments)
    number = noted(world, said)
    world.load(99)
    assert (number, restored(capsys)) == (5, told)


def test_a_restore_just_before_a_commit_is_told(
    world: World, segments: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between the look at the log and the commit: that is on top of it then."""
    fill(world, segments)

    def append(*given: Any) -> None:
        noted(world, {"version": "2"})
        append_by_delta_rs(*given)

    world.seal([segments.Record(99)])
    world.drain(world.loader(target=DeltaTarget(world.table, append, lambda: None)))
    assert restored(capsys) == 1


class Log:
    """As much of delta-rs's snapshot as is looked at."""

    def __init__(self, *entries: dict[str, Any]) -> None:
        self.entries = [*entries]
        self.failures = 0
        self.read = 0

    def version(self) -> int:
        return len(self.entries) - 1

    def history(self, limit: int) -> list[dict[str, Any]]:
        if self.failures:
            self.failures -= 1
            raise OSError("slow down")
        numbered = [{**entry, "version": version} for version, entry in enumerate(self.entries)]
        self.read += limit
        return numbered[: -limit - 1 : -1]


OURS = {MARK: "a plan"}
OTHER = {"operation": "OPTIMIZE"}


def restore(to: int) -> dict[str, Any]:
    return {"operation": "RESTORE", "operationParameters": {"version": str(to)}}


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_look_that_failed_is_made_up_for_by_the_next_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, failures: int
) -> None:
    """Whose entries are below commits of ours by then."""
    log = Log(OTHER, OURS, OURS, restore(1))
    log.failures = failures
    looks = Restores(tmp_path)
    counts: list[int] = []
    for _ in range(5):
        looks.tell(log, OSError)
        counts.append(restored(capsys))
        log.entries.append(OURS)
    assert counts == [int(number == failures) for number in range(5)]


def test_each_look_is_for_what_is_new(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = Log(*[OTHER] * 700)
    looks = Restores(tmp_path)
    looks.tell(log, OSError)
    assert log.read == LOOKED_FIRST + LOOKED_MAX
    log.read = 0
    for entry in (OURS, OTHER, restore(699), restore(700), OTHER, restore(699)):
        log.entries.append(entry)
        looks.tell(log, OSError)
        looks.tell(log, OSError)
    assert (log.read, restored(capsys)) == (6, 2)
    looks.tell(Log(OTHER, OURS, restore(1), restore(0)), OSError)
    assert restored(capsys) == 1, "of another table in its place"


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([restore(5), restore(2)], [7]),
        ([restore(2), restore(6)], [6]),
        ([restore(2), OURS, restore(6)], [6, 8]),
        ([restore(2), restore(5)], []),
        ([restore(2), OTHER, restore(3)], [8]),
        ([OURS, restore(5), OURS, restore(7)], [7, 9]),
    ],
)
def test_of_several_restores_each_counts_that_is_not_undone(entries: list[dict[str, Any]], told: list[int]) -> None:
    """Version 5 is ours, and these come behind it."""
    numbered = [{**entry, "version": version} for version, entry in enumerate(entries, 6)]
    assert taken_back(numbered, 5)[0] == told


def test_a_table_without_the_state_of_its_batch_is_refused_with_the_ways_out(world: World, segments: Any) -> None:
    fill(world, segments)
    for path in (world.table / "_rocketcrew").glob("5-*.json"):
        path.unlink()
    with pytest.raises(
        LoaderError,
        match=r"at batch 5.*no state of it.*RESTORE TABLE.*spark\.target.*reset -g GROUP -t TOPIC --to earliest",
    ):
        world.loader()


@pytest.mark.parametrize("name", ["ta%20ble", "ta#ble", "a link"])
def test_a_folder_that_delta_rs_takes_for_another_one_is_refused(world: World, segments: Any, name: str) -> None:
    """Of `ta ble` and `ta%20ble` side by side it would read the one for the other."""
    fill(world, segments)
    place = world.table.with_name("ta%20ble" if name == "a link" else name)
    world.table.rename(place)
    if name == "a link":
        world.table.with_name(name).symlink_to(place)
    looks: list[Callable[[], object]] = [
        lambda: dataset(world.table.with_name(name)), lambda: table_facts(world.table.with_name(name), ()),
        lambda: compact(world.table.with_name(name), 1024),
        lambda: DeltaTarget(world.table.with_name(name), append_by_delta_rs, lambda: None),
    ]  # fmt: skip
    for look in looks:
        with pytest.raises(UsageError, match=f"{place} has '(%20|#)' in it.*choose another folder"):
            look()
