"""When a member's facts are on the disk, as supervisor/sealing.py does it: before an offset is sent.

One writing at a time, which takes a while: what it has taken is gone when the process dies or the power goes before its end,
and stays otherwise. An offset that waits is sent after the end of a writing that began after it came. Sometimes the disk
refuses: then what was noted waits on, and the offset is not sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rocketcrew.durable.outcomes import SETTLED, Outcomes

from .script import GROUP

if TYPE_CHECKING:
    from .member import SimMember

PUBLISH_MS = 250
REFUSED = 0.02
"""How often the disk refuses."""

Then = Callable[[bool], None]
"""Gets whether all that had been noted is on the disk."""


class SimSealing:
    """One member's; `start` once it has joined the group."""

    def __init__(self, member: SimMember) -> None:
        self._member = member
        self._waiting = Outcomes()
        """Taken from the core, and not on the disk yet."""
        self._writing = False
        self._asked: list[Then] = []

    def start(self) -> None:
        """Write now, and every little while."""
        member = self._member
        if member.alive:
            self._write([])
            member.world.after(PUBLISH_MS, self.start)

    def all_sealed(self) -> bool:
        """Whether a pull may take an offset along."""
        return self._nothing_waits() or not self._member.parts.pulls_wait_for_facts

    def _nothing_waits(self) -> bool:
        return not (self._waiting.without(SETTLED) or self._member.core.state.outcomes)

    def sealed(self, then: Then) -> None:
        """Call `then` once all that the core has noted so far is on the disk, or the disk has refused it."""
        if self._nothing_waits() or not self._member.parts.waits_for_facts:
            then(True)
        else:
            self._member.world.note("an offset waited for its facts")
            self._write([then])

    def _write(self, asked: list[Then]) -> None:
        self._asked += asked
        if self._writing:
            return
        member = self._member
        asked, self._asked = self._asked, []
        self._gather()
        if asked and not self._waiting.without(SETTLED):
            self._tell(asked, sealed=True)
            return
        self._writing = True
        takes_ms = 0.2 + member.world.random.random() * member.parts.seal_facts_ms_max
        member.world.after(takes_ms, member.event, self._written, asked, self._waiting)

    def _gather(self) -> None:
        taken = self._member.core.state.outcomes.take(GROUP)
        if not self._member.parts.seals_together:
            self._member.folder.facts.append(Outcomes.of([(SETTLED, taken.of_kind(SETTLED))]))
        self._waiting = Outcomes.union([self._waiting, taken])

    def _written(self, asked: list[Then], facts: Outcomes) -> None:
        member = self._member
        self._writing = False
        refused = member.world.chance(REFUSED) and not member.world.calm
        if refused:
            member.world.note("facts were not sealed")
        else:
            self._keep(facts)
            self._waiting = Outcomes()
        self._tell(asked, sealed=not refused)
        if self._asked:
            self._write([])

    def _keep(self, facts: Outcomes) -> None:
        """A new file of them; the last one is left here, though the new one could contain it."""
        folder = self._member.folder
        self._member.truth.told_of_gaps(facts)
        self._member.truth.told_of_retries(facts)
        if facts:
            (folder.facts if self._member.parts.syncs_facts else folder.unsynced_facts).append(facts)

    def _tell(self, asked: list[Then], *, sealed: bool) -> None:
        for then in asked:
            then(sealed)

    def end(self) -> None:
        """Write for the last time, in a stop that waits for it."""
        self._gather()
        self._keep(self._waiting)
        self._waiting = Outcomes()
