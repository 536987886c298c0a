"""Every planted bug is found within its bounded number of seeds, and by an invariant, not by chance."""

from __future__ import annotations

import pytest

from .parts import Parts
from .planted import PLANTED
from .planted_cells import PLANTED_CELLS
from .planted_deaths import PLANTED_DEATHS
from .planted_gaps import PLANTED_GAPS
from .planted_large import PLANTED_LARGE
from .planted_moves import PLANTED_MOVES
from .planted_order import PLANTED_ORDER
from .planted_process import PLANTED_PROCESS
from .planted_retries import PLANTED_RETRIES
from .simulation import Simulation
from .world import Violation

ALL = (
    PLANTED | PLANTED_CELLS | PLANTED_DEATHS | PLANTED_GAPS | PLANTED_LARGE | PLANTED_MOVES | PLANTED_ORDER
    | PLANTED_PROCESS | PLANTED_RETRIES
)  # fmt: skip
STEPS = 2_000
SOUND_SEEDS = 5


@pytest.mark.parametrize("name", ALL)
def test_a_planted_bug_is_found(name: str) -> None:
    planted = ALL[name]
    for seed in range(planted.seeds):
        try:
            Simulation(seed, planted.make()).run(STEPS)
        except Violation:
            return
    pytest.fail(f"'{name}' went through {planted.seeds} seeds of {STEPS} steps and was not found")


PLAYED_ELSEWHERE = PLANTED_ORDER | PLANTED_LARGE
"""Their worlds are played by other tests, too."""


@pytest.mark.parametrize(
    "name", [name for name, planted in ALL.items() if planted.focus and name not in PLAYED_ELSEWHERE]
)
def test_the_same_world_without_the_bug_is_sound(name: str) -> None:
    """What finds the bug is the bug, not the world that it is looked for in."""
    planted = ALL[name]
    for seed in range(SOUND_SEEDS):
        Simulation(seed, Parts(planted.focus, planted.script)).run(STEPS)
