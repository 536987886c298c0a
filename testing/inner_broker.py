"""The brokers' side of a run in this process: the embedded broker's core, and what a member says to it.

Each request of the supervisor's core becomes the command that the real edge sends (supervisor/member/), and the answer
becomes the event that it makes of it. Both cores are the real ones; there is one member, one broker and no network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any, Final

from ..broker.config import BrokerConfig
from ..broker.core import BrokerCore
from ..broker.effects import CloseChannel, Effect
from ..broker.name_server import NameServerCore
from ..broker.storage import MemoryStorage
from ..conf.formats import DELAY_LEVELS
from ..remoting.bodies import (
    ConsumerData,
    ConsumerIds,
    HeartbeatData,
    LockBatch,
    LockBatchResponse,
    SubscriptionData,
    TopicRouteData,
)
from ..remoting.codes import PULL_COMMIT_OFFSET, PULL_SUSPEND, RequestCode, ResponseCode
from ..remoting.command import Command
from ..remoting.errors import UsageError
from ..remoting.headers import (
    ConsumerList,
    GetRoute,
    PullRequest,
    PullResponse,
    QueryOffset,
    SendBack,
    SendRequestV2,
    UpdateOffset,
)
from ..remoting.names import DEFAULT_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC
from ..remoting.properties import encode_properties
from ..remoting.queues import MessageQueue
from ..remoting.stored import StoredMessage, decode_message
from ..supervisor.core import actions as act
from ..supervisor.core import events as ev
from ..supervisor.core.decisions import Core
from ..supervisor.core.pulling import PullResult
from ..supervisor.core.slab import Slot
from ..supervisor.core.subscriptions import Subscriptions
from ..supervisor.member.send_back import goes_anew, of_a_retry
from ..workers.failures import DEAD_LETTER_LEVEL, Mode, resend_level
from ..workers.message import Message

SELDOM_MS: Final = 3_600_000
"""Of what the broker does from time to time for its disk and its clients: here is neither."""
HOLD_MS: Final = 60_000
QUEUES_MIN: Final = 4
CHANNEL: Final = 1
PEER: Final = "127.0.0.1:1"
WITH_OFFSETS: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)

Answer = Callable[[Command], None]


@dataclass(frozen=True, slots=True)
class WentBack:
    """Where a send-back put its message: `level` 0 = the dead letters."""

    level: int
    delay_ms: int


class InnerBroker:
    """A broker core with a name server core in memory. `now_ms` is the clock, in whole milliseconds."""

    def __init__(self, now_ms: Callable[[], int], delay_levels: str | None) -> None:
        config = BrokerConfig(
            dir="", default_queues_max=1024, hold_timeout_max_ms=HOLD_MS, flush_interval_ms=SELDOM_MS,
            checkpoint_interval_ms=SELDOM_MS, offset_flush_interval_ms=SELDOM_MS, hold_sweep_interval_ms=SELDOM_MS,
            channel_expiry_ms=SELDOM_MS * 1000, expiry_scan_interval_ms=SELDOM_MS, registration_interval_ms=SELDOM_MS,
            lock_expiry_ms=SELDOM_MS, message_delay_level=delay_levels or DELAY_LEVELS,
        )  # fmt: skip
        self._now_ms = now_ms
        self.name_server = NameServerCore()
        self.core = BrokerCore(config, MemoryStorage(), Random(0), self.name_server, now_ms())
        self._opaques = count(1)
        self._waiting: dict[int, Answer] = {}

    @property
    def name(self) -> str:
        return self.core.config.name

    def ask(self, command: Command, answer: Answer) -> None:
        """Send a request; `answer` is called with the response, perhaps later (a pull that is held)."""
        command.opaque = next(self._opaques)
        self._waiting[command.opaque] = answer
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            self._do(self.name_server.handle(self._now_ms(), CHANNEL, PEER, command))
        else:
            self._do(self.core.handle(self._now_ms(), CHANNEL, PEER, command))

    def now(self, command: Command) -> Command:
        """Send a request that is answered at once."""
        found: list[Command] = []
        self.ask(command, found.append)
        assert found, f"request {command.code} was not answered at once"
        return found[0]

    def tick(self) -> None:
        """Do what is due."""
        self._do(self.core.tick(self._now_ms()))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, CloseChannel) or not effect.command.is_response:
                continue  # it asks the only member to rebalance
            answer = self._waiting.pop(effect.command.opaque, None)
            if answer is not None:
                answer(effect.command)

    def send(self, message: Message) -> None:
        """As a producer. Raises UsageError with the broker's reason."""
        queues = max(QUEUES_MIN, message.queue_id + 1)
        header = SendRequestV2(
            producer_group="test", topic=message.topic, default_topic=DEFAULT_TOPIC, default_topic_queue_nums=queues,
            queue_id=message.queue_id, sys_flag=0, born_timestamp=message.born_timestamp_ms or self._now_ms(),
            flag=message.flag, properties=encode_properties(message.properties), reconsume_times=message.reconsume_times,
        )  # fmt: skip
        answer = self.now(Command(RequestCode.SEND_MESSAGE_V2, header.to_fields(), message.body))
        if answer.code != ResponseCode.SUCCESS:
            raise UsageError(f"the message for topic {message.topic} was refused: {answer.remark}")

    def went_back(self, log_end: int) -> WentBack:
        """What the record that was stored at `log_end` says."""
        record = self.core.state.store.record_at(log_end)
        assert record is not None, "an accepted send-back stores a record"
        message = decode_message(record)
        if message.topic != SCHEDULE_TOPIC:
            return WentBack(0, 0)
        level = message.queue_id + 1
        return WentBack(level, self.core.state.delays.delay_ms(level))

    def unfinished(self, group: str, topics: Mapping[str, object]) -> int:
        """Messages of the topics that are above the group's offsets, and those that wait for their delay."""
        state, total = self.core.state, 0
        for topic in topics:
            for queue_id in state.store.queue_ids(topic):
                total += state.store.max_offset(topic, queue_id) - (state.offsets.query(topic, group, queue_id) or 0)
        for queue_id in state.store.queue_ids(SCHEDULE_TOPIC):
            delivered = state.delays.delivered(queue_id + 1)
            total += state.store.max_offset(SCHEDULE_TOPIC, queue_id) - delivered
        return total


class Requests:
    """The commands that a member of one group sends, and what their answers say; no connection, no clock.

    Used by whoever plays a member without a network: `InnerEdge`, and the simulation of this project's own tests.
    """

    def __init__(self, group: str, client_id: str, reconsume_max: int) -> None:
        """`reconsume_max` >= 0: after so many attempts a broker makes a dead letter of what is sent back."""
        self._group = group
        self._client_id = client_id
        self._reconsume_max = reconsume_max

    def heartbeat(self, subscriptions: Iterable[SubscriptionData], message_model: str = "CLUSTERING") -> Command:
        consumer = ConsumerData(
            self._group, message_model=message_model, subscription_data_set=tuple(subscriptions)
        )  # fmt: skip
        return Command(RequestCode.HEART_BEAT, body=HeartbeatData(self._client_id, (), (consumer,)).encode())

    def route(self, topic: str) -> Command:
        return Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute(topic).to_fields())

    def queues(self, topic: str, answer: Command | None) -> list[MessageQueue] | None:
        """The topic's queues, from the answer to `route`; None = it has no route, or nobody said so."""
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return None
        return [
            MessageQueue(topic, data.broker_name, number)
            for data in TopicRouteData.decode(answer.body).queue_datas
            for number in range(data.read_queue_nums)
        ]

    def member_list(self) -> Command:
        return Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerList(self._group).to_fields())

    def members(self, answer: Command | None) -> list[str] | None:
        """The client ids of the group, from the answer to `member_list`."""
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return None
        return list(ConsumerIds.decode(answer.body).consumer_id_list)

    def query_offset(self, mq: MessageQueue) -> Command:
        header = QueryOffset(consumer_group=self._group, topic=mq.topic, queue_id=mq.queue_id)
        return Command(RequestCode.QUERY_CONSUMER_OFFSET, header.to_fields())

    def update_offset(self, mq: MessageQueue, offset: int) -> Command:
        header = UpdateOffset(
            consumer_group=self._group, topic=mq.topic, queue_id=mq.queue_id, commit_offset=offset
        )  # fmt: skip
        return Command(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_fields())

    def pull(
        self, action: act.Pull, sub_version: int, *, batch_max: int = 32, hold_ms: int = HOLD_MS, commits: bool = True
    ) -> Command:
        """`commits`: the broker keeps the group's offsets, so a pull may bring one along."""
        header = PullRequest(
            consumer_group=self._group, topic=action.mq.topic, queue_id=action.mq.queue_id, queue_offset=action.offset,
            max_msg_nums=batch_max, commit_offset=action.commit_offset, suspend_timeout_millis=hold_ms,
            sys_flag=PULL_SUSPEND | (PULL_COMMIT_OFFSET if commits and action.commit_offset > 0 else 0),
            sub_version=sub_version,
        )  # fmt: skip
        return Command(RequestCode.PULL_MESSAGE, header.to_fields())

    def pulled(self, action: act.Pull, answer: Command, slot: Slot | None) -> PullResult:
        """`slot` has the body; None = there is none, or it found no room."""
        if answer.code not in WITH_OFFSETS:
            return PullResult(answer.code, action.offset, remark=answer.remark or "")
        if answer.body and slot is None:
            return PullResult(answer.code, action.offset, dropped=True)
        header = PullResponse.from_fields(answer.fields)
        return PullResult(answer.code, header.next_begin_offset, len(answer.body), slot, min_offset=header.min_offset)

    def send_back(self, action: act.SendBack, record: bytes, *, locks: bool) -> Command:
        """A failed message to its broker, or by an ordinary send. `locks`: the group locks its queues."""
        message = decode_message(record)
        if goes_anew(action, message, self._group, locks=locks):
            return self._own_send(message, action)
        header = SendBack(
            offset=int.from_bytes(record[28:36], "big"), group=self._group,
            delay_level=DEAD_LETTER_LEVEL if action.last else action.delay_level,
            origin_topic=action.mq.topic, max_reconsume_times=self._reconsume_max,
        )  # fmt: skip
        return Command(RequestCode.CONSUMER_SEND_MSG_BACK, header.to_fields())

    def _own_send(self, message: StoredMessage, action: act.SendBack) -> Command:
        times = message.reconsume_times + action.tried + 1
        properties = {
            **of_a_retry(message, self._group),
            "DELAY": str(0 if action.last else resend_level(action.delay_level, times)),
        }
        if action.mode is Mode.DEAD_LETTER:
            times = self._reconsume_max + 1
        header = SendRequestV2(
            producer_group=self._group, topic=RETRY_PREFIX + self._group, default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=1, queue_id=0, sys_flag=0, born_timestamp=message.born_timestamp_ms, flag=message.flag,
            properties=encode_properties(properties), reconsume_times=times, max_reconsume_times=self._reconsume_max,
        )  # fmt: skip
        return Command(RequestCode.SEND_MESSAGE_V2, header.to_fields(), bytes(message.body))

    def lock(self, mqs: tuple[MessageQueue, ...]) -> Command:
        return Command(RequestCode.LOCK_BATCH_MQ, body=LockBatch(self._group, self._client_id, mqs).encode())

    def locked(self, answer: Command | None) -> set[MessageQueue] | None:
        """The queues that the broker granted; None = it did not say."""
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return None
        return set(LockBatchResponse.decode(answer.body).lock_ok_mq_set)

    def unlock(self, mqs: tuple[MessageQueue, ...]) -> Command:
        return Command(RequestCode.UNLOCK_BATCH_MQ, body=LockBatch(self._group, self._client_id, mqs).encode())


class InnerEdge:
    """Does what the supervisor's core wants of the broker. `now` is the core's clock in seconds; `fate` hears of each message
    that has gone back, with the record, and the reason."""

    def __init__(
        self, broker: InnerBroker, core: Core, view: memoryview, subscriptions: Subscriptions, *, now: Callable[[], float],
        reconsume_max: int, fate: Callable[[MessageQueue, bytes, str, WentBack], None],
    ) -> None:  # fmt: skip
        self._broker = broker
        self._core = core
        self._view = view
        self._now = now
        self._fate = fate
        config = core.state.config
        self._requests = Requests(config.group, config.client_id, reconsume_max)
        self.subscriptions = subscriptions
        self.performs: dict[type, Callable[[Any], None]] = {
            act.FetchAssignment: self._fetch_assignment,
            act.FetchOffset: self._fetch_offset,
            act.Pull: self._pull,
            act.Commit: self._commit,
            act.SendBack: self._send_back,
            act.Heartbeat: lambda _: self.heartbeat(),
            act.LockQueues: self._lock,
            act.UnlockQueues: lambda _: None,
        }

    def _event(self, event: ev.Event) -> None:
        self._core.handle(event, self._now())

    def heartbeat(self) -> None:
        """Join the group, or say that it is still there."""
        self._broker.now(self._requests.heartbeat(self.subscriptions.values()))

    def _fetch_assignment(self, action: act.FetchAssignment) -> None:
        queues = self._requests.queues(action.topic, self._broker.now(self._requests.route(action.topic)))
        members = None if queues is None else self._requests.members(self._broker.now(self._requests.member_list()))
        self._event(ev.Members(action.topic, queues, members))

    def _offset_of(self, mq: MessageQueue) -> int | None:
        answer = self._broker.now(self._requests.query_offset(mq))
        return int(answer.fields["offset"]) if answer.code == ResponseCode.SUCCESS else None

    def _fetch_offset(self, action: act.FetchOffset) -> None:
        self._event(ev.Opened(action.handle, self._offset_of(action.mq) or 0))

    def _pull(self, action: act.Pull) -> None:
        subscription: SubscriptionData = self.subscriptions[action.mq.topic]

        def pulled(response: Command) -> None:
            slot, length = None, len(response.body)
            if length and response.code in WITH_OFFSETS:
                slot = self._core.room_for(action.handle, length)
                if slot is not None:
                    self._view[slot.start : slot.start + length] = response.body
            self._event(ev.Pulled(action.handle, self._requests.pulled(action, response, slot)))

        self._broker.ask(self._requests.pull(action, subscription.sub_version), pulled)

    def _commit(self, action: act.Commit) -> None:
        known = self._offset_of(action.mq) if action.guarded else None
        if known is None or action.known <= known < action.offset:
            self._broker.now(self._requests.update_offset(action.mq, action.offset))
        self._event(ev.Committed(action.handle, action.offset, True))

    def _send_back(self, action: act.SendBack) -> None:
        record = bytes(self._view[action.start : action.end])
        log_end = self._broker.core.state.store.log_end
        command = self._requests.send_back(action, record, locks=self._core.state.config.locks)
        accepted = self._broker.now(command).code == ResponseCode.SUCCESS
        if accepted:
            self._fate(action.mq, record, action.error, self._broker.went_back(log_end))
        self._event(ev.SentBack(action.handle, action.chunk_id, action.index, accepted))

    def _lock(self, action: act.LockQueues) -> None:
        granted = self._requests.locked(self._broker.now(self._requests.lock(action.mqs)))
        self._event(ev.Locked(action.mqs, granted, self._now()))
