"""Supervisor core and broker core in one thread: every seed must hold every invariant, and all together see everything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .coverage import add_up, seen_in
from .simulation import Simulation

ALL_HAPPENS_FROM = 150
"""With fewer seeds, rare events may be missing by chance."""


def test_run(
    sim_seed: int,
    sim_steps: int,
    sim_seeds: int,
    tmp_path_factory: pytest.TempPathFactory,
    worker_id: str,
    record_property: Callable[[str, object], None],
) -> None:
    simulation = Simulation(sim_seed)
    try:
        simulation.run(sim_steps)
    except Exception as error:  # noqa: BLE001  whatever stops a run, its seed must be told
        pytest.fail(simulation.world.told(error, "test_simulation.py", sim_steps))
    seen = seen_in(simulation)
    record_property("sim_steps", simulation.world.steps)
    record_property("sim_faults", {kind[7:]: count for kind, count in seen.items() if kind.startswith("fault: ")})
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    missing = add_up(shared / "simulation", sim_seed, seen, sim_seeds) if sim_seeds else None
    if missing and sim_seeds >= ALL_HAPPENS_FROM:
        pytest.fail(f"over all {sim_seeds} seeds, this never happened: {sorted(missing)}")


def test_a_seed_is_its_run() -> None:
    """The same seed plays the same steps: what is printed for a failure replays it."""
    traces = []
    for _ in range(2):
        simulation = Simulation(7, trace=True)
        simulation.run(1_500)
        assert simulation.world.trace is not None
        traces.append([line.split(" object at ")[0] for line in simulation.world.trace])
    assert len(traces[0]) > 1_500
    assert traces[0] == traces[1]
