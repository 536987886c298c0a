"""Sending messages: what a user of a producer calls.

How one send tries again is in sending.py, what a message becomes in outgoing.py, transactions in transactions.py.

Source: client/producer/{DefaultMQProducer,TransactionMQProducer}.java.

In the background: a heartbeat to the masters in use every 30 s, and to all masters of its topics where the group has
transactions to be asked about (presence.py); the routes renewed if the cluster is the producer's own.
"""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final, Self, Unpack, cast

from ..remoting.arguments import FLAG, FUNCTION, INT32, NONE, TEXT, Rule, instance, number, plain, refuse, whole
from ..remoting.arguments import check as check_arguments
from ..remoting.codes import RequestCode
from ..remoting.compression import LEVEL_DEFAULT, Compression
from ..remoting.errors import RocketcrewError, UsageError
from ..remoting.ids import UniqueIds
from ..remoting.names import DEFAULT_TOPIC
from ..remoting.queues import MessageQueue
from .access import Access, NameServerList
from .background import take_each
from .clock import wall_ms
from .cluster import DEFAULT_TOPIC_QUEUE_NUMS, Cluster
from .identity import ip_for_ids
from .logs import get_logger
from .opening import new_cluster
from .outgoing import (
    BODY_MAX_BYTES,
    COMPRESS_FROM_BYTES,
    Body,
    MessageFields,
    OutgoingMessage,
    SendOptions,
    as_message,
    prepare,
    prepare_batch,
    prepare_half,
)
from .own_process import OwnProcess
from .presence import HEARTBEAT_INTERVAL_MS, Presence
from .recall import recall
from .selection import QueueSelector
from .send_hooks import SendHook
from .send_result import SendResult, SendStatus
from .sending import RETRIES, SEND_TIMEOUT_MS, Sender, SendRules
from .spans import SendSpans, span_api
from .trace import ProducerTrace
from .transactions import (
    Check,
    CheckBack,
    Execute,
    LocalTransactionState,
    TransactionSendResult,
    call,
    check_transaction,
    end_of_sent,
    send_end,
    state_without_execution,
)
from .under_way import UnderWay
from .validation import check_group

__all__ = ["Producer", "SendResult", "SendStatus"]

PROBE_INTERVAL_MS = 3_000
IN_FLIGHT_MAX = 256
DEFAULT_GROUP = "rocketcrew_producer"
JAVA_DEFAULT_GROUP = "DEFAULT_PRODUCER"


def _are_hooks(value: object) -> bool:
    if not isinstance(value, list | tuple):
        return False
    calls = (
        getattr(hook, name, None) for hook in cast("Sequence[object]", value) for name in ("before_send", "after_send")
    )
    return all(map(callable, calls))


_RULES: Final = {
    "send_timeout_ms": number(),
    "retries": INT32,
    "rules": instance(SendRules, "SendRules(...)") | NONE,
    "check": FUNCTION | NONE,
    "hooks": Rule("a list of hooks, objects with before_send and after_send", _are_hooks),
    "trace": FLAG | TEXT,
    "spans": FLAG,
    "compress_from_bytes": INT32,
    "compression": instance(Compression, "a rocketcrew.remoting.compression.Compression"),
}
_SEND_RULES: Final = {"timeout_ms": number() | NONE, "selector": FUNCTION | NONE}

_log = get_logger("rocketcrew.client")


class Producer:
    """Sends messages of one producer group. Belongs to one event loop, and to the process that has begun to use it.

    In another loop than that of its first call (`asyncio.run` makes a new one each time) calls are a UsageError. In the child
    of a fork, which shares its sockets, sends are one, and `close` does nothing.

    Use it as `async with Producer("127.0.0.1:9876") as producer:` or with `start` and `close`. One that was used and is not
    closed gives a ResourceWarning when it is collected.
    """

    _closed = True
    """Until it is made."""

    def __init__(
        self,
        target: Cluster | NameServerList | Access,
        group: str = DEFAULT_GROUP,
        *,
        send_timeout_ms: int = SEND_TIMEOUT_MS,
        retries: int = RETRIES,
        rules: SendRules | None = None,
        check: Check | None = None,
        hooks: Sequence[SendHook] = (),
        trace: bool | str = False,
        spans: bool = True,
        body_max_bytes: int = BODY_MAX_BYTES,
        compress_from_bytes: int = COMPRESS_FROM_BYTES,
        compression: Compression = Compression.ZLIB,
        compress_level: int = LEVEL_DEFAULT,
        default_topic: str = DEFAULT_TOPIC,
        default_topic_queue_nums: int = DEFAULT_TOPIC_QUEUE_NUMS,
        heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """`target`: name servers, or how a cluster is reached, with own connections; or a cluster that is open and stays so.

        `rules` say more than `retries` and replace it; `check` answers brokers that ask after transactions.

        `trace`: message traces to RMQ_SYS_TRACE_TOPIC, or to the topic given. `spans`: OpenTelemetry spans, where its API is
        installed and set up.

        Raises UsageError for a bad group name, and for bad addresses.
        """
        given = {
            "send_timeout_ms": send_timeout_ms, "retries": retries, "rules": rules, "check": check, "hooks": hooks,
            "trace": trace, "spans": spans, "compress_from_bytes": compress_from_bytes, "compression": compression,
        }  # fmt: skip
        taken = check_arguments(type(self).__name__, given, _RULES)
        group = _own_group(group)
        cluster = target if isinstance(target, Cluster) else new_cluster(target)
        group = cluster.access.wrap(group)
        self.cluster = cluster
        self.group = group
        self._owns_cluster = cluster is not target
        self.send_timeout_ms: int = taken["send_timeout_ms"]
        self._rules = rules or SendRules(retries=taken["retries"])
        self._now_ms = now_ms
        self._options = SendOptions(
            group,
            default_topic,
            default_topic_queue_nums,
            body_max_bytes,
            taken["compress_from_bytes"],
            compression,
            compress_level,
            cluster.access.namespace,
            cluster.access.unit_mode,
        )
        self.process = OwnProcess("producer")
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the first call
        self._ids: UniqueIds | None = None  # made with the first one: before it the producer may cross a fork
        self._under_way = UnderWay(IN_FLIGHT_MAX)
        self._stop_serving: Callable[[], object] = lambda: None
        trace = taken["trace"]
        self._trace = ProducerTrace(cluster, group, trace, self._next_id, now_ms) if trace else None
        if self._trace is not None:
            hooks = (*hooks, self._trace)
        self._spans = SendSpans(group, span_api(taken["spans"]))
        self._sender = Sender(cluster, self._options, self._rules, hooks, now_ms)
        self._presence = Presence(cluster, group, heartbeat_interval_ms, refresh=self._owns_cluster)
        ended = self._trace.ended if self._trace is not None else None
        self._check_back = CheckBack(cluster, group, check, ended) if check is not None else None
        self._closed = False

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:  # bound now: modules end before it may
        if self._closed or not (self._presence.started or (self._owns_cluster and self.cluster.remoting.addresses)):
            return
        if not self.process.is_elsewhere:  # else the parent's to close
            self.warn_unclosed(_warn)

    def warn_unclosed(self, warn: Callable[..., None] = warnings.warn) -> None:
        warn(
            f"a producer of group {self.group!r} was not closed: call its close(), or use it in a with block"
            " (`async with Producer(...)`, `with SyncProducer(...)`)",
            ResourceWarning,
            source=self,
        )

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def start(self) -> None:
        """Begin the background work. Without a `check` nothing is connected before the first send."""
        if self._closed:
            raise UsageError("this producer is closed: make a new one")
        self._enter()
        if self._presence.started:
            return
        if self._check_back is not None:
            self._stop_serving = self.cluster.remoting.serve(
                RequestCode.CHECK_TRANSACTION_STATE, self._check_back.asked
            )
        if self._trace is not None:
            self._trace.start()
        self._presence.start(self._options.default_topic if self._check_back is not None else None)
        if self._rules.latency_faults and self._rules.probe_unreachable:
            self._presence.repeat(self._sender.probe, PROBE_INTERVAL_MS)

    async def close(self) -> None:
        """Wait for the sends under way, until none has ended well for the producer's `send_timeout_ms`, and begin none (a
        `send_many` ends with an error then); leave the group on the brokers in use, and close the connections if they are
        the producer's own. Idempotent; in a fork of the process that uses it, nothing. Raises UsageError in another loop."""
        if self._closed:
            return
        if self.process.is_elsewhere:
            self._closed = True
            return
        self._enter()
        self._closed = True
        await take_each(lambda: self.wait_for_sends(closing=True), self._leave)

    async def wait_for_sends(self, *, closing: bool) -> None:
        """Wait for the sends under way, until none has ended well for `send_timeout_ms`; a warning says how many are left,
        and how many have failed meanwhile. When closing, none begins any more; else those that begin meanwhile are waited
        for so long after the others."""
        began_s = time.monotonic()
        left = await self._under_way.ended(self.send_timeout_ms / 1000, closing=closing)
        if any(left):
            self.warn_of_sends(**left._asdict(), waited_ms=round((time.monotonic() - began_s) * 1000))

    def warn_of_sends(self, **said: object) -> None:
        _log.warning("closed_with_sends_under_way", group=self.group, **said)

    def abandon(self) -> None:
        """Cut the connections, and be closed: for what was interrupted in the middle of anything."""
        self._closed = True
        self._presence.abandon()
        for address in self.cluster.remoting.addresses:
            connection = self.cluster.remoting.connection_of(address)
            if connection is not None:
                connection.abort("a call was interrupted")

    async def _leave(self) -> None:
        steps: list[Callable[[], Awaitable[None]]] = []
        if self._presence.started:
            self._stop_serving()
            steps += [part.close for part in (self._check_back, self._trace) if part is not None]
            steps.append(self._presence.leave)
        if self._owns_cluster:
            steps += [self.cluster.close, self.cluster.remoting.close]
        await take_each(*steps)

    # Sending.

    async def send(
        self,
        message: OutgoingMessage | str,
        body: Body | None = None,
        *,
        timeout_ms: int | None = None,
        selector: QueueSelector | None = None,
        **fields: Unpack[MessageFields],
    ) -> SendResult:
        """Send one message and wait until the broker has it, `timeout_ms` (3000) over all attempts.

        Either `send(OutgoingMessage(...))`, or the topic, the body and fields of OutgoingMessage by name:
        `send("orders", b"...", tags="paid", keys="o-1")`.
        With a `selector` (`selection.by_key`, `to_queue` or one's own) there is one attempt, as its queue is meant.
        Raises UsageError when the message cannot be sent as it is, BrokerError when it was refused,
        UnreachableError (TimedOutError) when no broker, or no name server, could be asked.
        """
        with self._under_way.one():
            return await self._send(as_message(message, body, fields), timeout_ms, selector)

    async def send_in_turn(
        self,
        message: OutgoingMessage | str,
        body: Body | None = None,
        *,
        timeout_ms: int | None = None,
        selector: QueueSelector | None = None,
        **fields: Unpack[MessageFields],
    ) -> SendResult:
        """As `send`, for callers who begin many and wait for none: IN_FLIGHT_MAX run at once, and the time of each begins
        with its turn. Those that are begun by other methods wait for no turn."""
        self._enter()  # before it waits, maybe in the wrong loop
        given = as_message(message, body, fields)
        with self._under_way.one():
            await self._under_way.take_lane()
            try:
                return await self._send(given, timeout_ms, selector)
            finally:
                self._under_way.leave_lane()

    async def _send(
        self, message: OutgoingMessage, timeout_ms: int | None, selector: QueueSelector | None
    ) -> SendResult:
        with self._spans.sending(message) as sending:
            prepared = prepare(sending.messages[0], self._options, unique_id=self._next_id(), now_ms=self._now_ms())
            return sending.sent(await self._sender.send(prepared, self._timeout(timeout_ms), _selector(selector)))

    async def send_batch(
        self,
        messages: Sequence[OutgoingMessage],
        *,
        timeout_ms: int | None = None,
        selector: QueueSelector | None = None,
    ) -> SendResult:
        """Send messages of one topic in one request, into one queue, all or none. Raises as `send`."""
        _refuse_no_list("send_batch", messages)
        given = [as_message(each, None, {}) for each in messages]
        with self._under_way.one(), self._spans.sending(*given) as sending:
            prepared = prepare_batch(sending.messages, self._options, next_id=self._next_id, now_ms=self._now_ms())
            return sending.sent(await self._sender.send(prepared, self._timeout(timeout_ms), _selector(selector)))

    async def send_oneway(
        self,
        message: OutgoingMessage | str,
        body: Body | None = None,
        *,
        timeout_ms: int | None = None,
        selector: QueueSelector | None = None,
        **fields: Unpack[MessageFields],
    ) -> str:
        """Send without waiting for an answer; the message id. Whether it is stored is not known.

        Raises UsageError, UnreachableError (not connected) and, for a topic that does not exist, BrokerError.
        """
        with self._under_way.one(), self._spans.sending(as_message(message, body, fields)) as sending:
            prepared = prepare(sending.messages[0], self._options, unique_id=self._next_id(), now_ms=self._now_ms())
            await self._sender.send_oneway(prepared, self._timeout(timeout_ms), _selector(selector))
        return prepared.message_id

    async def send_many(
        self, messages: Iterable[OutgoingMessage], *, in_flight_max: int = IN_FLIGHT_MAX, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send all messages, at most `in_flight_max` at a time; their results in the messages' order.

        `messages` may be a generator: it is read as the sends go. After a failure nothing more is read; it is raised once
        those in flight have ended. Which of them arrived the caller does not learn, so give more `retries` rather than
        sending all again.
        """
        _refuse_no_list("send_many", messages)
        check_arguments("send_many", {"in_flight_max": in_flight_max}, {"in_flight_max": whole(1)})
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
            except BaseException as error:  # noqa: BLE001 - raised below, after the other lanes have ended
                failures.append(error)

        await asyncio.gather(*(guarded() for _ in range(in_flight_max)))
        if failures:
            raise failures[0]
        return [results[index] for index in sorted(results)]

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues a selector would choose from."""
        self._enter()
        found = await self._sender.queues(self.cluster.access.wrap(topic), self.send_timeout_ms / 1000)
        return [mq._replace(topic=topic) for mq in found]

    # Transactions.

    async def send_in_transaction(
        self, message: OutgoingMessage, execute: Execute, *, timeout_ms: int | None = None
    ) -> TransactionSendResult:
        """Send a half message, run the local transaction `execute(message, result)`, tell the broker how it ended.

        What `execute` raises is logged and means UNKNOW: the broker asks `check` later. The end is told one-way; when that
        notice is lost, the broker asks too. Raises UsageError when this producer has no `check`, otherwise as `send`.
        """
        check_transaction(message, execute)
        with self._under_way.one():
            result = await self._send_half(message, timeout_ms)
            state, error = state_without_execution(result.status), None
            if state is None:
                try:
                    state = await call(execute, message, result)
                except Exception as raised:  # noqa: BLE001 - the user's code; the broker asks for the state later
                    state, error = LocalTransactionState.UNKNOW, raised
                    _log.exception("local_transaction_failed", topic=message.topic, msg_id=result.message_id)
            await self.end_transaction(result, state, error, message)
        return TransactionSendResult(result, state, error)

    async def begin_transaction(
        self, message: OutgoingMessage, token: object, *, timeout_ms: int | None = None
    ) -> SendResult:
        """As `send_half`, and `close` waits for the transaction as for a send, until `transaction_over`, which has to be
        called with the same token, whatever this one raises."""
        self.refuse_without_check()
        self._under_way.begin(token)
        return await self._send_half(message, timeout_ms)

    def transaction_over(self, token: object) -> None:
        """One that `begin_transaction` has begun, or was to begin: who is interrupted does not know."""
        self._under_way.over(token)

    async def send_half(self, message: OutgoingMessage, *, timeout_ms: int | None = None) -> SendResult:
        """The first half of `send_in_transaction`, for those who end the transaction themselves."""
        with self._under_way.one():
            return await self._send_half(message, timeout_ms)

    async def _send_half(self, message: OutgoingMessage, timeout_ms: int | None) -> SendResult:
        self.refuse_without_check()
        with self._spans.sending(message, kind="transaction") as sending:
            half = prepare_half(sending.messages[0], self._options, unique_id=self._next_id(), now_ms=self._now_ms())
            self._presence.hold(self.cluster.access.wrap(message.topic))
            return sending.sent(await self._sender.send(half, self._timeout(timeout_ms), None))

    def refuse_without_check(self) -> None:
        if self._check_back is None:
            raise UsageError(
                "transaction messages need a check: Producer(..., check=function) says what became of a transaction"
            )

    async def end_transaction(
        self,
        result: SendResult,
        state: LocalTransactionState,
        error: BaseException | None = None,
        message: OutgoingMessage | None = None,
    ) -> None:
        """Tell the broker how the transaction of a half message ended, also while the producer is closing. A notice that
        cannot be sent is logged only: the broker asks.

        `message` is for the message trace: its tags and keys.
        """
        self._enter()
        result = replace(result, mq=result.mq._replace(topic=self.cluster.access.wrap(result.mq.topic)))
        try:
            end = end_of_sent(self.group, result, state)
            address = await self._sender.master_of(result.mq)
            if self._trace is not None:
                self._trace.ended(address, end, message.tags if message else "", message.keys if message else "")
            await send_end(self.cluster.remoting, address, end, error)
        except RocketcrewError as lost:
            _log.warning("transaction_end_not_sent", topic=result.mq.topic, state=state.name, error=str(lost))

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Take back a message that is to be delivered later (`SendResult.recall_handle`; brokers since 5.3).

        Returns its message id. Raises UsageError for what is no handle, BrokerError when it is too late or not allowed.
        """
        self._enter()
        message_id = await recall(
            self.cluster, self.group, self.cluster.access.wrap(topic), recall_handle, timeout_ms=self.send_timeout_ms
        )
        if self._trace is not None:
            self._trace.recalled(topic, message_id)
        return message_id

    def _timeout(self, timeout_ms: int | None) -> int:
        if timeout_ms is None:
            return self.send_timeout_ms
        check_arguments("send", {"timeout_ms": timeout_ms}, _SEND_RULES)
        return timeout_ms

    def _enter(self) -> None:
        """Raises UsageError in another process, or loop, than that of the first call."""
        self.process.enter()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise UsageError(
                "this producer belongs to the event loop that made its first call, and this is another one (asyncio.run makes"
                " a new one each time): make a producer in each loop, or use SyncProducer"
            )

    def _next_id(self) -> str:
        self._enter()
        ids = self._ids
        if ids is None:
            ip = self.cluster.client_id.partition("@")[0]
            ids = self._ids = UniqueIds(ip_for_ids(ip), os.getpid(), self.cluster.random.getrandbits(32))
        return ids.next(self._now_ms())


def _own_group(group: str) -> str:
    """Raises UsageError for a name that is none, or that Java keeps for itself."""
    check_group(group)
    group = plain(group)
    if group == JAVA_DEFAULT_GROUP:
        raise UsageError(f"producer group {group} is reserved: choose another name")
    return group


def _selector(selector: QueueSelector | None) -> QueueSelector | None:
    if selector is not None:
        check_arguments("send", {"selector": selector}, _SEND_RULES)
    return selector


def _refuse_no_list(call: str, messages: object) -> None:
    """Raise UsageError for one message where several are meant, and for what is none."""
    if isinstance(messages, OutgoingMessage | str | bytes) or not isinstance(messages, Iterable):
        refuse(call, "messages", messages, f"a list of OutgoingMessage, as in {call}([OutgoingMessage(...)])")
