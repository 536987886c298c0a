"""Records that cost a worker its life, or may have: they run alone, until they finish or have cost too many.

The verdict on a death is in blame.py's table. A charged record runs again by itself. Of a batch each half runs again by
itself, and the half that kills again is halved again, until the killer is alone and charged; where the handler took the
messages one by one, the one it took last is charged at once, and the rest of the call looked at in two parts. Where several
calls of a coroutine handler waited, or a worker died or stood still while it wrote rows between two calls, each chunk of the
worker's runs again by itself, and one that kills again is halved.

In the ordered modes a suspect has to keep its place, and cannot wait for a worker of its own. There the whole member is
careful instead (charges.py): one message at a time is in hand until each suspect is over, or has failed and left its worker
alive.

The worker that runs such records has nothing else in flight and gets nothing else, so that its death costs no neighbour an
attempt. There is one such worker at a time: poison never occupies more of the pool. After `max_worker_deaths` the record is
not run again: it goes to the dead-letter topic with the facts of the crash.

Where the kernel killed for want of memory, what the other workers had may have taken as much. So the last attempt of such a
record is made while the member is careful, as above, and a kill that would have been the last one before that leaves one
attempt. (Not of a popped record: that may come again as another one, and nothing says when the first is over.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence

from ...durable.intervals import Intervals
from ...remoting.errors import ProtocolError
from ...remoting.properties import PROPERTY_ORIGIN_MESSAGE_ID, PROPERTY_UNIQ_KEY, find_property
from ...remoting.queues import MessageQueue
from ...remoting.stored import decode_message, record_info
from .blame import AGAIN, Blamed, Death, End, Lot, Verdict
from .charges import Charge
from .chunks import Chunk
from .process_queue import ProcessQueue
from .state import State, Worker
from .states import WorkerState

_UNIQUE_ID = PROPERTY_UNIQ_KEY.encode()
STACK_MAX_CHARS = 4_000
"""Of a stack in a dead letter's properties: a broker takes 32 KiB of properties in all."""
PLACES_MAX = 4
"""Of chunks that a log line names."""


class Quarantine:
    """Judges deaths, and dispatches suspects."""

    def __init__(
        self, state: State, dispatch: Callable[[Worker, Chunk], None], apart: Callable[[ProcessQueue, Chunk], None],
        may_run: Callable[[Worker, Chunk], bool], dead_letter: Callable[[ProcessQueue, Chunk, Charge], None],
    ) -> None:  # fmt: skip
        """`dispatch` gives a chunk to a worker; `apart` puts it into line; `may_run` says that no limit of its topic holds it
        back; `dead_letter` sends its only record there."""
        self.s = state
        self._dispatch = dispatch
        self._apart = apart
        self._may_run = may_run
        self._dead_letter = dead_letter
        self._held_up = Counter[tuple[MessageQueue, int]]()
        """How often the machine stood still with a record that ran apart, by queue and offset; no more than ran so."""

    # --- judging ------------------------------------------------------------------------------------------------

    def judge(self, worker: Worker, death: Death) -> None:
        """Whom the death is charged to; what was reported was read before."""
        s = self.s
        if s.isolated == worker.worker_id:
            s.isolated = None
        keys: dict[str, object] = {"worker": worker.worker_id, "end": death.end.value, "cause": death.cause}
        blamed = self._find(worker, death)
        worker.blamed = blamed
        if blamed is not None and blamed.chunk_id is None:
            keys |= {"verdict": blamed.verdict.value, "suspects": blamed.end}
        elif blamed is not None and blamed.chunk_id is not None:
            chunk = worker.in_flight[blamed.chunk_id]
            pq = s.queues[chunk.handle]
            last = blamed.start if blamed.end == blamed.start + 1 else blamed.end - 1
            keys["running"] = _place(pq.mq, chunk.offsets[blamed.start], chunk.offsets[last])
            keys["verdict"] = blamed.verdict.value
            if blamed.culprit is not None:
                charge = self._charge(pq, chunk, blamed.culprit, death)
                keys |= {"charged_to": _place(pq.mq, charge.offset), "deaths": charge.deaths}
                limit = s.config.max_worker_deaths
                if charge.deaths < limit and s.charges.watched(pq.mq, charge.offset, limit):
                    keys["runs_again"] = "alone in this member"
        if death.in_hand is None or death.in_hand.waiting:
            keys |= unreported(s, worker)  # no cell says what was in hand
        if death.end is not End.RETIRED:
            s.log("warning", "worker_died", **keys, **death.facts)

    def _find(self, worker: Worker, death: Death) -> Blamed | None:
        """The call in hand as positions of a chunk; None when nobody is to blame, or the chunk or its queue has ended."""
        in_hand, verdict = death.in_hand, death.verdict
        if in_hand is None or verdict is Verdict.NOBODY:
            return None
        if in_hand.waiting:
            return self._suspect_all(worker, verdict)
        chunk = worker.in_flight.get(in_hand.chunk_id)
        if chunk is None or chunk.handle not in self.s.queues:
            return None
        first = _position(chunk.offsets, in_hand.offset, 0)
        if first is None:
            return None
        # What the cell names may begin with what was read off it before.
        start, end = max(first, chunk.reported), min(first + in_hand.records, chunk.count)
        if start >= end:
            return None  # its report was read: it was over
        culprit = start if verdict is Verdict.CHARGED else None
        if verdict is Verdict.SUSPECTED and in_hand.taken is not None:
            culprit = _position(chunk.offsets, in_hand.taken, start)
            culprit = culprit if culprit is not None and culprit < end else None
        return Blamed(in_hand.chunk_id, start, end, verdict, culprit)

    def _suspect_all(self, worker: Worker, verdict: Verdict) -> Blamed | None:
        """Everything that it has not reported; of a single chunk each half by itself. A single record is charged where it ran
        apart, and the worker had nothing of a queue that has ended, too: else something before it may have done it, which
        its cell showed as ended."""
        left = [chunk for chunk in worker.in_flight.values() if chunk.reported < chunk.count]
        chunks = [chunk for chunk in left if chunk.handle in self.s.queues]
        if len(chunks) == 1:
            start, end = chunks[0].reported, chunks[0].count
            charged = end - start == 1 and len(left) == 1 and chunks[0].alone and self._has_done_it(chunks[0], verdict)
            return Blamed(chunks[0].chunk_id, start, end, verdict, start if charged else None)
        records = sum(chunk.count - chunk.reported for chunk in chunks)
        return Blamed(None, 0, records, verdict, None) if records else None

    def _has_done_it(self, chunk: Chunk, verdict: Verdict) -> bool:
        """Also who seems to be held up by the machine, as often as a message may cost workers: its rows may make that swap,
        each time."""
        if verdict is not Verdict.APART:
            return True
        place = self.s.queues[chunk.handle].mq, chunk.offsets[chunk.reported]
        self._held_up[place] += 1
        return self._held_up[place] > self.s.config.max_worker_deaths

    def _charge(self, pq: ProcessQueue, chunk: Chunk, index: int, death: Death) -> Charge:
        s = self.s
        s.counters.charged_deaths += 1
        mark = death.in_hand.mark if death.in_hand is not None else ""
        facts = facts_of(death)
        origin = self._origin(chunk, index)
        if origin:
            facts["origin_message_id"] = origin
        popped = pq.owner.check_of(pq, chunk.offsets[index]) is not None
        known_as = unique_id_of(s.view, chunk.positions[index], chunk.positions[index + 1]) if popped else origin
        charge = s.charges.charge(pq.mq, chunk.offsets[index], mark, facts, known_as)
        if death.for_memory and not popped and chunk.origin is None:  # what ran again here is sent back now
            self._last_alone(charge)
        s.charges_grew()
        return charge

    def _last_alone(self, charge: Charge) -> None:
        """Others may have had the memory: its last attempt is one with nothing else in hand, and only that makes a dead
        letter of it. Of several that were killed each is found dead by itself, so nobody asks what others have now."""
        charges, limit = self.s.charges, self.s.config.max_worker_deaths
        if charge.deaths >= limit - 1 and not charges.watched(charge.mq, charge.offset, limit):
            charge.deaths = limit - 1
            charges.watch(charge.mq, charge.offset, limit)

    def _origin(self, chunk: Chunk, index: int) -> str:
        """The id by which the message is known through its retries; its bytes are ours as long as it is unfinished."""
        try:
            message = decode_message(bytes(self.s.view[chunk.positions[index] : chunk.positions[index + 1]]))
            return message.properties.get(PROPERTY_ORIGIN_MESSAGE_ID) or message.offset_message_id
        except ProtocolError:
            return ""

    # --- admitting ----------------------------------------------------------------------------------------------

    def bound(self, mq: MessageQueue, offsets: Sequence[int], start: int, end: int) -> tuple[int, bool]:
        """Where a chunk of records `[start, end)` ends so that a charged one is alone in its own; True = it is that one."""
        charges = self.s.charges
        while (first := charges.first_in(mq, offsets[start], offsets[end - 1])) is not None:
            at = bisect_left(offsets, first, start, end)
            if offsets[at] != first:
                charges.finished(mq, first, sent_back=False)  # there is no such record any more
                continue
            return (start + 1, True) if at == start else (at, False)
        return end, False

    def admit(self, pq: ProcessQueue, chunk: Chunk, *, charged: bool = False) -> None:
        """The chunk runs alone, or not at all when its record has cost too many workers. `charged` = a cell has named it, and
        will again, whatever else its worker has."""
        chunk.alone = True
        if self.exhausted(pq, chunk):
            return
        if not charged and self.s.config.order != "concurrent":
            self._watch(pq, chunk)
        self._apart(pq, chunk)

    def _watch(self, pq: ProcessQueue, chunk: Chunk) -> None:
        """It has to keep its place in the order: instead, one message at a time is in hand until it is over."""
        for offset in chunk.offsets:
            self.s.charges.watch(pq.mq, offset, self.s.config.max_worker_deaths)
        self.s.charges_grew()

    def exhausted(self, pq: ProcessQueue, chunk: Chunk) -> bool:
        """Its only record has cost too many workers: it was sent to the dead letters instead."""
        charge = self.s.charges.get(pq.mq, chunk.offsets[0]) if chunk.count == 1 else None
        if charge is None or charge.deaths < self.s.config.max_worker_deaths:
            return False
        # It runs no more: nobody is to be careful for as long as its sending takes.
        self.s.survived(pq.mq, chunk.offsets)
        self._dead_letter(pq, chunk, charge)
        return True

    def finished(self, pq: ProcessQueue, chunk: Chunk, index: int, *, sent_back: bool) -> None:
        """The record has an outcome: it is charged with nothing any more."""
        s, offset = self.s, chunk.offsets[index]
        self._held_up.pop((pq.mq, offset), None)
        charge = s.charges.get(pq.mq, offset)
        if not s.charges.finished(pq.mq, offset, sent_back=sent_back):
            return
        if charge is not None and charge.deaths:
            s.charges_grew()  # its count may be the message's now, which comes again
        else:
            s.charges_over()

    # --- dispatch -----------------------------------------------------------------------------------------------

    def careful(self) -> bool:
        """One message at a time is in hand in this member, see charges.py."""
        s = self.s
        return bool(s.charges.noted) and s.charges.careful(s.config.max_worker_deaths, self._pulled_to)

    def _pulled_to(self, mq: MessageQueue) -> int:
        pq = self.s.by_mq.get(mq)
        return pq.next_offset if pq is not None else 0

    def closed(self) -> bool:
        """Nothing may be dispatched before what is in flight is over."""
        return self.careful() and any(worker.in_flight for worker in self.s.workers.values())

    def run(self) -> None:
        """Give the next suspect to the worker that is kept for them, once that has nothing else in flight."""
        s = self.s
        while s.quarantine:
            worker = self._worker()
            if worker is None or worker.in_flight or self.closed() or not self._may_run(worker, s.quarantine[0]):
                return
            self._dispatch(worker, s.quarantine.popleft())
        if s.isolated is not None:
            worker = s.workers.get(s.isolated)
            if worker is None or not worker.in_flight:
                s.isolated = None

    def _worker(self) -> Worker | None:
        """The one that is kept, or the least loaded one, which is kept from now on and gets nothing else."""
        s = self.s
        kept = s.workers.get(s.isolated) if s.isolated is not None else None
        if kept is None or kept.state is not WorkerState.READY:
            ready = [worker for worker in s.workers.values() if worker.state is WorkerState.READY]
            kept = min(ready, key=lambda worker: (worker.held_up, len(worker.in_flight)), default=None)
            s.isolated = kept.worker_id if kept is not None else None
        return kept


def pieces_of(chunk: Chunk, salvaged: Intervals, blamed: Blamed | None) -> list[tuple[int, int, Lot | None]]:
    """What a dead worker had not reported of a chunk, cut where the fate changes: `(start, end, lot)`, None = salvaged."""
    if blamed is not None and blamed.chunk_id not in (None, chunk.chunk_id):
        blamed = None
    pieces: list[tuple[int, int, Lot | None]] = []
    for index in range(chunk.reported, chunk.count):
        lot: Lot | None = None
        if chunk.offsets[index] not in salvaged:
            lot = AGAIN if blamed is None else blamed.lot(index)
        if pieces and pieces[-1][2] == lot:
            pieces[-1] = (pieces[-1][0], index + 1, lot)
        else:
            pieces.append((index, index + 1, lot))
    return pieces


def unique_id_of(view: memoryview | bytearray, start: int, end: int) -> str:
    """The id that a message keeps when its broker shows it again; empty = it has none."""
    try:
        info = record_info(view, start, end)
    except ProtocolError:
        return ""
    found = find_property(bytes(view[info.properties_start : info.end]), _UNIQUE_ID)
    return bytes(found).decode(errors="replace") if found else ""


def unreported(state: State, worker: Worker) -> dict[str, object]:
    """For the log: what the worker had in hand and has not reported, and how many messages that is; empty = nothing."""
    left = [
        chunk for chunk in worker.in_flight.values() if chunk.reported < chunk.count and chunk.handle in state.queues
    ]
    if not left:
        return {}
    places = [_place(state.queues[each.handle].mq, each.offsets[each.reported], each.offsets[-1]) for each in left]
    more = ["..."] if len(places) > PLACES_MAX else []
    return {
        "unreported": ", ".join([*places[:PLACES_MAX], *more]),
        "unreported_messages": sum(each.count - each.reported for each in left),
    }


def facts_of(death: Death) -> dict[str, str]:
    """The death as text, for a dead letter's properties."""
    facts = {"end": death.end.value, "cause": death.cause}
    facts |= {name: str(value) for name, value in death.facts.items() if value not in (None, "")}
    if "stack" in facts:
        facts["stack"] = facts["stack"][:STACK_MAX_CHARS]
    return facts


def _position(offsets: Sequence[int], offset: int, low: int) -> int | None:
    at = bisect_left(offsets, offset, low)
    return at if at < len(offsets) and offsets[at] == offset else None


def _place(mq: MessageQueue, first: int, last: int | None = None) -> str:
    upto = "" if last is None or last == first else f"-{last}"
    return f"{mq.topic}/{mq.broker_name}/{mq.queue_id}@{first}{upto}"
