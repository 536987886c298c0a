"""Bugs on purpose at the start of a member: what it takes over of dead ones."""

from __future__ import annotations

from .parts import Parts
from .planted import SEVERAL, Planted
from .script import BOOTS


class UnlinksFirst(Parts):
    """The journal of a slot that is taken over goes before what it knew is in the own one."""

    keeps_taken_journals = False


PLANTED_STARTS = {
    "journal of a dead slot removed too early": Planted(
        UnlinksFirst, 40, (BOOTS, "kill member"), SEVERAL | {"slow": 0.05}
    ),
}
