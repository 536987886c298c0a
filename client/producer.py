"""Sending messages.

One send is at most `1 + retries` attempts within one deadline: first the next queue in turn, after a failure one of another
broker where there is one. Tried again is what `errors.retriable` says (no connection, no answer, SYSTEM_BUSY and the other
codes of Java's DefaultMQProducer); a refusal of the message itself is not. An attempt that was lost may have been stored:
a retried message can arrive twice, with one message id (UNIQ_KEY).

Sources: client/impl/producer/DefaultMQProducerImpl.java (sendDefaultImpl, sendKernelImpl, sendSelectImpl),
client/impl/MQClientAPIImpl.java (processSendResponse).

In the background, every 30 s: a heartbeat to the masters in use, and the routes renewed if the cluster is the producer's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Self

import structlog

from ..remoting.bodies import HeartbeatData, ProducerData
from ..remoting.codes import ResponseCode
from ..remoting.compression import LEVEL_DEFAULT, Compression
from ..remoting.errors import BrokerError, RocketcrewError, TimedOutError, UnreachableError, UsageError, retriable
from ..remoting.headers import SendResponse
from ..remoting.ids import UniqueIds
from ..remoting.queues import MessageQueue
from .asking import refusal
from .cluster import DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUE_NUMS, Cluster
from .identity import ip_for_ids
from .opening import new_cluster
from .operations import Operations
from .outgoing import (
    BODY_MAX_BYTES,
    COMPRESS_FROM_BYTES,
    OutgoingMessage,
    Prepared,
    SendOptions,
    prepare,
    prepare_batch,
)
from .routes import queues_to_write
from .selection import QueueSelector, RoundRobin
from .validation import check_group

SEND_TIMEOUT_MS = 3_000
RETRIES = 2
HEARTBEAT_INTERVAL_MS = 30_000
FIRST_HEARTBEAT_MS = 1_000
IN_FLIGHT_MAX = 256
DEFAULT_GROUP = "rocketcrew_producer"
JAVA_DEFAULT_GROUP = "DEFAULT_PRODUCER"

_log = structlog.get_logger("rocketcrew.client")


class SendStatus(Enum):
    """The message is stored in all cases; the others tell what a synchronous broker could not do in time."""

    SEND_OK = "send_ok"
    FLUSH_DISK_TIMEOUT = "flush_disk_timeout"
    FLUSH_SLAVE_TIMEOUT = "flush_slave_timeout"
    SLAVE_NOT_AVAILABLE = "slave_not_available"


_STATUS = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where a message (or batch) is. Of a batch both ids are comma lists and the offset is the first message's."""

    status: SendStatus
    message_id: str
    offset_message_id: str
    mq: MessageQueue
    queue_offset: int
    attempts: int


class Producer:
    """Sends messages of one producer group; see the module's text. Belongs to one event loop.

    Use it as `async with Producer.create("127.0.0.1:9876") as producer:` or with `start` and `close`.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str = DEFAULT_GROUP,
        *,
        owns_cluster: bool = False,
        send_timeout_ms: int = SEND_TIMEOUT_MS,
        retries: int = RETRIES,
        body_max_bytes: int = BODY_MAX_BYTES,
        compress_from_bytes: int = COMPRESS_FROM_BYTES,
        compression: Compression = Compression.ZLIB,
        compress_level: int = LEVEL_DEFAULT,
        default_topic: str = DEFAULT_TOPIC,
        default_topic_queue_nums: int = DEFAULT_TOPIC_QUEUE_NUMS,
        heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Raises UsageError for a bad group name."""
        check_group(group)
        if group == JAVA_DEFAULT_GROUP:
            raise UsageError(f"producer group {group} is reserved: choose another name")
        self.cluster = cluster
        self.group = group
        self._owns_cluster = owns_cluster
        self._send_timeout_ms = send_timeout_ms
        self._retries = retries
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._now_ms = now_ms
        self._options = SendOptions(
            group,
            default_topic,
            default_topic_queue_nums,
            body_max_bytes,
            compress_from_bytes,
            compression,
            compress_level,
        )
        ip = cluster.client_id.partition("@")[0]
        self._ids = UniqueIds(ip_for_ids(ip), os.getpid(), cluster.random.getrandbits(32))
        self._turns = RoundRobin(cluster.random.randrange)
        self._operations = Operations(cluster)
        self._background: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    def create(
        cls,
        name_servers: str | Iterable[str],
        group: str = DEFAULT_GROUP,
        *,
        send_timeout_ms: int = SEND_TIMEOUT_MS,
        retries: int = RETRIES,
        compression: Compression = Compression.ZLIB,
        compress_from_bytes: int = COMPRESS_FROM_BYTES,
    ) -> Self:
        """A producer with connections of its own, closed with it. Raises UsageError for bad addresses or group."""
        return cls(
            new_cluster(name_servers),
            group,
            owns_cluster=True,
            send_timeout_ms=send_timeout_ms,
            retries=retries,
            compression=compression,
            compress_from_bytes=compress_from_bytes,
        )

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def start(self) -> None:
        """Begin the background work. Nothing is connected before the first send."""
        if self._closed:
            raise UsageError("this producer is closed: make a new one")
        if self._background is None:
            self._background = asyncio.get_running_loop().create_task(self._keep_alive())

    async def close(self) -> None:
        """Leave the group on the brokers in use, and close the connections if they are the producer's own. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._background is not None:
            self._background.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._background
            await asyncio.gather(*(self._unregister(address) for address in self._connected_masters()))
        if self._owns_cluster:
            await self.cluster.close()
            await self.cluster.remoting.close()

    # Sending.

    async def send(
        self, message: OutgoingMessage, *, timeout_ms: int | None = None, selector: QueueSelector | None = None
    ) -> SendResult:
        """Send one message and wait until the broker has it, `timeout_ms` (3000) over all attempts.

        With a `selector` (`selection.by_key`, `to_queue` or one's own) there is one attempt, as its queue is meant.
        Raises UsageError when the message cannot be sent as it is, BrokerError when it was refused,
        UnreachableError (TimedOutError) when no broker, or no name server, could be asked.
        """
        prepared = prepare(message, self._options, unique_id=self._next_id(), now_ms=self._now_ms())
        return await self._send(prepared, timeout_ms, selector)

    async def send_batch(
        self,
        messages: Sequence[OutgoingMessage],
        *,
        timeout_ms: int | None = None,
        selector: QueueSelector | None = None,
    ) -> SendResult:
        """Send messages of one topic in one request, into one queue, all or none. Raises as `send`."""
        prepared = prepare_batch(messages, self._options, next_id=self._next_id, now_ms=self._now_ms())
        return await self._send(prepared, timeout_ms, selector)

    async def send_oneway(
        self, message: OutgoingMessage, *, timeout_ms: int | None = None, selector: QueueSelector | None = None
    ) -> str:
        """Send without waiting for an answer; the message id. Whether it is stored is not known.

        Raises UsageError, UnreachableError (not connected) and, for a topic that does not exist, BrokerError.
        """
        prepared = prepare(message, self._options, unique_id=self._next_id(), now_ms=self._now_ms())
        mq = self._choose(prepared, await self._queues(prepared.topic), selector, None)
        address = await self._master_of(mq)
        timeout = self._send_timeout_ms if timeout_ms is None else timeout_ms
        await self.cluster.remoting.oneway(address, prepared.command(mq), timeout_ms=timeout)
        return prepared.message_id

    async def send_many(
        self, messages: Iterable[OutgoingMessage], *, in_flight_max: int = IN_FLIGHT_MAX, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send all messages, at most `in_flight_max` at a time; their results in the messages' order.

        `messages` may be a generator: it is read as the sends go. After a failure nothing more is read; it is raised once
        those in flight have ended. Which of them arrived the caller does not learn, so give more `retries` rather than
        sending all again.
        """
        results: dict[int, SendResult] = {}
        failures: list[BaseException] = []
        source = enumerate(messages)

        async def lane() -> None:
            # All lanes draw from one iterator; the loop has one thread, so each message is drawn once.
            while not failures and (drawn := next(source, None)) is not None:
                results[drawn[0]] = await self.send(drawn[1], timeout_ms=timeout_ms)

        async def guarded() -> None:
            try:
                await lane()
            except Exception as error:  # noqa: BLE001 - raised below, after the other lanes have ended
                failures.append(error)

        await asyncio.gather(*(guarded() for _ in range(max(1, in_flight_max))))
        if failures:
            raise failures[0]
        return [results[index] for index in sorted(results)]

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues a selector would choose from."""
        return list(await self._queues(topic))

    async def _send(self, prepared: Prepared, timeout_ms: int | None, selector: QueueSelector | None) -> SendResult:
        timeout = self._send_timeout_ms if timeout_ms is None else timeout_ms
        began_s = time.monotonic()
        deadline_s = began_s + timeout / 1000
        attempts_max = 1 if selector is not None else 1 + self._retries
        tried: list[str] = []
        while True:
            mq = self._choose(prepared, await self._queues(prepared.topic), selector, tried[-1] if tried else None)
            tried.append(mq.broker_name)
            left_ms = (deadline_s - time.monotonic()) * 1000
            try:
                return await self._attempt(prepared, mq, left_ms, len(tried))
            except (BrokerError, UnreachableError) as error:
                over = len(tried) >= attempts_max or time.monotonic() >= deadline_s
                if over or not retriable(error):
                    if len(tried) == 1:
                        raise
                    raise _with_tries(error, tried, time.monotonic() - began_s) from error
                _log.debug("send_retried", topic=prepared.topic, broker=mq.broker_name, error=str(error))

    async def _attempt(self, prepared: Prepared, mq: MessageQueue, left_ms: float, attempt: int) -> SendResult:
        address = await self._master_of(mq)
        if left_ms <= 0:
            raise TimedOutError(address, "no time left to send")
        answer = await self.cluster.remoting.request(address, prepared.command(mq), timeout_ms=left_ms)
        status = _STATUS.get(answer.code)
        if status is None:
            raise refusal(answer, prepared.code, address)
        header = SendResponse.from_fields(answer.fields)
        stored = MessageQueue(prepared.topic, mq.broker_name, header.queue_id)
        return SendResult(status, prepared.message_id, header.msg_id, stored, header.queue_offset, attempt)

    async def _queues(self, topic: str) -> Sequence[MessageQueue]:
        options = self._options
        route = await self.cluster.publish_route(
            topic, default_topic=options.default_topic, queue_nums=options.default_topic_queue_nums
        )
        queues = queues_to_write(topic, route)
        if not queues:
            raise UnreachableError(topic, "this topic has no queue that may be written on a broker with a master")
        return queues

    def _choose(
        self, prepared: Prepared, queues: Sequence[MessageQueue], selector: QueueSelector | None, avoid: str | None
    ) -> MessageQueue:
        if selector is not None:
            return selector(queues)
        return self._turns.select(prepared.topic, queues, avoid)

    async def _master_of(self, mq: MessageQueue) -> str:
        return self.cluster.broker_address(mq.broker_name) or await self.cluster.address_of(mq)

    def _next_id(self) -> str:
        return self._ids.next(self._now_ms())

    # In the background.

    def _connected_masters(self) -> list[str]:
        connected = set(self.cluster.remoting.addresses)
        return [address for address in self.cluster.all_broker_addresses(masters_only=True) if address in connected]

    async def _keep_alive(self) -> None:
        wait_ms = min(FIRST_HEARTBEAT_MS, self._heartbeat_interval_ms)
        data = HeartbeatData(self.cluster.client_id, producer_data_set=(ProducerData(self.group),))
        while True:
            await asyncio.sleep(wait_ms / 1000)
            wait_ms = self._heartbeat_interval_ms
            if self._owns_cluster:
                await self.cluster.refresh()
            for address in self._connected_masters():
                try:
                    await self._operations.heartbeat(address, data)
                except RocketcrewError as error:
                    _log.warning("heartbeat_failed", address=address, error=str(error))

    async def _unregister(self, address: str) -> None:
        try:
            await self._operations.unregister(
                address, self.cluster.client_id, producer_group=self.group, timeout_ms=1_000
            )
        except RocketcrewError as error:
            _log.info("unregister_failed", address=address, error=str(error))


def _with_tries(error: BrokerError | UnreachableError, tried: Sequence[str], took_s: float) -> RocketcrewError:
    """The last error, saying what was tried."""
    note = f"sent {len(tried)} times in {took_s * 1000:.0f} ms, to {', '.join(tried)}"
    if isinstance(error, BrokerError):
        return BrokerError(error.code, error.remark, f"{error.request} ({note})")
    return type(error)(error.address, f"{error.reason} ({note})")
