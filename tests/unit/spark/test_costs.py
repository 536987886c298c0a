"""The size of a batch follows what commits cost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rocketcrew.conf.settings import load
from rocketcrew.durable.intervals import OffsetSet
from rocketcrew.spark.config import LoaderConfig, loader_config
from rocketcrew.spark.costs import Costs
from rocketcrew.spark.plan import SegmentFacts

FIXED_SHARE = 0.2
"""Of a commit's time, at most, as costs.py says."""


def learnt(fixed: float, per_row: float, sizes: list[int]) -> Costs:
    costs = Costs()
    for rows in sizes:
        costs = costs.after(rows, fixed + per_row * rows)
    return costs


@pytest.mark.parametrize("commits", [5, 10, 40])
@pytest.mark.parametrize(("fixed", "per_row"), [(0.25, 6e-6), (1.6, 1e-5), (0.02, 3e-6), (3.0, 2e-5)])
def test_the_fixed_part_comes_below_a_fifth(fixed: float, per_row: float, commits: int) -> None:
    rng = random.Random(1)
    costs = learnt(fixed, per_row, [rng.randrange(1_000, 1_000_000) for _ in range(commits)])
    rows = costs.rows_wanted()
    assert 0.02 < fixed / (fixed + per_row * rows) <= FIXED_SHARE


@pytest.mark.parametrize(("fixed", "per_row"), [(0.25, 6e-6), (1.6, 1e-5), (0.02, 3e-6)])
def test_rows_of_a_kibibyte_are_not_loaded_sooner_for_their_bytes(fixed: float, per_row: float) -> None:
    """With the settings as they are, of any target."""
    costs = learnt(fixed, per_row, [50_000, 200_000] * 10)
    defaults = load({}, {}, None)
    config = loader_config(defaults.spark, Path("s"), Path("t"), {}, defaults.results.high_water_mib)
    wanted = costs.rows_wanted()
    assert wanted <= config.max_rows
    trigger = config.trigger.for_costs(costs)
    for rows, due in ((wanted - 1, False), (wanted, True)):
        waiting = [SegmentFacts("w-1.arrows", rows * 1100, rows, OffsetSet(), False, ())]
        assert trigger.due(waiting, 0) is due


def test_bytes_make_a_batch_due_before_they_stop_whoever_seals() -> None:
    sizes = {
        (high_water, master): LoaderConfig(
            Path("s"), Path("t"), max_bytes=100, high_water_bytes=high_water, master=master
        ).trigger.bytes
        for high_water in (0, 10_000, 300)
        for master in ("local[2]", "sc://host")
    }
    assert sizes == {
        (0, "local[2]"): 400, (10_000, "local[2]"): 400, (300, "local[2]"): 150,
        (0, "sc://host"): 100, (10_000, "sc://host"): 100, (300, "sc://host"): 100,
    }  # fmt: skip


def test_before_anything_is_known_it_is_the_usual() -> None:
    assert 100_000 < Costs().rows_wanted() < 300_000


def test_commits_of_one_size_and_of_no_time_change_little_at_once() -> None:
    same = learnt(0.3, 8e-6, [50_000] * 100).rows_wanted()
    assert 75_000 < same < 300_000
    assert learnt(0.0, 0.0, [1000] * 5).rows_wanted() >= 1


def test_a_cheaper_target_gets_smaller_batches_and_a_slower_one_larger() -> None:
    sizes = [1_000, 20_000, 5_000, 100_000] * 5
    assert learnt(0.02, 5e-6, sizes).rows_wanted() < learnt(0.3, 5e-6, sizes).rows_wanted()
    assert learnt(0.3, 5e-6, sizes).rows_wanted() < learnt(1.6, 5e-6, sizes).rows_wanted()


def test_what_changed_is_followed() -> None:
    costs = learnt(0.2, 6e-6, [10_000, 200_000] * 20)
    before = costs.rows_wanted()
    for rows in [10_000, 200_000] * 20:
        costs = costs.after(rows, 1.6 + 6e-6 * rows)
    assert costs.rows_wanted() > 4 * before
