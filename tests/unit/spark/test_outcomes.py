"""Lists of outcomes: what they say, how small they are, and that no crash loses or doubles them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from loader_world import World

from rocketcrew.durable.facts import facts_from_bytes, facts_to_text
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import (
    DEAD_LETTER,
    FILTERED,
    NO_ROWS,
    ROWS,
    SENT_BACK,
    BatchOutcomes,
    Outcomes,
)
from rocketcrew.spark.loader import POINTS
from rocketcrew.spark.plan import Plan, SegmentFacts, make_takes, plan_to_json, settled_to_fold
from rocketcrew.spark.staging import Staging
from rocketcrew.spark.table_keys import table_facts

QUEUE = QueueKey("g", "orders", "broker-a", 0)


TABLES = ("parquet", "deltalake")
"""What the tests with a world run on, each."""


def one(kind: str, *pieces: tuple[int, int], queue: QueueKey = QUEUE) -> Outcomes:
    return Outcomes.of([(kind, OffsetSet({queue: IntervalSet.of(pieces)}))])


def note(world: World, notes: Outcomes, name: str = "1", at: int = 0) -> Path:
    path = world.roots[at] / "outcomes" / f"{name}.facts"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(facts_to_text(notes))
    return path


def taken(world: World) -> bool:
    """Whether no notes wait: all that is there is the file of what was left."""
    return [path.suffix for path in (world.roots[0] / "outcomes").iterdir()] == [".left"]


def test_outcomes_survive_their_forms() -> None:
    queue = QUEUE.in_epoch(2)
    told = Outcomes.union([one(ROWS, (0, 9)), one(NO_ROWS, (9, 12)), one(SENT_BACK, (1, 2), queue=queue)])
    assert facts_from_bytes(facts_to_text(told).encode()) == told
    batch = BatchOutcomes(7, told)
    assert BatchOutcomes.unpack(batch.pack()) == batch
    assert batch.pack() == batch.pack(), "the same outcomes are the same bytes"


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"version":9}', b'{"version":1,"outcomes":{"eaten":[]}}'])
def test_other_texts_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        BatchOutcomes.unpack(text)


def test_a_file_of_facts_that_was_changed_anywhere_is_refused() -> None:
    whole = facts_to_text(one(NO_ROWS, (0, 9), (11, 12))).encode()
    for at, byte in enumerate(whole):
        for changed in (
            whole[:at],
            whole[:at] + bytes([byte ^ 1]) + whole[at + 1 :],
            whole[:at] + bytes(len(whole) - at),
        ):
            with pytest.raises(ValueError, match=r"facts"):
                facts_from_bytes(changed)
    with pytest.raises(ValueError, match=r"facts of version 4, this program knows 3"):
        facts_from_bytes(whole.replace(b"facts 3", b"facts 4"))


@pytest.mark.parametrize("point", [None, *POINTS])
def test_what_was_noted_is_in_the_table_whatever_dies(world: World, segments: Any, point: str | None) -> None:
    world.seal([segments.Record(1), segments.Record(4)])
    note(world, one(SENT_BACK, (2, 3)))
    if point is not None:
        world.drain_with_crash(point)
        note(world, one(DEAD_LETTER, (3, 4)), "2")
    world.seal([segments.Record(6)])
    world.drain(world.loader())
    facts, broken = table_facts(world.table, world.roots[:1])
    assert not broken
    assert facts.outcomes.of_queue(ROWS, QUEUE).pieces == ((1, 2), (4, 5), (6, 7))
    assert facts.outcomes.of_queue(SENT_BACK, QUEUE).pieces == ((2, 3),)
    if point is not None:
        assert facts.outcomes.of_queue(DEAD_LETTER, QUEUE).pieces == ((3, 4),)
    world.assert_exact()
    assert taken(world)


def drained_with_the_next(world: World, loader: Any, segments: Any) -> None:
    """After this loader's batch and that of one more record the table has all that was noted, and no file of it is left."""
    world.drain(loader)
    world.seal([segments.Record(9)])
    world.drain(world.loader())
    facts, _ = table_facts(world.table, ())
    assert (facts.outcomes.of_queue(NO_ROWS, QUEUE) - facts.present.of_queue(QUEUE)).pieces == ((2, 5),)
    assert taken(world)


@pytest.mark.parametrize("point", POINTS[:4])
def test_facts_that_were_replaced_after_a_plan_was_frozen_come_with_the_next(
    world: World, segments: Any, point: str
) -> None:
    """The supervisor seals one that contains them, and deletes the one that the plan names."""
    world.seal([segments.Record(1)])
    planned = note(world, one(NO_ROWS, (2, 3)))
    loader = world.loader()

    def replace(here: str) -> None:
        if here == point:
            note(world, one(NO_ROWS, (2, 5)), "2")
            planned.unlink()

    loader._on_point = replace
    drained_with_the_next(world, loader, segments)
    world.assert_exact()


def test_facts_that_are_sealed_after_a_plan_was_frozen_wait_for_the_next(world: World, segments: Any) -> None:
    world.seal([segments.Record(1)])
    first = note(world, one(NO_ROWS, (2, 3)))
    loader = world.loader()
    loader._on_point = lambda here: note(world, one(NO_ROWS, (3, 4)), "2") and None if here == "planned" else None
    world.drain(loader)
    assert [path.name for path in first.parent.glob("*.facts")] == ["2.facts"]
    facts, _ = table_facts(world.table, ())
    assert (facts.outcomes.of_queue(NO_ROWS, QUEUE) - facts.present.of_queue(QUEUE)).pieces == ((2, 3),)


def test_a_link_that_leads_nowhere_is_passed_over(world: World, segments: Any) -> None:
    path = note(world, one(NO_ROWS, (2, 3)))
    path.with_name("0.facts").symlink_to(path.with_name("gone"))
    assert list(Staging(world.roots[0]).facts()) == ["1.facts"]
    world.seal([segments.Record(1)])
    world.drain(world.loader())
    assert [left.name for left in path.parent.glob("*.facts")] == ["0.facts"]


@pytest.mark.parametrize("suffix", [".facts", ".left"])
def test_a_file_that_is_replaced_while_it_is_looked_for_is_found_in_the_next(world: World, suffix: str) -> None:
    """The one that takes its place is not in the first listing, and the one that was there is gone when it is read."""
    notes = one(NO_ROWS, (2, 3))
    note(world, notes, "8").rename(world.roots[0] / "outcomes" / f"8{suffix}")

    class Replaced(Staging):
        def _read(self, path: Path) -> Outcomes:
            read.append(path.name)
            if len(read) == 1:
                path.rename(path.with_name(f"9{suffix}"))
            return super()._read(path)

    read: list[str] = []
    staging = Replaced(world.roots[0])
    found = staging.facts() if suffix == ".facts" else {path.name: left for path, left in staging.left().items()}
    assert found == {f"9{suffix}": notes}
    assert read == [f"8{suffix}", f"9{suffix}"]


def test_damaged_notes_are_set_aside(world: World, segments: Any) -> None:
    note(world, one(NO_ROWS, (2, 3))).write_text("{")
    world.seal([segments.Record(1)])
    world.drain(world.loader())
    assert (world.roots[0] / "bad" / "1.facts").exists()
    world.assert_exact()


def test_files_that_no_loader_knows_stay_as_they_are(world: World, segments: Any) -> None:
    world.seal([segments.Record(1)])
    unknown = [world.roots[0] / name for name in ("settled.json", "kept.json", "outcomes/1.json", "outcomes/1.taken")]
    for path in unknown:
        path.parent.mkdir(exist_ok=True)
        path.write_text("{")
    world.drain(world.loader())
    world.assert_exact()
    assert [path.read_text() for path in unknown] == ["{"] * 4


def test_a_million_messages_with_a_tag_and_retries_stay_small() -> None:
    """A tag that matches one in ten, one of a hundred fails: plan below 64 KiB, ledger below three bytes a match."""
    rng = random.Random(1)
    matching = [offset for offset in range(1_000_000) if rng.random() < 0.1]
    failed = {offset for offset in matching if rng.random() < 0.01}
    done = [offset for offset in matching if offset not in failed]
    retry = QUEUE._replace(topic="%RETRY%g")
    facts: list[SegmentFacts] = []
    for start in range(0, len(done), 5000):
        some = OffsetSet({QUEUE: IntervalSet.from_offsets(done[start : start + 5000])})
        facts.append(SegmentFacts(f"w-{start:08d}.arrows", 1, 5000, some, False, ()))
    facts.append(SegmentFacts("w-9.arrows", 1, 1, OffsetSet({retry: IntervalSet.of([(0, len(failed))])}), False, ()))
    again = OffsetSet({QUEUE: IntervalSet.from_offsets(done[:7000])})
    takes = make_takes(facts, again)
    settled = OffsetSet({QUEUE: IntervalSet.of([(0, 1_000_000)]), retry: IntervalSet.of([(0, len(failed))])})
    plan = Plan("x", 1, takes, settled_to_fold(settled, (), OffsetSet()), ())
    assert len(plan_to_json(plan)) < 64 * 1024
    told = Outcomes.of(
        [
            (ROWS, plan.taken({fact.name: fact for fact in facts})),
            (FILTERED, OffsetSet({QUEUE: IntervalSet.of([(0, 1_000_000)])})),
            (SENT_BACK, OffsetSet({QUEUE: IntervalSet.from_offsets(failed)})),
        ]
    )
    assert len(BatchOutcomes(1, told).pack()) < 3 * len(matching)
