"""Message traces on their way out: a bounded queue, batches, a producer of their own. Nobody waits for them.

`append` never blocks: a queue that is full drops the record and counts it. Every five seconds, and as soon as a batch is
full, up to `batch_max` (10, at most 20) records become one message for the trace topic; a few such messages are on their way
at once. What cannot be sent is logged and gone: traces are a convenience, they never hold up what they describe.

Sources: client/trace/AsyncTraceDispatcher.java and the hooks in client/trace/hook/.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from collections.abc import Callable, Sequence

from ..remoting.errors import RocketcrewError
from ..remoting.headers import EndTransaction
from ..remoting.ids import UniqueIds
from ..remoting.names import REGION_DEFAULT
from ..remoting.properties import PROPERTY_TRAN_MSG
from ..remoting.traces import (
    TRACE_GROUP_PREFIX,
    TRACE_TOPIC,
    MessageType,
    TraceRecord,
    end_transaction_record,
    pub_record,
    recall_record,
)
from .background import background
from .clock import wall_ms
from .cluster import Cluster
from .identity import ip_for_ids
from .logs import get_logger
from .outgoing import OutgoingMessage, SendOptions, prepare
from .send_hooks import SendContext
from .send_result import SendStatus
from .sending import Sender, SendRules
from .transactions import LocalTransactionState

BATCH_DEFAULT = 10
BATCH_MAX = 20
QUEUE_MAX = 2_048
FLUSH_INTERVAL_MS = 5_000
MESSAGE_MAX_BYTES = 128_000
SEND_TIMEOUT_MS = 5_000
SENDS_MAX = 4
CLOSE_TIMEOUT_MS = 5_000

STATE_NAMES = {state.value: state.name for state in LocalTransactionState}

_log = get_logger("rocketcrew.client")
_instances = itertools.count(1)


class TraceDispatcher:
    """Takes records and sends them; see the module's text. Belongs to one event loop."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        kind: str,
        *,
        next_id: Callable[[], str],
        topic: str = "",
        batch_max: int = BATCH_DEFAULT,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """`kind` is PRODUCE or CONSUME; an empty `topic` is RMQ_SYS_TRACE_TOPIC."""
        self.topic = topic or TRACE_TOPIC
        self.dropped = 0
        self._batch_max = min(batch_max, BATCH_MAX)
        self._next_id = next_id
        self._now_ms = now_ms
        name = f"{TRACE_GROUP_PREFIX}-{group}-{kind}-{next(_instances)}"[:255]
        self._options = SendOptions(name, "TBW102", 4, body_max_bytes=MESSAGE_MAX_BYTES * 2)
        self._sender = Sender(cluster, self._options, SendRules(), (), now_ms)
        self._waiting: deque[TraceRecord] = deque()
        self._batch_full = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send."""
        if self._task is None:
            self._task = background(self._run())

    def append(self, record: TraceRecord) -> bool:
        """Take a record; False when there is no room for it."""
        if len(self._waiting) >= QUEUE_MAX:
            self.dropped += 1
            if self.dropped == 1 or self.dropped % QUEUE_MAX == 0:
                _log.warning("traces_dropped", topic=self.topic, dropped=self.dropped)
            return False
        self._waiting.append(record)
        if len(self._waiting) >= self._batch_max:
            self._batch_full.set()
        return True

    async def close(self) -> None:
        """Send what waits, for at most five seconds."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_MS / 1000):
                while self._waiting:
                    await self._send_batch()
                await asyncio.gather(*self._sending, return_exceptions=True)
        except TimeoutError:
            _log.warning("traces_not_sent", topic=self.topic, records=len(self._waiting))
            for task in self._sending:
                task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(FLUSH_INTERVAL_MS / 1000):
                    await self._batch_full.wait()
            except TimeoutError:
                pass
            self._batch_full.clear()
            while len(self._waiting) >= self._batch_max:
                await self._send_batch()
            if self._waiting:
                await self._send_batch()

    async def _send_batch(self) -> None:
        """The next records in the background, when there is a free hand."""
        while len(self._sending) >= SENDS_MAX:
            await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
        for message in self._messages(self._take()):
            task = background(self._send(message))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    def _messages(self, records: Sequence[TraceRecord]) -> list[OutgoingMessage]:
        """None where they can't be made: that must end neither the records that come later nor the owner's end."""
        try:
            return trace_messages(records, self.topic)
        except RocketcrewError as error:
            _log.warning("traces_not_sent", topic=self.topic, records=len(records), error=str(error))
            return []

    def _take(self) -> list[TraceRecord]:
        return [self._waiting.popleft() for _ in range(min(self._batch_max, len(self._waiting)))]

    async def _send(self, message: OutgoingMessage) -> None:
        try:
            prepared = prepare(message, self._options, unique_id=self._next_id(), now_ms=self._now_ms())
            await self._sender.send(prepared, SEND_TIMEOUT_MS, None)
        except RocketcrewError as error:
            _log.warning("traces_not_sent", topic=self.topic, error=str(error))


def consumer_traces(cluster: Cluster, group: str, topic: str, batch_max: int) -> TraceDispatcher:
    """The dispatcher of a consumer, with ids of its own."""
    ip = ip_for_ids(cluster.client_id.partition("@")[0])
    ids = UniqueIds(ip, os.getpid(), cluster.random.getrandbits(32))
    return TraceDispatcher(
        cluster,
        group,
        "CONSUME",
        next_id=lambda: ids.next(wall_ms()),
        topic=topic,
        batch_max=batch_max,
    )


def trace_messages(records: Sequence[TraceRecord], topic: str) -> list[OutgoingMessage]:
    """Records as messages of at most 128,000 bytes; a single record is never cut."""
    found: list[OutgoingMessage] = []
    texts: list[str] = []
    keys: dict[str, None] = {}
    size = 0
    for record in records:
        grown = len(record.text.encode())
        if texts and size + grown > MESSAGE_MAX_BYTES:
            found.append(OutgoingMessage(topic, "".join(texts).encode(), keys=list(keys)))
            texts, keys, size = [], {}, 0
        texts.append(record.text)
        keys.update(dict.fromkeys(record.keys))
        size += grown
    if texts:
        found.append(OutgoingMessage(topic, "".join(texts).encode(), keys=list(keys)))
    return found


class ProducerTrace:
    """What a producer traces: a Pub record for each message of an attempt that was answered, ends of transactions, recalls.

    Java makes one Pub record for a batch, under all its ids at once, where no tool finds it.
    """

    def __init__(
        self, cluster: Cluster, group: str, trace: bool | str, next_id: Callable[[], str], now_ms: Callable[[], int]
    ) -> None:
        """`trace` True: the default topic; a text: that topic."""
        topic = trace if isinstance(trace, str) else ""
        self._group = group
        self._now_ms = now_ms
        self.dispatcher = TraceDispatcher(cluster, group, "PRODUCE", next_id=next_id, topic=topic, now_ms=now_ms)
        self.start = self.dispatcher.start
        self.close = self.dispatcher.close

    def before_send(self, context: SendContext) -> None:
        """Nothing: the record has both times."""

    def after_send(self, context: SendContext) -> None:
        result = context.result
        if result is None or not result.trace_on or context.mq.topic.startswith(self.dispatcher.topic):
            return
        one = len(context.messages) == 1  # whose id may be its sender's own, with a comma
        ids = [result.message_id] if one else result.message_id.split(",")
        offset_ids = result.offset_message_id.split(",")
        for index, (message, message_id) in enumerate(zip(context.messages, ids, strict=False)):
            self.dispatcher.append(
                pub_record(
                    timestamp_ms=context.began_ms,
                    region=result.region_id,
                    group=context.group,
                    topic=context.mq.topic,
                    message_id=message_id,
                    tags=message.tags,
                    keys=message.keys,
                    store_host=context.address,
                    body_bytes=context.body_bytes if one else len(message.body_bytes),
                    cost_ms=max(0, self._now_ms() - context.began_ms),
                    kind=kind_of(message),
                    offset_message_id=offset_ids[index] if index < len(offset_ids) else "",
                    success=result.status is SendStatus.SEND_OK,
                )
            )

    def ended(self, address: str, end: EndTransaction, tags: str, keys: str) -> None:
        """The broker at `address` gets how a transaction ended."""
        self.dispatcher.append(
            end_transaction_record(
                timestamp_ms=self._now_ms(),
                region=REGION_DEFAULT,
                group=self._group,
                topic=end.topic or "",
                message_id=end.msg_id,
                tags=tags,
                keys=keys,
                store_host=address,
                transaction_id=end.transaction_id or "",
                state=STATE_NAMES[end.commit_or_rollback],
                from_check=end.from_transaction_check,
            )
        )

    def recalled(self, topic: str, message_id: str) -> None:
        """A delayed message was recalled."""
        self.dispatcher.append(
            recall_record(
                timestamp_ms=self._now_ms(),
                region=REGION_DEFAULT,
                group=self._group,
                topic=topic,
                message_id=message_id,
                success=True,
            )
        )


def kind_of(message: OutgoingMessage) -> MessageType:
    if message.is_delayed:
        return MessageType.DELAY
    half = message.system_properties.get(PROPERTY_TRAN_MSG) == "true"
    return MessageType.TRANS_HALF if half else MessageType.NORMAL
