"""POP: the broker keeps the offsets, we take messages for a time and acknowledge each one when it is finished and durable.

- One pop at a time for each assignment, held by the broker until something arrives; not while too many of its messages wait
  for their acknowledgement (popThresholdForQueue).
- A message is acknowledged when its rows are sealed. One that fails gets a new invisible time, by which the broker shows it
  again (from its retry topic).
- A message in hand is renewed at half of its invisible time, again and again, until it is finished. Java does not renew: a
  handler that takes longer than the invisible time runs beside its own repetition there. One that never began is not
  renewed while there is no room for rows: other members may have some.
- An acknowledgement that had no answer is tried again, until the invisible time is over or a stop's deadline has come: one
  that got through changes nothing by coming twice. Nothing is popped while too many of them wait. A changed invisible time is
  another matter: a broker shows a message once for each change whose answer was lost. So a renewal is tried again in the
  middle of the time that the message has left, though not at once, and a message that failed goes back once only.
- What one pop brought from one queue is a process queue of its own. It is never pulled and commits nothing: it is made with
  its messages, and ends when the last of them was acknowledged or given back. Everything between (dispatch, reports,
  seals, the deaths of workers) is as for queues that are pulled.
- What is acknowledged is noted as settled, and what others had of the same queues as elsewhere (elsewhere.py).
- Nothing is journalled: what was finished and not acknowledged before a kill is shown again by the broker, and runs again.

Sources: CL/impl/consumer/{DefaultMQPushConsumerImpl,ConsumeMessagePopConcurrentlyService,PopProcessQueue}.java.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...durable.outcomes import ELSEWHERE, SETTLED
from ...remoting.check_points import CheckPoint, check_point_of, start_offsets
from ...remoting.codes import ResponseCode
from ...remoting.errors import ProtocolError
from ...remoting.log_keys import queue_keys
from ...remoting.pop_headers import PopResponse
from ...remoting.queues import MessageQueue
from ...remoting.stored import record_info, walk
from .actions import Ack, Pop, Renew
from .chunks import PullRun, Token
from .dispatching import Dispatching
from .elsewhere import Shown
from .ledger import Ledger
from .process_queue import ProcessQueue, bytes_for_next
from .pulling import held_by_rates
from .quarantine import unique_id_of
from .slab import Slot
from .state import State
from .states import QUEUE, QueueEvent, QueueState, move

NOTHING = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND)
WAIT_FOR_BYTES_S = 0.1
INVISIBLE_S_MIN = 0.1
"""A shorter invisible time, as a check point may name it, is not kept up with."""
ASK_AGAIN_TIMES_MAX = 3
"""By which the pause between two tries of an acknowledgement grows: it may have to go out for ten thousand messages."""


@dataclass(slots=True)
class PopResult:
    """A pop's answer. `slot` holds the body (`length_bytes` of it); None with `dropped` when it found no room."""

    code: int
    header: PopResponse | None = None
    length_bytes: int = 0
    slot: Slot | None = None
    dropped: bool = False
    remark: str = ""


class PopLoop:
    """One assignment: pops follow each other, one at a time."""

    __slots__ = ("handle", "in_hand", "last_body_bytes", "last_pop", "mq", "pending", "waiting")

    def __init__(self, handle: int, mq: MessageQueue) -> None:
        self.handle = handle
        self.mq = mq
        self.pending = False
        """A pop is out, or the next one has its time."""
        self.waiting = False
        """The next pop waits for acknowledgements or for bytes of the slab."""
        self.in_hand = 0
        """Messages popped for which no acknowledgement was sent, or had no answer, and that were not given back."""
        self.last_body_bytes = 0
        self.last_pop = 0.0
        """When the last one was sent; 0 = never yet."""


class PopQueue:
    """What one pop brought from one queue, beside its process queue."""

    __slots__ = (
        "acking", "checks", "invisible_s", "loop", "over_at", "pq", "renewing", "returning", "suspects", "then", "unanswered",
    )  # fmt: skip

    def __init__(
        self, pq: ProcessQueue, loop: PopLoop, checks: dict[int, CheckPoint], invisible_s: float, now: float
    ) -> None:
        self.pq = pq
        self.loop = loop
        self.checks = checks
        """By queue offset: messages that are neither acknowledged nor given back."""
        self.invisible_s = invisible_s
        self.over_at = dict.fromkeys(checks, now + invisible_s)
        """By queue offset: when its invisible time is over. A broker may answer one renewal and not the next."""
        self.acking = 0
        """Acknowledgements under way, or to be tried again."""
        self.unanswered = 0
        """Those of them that had no answer yet."""
        self.renewing: set[int] = set()
        """Offsets whose invisible time is being changed: they are not acknowledged with the check point that is replaced."""
        self.returning: set[int] = set()
        """Offsets whose send-back is on its way: they are not renewed beside it."""
        self.then: dict[int, Callable[[], None]] = {}
        """By offset: what waits for the answer to that."""
        self.suspects: list[int] = []
        """Offsets that may have killed the whole member (charges.py)."""


class Popping:
    """Owns the loops and the queues of popped messages. Calls `ended()` when one of those has ended."""

    def __init__(self, state: State, dispatching: Dispatching, ended: Callable[[], None]) -> None:
        self.s = state
        self._dispatching = dispatching
        self._ended = ended
        self.queues: dict[int, PopQueue] = {}
        """By the handle of their process queue; an ended one is not in it."""
        self.loops: dict[MessageQueue, PopLoop] = {}
        self._by_handle: dict[int, PopLoop] = {}
        self.handles: Collection[int] = self._by_handle.keys()
        """Those of the loops."""
        self._info_handles: dict[MessageQueue, int] = {}
        """By which workers know the queues that messages were popped from; as many as there are queues."""
        self._shown = Shown(state.config.pop_elsewhere_after_ms / 1000)
        self._tells = False
        """A time is set at which it is looked what of that is over."""

    # --- assignment and pops ------------------------------------------------------------------------------------

    def assigned(self, topic: str, mqs: Collection[MessageQueue], now: float) -> None:
        """The topic's queues that are ours to pop from; the loops of others end, what they brought is finished."""
        if self.s.stopping or topic not in self.s.topics:
            return
        self._end_loops(topic, mqs)
        for mq in mqs:
            if mq not in self.loops:
                loop = self.loops[mq] = PopLoop(next(self.s.handles), mq)
                self._by_handle[loop.handle] = loop
                self.s.log("info", "pop_assigned", **queue_keys(mq))
                self._consider(loop, now)

    def unsubscribed(self, topic: str) -> None:
        """The loops of the topic end; a pop that is out is answered to nobody, and the broker shows again what it brings."""
        self._end_loops(topic, ())

    def info_handles(self) -> Collection[int]:
        """By which workers know the queues that were popped from."""
        return self._info_handles.values()

    def is_popped(self, handle: int, mq: MessageQueue) -> bool:
        """Whether workers know by `handle` what was popped from the queue: others know by theirs what was pulled."""
        return self._info_handles.get(mq) == handle

    def _end_loops(self, topic: str, but: Collection[MessageQueue]) -> None:
        for mq in [mq for mq in self.loops if mq.topic == topic and mq not in but]:
            loop = self.loops.pop(mq)
            del self._by_handle[loop.handle]

    def _consider(self, loop: PopLoop, now: float) -> None:
        s = self.s
        if loop.pending or s.stopping or self.loops.get(loop.mq) is not loop:
            return
        loop.waiting = bool(s.paused) or loop.in_hand > s.config.pop_threshold_for_queue or self._held_by_rates(loop)
        if loop.waiting:
            return
        # Queues that wait in line for bytes come first; those that have ended are still in it until it is served.
        in_line = any(q.pq.state is QueueState.ASSIGNED and q.pq.locked for q in s.starved)
        units = 0 if in_line else s.slab.reserve(bytes_for_next(loop.last_body_bytes))
        if not units:
            self._later(loop, now + WAIT_FOR_BYTES_S)
            return
        s.reserved[loop.handle] = units
        loop.pending = True
        loop.last_pop = now
        s.counters.pulls += 1
        s.out.append(Pop(loop.handle, loop.mq))

    def _held_by_rates(self, loop: PopLoop) -> bool:
        """Some of what it brought waits for a rate: more would only be renewed here again and again."""
        if not self.s.config.rate_limits:
            return False
        return any(q.loop is loop and held_by_rates(self.s, q.pq) for q in self.queues.values())

    def resume(self, now: float) -> None:
        for loop in list(self.loops.values()):
            self._consider(loop, now)

    def room_for(self, handle: int, length_bytes: int) -> Slot | None:
        """Where the body of a pop's answer goes; None = read and drop it."""
        loop = self._by_handle.get(handle)
        if loop is None or self.s.stopping:
            return None
        loop.last_body_bytes = length_bytes
        return self.s.slab.take(length_bytes)

    def popped(self, handle: int, result: PopResult, now: float) -> None:
        """Take a pop's answer. What found no room, or comes after the end, the broker shows again in its time."""
        s = self.s
        units = s.reserved.pop(handle, 0)
        if units:
            s.slab.unreserve(units)
        loop = self._by_handle.get(handle)
        if loop is None or s.stopping:
            s.counters.late_answers += 1
            if result.slot is not None:
                s.release(result.slot)
            return
        loop.pending = False
        delay_ms = 0
        if result.dropped:
            s.counters.pull_bodies_dropped += 1
            delay_ms = s.config.pull_delay_on_error_ms
        elif result.code == ResponseCode.SUCCESS and result.slot is not None and result.header is not None:
            self._found(loop, result, result.slot, result.header, now)
        elif result.code not in NOTHING:
            s.counters.pull_errors += 1
            s.log("warning", "pop_refused", **queue_keys(loop.mq), code=result.code, remark=result.remark)
            delay_ms = s.config.pull_delay_on_error_ms
        if delay_ms:
            self._later(loop, now + delay_ms / 1000)
        else:
            self._consider(loop, now)

    def failed(self, handle: int, now: float) -> None:
        """No usable answer."""
        self.popped(handle, PopResult(-1, remark="no answer"), now)

    def _later(self, loop: PopLoop, due: float) -> None:
        loop.pending = True

        def again(now: float) -> None:
            loop.pending = False
            self._consider(loop, now)

        self.s.at(due, again)

    def _found(self, loop: PopLoop, result: PopResult, slot: Slot, header: PopResponse, now: float) -> None:
        s = self.s
        try:
            positions, _ = walk(s.view, slot.start, slot.start + result.length_bytes)
            starts = start_offsets(header.start_offset_info or "")
        except ProtocolError as error:
            s.release(slot)
            s.log("error", "pop_body_invalid", **queue_keys(loop.mq), error=str(error))
            return
        checks = [self._check_point(loop, at, header, starts) for at in positions[:-1]]
        s.counters.pulled_messages += len(checks)
        s.counters.pulled_bytes += result.length_bytes
        s.stats.pulled(loop.mq.topic, len(checks), (now - loop.last_pop) * 1000)
        for start, end in _runs(checks, loop.mq.topic, s.config.group):
            own = [check for check in checks[start:end] if check is not None]
            self._queue_up(loop, slot, positions[start : end + 1], own, now)
        s.release(slot)

    def _check_point(
        self, loop: PopLoop, position: int, header: PopResponse, starts: dict[tuple[str, int], int]
    ) -> CheckPoint | None:
        """By which the record at `position` is acknowledged; None = it cannot be, so it does not run."""
        try:
            return check_point_of(self.s.view, position, header, starts, loop.mq, self.s.config.group)
        except ProtocolError as error:
            self.s.log("error", "pop_record_invalid", **queue_keys(loop.mq), error=str(error))
            return None

    def _queue_up(
        self, loop: PopLoop, slot: Slot, positions: Sequence[int], checks: Sequence[CheckPoint], now: float
    ) -> None:
        """Records of one queue, with rising offsets; `positions` has one more, the end of the last."""
        s = self.s
        mq = checks[0].queue(loop.mq.topic, s.config.group)
        mine = {check.offset: check for check in checks}
        invisible_s = max(checks[0].invisible_ms / 1000, INVISIBLE_S_MIN)
        known_as = self._info_handles.get(mq)
        if known_as is None:
            known_as = self._info_handles[mq] = next(s.handles)
        pq = ProcessQueue(next(s.handles), mq, self, known_as)
        pq.state = QueueState.ASSIGNED
        offsets = [check.offset for check in checks]
        slot.refs += 1
        pq.waiting.append(PullRun(slot, positions, offsets, 0, len(offsets), offsets[0]))
        pq.next_offset = offsets[-1] + 1
        self._show(mq, offsets[0], pq.next_offset, now)
        pq.ledger = Ledger(offsets[0])
        pq.unfinished = len(offsets)
        pq.unfinished_bytes = positions[-1] - positions[0]
        s.waiting_messages += len(offsets)
        q = PopQueue(pq, loop, mine, invisible_s, now)
        if s.charges.asks_for_ids:
            self._look_for_killers(q, positions, offsets)
        s.queues[pq.handle], self.queues[pq.handle] = pq, q
        s.ready.append(pq)
        loop.in_hand += len(offsets)
        s.at(now + invisible_s / 2, lambda at: self._renew(q, at))

    def _show(self, mq: MessageQueue, start: int, end: int, now: float) -> None:
        if self._shown.show(mq, start, end, now):
            self.s.outcomes.forget(ELSEWHERE, mq)
            self.s.log("warning", "pop_queue_went_back", **queue_keys(mq), first_offset=start)
        if not self._tells:
            self._tells = True
            self.s.at(now + self._shown.step_s, self._tell_elsewhere)

    def _tell_elsewhere(self, now: float) -> None:
        """Note what others have of the queues that were popped from."""
        in_hand: dict[MessageQueue, set[int]] = {}
        for q in self.queues.values():
            in_hand.setdefault(q.pq.mq, set()).update(q.checks)
        for mq in self._shown.queues():
            for start, end in self._shown.over(mq, in_hand.get(mq, set()), now).pieces:
                self.s.outcomes.add(ELSEWHERE, mq, start, end)
        self._tells = bool(self._shown)
        if self._tells:
            self.s.at(now + self._shown.step_s, self._tell_elsewhere)

    def _look_for_killers(self, q: PopQueue, positions: Sequence[int], offsets: Sequence[int]) -> None:
        """What is known of messages by their ids is now of these records; see charges.py. It is written before they run."""
        s, mq, changed = self.s, q.pq.mq, False
        for (start, end), offset in zip(pairwise(positions), offsets, strict=True):
            unique_id, times = unique_id_of(s.view, start, end), record_info(s.view, start, end).reconsume_times
            changed |= s.charges.popped(mq, offset, unique_id, times, s.config.max_worker_deaths)
            if s.charges.is_popped(mq, offset):
                q.suspects.append(offset)
        if changed:
            s.charges_grew()

    # --- invisible times ----------------------------------------------------------------------------------------

    def _renew(self, q: PopQueue, now: float) -> None:
        """Half of the time is over: ask for more, for all that is not finished."""
        if q.pq.state is QueueState.ENDED:
            return
        if self.s.rows_wait and q.pq.waiting:
            self._forget_waiting(q, now)
        if not q.checks:
            return
        for offset in q.checks:
            self._ask_renewal(q, offset)
        self.s.at(now + q.invisible_s / 2, lambda at: self._renew(q, at))

    def _forget_waiting(self, q: PopQueue, now: float) -> None:
        """What never began does not run here. The broker shows it when its time is over, to whoever has room for rows."""
        q.pq.unfinished_bytes -= sum(run.positions[run.end] - run.positions[run.at] for run in q.pq.waiting)
        self._dispatching.drop_waiting(q.pq)
        self.progress(q.pq, now)

    def _ask_renewal(self, q: PopQueue, offset: int) -> None:
        if offset in q.checks and offset not in q.renewing and offset not in q.returning:
            q.renewing.add(offset)
            self.s.out.append(Renew(q.pq.handle, q.pq.mq, offset, q.checks[offset]))

    def renewed(self, handle: int, offset: int, check: CheckPoint | None, unanswered: bool, now: float) -> None:
        """Answer to Renew; no check point = refused, the broker may show the message to somebody else; or `unanswered`."""
        q = self.queues.get(handle)
        if q is None:
            self.s.counters.late_answers += 1
            return
        q.renewing.discard(offset)
        if check is None:
            self.s.counters.pop_renewals_refused += 1
            # The next regular renewal may come too late.
            due = now + max((q.over_at[offset] - now) / 2, self.s.config.pop_ask_again_ms / 1000)
            if unanswered and due < q.over_at[offset]:
                self.s.at(due, lambda _: self._ask_renewal(q, offset))
        elif offset in q.checks:
            self.s.counters.pop_renewals += 1
            q.checks[offset] = check
            q.over_at[offset] = now + q.invisible_s
        then = q.then.pop(offset, None)
        if then is not None:
            then()
        self.progress(q.pq, now)

    # --- what is over -------------------------------------------------------------------------------------------

    def progress(self, pq: ProcessQueue, now: float) -> None:
        """Acknowledge what is finished and durable; the queue ends with the last answer."""
        q = self.queues.get(pq.handle)
        if q is None:
            return
        busy = {offset for chunk in pq.open.values() for offset in chunk.offsets}
        busy.update(offset for run in pq.waiting for offset in run.offsets[run.at : run.end])
        done, held = pq.ledger.done, [held.offsets for held in pq.ledger.held.values()]
        checks: list[CheckPoint] = []
        for offset in list(q.checks):
            if offset in done:  # whatever its chunk still waits for: that may take longer than its invisible time
                if offset not in q.renewing and not any(offset in offsets for offsets in held):
                    checks.append(q.checks.pop(offset))
            elif offset not in busy:
                del q.checks[offset]  # nobody finishes it any more: the broker shows it again
                q.loop.in_hand -= 1
        if checks:
            for check in checks:
                self.s.outcomes.add(SETTLED, pq.mq, check.offset, check.offset + 1)
            self._acknowledge(q, checks)
        if q.loop.waiting:
            self._consider(q.loop, now)
        if not q.checks and not q.acking:
            self._end(q, QueueEvent.DRAINED)

    def _acknowledge(self, q: PopQueue, checks: Sequence[CheckPoint]) -> None:
        q.loop.in_hand -= len(checks)
        self._under_way(q, len(checks))
        self.s.out.append(Ack(q.pq.handle, q.pq.mq, checks))

    def _under_way(self, q: PopQueue, count: int) -> None:
        """So many acknowledgements more or less. A stop by force, which may come at any moment, waits for none of them."""
        q.acking += count
        self.s.uncommitted_at_stop += count

    def acked(
        self, handle: int, count: int, refused: int, unanswered: Sequence[CheckPoint], tries: int, now: float
    ) -> None:
        """Answer to Ack. What was refused is shown again by the broker: it is too late to do anything about it."""
        s, q, lost = self.s, self.queues.get(handle), refused + len(unanswered)
        s.counters.pop_acks += count - lost
        if q is not None:
            self._under_way(q, -count)
            if tries:
                q.unanswered -= count
                q.loop.in_hand -= count
            lost -= self._try_again(q, unanswered, tries + 1, now)
            if s.stopping:
                s.uncommitted_at_stop += lost
            self.progress(q.pq, now)
        s.counters.pop_acks_refused += lost

    def _try_again(self, q: PopQueue, unanswered: Sequence[CheckPoint], tries: int, now: float) -> int:
        """How many of these, which had no answer so many times, are acknowledged again: there is time left for them."""
        due = now + self.s.config.pop_ask_again_ms / 1000 * min(tries, ASK_AGAIN_TIMES_MAX)
        checks = [check for check in unanswered if due < q.over_at[check.offset]]

        def again(_: float) -> None:
            if q.pq.state is not QueueState.ENDED:
                self.s.out.append(Ack(q.pq.handle, q.pq.mq, checks, tries))

        if checks:
            self._under_way(q, len(checks))
            q.unanswered += len(checks)
            q.loop.in_hand += len(checks)
            self.s.at(due, again)
        return len(checks)

    def _end(self, q: PopQueue, event: QueueEvent) -> None:
        """Nothing of it is in flight any more, or its deadline has come."""
        s, pq = self.s, q.pq
        if pq.state is QueueState.ASSIGNED:
            pq.state = move(QUEUE, pq.state, QueueEvent.REVOKED, s.seen)
        pq.state = move(QUEUE, pq.state, event, s.seen)
        q.loop.in_hand -= len(q.checks) + q.unanswered
        q.checks.clear()
        over = [offset for offset in q.suspects if s.charges.popped_over(pq.mq, offset)]
        if over:
            s.charges_over()
        del s.queues[pq.handle], self.queues[pq.handle]
        self._ended()

    def finished(self, pq: ProcessQueue, start: int, end: int, token: Token) -> None:
        """Nothing is journalled: the broker knows what is finished by the acknowledgement."""

    def check_of(self, pq: ProcessQueue, offset: int) -> CheckPoint | None:
        """What the broker knows the message by."""
        return self.queues[pq.handle].checks.get(offset)

    def after_renewal(self, pq: ProcessQueue, offset: int, then: Callable[[], None]) -> bool:
        """A send-back with the check point that is replaced would be refused."""
        q = self.queues[pq.handle]
        if offset not in q.renewing:
            return False
        q.then[offset] = then
        return True

    def going_back(self, pq: ProcessQueue, offset: int) -> None:
        """A renewal beside it would replace the check point, and the broker refuse the one that the send-back names."""
        self.queues[pq.handle].returning.add(offset)

    def stays(self, pq: ProcessQueue, offset: int) -> None:
        """Its invisible time may be nearly over: no renewal was asked for meanwhile."""
        q = self.queues[pq.handle]
        q.returning.discard(offset)
        self._ask_renewal(q, offset)

    def given_back(self, pq: ProcessQueue, offset: int, *, last: bool) -> None:
        """The broker shows the message again: it is not acknowledged, unless it is a dead letter."""
        q = self.queues[pq.handle]
        q.returning.discard(offset)
        check = q.checks.pop(offset, None)
        if check is not None and last:
            self._acknowledge(q, [check])
        elif check is not None:
            q.loop.in_hand -= 1

    def revoked(self, pq: ProcessQueue, now: float) -> None:
        """What no worker has was dropped; the broker shows it again."""
        self.progress(pq, now)

    def deadline(self, pq: ProcessQueue, now: float) -> None:
        """What is not acknowledged the broker shows again."""
        del now
        q = self.queues.get(pq.handle)
        if q is not None:
            self.s.log(
                "warning", "drain_deadline", **queue_keys(pq.mq), unfinished=len(q.checks), not_acknowledged=q.acking
            )
            if self.s.stopping:
                self.s.unfinished_at_stop += len(q.checks)
            else:
                self._under_way(q, -q.acking)  # those of a stop are left behind by it
            self._dispatching.give_up(pq)
            self._end(q, QueueEvent.DEADLINE)

    def persist(self, pq: ProcessQueue, now: float) -> None:
        """Nothing is committed. What waits for its seal waits with its acknowledgement, and with that the next pop; what is
        finished may also wait for a renewal before it is acknowledged."""
        del now
        if pq.ledger.held:
            self.s.ask_seals_of(pq)


def _runs(checks: Sequence[CheckPoint | None], topic: str, group: str) -> list[tuple[int, int]]:
    """Stretches of one queue with rising offsets, without the records that have none: each becomes a process queue."""
    cuts = [0]
    for index, (before, after) in enumerate(pairwise(checks), 1):
        if (
            before is None
            or after is None
            or before.queue(topic, group) != after.queue(topic, group)
            or after.offset <= before.offset
        ):
            cuts.append(index)
    cuts.append(len(checks))
    return [(start, end) for start, end in pairwise(cuts) if start < end and checks[start] is not None]
