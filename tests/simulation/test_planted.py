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

TRIED_FIRST = {
    "commit before seal": 5,
    "a backlog with rows leaves many segments": 4,
    "finished messages wait for a long call": 10,
    "what was reported counts, though its file is torn": 14,
    "what a failed start has salvaged counts as whole": 19,
    "draining queue commits unguarded": 3,
    "journal ignores a reset": 1,
    "revoked queue sends failures back": 26,
    "late outcome of an ended assignment accepted": 25,
    "slot cut down under a worker's hands": 3,
    "slot of a failed message reused": 2,
    "connection left unread when the slab is full": 6,
    "reservation of an ended queue kept": 6,
    "redispatch forgets a chunk": 2,
    "what is begun is taken back": 14,
    "a claim that came too late is run": 11,
    "what is taken back is forgotten": 17,
    "what is held is read off": 11,
    "a cell is believed before its report": 33,
    "the record in hand is read off": 4,
    "a rate wakes nobody": 3,
    "wipe instead of salvage": 6,
    "queue ends with open send-backs": 1,
    "finished messages forgotten at the end": 2,
    "bytes of an ended queue kept": 23,
    "offsets are told once": 24,
    "cells show what is held": 18,
    "cells show what was reported": 16,
    "death charged to the first unreported": 4,
    "suspect not alone": 3,
    "limit of deaths passed by one": 4,
    "dead letter forgotten before it is accepted": 17,
    "deaths not counted across a restart": 2,
    "a death between calls is nobody's": 3,
    "a stand-still is nobody's": 1,
    "a dead letter for want of memory, beside others": 7,
    "a machine that stands still is charged to a message": 2,
    "what is recalled counts as given back": 7,
    "a reset of a queue that drains is dropped": 9,
    "a stop drops a reset of a queue that is not open": 11,
    "a queue runs beside itself": 14,
    "a worker that owes keys counts as idle": 9,
    "a queue without its lock is started": 42,
    "settled before its notes": 5,
    "nothing is left of facts that a commit takes": 2,
    "settled while segments are listed": 2,
    "facts are not synced": 12,
    "a failing action is told to nobody": 3,
    "a failing action loses the rest of its batch": 1,
    "what was sent is not noted": 13,
    "what others passed is forgotten in memory only": 3,
    "journal left beside what was taken": 105,
    "drop on a refused send-back": 2,
    "a dead letter that its broker retries": 5,
    "commit past a local retry": 7,
    "charge forgotten when a retry here dies": 21,
}
"""Seeds that find a bug soon. Where the code has changed so that one does not any more, the others are tried, which takes
longer."""


def test_seeds_that_are_tried_first_are_of_bugs_that_are_planted_and_count_among_theirs() -> None:
    assert [name for name, seed in TRIED_FIRST.items() if seed >= ALL[name].seeds] == []


@pytest.mark.parametrize("name", ALL)
def test_a_planted_bug_is_found(name: str) -> None:
    planted = ALL[name]
    first = TRIED_FIRST.get(name, 0)
    for seed in (first, *range(first), *range(first + 1, planted.seeds)):
        try:
            Simulation(seed, planted.make()).run(STEPS)
        except Violation:
            return
    pytest.fail(f"'{name}' went through {planted.seeds} seeds of {STEPS} steps and was not found")


PLAYED_ELSEWHERE = PLANTED_ORDER | PLANTED_LARGE
"""Their worlds are played by other tests, too."""

WORLDS = {
    repr((planted.focus, planted.script)): name
    for name, planted in ALL.items()
    if planted.focus and name not in PLAYED_ELSEWHERE
}
"""Each kind of world once, with the bug that is looked for in it: the last one, where there are several."""


@pytest.mark.parametrize("name", WORLDS.values())
def test_the_same_world_without_the_bug_is_sound(name: str) -> None:
    """What finds the bug is the bug, not the world that it is looked for in."""
    planted = ALL[name]
    for seed in range(SOUND_SEEDS):
        Simulation(seed, Parts(planted.focus, planted.script)).run(STEPS)
