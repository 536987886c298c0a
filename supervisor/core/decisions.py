"""The supervisor's decisions, pure: events in, actions out, no socket, clock, thread, random or environment.

One loop owns a `Core`: it gives it an event (events.py) with the time, and then does what `take_actions` gives, in order. The
simulation does the same with a fake clock and network. The mechanisms are one file each: pulling.py, dispatching.py,
settling.py, assigning.py, all over the one state of state.py. Where two of them need each other, the one that is made first
gets a method of the core that finds the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, ClassVar, get_args

from ...durable.intervals import Intervals
from ...remoting.queues import MessageQueue
from . import events as ev
from .actions import Action, KillWorker, forgotten
from .assigning import Assigning
from .charges import Charge
from .chunks import Chunk
from .dispatching import Dispatching, Links
from .doubts import STOOD_STILL_S, Doubts
from .lanes import Lanes
from .locking import Locking
from .order import Order
from .ordered import Ordered, Returning
from .orderly import Orderly
from .popping import Popping
from .process_queue import Move, ProcessQueue, PulledQueue
from .pulling import Pulling
from .reclaiming import Reclaiming
from .settling import Settling
from .slab import Slab, Slot
from .state import CoreConfig, State
from .states import QueueState
from .stats import Window
from .unlisted import SharedId, Unlisted

DISPATCHING: Mapping[str, type[Dispatching]] = {"concurrent": Dispatching, "queue": Orderly, "key": Lanes}
Handler = Callable[[Any, float], object]
NOTICES_S = 0.05
"""The brokers of a cluster hear of a member within some milliseconds of each other. Java waits up to a second."""


class Core:
    """The mechanisms of one member, and which of them takes which event. All times are seconds of one monotonic clock, passed
    in."""

    pulling_class: ClassVar[type[Pulling]] = Pulling
    assigning_class: ClassVar[type[Assigning]] = Assigning
    popping_class: ClassVar[type[Popping]] = Popping
    settling_class: ClassVar[type[Settling]] = Settling
    reclaiming_class: ClassVar[type[Reclaiming]] = Reclaiming
    dispatching_classes: ClassVar[Mapping[str, type[Dispatching]]] = DISPATCHING
    """What the core is made of; the simulation puts a mechanism with a bug in its place."""

    def __init__(
        self,
        config: CoreConfig,
        slab: Slab,
        view: memoryview | bytearray,
        recovered: dict[MessageQueue, tuple[int, Intervals]] | None = None,
    ) -> None:
        self.state = State(config, slab, view)
        self._sent: dict[MessageQueue, int] = {}
        self._passed_by: dict[str, list[tuple[MessageQueue, int, int, int]]] = {}
        """By broker: queues that others went on with, and are to be told: where the group is, what we sent, how much we had
        finished."""
        self.recover(recovered or {})
        self._begun = self._started = self._noticed = False
        self._handlers = self._of_boot()

    def begin(self, order: Order | None = None) -> None:
        """Make the mechanisms, once; `order` None = as the configuration has it.

        Before it only the lives of workers are followed: the handler's decorator may name the order, and what it says is
        known when the first worker is ready.
        """
        assert not self._begun, "the order of a member is known once"
        self._begun = True
        if order is not None:
            self.state.config = replace(self.state.config, **asdict(order))
        state, config = self.state, self.state.config
        links = Links(
            left=self._left,
            dead_letter=self._dead_letter,
            send_back=self._send_back,
            reported=self._reported,
            settled_down=self._settled_down,
        )
        self.dispatching = self.dispatching_classes[config.order](state, links)
        self.ordered = self.dispatching if isinstance(self.dispatching, Ordered) else None
        self.locking = Locking(state, self._is_sure, self._locked_again, self._went_on) if config.locks else None
        self.pulling = self.pulling_class(state, self._moved)
        self.popping = self.popping_class(state, self.dispatching, self._queue_ended)
        self.assigning = self.assigning_class(state, self.pulling, self.dispatching, self.popping, self.locking)
        self.unlisted = Unlisted(state, self.assigning.look_up)
        self._shared_id = SharedId(state)
        self.doubts = Doubts(state, self.assigning.look_up, self._went_on)
        self.settling = self.settling_class(state, self.dispatching, self._restart)
        self.reclaiming = self.reclaiming_class(state, self.dispatching, self.settling.complete)
        self.returning = Returning(state, self.ordered) if self.ordered is not None else None
        self._handlers = self._of_member() | self._of_queues() | self._of_workers() | self._of_order()
        assert self._handlers.keys() == set(get_args(ev.Event)), "every kind of event has its mechanism"

    @property
    def popped_topics(self) -> list[str]:
        """Topics that are popped here: of these the brokers have the offsets."""
        return sorted({mq.topic for mq in self.popping.loops}) if self._begun else []

    def recover(
        self, recovered: dict[MessageQueue, tuple[int, Intervals]], sent: Mapping[MessageQueue, int] | None = None
    ) -> None:
        """What was finished before a restart: per queue the committed offset, and the offsets above it. Before `Start`.

        `sent`: the highest offsets that brokers may have from us. One that is above was sent by another member, or set by an
        operator, while we were away and heard of no reset: what we had finished may be from before one, and is forgotten.
        """
        self.state.recovered.update(recovered)
        self._sent.update(sent or {})

    # --- what the edge calls ------------------------------------------------------------------------------------

    def handle(self, event: ev.Event, now: float) -> None:
        """Take the event; what is to be done about it is in `take_actions` afterwards."""
        self._passed(now)
        self._handlers[type(event)](event, now)
        self._watch(now)

    def tick(self, now: float) -> None:
        """Run the timers that are due."""
        self._passed(now)
        self.state.run_timers(now)
        self._watch(now)

    def _passed(self, now: float) -> None:
        """It is later. A standstill is found before anything else is done: a timer would commit, an answer is an old one."""
        idle_s, self.state.now = now - self.state.now, now
        if idle_s >= STOOD_STILL_S and self._started:
            self.doubts.stood_still(idle_s, now)

    def _watch(self, now: float) -> None:
        """Whatever it was, something may be in flight now, or a worker idle."""
        if self.state.busy and not self.reclaiming.watching:
            self.reclaiming.watch(now)

    def next_timer(self) -> float | None:
        """When `tick` has something to do next."""
        return self.state.next_timer()

    def take_actions(self) -> list[Action]:
        """What to do now, in order. The caller does all of it before the next event."""
        self._tell_passed()
        actions, self.state.out, self.state.load_asked = self.state.out, [], False
        return actions

    def room_for(self, handle: int, length_bytes: int) -> Slot | None:
        """Where to receive the body of a pull or a pop; None = read it and drop it, then answer with `dropped`."""
        if handle in self.popping.handles:
            return self.popping.room_for(handle, length_bytes)
        return self.pulling.room_for(handle, length_bytes)

    def unsealed_of(self, worker_id: str) -> list[int]:
        """Sequence numbers of the worker's segments that hold reported rows and are not known to be sealed."""
        return sorted(self.state.unsealed_of.get(worker_id, ()))

    def known_handles(self) -> set[int]:
        """By which queues may be announced to workers from now on."""
        return self.state.queues.keys() | self.popping.info_handles()

    def busy_workers(self) -> set[str]:
        """Workers that have chunks that they have not reported on, or had some and did not begin them, or are asked for keys:
        their loops should move."""
        found = {*self.state.busy, *self.state.held_up}
        if self._begun and isinstance(self.dispatching, Lanes):
            found.update(self.dispatching.asked())
        return found

    def unexpected_error(self) -> None:
        """Something of the edge failed that nobody expected to: it is counted."""
        self.state.counters.unexpected_errors += 1

    # --- which mechanism takes which event ----------------------------------------------------------------------

    def _of_boot(self) -> dict[type, Handler]:
        """Before `begin`: nothing is dispatched, so a worker that dies leaves nothing, and what is salvaged is of runs before
        this one (pool/hearing.py keeps it)."""
        state = self.state
        early: dict[type, Handler] = dict.fromkeys(
            (ev.Reported, ev.Returned, ev.Consumed, ev.Classified, ev.Sealed), self._nothing_dispatched
        )
        booting: dict[type, Handler] = {
            ev.WorkerReady: lambda e, now: state.worker_ready(e.worker_id, now),
            ev.RetireWorker: lambda e, now: state.retire(e.worker_id, now),
            ev.WorkerDied: lambda e, _: state.worker_died(e.worker_id, e.death),
            ev.Salvaged: lambda _event, _now: None,
            ev.SalvageComplete: lambda e, _: state.worker_gone(e.worker_id),
        }
        return early | self._of_lives() | booting

    def _of_lives(self) -> dict[type, Handler]:
        state = self.state
        return {
            ev.WorkerStarted: lambda e, _: state.worker_started(e.worker),
            ev.WorkerNotStarted: lambda e, _: state.worker_not_started(e.worker_id),
            ev.WorkerWindow: lambda e, _: state.worker_window(e.worker_id, e.chunks),
            ev.WorkerStops: lambda e, _: state.worker_stops(e.worker_id),
            ev.WorkerKilled: lambda e, _: state.worker_killed(e.worker_id),
        }

    def _nothing_dispatched(
        self, event: ev.Reported | ev.Returned | ev.Consumed | ev.Classified | ev.Sealed, now: float
    ) -> None:
        del now
        self.state.out.append(KillWorker(event.worker_id, f"{type(event).__name__} before anything was dispatched"))

    def _of_member(self) -> dict[type, Handler]:
        assigning, pulling = self.assigning, self.pulling
        return {
            ev.Start: lambda _, now: self._start(now),
            ev.Stop: lambda _, now: assigning.stop(now),
            ev.Pause: lambda e, _: pulling.pause(e.reason),
            ev.Resume: self._resume,
            ev.Rebalance: lambda _, now: self._rebalance(now),
            ev.Members: self._members,
            ev.Subscribe: lambda e, now: assigning.subscribe(e.topic, now),
            ev.Unsubscribe: lambda e, now: assigning.unsubscribe(e.topic, now),
            ev.Opened: self._opened,
            ev.BrokerLost: self._broker_lost,
            ev.Committed: self._committed,
            ev.Persist: lambda _, now: assigning.persist_all(now),
            ev.ResetOffsets: lambda e, now: assigning.reset(e.offsets, now),
        }

    def _of_queues(self) -> dict[type, Handler]:
        popping = self.popping
        return {
            ev.Pulled: self._pulled,
            ev.EndSeen: lambda e, now: self.pulling.end_seen(e.handle, e.end_offset, now),
            ev.PopAssigned: lambda e, now: popping.assigned(e.topic, e.mqs, now),
            ev.Popped: self._popped,
            ev.NoAnswer: self._no_answer,
            ev.Renewed: lambda e, now: popping.renewed(e.handle, e.offset, e.check, e.unanswered, now),
            ev.Acked: lambda e, now: popping.acked(e.handle, e.count, e.refused, e.unanswered, e.tries, now),
            ev.SentBack: self._sent_back,
        }

    def _of_workers(self) -> dict[type, Handler]:
        settling = self.settling
        found: dict[type, Handler] = {
            ev.WorkerReady: self._worker_ready,
            ev.RetireWorker: self._retire_worker,
            ev.WorkerDied: self._worker_died,
            ev.Salvaged: lambda e, now: settling.salvaged(e.worker_id, e.seq, e.records, now),
            ev.SalvageComplete: self._salvage_complete,
            ev.Reported: self._report,
            ev.Reclaimed: self._reclaimed,
            ev.CellRead: self._cell_read,
            ev.Sealed: lambda e, now: settling.sealed(e.worker_id, e.seq, now),
            ev.Loaded: lambda e, now: settling.loaded(e.worker_id, e.seq, now),
        }
        return self._of_lives() | found

    def _of_order(self) -> dict[type, Handler]:
        """Without an order nothing is locked, and a worker that says what only an ordered one says is killed."""
        returning, locking, lanes = self.returning, self.locking, self.dispatching
        found: dict[type, Handler] = dict.fromkeys((ev.Returned, ev.Consumed, ev.Classified), self._has_no_order)
        found[ev.Locked] = self._nobody_asked
        if returning is not None:
            found[ev.Returned] = self._returned
            found[ev.Consumed] = lambda e, now: returning.consumed(e.worker_id, e.chunk_id, now)
        if isinstance(lanes, Lanes):
            found[ev.Classified] = lambda e, _: lanes.classified(e.worker_id, e.handle, e.keys)
        if locking is not None:
            found[ev.Locked] = lambda e, now: locking.locked(e.asked, e.granted, e.asked_at, now)
        return found

    def _nobody_asked(self, _event: ev.Locked, now: float) -> None:
        del now
        self.state.counters.late_answers += 1

    def _has_no_order(self, event: ev.Returned | ev.Consumed | ev.Classified, now: float) -> None:
        del now
        self.state.out.append(
            KillWorker(event.worker_id, f"{type(event).__name__} from a worker that keeps no such order")
        )

    # --- events that concern several ----------------------------------------------------------------------------

    def _start(self, now: float) -> None:
        self._started = True
        self._rebalance_timer(now)
        self.state.at(now + self.state.config.persist_interval_ms / 1000, self._persist_timer)
        if self.locking is not None:
            self.locking.start(now)
        for window in Window:
            self._sample(window, now)

    def _sample(self, window: Window, now: float) -> None:
        self.state.at(now + window.interval_s, lambda at: self._sample(window, at))
        self.state.stats.keep(self.topics_held().union(self.state.topics), self.state.config.group)
        self.state.stats.sample(window, now)

    def topics_held(self) -> set[str]:
        """Those of queues and of popped messages that have not ended, subscribed or not: what is finished of them is to be
        committed or acknowledged yet."""
        popped = {queue.loop.mq.topic for queue in self.popping.queues.values()}
        return popped.union(self.state.by_topic, (mq.topic for mq in self.popping.loops))

    def queues_held(self) -> set[MessageQueue]:
        """Ours, as far as is known, also those that have ended and are to be opened here again."""
        return self.assigning.awaited.union(self.state.by_mq)

    def _rebalance(self, now: float) -> None:
        """A broker's notice can come before the answer to our first heartbeat: nothing is opened by a start that may yet
        fail, and the start itself rebalances. Each broker sends one for each member that joins: one look-up for all that come
        within a moment, and after the last of them, so that it finds what they tell of.

        Who has joined asks for the group's offsets within milliseconds, long before a queue of ours leaves: all that is
        finished and not committed by then runs twice, so it is committed now."""
        if self._started and not self._noticed:
            self._noticed = True
            self.assigning.persist_all(now)
            self.state.at(now + NOTICES_S, self._rebalance_noticed)

    def _rebalance_noticed(self, now: float) -> None:
        self._noticed = False
        self.assigning.rebalance(now)

    def _rebalance_timer(self, now: float) -> None:
        # First the next time: it comes also when this one fails.
        self.state.at(now + self.state.config.rebalance_interval_ms / 1000, self._rebalance_timer)
        self.assigning.rebalance(now)

    def _persist_timer(self, now: float) -> None:
        self.state.at(now + self.state.config.persist_interval_ms / 1000, self._persist_timer)
        self.assigning.persist_all(now)
        self.assigning.heal(now)

    def _members(self, event: ev.Members, now: float) -> None:
        self.assigning.members(event, now)
        self.doubts.looked_up(event, now)
        if event.asked_at is None or not self.assigning.is_late(event.topic, event.asked_at):
            self.unlisted.looked_up(event, now)
            self._shared_id.looked_up(event, now)

    def _opened(self, event: ev.Opened, now: float) -> None:
        if self.doubts.answered(event, now):
            return
        q = self.state.pulled.get(event.handle)
        if q is not None and event.offset is not None:
            q.opened_ms = event.wall_ms
            self._forget_passed(q.pq.mq, event.offset)
        self.assigning.opened(event.handle, event.offset, now)

    def _forget_passed(self, mq: MessageQueue, offset: int) -> None:
        """See `recover`. Once: of a reset in this run we hear."""
        sent = self._sent.pop(mq, None)
        if sent is not None and offset > sent and mq in self.state.recovered:
            floor, finished = self.state.recovered[mq]
            finished.discard_below(offset)
            self.state.recovered[mq] = floor, Intervals()
            if finished:
                self._passed_by.setdefault(mq.broker_name, []).append((mq, offset, sent, finished.total()))
                self.state.out.append(forgotten(mq))  # or the next start knows it again, and takes the offset for ours

    def _tell_passed(self) -> None:
        """One line for all queues of a broker whose offsets came at once."""
        for broker_name, told in self._passed_by.items():
            mq, offset, sent, _ = told[0]
            self.state.log(
                "info", "others_went_on", broker=broker_name, queues=len(told), first=f"{mq.topic}/{mq.queue_id}",
                offset=offset, sent=sent, forgotten=sum(finished for *_, finished in told),
                reason="the group is beyond all that our journal has as sent: others, or what a loss of power or a full disk"
                " took from it",
            )  # fmt: skip
        self._passed_by.clear()

    def _committed(self, event: ev.Committed, now: float) -> None:
        ok = event.ok and self.doubts.is_done(event)
        self.doubts.committed(event, now)
        self.assigning.committed(event.handle, event.offset, ok, event.left_at, event.final, now)

    def _broker_lost(self, event: ev.BrokerLost, now: float) -> None:
        if self.locking is not None:
            self.locking.doubt(event.broker_name, now)
        self.doubts.broker_lost(event.broker_name, now)

    def _resume(self, event: ev.Resume, now: float) -> None:
        self.pulling.resume(event.reason, now)
        self.popping.resume(now)
        self.dispatching.run()

    def _pulled(self, event: ev.Pulled, now: float) -> None:
        self.pulling.pulled(event.handle, event.result, now)
        self.dispatching.run()

    def _popped(self, event: ev.Popped, now: float) -> None:
        self.popping.popped(event.handle, event.result, now)
        self.dispatching.run()
        self._feed(now)

    def _no_answer(self, event: ev.NoAnswer, now: float) -> None:
        if event.slot is not None:
            self.state.release(event.slot)
        if event.handle in self.popping.handles:
            self.popping.failed(event.handle, now)
            self._feed(now)
        else:
            self.pulling.failed(event.handle, self.state.config.pull_delay_on_error_ms, now)

    def _sent_back(self, event: ev.SentBack, now: float) -> None:
        self.settling.retries.sent_back(event.handle, event.chunk_id, event.index, event.accepted, now)
        self.dispatching.run()
        self._feed(now)

    def _retire_worker(self, event: ev.RetireWorker, now: float) -> None:
        self.state.retire(event.worker_id, now)
        self.dispatching.run()

    def _worker_ready(self, event: ev.WorkerReady, now: float) -> None:
        self.state.worker_ready(event.worker_id, now)
        self.dispatching.run()

    def _worker_died(self, event: ev.WorkerDied, now: float) -> None:
        del now
        if isinstance(self.dispatching, Lanes):
            self.dispatching.worker_died(event.worker_id, event.death)
        self.settling.worker_died(event.worker_id, event.death)

    def _salvage_complete(self, event: ev.SalvageComplete, now: float) -> None:
        self.settling.salvage_complete(event.worker_id, now, event.wall_ms)
        self._feed(now)

    def _report(self, event: ev.Reported, now: float) -> None:
        self.settling.report(event, now)
        if self.state.starved:
            self.pulling.feed_starved(now)

    def _reclaimed(self, event: ev.Reclaimed, now: float) -> None:
        self.reclaiming.reclaimed(event.worker_id, event.chunk_ids, event.unbegun, event.claimed, now)
        self._feed(now)

    def _cell_read(self, event: ev.CellRead, now: float) -> None:
        self.reclaiming.found()
        self.settling.cell_read(
            event.worker_id, event.chunk_id, event.offset, event.held, now, event.wall_ms
        )  # fmt: skip
        self._feed(now)

    def _returned(self, event: ev.Returned, now: float) -> None:
        assert self.returning is not None, "only the ordered modes take it"
        self.returning.returned(
            event.worker_id, event.chunk_id, event.start, event.failed, event.failure, event.suspend_ms, now,
        )  # fmt: skip
        self._feed(now)

    # --- between mechanisms -------------------------------------------------------------------------------------

    def _left(self, shadow: Chunk) -> None:
        self.settling.retries.left(shadow)

    def _dead_letter(self, pq: ProcessQueue, chunk: Chunk, charge: Charge) -> None:
        self.settling.retries.dead_letter(pq, chunk, charge)

    def _send_back(self, pq: ProcessQueue, chunk: Chunk, index: int) -> None:
        self.settling.retries.send_back(pq, chunk, index)

    def _reported(self, chunk: Chunk, pq: ProcessQueue) -> None:
        self.settling.reported(chunk, pq)

    def _moved(self, q: PulledQueue, move: Move, now: float) -> None:
        self.assigning.moved(q, move, now)

    def _restart(self, pq: ProcessQueue, now: float) -> None:
        self.assigning.restart(pq, now)

    def _went_on(self, pq: ProcessQueue, now: float) -> None:
        """Another member has gone on with the queue, or may have: it is read again, or what has not begun is left to that."""
        if pq.state is QueueState.DRAINING:
            self.assigning.cut_short(pq, now)
        else:
            self.assigning.restart(pq, now)

    def _queue_ended(self) -> None:
        self.assigning.leaving.check_finished()

    def _is_sure(self, pq: ProcessQueue) -> bool:
        return self.doubts.locked(pq)

    def _locked_again(self, pq: ProcessQueue, now: float) -> None:
        if self.ordered is not None:
            self.ordered.resume(pq)
        self.pulling.consider(self.state.pulled[pq.handle], now)

    def _settled_down(self, mq: MessageQueue) -> None:
        """The last message of an ended queue has left its worker: unlock it, or open it again."""
        if self.locking is not None:
            self.locking.settled_down(mq)
        self.state.at(0.0, lambda at: self.assigning.look_up(mq.topic, at))

    def _feed(self, now: float) -> None:
        """Bytes may have been given back, also by chunks of a queue that has ended: serve those that wait for them."""
        if self.state.starved:
            self.pulling.feed_starved(now)
