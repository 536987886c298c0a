"""The simulation bites: every bug that was planted on purpose is found, within its number of seeds."""

from __future__ import annotations

import pytest

from .planted import PLANTED
from .simulation import Simulation

STEPS = 2_000


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    parts, seeds = PLANTED[name]
    for seed in range(seeds):
        try:
            Simulation(seed, parts()).run(STEPS)
        except Exception:  # noqa: BLE001  whatever stops the run has found it: an invariant, or an assertion of the core
            return
    pytest.fail(f"{seeds} seeds did not find the bug '{name}'")
