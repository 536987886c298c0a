"""Bugs on purpose of the process around the core: what a start takes over, and what an action that fails takes along."""

from __future__ import annotations

from rocketcrew.supervisor.core.journal import Entry, JournalState

from .parts import Parts
from .planted import SEVERAL, Planted
from .script import ACTIONS, BOOTS, POWER


class UnlinksFirst(Parts):
    """The journal of a slot that is taken over goes before what it knew is in the own one."""

    keeps_taken_journals = False


class LosesTheBatch(Parts):
    """An action that fails ends the batch, and nobody hears of it."""

    batch_goes_on = False


class LeavesResetsInMemory(Parts):
    """An offset that went back is not fsynced: after a loss of power the journal knows what was finished before."""

    def into_journal(self, journal: JournalState, entry: Entry) -> bool:
        journal.apply(entry)
        return False


PLANTED_PROCESS = {
    "a reset is lost with the power": Planted(LeavesResetsInMemory, 80, ("reset back", POWER), {"slow": 0.05}),
    "a failing action loses the rest of its batch": Planted(LosesTheBatch, 20, (ACTIONS,), {"slow": 0.05}),
    "journal of a dead slot removed too early": Planted(
        UnlinksFirst, 40, (BOOTS, "kill member"), SEVERAL | {"slow": 0.05}
    ),
}
