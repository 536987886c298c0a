"""What a planted bug may replace; the defaults are the real thing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rocketcrew.supervisor.core.charges import Charges, Left
from rocketcrew.supervisor.core.decisions import Core
from rocketcrew.supervisor.core.journal import Entry, JournalState, Records, replay
from rocketcrew.supervisor.core.slab import Slab
from rocketcrew.supervisor.core.state import CoreConfig
from rocketcrew.workers.cells import CellView
from rocketcrew.workers.claims import Claims
from rocketcrew.workers.unreported import shown_by

from .disk import Folder, Segment, Table
from .ordered_worker import OrderedSimWorker
from .worker import SimWorker

if TYPE_CHECKING:
    from .member import SimMember
    from .truth import Truth
    from .world import World


class Parts:
    """One set for all members of a world."""

    leaves_unread = False
    """A response that finds no room is left on the connection, instead of read and dropped."""
    ordered_worker_class = OrderedSimWorker
    claims_class = Claims
    batch_goes_on = True
    """An action that fails unexpectedly takes nothing else of its batch along, and the core hears of it."""
    core_hears = True
    """An action that fails unexpectedly is an event of the core."""
    joins_first = False
    """A member goes to the broker before its workers are ready."""
    keeps_taken_journals = True
    """What a journal of a dead slot knew is written into the own one before that is removed."""
    deletes_taken_journals = True
    """Of a slot whose sealed segments a member that runs takes."""
    guards_commits = True
    """The edge looks at the broker's offset before a guarded commit."""
    waits_for_facts = True
    """An offset is sent after the facts that it depends on are sealed."""
    pulls_wait_for_facts = True
    """A pull takes no offset along that depends on facts that are not sealed."""
    syncs_facts = True
    """A sealed file of facts is on the disk, and not only in its cache."""
    seals_together = True
    """What is settled is sealed in one file with what was noted until then."""
    seal_facts_ms_max = 20.0
    """How long the disk takes for a file of facts, at most."""
    table_class = Table

    def __init__(self, focus: tuple[str, ...] = (), script: Mapping[str, Any] | None = None) -> None:
        self.focus = focus
        """Faults that come more often than usual, so that a few seeds are enough to find a bug."""
        self.script = script or {}
        """Fields of the script that do not depend on the seed."""

    def core(self, config: CoreConfig, slab: Slab, view: bytearray) -> Core:
        return Core(config, slab, view)

    def worker(
        self, world: World, member: SimMember, worker_id: str, salvage_of: list[str], salvage: list[Segment]
    ) -> SimWorker:
        kind = SimWorker if member.script.order == "concurrent" else self.ordered_worker_class
        return kind(world, member, worker_id, salvage_of, salvage)

    def taken_back(self, unbegun: int, claimed: int) -> tuple[int, int]:
        """What the edge reports of a worker's progress: chunks not begun, and records of the one before them."""
        return unbegun, claimed

    def reports_read(self, worker: SimWorker) -> int:
        """How many reports of a worker the supervisor has read."""
        return worker.heard

    def shown_by(self, cell: CellView, counts_from: int) -> tuple[int, int] | None:
        """What a start reads in the cell of a dead run."""
        return shown_by(cell, counts_from)

    def read_journal(self, data: bytes) -> JournalState:
        return replay(data, "journal")[0]

    def into_journal(self, journal: JournalState, entry: Entry) -> bool:
        return journal.apply(entry)

    def join(
        self, journal: JournalState, salvaged: list[tuple[str, int, Records]], sealed: Iterable[tuple[str, int]]
    ) -> None:
        """What a start finds on disk joins what the journal knows."""
        journal.join(salvaged, sealed)

    def read_charges(self, folder: Folder) -> str:
        """The file of worker deaths."""
        return folder.charges

    def member_died(self, charges: Charges, left: list[Left]) -> None:
        """A start judges what the cells of a dead run name."""
        charges.member_died(left, stopping=False)

    def left_open(self, member: SimMember, segments: list[Segment], truth: Truth) -> list[Segment]:
        """What a dead worker left open, to be salvaged."""
        return segments
