"""Large chunks, held reports and queues that leave in the middle of them: every seed must hold every invariant."""

from __future__ import annotations

from collections import Counter

import pytest

from .large_chunks import LARGE_WORLDS
from .simulation import Simulation

ALL_HAPPENS_FROM = 4
"""With fewer seeds of a world, something may be missing by chance."""


@pytest.mark.parametrize("name", LARGE_WORLDS)
def test_large_chunks(name: str, large_seeds: range, sim_steps: int) -> None:
    world, seen = LARGE_WORLDS[name], Counter[str]()
    for seed in large_seeds:
        simulation = Simulation(seed, world.parts(seed))
        try:
            simulation.run(sim_steps)
        except Exception as error:  # noqa: BLE001  whatever stops a run, its seed must be told
            pytest.fail(simulation.world.told(error, "test_large_chunks.py", sim_steps))
        seen.update(simulation.world.happened)
    missing = world.wanted - seen.keys()
    if missing and len(large_seeds) >= ALL_HAPPENS_FROM:
        pytest.fail(f"over all {len(large_seeds)} seeds, this never happened: {sorted(missing)}")
