"""What a member says to the broker, as supervisor/member/group_member.py does it. Answers come back as events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rocketcrew.remoting.bodies import ResetOffsetBody, SubscriptionData
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.headers import (
    Unregister,
)
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import record_info
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.allocation import allocate, strategy_named
from rocketcrew.supervisor.core.assigning import LOOK_UP_MAX_S
from rocketcrew.supervisor.core.slab import Slot
from rocketcrew.supervisor.core.states import QueueState
from rocketcrew.testing.inner_broker import WITH_OFFSETS, Requests
from rocketcrew.workers.failures import Mode

from .broker_host import SentAsNew
from .network import Answer, Link, Sink
from .pushed_resets import PushedResets
from .script import ASKED_LEVELS, BROKER, GROUP, MAX_RECONSUME_TIMES, RETRY_TOPIC, TOPIC, number_of
from .truth import Asker
from .world import Violation

if TYPE_CHECKING:
    from .member import SimMember

REQUEST_TIMEOUT_MS = 1_500
PULL_TIMEOUT_MS = 4_000
SUSPEND_MS = 1_000
HEARTBEAT_MS = 5_000
RECONNECT_MS = 60
ROUTE_MS = 3_000
_WITH_OFFSETS = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class Edge:
    """The member's connection, and one method for each of the core's requests."""

    def __init__(self, member: SimMember) -> None:
        self._member = member
        self._world = member.world
        self._core = member.core
        self._link: Link | None = None
        self.cut_off_until_ms = 0.0
        """No connection can be made before."""
        self._routes: dict[str, tuple[float, list[MessageQueue]]] = {}
        self._revoked: set[int] = set()
        self._wanted_before: list[act.Action] = []
        """Send-backs that the core had asked for when it heard that the queue is another's: in one read both were heard."""
        self._answered: dict[str, float] = {}
        """When the newest look-up was asked for that was answered, by topic."""
        self._looking: dict[str, float] = {}
        """Topics that a look-up is under way for, and since when."""
        self.pushed = PushedResets(member)
        self._signed_off = False
        self._alone = member.script.broadcasting
        self._requests = Requests(GROUP, member.client_id, MAX_RECONSUME_TIMES)
        self._subscriptions = [SubscriptionData.of(TOPIC, member.script.subscription, 1)]
        if not self._alone:
            self._subscriptions.append(SubscriptionData.of(RETRY_TOPIC, "*", 1))
        self.performs: dict[type, Callable[[Any], None]] = {
            act.FetchAssignment: self._fetch_assignment,
            act.FetchOffset: self._fetch_offset,
            act.Pull: self._pull,
            act.Commit: self._commit_when_sealed,
            act.SendBack: self._send_back,
            act.Heartbeat: lambda _: self._heartbeat(),
            act.LockQueues: self._lock,
            act.UnlockQueues: self._unlock,
        }

    # --- the connection -----------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect and send a heartbeat; tried again until the broker is there."""
        if self._world.now_ms >= self.cut_off_until_ms:
            self._link = self._member.broker.connect(self._member)
        if self._link is None:
            self._world.after(RECONNECT_MS, self._member.event, self.connect)
            return
        self._heartbeat()
        self._world.after(HEARTBEAT_MS, self._member.event, self._heartbeat_timer, self._link)

    def _heartbeat_timer(self, link: Link) -> None:
        if link is self._link:
            self._heartbeat()
            self._world.after(HEARTBEAT_MS, self._member.event, self._heartbeat_timer, link)

    def disconnected(self, link: Link) -> None:
        """The connection was lost."""
        if link is self._link:
            self._link = None
            self._core.handle(ev.BrokerLost(BROKER), self._world.now)
            self._world.after(RECONNECT_MS, self._member.event, self.connect)

    def cut_off(self, ms: float) -> None:
        """The connection is lost, and no other can be made for so long, while the broker is there for the others."""
        self.cut_off_until_ms = self._world.now_ms + ms
        if self._link is not None:
            self._link.cut(delivers=True)

    @property
    def link(self) -> Link | None:
        return self._link

    def lose(self) -> None:
        """The process is dead."""
        if self._link is not None:
            self._link.abandon()

    def sign_off(self) -> None:
        """A member that stops in order has no queue any more."""
        self._signed_off = True
        if self._link is not None:
            header = Unregister(client_id=self._member.client_id, consumer_group=GROUP)
            self._ask(Command(RequestCode.UNREGISTER_CLIENT, header.to_fields()), lambda _c, _s: None)

    def close(self) -> None:
        """Its workers have ended, too."""
        if self._link is not None:
            self._link.cut(delivers=True)

    def read_again(self) -> None:
        if self._link is not None and self._link.unread:
            self._link.read_again()

    def _ask(
        self, command: Command, answer: Answer, timeout_ms: float = REQUEST_TIMEOUT_MS, sink: Sink | None = None,
        asker: object = None,
    ) -> None:  # fmt: skip
        """Send a request; its answer is an event of this process (None = none came)."""

        def answered(command: Command | None, slot: Slot | None) -> None:
            self._member.heard(answer, command, slot)

        if self._link is None or not self._link.alive:
            self._world.after(0.1, answered, None, None)
        else:
            self._link.request(command, answered, timeout_ms, sink, asker)

    def notified(self, command: Command) -> None:
        """A request of the broker's own."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and self._member.running:
            self._world.note("the broker told of a change of members")
            self._core.handle(ev.Rebalance(), self._world.now)
        if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET and self._member.running:
            offsets = ResetOffsetBody.decode(command.body).offset_table
            self.pushed.heard(offsets)
            self._core.handle(ev.ResetOffsets(offsets), self._world.now)

    # --- the core's requests ------------------------------------------------------------------------------------

    def _heartbeat(self) -> None:
        if self._signed_off:
            return
        model = "BROADCASTING" if self._alone else "CLUSTERING"
        self._ask(self._requests.heartbeat(self._subscriptions, model), lambda _c, _s: None)

    def _looked_up(
        self, asked: act.FetchAssignment, queues: list[MessageQueue] | None, members: list[str] | None
    ) -> None:
        if self._looking.get(asked.topic) == asked.asked_at:
            del self._looking[asked.topic]
        if queues and members:
            self._answered[asked.topic] = max(asked.asked_at, self._answered.get(asked.topic, asked.asked_at))
        self._core.handle(ev.Members(asked.topic, queues, members, asked_at=asked.asked_at), self._world.now)

    def _fetch_assignment(self, action: act.FetchAssignment) -> None:
        topic = action.topic
        if action.asked_at - self._looking.get(topic, float("-inf")) < LOOK_UP_MAX_S:
            raise Violation(f"{topic} is looked up beside another look-up: the older answer may come later")
        self._looking[topic] = action.asked_at
        known = self._routes.get(topic)
        if known is not None and self._world.now_ms - known[0] < ROUTE_MS:
            self._fetch_members(action, known[1])
            return

        def routed(response: Command | None, _slot: Slot | None) -> None:
            queues = self._requests.queues(topic, response)
            if queues is None:
                self._looked_up(action, None, None)
                return
            self._routes[topic] = (self._world.now_ms, queues)
            self._fetch_members(action, queues)

        self._ask(self._requests.route(topic), routed)

    def _fetch_members(self, asked: act.FetchAssignment, queues: list[MessageQueue]) -> None:
        if self._alone:
            self._looked_up(asked, queues, [self._member.client_id])
            return

        def listed(response: Command | None, _slot: Slot | None) -> None:
            members = self._requests.members(response)
            if members is not None:
                self._note_revoked(asked, queues, members)
            self._looked_up(asked, queues, members)

        self._ask(self._requests.member_list(), listed)

    def _note_revoked(self, asked: act.FetchAssignment, queues: list[MessageQueue], members: list[str]) -> None:
        """Whose queues are another's from now on, by our own reckoning."""
        topic = asked.topic
        late = asked.asked_at < self._answered.get(topic, asked.asked_at)
        if queues and members and not self._member.stopping and not late:
            strategy = strategy_named(self._member.script.strategy)
            wanted = set(allocate(strategy, self._member.client_id, queues, members) or ())
            self.pushed.looked_up(queues, wanted)
            self._wanted_before = [action for action in self._core.state.out if isinstance(action, act.SendBack)]
            for pq in self._core.state.queues.values():
                if pq.mq.topic == topic and pq.state is QueueState.ASSIGNED and pq.mq not in wanted:
                    self._revoked.add(pq.handle)

    def _fetch_offset(self, action: act.FetchOffset) -> None:
        if not action.in_doubt:  # which is no new assignment
            self._member.askers[action.mq] = Asker(self._world.now_ms)
        if self._alone:
            offset = self._member.folder.offsets.get(action.mq, 0)
            self._world.after(
                0.1, self._member.event, self._core.handle, ev.Opened(action.handle, offset, self._world.wall_ms),
                self._world.now,
            )  # fmt: skip
            return

        def found(response: Command | None, _slot: Slot | None) -> None:
            offset: int | None = None
            if response is not None and response.code == ResponseCode.SUCCESS:
                offset = int(response.fields["offset"])
            elif response is not None and response.code == ResponseCode.QUERY_NOT_FOUND:
                offset = -1 if action.in_doubt else 0
            else:
                self._world.note("a first offset was not found out")
            self._core.handle(ev.Opened(action.handle, offset, self._world.wall_ms), self._world.now)

        self._ask(self._requests.query_offset(action.mq), found)

    def _pull(self, action: act.Pull) -> None:
        self.pushed.pulls(action)

        def sink(length_bytes: int) -> Slot | None:
            slot = self._core.room_for(action.handle, length_bytes)
            if slot is None:
                self._world.note("a body found no room")
            return slot

        def pulled(response: Command | None, slot: Slot | None) -> None:
            if response is None:
                self._core.handle(ev.NoAnswer(action.handle, slot), self._world.now)
                return
            result = self._requests.pulled(action, response, slot)
            script = self._member.script
            result.takes_all = script.claims_all or script.subscription == "*" or action.mq.topic != TOPIC
            if response.code == ResponseCode.PULL_OFFSET_MOVED:
                result.min_offset = int(response.fields["minOffset"])
            if response.code not in WITH_OFFSETS:
                self._world.note(f"a pull was refused with {response.code}")
            self._core.handle(ev.Pulled(action.handle, result), self._world.now)

        command = self._requests.pull(
            action, 1, batch_max=self._member.script.pull_batch, hold_ms=SUSPEND_MS,
            commits=not self._alone and self._member.sealing.all_sealed(),
        )  # fmt: skip
        self._ask(command, pulled, PULL_TIMEOUT_MS, sink, self._member.askers[action.mq])

    def _commit_when_sealed(self, action: act.Commit) -> None:
        def send(sealed: bool) -> None:
            if not sealed:
                self._core.handle(ev.Committed(action.handle, action.offset, False), self._world.now)
            elif self._alone:
                self._commit_to_file(action)
            else:
                self._commit(replace(action, guarded=action.guarded or self._core.doubts.guards(action)))

        self._member.sealing.sealed(send)

    def _commit_to_file(self, action: act.Commit) -> None:
        """As supervisor/member/local_offsets.py does it: whole or not at all; sometimes the disk refuses."""
        self._world.after(0.2, self._member.event, self._write_offset, action)

    def _write_offset(self, action: act.Commit) -> None:
        mq, offsets = action.mq, self._member.folder.offsets
        refused = self._world.chance(0.05) and not self._world.calm
        if refused:
            self._world.note("a local offset was not written")
        elif not action.guarded or offsets.get(mq, -1) < action.offset:
            key = (mq.topic, mq.queue_id)
            self._member.truth.may_pass(key, action.offset, "the local offset", self._member.askers[mq])
            self._member.truth.explained(key, action.offset, "the local offset")
            if action.offset < offsets.get(mq, 0):
                raise Violation(f"the local offset of {mq} goes back from {offsets[mq]} to {action.offset}")
            offsets[mq] = action.offset
        self._core.handle(ev.Committed(action.handle, action.offset, not refused), self._world.now)

    def _commit(self, action: act.Commit) -> None:
        asker = Asker(self._member.askers[action.mq].opened_ms, guarded=action.guarded)

        def updated(response: Command | None, _slot: Slot | None) -> None:
            ok = response is not None and response.code == ResponseCode.SUCCESS
            self._core.handle(ev.Committed(action.handle, action.offset, ok), self._world.now)

        def update() -> None:
            self._ask(self._requests.update_offset(action.mq, action.offset), updated, asker=asker)

        def queried(response: Command | None, _slot: Slot | None) -> None:
            if response is None or response.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
                self._core.handle(ev.Committed(action.handle, action.offset, False), self._world.now)
            elif response.code == ResponseCode.SUCCESS and not (
                action.known <= (stored := int(response.fields["offset"])) < action.offset
            ):
                self._world.note("a guarded commit left the broker's offset")
                left_at = -1 if stored == action.offset else stored
                self._core.handle(ev.Committed(action.handle, action.offset, True, left_at), self._world.now)
            else:
                asker.saw = int(response.fields["offset"]) if response.code == ResponseCode.SUCCESS else -1
                update()

        if action.guarded and self._member.parts.guards_commits:
            self._ask(self._requests.query_offset(action.mq), queried)
        else:
            update()

    def _drop(self, action: act.SendBack) -> None:
        """A broadcasting member's failure is over; an answer lets the core go on from here."""
        offset = self._core.state.chunks[action.chunk_id].offsets[action.index]
        self._world.note("a message was dropped")
        self._member.truth.done_without_rows((action.mq.topic, action.mq.queue_id), offset)
        self._core.handle(ev.SentBack(action.handle, action.chunk_id, action.index, True), self._world.now)

    def _send_back(self, action: act.SendBack) -> None:
        """The record's bytes are read now: they must be those of the message that failed."""
        if action.mode is Mode.DROP:
            self._drop(action)
            return
        if action.handle in self._revoked and action not in self._wanted_before:
            raise Violation(f"a failed message of {action.mq} is sent back, though its queue is another's")
        view, start = self._member.view, action.start
        size = int.from_bytes(view[start : start + 4], "big")
        offset = int.from_bytes(view[start + 20 : start + 28], "big")
        chunk = self._core.state.chunks.get(action.chunk_id)  # None: its queue ended in the same tick
        expected = offset if chunk is None else chunk.offsets[action.index]
        if size != action.end - start or offset != expected:
            raise Violation(f"the bytes of {action.mq} {expected} are gone before it was sent back")
        level = self._member.script.delay_level
        if level and action.mode is Mode.SEND_BACK and action.delay_level not in (*ASKED_LEVELS, level):
            raise Violation(f"{action.mq} {expected} goes back at level {action.delay_level}, not at {level}")
        if action.facts is not None:
            info = record_info(view, start, action.end)
            self._member.coroner.dead_letter(action, number_of(view[info.body_start : info.body_start + 8]))
        locks = self._core.state.config.locks
        command, record = self._requests.send_back(action, bytes(view[start : action.end]), locks=locks), None
        if action.mode is Mode.LAST_ATTEMPT:
            self._world.note("an ordered message reached its limit")
            record = SentAsNew((action.mq.topic, action.mq.queue_id), offset)

        def answered(response: Command | None, _slot: Slot | None) -> None:
            accepted = response is not None and response.code == ResponseCode.SUCCESS
            if not accepted:
                self._world.note("a send-back was refused or its answer lost")
                if record is None:
                    self._member.notebook.refused(action.handle, expected)
            self._core.handle(ev.SentBack(action.handle, action.chunk_id, action.index, accepted), self._world.now)

        self._ask(command, answered, asker=record)

    def _lock(self, action: act.LockQueues) -> None:
        asked_at = self._world.now

        def locked(response: Command | None, _slot: Slot | None) -> None:
            granted = self._requests.locked(response)
            if granted is not None and len(granted) < len(action.mqs):
                self._world.note("a lock was refused")
            self._core.handle(ev.Locked(action.mqs, granted, asked_at), self._world.now)

        self._ask(self._requests.lock(action.mqs), locked)

    def _unlock(self, action: act.UnlockQueues) -> None:
        self._ask(self._requests.unlock(action.mqs), lambda _c, _s: None)
