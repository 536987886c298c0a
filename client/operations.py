"""What a consumer asks of its cluster: offsets, members, heartbeats, pulls, send-backs, locks.

Timeouts are Java's: `request_timeout_ms` bounds what its mqClientApiTimeout does (client/impl/factory/MQClientInstance.java:
heartbeats, sign-offs, members, the check of a filter, and routes in client/name_servers.py), a number of its own each other
question. Members and producers that end wait less long for sign-offs, and those that stay for heartbeats. All methods raise
BrokerError when the answer is a no, UnreachableError (TimedOutError) when there is none, ProtocolError when it makes no
sense. Nothing is tried twice here: what a second try means differs by caller.

Methods that take a MessageQueue find its broker by the route of its topic, asking for that route where it is not known;
methods that take an address are for callers that know better (a pull from a slave, a heartbeat to everyone).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ..remoting.bodies import (
    CheckClientConfig,
    ConsumerIds,
    ConsumerRunningInfo,
    DelayOffsets,
    HeartbeatData,
    LockBatch,
    LockBatchResponse,
)
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import Command
from ..remoting.errors import ProtocolError, UnreachableError
from ..remoting.fields import Header, Int64
from ..remoting.headers import (
    ConsumerList,
    MaxOffset,
    MinOffset,
    OffsetResponse,
    PullRequest,
    PullResponse,
    QueryOffset,
    RunningInfoRequest,
    SearchOffset,
    SendBack,
    Unregister,
    UpdateOffset,
)
from ..remoting.names import MASTER_ID
from ..remoting.queues import MessageQueue
from .asking import ask, refusal
from .cluster import Cluster
from .pending import BodySink

if TYPE_CHECKING:
    from ..remoting.admin_bodies import ConsumerConnections

OFFSET_TIMEOUT_MS = 5_000
BOUND_TIMEOUT_MS = 6_000
SEND_BACK_TIMEOUT_MS = 5_000
LOCK_TIMEOUT_MS = 1_000
RUNNING_INFO_TIMEOUT_MS = 12_000
PULL_TIMEOUT_MS = 30_000

_SUCCESS = int(ResponseCode.SUCCESS)
_DOES_NOT_SAY = (int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), int(ResponseCode.NO_PERMISSION))
_NOT_FOUND = int(ResponseCode.QUERY_NOT_FOUND)
_NOBODY = int(ResponseCode.SYSTEM_ERROR)


class PullStatus(Enum):
    """How a pull ended, when it was no refusal (client/consumer/PullStatus.java)."""

    FOUND = "found"
    NO_NEW_MSG = "no_new_msg"
    NO_MATCHED_MSG = "no_matched_msg"
    OFFSET_ILLEGAL = "offset_illegal"


_PULL_STATUS = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MSG,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MSG,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_ILLEGAL,
}


@dataclass(frozen=True, slots=True)
class PullResult:
    """A pull's answer. `body` holds stored records back to back; `dropped` says the body sink had no room for it."""

    status: PullStatus
    header: PullResponse
    body: bytes | bytearray | memoryview
    dropped: bool


def parse_pull(answer: Command, address: str) -> PullResult:
    """Judge a pull's answer. Raises BrokerError for codes other than 0, 19, 20, 21, ProtocolError for a bad header."""
    status = _PULL_STATUS.get(answer.code)
    if status is None:
        raise refusal(answer, RequestCode.PULL_MESSAGE, address)
    return PullResult(status, pull_header(answer, address), answer.body, answer.dropped)


def pull_header(answer: Command, where: str) -> PullResponse:
    """The header of a pull's answer that is no refusal. Raises ProtocolError for a bad one, and for one that says that the
    records bear other offsets than the queue: only those of a remapped static topic do (client/routes.py)."""
    header = PullResponse.from_fields(answer.fields)
    if header.offset_delta:
        raise _remapped(header.offset_delta, where)
    return header


@dataclass(frozen=True, slots=True)
class PullPosition(Header):
    """What a consumer needs of a PullResponse: one is read for each pull."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None


def pull_position(answer: Command, where: str) -> PullPosition:
    """As `pull_header`, of what a consumer needs."""
    header = PullPosition.from_fields(answer.fields)
    if header.offset_delta:
        raise _remapped(header.offset_delta, where)
    return header


def _remapped(offset_delta: int, where: str) -> ProtocolError:
    return ProtocolError(
        f"its records are {offset_delta} offsets away from the queue's, as only a static topic's are, which is"
        " not read: take an ordinary topic",
        f"pull's answer from {where}",
    )


class Operations:
    """See the module's text. Stateless but for the cluster's routes and connections."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._remoting = cluster.remoting

    @property
    def _timeout_ms(self) -> int:
        return self._cluster.access.request_timeout_ms

    # Offsets.

    async def query_consumer_offset(
        self,
        group: str,
        mq: MessageQueue,
        *,
        set_zero_if_not_found: bool | None = None,
        timeout_ms: int = OFFSET_TIMEOUT_MS,
    ) -> int | None:
        """The group's committed offset, None when the broker has none (code 22).

        A broker may say 0 for a group it never saw when the queue still has its first message in memory
        (ConsumerManageProcessor.java); `set_zero_if_not_found=False` keeps 5.x brokers from it.
        """
        address = await self._cluster.address_of(mq, only_this=False)
        header = QueryOffset(group, mq.topic, mq.queue_id, set_zero_if_not_found, mq.broker_name)
        code = RequestCode.QUERY_CONSUMER_OFFSET
        accept = (_SUCCESS, _NOT_FOUND)
        answer = await ask(self._remoting, address, code, header, timeout_ms=timeout_ms, accept=accept)
        return None if answer.code == _NOT_FOUND else OffsetResponse.from_fields(answer.fields).offset

    async def has_offsets(self, group: str, mq: MessageQueue) -> bool:
        """Whether the queue's broker has an offset of the group for any queue of the topic; True where it does not say."""
        from ..remoting.admin_bodies import ConsumeStats
        from ..remoting.admin_headers import ConsumeStatsRequest

        address = await self._cluster.address_of(mq, only_this=False)
        header = ConsumeStatsRequest(group)  # of one topic it would tell 0 as well
        answer = await ask(
            self._remoting, address, RequestCode.GET_CONSUME_STATS, header, timeout_ms=OFFSET_TIMEOUT_MS,
            accept=(_SUCCESS, *_DOES_NOT_SAY),
        )  # fmt: skip
        return answer.code in _DOES_NOT_SAY or any(
            mq.topic == each.topic for each in ConsumeStats.decode(answer.body).offset_table
        )

    async def update_consumer_offset(
        self, group: str, mq: MessageQueue, offset: int, *, timeout_ms: int = OFFSET_TIMEOUT_MS
    ) -> None:
        """Commit an offset; the broker overwrites what it has, even by a lower one.

        Java sends this one-way; then a refusal stays unknown.
        """
        address = await self._cluster.address_of(mq, only_this=False)
        header = UpdateOffset(group, mq.topic, mq.queue_id, offset, mq.broker_name)
        await ask(self._remoting, address, RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout_ms=timeout_ms)

    async def max_offset(self, mq: MessageQueue, *, timeout_ms: int = BOUND_TIMEOUT_MS) -> int:
        """One past the queue's last message; 0 for a queue the broker does not know."""
        header = MaxOffset(mq.topic, mq.queue_id, broker_name=mq.broker_name)
        return await self._offset(mq, RequestCode.GET_MAX_OFFSET, header, timeout_ms)

    async def min_offset(self, mq: MessageQueue) -> int:
        """The queue's first message that is still kept; 0 for a queue the broker does not know."""
        header = MinOffset(mq.topic, mq.queue_id, broker_name=mq.broker_name)
        return await self._offset(mq, RequestCode.GET_MIN_OFFSET, header)

    async def search_offset(self, mq: MessageQueue, timestamp_ms: int, *, address: str | None = None) -> int:
        """The first message stored at or after that time (ms since 1970), the end when there is none; `address` is another
        replica than the master.

        At the queue's ends brokers differ; docs/protocol.md.
        """
        header = SearchOffset(mq.topic, mq.queue_id, timestamp_ms, "LOWER", mq.broker_name)
        return await self._offset(mq, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, address=address)

    async def delay_offsets(self, address: str) -> dict[int, int]:
        """Delay level -> the offset in its queue of SCHEDULE_TOPIC_XXXX up to which this master has delivered its messages.

        A level of which nothing was ever delivered may be missing.
        """
        answer = await ask(self._remoting, address, RequestCode.GET_ALL_DELAY_OFFSET, None, timeout_ms=BOUND_TIMEOUT_MS)
        return DelayOffsets.decode(answer.body).offset_table

    async def _offset(
        self,
        mq: MessageQueue,
        code: RequestCode,
        header: MaxOffset | MinOffset | SearchOffset,
        timeout_ms: int = BOUND_TIMEOUT_MS,
        address: str | None = None,
    ) -> int:
        address = address or await self._cluster.address_of(mq)
        answer = await ask(self._remoting, address, code, header, timeout_ms=timeout_ms)
        return OffsetResponse.from_fields(answer.fields).offset

    # The group.

    async def consumer_ids(self, group: str, topic: str) -> list[str]:
        """The client ids in the group, asked of a random broker of the topic's route; [] when it has no member (code 1).

        An id may stand there twice while an old connection of it lingers.
        """
        route = await self._cluster.route(topic)
        if not route.broker_datas:
            raise UnreachableError(topic, "the route of this topic names no broker")
        data = self._cluster.random.choice(route.broker_datas)
        addresses = data.broker_addrs
        address = addresses.get(MASTER_ID) or self._cluster.random.choice(sorted(addresses.values()))
        header = ConsumerList(group, data.broker_name)
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        accept = (_SUCCESS, _NOBODY)
        answer = await ask(self._remoting, address, code, header, timeout_ms=self._timeout_ms, accept=accept)
        return [] if answer.code == _NOBODY else list(ConsumerIds.decode(answer.body).consumer_id_list)

    async def heartbeat(self, address: str, data: HeartbeatData, *, timeout_ms: int | None = None) -> int:
        """Tell a broker who we are and what we subscribe; its version (an ordinal of MQVersion.java)."""
        body = data.encode()
        wait_ms = self._timeout_ms if timeout_ms is None else timeout_ms
        answer = await ask(self._remoting, address, RequestCode.HEART_BEAT, body=body, timeout_ms=wait_ms)
        return answer.version

    async def check_client_config(self, address: str, data: CheckClientConfig) -> None:
        """Ask whether the broker takes this (SQL) subscription; BrokerError (1, 23) when not."""
        body = data.encode()
        code = RequestCode.CHECK_CLIENT_CONFIG
        await ask(self._remoting, address, code, body=body, timeout_ms=self._timeout_ms)

    async def group_on(self, address: str, group: str) -> ConsumerConnections | None:
        """What a broker holds of the group: members and subscriptions; None when it has no member there (206)."""
        # A member asks this when it is a minute old. Each start of a process that asks brokers anything would else pay 40 ms.
        from ..remoting.admin_bodies import ConsumerConnections
        from ..remoting.admin_headers import ConsumerConnectionRequest

        header, code = ConsumerConnectionRequest(group), RequestCode.GET_CONSUMER_CONNECTION_LIST
        accept = (_SUCCESS, int(ResponseCode.CONSUMER_NOT_ONLINE))
        answer = await ask(self._remoting, address, code, header, timeout_ms=self._timeout_ms, accept=accept)
        return ConsumerConnections.decode(answer.body) if answer.code == _SUCCESS else None

    async def running_info(self, address: str, group: str, client_id: str) -> ConsumerRunningInfo:
        """What a member says of itself, asked by way of the broker (which waits for it up to 10 s)."""
        header, code = RunningInfoRequest(group, client_id), RequestCode.GET_CONSUMER_RUNNING_INFO
        answer = await ask(self._remoting, address, code, header, timeout_ms=RUNNING_INFO_TIMEOUT_MS)
        return ConsumerRunningInfo.decode(answer.body)

    async def unregister(
        self,
        address: str,
        client_id: str,
        group: str | None = None,
        *,
        producer_group: str | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """This client leaves the consumer group (and the producer group) on that broker. `timeout_ms` is for those that are
        about to end."""
        header = Unregister(client_id, producer_group, group)
        wait_ms = self._timeout_ms if timeout_ms is None else timeout_ms
        await ask(self._remoting, address, RequestCode.UNREGISTER_CLIENT, header, timeout_ms=wait_ms)

    # Messages.

    async def pull(
        self,
        address: str,
        header: PullRequest,
        *,
        body_sink: BodySink | None = None,
        timeout_ms: int = PULL_TIMEOUT_MS,
    ) -> Command:
        """One pull; the raw answer, to be judged by `parse_pull`.

        With the suspend bit the broker holds the request until something arrives, at most `suspend_timeout_millis` plus
        five seconds: `timeout_ms` must be longer. With a `body_sink` the records are received straight into its view.
        """
        command = Command(int(RequestCode.PULL_MESSAGE), header.to_fields())
        return await self._remoting.request(address, command, timeout_ms=timeout_ms, body_sink=body_sink)

    async def send_back(self, address: str, header: SendBack, *, timeout_ms: int = SEND_BACK_TIMEOUT_MS) -> None:
        """Return a message to its broker's master for a later attempt; accepted means the broker has stored it."""
        await ask(self._remoting, address, RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout_ms=timeout_ms)

    # Locks of orderly consumption.

    async def lock_batch(self, address: str, group: str, mqs: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock or renew queues of one broker for this client; those that are locked now. The code is 0 even for none."""
        body = LockBatch(group, self._cluster.client_id, tuple(mqs)).encode()
        answer = await ask(self._remoting, address, RequestCode.LOCK_BATCH_MQ, body=body, timeout_ms=LOCK_TIMEOUT_MS)
        return set(LockBatchResponse.decode(answer.body).lock_ok_mq_set)

    async def unlock_batch(
        self,
        address: str,
        group: str,
        mqs: Iterable[MessageQueue],
        *,
        client_id: str = "",
        oneway: bool = False,
    ) -> None:
        """Give up locks; those that are not ours (or those of the dead client `client_id`) are left alone."""
        body = LockBatch(group, client_id or self._cluster.client_id, tuple(mqs)).encode()
        code = RequestCode.UNLOCK_BATCH_MQ
        if oneway:
            await self._remoting.oneway(address, Command(int(code), body=body), timeout_ms=LOCK_TIMEOUT_MS)
        else:
            await ask(self._remoting, address, code, body=body, timeout_ms=LOCK_TIMEOUT_MS)
