"""Offsets that begin anew: stopped or loaded as a new epoch, each record once, whatever dies."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import segment_helpers
from loader_world import Crash, World

from rocketcrew.cli.commands.reconcile import as_lines
from rocketcrew.cli.commands.reset import write_request
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import ELSEWHERE, Outcomes
from rocketcrew.spark import epochs
from rocketcrew.spark.config import LoaderConfig
from rocketcrew.spark.epochs import EpochRequest, Stretch, in_epochs
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.loader import POINTS
from rocketcrew.spark.plan import Ends, Plan, SegmentFacts, Top, plan_from_json, plan_to_json
from rocketcrew.spark.reconciling import QueueEnds, reconcile
from rocketcrew.spark.staging import Staging
from rocketcrew.spark.table_keys import table_facts
from rocketcrew.spark.targets.making import make_writer
from rocketcrew.spark.work import Work
from rocketcrew.supervisor.slot import adopt, take_slot

QUEUE = QueueKey("g", "orders", "broker-a", 0)


TABLES = ("parquet", "deltalake")
"""What the tests with a world run on, each."""


def facts(name: str, first: int, last: int, first_us: int, last_us: int) -> SegmentFacts:
    offsets = OffsetSet({QUEUE: IntervalSet.of([(first, last + 1)])})
    return SegmentFacts(name, 1, last - first + 1, offsets, False, (), {QUEUE: Ends(first, last, first_us, last_us)})


def next_stretch(*told: Any) -> Stretch:
    """Of segments of which each record may have the time of any other one."""
    ends = {one.name: one.ends for one in told[0]}
    return epochs.next_stretch(*told, lambda name, key, offsets: [ends[name][key]] if offsets else ())


LOADED = OffsetSet({QUEUE: IntervalSet.of([(0, 100)])})
TOPS = {QUEUE: Top(99, 1000)}


def test_what_comes_again_is_no_new_epoch() -> None:
    again, more = facts("a", 40, 99, 400, 1000), facts("b", 90, 120, 900, 1300)
    assert next_stretch([again, more], LOADED, TOPS, EpochRequest((), frozenset())) == Stretch(2, (), ())


def test_a_record_that_had_no_rows_at_first_is_no_new_epoch() -> None:
    """Settled without rows, delivered again after a kill, and now with some: it is above all that has rows."""
    loaded = OffsetSet({QUEUE: IntervalSet.of([(0, 110)])})
    assert next_stretch([facts("a", 105, 105, 1100, 1100)], loaded, TOPS, EpochRequest((), frozenset())) == Stretch(
        1, (), ()
    )


def test_a_topic_made_again_is_seen_and_planned_apart() -> None:
    old, new, more = facts("a", 90, 120, 900, 1300), facts("b", 0, 4, 5000, 5004), facts("c", 5, 9, 5005, 5009)
    nothing = EpochRequest((), frozenset())
    assert next_stretch([old, new, more], LOADED, TOPS, nothing) == Stretch(1, (), ())
    found = next_stretch([new, more, old], LOADED, TOPS, nothing)
    assert found.length == 2, "what was sealed late is of the old epoch"
    assert found.epochs == (QUEUE.in_epoch(1),)
    assert [opening.key for opening in found.openings] == [QUEUE.in_epoch(1)]


def test_a_request_divides_what_was_sealed_before_from_what_comes() -> None:
    before, after = facts("a", 90, 120, 900, 1300), facts("b", 0, 4, 1, 5)
    request = EpochRequest((QUEUE.in_epoch(1),), frozenset({"a"}))
    assert EpochRequest.from_json(request.to_json().encode()) == request
    assert next_stretch([before, after], LOADED, TOPS, request) == Stretch(1, (), ())
    assert next_stretch([after], LOADED, TOPS, request) == Stretch(1, (QUEUE.in_epoch(1),), ())
    (fact,) = [in_epochs(after, (QUEUE.in_epoch(1),))]
    assert list(fact.offsets.queues) == [QUEUE.in_epoch(1)]


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"version":0}', b'{"version":1,"queues":[1],"segments":[]}'])
def test_other_requests_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        EpochRequest.from_json(text)


def test_a_plan_keeps_its_epochs() -> None:
    key = QUEUE.in_epoch(3)
    plan = Plan("x", 1, (), OffsetSet(), (), (key,), {key: 7})
    assert plan_from_json(plan_to_json(plan)) == plan


def later(record: Any, days: int) -> Any:
    return replace(record, extra={"_store_time": segment_helpers.EPOCH + timedelta(days=days, seconds=record.offset)})


def world_rows(world: World) -> list[Any]:
    return [(offset, value) for offset, value in world.rows("_offset", "value")]


def test_a_topic_made_again_stops_the_loader_loudly(world: World, segments: Any) -> None:
    world.seal([segments.Record(n) for n in range(5)])
    world.drain(world.loader())
    world.seal([later(segments.Record(n), 1) for n in range(2)])
    with pytest.raises(LoaderError, match=r"begins anew: offset 0 .*failed over.*on_recreated = epoch"):
        world.drain(world.loader())
    assert len(world.rows()) == 5
    assert len(list((world.roots[0] / "ready").iterdir())) == 1, "nothing is lost"


@pytest.mark.parametrize("setting", [False, True])
def test_a_late_record_of_a_hole_that_was_passed_is_no_new_epoch(world: World, segments: Any, setting: bool) -> None:
    """The state counts it as loaded, and its store time is above the top's: the broker's clock went back after it."""
    world.seal([segments.Record(10 * n) for n in range(5)])
    world.drain(world.loader(pieces_max=2))
    world.seal([later(segments.Record(5), 1)])
    world.drain(world.loader(pieces_max=2, epoch_on_recreated=setting))
    assert [offset for offset, _ in world_rows(world)] == [0, 5, 10, 20, 30, 40]
    assert world.target().state().epochs == {}


def stored(record: Any, seconds: int) -> Any:
    return replace(record, extra={"_store_time": segment_helpers.EPOCH + timedelta(seconds=seconds)})


SET_BACK = [
    pytest.param(
        [*range(0, 600, 60), 600, 596, 3600, 7200, 10800], {*range(15)} - {10}, range(10, 15), id="newer below"
    ),
    pytest.param([0, 60, 120, 180, 176, 240, 3600, 7200, 10800], {0, 1, 2, 4, 5}, (3, 5, 6, 7, 8), id="all newer"),
]
"""Store times by offset, a broker's clock going back by 4 s, what is loaded, and what comes with the record before that."""


@pytest.mark.parametrize(("times", "first", "then"), SET_BACK)
def test_a_message_that_was_in_hand_when_a_clock_was_set_back_is_loaded(
    world: World, segments: Any, times: list[int], first: set[int], then: Iterable[int]
) -> None:
    """It looks newer than a record above it that is loaded, and its topic was never made again."""
    for some in (sorted(first), then):
        world.seal([stored(segments.Record(n), times[n]) for n in some])
        world.drain(world.loader())
    assert [offset for offset, _ in world_rows(world)] == [*range(len(times))]
    assert not list((world.roots[0] / "bad").glob("*"))
    assert world.target().state().epochs == {}


def test_a_segment_that_is_damaged_when_it_is_read_again_is_set_aside(world: World, segments: Any) -> None:
    world.seal([segments.Record(n) for n in range(5)])
    world.drain(world.loader())
    path = world.seal([later(segments.Record(n), 1) for n in range(2)])
    loader = world.loader()
    assert loader.step(path.stat().st_mtime_ns // 1_000_000, at_once=False) is None, "it has just been sealed"
    path.write_bytes(path.read_bytes()[:-400])
    world.drain(loader)
    assert len(world.rows()) == 5
    assert path.name in {one.name for one in (world.roots[0] / "bad").iterdir()}


@pytest.mark.parametrize("setting", [False, True])
def test_the_process_goes_by_its_setting(world: World, segments: Any, setting: bool) -> None:
    world.seal([segments.Record(n) for n in range(5)])
    world.drain(world.loader())
    world.seal([later(segments.Record(n), 1) for n in range(2)])
    format_ = {"parquet": "pyarrow"}.get(world.format, world.format)
    config = LoaderConfig(world.roots[0], world.table, format=format_, epoch_on_recreated=setting)
    assert Work(config, make_writer(config)).run() == (0 if setting else 1)
    assert len(world.rows()) == (7 if setting else 5)


def test_a_new_table_has_the_epoch_from_its_first_file_on(world: World, segments: Any) -> None:
    """Readers of Parquet folders, such as pyarrow and Spark without mergeSchema, take the columns of one file for all."""
    format_ = {"parquet": "pyarrow"}.get(world.format, world.format)
    for again in range(2):
        world.seal([later(segments.Record(n), again) for n in range(3)], at=again)
        config = LoaderConfig(world.roots[again], world.table, format=format_, epoch_on_recreated=True)
        assert Work(config, make_writer(config)).run() == 0
    first = min(world.table.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    assert "_epoch" in pq.read_schema(first).names
    assert sorted(epoch or 0 for (epoch,) in world.rows("_epoch")) == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("point", [None, "planned", "noted", "done_marked"])
def test_when_an_epoch_began_outlives_a_kill(world: World, segments: Any, point: str | None) -> None:
    """What was sealed late is told from what is new by that time, so a frozen plan has it."""
    world.seal([segments.Record(n) for n in range(5)])
    world.drain(world.loader())
    world.seal([later(segments.Record(n, ["new"]), 1) for n in range(3)])

    def crash(here: str) -> None:
        if here == point:
            raise Crash

    with contextlib.suppress(Crash):
        world.drain(world.loader(on_point=crash, epoch_on_recreated=True))
    world.drain(world.loader(epoch_on_recreated=True))
    began = segment_helpers.EPOCH + timedelta(days=1)
    tops = world.target().state().tops
    assert tops[QUEUE].since_us == 0
    assert tops[QUEUE.in_epoch(1)][:3] == (2, round((began.timestamp() + 2) * 1e6), round(began.timestamp() * 1e6))
    world.seal([segments.Record(5, ["late"])])
    world.drain(world.loader(epoch_on_recreated=True))
    assert world_rows(world) == sorted([(n, "row") for n in range(5)] + [(n, "new") for n in range(3)] + [(5, "late")])
    assert sorted(epoch or 0 for (epoch,) in world.rows("_epoch")) == [0] * 6 + [1] * 3


@pytest.mark.parametrize("point", [None, *POINTS])
def test_or_opens_a_new_epoch_by_setting(world: World, segments: Any, point: str | None) -> None:
    record = segments.Record
    world.seal([record(n) for n in range(5)])
    segments.settle(world.roots[0], (*QUEUE[:4], 0, 5))
    world.drain(world.loader())
    world.seal([later(record(n, ["new"]), 1) for n in range(3)])
    if point is not None:
        world.drain_with_crash(point, epoch_on_recreated=True)
    world.seal([later(record(n, ["again"]), 1) for n in range(4)])
    world.seal([record(4, ["late"])])
    world.drain(world.loader(epoch_on_recreated=True))
    old = [(n, "row") for n in range(5)]
    new = [(0, "new"), (1, "new"), (2, "new"), (3, "again")]
    assert world_rows(world) == sorted(old + new)
    keyed = sorted((epoch or 0, offset) for epoch, offset in world.rows("_epoch", "_offset"))
    assert keyed == [(0, n) for n in range(5)] + [(1, n) for n in range(4)]
    report = reconcile(table_facts(world.table, ())[0], {QUEUE: QueueEnds(0, 4, 4)})
    assert report.fine
    assert [queue.key.epoch for queue in report.queues] == [0, 1]


@pytest.mark.parametrize("point", [None, *POINTS])
def test_what_lies_above_the_topic_of_before_is_inherited_when_the_lower_records_come(
    world: World, segments: Any, point: str | None
) -> None:
    """The queue went to another member within its first seconds, and that member's loader was quicker."""
    record = segments.Record
    world.seal([record(n) for n in range(4)])
    segments.settle(world.roots[0], (*QUEUE[:4], 0, 4))
    world.drain(world.loader())
    world.seal([later(record(n, ["new"]), 1) for n in (4, 5, 6)], at=1)
    world.drain(world.loader(1, epoch_on_recreated=True))
    assert world.target().state().epochs == {}, "it looks like more of the topic"
    world.seal([later(record(n, ["new"]), 1) for n in range(5)])
    if point is not None:
        world.drain_with_crash(point, epoch_on_recreated=True)
    world.seal([later(record(n, ["again"]), 1) for n in range(2, 8)], at=1)
    world.seal([record(3, ["again"])], at=1)
    for at in (0, 1):
        world.drain(world.loader(at, epoch_on_recreated=True))
        world.assert_clean(at)
    old, new = [(n, "row") for n in range(4)], [(n, "new") for n in range(7)]
    assert world_rows(world) == sorted([*old, *new, (7, "again")])
    assert world.target().state().loaded.of_queue(QUEUE.in_epoch(1)).pieces == ((0, 8),)
    assert reconcile(table_facts(world.table, world.roots)[0], {QUEUE: QueueEnds(0, 8, 8)}).fine


def test_a_topic_and_the_one_made_again_may_wait_together(world: World, segments: Any) -> None:
    """The loader was down meanwhile: none of their records is loaded yet."""
    world.seal([segments.Record(n) for n in range(3)])
    world.seal([later(segments.Record(n, ["new"]), 1) for n in range(4)])
    world.drain(world.loader(epoch_on_recreated=True))
    assert world_rows(world) == sorted([(n, "row") for n in range(3)] + [(n, "new") for n in range(4)])


def test_records_of_no_epoch_are_set_aside_and_named(world: World, segments: Any) -> None:
    """Of the topic between two others: it was made again twice before they came."""
    for days in (0, 2):
        world.seal([later(segments.Record(n), days) for n in range(3)])
        world.drain(world.loader(epoch_on_recreated=True))
    between = world.seal([later(segments.Record(n, ["between"]), 1) for n in range(2)])
    world.seal([later(segments.Record(3), 2)])
    world.drain(world.loader(epoch_on_recreated=True))
    assert [offset for offset, _ in world_rows(world)] == [0, 0, 1, 1, 2, 2, 3], "the others go on"
    (aside,) = (world.roots[0] / "bad").glob("*.arrows")
    assert aside.name == between.name
    facts, told = table_facts(world.table, world.roots)
    words = "is set aside: its records are other ones than the table has with their offsets: see"
    assert told == [f"{aside} {words} {aside.name}.reason.json"]
    assert not facts.quarantined, "they are not to be run again by these offsets"


def test_what_was_of_no_epoch_may_be_deleted_once_the_table_has_it(world: World, segments: Any) -> None:
    """A reset that reprocesses brings the same records in an epoch of their own."""
    world.seal([segments.Record(n) for n in range(3)])
    world.drain(world.loader())
    both = [later(segments.Record(n, ["before"]), -1) for n in range(2)]
    world.seal(both)
    world.drain(world.loader(epoch_on_recreated=True))
    (aside,) = (world.roots[0] / "bad").glob("*.arrows")
    write_request([Staging(world.roots[0])], (QUEUE.in_epoch(1),))
    world.seal(both[:1])
    world.drain(world.loader())
    facts, told = table_facts(world.table, world.roots)
    assert (len(told), facts.needless) == (1, ()), "one of its records is not there yet"
    world.seal(both[1:])
    world.drain(world.loader())
    facts, told = table_facts(world.table, world.roots)
    assert (told, facts.needless) == ([], (str(aside),))
    lines = as_lines(reconcile(facts, None), told)
    assert (
        f"{aside} was set aside, and the table has all its records by now: it may be deleted, with its .reason.json"
        in lines
    )


@pytest.mark.parametrize("point", [None, *POINTS])
def test_what_others_had_of_the_topic_of_before_says_nothing_of_the_one_made_again(
    world: World, segments: Any, point: str | None
) -> None:
    def elsewhere(name: str, *piece: int) -> None:
        notes = Outcomes.of([(ELSEWHERE, OffsetSet.of([(QUEUE, IntervalSet.of([(piece[0], piece[1])]))]))])
        Staging(world.roots[0]).note(name, notes)

    world.seal([segments.Record(n) for n in (0, 1, 2, 9)])
    elsewhere("1", 0, 5)
    world.drain(world.loader())
    elsewhere("2", 0, 1_000)
    world.seal([later(segments.Record(n, ["new"]), 1) for n in (2, 4)])
    if point is not None:
        world.drain_with_crash(point, epoch_on_recreated=True)
    world.drain(world.loader(epoch_on_recreated=True))
    new = QUEUE.in_epoch(1)

    def fates() -> dict[str, tuple[tuple[int, int], ...]]:
        report = reconcile(table_facts(world.table, world.roots[:1])[0], {QUEUE: QueueEnds(0, 10, 10)})
        (found,) = [one for one in report.queues if one.key == new]
        return {fate.value: offsets.pieces for fate, offsets in found.fates.items()}

    assert fates() == {"loaded": ((2, 3), (4, 5)), "before": ((0, 2),), "unknown": ((3, 4), (5, 10))}
    elsewhere("3", 0, 8)
    world.seal([later(segments.Record(8, ["new"]), 1)])
    world.drain(world.loader(epoch_on_recreated=True))
    assert fates() == {
        "loaded": ((2, 3), (4, 5), (8, 9)), "before": ((0, 2),), "elsewhere": ((3, 4), (5, 8)), "unknown": ((9, 10),)
    }  # fmt: skip
    noted = Outcomes.union(told.outcomes for told in world.target().outcomes()).of_kind(ELSEWHERE)
    assert noted.of_queue(new).pieces == ((2, 8),)


@pytest.mark.parametrize("point", [None, *POINTS])
def test_a_deliberate_rerun_is_loaded_beside_the_first(world: World, segments: Any, point: str | None) -> None:
    record = segments.Record
    world.seal([record(n) for n in range(5)])
    world.drain(world.loader())
    before = world.seal([record(3, ["again"]), record(5, ["sealed before"])])
    request = EpochRequest((QUEUE.in_epoch(1),), frozenset({before.name}))
    (world.roots[0] / "epochs.json").write_text(request.to_json())
    world.seal([record(n, ["second"]) for n in range(6)])
    if point is not None:
        world.drain_with_crash(point)
    world.drain(world.loader())
    world.seal([record(n, ["third"]) for n in range(7)])
    world.drain(world.loader())
    first = [*((n, "row") for n in range(5)), (5, "sealed before")]
    second = [*((n, "second") for n in range(6)), (6, "third")]
    assert world_rows(world) == sorted(first + second)


def test_a_rerun_is_told_from_what_was_before_by_slots_that_are_made_and_taken_over(
    world: World, segments: Any, tmp_path: Path
) -> None:
    """Queue 0 was loaded before the reset. Queue 1 was only sealed, by a slot that another takes over."""
    record = segments.Record
    slots = [take_slot(tmp_path, "g"), take_slot(tmp_path, "g")]
    world.roots = [slot.segments for slot in slots]
    world.seal([record(n) for n in range(3)])
    world.drain(world.loader())
    world.seal([record(n, queue_id=1) for n in range(3)], at=1)
    other = QUEUE._replace(queue_id=1)
    write_request([Staging(root) for root in world.roots], (QUEUE.in_epoch(1), other.in_epoch(1)))
    for slot in slots:
        slot.release()
    mine = take_slot(tmp_path, "g")
    adopt(mine)
    shutil.rmtree(slots[1].path)
    world.roots[1] = take_slot(tmp_path, "g").segments
    for at in (0, 1):
        world.seal([record(n, ["second"], queue_id=at) for n in range(3)], at=at)
    for at in (0, 1):
        world.drain(world.loader(at))
    rows = sorted((queue, epoch or 0, value) for queue, epoch, value in world.rows("_queue_id", "_epoch", "value"))
    assert rows == [row for queue in (0, 1) for row in [(queue, 0, "row")] * 3 + [(queue, 1, "second")] * 3]


def test_a_request_that_is_damaged_stops_the_loader(world: World, segments: Any) -> None:
    world.seal([segments.Record(1)])
    (world.roots[0] / "epochs.json").write_text("{")
    with pytest.raises(LoaderError, match=r"epochs\.json is not understood"):
        world.drain(world.loader())
