"""When a member's facts and settled.json are on the disk, as supervisor/sealing.py does it: before an offset is sent.

One writing at a time, which takes a while: what it has taken is gone when the process dies or the power goes before its end,
and stays otherwise. An offset that waits is sent after the end of a writing that began after it came. Sometimes the disk
refuses: then what was noted waits on, and the offset is not sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rocketcrew.durable.intervals import Intervals
from rocketcrew.durable.outcomes import Outcomes
from rocketcrew.remoting.queues import MessageQueue

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
        return not (self._waiting or self._member.core.state.outcomes)

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
        settled = self._gather()
        if asked and not self._waiting:
            self._tell(asked, sealed=True)
            return
        self._writing = True
        member.world.after(
            0.2 + member.world.random.random() * 20, member.event, self._written, asked, settled
        )  # fmt: skip

    def _gather(self) -> dict[MessageQueue, Intervals]:
        state = self._member.core.state
        self._waiting = Outcomes.union([self._waiting, state.outcomes.take(GROUP)])
        return {mq: Intervals(intervals.pairs()) for mq, intervals in state.settled.items()}

    def _written(self, asked: list[Then], settled: dict[MessageQueue, Intervals]) -> None:
        member = self._member
        self._writing = False
        refused = member.world.chance(REFUSED) and not member.world.calm
        if refused:
            member.world.note("facts were not sealed")
        else:
            self._keep(settled)
        self._tell(asked, sealed=not refused)
        if self._asked:
            self._write([])

    def _keep(self, settled: dict[MessageQueue, Intervals]) -> None:
        folder = self._member.folder
        if self._member.parts.syncs_facts:
            folder.facts = Outcomes.union([folder.facts, self._waiting])
        else:
            folder.unsynced_facts = Outcomes.union([folder.unsynced_facts, self._waiting])
        folder.settled = settled
        self._waiting = Outcomes()

    def _tell(self, asked: list[Then], *, sealed: bool) -> None:
        for then in asked:
            then(sealed)

    def end(self) -> None:
        """Write for the last time, in a stop that waits for it."""
        self._keep(self._gather())
