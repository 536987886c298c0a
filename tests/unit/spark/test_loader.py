"""The loader with a writer that needs no JVM: every point of a crash, races, damage, growth. Exact each time."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import structlog.testing
from deltalake import DeltaTable
from loader_world import Crash, World, calls_of

from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import ROWS
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.convert import Staged
from rocketcrew.spark.costs import Costs
from rocketcrew.spark.epochs import EpochRequest
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.loader import POINTS, RACES_LOST_MAX
from rocketcrew.spark.plan import EARLY_MAX, QUIET_SHARE, STREAM_ROWS, Plan, PlanBounds, Trigger
from rocketcrew.spark.staging import Staging
from rocketcrew.spark.table_keys import table_facts
from rocketcrew.spark.table_state import read_state
from rocketcrew.spark.targets.delta import APP_ID, TABLE_NAME, DeltaTarget, append_by_delta_rs

QUEUE = QueueKey("g", "orders", "broker-a", 0)

every_target = pytest.mark.parametrize("world", ["parquet", "deltalake"], indirect=True)
"""What follows from the steps alone holds for every table that knows what it holds."""


def test_segments_become_one_batch_and_go(world: World, segments: Any) -> None:
    record = segments.Record
    world.seal([record(1), record(2, ["a", "b"])], [record(4, queue_id=3)])
    world.seal([record(3), record(1, topic="%RETRY%g")])
    loader = world.loader()
    (report,) = world.drain(loader)
    assert (report.batch, report.segments, report.rows, report.rows_dropped) == (1, 2, 6, 0)
    assert loader.waiting.segments == 0
    world.assert_exact()
    world.assert_clean()
    state = world.state()
    assert (state["batch"], state["rows"], state["segments"]) == (1, 6, 2)
    assert ["g", "orders", "broker-a", 0, [1, 3]] in state["loaded"]


@every_target
def test_redelivered_records_are_dropped_wherever_they_come_back(world: World, segments: Any) -> None:
    record = segments.Record
    again = record(2, ["other", "rows", "this", "time"])
    world.seal([record(1), record(2)], [again])
    world.seal([replace(again, values=["third"]), record(3)])
    world.drain(world.loader())
    world.seal([record(3, ["late"]), record(4)])
    (report,) = world.drain(world.loader())
    assert (report.batch, report.rows, report.rows_dropped) == (2, 1, 1)
    world.assert_exact()


@every_target
def test_segments_with_nothing_new_are_deleted_without_a_batch(world: World, segments: Any) -> None:
    world.seal([segments.Record(1)])
    world.drain(world.loader())
    for _ in range(3):
        world.seal([segments.Record(1, ["again"])])
    world.seal()
    loader = world.loader()
    assert world.drain(loader) == []
    assert loader.totals.rows_dropped == 3
    assert world.state()["batch"] == 1
    world.assert_exact()
    world.assert_clean()


@every_target
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("second", [None, *POINTS])
def test_a_crash_at_any_point_and_another_one_in_the_recovery(
    world: World, segments: Any, point: str, second: str | None
) -> None:
    record = segments.Record
    world.seal([record(0)])
    world.drain(world.loader())
    world.seal([record(0, ["again"]), record(1), record(2, ["a", "b"])])
    world.seal([record(3), record(2, ["x"])])
    world.drain_with_crash(point)
    world.seal([record(3, ["again"]), record(5)])
    if second is not None:
        world.drain_with_crash(second)
    world.drain(world.loader(known_batch=1))
    world.assert_exact()
    world.assert_clean()
    world.seal([record(offset, ["once more"]) for offset in range(7)])
    world.drain(world.loader())
    world.assert_exact()


@every_target
def test_a_crashed_plan_is_run_again_unchanged(world: World, segments: Any) -> None:
    world.seal([segments.Record(1)])
    world.drain_with_crash("job_done")
    world.seal([segments.Record(2)])
    reports = world.drain(world.loader())
    assert [(report.batch, report.rows) for report in reports] == [(1, 1), (2, 1)]
    world.assert_exact()


@every_target
def test_a_plan_whose_segments_are_gone_is_made_anew(world: World, segments: Any) -> None:
    path = world.seal([segments.Record(1)])
    world.seal([segments.Record(2)])
    world.drain_with_crash("staged")
    path.unlink()
    world.drain(world.loader())
    assert [row[3] for row in world.rows()] == [2]
    world.assert_clean()


@every_target
@pytest.mark.parametrize("point", ["planned", "staged", "job_done"])
def test_two_loaders_one_table_the_loser_plans_again(world: World, segments: Any, point: str) -> None:
    """The other loader commits while this one is at `point`: also records that both have."""
    record = segments.Record
    world.seal([record(1, ["mine"]), record(2)])
    world.seal([record(1, ["theirs"]), record(3)], at=1)
    other = world.loader(1)

    def let_the_other_win(here: str) -> None:
        if here == point and other.totals.batches == 0:
            assert len(world.drain(other)) == 1

    loader = world.loader(on_point=let_the_other_win)
    reports = world.drain(loader)
    assert [report.batch for report in reports] == [2]
    assert loader.totals.replanned == 1
    assert world.rows() == segments.expected([record(1, ["theirs"]), record(2), record(3)])
    world.assert_clean(0)
    world.assert_clean(1)


@every_target
def test_a_frozen_plan_whose_number_is_gone_is_dropped_at_the_next_start(world: World, segments: Any) -> None:
    record = segments.Record
    world.seal([record(1), record(2)])
    world.drain_with_crash("job_done")
    world.seal([record(2), record(3)], at=1)
    world.drain(world.loader(1))
    (report,) = world.drain(world.loader(0))
    assert (report.batch, report.rows) == (2, 1)
    world.assert_exact()
    world.assert_clean()


def test_what_dead_loaders_left_in_the_table_is_swept_and_what_living_ones_write_is_not(
    world: World, segments: Any
) -> None:
    """The dead one's staging folder is gone with its plan: nobody else would ever clean up after it."""
    world.seal([segments.Record(1)])
    unfinished = world.table / "_tmp" / "00000001-dead"
    unfinished.mkdir(parents=True)
    unfinished.with_name("00000001-dead.lock").touch()

    def look(here: str) -> None:
        if here == "job_done":
            world.loader(1)
            assert sorted(path.suffix for path in (world.table / "_tmp").iterdir()) == ["", ".lock"]

    loader = world.loader(on_point=look)
    assert not unfinished.exists()
    world.drain(loader)
    world.assert_exact()
    world.assert_clean()


@every_target
def test_losing_every_race_ends(world: World, segments: Any) -> None:
    world.seal([segments.Record(1)])
    lost = 0

    def spoil(here: str) -> None:
        nonlocal lost
        if here == "job_done":
            lost += 1
            world.seal([segments.Record(100 + lost)], at=1)
            world.drain(world.loader(1))

    with pytest.raises(LoaderError, match="lost races"):
        world.drain(world.loader(on_point=spoil))
    assert lost == RACES_LOST_MAX + 1


def test_batches_are_bounded_and_settled_records_wait_for_their_rows(world: World, segments: Any) -> None:
    """Only what no waiting segment can hold is folded into the loaded set: else rows would be dropped as known."""
    record = segments.Record
    for offset in (0, 10, 20, 30):
        world.seal([record(offset), record(offset + 5)])
    segments.settle(world.roots[0], (*QUEUE[:4], 0, 36))
    segments.filtered(world.roots[0], (*QUEUE[:4], 0, 36))
    reports = world.drain(world.loader(bounds=PlanBounds(rows_max=4, bytes_max=10**9)))
    assert [report.rows for report in reports] == [4, 4]
    first = read_state(world.table / "batch_id=1" / "_loaded.json")
    assert first.loaded.to_json() == [[*QUEUE[:4], [0, 20, 6, 4]]], "[0, 20) and [26, 30): not [20, 26) and [30, 36)"
    assert world.state()["loaded"] == [[*QUEUE[:4], [0, 36]]]
    world.assert_exact()


def test_a_batch_starts_when_it_is_due(world: World, segments: Any) -> None:
    loader = world.loader()
    world.seal([segments.Record(0)])
    world.drain(loader)  # the first batch would not wait
    sealed_ms = world.seal([segments.Record(1)]).stat().st_mtime_ns // 1_000_000
    newer = world.seal([segments.Record(2)])
    os.utime(newer, ns=((sealed_ms + 999) * 1_000_000,) * 2)
    assert loader.step(sealed_ms + 999, at_once=False) is None
    assert loader.waiting.rows == 2
    assert loader.waiting.oldest_ms == sealed_ms
    report = loader.step(sealed_ms + 1000, at_once=False)
    assert report is not None
    assert report.rows == 2
    world.seal([segments.Record(offset) for offset in range(3, 103)])
    assert loader.step(sealed_ms, at_once=False) is not None, "by rows"


def test_bad_files_are_set_aside_and_the_others_are_loaded(world: World, segments: Any) -> None:
    record = segments.Record
    ready = world.roots[0] / "ready"
    world.seal([record(1)])
    (ready / "notes.txt").write_text("hello")
    (ready / "w-77.arrows").write_bytes(b"")
    (ready / "w-78.arrows").mkdir()
    (ready / "w-79.arrows").symlink_to("nowhere")
    cut = segments.write_segment(world.roots[0], "cut", 1, [[record(4)], [record(5)]])
    cut.write_bytes(cut.read_bytes()[:-40])
    older = segments.write_segment(world.roots[0], "older", 1, [[record(6)]], version=0)
    loader = world.loader()
    segments.settle(world.roots[0], (*QUEUE[:4], 0, 20))
    segments.filtered(world.roots[0], (*QUEUE[:4], 0, 20))
    world.drain(loader)
    assert loader.totals.quarantined == 6
    world.assert_exact()
    reasons = {path.name: json.loads(path.read_text()) for path in (world.roots[0] / "bad").glob("*.reason.json")}
    assert len(reasons) == 6
    assert "version 0" in reasons[f"{older.name}.reason.json"]["reason"]
    assert "cut off" in reasons[f"{cut.name}.reason.json"]["reason"]
    assert "leads nowhere" in reasons["w-79.arrows.reason.json"]["reason"]
    assert world.state()["loaded"] == [[*QUEUE[:4], [0, 4, 1, 1, 1, 13]]], (
        "what is held in bad/ does not count as loaded"
    )


def test_a_repaired_segment_is_loaded_though_its_records_are_settled(world: World, segments: Any) -> None:
    record = segments.Record
    older = segments.write_segment(world.roots[0], "older", 1, [[record(6)], [record(8)]], version=0)
    world.seal([record(1), record(9)])
    segments.settle(world.roots[0], (*QUEUE[:4], 0, 20))
    segments.filtered(world.roots[0], (*QUEUE[:4], 0, 20))
    world.drain(world.loader())
    (world.roots[0] / "bad" / older.name).unlink()
    world.seal([record(6), record(8)])
    world.drain(world.loader())
    world.assert_exact()
    assert world.state()["loaded"] == [[*QUEUE[:4], [0, 20]]]


def test_a_segment_damaged_after_planning_is_set_aside(world: World, segments: Any) -> None:
    path = world.seal([segments.Record(1)])

    def damage(here: str) -> None:
        if here == "planned" and path.exists():
            path.write_bytes(path.read_bytes()[:-60])

    loader = world.loader(on_point=damage)
    world.written.clear()
    world.seal([segments.Record(2)])
    assert [report.rows for report in world.drain(loader)] == [1]
    assert loader.totals.quarantined == 1
    world.assert_exact()
    world.assert_clean()


@every_target
def test_the_table_grows_by_columns_and_refuses_other_types(world: World, segments: Any) -> None:
    record = segments.Record
    world.seal([record(1)])
    world.drain(world.loader())
    more = [("value", pa.string()), ("note", pa.string())]
    world.seal([record(2, extra={"note": "n"})], columns=more)
    world.seal([record(3)])
    world.seal([record(4, extra={"value": 7})], columns=[("value", pa.int64())])
    loader = world.loader()
    world.drain(loader)
    assert world.state()["columns"][-2:] == [["value", "string"], ["note", "string"]]
    rows = world.rows("_offset", "value", "note")[1:]
    assert rows == [(2, "row", "n"), (3, "row", None)]
    assert loader.totals.quarantined == 1
    (reason,) = (world.roots[0] / "bad").glob("*.reason.json")
    assert "'value' is bigint here" in json.loads(reason.read_text())["reason"]


def test_what_is_settled_while_segments_are_listed_is_not_folded(world: World, segments: Any) -> None:
    """The supervisor settles record 7, whose segment was sealed too late for the listing: 7 must wait for its rows."""
    world.seal([segments.Record(1)])

    class SlowListing(Staging):
        def list_ready(self) -> Any:
            ready = super().list_ready()
            if world.segments_made == 1:
                world.seal([segments.Record(7)])
                segments.filtered(world.roots[0], (*QUEUE[:4], 0, 9))
                segments.settle(world.roots[0], (*QUEUE[:4], 0, 9))
            return ready

    loader = world.loader()
    loader._staging = SlowListing(world.roots[0])
    world.drain(loader)
    world.assert_exact()


def test_a_table_that_went_back_stops_loudly(world: World, segments: Any) -> None:
    world.seal([segments.Record(1)])
    world.drain(world.loader())
    world.loader(known_batch=1)
    shutil.rmtree(world.table)
    with pytest.raises(
        LoaderError, match=r"had reached batch 1, and is now at 0: it was removed, replaced or taken back"
    ):
        world.loader(known_batch=1)


@every_target
def test_a_table_that_is_removed_under_a_running_loader_stops_it_loudly(world: World, segments: Any) -> None:
    """It would begin again at batch 1, and nobody would see that all before is gone."""
    world.seal([segments.Record(1)])
    loader = world.loader()
    world.drain(loader)
    shutil.rmtree(world.table)
    world.seal([segments.Record(2)])
    with pytest.raises(
        LoaderError, match=r"had reached batch 1, and is now at 0: it was removed, replaced or taken back"
    ):
        world.drain(loader)
    assert len(list((world.roots[0] / "ready").iterdir())) == 1


@every_target
def test_a_table_that_was_replaced_under_a_running_loader_stops_it_too(world: World, segments: Any) -> None:
    loader = world.loader()
    for offset in (1, 2):
        world.seal([segments.Record(offset)])
        world.drain(loader)
    shutil.rmtree(world.table)
    world.seal([segments.Record(3)], at=1)
    world.drain(world.loader(1))
    world.seal([segments.Record(4)])
    with pytest.raises(LoaderError, match=r"had reached batch 2, and is now at 1"):
        world.drain(loader)
    assert [row[3] for row in world.rows()] == [3]


def test_a_folder_of_somebody_else_is_refused(world: World) -> None:
    world.table.mkdir()
    (world.table / "part-0.parquet").touch()
    with pytest.raises(UsageError, match=r"'part-0\.parquet', which is no batch"):
        world.loader()


@pytest.mark.parametrize(
    "text", ["", "{}", '{"version":1}', '{"version":2,"batch":1,"plan":"x","names":[],"queues":[1],"columns":[]}']
)
def test_a_table_whose_state_is_damaged_stops_loudly(world: World, segments: Any, text: str) -> None:
    world.seal([segments.Record(1)])
    world.drain(world.loader())
    (world.table / "batch_id=1" / "_loaded.json").write_text(text)
    with pytest.raises(LoaderError, match=r"_loaded\.json can't be used"):
        world.loader()


def test_rows_that_the_writer_lost_are_noticed(world: World, segments: Any) -> None:
    world.seal([segments.Record(1)])
    loader = world.loader()
    folder = world.roots[0] / "plan"

    def lose(here: str) -> None:
        if here == "staged":
            for part in folder.glob("*.staged/*.parquet"):
                segments.pq.write_table(segments.pq.read_table(part).slice(0, 0), part)

    loader._on_point = lose
    with pytest.raises(LoaderError, match="holds 0 rows, but 1 were to be written"):
        world.drain(loader)
    world.drain(world.loader())
    world.assert_exact()


class Story:
    """A random story: deliveries in some order, redeliveries, settling, crashes, a take-over, merges of outcomes, two members
    on one table. The seed replays it. Few intervals are allowed in the table's state, so floors pass holes all the time."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.next_offset = [0, 0, 0]
        self.durable: list[set[tuple[int, int]]] = [set(), set()]
        self.without: set[tuple[int, int]] = set()
        """Records that some run finished without rows."""
        self.pieces_max = self.rng.choice([1, 2, 16])
        self.crashed_at: set[str] = set()
        self.notes = 0

    def deliver(self) -> None:
        """A worker of one member seals some records, among them old ones; some records give no rows."""
        at = self.rng.randrange(2)
        flushes: list[list[Any]] = []
        for _ in range(self.rng.randint(1, 3)):
            flush: list[Any] = []
            without: list[tuple[str, str, str, int, int, int]] = []
            for _ in range(self.rng.randint(0, 4)):
                queue = self.rng.randrange(3)
                fresh = self.rng.random() < 0.7 or not self.next_offset[queue]
                offset = self.next_offset[queue] if fresh else self.rng.randrange(self.next_offset[queue])
                if fresh:  # what is left out comes later, as an old one, or never
                    self.next_offset[queue] += self.rng.choice([1, 1, 1, 2, 4])
                self.durable[at].add((queue, offset))
                if self.rng.random() < 0.8:
                    values = [f"{self.world.segments_made}-{n}" for n in range(self.rng.randint(1, 3))]
                    flush.append(self.world.helpers.Record(offset, values, queue_id=queue))
                else:
                    without.append((*QUEUE[:3], queue, offset, offset + 1))
                    self.without.add((queue, offset))
            flushes.append(flush)
            self.notes += 1
            self.world.helpers.filtered(self.world.roots[at], *without, name=str(self.notes))
        self.world.seal(*flushes, at=at)

    def settle(self) -> None:
        """Each member settles prefixes of what it made durable itself."""
        for at in range(2):
            ranges: list[tuple[str, str, str, int, int, int]] = []
            for queue in range(3):
                mine = sorted(offset for key, offset in self.durable[at] if key == queue)
                if mine:
                    stop = mine[0]
                    while (queue, stop) in self.durable[at]:
                        stop += 1
                    ranges.append((*QUEUE[:3], queue, mine[0], stop))
            self.world.helpers.settle(self.world.roots[at], *ranges)

    def load(self) -> None:
        """One member loads, or crashes somewhere on the way, perhaps while the other one loads."""
        at = self.rng.randrange(2)
        doomed = self.rng.choice([None, *POINTS])
        intruded = self.rng.choice([None, None, *POINTS])

        def on_point(here: str) -> None:
            nonlocal intruded
            if here == intruded:
                intruded = None
                self.world.drain(self.loader(1 - at))
            if here == doomed:
                raise Crash

        try:
            self.world.drain(self.loader(at, on_point))
        except Crash:
            assert doomed is not None
            self.crashed_at.add(doomed)

    def loader(self, at: int, on_point: Callable[[str], None] = lambda _: None) -> Any:
        bounds = PlanBounds(self.rng.choice([3, 1000]), 10**9)
        return self.world.loader(at, on_point, bounds=bounds, pieces_max=self.pieces_max)

    def take_over(self) -> None:
        """The second member's folder goes to the first, as a slot's does (supervisor/slot.py); its plans only name files."""
        old, new = (Staging(root) for root in reversed(self.world.roots))
        for folder in ("ready", "bad", "outcomes"):
            for path in (old.root / folder).glob("*"):
                path.rename(new.root / folder / path.name)
        for path in old.plans.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(
            self.world.table / "_tmp", ignore_errors=True
        )  # a dead process holds no lock: the next one sweeps
        self.durable = [self.durable[0] | self.durable[1], set()]

    def merge(self) -> None:
        """Upkeep, as after many commits."""
        self.world.outcomes(fan=3).tidy(time.time(), 3600.0)

    def run(self) -> None:
        for _ in range(14):
            acts = [self.deliver] * 4 + [self.settle, self.settle, self.load, self.load, self.merge, self.take_over]
            self.rng.choice(acts)()
        for at in (0, 1):
            self.world.drain(self.loader(at))
        self.merge()

    def assert_exact(self) -> None:
        """Keys are unique, each record is there with the rows of one of its runs, and of nothing else."""
        rows = self.world.rows()
        keys = [row[:5] for row in rows]
        assert len(set(keys)) == len(keys)
        runs: dict[tuple[object, ...], list[list[str]]] = {}
        for record in self.world.written:
            runs.setdefault((record.topic, record.broker, record.queue_id, record.offset), []).append(record.values)
        found: dict[tuple[object, ...], list[str]] = {}
        for row in rows:
            found.setdefault(row[:4], []).append(row[5])
        missing = runs.keys() - found.keys()
        assert {(key[2], key[3]) for key in missing} <= self.without, (
            "only what some run finished without rows may lack them"
        )
        for key, values in found.items():
            assert values in runs[key]
        facts, broken = table_facts(self.world.table, self.world.roots)
        assert not broken
        assert facts.outcomes.of_kind(ROWS) == facts.present
        assert not facts.present - facts.loaded
        assert facts.loaded - facts.present == (facts.loaded - facts.present) & self.finished()
        assert self.world.piece_count() <= 3 * self.pieces_max

    def finished(self) -> OffsetSet:
        """What some run finished without rows: all that may count as loaded and have none."""
        return OffsetSet.of(
            (QUEUE._replace(queue_id=queue), IntervalSet.of([(offset, offset + 1)])) for queue, offset in self.without
        )


@every_target
@pytest.mark.parametrize("seed", range(40))
def test_random_stories_end_exact(world: World, seed: int) -> None:
    story = Story(world, seed)
    story.run()
    story.assert_exact()
    for at in (0, 1):
        world.assert_clean(at)


@pytest.mark.parametrize("world", ["deltalake"], indirect=True)
def test_a_table_that_another_loader_makes_in_the_same_moment_is_planned_anew(world: World) -> None:
    world.seal([world.helpers.Record(1)])
    appends: list[bool] = []

    def second_to_make_it(path: Path, plan: Plan, staged: Staged, snapshot: object | None) -> None:
        appends.append(snapshot is None)
        if snapshot is None:
            schema = pa.schema([("value", pa.string())])
            DeltaTable.create(str(path), schema, mode="error", name=TABLE_NAME)
        append_by_delta_rs(path, plan, staged, snapshot)

    loader = world.loader(target=DeltaTarget(world.table, second_to_make_it, lambda: None))
    world.drain(loader)
    assert appends == [True, False]
    assert loader.totals.replanned == 1
    world.assert_exact()
    world.assert_clean()


def test_a_step_waits_for_the_rows_that_are_worth_a_commit(world: World, segments: Any) -> None:
    """By what the loader has learnt in ever so many commits of 10 and of 100 rows: 50 ms fixed, and 10 ms a row."""
    loader = world.loader(trigger=Trigger(rows=10**9, bytes=10**9, wait_ms=10**9))
    loader.costs = Costs(2e12, 110e12, 1.2e12, 10_100e12, 106.5e12)
    wanted = loader.costs.rows_wanted()
    assert 20 <= wanted <= 30
    world.seal([segments.Record(offset) for offset in range(wanted - 1)])
    assert loader.step(0, at_once=False) is None
    assert loader.waiting.rows == wanted - 1
    world.seal([segments.Record(wanted)])
    report = loader.step(0, at_once=False)
    assert report is not None
    assert report.rows == wanted


def test_what_has_no_company_is_loaded_at_once_but_not_for_ever(world: World, segments: Any) -> None:
    """The first batch and a backlog's last one need not wait; a trickle for months makes few batches all the same."""
    wait_ms = 30_000
    loader = world.loader(trigger=Trigger(rows=10**9, bytes=10**9, wait_ms=wait_ms))

    def batches(*ages_ms: int) -> list[bool]:
        """One more segment; then whether a step so long after it was sealed makes a batch."""
        world.seal([segments.Record(world.segments_made)])
        sealed_ms = world.segments_made * 1000
        return [loader.step(sealed_ms + age_ms, at_once=False) is not None for age_ms in ages_ms]

    pause_ms = wait_ms // QUIET_SHARE
    assert batches(0, pause_ms - 1, pause_ms) == [False, False, True]
    made = [batches(pause_ms) == [True] for _ in range(2 * EARLY_MAX)]
    assert made[: EARLY_MAX - 1] == [True] * (EARLY_MAX - 1)
    assert not all(made)
    assert any(batches(wait_ms - 1, wait_ms)), "and none waits for longer than it always did"
    world.assert_exact()


def test_what_was_sealed_before_the_clock_was_set_back_does_not_wait_for_as_long(world: World, segments: Any) -> None:
    loader = world.loader(trigger=Trigger(rows=10**9, bytes=10**9, wait_ms=30_000))
    world.load(0)

    def step(*sealed_s: float, now_s: int) -> bool:
        for at in sealed_s:
            os.utime(world.seal([segments.Record(world.segments_made)]), (at, at))
        return loader.step(now_s * 1000, at_once=False) is not None

    assert step(7200, now_s=3600), "the last of all"
    assert step(7200, 3601, now_s=3601), "and one that others follow"
    assert not step(3699.5, now_s=3699), "a clock that is only a little ahead makes no batch for each segment"
    world.drain(loader)
    world.assert_exact()


def test_rows_of_a_steady_stream_do_not_wait_for_a_trickles_bound(world: World, segments: Any) -> None:
    """What is worth a file is loaded although more comes all the time; a few rows wait for company as ever."""
    loader = world.loader(trigger=Trigger(rows=10**9, bytes=10**9, wait_ms=30_000))
    pause_ms = math.ceil(loader.costs.pause_s() * 1000)
    assert 1_000 < pause_ms < 2_000, "of Spark's commits; the segments here are sealed a second apart"

    def batch(rows: int, now_ms: int) -> bool:
        """Whether so many rows more make a batch."""
        world.seal([segments.Record(len(world.written), ["row"] * rows)])
        return loader.step(now_ms, at_once=False) is not None

    assert batch(1, 30_000), "the first"
    assert not batch(STREAM_ROWS - 2, 2_000)
    assert not batch(1, 3_999), "not quiet for a second yet"
    assert batch(1, 4_000)
    world.assert_exact()


@pytest.mark.parametrize("queues", [1, 40])
def test_a_commit_asks_for_the_tables_epochs_as_often_whatever_the_number_of_its_queues(
    world: World, segments: Any, queues: int
) -> None:
    world.seal([segments.Record(1, queue_id=queue) for queue in range(queues)])
    world.drain(world.loader())
    (world.roots[0] / "epochs.json").write_text(
        EpochRequest(tuple(QUEUE._replace(queue_id=queue, epoch=1) for queue in range(queues)), frozenset()).to_json()
    )
    world.seal([segments.Record(2, queue_id=queue) for queue in range(queues)])
    loader = world.loader()
    assert calls_of("opened", lambda: loader.step(0, at_once=True)) <= 8


def test_rows_below_the_floor_are_told_once_with_the_remedy(world: World, segments: Any) -> None:
    """After a reset whole segments are known; what a crash delivers again is less, and said apart."""
    record = segments.Record
    with structlog.testing.capture_logs() as logs:
        loader = world.loader()
        world.seal([record(1), record(2), record(3)])
        world.drain(loader)
        for offset in (4, 5):  # as after crashes
            world.seal([record(offset - 1, ["again"]), record(offset)])
            world.drain(loader)
        told = [(log["event"], log["log_level"], log["rows"]) for log in logs if log["event"].startswith("rows_")]
        assert told == [("rows_delivered_again", "info", 1)]
        world.seal([record(1, ["reset"]), record(2, ["reset"])])
        world.seal([record(6)])
        world.drain(loader)
        world.seal([record(3, ["reset"])])
        world.drain(loader)
    assert loader.totals.rows_dropped == 2 + 3
    (line,) = [log for log in logs if log["event"] == "rows_known_dropped"]
    assert (line["log_level"], line["rows"]) == ("info", 2)
    assert "rocketcrew reset --reprocess" in line["remedy"]
    assert [row[3] for row in world.rows()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("world", ["deltalake"], indirect=True)
def test_a_number_that_spark_skips_in_silence_is_noticed_and_planned_anew(world: World) -> None:
    """Another loader commits the batch between our look and our append; Spark does nothing for a txnVersion that is there."""
    world.seal([world.helpers.Record(1), world.helpers.Record(2)])
    world.seal([world.helpers.Record(2), world.helpers.Record(3)], at=1)
    skipped: list[int] = []

    def as_spark_does(path: Path, plan: Plan, staged: Staged, snapshot: object | None) -> None:
        if not skipped:
            world.drain(world.loader(1))
        newest = DeltaTable(str(path)).transaction_version(APP_ID) if DeltaTable.is_deltatable(str(path)) else None
        if newest is not None and newest >= plan.batch:
            skipped.append(plan.batch)
            return
        append_by_delta_rs(path, plan, staged, snapshot)

    loader = world.loader(target=DeltaTarget(world.table, as_spark_does, lambda: None))
    (report,) = world.drain(loader)
    assert skipped == [1]
    assert (report.batch, report.rows) == (2, 1), "the other one has the rest"
    assert loader.totals.replanned == 1
    world.assert_exact()
    world.assert_clean()
