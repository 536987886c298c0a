"""Bugs on purpose of the process around the core: what a start takes over, and what an action that fails takes along."""

from __future__ import annotations

from .parts import Parts
from .planted import SEVERAL, Planted
from .script import ACTIONS, BOOTS


class UnlinksFirst(Parts):
    """The journal of a slot that is taken over goes before what it knew is in the own one."""

    keeps_taken_journals = False


class LosesTheBatch(Parts):
    """An action that fails ends the batch, and nobody hears of it."""

    batch_goes_on = False


PLANTED_PROCESS = {
    "a failing action loses the rest of its batch": Planted(LosesTheBatch, 20, (ACTIONS,), {"slow": 0.05}),
    "journal of a dead slot removed too early": Planted(
        UnlinksFirst, 40, (BOOTS, "kill member"), SEVERAL | {"slow": 0.05}
    ),
}
