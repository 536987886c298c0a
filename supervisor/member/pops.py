"""POP at the edge: pops into the slab, acknowledgements, invisible times. Everything is decided in popping.py.

What fails here is no loss: a message that is neither acknowledged nor renewed is shown again by its broker when its
invisible time is over. What was refused is told from what had no answer, and is tried again.

Sources: CL/impl/consumer/{DefaultMQPushConsumerImpl,ConsumeMessagePopConcurrentlyService}.java (popMessage, ackAsync,
changePopInvisibleTime), CL/impl/MQClientAPIImpl.java.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from ...client.asking import ask, is_missing_topic
from ...client.clock import wall_ms
from ...client.cluster import Cluster
from ...conf.settings import ConsumerSettings
from ...remoting.bodies import SubscriptionData
from ...remoting.check_points import CheckPoint
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.errors import RocketcrewError, UnreachableError
from ...remoting.log_keys import place_keys, queue_keys
from ...remoting.names import popped_topic
from ...remoting.pop_headers import (
    INIT_MAX,
    INIT_MIN,
    AckRequest,
    ChangeInvisibleRequest,
    ChangeInvisibleResponse,
    PopRequest,
    PopResponse,
)
from ...remoting.queues import MessageQueue
from ...remoting.stored import StoredMessage, reconsume_times_of
from ...workers.failures import pop_delay_ms
from ..core import events as ev
from ..core.actions import Ack, Pop, Renew, SendBack
from ..core.decisions import Core
from ..core.popping import PopResult
from ..core.slab import Slot
from .pulls import BodySink
from .send_back import SendBacks

POLL_MS = 15_000
POP_TIMEOUT_MS = POLL_MS + 10_000
"""BROKER_SUSPEND_MAX_TIME_MILLIS, and ten seconds for the way (DefaultMQPushConsumerImpl.popMessage)."""
ACK_TIMEOUT_MS = 3_000
RENEWAL_PART = 4
"""A renewal, asked for in the middle of the invisible time, waits for this part of it at most, so that another can follow."""
ACKS_AT_ONCE = 64
FROM_THE_FIRST = "CONSUME_FROM_FIRST_OFFSET"

log = structlog.get_logger("rocketcrew.member")


class Pops:
    """Performs what the core wants of POP; `now` is the loop's clock."""

    def __init__(
        self, cluster: Cluster, core: Core, view: memoryview, settings: ConsumerSettings,
        subscriptions: Mapping[str, SubscriptionData], send_backs: SendBacks, now: Callable[[], float],
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._core = core
        self._view = view
        self._settings = settings
        self._subscriptions = subscriptions
        self._send_backs = send_backs
        self._now = now
        self._ack_turns = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(ACKS_AT_ONCE))
        """By broker: one that does not answer holds up no others."""

    async def pop(self, action: Pop) -> None:
        """One pop, answered by `Popped` or `NoAnswer`."""
        sink = BodySink(self._core, self._view, action.handle)
        try:
            address = await self._cluster.address_of(action.mq)
            answer = await self._cluster.remoting.request(
                address, self._command(action.mq), timeout_ms=POP_TIMEOUT_MS, body_sink=sink
            )
            result = _result(answer, sink.slot)
        except RocketcrewError as error:
            log.warning("pop_failed", **queue_keys(action.mq), error=str(error))
            if isinstance(error, UnreachableError):
                self._cluster.look_again(action.mq.topic)
            self._core.handle(ev.NoAnswer(action.handle, sink.slot), self._now())
        except BaseException:
            sink.give_back()
            raise
        else:
            self._core.handle(ev.Popped(action.handle, result), self._now())

    def _command(self, mq: MessageQueue) -> Command:
        consumer = self._settings
        subscription = self._subscriptions.get(mq.topic)
        if subscription is None:
            raise RocketcrewError(f"{mq.topic} was unsubscribed meanwhile")
        header = PopRequest(
            consumer_group=consumer.group,
            topic=mq.topic,
            queue_id=mq.queue_id,
            max_msg_nums=consumer.pop_batch_nums,
            invisible_time=consumer.pop_invisible_time_ms,
            poll_time=POLL_MS,
            born_time=wall_ms(),
            init_mode=INIT_MIN if consumer.consume_from_where == FROM_THE_FIRST else INIT_MAX,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=False,
            broker_name=mq.broker_name,
        )
        return Command(RequestCode.POP_MESSAGE, header.to_fields())

    async def ack(self, action: Ack) -> None:
        """Each message by a request of its own, as Java's consumer does; several at a time."""
        answers = await asyncio.gather(*(self._ack(check, action.mq) for check in action.checks))
        failed = [(check, error) for check, error in zip(action.checks, answers, strict=True) if error is not None]
        if failed:
            check, error = failed[0]
            log.warning(
                "ack_failed", **place_keys(action.mq, check.offset), messages=len(failed), tries=action.tries + 1,
                error=str(error),
            )  # fmt: skip
        unanswered = [check for check, error in failed if isinstance(error, UnreachableError)]
        if unanswered:
            self._look_again(action.mq, unanswered[0])
        # Of a topic that was deleted no message is shown again.
        refused = len(failed) - len(unanswered) - sum(is_missing_topic(error) for _, error in failed)
        self._core.handle(ev.Acked(action.handle, len(answers), refused, unanswered, action.tries), self._now())

    async def _ack(self, check: CheckPoint, mq: MessageQueue) -> RocketcrewError | None:
        header = AckRequest(
            self._settings.group, mq.topic, check.queue_id, check.encode(), check.offset, check.broker_name
        )
        try:
            async with self._ack_turns[mq.broker_name]:
                address = await self._address(mq)
                await ask(self._cluster.remoting, address, RequestCode.ACK_MESSAGE, header, timeout_ms=ACK_TIMEOUT_MS)
        except RocketcrewError as error:
            return error
        return None

    async def renew(self, action: Renew) -> None:
        """The whole invisible time again, from now."""
        check, unanswered = None, False
        try:
            invisible_ms = self._settings.pop_invisible_time_ms
            timeout_ms = min(ACK_TIMEOUT_MS, invisible_ms / RENEWAL_PART)
            check = await self._change(action.check, action.mq, invisible_ms, timeout_ms)
        except RocketcrewError as error:
            self._not_changed(action.mq, action.check, error)
            unanswered = isinstance(error, UnreachableError)
        self._core.handle(ev.Renewed(action.handle, action.offset, check, unanswered), self._now())

    async def later(self, action: SendBack, record: bytes, message: StoredMessage | None) -> bool:
        """A failed message: shown again after its delay, or a dead letter. False: no broker took what must be a dead letter
        now (after crashes, at its limit, or because the handler says so); it stays with us, is renewed and tried again.
        `message` None = `record` cannot be decoded: its broker makes the dead letter, of its own copy.

        Java acknowledges a message at its limit after a while, and nobody sees it again; here it is a dead letter.
        """
        check = action.check
        if check is None:
            return True
        if action.last:
            return await self._to_dead_letters(action, record, message)
        try:
            delay_ms = pop_delay_ms(action.delay_level, reconsume_times_of(record, 0))
            await self._change(check, action.mq, delay_ms, ACK_TIMEOUT_MS)
        except RocketcrewError as error:
            self._not_changed(action.mq, check, error)
        return True

    async def _to_dead_letters(self, action: SendBack, record: bytes, message: StoredMessage | None) -> bool:
        if message is None:
            return await self._send_backs.send(action, record, None)
        # Some brokers give out retries under their retry topic; replayed, it goes to those who handle the topic.
        message = replace(message, topic=popped_topic(action.mq.topic, self._settings.group))
        try:
            await self._send_backs.to_dead_letters(self._send_backs.dead_letter_facts(action) or {}, message)
        except RocketcrewError as error:
            log.warning("dead_letter_refused", **queue_keys(action.mq), error=str(error))
            return False
        return True

    def _not_changed(self, mq: MessageQueue, check: CheckPoint, error: RocketcrewError) -> None:
        log.warning("invisible_time_not_changed", **place_keys(mq, check.offset), error=str(error))
        if isinstance(error, UnreachableError):
            self._look_again(mq, check)

    def _look_again(self, mq: MessageQueue, check: CheckPoint) -> None:
        """By the route of its topic: that of a retry topic of POP nobody asks for."""
        group = self._settings.group
        topics = (topic for topic in self._subscriptions if check.queue(topic, group).topic == mq.topic)
        self._cluster.look_again(next(topics, mq.topic))

    async def _change(self, check: CheckPoint, mq: MessageQueue, invisible_ms: int, timeout_ms: float) -> CheckPoint:
        header = ChangeInvisibleRequest(
            self._settings.group,
            mq.topic,
            check.queue_id,
            check.encode(),
            check.offset,
            invisible_ms,
            check.broker_name,
        )
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        answer = await ask(self._cluster.remoting, await self._address(mq), code, header, timeout_ms=timeout_ms)
        found = ChangeInvisibleResponse.from_fields(answer.fields)
        return check.renewed(found.pop_time, found.invisible_time, found.revive_qid)

    async def _address(self, mq: MessageQueue) -> str:
        """The master's; the retry topics of POP have no route of their own that anybody asks for."""
        return self._cluster.broker_address(mq.broker_name) or await self._cluster.address_of(mq)


def _result(answer: Command, slot: Slot | None) -> PopResult:
    if answer.code != ResponseCode.SUCCESS:
        return PopResult(answer.code, slot=slot, remark=answer.remark or "")
    header = PopResponse.from_fields(answer.fields)
    if answer.dropped:
        return PopResult(answer.code, header, dropped=True)
    return PopResult(answer.code, header, len(answer.body), slot)
