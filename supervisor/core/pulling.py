"""Pulls: at most one outstanding per process queue, sent when flow control and the byte budget allow.

There is no sleeping for flow control as in Java's 50 ms loop (DefaultMQPushConsumerImpl.java): a queue held back by
count, bytes, span or rate is looked at again when something of it finishes; one that waits for bytes is in a line that is
served when a slot is freed. A response that finds no room is read, dropped and pulled again (the connection is never left
unread: the answers that would free slots may come after it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from ...durable.outcomes import FILTERED, LOST, UNDELIVERED
from ...remoting.codes import ResponseCode
from ...remoting.errors import ProtocolError
from ...remoting.log_keys import place_keys, queue_keys
from ...remoting.queues import MessageQueue
from ...remoting.stored import first_offset_of, store_timestamp_of, walk
from .actions import Heartbeat, Pull
from .chunks import Chunk, PullRun
from .process_queue import Move, ProcessQueue, PulledQueue
from .slab import UNIT_BYTES, Slot
from .state import BACKLOG, DISK, State
from .states import ASSIGNED

ANSWERED = (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
REFUSALS_LOGGED_EVERY = 60
"""A queue that is refused again and again, say for want of permission, is logged once a minute, not once a second."""
GAPS_LOGGED_EVERY_S = 60.0
"""Of one queue: a compacted topic has one before nearly every message."""
TRIM_EVERY_S = 0.05
"""Cutting slots down looks at everything that is held (up to some hundred µs): not after every chunk."""
PULL_MAX_IDLE_S = 120.0
"""ProcessQueue.PULL_MAX_IDLE_TIME."""


@dataclass(slots=True)
class PullResult:
    """A pull's answer. `slot` holds the body (`length_bytes` of it); None with `dropped` when it found no room."""

    code: int
    next_offset: int
    length_bytes: int = 0
    slot: Slot | None = None
    dropped: bool = False
    remark: str = ""
    end_offset: int = -1
    """The offset that the queue's next message will get, as the answer says; -1 = it does not say."""
    min_offset: int = -1
    """Of PULL_OFFSET_MOVED: the first offset that the broker still has; -1 = it does not say."""
    takes_all: bool = False
    """The pull was sent for a subscription by which brokers leave nothing out."""
    deleted: bool = False
    """What it passes over, and has nothing of, the broker had deleted."""
    elsewhere: bool = False
    """The next pull goes to another address than the one that gave this answer, which sends us there."""
    newest: tuple[int, int] | None = None
    """The last of its records that were taken: offset, and when it was stored. The core's word (member/tails.py)."""


class Pulling:
    """Sends pulls and takes their answers. `moved(queue, move, now)` drains a queue and opens it again there."""

    def __init__(self, state: State, moved: Callable[[PulledQueue, Move, float], None]) -> None:
        self.s = state
        self._moved = moved
        self._trimmed_at = float("-inf")
        self._trim_due = False
        self._corrected_until: dict[MessageQueue, float] = {}
        """Queues that were just corrected: when they may be again."""

    def consider(self, q: PulledQueue, now: float) -> None:
        """Send the next pull of the queue, or note what holds it back."""
        pq = q.pq
        if pq.state is not ASSIGNED or q.pull_pending or q.starved or not pq.locked:
            return  # a queue that is locked again is looked at again
        if self.s.paused:
            q.blocked = True
            return
        messages_max, bytes_max = thresholds(self.s, pq)
        q.blocked = (
            pq.unfinished > messages_max
            or pq.unfinished_bytes > bytes_max
            or pq.is_wider(self.s.config.consume_concurrently_max_span)
            or (bool(self.s.config.rate_limits) and bool(held_by_rates(self.s, pq)))
        )
        if q.blocked:
            return
        if self.s.starved or not self._reserve_or_trim(q, now):
            self._stand_in_line(q, now)
            return
        self._send(q, now)

    def _stand_in_line(self, q: PulledQueue, now: float) -> None:
        q.starved = True
        self.s.starved.append(q)
        # Those in front may be queues that have ended meanwhile, and nothing else may come to serve the line.
        self.feed_starved(now)

    def _reserve_or_trim(self, q: PulledQueue, now: float) -> bool:
        return self._reserve(q) or (self._trim(now) and self._reserve(q))

    def _trim(self, now: float) -> bool:
        """Take back what slots do not need any more, now and then; whether that brought anything."""
        if not self.s.slab.worn:
            return False
        if now >= self._trimmed_at + TRIM_EVERY_S:  # as the timer compares: a difference may round to less, for ever
            self._trimmed_at = now
            return trim(self.s) > 0
        if not self._trim_due:
            # Nothing else may come to serve the line: what wore the slots down was reported before.
            self._trim_due = True
            self.s.at(self._trimmed_at + TRIM_EVERY_S, self._trim_later)
        return False

    def _trim_later(self, now: float) -> None:
        self._trim_due = False
        self.feed_starved(now)

    def _reserve(self, q: PulledQueue) -> bool:
        slab = self.s.slab
        if q.drops > 1 and slab.used_units:
            # Fragments kept it out although the sum fitted: now it waits for a run that holds it and all that was asked for
            # before it, at the latest for the whole slab.
            asked_bytes = q.reservation_bytes() + slab.reserved_units * UNIT_BYTES
            if slab.longest_free() * UNIT_BYTES < asked_bytes:
                return False
        units = slab.reserve(q.reservation_bytes())
        if units:
            self.s.reserved[q.pq.handle] = units
        return bool(units)

    def _send(self, q: PulledQueue, now: float) -> None:
        pq = q.pq
        q.pull_pending = True
        q.last_pull = now
        head = pq.head_offset
        commit = head if head > q.committed and not q.in_doubt else 0
        self.s.counters.pulls += 1
        self.s.out.append(Pull(pq.handle, pq.mq, pq.next_offset, commit))

    def feed_starved(self, now: float) -> None:
        """Bytes were freed: serve the line from its head, and stop at the first that still does not fit."""
        starved = self.s.starved
        while starved:
            q = starved[0]
            if self.s.paused:
                q.blocked = True
            elif q.pq.state is ASSIGNED and q.pq.locked:
                if not self._reserve_or_trim(q, now):
                    return
                self._send(q, now)
            starved.popleft()
            q.starved = False

    def pause(self, reason: str) -> None:
        """Send no further pull until every reason is gone. One that the broker holds is still answered, and its messages
        are consumed (as in Java, CL/impl/consumer/DefaultMQPushConsumerImpl.java, suspend), unless it is for want of room for
        rows (State.rows_wait): what is pulled may have many times the bytes in rows."""
        self.s.paused.add(reason)
        self._look_for_room()

    def resume(self, reason: str, now: float) -> None:
        """Pull again, unless there is another reason not to."""
        self.s.paused.discard(reason)
        self._look_for_room()
        if self.s.paused:
            return
        for q in list(self.s.pulled.values()):
            self.consider(q, now)

    def _look_for_room(self) -> None:
        self.s.rows_wait = not self.s.stopping and not self.s.paused.isdisjoint((BACKLOG, DISK))

    def end_unknown_since(self, then: float) -> list[ProcessQueue]:
        """Those of our queues of which no pull is out, and of which nobody has said since `then` where they end: it is not
        seen how they grow. A refusal says no end, and a pause comes after it."""
        return [
            q.pq
            for handle, q in self.s.pulled.items()
            if q.end_told_at < then and handle not in self.s.reserved and q.pq.state is ASSIGNED
        ]

    def end_seen(self, handle: int, end_offset: int, now: float) -> None:
        """What the queue's next message will get."""
        q = self.s.assigned(handle)
        if q is not None:
            q.end_offset, q.end_told_at = max(q.end_offset, end_offset), now

    def room_for(self, handle: int, length_bytes: int) -> Slot | None:
        """Where the body of this queue's pull response goes; None = read and drop it."""
        q = self.s.assigned(handle)
        if q is None:
            return None
        slot = self.s.slab.take(length_bytes)
        if slot is None:
            q.last_body_bytes = length_bytes
        return slot

    def _answered(self, handle: int) -> PulledQueue | None:
        """Give the reservation back; the queue if it still takes answers."""
        units = self.s.reserved.pop(handle, 0)
        if units:
            self.s.slab.unreserve(units)
        q = self.s.assigned(handle)
        if q is None:
            # Draining or ended in the meantime: the answer is dropped, the next owner pulls the same again.
            self.s.counters.late_answers += 1
        else:
            q.pull_pending = False
        return q

    def pulled(self, handle: int, result: PullResult, now: float) -> None:
        """Take a pull's answer; its slot (if any) belongs to the core from here on."""
        q = self._answered(handle)
        if q is None:
            if result.slot is not None:
                self.s.release(result.slot)
            self.feed_starved(now)
            return
        if result.dropped:
            self.s.counters.pull_bodies_dropped += 1
            q.drops += 1
            self._stand_in_line(q, now)
            return
        q.drops = 0
        if result.end_offset >= 0:
            q.end_offset, q.end_told_at = max(q.end_offset, result.end_offset), now
        if result.code == ResponseCode.SUCCESS and result.slot is not None:
            self._found(q, result, result.slot, now)
            return
        if result.slot is not None:
            self.s.release(result.slot)  # a refusal with a body, which no broker sends: nobody wants it
        if result.code in ANSWERED:
            self._found_nothing(q, result, now)
        else:
            self._refused(q, result, now)

    def _found_nothing(self, q: PulledQueue, result: PullResult, now: float) -> None:
        pq = q.pq
        if result.code == ResponseCode.PULL_NOT_FOUND:
            # At its end: the broker will hold the next pull and answer it with the first message that arrives. Idle queues
            # must not sit on bytes that busy ones wait for.
            q.last_body_bytes = 0
        q.refused_code = -1
        if _is_stuck(q, result):
            self._stuck(q, result, now)
            return
        q.stuck_end, q.stuck_waits = -1, 0
        if pq.next_offset < result.next_offset:
            self._note_passed_over(q, result, [], [], now)
        pq.ledger.pass_over(pq.next_offset, result.next_offset)
        pq.next_offset = max(pq.next_offset, result.next_offset)
        self._again(q, now)

    def _found(self, q: PulledQueue, result: PullResult, slot: Slot, now: float) -> None:
        pq, q.refused_code = q.pq, -1
        q.stuck_end, q.stuck_waits = -1, 0
        try:
            positions, offsets = walk(self.s.view, slot.start, slot.start + result.length_bytes)
            if offsets and offsets[-1] >= result.next_offset:
                # A record that says it is a batch of so many would let the commit run ahead of what was pulled.
                raise ProtocolError(
                    f"its last offset is {offsets[-1]}", f"answer that ends before {result.next_offset}"
                )
        except ProtocolError as error:
            self.s.release(slot)
            self.s.log("error", "pull_body_invalid", **place_keys(pq.mq, pq.next_offset), error=str(error))
            self.failed(pq.handle, self.s.config.pull_delay_on_error_ms, now, answered=True)
            return
        if offsets:
            result.newest = offsets[-1], store_timestamp_of(self.s.view, positions[len(offsets) - 1])
        q.last_body_bytes = result.length_bytes
        counters = self.s.counters
        counters.pulled_messages += len(offsets)
        counters.pulled_bytes += result.length_bytes
        self.s.stats.pulled(pq.mq.topic, len(offsets), (now - q.last_pull) * 1000)
        if len(offsets) < result.next_offset - pq.next_offset:
            self._note_passed_over(q, result, positions, offsets, now)
        self._queue_runs(pq, slot, positions, offsets)
        pq.ledger.pass_over(offsets[-1] + 1 if offsets else pq.next_offset, result.next_offset)
        pq.next_offset = max(pq.next_offset, result.next_offset)
        self._again(q, now)

    def _note_passed_over(
        self, q: PulledQueue, result: PullResult, positions: Sequence[int], offsets: Sequence[int], now: float
    ) -> None:
        """The answer goes further than by its records. With a filter that is what was asked for, and is not noted message by
        message: in this range, whatever has no other outcome was filtered by the broker.

        Without one nobody knows why: a damaged or deleted part of the broker's log, a topic that is compacted, another member
        of the group that subscribes less. So these very offsets are noted, and `reconcile` names them; also those of which
        the journal says that they were finished before a restart, for it counts a gap to the record after it.

        What its broker says to have deleted is lost, with a filter or without.
        """
        mq, start, end = q.pq.mq, q.pq.next_offset, result.next_offset
        if result.deleted:
            self.s.outcomes.add(LOST, mq, start, end)
            self._log_gap(q, start, end, end - start, now, deleted=True)
            return
        if not result.takes_all:
            self.s.outcomes.add(FILTERED, mq, start, end)
            return
        gaps = gaps_between(self.s.view, positions, offsets, start, end)
        if not gaps:
            return  # inner batches: one record, many offsets
        for gap in gaps:
            self.s.outcomes.add(UNDELIVERED, mq, *gap)
        messages = sum(stop - begin for begin, stop in gaps)
        self.s.counters.undelivered_messages += messages
        self._log_gap(q, gaps[0][0], gaps[-1][1], messages, now, deleted=False)

    def _log_gap(self, q: PulledQueue, start: int, end: int, messages: int, now: float, *, deleted: bool) -> None:
        level = "debug"
        if now >= q.gap_logged_at + GAPS_LOGGED_EVERY_S:
            level, q.gap_logged_at = "warning", now
        self.s.log(level, "pull_gap", **place_keys(q.pq.mq, start), messages=messages, upto=end, deleted=deleted)

    def _queue_runs(self, pq: ProcessQueue, slot: Slot, positions: list[int], offsets: list[int]) -> None:
        """Queue what is new; what was finished before a restart is left out (it may be anywhere in the body)."""
        runs = [(0, len(offsets))]
        if pq.ledger.done.end > pq.next_offset:
            runs = _unfinished_runs(offsets, pq)
            self.s.counters.skipped_messages += len(offsets) - sum(end - start for start, end in runs)
            if self.s.charges.noted:
                # The run before may have been killed before it had written that these are over.
                self.s.survived(pq.mq, [offset for offset in offsets if offset in pq.ledger.done])
        slot.refs += len(runs)
        for start, end in runs:
            begin = offsets[start - 1] + 1 if start else min(pq.next_offset, offsets[0])
            pq.waiting.append(PullRun(slot, positions, offsets, start, end, begin))
            pq.unfinished += end - start
            pq.unfinished_bytes += positions[end] - positions[start]
            self.s.waiting_messages += end - start
        self.s.release(slot)
        if runs and len(pq.waiting) == len(runs):
            self.s.ready.append(pq)

    def _again(self, q: PulledQueue, now: float) -> None:
        if self.s.config.pull_interval_ms:
            self._later(q, now + self.s.config.pull_interval_ms / 1000)
        else:
            self.consider(q, now)
        if self.s.starved:
            self.feed_starved(now)

    def _later(self, q: PulledQueue, due: float, then: Callable[[float], None] | None = None) -> None:
        """At `due`, unless the queue leaves, do `then` (None: look at it again); meanwhile its pull counts as outstanding."""
        q.pull_pending = True

        def again(now: float) -> None:
            q.pull_pending = False
            if then is None:
                self.consider(q, now)
            elif q.pq.state is ASSIGNED:
                then(now)

        self.s.at(due, again)

    def _stuck(self, q: PulledQueue, result: PullResult, now: float) -> None:
        """Without a pause such a broker would be asked some thousand times a second. One that sends us to another address is
        followed at once, but not twice in a row: replicas may name each other. Logged once, as a refusal is, until it has
        got there."""
        first, q.stuck_end = q.stuck_end < 0, result.end_offset
        if first and result.elsewhere:
            self._again(q, now)
            return
        level, delay_ms = "debug" if q.stuck_waits else "warning", self.s.config.pull_delay_on_error_ms
        q.stuck_waits += 1
        self.s.log(level, "pull_beyond_end", **place_keys(q.pq.mq, q.pq.next_offset), end=result.end_offset,
                   retry_in_ms=delay_ms)  # fmt: skip
        self._later(q, now + delay_ms / 1000)
        self.feed_starved(now)

    def _refused(self, q: PulledQueue, result: PullResult, now: float) -> None:
        config, pq = self.s.config, q.pq
        if result.code == ResponseCode.PULL_OFFSET_MOVED and result.next_offset >= 0:
            due = self._corrected_until.get(pq.mq, now)
            if now < due:  # it was opened at the last one just now: no broker is asked as fast as it says so
                self._later(q, due, lambda at: self._refused(q, result, at))
                return
            self._corrected_until = {mq: until for mq, until in self._corrected_until.items() if now < until}
            self._corrected_until[pq.mq] = now + config.pull_delay_on_error_ms / 1000
            # The offset is not in the queue (deleted, reset, re-created): finish what runs, then begin where it says. Where
            # that is the very offset, somebody reset the group to where it is.
            level = "info" if result.next_offset == pq.next_offset else "warning"
            self.s.log(level, "pull_offset_illegal", **place_keys(pq.mq, pq.next_offset), corrected=result.next_offset)
            forwards = result.next_offset > pq.next_offset
            unknown = result.next_offset if forwards else 0
            lost_to, skips_from = min(result.min_offset if result.min_offset >= 0 else unknown, result.next_offset), -1
            if (forwards or pq.next_offset <= result.end_offset) and lost_to < result.next_offset:
                # The broker has the rest, or all that we asked for: an operator's reset passes over that, which brokers from
                # 5.2 on answer in the same way, also where it is to something that is pulled and has not run.
                skips_from = lost_to
            self._moved(q, Move(result.next_offset, skips_from, lost_to), now)
            return
        self.s.counters.pull_errors += 1
        if result.code in (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST):
            # The broker has not seen our newest heartbeat yet (docs/protocol.md, subscriptions).
            self.s.out.append(Heartbeat())
        delay_ms = config.pull_delay_on_error_ms
        if result.code == ResponseCode.FLOW_CONTROL:
            delay_ms = config.pull_delay_on_flow_control_ms
        if result.code != q.refused_code:
            q.refused_code, q.refusals, q.refused_at = result.code, 0, now
        q.stuck_end, q.stuck_waits = -1, 0
        level = "debug" if q.refusals % REFUSALS_LOGGED_EVERY else "warning"
        q.refused_remark, q.refusals = result.remark, q.refusals + 1
        self.s.log(level, "pull_refused", **queue_keys(pq.mq), code=result.code, remark=result.remark, times=q.refusals,
                   retry_in_ms=delay_ms)  # fmt: skip
        self._later(q, now + delay_ms / 1000)

    def expired(self, q: PulledQueue, now: float) -> bool:
        """Whether its pull has been out for longer than any answer takes (ProcessQueue.isPullExpired). Its bytes are given
        back then; an answer that comes all the same finds the queue leaving and is dropped."""
        pq = q.pq
        if not (q.pull_pending and pq.handle in self.s.reserved and now - q.last_pull > PULL_MAX_IDLE_S):
            return False
        self.s.slab.unreserve(self.s.reserved.pop(pq.handle))
        self.s.counters.pulls_expired += 1
        self.s.log("error", "pull_expired", **place_keys(pq.mq, pq.next_offset), sent_s_ago=round(now - q.last_pull))
        return True

    def failed(self, handle: int, delay_ms: int, now: float, *, answered: bool = False) -> None:
        """No usable answer (connection lost, time-out, garbage): pull again after `delay_ms`."""
        q = self.s.assigned(handle) if answered else self._answered(handle)
        self.s.counters.pull_errors += 1
        if q is not None:
            if not answered:
                # The broker may have died, and with it the newest offsets that it confirmed: it writes them every few
                # seconds. Until they are there again, a start of ours would take its older ones for a reset.
                q.committed_at = float("-inf")
            q.pull_pending = True
            self._later(q, now + delay_ms / 1000)
        self.feed_starved(now)


def _is_stuck(q: PulledQueue, result: PullResult) -> bool:
    """The broker has nothing at our offset, nor says where to go on, and does not hold the pull: a slave that lags, or that
    was built anew. An answer that goes on proves it has, also where the end that it says is older: 4.9 reads that first."""
    offset, end = q.pq.next_offset, result.end_offset
    at_once = result.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    return result.next_offset <= offset and end >= 0 and (at_once or end < offset)


def gaps_between(
    view: memoryview | bytearray, positions: Sequence[int], offsets: Sequence[int], start: int, end: int
) -> list[tuple[int, int]]:
    """What of `[start, end)` no record has; `positions` and `offsets` as `walk` gives them. The offsets of an inner batch are
    all its own."""
    gaps: list[tuple[int, int]] = []
    for position, last in zip(positions, offsets, strict=False):
        if last > start and (first := first_offset_of(view, position)) > start:
            gaps.append((start, first))
        start = max(start, last + 1)
    return [*gaps, (start, end)] if start < end else gaps


def trim(state: State) -> int:
    """Cut down every slot that can be, when bytes run short; the units that came free.

    A pull's body is one slot, and chunks of it finish at different times: a message that takes minutes would hold all of
    what was pulled with it. Bytes are needed by a pull run that waits, or by a chunk that a worker may read or whose failed
    messages are to be sent back. A slot all of whose references are found this way is cut down to their units; one with a
    reference that is not found (a body that is just being received) is left alone.
    """
    state.slab.worn = False
    held: dict[Slot, list[tuple[int, int]]] = {}
    for slot, start, end in chain(_waiting(state), _in_use(state)):
        if slot.units > 1:
            held.setdefault(slot, []).append((start, end))
    freed = sum(state.slab.trim(slot, ranges) for slot, ranges in held.items() if len(ranges) == slot.refs)
    state.counters.trimmed_units += freed
    return freed


def _waiting(state: State) -> Iterator[tuple[Slot, int, int]]:
    for pq in state.queues.values():
        for run in pq.waiting:
            yield run.slot, run.positions[run.at], run.positions[run.end]


def _in_use(state: State) -> Iterator[tuple[Slot, int, int]]:
    chunks: dict[int, Chunk] = {}
    queues = (pq.open.values() for pq in state.queues.values())
    for chunk in chain(state.chunks.values(), state.redo, state.quarantine, *queues):
        chunks[id(chunk)] = chunk
    for chunk in chunks.values():
        if chunk.held:
            yield chunk.slot, chunk.positions[0], chunk.positions[-1]


def thresholds(state: State, pq: ProcessQueue) -> tuple[int, int]:
    """(unfinished messages, their bytes) above which the queue is not pulled; a topic's are shared out to its queues here
    (RebalancePushImpl.messageQueueChanged, which divides by the queues of all topics)."""
    config = state.config
    messages, size = config.pull_threshold_for_queue, config.pull_threshold_size_bytes
    if config.pull_threshold_for_topic > 0 or config.pull_threshold_size_for_topic_bytes > 0:
        queues = len(state.by_topic[pq.mq.topic])
        if config.pull_threshold_for_topic > 0:
            messages = max(1, config.pull_threshold_for_topic // queues)
        if config.pull_threshold_size_for_topic_bytes > 0:
            size = max(1 << 20, config.pull_threshold_size_for_topic_bytes // queues)
    return messages, size


def held_by_rates(state: State, pq: ProcessQueue) -> list[str]:
    """The rates (topics, or MEMBER for that of all) that hold back what waits in the queue: pulling more would only take
    bytes that other topics can use. A limit that a reload has removed holds nothing, if it was not asked since."""
    rates, waits = state.config.rate_limits, pq.waiting or (pq.order is not None and pq.order.beside)
    return [name for name in state.rates.holding(pq.mq.topic, state.now) if name in rates] if rates and waits else []


def _unfinished_runs(offsets: list[int], pq: ProcessQueue) -> list[tuple[int, int]]:
    """Records `[start, end)` of a pull that were not finished before; its ledger passes over the others."""
    runs: list[tuple[int, int]] = []
    begin = min(pq.next_offset, offsets[0])
    for index, offset in enumerate(offsets):
        if offset in pq.ledger.done:
            pq.ledger.pass_over(begin, offset + 1)
        elif runs and runs[-1][1] == index:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
        begin = offset + 1
    return runs
