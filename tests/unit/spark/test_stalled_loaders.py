"""A loader that stood still in its commit while others made several of theirs: it has lost a race, and plans again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest
from loader_world import World

from rocketcrew.spark.outcome_levels import FAN
from rocketcrew.spark.targets.delta import STATE_DIR

pytestmark = pytest.mark.parametrize("world", ["deltalake"], indirect=True)


def still_at(name: str, others: Callable[[], object], act: Callable[[], object]) -> None:
    """`act`, which stands still when it first calls a function of that name, while `others` are at work."""
    left = [others]

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == name and left:
            left.pop()()

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        act()
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("others", [1, 4, FAN + 8])
@pytest.mark.parametrize("at", ["write_outcomes", "append_by_delta_rs"])
def test_a_loader_that_others_have_overtaken_plans_again_and_leaves_nothing(world: World, others: int, at: str) -> None:
    world.load(0)
    world.seal([world.helpers.Record(100)], at=1)
    loader = world.loader(at=1)

    def overtaken() -> None:
        for offset in range(1, others + 1):
            world.load(offset)

    still_at(at, overtaken, lambda: world.drain(loader))
    assert (loader.totals.batches, loader.totals.replanned) == (1, 1)
    assert world.state()["batch"] == others + 2
    world.assert_exact()
    world.assert_clean(at=1)
    ledger = world.table / STATE_DIR
    states = [path.name.partition("-")[0] for path in ledger.glob("*-*.json")]
    assert sorted(states, key=int) == [str(others + 1), str(others + 2)]
    own = [path.name.partition("-")[0] for path in (ledger / "outcomes").glob("*-0*")]
    assert len(own) == len(set(own))
    assert ("2" in own) == (others < FAN), "once they are folded, what lost is not left alone"
