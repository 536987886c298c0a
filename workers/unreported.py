"""What a worker has finished and not reported while a call of the handler goes on. Both sides stand here.

A worker reports between two calls. What ended a moment before a long call would wait for the end of that call, and would
run again if the worker or the supervisor were killed meanwhile. So the supervisor helps itself, past the flush interval:

- Records that succeeded and left no rows are read off the worker's cell. Whatever comes before the record in hand has
  ended. This costs the worker nothing per message, and works while the handler holds the interpreter's lock.
- Rows and failures are known to the worker alone. From the first record that has some, counted since its last report, the
  supervisor takes nothing (HELD), and asks the worker by a signal to report beside the call (reporter.py).

The race: the worker goes on while the supervisor reads, and a report of it may lie unread in the link. Two stores of the
worker matter, in this order: HELD, when a record is the first with rows or a failure; then STATE, when the next record
starts.

    worker      HELD := chunk, index | ... | STATE := next record | ... | report sent; HELD := none, one report more
    supervisor  read CHUNK_ID; barrier; read STATE, and CHUNK_ID again; barrier; read HELD

The first barrier makes STATE belong to CHUNK_ID, since the worker clears STATE before it changes CHUNK_ID. The second one
shows every HELD that was stored before that STATE. A HELD that is younger does no harm: either it names a later record,
or a report was sent meanwhile, and its number shows it: HELD counts the reports, and where the supervisor has not read as
many of them as the worker has sent, it takes nothing and waits for the next look. So nothing is ever taken that a report
in the link calls failed, or knows to have rows.

What was taken the worker reports all the same, in its next report; the supervisor leaves out what it knows (settling.py).

So calls that return nothing need no report each: while the cell shows all that has ended, the worker reports at the end of
the chunk, or after REPORT_INTERVALS flush intervals. A report finds the caches of both processes cold, and most of what a
call of some milliseconds costs beside the handler is that. A kill repeats little for it: of a dead worker the supervisor
reads the cell, and where the supervisor was killed too, the next start does (`shown_by`, supervisor/slot.py). What repeats
are chunks that ended in the moments in which the worker had not yet seen that nobody reads its reports. The cell names the
first record of the chunk that is in no report (UNREPORTED), stored before the STATE of any record after it, and before the
report that has those before it is sent.

Not all that has ended counts, as with reports: chunks that were popped, or that are of a queue whose reset was committed in a
stop, are marked in their packet. When an assignment begins, or ends with chunks out, and before the journal forgets what was
finished (a reset), the chunks that are out by then are taken out of the count (COUNTS_FROM). After a loss of power no cell
counts: its pages may be of different moments.

Nothing is taken in the ordered modes: only the worker knows what it has to give back (a lane ends at a failure). There each
message that has ended is held, and the worker reports beside the call; not with `auto_commit=False`, where the handler
decides what is finished. Coroutines do not offer it: while they wait, the loop reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ..remoting.queues import MessageQueue
from .cells import BETWEEN, CHUNK_ID, HELD, STARTED_NS, STATE, UNREPORTED, CellFile, CellView

INDEX_BITS: Final = 16
CHUNK_BITS: Final = 24
"""HELD has so many low bits of the chunk's id: more than enough to tell apart what one worker has in hand."""
REPORTS_BITS: Final = 23
INDEX_MASK: Final = (1 << INDEX_BITS) - 1
CHUNK_MASK: Final = (1 << CHUNK_BITS) - 1
REPORTS_MASK: Final = (1 << REPORTS_BITS) - 1
OFFERED: Final = 1 << 63
"""In HELD: the supervisor may read."""
REPORT_INTERVALS: Final = 32
"""Flush intervals after which a chunk under way is reported although the cell shows what has ended: the time of a large chunk
(supervisor/core/sizing.py)."""
HELD_INTERVALS: Final = 8
"""The same where only the worker can report it."""


class Seen(NamedTuple):
    """What a worker's cell shows: record `offset` of chunk `chunk_id` is in hand, what was dispatched before it has ended.

    `held` = the first record that only the worker can report: low bits of its chunk's id, and its index; None = none.
    """

    chunk_id: int
    offset: int
    held: tuple[int, int] | None


class Unreported:
    """The worker's side."""

    def __init__(self, cell: CellView) -> None:
        self._cell = cell
        self._base = 0
        """HELD without a record."""
        self._reports = 0
        self.held = False
        """Something that was finished since the last report has rows, failed or was filtered."""
        self.counts = False
        """The journal is to know what ends of the chunk in hand."""
        self.shown = False
        """Whatever ends of the run under way, and is not held, the cell shows: also to the next start."""

    def offer(self) -> None:
        """Let the supervisor read. Before the first chunk, and only after `obey_barriers`."""
        self._base = self._cell[HELD] = OFFERED

    @property
    def offered(self) -> bool:
        return bool(self._base)

    def begin(self, offset: int | None) -> None:
        """A run starts with this record, and each of its records has one offset; None = what ends of it is not shown. Before
        its STATE."""
        self.shown = offset is not None
        self._cell[UNREPORTED] = 0 if offset is None else offset + 1

    def cut(self, offset: int | None) -> None:
        """What stands before this record is about to be reported; None = all of the chunk. Before that is sent."""
        if self.shown:
            self._cell[UNREPORTED] = 0 if offset is None else offset + 1

    def hold(self, chunk_id: int, index: int) -> None:
        """From this record on only the worker can report what became of them. Before the next record starts."""
        if not self.held:
            self.held = True
            if self._base:
                self._cell[HELD] = self._base | (chunk_id & CHUNK_MASK) << INDEX_BITS | index + 1

    def sent(self, packets: int, left: Callable[[], tuple[int, int] | None] = lambda: None) -> None:
        """Everything that was held is in `packets` more packets of reports, which were sent, but for what is `left`: from
        this record on (chunk and index).

        The loop keeps a row first and looks at `held` then; so here `held` goes first, and the look at what is left comes
        then. Where that finds nothing and the loop keeps its row a moment later, the loop finds that nothing is held, and
        waits for the lock under which all of this is done, to hold it.
        """
        self.held = False
        self._reports += packets
        first = left()
        if self._base:
            self._base = OFFERED | (self._reports & REPORTS_MASK) << (INDEX_BITS + CHUNK_BITS)
        if first is not None:
            self.hold(*first)
        elif self._base:
            self._cell[HELD] = self._base


def in_hand(cell: CellView) -> tuple[int, ...]:
    """The words that change with each call. Where they are as they were before a `look` that found something, the same call
    goes on, and another look would find the same: it needs no barrier to know that."""
    return cell[STATE], cell[CHUNK_ID], cell[STARTED_NS], cell[HELD]


def holds(cell: CellView) -> bool:
    """Something has ended that only the worker can report."""
    return bool(cell[HELD] & INDEX_MASK)


def runs(cell: CellView, record: tuple[int, int] | None) -> bool:
    """The cell names this record (chunk and offset). Good enough to do nothing now: words of two calls that are read together
    can only put the next look off."""
    return record is not None and cell[STATE] == record[1] + 1 and cell[CHUNK_ID] == record[0]


def look(cell: CellView, reports: int, barrier: Callable[[], bool]) -> Seen | None:
    """The supervisor's side, which has read `reports` packets of reports of this worker.

    None = no call is under way, the worker does not offer it, or a report of it is on its way.
    """
    chunk_id = cell[CHUNK_ID]
    if not cell[STATE] or not cell[HELD] or not barrier():
        return None
    state, again = cell[STATE], cell[CHUNK_ID]
    if state in (0, BETWEEN) or again != chunk_id or not barrier():
        return None
    word = cell[HELD]
    if word >> (INDEX_BITS + CHUNK_BITS) != (OFFERED >> (INDEX_BITS + CHUNK_BITS)) | (reports & REPORTS_MASK):
        return None
    index = word & INDEX_MASK
    return Seen(chunk_id, state - 1, ((word >> INDEX_BITS) & CHUNK_MASK, index - 1) if index else None)


def shown_by(cell: CellView, counts_from: int) -> tuple[int, int] | None:
    """What the cell of a dead run shows of records that ended and that no report has: their first offset, and that of the
    record that was in hand. `counts_from` as in the file's header. None = nothing.

    Its worker may run on for some milliseconds after its supervisor has died, so words of two moments are no answer: what is
    stored between two records of a run is read before and after the rest.
    """
    before = cell[UNREPORTED], cell[CHUNK_ID], cell[HELD]
    first, chunk_id, held = before
    state = cell[STATE]
    plain = held & (OFFERED | INDEX_MASK) == OFFERED
    if not plain or not 0 < first < state < BETWEEN or not 0 < counts_from <= chunk_id:
        return None
    return (first - 1, state - 1) if (cell[UNREPORTED], cell[CHUNK_ID], cell[HELD]) == before else None


def shown(cells: CellFile) -> Iterator[tuple[MessageQueue, int, int]]:
    """The same of each cell that names its queue."""
    for slot in range(cells.slots):
        cell = cells.view(slot)
        chunk_id = cell[CHUNK_ID]
        found, mq = shown_by(cell, cells.counts_from), cells.queue(slot)
        if found is not None and mq is not None and cell[CHUNK_ID] == chunk_id:
            yield mq, *found
