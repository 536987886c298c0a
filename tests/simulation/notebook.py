"""What one member must not run again, noted beside its core from what it writes into the journal and the log.

A restart takes over what the journal knows as finished and durable; an assignment that ended in order (not at its deadline)
hands over what it finished above the committed offset. An offset that went back, a reset, ends both promises.
"""

from __future__ import annotations

from collections.abc import Sequence

from rocketcrew.durable.intervals import Intervals
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.actions import (
    JournalCommitted,
    JournalDone,
    JournalGoesOn,
    JournalLost,
    JournalSealed,
    Log,
)
from rocketcrew.supervisor.core.journal import Entry, JournalSent
from rocketcrew.supervisor.core.state import State
from rocketcrew.supervisor.core.states import QueueEvent, QueueState

from .world import Violation, World


def queue_of(entry: Log) -> MessageQueue | None:
    """The message queue that a line of the log is about, if there is one."""
    topic, broker, queue_id = (entry.keys.get(key) for key in ("topic", "broker", "queue_id"))
    if isinstance(topic, str) and isinstance(broker, str) and isinstance(queue_id, int):
        return MessageQueue(topic, broker, queue_id)
    return None


class Notebook:
    """Per queue: the current assignment's number, where it was committed to, and what it has finished."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.no_repeat: dict[MessageQueue, Intervals] = {}
        self._number: dict[MessageQueue, int] = {}
        self._committed: dict[MessageQueue, int] = {}
        self._finished: dict[MessageQueue, Intervals] = {}
        self._waiting: dict[tuple[str, int], list[tuple[MessageQueue, int, int, int]]] = {}
        """By segment: finished, but not sealed, with the number of the assignment."""
        self._moved: set[MessageQueue] = set()
        self._sent: dict[MessageQueue, int] = {}
        self._held: dict[int, dict[int, str]] = {}
        """By assignment (handle) and offset: who got it last."""
        self._dead: set[str] = set()
        self.leaving: set[str] = set()
        """Workers that leave what they have not committed to others."""
        self._lossy: set[tuple[MessageQueue, int]] = set()
        """Assignments that may have lost rows: neighbours of those run again too."""
        self._ends = 0

    def restarted(
        self, recovered: dict[MessageQueue, tuple[int, Intervals]], sent: dict[MessageQueue, int]
    ) -> None:  # fmt: skip
        """What the journal of the last run knows: the committed offset, and what is finished above it; and which offsets were
        sent: above them others went on, which ends the promise as a reset does."""
        self._sent = sent
        for mq, (committed, done) in recovered.items():
            self.no_repeat[mq] = Intervals(done.pairs())
            self._committed[mq] = committed

    def journalled(self, entry: Entry) -> None:
        if isinstance(entry, JournalSealed):
            for mq, number, start, end in self._waiting.pop((entry.worker_id, entry.seq), ()):
                if self._number[mq] == number:
                    self._finished[mq].add(start, end)
        elif isinstance(entry, JournalLost):
            self._waiting.pop((entry.worker_id, entry.seq), None)
        elif isinstance(entry, JournalSent | JournalGoesOn):
            pass
        elif isinstance(entry, JournalDone):
            if entry.seq:
                item = (entry.mq, self._number.get(entry.mq, 0), entry.start, entry.end)
                self._waiting.setdefault((entry.worker_id, entry.seq), []).append(item)
            elif entry.mq in self._finished:
                self._finished[entry.mq].add(entry.start, entry.end)
        elif entry.start == entry.offset and entry.mq not in self._moved:
            self._opened(entry)
        else:
            self._committed[entry.mq] = entry.offset

    def _opened(self, entry: JournalCommitted) -> None:
        mq, before = entry.mq, self._committed.get(entry.mq, -1)
        self._number[mq] = self._number.get(mq, 0) + 1
        if entry.offset < before and self.no_repeat.pop(mq, None) is not None:
            self._world.note("a member met a reset")
        if entry.offset > self._sent.pop(mq, entry.offset) and self.no_repeat.pop(mq, None) is not None:
            self._world.note("others went on while a member was away")
        self._committed[mq] = entry.offset
        self._finished[mq] = Intervals(self.no_repeat[mq].pairs()) if mq in self.no_repeat else Intervals()

    def refused(self, handle: int, offset: int) -> None:
        """No broker took the send-back of a message: it may be handed out once more."""
        self._held.setdefault(handle, {}).pop(offset, None)

    def handed(self, handle: int, offsets: Sequence[int], worker_id: str) -> None:
        """A chunk is handed to a worker: each message goes to one at a time, to the next when that one is dead, or when it
        failed there and no broker took it back."""
        held = self._held.setdefault(handle, {})
        for offset in offsets:
            before = held.get(offset)
            if before is not None and before not in self._dead and before not in self.leaving:
                raise Violation(f"{offset} of assignment {handle} is handed to {worker_id}, though {before} has it")
            held[offset] = worker_id

    def given_back(self, handle: int, offsets: Sequence[int]) -> None:
        """A worker gave messages back, which it will not finish."""
        held = self._held.get(handle, {})
        for offset in offsets:
            held.pop(offset, None)

    def died(self, worker_id: str) -> None:
        self._dead.add(worker_id)

    def logged(self, entry: Log, state: State) -> None:
        """The queue's end, and what came before it."""
        mq = queue_of(entry)
        if entry.event == "pull_offset_illegal" or (entry.event == "offset_reset_by_admin" and mq in state.by_mq):
            assert mq is not None
            self._moved.add(mq)
        if entry.event == "reported_rows_lost":
            self._lossy |= set(self._number.items())
        if entry.event != "queue_ended" or mq is None:
            return
        in_order = state.seen[QueueState.DRAINING, QueueEvent.DRAINED]
        drained, self._ends = in_order > self._ends, in_order
        finished_to = entry.keys["finished_to"]
        assert isinstance(finished_to, int)
        handed_on = state.recovered[mq][1] if mq in state.recovered else Intervals()
        if mq in self._moved:
            self._moved.discard(mq)
            self.no_repeat.pop(mq, None)
            return
        expected = Intervals(handed_on.pairs())
        if mq in self._finished and (mq, self._number[mq]) not in self._lossy:
            for start, end in self._finished[mq].pairs():
                # At its deadline, what stands above its first unfinished message may be finished in part only.
                for offset in range(max(start, self._committed[mq]), end if drained else min(end, finished_to)):
                    if offset not in handed_on:
                        raise Violation(f"{mq} ended, but {offset}, finished, is forgotten: {handed_on}")
        self.no_repeat[mq] = expected
