"""What the table has, counted by message key against the sender's own list, and never against a ledger of ours.

Topics are deleted and made again, and segments are lost where gaps are left; loaders die, members hand out messages twice,
and one member's loader is late. The order of events is a seed's; one that fails is run again by that seed alone.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
import segment_helpers
from loader_world import Crash, World, crash_at

from rocketcrew.spark.loader import POINTS, Loader
from rocketcrew.spark.plan import PlanBounds
from rocketcrew.spark.reconciling import Fate, reconcile
from rocketcrew.spark.table_keys import table_facts

TABLES = ("parquet", "deltalake")
QUEUES = 2
STEPS = 24
FEW = PlanBounds(2, 10**9)
"""So that a drain is some batches."""


class Sender:
    """Sends each message once, under a key of its own, which is the row's value. `keys` is all that it has ever sent."""

    def __init__(self, record: Callable[..., Any]) -> None:
        self.keys: list[str] = []
        self._record = record
        self._queues: list[list[Any]] = [[] for _ in range(QUEUES)]
        self._days = 0

    def send(self, queue_id: int, count: int) -> list[Any]:
        sent = [self._next(queue_id) for _ in range(count)]
        self.keys += [record.values[0] for record in sent]
        return sent

    def _next(self, queue_id: int) -> Any:
        queue = self._queues[queue_id]
        stored = segment_helpers.EPOCH + timedelta(days=self._days, seconds=len(queue))
        queue.append(
            self._record(
                len(queue),
                [f"{self._days}-{queue_id}-{len(queue)}"],
                queue_id=queue_id,
                extra={"_store_time": stored},
            )
        )
        return queue[-1]

    def again(self, dice: Random) -> list[Any]:
        """Messages of now that are handed out once more, as after a kill of a member."""
        queue = dice.choice(self._queues)
        start = dice.randrange(len(queue) + 1)
        return queue[start : start + dice.randint(1, 6)]

    def make_again(self) -> None:
        """The topic is deleted and created: its offsets begin at 0."""
        self._days += 1
        self._queues = [[] for _ in range(QUEUES)]


class Story:
    """Two members with a loader each, on one table."""

    def __init__(self, world: World, dice: Random, **loaders: Any) -> None:
        self.world = world
        self.dice = dice
        self.sender = Sender(world.helpers.Record)
        self._loaders = loaders

    def seal(self, records: Sequence[Any], at: int) -> Path | None:
        if not records:
            return None
        path = self.world.seal(list(records), at=at)
        queue = (records[0].group, records[0].topic, records[0].broker, records[0].queue_id)
        self.world.helpers.settle(self.world.roots[at], (*queue, records[0].offset, records[-1].offset + 1))
        return path

    def consume(self) -> Path | None:
        """New messages reach a member."""
        return self.seal(self.sender.send(self.dice.randrange(QUEUES), self.dice.randint(1, 6)), self.dice.randrange(2))

    def drain(self, at: int) -> None:
        self.world.drain(self._loader(at))

    def die(self) -> None:
        """A loader comes as far as a point, and the next one goes on."""
        crash = crash_at(self.dice.choice(POINTS))
        with contextlib.suppress(Crash):
            self.world.drain(self._loader(self.dice.randrange(2), crash))

    def _loader(self, at: int, on_point: Callable[[str], None] = lambda _: None) -> Loader:
        return self.world.loader(
            at, on_point=on_point, bounds=self.dice.choice((FEW, PlanBounds(100, 10**9))), **self._loaders
        )

    def assert_table_has(self, keys: Iterable[str]) -> None:
        assert Counter(key for (key,) in self.world.rows("value")) == Counter(keys)


def set_aside(world: World) -> set[str]:
    """The keys in files that are set aside, each of which `reconcile` names."""
    files = [path for root in world.roots for path in root.glob("bad/*.arrows")]
    told = "".join(table_facts(world.table, world.roots)[1])
    assert all(str(path) in told for path in files)
    return {key for path in files for key in pa.ipc.open_stream(path.read_bytes()).read_all()["value"].to_pylist()}


@pytest.mark.parametrize("seed", range(8))
def test_each_message_of_topics_that_are_made_again_is_there_once(world: World, seed: int) -> None:
    story = Story(world, Random(seed), epoch_on_recreated=True)
    dice, made_again = story.dice, 0

    def begin() -> None:
        """Of each queue's first messages, the member of the later ones may be the quicker one: they lie above all before."""
        story.sender.make_again()
        for queue_id in range(QUEUES):
            first, later = (story.sender.send(queue_id, dice.randint(1, 6)) for _ in range(2))
            late = dice.randrange(2)
            story.seal(first, late)
            story.seal(later, 1 - late)
        story.drain(dice.randrange(2))

    begin()
    for _ in range(STEPS):
        what = dice.choice(("consume", "consume", "again", "drain", "die", "made again"))
        if what == "consume":
            story.consume()
        elif what == "again":
            story.seal(story.sender.again(dice), dice.randrange(2))
        elif what == "drain":
            story.drain(dice.randrange(2))
        elif what == "die":
            story.die()
        else:
            made_again += 1
            for at in (0, 1) if made_again % 2 else (0,):  # the other one has messages of before, every second time
                story.drain(at)
            begin()
    for at in (0, 1, 0):
        story.drain(at)
    # Late by two topics: nobody can tell any more, and it is named.
    rows = Counter(key for (key,) in world.rows("value"))
    assert rows == Counter(set(story.sender.keys) - (set_aside(world) - rows.keys()))
    for at in (0, 1):
        world.assert_clean(at)


@pytest.mark.parametrize("seed", range(8))
def test_where_gaps_are_left_what_was_lost_is_missing_and_nothing_else(world: World, seed: int) -> None:
    """What is lost is lost with a sealed segment; some of these files are found again."""
    story = Story(world, Random(seed), leave_gaps=True)
    dice = story.dice
    lost: dict[Path, list[Any]] = {}

    def lose() -> None:
        records = story.sender.send(dice.randrange(QUEUES), dice.randint(1, 6))
        path = story.seal(records, dice.randrange(2))
        assert path is not None
        lost[path.rename(path.parent.parent / f"lost-{path.name}")] = records

    def find() -> None:
        if lost:
            path = dice.choice(sorted(lost))
            path.rename(path.parent / "ready" / path.name.removeprefix("lost-"))
            del lost[path]

    for queue_id in range(QUEUES):  # where the table begins
        story.seal(story.sender.send(queue_id, 1), 0)
    story.drain(0)
    moves = (story.consume, story.consume, lose, find, story.die, lambda: story.drain(dice.randrange(2)))
    for _ in range(STEPS):
        dice.choice(moves)()
    lose()
    for at in (0, 1):
        for queue_id in range(QUEUES):
            story.seal(story.sender.send(queue_id, 1), at)
        story.drain(at)
    missing = [record for records in lost.values() for record in records]
    story.assert_table_has(set(story.sender.keys) - {record.values[0] for record in missing})
    report = reconcile(table_facts(world.table, world.roots)[0], None)
    unknown = {
        (one.key.queue_id, offset)
        for one in report.queues
        if Fate.UNKNOWN in one.fates
        for piece in one.fates[Fate.UNKNOWN].pieces
        for offset in range(*piece)
    }
    assert unknown == {(record.queue_id, record.offset) for record in missing}
