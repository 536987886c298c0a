"""BrokerCore: one broker as a function of what arrives and what time it is.

    effects = core.handle(now_ms, channel, address, command)    a frame arrived
    effects = core.tick(now_ms)                                  time passed; at least once a second, better when
                                                                 `next_deadline_ms` says so
    effects = core.channel_closed(now_ms, channel)               a connection is gone

No socket, clock, thread or global random inside. `now_ms` is the wall clock (ms since 1970), as it gets into stored
messages; it must not go back while the core lives. Effects are in the order in which they must be written: notices to members
first, then the answer, then the answers of held pulls that it woke.

    core.begin_turn()                                            a turn of the loop begins; at least when `turn_is_spent`

Requests that waited are answered at most WOKEN_MAX at a time. What arrives, and parked pulls whose peers read, share one such
number for all requests of a turn of the loop; a `tick` begins a turn too, and has as many for each other reason. What
arrivals leave is due at once, by `next_deadline_ms`.

    core.begin_flush()                                           when `wants_flush`, after a turn of the loop
    effects = core.flushed(now_ms)                               the storage says that a flush may be done

An answer to a send is decided after the record was appended to the storage; an edge that writes effects only after
`handle` returned therefore never acknowledges what a kill could lose. With `flush = sync` the answer to whatever was written
waits for the disk besides: it comes from `flushed`. At most one flush is under way. All that was written meanwhile is the
next one's, so under load one flush answers many senders, and a single sender waits for nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from random import Random

from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import Command
from ..remoting.errors import ProtocolError, UsageError
from .acl import Acl
from .config import BrokerConfig
from .effects import SILENCE, Effect, Intercept, Later, Reply, intercepted
from .held_pops import News
from .message_store import QueueRebuilding
from .name_server import NameServerCore
from .queue_check import INTERVAL_MS as CHECK_INTERVAL_MS
from .refusal import Refused
from .requests import end_transaction, forward, pop, pull, send
from .requests.table import HANDLERS, Handler
from .state import DELAYS_TABLE, BrokerState, Call
from .storage import DiskFailed, Storage, StorageError

DELAYS_MAX = 1_000  # states of the delay levels that wait for a flush; of more, the oldest are not saved
NEWS_MAX, WOKEN_MAX = 1_000, 100  # messages that are looked at, and requests that waited and are answered, in one turn
BODY_MAX_BYTES = 1 << 20  # of JSON that members and administrators send; reading it must not hold others up


@dataclass(slots=True)
class _Turn:
    """What one turn of the loop has left for others than those whose requests came in it."""

    arrivals: int = NEWS_MAX
    answers: int = WOKEN_MAX

    @property
    def is_spent(self) -> bool:
        return self.arrivals == 0 or self.answers == 0

    def answered(self, count: int) -> None:
        """One more than are left may be given: a notification and a pop of one group are woken together."""
        self.answers = max(self.answers - count, 0)


class BrokerCore:
    """Pure core of a broker. Everything it owns is in `state`, which tests may look at."""

    def __init__(
        self,
        config: BrokerConfig,
        storage: Storage,
        random: Random | None = None,
        name_server: NameServerCore | None = None,
        now_ms: int = 0,
    ) -> None:
        """Recovers from `storage` and registers with `name_server`, if one lives in the same process.

        `random` chooses queues and makes ids; give a seeded one for a repeatable run (default: seed 0). Raises UsageError
        when the storage holds something that is no broker's data.
        """
        self.state = BrokerState(config, storage, random or Random(0), name_server)
        self.intercepts: list[Intercept] = []
        self.acl: Acl | None = None
        """Who may do what; None lets everybody."""
        self.trouble: str | None = None
        """What the disk refused last, for the log; it is tried again with each request, and with what is saved by time."""
        self.failed: str | None = None  # why this process has to stop: nobody knows what the disk kept
        self.recovered_records = self.state.recover(now_ms)
        self._flush: tuple[int, int, int] | None = None  # under way: ticket, the log's end, all that was written
        self._flushed = self.state.written  # what the disk has of it
        self._unanswered: deque[tuple[int, Reply]] = deque()  # what has to be flushed for them; ascending
        self._delays_to_save: deque[tuple[int, bytes]] = deque(maxlen=DELAYS_MAX)  # likewise
        self._turn = _Turn()
        self._later: list[tuple[int, Call]] = []  # requests that a test holds up: until when
        self._next_flush_ms = now_ms + config.flush_interval_ms
        self._next_checkpoint_ms = now_ms + config.checkpoint_interval_ms
        self._topics_due = self._checkpoint_due = False
        self._next_offsets_ms = now_ms + config.offset_flush_interval_ms
        self._next_check_ms = now_ms + CHECK_INTERVAL_MS
        self._next_sweep_ms = now_ms + config.hold_sweep_interval_ms
        self._next_expiry_ms = now_ms + config.expiry_scan_interval_ms
        self._next_registration_ms = now_ms + config.registration_interval_ms

    @property
    def config(self) -> BrokerConfig:
        """As an administrator changed it, perhaps."""
        return self.state.config

    # A turn of the loop

    def begin_turn(self) -> None:
        """What waited may be answered again."""
        self._turn = _Turn()

    @property
    def turn_is_spent(self) -> bool:
        """No more of what waited is answered in this turn."""
        return self._turn.is_spent

    # A frame arrived

    def handle(self, now_ms: int, channel: int, address: str, command: Command) -> list[Effect]:
        """Serve one frame from `channel`; `address` is the peer's, as "ip:port"."""
        state = self.state
        if self.failed is not None:
            return []  # nothing more is promised
        if command.is_response:
            return [*forward.answered(state, channel, command)]
        state.now_ms = now_ms
        response = intercepted(self.intercepts, command) if self.intercepts else None
        if isinstance(response, Later):
            kept = replace(command, body=bytes(command.body))  # what it was read into is used again
            self._later.append((now_ms + response.delay_ms, Call(now_ms, channel, address, kept)))
            return []
        return self._handle(Call(now_ms, channel, address, command), response)

    def _handle(self, call: Call, response: Command | None) -> list[Effect]:
        """Serve a request, unless a test has a `response` of its own."""
        state, channel, command = self.state, call.channel, call.command
        before = state.written
        if response is None:
            response = self._serve(call)
        effects = self._take_notices(call.now_ms) if state.notices else []
        if response is not None and response is not SILENCE and not command.is_oneway:
            effects += self._replies(Reply(channel, response), before)
        if response is None and (state.held.may_be_ready(call.now_ms) or state.pops.held.may_be_due(call.now_ms)):
            effects += self._answer_ready(call.now_ms, 1)
        if state.arrivals:
            effects += self._wake_arrived()
        return effects

    def _answer_ready(self, now_ms: int, count_max: int) -> list[Effect]:
        """Answer so many of those that waited and need not any longer.

        Time brings the turn of WOKEN_MAX at once, and each request that is held that of one more. So they leave faster than
        they come, however soon each is due, and take no more of the loop's time than those that came.
        """
        state = self.state
        replies = pull.wake_ready(state, now_ms, count_max)
        return [*replies, *pop.time_out(state.pops.held.due(now_ms, count_max), now_ms)]

    def _replies(self, reply: Reply, written_before: int) -> list[Effect]:
        """The answer, unless it has to wait for what was written for it since."""
        if self.state.waits_for_disk and (written := self.state.written) > written_before:
            self._unanswered.append((written, reply))
            return []
        return [reply]

    def _serve(self, call: Call) -> Command | None:
        command = call.command
        handler = HANDLERS.get(command.code)
        if handler is None:
            remark = f" request type {command.code} not supported"
            return command.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        if len(command.body) > BODY_MAX_BYTES and command.code not in send.CODES:
            remark = (
                f"a body of {len(command.body)} bytes; requests that store no message have at most {BODY_MAX_BYTES}"
            )
            return command.response(ResponseCode.SYSTEM_ERROR, remark=remark)
        return self._answer(command, lambda: self._handled(call, handler))

    def _handled(self, call: Call, handler: Handler) -> Command | None:
        if self.acl is not None:
            account = self.acl.check_broker(call.command, self.state.store.message_at)
            if call.command.code == RequestCode.HEART_BEAT:
                self.state.accounts[call.channel] = account
            call = call._replace(account=account)
        return handler(self.state, call)

    def _answer(self, command: Command, make: Callable[[], Command | None]) -> Command | None:
        """What `make` makes, or the answer that its error means."""
        try:
            return make()
        except Refused as refused:
            return command.response(refused.code, refused.fields, remark=refused.remark)
        except (ProtocolError, UsageError) as error:
            return command.response(ResponseCode.SYSTEM_ERROR, remark=str(error))
        except QueueRebuilding as error:
            return command.response(ResponseCode.SYSTEM_BUSY, remark=str(error))
        except StorageError as error:
            self._note(error)
            return command.response(ResponseCode.SERVICE_NOT_AVAILABLE, remark=f"service not available now: {error}")

    def _wake_arrived(self) -> list[Effect]:
        """Answer who waits for what can be read since the last call, as far as this turn goes."""
        state, turn = self.state, self._turn
        effects: list[Effect] = []
        news = News(islice(state.arrivals, turn.arrivals) if len(state.pops.held) else ())
        while state.arrivals and not turn.is_spent:
            arrival = state.arrivals[0]
            state.held.arrived(*arrival)
            if state.held.has_more:
                pulls = state.held.take(turn.answers)
                turn.answered(len(pulls))
                effects += pull.repeat(state, pulls)
            pops = state.pops.held.arrived(arrival, news, turn.answers, state.full)
            turn.answered(len(pops))
            if not state.pops.held.asks_on:
                state.arrivals.popleft()
                turn.arrivals -= 1
            if pops:
                effects += pop.repeat(state, pops, state.now_ms, news)
        return effects

    # Waiting for the disk

    def begin_flush(self) -> None:
        """Start to bring what was written to the disk, unless that is under way or nobody waits for it."""
        if self.state.waits_for_disk:
            self._begin_flush()

    @property
    def wants_flush(self) -> bool:
        """Whether somebody waits for what was written, and a flush can begin."""
        return self.state.waits_for_disk and self._has_to_flush

    @property
    def _has_to_flush(self) -> bool:
        return self._flush is None and self.state.written > self._flushed and self.failed is None

    def _begin_flush(self) -> None:
        state = self.state
        if self._has_to_flush:
            self._flush = state.begin_flush(), state.store.log_end, state.written

    def flushed(self, now_ms: int) -> list[Effect]:
        """Show and answer what the disk has now; the next flush is the caller's to begin."""
        effects = self._end_flush(now_ms)
        if self.state.arrivals and self.failed is None:
            effects += self._wake_arrived()
        return effects

    def _end_flush(self, now_ms: int) -> list[Effect]:
        """The answers that waited for a flush, if it has ended."""
        state = self.state
        if self._flush is None or self.failed is not None:
            return []
        ticket, log_end, written = self._flush
        try:
            if not state.storage.is_synced(ticket):
                return []
        except StorageError as error:
            self._note(error)
            return []
        state.now_ms = now_ms
        self._flush, self._flushed = None, written
        state.end_flush()
        if state.waits_for_disk:  # else it is shown already, and more
            state.store.flushed_to(log_end)
        self._save_delays()
        effects: list[Effect] = []
        while self._unanswered and self._unanswered[0][0] <= written:
            effects.append(self._unanswered.popleft()[1])
        return effects

    # Time passed

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due: deliver delayed messages, answer held pulls, save, expire."""
        return list(self.due(now_ms))

    def due(self, now_ms: int) -> Iterator[Effect]:
        """As `tick`, effect by effect. A duty that fails by a bug takes nothing from the others; its error comes last."""
        state = self.state
        if state.name_server is not None and state.name_server.failed is not None:
            self.failed = state.name_server.failed
        if self.failed is not None:
            return
        state.now_ms = now_ms
        self.begin_turn()
        duties: tuple[Callable[[int], Iterable[Effect] | None], ...] = (
            self._end_flush,
            self._deliver_delayed,
            self._deliver_timers,
            self._show_popped_again,
            self._wake,
            self._serve_later,
            self._answer_on,
            self._ask_after_transactions,
            self._answer_due,
            self._expire,
            self._register,
            self._keep,
            self._wake_rebuilt,
            self._take_notices,
        )
        failure: Exception | None = None
        for duty in duties:
            try:
                yield from duty(now_ms) or ()
            except Exception as error:  # noqa: BLE001  raised below
                failure = failure or error
        if failure is not None:
            raise failure

    def _wake(self, now_ms: int) -> Iterator[Effect]:
        state = self.state
        yield from self._wake_arrived()
        yield from pop.repeat(state, state.pops.held.woken(WOKEN_MAX, state.full), now_ms)

    def _answer_due(self, now_ms: int) -> Iterator[Effect]:
        state = self.state
        if now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = now_ms + self.config.hold_sweep_interval_ms
            state.held.begin_sweep()
        yield from self._answer_ready(now_ms, WOKEN_MAX)
        yield from forward.timed_out(state, now_ms)

    def _wake_rebuilt(self, _now_ms: int) -> None:
        pop.wake_rebuilt(self.state)

    def _register(self, now_ms: int) -> None:
        if now_ms >= self._next_registration_ms:
            self._next_registration_ms = now_ms + self.config.registration_interval_ms
            self.state.register(now_ms)

    def _take_notices(self, _now_ms: int) -> list[Effect]:
        notices = list(self.state.notices)
        self.state.notices.clear()
        return notices

    def _serve_later(self, now_ms: int) -> list[Effect]:
        if not self._later:
            return []
        due = [call for due_ms, call in self._later if due_ms <= now_ms]
        self._later = [(due_ms, call) for due_ms, call in self._later if due_ms > now_ms]
        return [effect for call in due for effect in self._handle(call._replace(now_ms=now_ms), None)]

    def _answer_on(self, _now_ms: int) -> list[Effect]:
        """One more round of the answer whose turn it is."""
        waiting = self.state.long_answers.waiting
        if not waiting:
            return []
        each, before = waiting.popleft(), self.state.written
        answer = self._answer(each.command, each.round)
        if answer is None:
            waiting.append(each)
            return []
        return self._replies(Reply(each.channel, answer), before)

    def _deliver_delayed(self, now_ms: int) -> None:
        state = self.state
        if state.delays.next_due_ms() is None:
            return
        try:
            again = partial(state.store_again, now_ms)
            if not state.delays.deliver(now_ms, state.store, again, self.config.deliver_batch_max):
                return
        except StorageError as error:
            self._note(error)
        text = state.delays.dump_if_changed()
        if text is not None:
            self._delays_to_save.append((state.written, text))
        self._save_delays()

    def _deliver_timers(self, now_ms: int) -> None:
        state = self.state
        due_ms = state.timers.next_due_ms(state.clock_ahead_ms)
        if due_ms is None or due_ms > now_ms:
            return
        try:
            again, most = partial(state.store_again, now_ms), self.config.deliver_batch_max
            state.timers.deliver(now_ms, state.store, again, most, state.clock_ahead_ms)
        except QueueRebuilding:
            pass  # in a while
        except StorageError as error:
            self._note(error)

    def _show_popped_again(self, now_ms: int) -> None:
        state = self.state
        due_ms = state.pops.table.next_due_ms()
        if due_ms is None or due_ms > now_ms:
            return
        again = partial(state.show_again, now_ms)
        try:
            state.pops.revive_due(now_ms, state.store, again, lambda: state.written, self.config.deliver_batch_max)
            state.pops.end_revivals(self._flushed)
        except StorageError as error:
            self._note(error)

    def _ask_after_transactions(self, now_ms: int) -> None:
        try:
            end_transaction.ask_due(self.state, now_ms)
        except QueueRebuilding:
            pass  # in a while
        except StorageError as error:
            self._note(error)

    def _note(self, error: StorageError) -> None:
        self.trouble = str(error)
        if isinstance(error, DiskFailed):
            self.failed = str(error)

    def _save_delays(self) -> None:
        """Save how far delivery has come, once the disk has what was delivered: else a crash could lose it for good."""
        try:
            waiting, text = self._delays_to_save, None
            while waiting and (not self.state.storage.has_disk or waiting[0][0] <= self._flushed):
                text = waiting.popleft()[1]
            if text is not None:
                self.state.storage.replace(DELAYS_TABLE, text)
            self.state.saved_timers.save(self._flushed)
            self.state.pops.end_revivals(self._flushed)
        except StorageError as error:
            self._note(error)

    def _keep(self, now_ms: int) -> None:
        """Save and sync what is due; a disk that refuses becomes `trouble`, and is tried again at the next interval."""
        state, config = self.state, self.config
        try:
            if now_ms >= self._next_offsets_ms:
                self._next_offsets_ms = now_ms + config.offset_flush_interval_ms
                self._topics_due = True
                state.save_tables(self._flushed)
                state.saved_timers.note(state.written)
                self._save_delays()
            if self._topics_due and state.store.removed.are_kept:
                self._topics_due = False
                state.save_topics()  # also for a genuine broker that opens the store after a kill: it knows no journal
            if now_ms >= self._next_checkpoint_ms:
                self._next_checkpoint_ms = now_ms + config.checkpoint_interval_ms
                self._checkpoint_due = True
                try:
                    state.expire_by_age(now_ms)
                finally:  # a full disk takes no table
                    state.store.drop_beyond(config.disk_max_used_space_ratio / 100)
                self.trouble = None
            if now_ms >= self._next_flush_ms:
                self._next_flush_ms = now_ms + config.flush_interval_ms
                self._begin_flush()
            if self._checkpoint_due and state.topics_are_kept:
                self._checkpoint_due = False
                state.store.begin_checkpoint()
            state.end_journal()
            state.saved_timers.journal.end()
            state.pops.journal.end()
            state.store.removed.journal.end()
            state.store.end_checkpoint()
            state.store.rebuild_some()
            if now_ms >= self._next_check_ms:
                self._next_check_ms = now_ms + CHECK_INTERVAL_MS
                state.store.check_some()
        except StorageError as error:
            self._note(error)

    def _expire(self, now_ms: int) -> None:
        if now_ms < self._next_expiry_ms:
            return
        self._next_expiry_ms = now_ms + self.config.expiry_scan_interval_ms
        state = self.state
        state.locks.expire(now_ms)
        for channel in state.clients.expire(now_ms):
            state.close(channel)

    @property
    def _has_more_to_do(self) -> bool:
        state = self.state
        return bool(
            state.store.is_rebuilding
            or state.held.has_more
            or state.pops.held.to_wake
            or state.arrivals
            or state.long_answers.waiting
        )

    def next_deadline_ms(self) -> int:
        """When `tick` has something to do at the latest; calling it earlier does no harm."""
        deadlines = [
            self._next_flush_ms,
            self._next_offsets_ms,
            self._next_sweep_ms,
            self._next_checkpoint_ms,
        ]
        if self._has_more_to_do:
            return 0  # at once
        deadlines += [due_ms for due_ms, _ in self._later]
        state = self.state
        waiting = (
            state.held.next_deadline_ms(),
            state.delays.next_due_ms(),
            state.timers.next_due_ms(state.clock_ahead_ms),
            state.pops.table.next_due_ms(),
            state.pops.held.next_deadline_ms(),
            state.transactions.next_due_ms(),
        )
        return min(*deadlines, *(due_ms for due_ms in waiting if due_ms is not None))

    # A connection is gone

    def channel_full(self, channel: int, *, is_full: bool) -> list[Effect]:
        """The peer reads too slowly, or does again; then it gets what waited for that."""
        if is_full:
            self.state.full.add(channel)
            return []
        self.state.full.discard(channel)
        self.state.pops.held.wake_channel(channel)
        return self.channel_room(channel)

    def channel_room(self, channel: int) -> list[Effect]:
        """Answer held pulls of a channel that were parked, as far as this turn goes; none if its peer still does not read."""
        if channel in self.state.full or channel not in self.state.held.parked or self.turn_is_spent:
            return []
        replies = pull.wake_parked(self.state, channel, self._turn.answers)
        self._turn.answered(len(replies))
        return [*replies]

    def channel_closed(self, now_ms: int, channel: int) -> list[Effect]:
        """Drop the channel's held pulls and memberships; tell the groups that lost a member."""
        state = self.state
        state.held.drop_channel(channel)
        state.pops.held.drop_channel(channel)
        state.long_answers.drop_channel(channel)
        state.full.discard(channel)
        state.accounts.pop(channel, None)
        self._later = [(due_ms, call) for due_ms, call in self._later if call.channel != channel]
        for opaque in [opaque for opaque, waiting in state.forwarded.items() if waiting.channel == channel]:
            del state.forwarded[opaque]
        for name in state.clients.close_channel(channel):
            state.notify_group(name)
        return self._take_notices(now_ms)

    def stop(self) -> None:
        """Save everything; the storage is the caller's to close. Raises StorageError.

        After a failed sync nothing is written: a checkpoint would say that the disk has what it may not have.
        """
        state = self.state
        if self.failed is not None:
            return
        state.storage.sync_now()  # the tables must not be ahead of the log
        state.store.flushed_to(state.store.log_end)
        self._flushed = state.written
        state.store.removed.fold()
        state.save_topics(sync=True)
        state.end_journal()
        state.save_tables(self._flushed)
        for _ in range(2):  # what waited, then the newest
            state.saved_timers.note(state.written)
            self._save_delays()
        state.store.checkpoint_now()
