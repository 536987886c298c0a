"""Transaction messages: half messages, their end, and the broker's question after one that was not ended.

1. A *half message* is sent like any other, but stored where no consumer sees it.
2. The local transaction runs; its state is told to the broker one-way (END_TRANSACTION): commit shows the message, rollback
   drops it, unknown says nothing.
3. A half message that was not ended (the producer died, the notice was lost, the state was unknown) makes the broker ask a
   producer of the group, by default after 6 s and then every 30 s, at most 15 times (CHECK_TRANSACTION_STATE). Any member
   of the group may be asked, not only the sender: what happened must be read from the database, not from memory.

The broker knows the group's members from heartbeats, so that a producer that checks keeps sending them to every broker that
may ask (presence.py).

Sources: client/impl/producer/DefaultMQProducerImpl.java (sendMessageInTransaction, checkTransactionState, endTransaction),
client/impl/ClientRemotingProcessor.java (checkTransactionState).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from ..remoting.arguments import FUNCTION, check, instance
from ..remoting.codes import (
    SYSFLAG_TRANSACTION_COMMIT,
    SYSFLAG_TRANSACTION_NOT,
    SYSFLAG_TRANSACTION_ROLLBACK,
    RequestCode,
)
from ..remoting.command import Command
from ..remoting.errors import RocketcrewError, UsageError
from ..remoting.headers import CheckTransaction, EndTransaction
from ..remoting.ids import parse_offset_message_id
from ..remoting.properties import (
    PROPERTY_KEYS,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_UNIQ_KEY,
)
from ..remoting.stored import StoredMessage, decode_message
from .background import background
from .cluster import Cluster
from .logs import get_logger
from .outgoing import OutgoingMessage
from .remoting_client import Remoting
from .send_result import SendResult, SendStatus

END_TIMEOUT_MS = 3_000
CHECKS_MAX = 2_000

_log = get_logger("rocketcrew.client")


class LocalTransactionState(Enum):
    """How the local transaction ended (client/producer/LocalTransactionState.java). UNKNOW: ask again later."""

    COMMIT_MESSAGE = SYSFLAG_TRANSACTION_COMMIT
    ROLLBACK_MESSAGE = SYSFLAG_TRANSACTION_ROLLBACK
    UNKNOW = SYSFLAG_TRANSACTION_NOT
    UNKNOWN = SYSFLAG_TRANSACTION_NOT  # noqa: PIE796  the same: the other name is Java's, without its last letter


@dataclass(frozen=True, slots=True)
class CheckedMessage:
    """A half message whose fate the broker asks for. `tags` and `keys` are as in its OutgoingMessage, "" = none.
    `check_times`: how often the broker has asked, 0 where it does not say."""

    topic: str
    body: bytes
    tags: str
    keys: str
    properties: dict[str, str]
    transaction_id: str
    check_times: int = 0


@dataclass(frozen=True, slots=True)
class TransactionSendResult:
    """What came of a transaction message. `error` is what the local transaction raised; the state is then UNKNOW."""

    send: SendResult
    state: LocalTransactionState
    error: BaseException | None = field(default=None, compare=False)


Execute = Callable[[OutgoingMessage, SendResult], "LocalTransactionState | Awaitable[LocalTransactionState]"]
"""The local transaction. A plain function runs in a thread, a coroutine function in the loop."""

Check = Callable[[CheckedMessage], "LocalTransactionState | Awaitable[LocalTransactionState]"]
"""What became of the local transaction of this message; see `Execute` for where it runs."""


def check_transaction(message: object, execute: object) -> None:
    """Raise UsageError for what is no message, or no local transaction, before a half message is sent."""
    rules = {"message": instance(OutgoingMessage, "an OutgoingMessage"), "execute": FUNCTION}
    check("send_in_transaction", {"message": message, "execute": execute}, rules)


async def call(function: Callable[..., Any], *arguments: object) -> LocalTransactionState:
    """The user's answer, from wherever it runs. Raises UsageError when it is no state, and whatever it raises itself."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004 - an object may have an async __call__
        answer = await function(*arguments)
    else:
        answer = await asyncio.to_thread(function, *arguments)
    return as_state(answer)


def as_state(answer: object) -> LocalTransactionState:
    """What a user's function returned, as a state; nothing counts as UNKNOW, as in Java. Raises UsageError."""
    if answer is None:
        return LocalTransactionState.UNKNOW
    if not isinstance(answer, LocalTransactionState):
        raise UsageError(
            f"the transaction's function returned {answer!r:.80}: return a LocalTransactionState, such as COMMIT_MESSAGE"
        )
    return answer


def state_without_execution(status: SendStatus) -> LocalTransactionState | None:
    """Only a message that is stored safely gets its local transaction run; the others are rolled back."""
    return None if status is SendStatus.SEND_OK else LocalTransactionState.ROLLBACK_MESSAGE


def end_of_sent(group: str, result: SendResult, state: LocalTransactionState) -> EndTransaction:
    """The notice of the end, by the one who sent the half message."""
    return EndTransaction(
        producer_group=group,
        tran_state_table_offset=result.queue_offset,
        commit_log_offset=parse_offset_message_id(result.offset_message_id).physical_offset,
        commit_or_rollback=state.value,
        msg_id=result.message_id,
        transaction_id=result.transaction_id,
        topic=result.mq.topic,
        broker_name=result.mq.broker_name,
    )


def end_of_checked(
    group: str, asked: CheckTransaction, message: StoredMessage, state: LocalTransactionState
) -> EndTransaction:
    """The answer to the broker's question."""
    return EndTransaction(
        producer_group=group,
        tran_state_table_offset=asked.tran_state_table_offset,
        commit_log_offset=asked.commit_log_offset,
        commit_or_rollback=state.value,
        msg_id=message.properties.get(PROPERTY_UNIQ_KEY) or asked.msg_id or "",
        from_transaction_check=True,
        transaction_id=asked.transaction_id,
        topic=asked.topic,
        broker_name=asked.broker_name,
    )


def checked_message(message: StoredMessage, topic: str) -> CheckedMessage:
    """As the user gets it. Raises ProtocolError when it cannot be read."""
    properties = dict(message.properties)
    times = properties.get(PROPERTY_TRANSACTION_CHECK_TIMES, "")
    return CheckedMessage(
        topic,
        message.decompressed_body(),
        properties.get(PROPERTY_TAGS, ""),
        properties.get(PROPERTY_KEYS, ""),
        properties,
        properties.get(PROPERTY_UNIQ_KEY, ""),
        int(times) if times.isascii() and times.isdigit() else 0,
    )


async def send_end(remoting: Remoting, address: str, end: EndTransaction, error: BaseException | None = None) -> None:
    """Tell the broker, one-way; what failed goes along as the remark, for its log. Raises UnreachableError."""
    remark = f"local transaction raised {type(error).__name__}: {error}"[:500] if error is not None else None
    command = Command(int(RequestCode.END_TRANSACTION), end.to_fields(), remark=remark)
    await remoting.oneway(address, command, timeout_ms=END_TIMEOUT_MS)


Ended = Callable[[str, EndTransaction, str, str], None]


class CheckBack:
    """Answers the broker's questions with the user's `check`; at most `CHECKS_MAX` wait, one runs at a time, as in Java.

    A question that is not answered (too many wait, the check raises, the broker is away) is asked again by the broker.
    """

    def __init__(self, cluster: Cluster, group: str, check: Check, ended: Ended | None = None) -> None:
        """`ended` is called with every answer: the broker's address, the answer, the message's tags and keys. The answer has
        the message's topic; the broker gets back what it said, which from 5.5 on is the topic of half messages."""
        self._ended = ended
        self._remoting = cluster.remoting
        self._access = cluster.access
        self._group = group
        self._check = check
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._asked: set[asyncio.Task[None]] = set()

    async def asked(self, address: str, command: Command) -> Command | None:
        """Serve CHECK_TRANSACTION_STATE; the answer is a request of its own, later."""
        if self._waiting >= CHECKS_MAX:
            _log.warning("transaction_check_dropped", address=address, waiting=self._waiting)
            return None
        header = CheckTransaction.from_fields(command.fields)
        message = decode_message(bytes(command.body), check_crc=False)
        group = message.properties.get(PROPERTY_PRODUCER_GROUP)
        if group != self._group:
            _log.warning("transaction_check_for_another_group", address=address, group=group)
            return None
        self._waiting += 1
        task = background(self._answer(address, header, message))
        self._asked.add(task)
        task.add_done_callback(self._answered)
        return None

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._waiting -= 1
        self._asked.discard(task)

    async def _answer(self, address: str, header: CheckTransaction, message: StoredMessage) -> None:
        state, error = LocalTransactionState.UNKNOW, None
        try:
            async with self._turn:
                state = await call(self._check, checked_message(message, self._access.unwrap(message.topic)))
        except Exception as raised:  # noqa: BLE001 - the user's code; the broker asks again
            error = raised
            _log.exception("transaction_check_failed", topic=message.topic, msg_id=message.message_id)
        end = end_of_checked(self._group, header, message, state)
        if self._ended is not None:
            properties, told = message.properties, replace(end, topic=message.topic)
            self._ended(address, told, properties.get(PROPERTY_TAGS, ""), properties.get(PROPERTY_KEYS, ""))
        try:
            await send_end(self._remoting, address, end, error)
        except RocketcrewError as lost:
            _log.warning("transaction_end_not_sent", address=address, error=str(lost))

    async def close(self) -> None:
        """Drop the questions that wait; the broker asks another member of the group."""
        for task in self._asked:
            task.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)
