"""A table against what it should hold: each offset gets its word, and only what nobody explains is named."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from loader_world import World

from rocketcrew.cli.commands.reconcile import check_begun, reset_line
from rocketcrew.durable.facts import facts_to_text
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import (
    DEAD_LETTER,
    FILTERED,
    KINDS,
    LOST,
    NO_ROWS,
    RECOVERED,
    ROWS,
    SENT_BACK,
    SKIPPED,
    UNDELIVERED,
    Outcomes,
)
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.gaps import compact
from rocketcrew.spark.plan import PlanBounds
from rocketcrew.spark.reconciling import Fate, QueueEnds, Report, TableFacts, reconcile
from rocketcrew.spark.rerun import load_again, only_rerun
from rocketcrew.spark.staging import Staging
from rocketcrew.spark.status import StatusFile
from rocketcrew.spark.table_keys import Presence, overlapping, table_facts

QUEUE = QueueKey("g", "orders", "broker-a", 0)


TABLES = ("parquet", "deltalake", "iceberg")
"""What the tests with a world run on, each."""


def offsets(*pieces: tuple[int, int]) -> OffsetSet:
    return OffsetSet({QUEUE: IntervalSet.of(pieces)})


def fates(report: Report, queue: QueueKey = QUEUE) -> dict[str, tuple[tuple[int, int], ...]]:
    (found,) = [one for one in report.queues if one.key == queue]
    return {fate.value: pieces.pieces for fate, pieces in found.fates.items()}


def test_every_offset_gets_its_word() -> None:
    facts = TableFacts(
        present=offsets((10, 14)),
        overlaps=OffsetSet(),
        loaded=offsets((10, 30)),
        outcomes=Outcomes.of(
            [
                (ROWS, offsets((10, 14))),
                (FILTERED, offsets((10, 30))),
                (SENT_BACK, offsets((14, 15))),
                (DEAD_LETTER, offsets((15, 16))),
                (NO_ROWS, offsets((16, 18))),
                (LOST, offsets((25, 31), (44, 46))),
                (SKIPPED, offsets((35, 37), (48, 50))),
            ]
        ),
        waiting=offsets((32, 35)),
    )
    report = reconcile(facts, {QUEUE: QueueEnds(0, 50, 40)})
    assert fates(report) == {
        "before": ((0, 10),),
        "loaded": ((10, 14),),
        "sent_back": ((14, 15),),
        "dead_letter": ((15, 16),),
        "no_rows": ((16, 18),),
        "filtered": ((18, 30),),
        "waiting": ((32, 35), (40, 50)),
        "skipped": ((35, 37),),
        "lost": ((30, 31),),
        "unknown": ((31, 32), (37, 40)),
    }
    assert not report.fine
    assert report.to_run_again() == offsets((31, 32), (37, 40))


def test_what_was_not_delivered_is_named_whatever_is_said_of_its_neighbours() -> None:
    """Notes of a record take along what was passed over before it; its own rows, wherever they came from, explain it."""
    facts = TableFacts(
        present=offsets((10, 12), (19, 20)),
        overlaps=OffsetSet(),
        loaded=offsets((10, 30)),
        outcomes=Outcomes.of(
            [
                (ROWS, offsets((10, 12), (19, 20))),
                (UNDELIVERED, offsets((12, 14), (18, 21))),
                (NO_ROWS, offsets((12, 16))),
                (SENT_BACK, offsets((16, 30))),
                (FILTERED, offsets((10, 30))),
            ]
        ),
        settled=offsets((10, 30)),
    )
    report = reconcile(facts, {QUEUE: QueueEnds(0, 30, 30)})
    found = fates(report)
    assert found["undelivered"] == ((12, 14), (18, 19), (20, 21))
    assert (found["no_rows"], found["sent_back"]) == (((14, 16),), ((16, 18), (21, 30)))
    assert not report.fine
    assert report.to_run_again() == offsets((12, 14), (18, 19), (20, 21)), (
        "another member's filter may have kept it back"
    )
    told = report.as_told({Fate.COMPACTED: offsets((12, 14), (18, 19), (20, 21))})
    assert "undelivered" not in fates(told)
    assert told.fine


def not_delivered(noted: Iterable[tuple[str, OffsetSet]] = (), rows: tuple[int, int] = (20, 20)) -> TableFacts:
    """Of a table that has all of [0, 30) but [10, 20), of which a broker passed over what is not `noted` otherwise."""
    there = offsets((0, 10), (20, 30))
    told = Outcomes.of([(ROWS, there), (UNDELIVERED, offsets((10, 20))), *noted])
    return TableFacts(there, OffsetSet(), offsets((0, 30)), told, rows=rows, settled=offsets((0, 30)))


def test_what_was_not_delivered_does_not_explain_that_rows_lack() -> None:
    """Else the count of rows would not be named where the brokers say that the topic is compacted."""
    report = reconcile(not_delivered(rows=(19, 20)), {QUEUE: QueueEnds(0, 30, 30)})
    assert report.rows == (19, 20)
    told = report.as_told({Fate.COMPACTED: offsets((10, 20))})
    assert not any(queue.unexplained for queue in told.queues)
    assert not told.fine


def test_only_what_has_more_or_fewer_rows_than_were_loaded_explains_their_number() -> None:
    ends, rows = {QUEUE: QueueEnds(0, 40, 40)}, (19, 20)
    unknown = reconcile(not_delivered(rows=rows), ends)
    assert fates(unknown)["unknown"] == ((30, 40),)
    assert unknown.rows == rows
    for changed in (
        {"present": offsets((0, 9), (20, 30))}, {"overlaps": offsets((3, 4))}, {"loaded": offsets((0, 29))},
    ):  # fmt: skip
        assert reconcile(replace(not_delivered(rows=rows), **changed), ends).rows is None
    aside = reconcile(replace(not_delivered(rows=rows), quarantined=offsets((30, 33))), ends)
    assert fates(aside)["quarantined"] == ((30, 33),)
    assert aside.rows == rows


def test_lost_rows_are_written_off_only_where_a_rerun_brings_missing_records() -> None:
    ends = {QUEUE: QueueEnds(0, 30, 30)}
    assert reconcile(not_delivered(rows=(17, 20)), ends).rows_lost == 0
    missing = replace(not_delivered(rows=(17, 20)), present=offsets((0, 7), (20, 30)))
    assert reconcile(missing, ends).rows_lost == 3
    assert reconcile(missing, {QUEUE: QueueEnds(10, 30, 30)}).rows_lost == 0, "no broker has these"


def test_a_rerun_of_what_was_not_delivered_does_not_hide_a_lost_row(
    tmp_path: Path, segments: Any, threads: Executor
) -> None:
    world, record = World(tmp_path, segments, threads), segments.Record
    world.seal([record(0, ["a", "b", "c"]), record(6)])
    Staging(world.roots[0]).note("1", Outcomes.of([(UNDELIVERED, offsets((1, 6)))]))
    segments.settle(world.roots[0], (*QUEUE[:4], 0, 7))
    world.drain(world.loader())
    (file,) = files(world)
    table = pq.read_table(str(file), partitioning=None)
    pq.write_table(table.filter([True, False, True, True]), file)

    def look() -> Report:
        return reconcile(table_facts(world.table, world.roots[:1])[0], {QUEUE: QueueEnds(0, 7, 7)})

    report = look()
    segments.write_segment(tmp_path / "private", "r", 1, [[record(offset) for offset in range(1, 6)]])
    with only_rerun(world.table):
        assert load_again(world.table, tmp_path / "private", report.to_reopen(), report.rows_lost) == 5
    after = look()
    assert fates(after) == {"loaded": ((0, 7),)}
    assert after.rows == (8, 9)


@pytest.mark.parametrize(("committed", "waiting"), [(None, 20), (5, 20), (15, 20), (20, 0), (30, 0)])
def test_what_was_not_delivered_and_not_committed_will_be_pulled_once_more(committed: int | None, waiting: int) -> None:
    """The notes of its neighbours, which take it along, say no more of it."""
    facts = not_delivered([(NO_ROWS, offsets((10, 20)))])
    report = reconcile(facts, {QUEUE: QueueEnds(0, 30, committed)})
    found = {Fate(name): pieces for name, pieces in fates(report).items() if name != Fate.LOADED}
    first = max(10, committed or 0)
    wanted = {Fate.UNDELIVERED: ((10, min(first, 20)),), Fate.WAITING: ((first, waiting),)}
    assert found == {fate: pieces for fate, pieces in wanted.items() if pieces[0][0] < pieces[0][1]}


@pytest.mark.parametrize("seed", range(20))
def test_no_offset_has_two_words_and_none_is_left_out(seed: int) -> None:
    import random

    rng = random.Random(seed)

    def some() -> OffsetSet:
        return OffsetSet.of(
            (QUEUE, IntervalSet.of([(start, start + rng.randrange(6))])) for start in rng.sample(range(90), 8)
        )

    present, loaded = some(), some()
    outcomes = Outcomes.of((kind, some()) for kind in KINDS)
    facts = TableFacts(present, OffsetSet(), loaded, outcomes, some())
    found = reconcile(facts, {QUEUE: QueueEnds(5, 90, rng.randrange(90))}).queues[0].fates
    assert (
        sum(one.count() for one in found.values())
        == IntervalSet.of(p for o in found.values() for p in o.pieces).count()
    )
    assert not IntervalSet.of([(5, 90)]) - IntervalSet.of(p for o in found.values() for p in o.pieces)


def test_what_an_earlier_epoch_has_of_a_retry_topic_is_not_looked_for_in_the_newest() -> None:
    """A re-run of the group opens an epoch of its retry topic, whose offsets go on; those of a topic are read again."""
    retry, topic = (QUEUE._replace(topic=name) for name in ("%RETRY%g", "orders"))
    for key, unknown in ((retry, ()), (topic, ((0, 10),))):
        loaded = OffsetSet({key: IntervalSet.of([(0, 10)]), key.in_epoch(1): IntervalSet.of([(10, 20)])})
        settled = OffsetSet({key.in_epoch(1): IntervalSet.of([(0, 20)])})
        facts = TableFacts(loaded, OffsetSet(), loaded, Outcomes.of([(ROWS, loaded)]), settled=settled)
        report = reconcile(facts, {key: QueueEnds(0, 20, 20)})
        assert fates(report, key.in_epoch(1)).get("unknown", ()) == unknown
        assert fates(report, key) == {"loaded": ((0, 10),)}
        assert report.unseen == 0


def test_a_new_group_and_an_unknown_queue_are_no_gap() -> None:
    nothing = TableFacts(OffsetSet(), OffsetSet(), OffsetSet(), Outcomes())
    assert fates(reconcile(nothing, {QUEUE: QueueEnds(3, 9, None)})) == {"waiting": ((3, 9),)}
    assert fates(reconcile(nothing, {QUEUE: QueueEnds(3, 9, 9)})) == {"before": ((3, 9),)}


def test_what_is_before_all_that_is_known_was_not_seen() -> None:
    """Rows that were set aside at the beginning look so to whom does not see the staging folder."""
    rows, ends = offsets((10, 20)), {QUEUE: QueueEnds(3, 20, 20)}
    facts = TableFacts(rows, OffsetSet(), rows, Outcomes.of([(ROWS, rows)]))
    assert reconcile(facts, ends).unseen == 7
    assert reconcile(facts, None).unseen == 10, "no broker says what it still had"
    assert reconcile(replace(facts, quarantined=offsets((3, 10))), ends).unseen == 0


def fill(world: World, segments: Any) -> None:
    """Four segments, two batches; of each ten the sixth has no rows, and the eighth was sent back."""
    record = segments.Record
    for start in (0, 10, 20, 30):
        world.seal([record(start + n, [] if n == 5 else ["a", "b"]) for n in range(10) if n != 7])
    segments.settle(world.roots[0], (*QUEUE[:4], 0, 40))
    path = world.roots[0] / "outcomes" / "1.facts"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(facts_to_text(Outcomes.of([(SENT_BACK, offsets((7, 8), (17, 18), (27, 28), (37, 38)))])))
    world.drain(world.loader(bounds=PlanBounds(32, 10**9)))


def files(world: World) -> list[Path]:
    if world.format == "deltalake":
        return sorted(Path(unquote(uri)) for uri in DeltaTable(str(world.table)).file_uris())
    if world.format == "iceberg":
        found: list[Path] = world.target().files()
        return sorted(found)
    return sorted(world.table.glob("batch_id=*/*.parquet"))


def test_a_whole_table_is_explained(world: World, segments: Any) -> None:
    fill(world, segments)
    facts, broken = table_facts(world.table, world.roots[:1])
    report = reconcile(facts, {QUEUE: QueueEnds(0, 45, 40)})
    assert report.fine
    assert not broken
    found = fates(report)
    assert found["sent_back"] == ((7, 8), (17, 18), (27, 28), (37, 38))
    assert found["no_rows"] == ((5, 6), (15, 16), (25, 26), (35, 36))
    assert found["waiting"] == ((40, 45),)
    assert sum(stop - start for start, stop in found["loaded"]) == 32
    assert reconcile(facts, None).fine


def test_of_a_removed_file_exactly_its_offsets_are_named(world: World, segments: Any) -> None:
    fill(world, segments)
    whole = files(world)
    assert len(whole) >= 2
    victim = whole[0]
    gone = IntervalSet.from_offsets(set(pq.read_table(str(victim), partitioning=None).column("_offset").to_pylist()))
    victim.unlink()
    facts, broken = table_facts(world.table, world.roots[:1])
    report = reconcile(facts, {QUEUE: QueueEnds(0, 40, 40)})
    assert not report.fine
    assert fates(report)["missing"] == gone.pieces
    assert report.to_run_again() == OffsetSet({QUEUE: gone})
    assert len(broken) == (world.format != "parquet")
    assert all(victim.name in line for line in broken)
    assert all("iceberg.md" in line for line in broken) == (world.format != "deltalake")


def test_rows_that_are_there_twice_and_rows_of_nobody_are_named(
    tmp_path: Path, segments: Any, threads: Executor
) -> None:
    world = World(tmp_path, segments, threads)
    fill(world, segments)
    first = files(world)[0]
    pq.write_table(pq.read_table(str(first), partitioning=None).slice(0, 4), first.with_name("copy.parquet"))
    foreign = pq.read_table(str(first), partitioning=None).slice(0, 2)
    place = foreign.column_names.index("_offset")
    foreign = foreign.set_column(place, "_offset", [[77, 77]])
    pq.write_table(foreign, first.with_name("foreign.parquet"))
    facts, _ = table_facts(world.table, ())
    found = fates(reconcile(facts, None))
    assert found["overlap"] == ((0, 2),)
    assert found["foreign"] == ((77, 78),)


def test_a_batch_that_lost_later_rows_of_a_record_is_named(tmp_path: Path, segments: Any, threads: Executor) -> None:
    world = World(tmp_path, segments, threads)
    fill(world, segments)
    first = files(world)[0]
    table = pq.read_table(str(first), partitioning=None)
    pq.write_table(table.filter([True] + [False] + [True] * (table.num_rows - 2)), first)
    report = reconcile(table_facts(world.table, ())[0], None)
    assert report.rows == (63, 64)
    assert not report.fine


def test_what_is_sealed_waits(world: World, segments: Any) -> None:
    fill(world, segments)
    world.seal([segments.Record(40), segments.Record(41)])
    report = reconcile(table_facts(world.table, world.roots[:1])[0], {QUEUE: QueueEnds(0, 42, 42)})
    assert fates(report)["waiting"] == ((40, 42),)
    assert report.fine
    assert fates(reconcile(table_facts(world.table, ())[0], {QUEUE: QueueEnds(0, 42, 42)}))["unknown"] == ((40, 42),)


def test_no_table_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no batch yet"):
        table_facts(tmp_path, ())


@pytest.mark.parametrize("begun", [False, True], ids=["no folder", "an empty one"])
def test_before_the_first_batch_the_staging_folder_tells(
    tmp_path: Path, segments: Any, threads: Executor, begun: bool
) -> None:
    """A handler that returns nothing never makes a table, and what was set aside at first is to be named, too."""
    world = World(tmp_path, segments, threads)
    world.seal([segments.Record(40), segments.Record(41)])
    Staging(world.roots[0]).note("1", Outcomes.of([(NO_ROWS, offsets((0, 40)))]))
    if begun:
        world.table.mkdir()
    facts, broken = table_facts(world.table, world.roots[:1])
    report = reconcile(facts, {QUEUE: QueueEnds(0, 43, 43)})
    assert fates(report) == {"no_rows": ((0, 40),), "waiting": ((40, 42),), "unknown": ((42, 43),)}
    assert (facts.rows, broken) == ((0, 0), [])
    with pytest.raises(UsageError, match="holds no batch yet"):
        table_facts(world.table, ())
    with pytest.raises(UsageError, match=r"its loader has begun.*`rocketcrew reset -t orders --to TIME`"):
        check_begun(world.table, report, partial(reset_line, None, ()))
    (world.table / "somebody").mkdir(parents=True)
    with pytest.raises(UsageError, match="is no table of rocketcrew"):
        table_facts(world.table, world.roots[:1])


@pytest.mark.parametrize("format_", ["parquet", "deltalake"])
@pytest.mark.parametrize("told", ["by the loader's status", "by what it left"])
def test_a_table_that_is_gone_is_not_one_that_is_to_come(
    tmp_path: Path, segments: Any, threads: Executor, format_: str, told: str
) -> None:
    """Or everything would be from before the group began. Nor is one whose path is written wrongly."""
    world = World(tmp_path, segments, threads, format_)
    world.load(0, 1)
    world.load(2, 3)
    root = world.roots[0]
    if told == "by the loader's status":
        shutil.rmtree(root / "outcomes")
        status = StatusFile(root, str(world.table))
        status.status.batch_id = 2
        status.write(0)
    with pytest.raises(UsageError, match="holds no batch yet"):
        table_facts(tmp_path / "tabel", [root])
    shutil.rmtree(world.table)
    with pytest.raises(UsageError, match="holds no batch yet"):
        table_facts(world.table, [root])


@pytest.mark.parametrize(
    ("batch_ids", "totals", "fine"),
    [((1, 1), (1, 0), True), ((1, 1), (1, 1), False), ((1, 2), (0, 0), False), ((0, 0), (0, 0), True)],
)
def test_a_table_with_fewer_batches_than_its_loaders_have_made_is_not_explained(
    tmp_path: Path, segments: Any, threads: Executor, batch_ids: tuple[int, int], totals: tuple[int, int], fine: bool
) -> None:
    """One that was moved away with the batches of one loader, and begun anew by the other one."""
    world = World(tmp_path, segments, threads)
    world.load(0, 1)
    elsewhere = tmp_path / "elsewhere"
    for root, table, batch_id, total in (
        *zip(world.roots, [world.table] * 2, batch_ids, totals, strict=True), (elsewhere, tmp_path / "another", 9, 9),
    ):  # fmt: skip
        root.mkdir(exist_ok=True)
        told = StatusFile(root, str(table))
        told.status.batch_id, told.status.batches_total = batch_id, total
        told.write(0)
    report = reconcile(table_facts(world.table, [*world.roots, elsewhere])[0], None)
    assert report.fine is fine
    assert report.batches == (None if fine else (1, 2))


def test_a_staging_folder_that_is_named_twice_has_made_its_batches_once(world: World, tmp_path: Path) -> None:
    world.load(0)
    world.load(1)
    root, link = world.roots[0], tmp_path / "link"
    link.symlink_to(root)
    told = StatusFile(root, str(world.table))
    told.status.batch_id = told.status.batches_total = 2
    told.write(0)
    for stagings in ([root], [root, root], [root, link], [link, root / ".." / root.name]):
        assert reconcile(table_facts(world.table, stagings)[0], None).batches is None


def test_a_table_is_its_loaders_however_its_folder_is_named(world: World, tmp_path: Path) -> None:
    world.load(0)
    link = tmp_path / "link"
    link.symlink_to(world.table)
    named = world.table, link, tmp_path / "plain" / ".." / world.table.name
    (tmp_path / "plain").mkdir()
    for target in named:
        told = StatusFile(world.roots[0], str(target))
        told.status.batch_id = told.status.batches_total = 2
        told.write(0)
        for table in named if world.format != "iceberg" else named[:1]:  # a catalog refuses other names
            assert reconcile(table_facts(table, world.roots[:1])[0], None).batches == (1, 2)


def test_another_table_than_the_loader_s_is_not_to_come(tmp_path: Path, segments: Any, threads: Executor) -> None:
    world = World(tmp_path, segments, threads)
    world.seal([segments.Record(0)])
    StatusFile(world.roots[0], str(world.table)).write(0)
    assert table_facts(world.table, world.roots[:1])[0].rows == (0, 0)
    with pytest.raises(UsageError, match="holds no batch yet"):
        table_facts(tmp_path / "tabel", world.roots[:1])


def test_ranges_are_shown_short() -> None:
    assert compact(IntervalSet.of([(1, 2), (5, 9)])) == "1, 5-8"
    assert compact(IntervalSet.from_offsets(range(0, 100, 2)), 2) == "0, 2, … (50 in 50 ranges)"
    assert Fate("missing") is Fate.MISSING


def test_of_a_segment_that_vanished_before_it_was_loaded_exactly_its_offsets_are_named(
    world: World, segments: Any
) -> None:
    fill(world, segments)
    record = segments.Record
    world.seal([record(40), record(41)])
    victim = world.seal([record(42), record(43, []), record(44)])
    world.seal([record(45), record(46, [])])
    segments.settle(world.roots[0], (*QUEUE[:4], 0, 47))
    victim.unlink()
    for cluster in ({QUEUE: QueueEnds(0, 47, 47)}, None):
        report = reconcile(table_facts(world.table, world.roots[:1])[0], cluster)
        assert fates(report).get("unknown") == ((42, 45),)
        assert not report.fine


def test_what_a_kill_took_the_notes_of_is_recovered_and_only_that() -> None:
    noted = Outcomes.of([(ROWS, offsets((0, 5))), (RECOVERED, offsets((4, 8)))])
    facts = TableFacts(
        offsets((0, 5)), OffsetSet(), offsets((0, 5)), noted, rows=(5, 5), settled=offsets((0, 6), (8, 10))
    )
    report = reconcile(facts, None)
    assert fates(report) == {"loaded": ((0, 5),), "recovered": ((5, 8),), "unknown": ((8, 10),)}
    old = TableFacts(offsets((0, 5)), OffsetSet(), offsets((0, 9)), Outcomes())
    assert fates(reconcile(old, None)) == {"loaded": ((0, 5),), "unknown": ((5, 9),)}, "its outcomes are gone"


@pytest.mark.parametrize("crash", [False, True])
def test_what_was_lost_is_loaded_again_once(world: World, segments: Any, tmp_path: Path, crash: bool) -> None:
    fill(world, segments)
    files(world)[0].unlink() if world.format == "parquet" else repaired(world)
    wanted = reconcile(table_facts(world.table, ())[0], None).to_run_again()
    assert wanted
    again = [record for record in world.written if record.offset in wanted.of_queue(QUEUE)]
    for attempt in range(2 if crash else 1):
        private = tmp_path / f"rerun-{attempt}"
        segments.write_segment(private, "r", 1, [again, again[:1]])
        with only_rerun(world.table):
            with pytest.raises(LoaderError, match="another reconcile --rerun"), only_rerun(world.table):
                pass
            now = reconcile(table_facts(world.table, ())[0], None)
            rows = load_again(world.table, private, now.to_reopen(), now.rows_lost)
        assert rows == (2 * len(again) if attempt == 0 else 0)
    world.assert_exact()
    world.seal([segments.Record(3, ["again"])])
    world.drain(world.loader())
    world.assert_exact()
    assert reconcile(table_facts(world.table, world.roots[:1])[0], {QUEUE: QueueEnds(0, 40, 40)}).fine


def repaired(world: World) -> None:
    """Take one file out of a table with a log for good, as its users do after a loss (docs/how-to/iceberg.md has it too)."""
    gone = files(world)[0]
    gone.unlink()
    if world.format == "deltalake":
        DeltaTable(str(world.table)).repair()
        return
    table = world.target().table()
    with table.transaction() as change, change.update_snapshot().overwrite() as changed:
        for task in table.scan().plan_files():
            if task.file.file_path.endswith(gone.name):
                changed.delete_data_file(task.file)


@pytest.mark.parametrize("deleted", [False, True])
def test_what_a_batch_has_loaded_is_unknown_where_its_rows_and_outcomes_are_gone(
    world: World, *, deleted: bool
) -> None:
    for offset in (1, 2, 3):
        world.load(offset)
    if deleted and world.format == "parquet":
        files(world)[0].unlink()
    elif deleted:
        table: Any = DeltaTable(str(world.table)) if world.format == "deltalake" else world.target().table()
        table.delete("_offset = 1")
    told = "batch_id=1/_outcomes.json.gz" if world.format == "parquet" else "_rocketcrew/outcomes/1-*"
    (path,) = world.table.glob(told)
    path.unlink()
    report = reconcile(table_facts(world.table, world.roots)[0], None)
    assert report.untold.pieces == ((1, 2),)
    assert report.fine is not deleted
    assert fates(report) == ({"loaded": ((2, 4),), "unknown": ((1, 2),)} if deleted else {"loaded": ((1, 4),)})
    assert report.to_reopen() == (offsets((1, 2)) if deleted else OffsetSet())


@pytest.mark.parametrize("kind", ["other columns", "damaged", "unreadable"])
def test_rows_that_were_set_aside_are_not_explained(world: World, segments: Any, kind: str) -> None:
    world.seal([segments.Record(n) for n in range(5)])
    world.drain(world.loader())
    columns = [("value", pa.int64())] if kind == "other columns" else ()
    path = world.seal([segments.Record(n, extra={"value": n} if columns else {}) for n in (5, 6, 8)], columns=columns)
    if kind != "other columns":
        path.write_bytes(path.read_bytes()[:-40] if kind == "damaged" else b"nothing")
    assert world.drain(world.loader()) == []
    facts, broken = table_facts(world.table, world.roots[:1])
    report = reconcile(facts, {QUEUE: QueueEnds(0, 9, 9)})
    assert not report.fine
    if kind == "other columns":
        assert fates(report) == {"loaded": ((0, 5),), "quarantined": ((5, 7), (8, 9)), "unknown": ((7, 8),)}
    assert report.to_run_again() == offsets((5, 9))
    assert not report.to_reopen()
    assert [path.name in line for line in broken] == ([] if kind == "other columns" else [True])


def test_set_aside_records_come_back_by_a_rerun(world: World, segments: Any, tmp_path: Path) -> None:
    world.seal([segments.Record(n) for n in range(5)])
    world.drain(world.loader())
    world.seal([segments.Record(5, extra={"value": 5})], columns=[("value", pa.int64())])
    world.drain(world.loader())
    report = reconcile(table_facts(world.table, world.roots[:1])[0], {QUEUE: QueueEnds(0, 6, 6)})
    segments.write_segment(tmp_path / "private", "r", 1, [[segments.Record(5)]])
    with only_rerun(world.table):
        assert load_again(world.table, tmp_path / "private", report.to_reopen(), report.rows_lost) == 1
    after = reconcile(table_facts(world.table, world.roots[:1])[0], {QUEUE: QueueEnds(0, 6, 6)})
    assert after.fine
    assert fates(after) == {"loaded": ((0, 6),)}


def test_what_another_loader_brings_during_a_rerun_is_not_loaded_twice(
    world: World, segments: Any, tmp_path: Path
) -> None:
    """Records 3 and 4 were unknown, as their segment was away; it came back, and its loader was first."""
    world.seal([segments.Record(n) for n in range(3)])
    world.drain(world.loader())
    report = reconcile(table_facts(world.table, ())[0], {QUEUE: QueueEnds(0, 5, 5)})
    assert report.to_run_again() == offsets((3, 5))
    segments.write_segment(tmp_path / "private", "r", 1, [[segments.Record(3), segments.Record(4)]])
    world.seal([segments.Record(3), segments.Record(4)])
    world.drain(world.loader())
    with only_rerun(world.table):
        assert load_again(world.table, tmp_path / "private", report.to_reopen(), report.rows_lost) == 0
    world.assert_exact()


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda ends: (min(ends), max(ends)))))
def test_what_more_than_one_file_has(pieces: list[tuple[int, int]]) -> None:
    counts = Counter(offset for start, stop in pieces for offset in range(start, stop))
    twice = {offset for offset, count in counts.items() if count > 1}
    found = IntervalSet.of(overlapping(pieces))
    assert {offset for start, stop in found.pieces for offset in range(start, stop)} == twice


def lines_run(files: int) -> int:
    """How many lines of this project run for a table of so many files, of which each has a few records of 16 queues."""
    lines = 0

    def count(frame: Any, event: str, _: object) -> Any:
        nonlocal lines
        if "rocketcrew" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return count

    keys = [
        pa.table(
            {
                "_group": ["g"] * 16, "_topic": ["orders"] * 16, "_broker": ["broker-a"] * 16,
                "_queue_id": list(range(16)), "_offset": [2 * file] * 16, "_seq": [0] * 16,
            }
        )
        for file in range(files)
    ]  # fmt: skip
    before = sys.gettrace()
    sys.settrace(count)
    try:
        presence = Presence()
        for one in keys:
            presence.add(one)
        present, overlaps = presence.present(), presence.overlaps()
        told = Outcomes.of([(ROWS, present)])
        report = reconcile(TableFacts(present, overlaps, present, told, rows=(presence.rows, presence.rows)), None)
    finally:
        sys.settrace(before)
    assert report.fine
    assert sum(queue.fates[Fate.LOADED].count() for queue in report.queues) == 16 * files
    return lines


def test_what_is_done_for_a_file_does_not_grow_with_their_number() -> None:
    few, many = lines_run(60), lines_run(240)
    assert many < 4.4 * few


def test_only_the_newest_epoch_is_run_again() -> None:
    later = QUEUE.in_epoch(1)
    gone = Outcomes.of([(ROWS, OffsetSet({QUEUE: IntervalSet.of([(0, 3)]), later: IntervalSet.of([(1, 2)])}))])
    report = reconcile(TableFacts(OffsetSet(), OffsetSet(), OffsetSet(), gone), {QUEUE: QueueEnds(0, 2, 2)})
    assert [queue.ends is not None for queue in report.queues] == [False, True], "the brokers speak of the newest"
    assert report.to_run_again().queues.keys() == {later}


def test_of_a_queue_that_only_others_had_nothing_is_known() -> None:
    """A Java member's, say: what the group has committed of it is from before anything that is known here."""
    other = QUEUE._replace(queue_id=1)
    facts = TableFacts(offsets((5, 9)), OffsetSet(), offsets((5, 9)), Outcomes())
    report = reconcile(facts, {QUEUE: QueueEnds(0, 9, 9), other: QueueEnds(0, 8, 6)})
    assert fates(report, other) == {"waiting": ((6, 8),), "before": ((0, 6),)}
    assert report.only_before == 6


def test_a_queue_that_no_broker_knows_although_it_was_asked_for_is_not_explained() -> None:
    """Of a topic that was made to have fewer queues brokers name those alone that it has."""
    cut = QUEUE._replace(queue_id=1)
    loaded = OffsetSet(
        {key: IntervalSet.of([(0, 3)]) for key in (QUEUE, QUEUE.in_epoch(1), cut, cut._replace(group="h"))}
    )
    facts = TableFacts(loaded, OffsetSet(), loaded, Outcomes())
    named: dict[QueueKey, QueueEnds | None] = {QUEUE: QueueEnds(0, 3, 3)}
    report = reconcile(facts, named)
    assert report.not_named("g") == [cut], "not an older epoch, nor another group's"
    assert report.fine
    gone = reconcile(facts, named | {cut: None})
    assert [queue.key for queue in gone.queues if queue.not_at_brokers] == [cut]
    assert not gone.fine
    there = reconcile(facts, named | {cut: QueueEnds(0, 5, 3, read=False)})
    assert fates(there, cut) == {"loaded": ((0, 3),), "waiting": ((3, 5),)}
    assert there.not_named("g") == []
