"""One send: at most `1 + retries` attempts within one deadline, and where each of them goes.

First the next queue in turn, after a failure one of another broker where there is one. Tried again is what Java tries
again: no connection, no answer, and the refusals of `SendRules.retry_codes`; a refusal of the message itself is not. What
could not be reached may be elsewhere now, and so may be what takes nothing: a master that was made a slave by hand stays
there, and says that it is busy. Where, is asked for later attempts and sends. An attempt waits for that only where it goes to
a broker again that was lost before, for one question that was asked since (where that took nothing, for none but the one
under way, and no longer than name servers take that are there: most are busy indeed), or to one whose address is not known;
and for half of the time that is left at most. An attempt that was lost may have been stored: a retried message can arrive
twice, with one message id (UNIQ_KEY).

Sources: client/impl/producer/DefaultMQProducerImpl.java (sendDefaultImpl, sendKernelImpl, sendSelectImpl).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import inf
from typing import Final, cast

from ..remoting.arguments import FLAG, INT32, Rule, check_fields, number, shown
from ..remoting.bodies import TopicRouteData
from ..remoting.codes import RequestCode
from ..remoting.command import Command
from ..remoting.errors import RETRIABLE_CODES, BrokerError, RocketcrewError, TimedOutError, UnreachableError, UsageError
from ..remoting.headers import MaxOffset
from ..remoting.queues import MessageQueue
from .asking import may_be_elsewhere, refusal
from .cluster import IN_VAIN_S, Cluster
from .faults import LatencyFaults
from .logs import get_logger
from .outgoing import Prepared, SendOptions
from .routes import queues_to_write
from .selection import TOPICS_MAX, QueueSelector, RoundRobin, Wanted
from .send_hooks import SendContext, SendHook, run_after, run_before
from .send_result import SendResult, SendStatus, result_of

SEND_TIMEOUT_MS = 3_000
RETRIES = 2
PROBE_TIMEOUT_MS = 200
_SEND_RULES: Final = {
    "retries": INT32,
    "retry_codes": Rule(
        "a set of response codes",
        lambda value: (
            isinstance(value, set | frozenset)
            and all(isinstance(code, int) for code in cast("AbstractSet[object]", value))
        ),
    ),
    "retry_unless_ok": FLAG,
    "attempt_timeout_ms": number(),
    "latency_faults": FLAG,
    "probe_unreachable": FLAG,
}

_log = get_logger("rocketcrew.client")


@dataclass(frozen=True, slots=True)
class SendRules:
    """When a message is sent again, and where; names in brackets are those of DefaultMQProducer.

    - `retries`: attempts after the first (retryTimesWhenSendFailed).
    - `retry_codes`: refusals after which another attempt is made (retryResponseCodes).
    - `retry_unless_ok`: also when the message is stored, but not as safely as the broker wants
      (retryAnotherBrokerWhenNotStoreOK); it is then stored twice.
    - `attempt_timeout_ms`: an attempt that is not the last waits no longer than this, 0: as long as there is time
      (sendMsgMaxTimeoutPerRequest).
    - `latency_faults`: leave slow and failing brokers alone for a while (sendLatencyFaultEnable); see faults.py.
    - `probe_unreachable`: ask brokers that failed every 3 s, and use them again when they answer (startDetectorEnable).
    """

    retries: int = RETRIES
    retry_codes: frozenset[int] = RETRIABLE_CODES
    retry_unless_ok: bool = False
    attempt_timeout_ms: int = 0
    latency_faults: bool = False
    probe_unreachable: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError for a field of a wrong type."""
        check_fields(self, _SEND_RULES)


class _KnownQueues:
    """The queues that each topic's route names, made once for each route: a topic may have thousands."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[TopicRouteData, Sequence[MessageQueue]]] = {}

    def of(self, topic: str, route: TopicRouteData) -> Sequence[MessageQueue]:
        """Raises UsageError for a static topic."""
        known = self._known.get(topic)
        if known is None or known[0] is not route:
            if len(self._known) >= TOPICS_MAX:
                self._known.clear()
            known = self._known[topic] = route, tuple(queues_to_write(topic, route))
        return known[1]


class Sender:
    """Does the sends of one producer; see the module's text."""

    def __init__(
        self,
        cluster: Cluster,
        options: SendOptions,
        rules: SendRules,
        hooks: Sequence[SendHook],
        now_ms: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._access = cluster.access
        self._options = options
        self._rules = rules
        self._hooks = hooks
        self._now_ms = now_ms
        self._turns = RoundRobin(cluster.random.randrange)
        self._known_queues = _KnownQueues()
        self._faults = LatencyFaults()

    async def send(self, prepared: Prepared, timeout_ms: float, selector: QueueSelector | None) -> SendResult:
        """Raises BrokerError, UnreachableError, TimedOutError; with a selector after one attempt. Once the message is stored,
        no later error hides that."""
        began_s = time.monotonic()
        deadline_s = began_s + timeout_ms / 1000
        rules = self._rules
        attempts_max = 1 if selector is not None else 1 + rules.retries
        tried: list[str] = []
        lost: dict[str, tuple[str | None, float]] = {}
        stored: SendResult | None = None
        while True:
            try:
                mq = await self._next_queue(prepared, selector, tried, lost, deadline_s)
            except RocketcrewError as error:
                return _ended(stored, error, tried, began_s)
            place = self._cluster.broker_address(mq.broker_name), self._cluster.clock()
            tried.append(mq.broker_name)
            last = len(tried) >= attempts_max
            until_s = deadline_s
            if rules.attempt_timeout_ms and not last:
                until_s = min(until_s, time.monotonic() + rules.attempt_timeout_ms / 1000)
            try:
                result = await self._attempt(prepared, mq, until_s, len(tried))
            except RocketcrewError as error:
                if isinstance(error, UnreachableError):
                    lost.setdefault(mq.broker_name, place)
                elif may_be_elsewhere(error):
                    lost.setdefault(mq.broker_name, (place[0], -inf))
                if last or self._cluster.is_closed or time.monotonic() >= deadline_s or not self._is_retried(error):
                    return _ended(stored, error, tried if len(tried) > 1 else (), began_s)
                _log.debug("send_retried", topic=prepared.topic, broker=mq.broker_name, error=str(error))
                continue
            if last or result.status is SendStatus.SEND_OK or not rules.retry_unless_ok:
                return result
            stored = result

    async def send_oneway(self, prepared: Prepared, timeout_ms: float, selector: QueueSelector | None) -> None:
        """One attempt, no answer. Raises UnreachableError, and BrokerError for a topic that does not exist."""
        deadline_s = time.monotonic() + timeout_ms / 1000
        mq = self._choose(prepared, await self.queues(prepared.topic, timeout_ms / 1000), selector, None)
        address, left_ms = await self._address_by(mq, deadline_s)
        context = self._context(prepared, mq, address, oneway=True)
        run_before(self._hooks, context)
        try:
            await self._cluster.remoting.oneway(address, prepared.command(mq), timeout_ms=left_ms)
        except RocketcrewError as error:
            self._failed(context, error, prepared.topic)
            raise
        finally:
            run_after(self._hooks, context)

    async def queues(self, topic: str, left_s: float) -> Sequence[MessageQueue]:
        """The queues that there are to choose from, never none. `left_s`: for a route that is not known; half of it for one
        that is overdue.

        Raises UnreachableError, BrokerError; UsageError for a static topic."""
        options = self._options
        route = await self._cluster.publish_route(
            topic,
            default_topic=options.default_topic,
            queue_nums=options.default_topic_queue_nums,
            wait_s=left_s / 2,
            timeout_s=left_s,
        )
        queues = self._known_queues.of(topic, route)
        if not queues:
            self._cluster.look_again(topic)
            raise UnreachableError(topic, "this topic has no queue that may be written on a broker with a master")
        return queues

    async def master_of(self, mq: MessageQueue, wait_s: float | None = None) -> str:
        """`wait_s`: as `Cluster.address_of`."""
        return self._cluster.broker_address(mq.broker_name) or await self._cluster.address_of(mq, wait_s=wait_s)

    async def probe(self) -> None:
        """Ask the brokers that failed whether they answer (LatencyFaultToleranceImpl.detectByOneRound)."""
        for broker_name in self._faults.unreachable():
            address = self._cluster.broker_address(broker_name)
            if address is None:
                continue
            command = Command(int(RequestCode.GET_MAX_OFFSET), MaxOffset(self._options.default_topic, 0).to_fields())
            try:
                await self._cluster.remoting.request(address, command, timeout_ms=PROBE_TIMEOUT_MS)
            except UnreachableError:
                continue
            self._faults.probed(broker_name)

    # One attempt.

    async def _next_queue(
        self,
        prepared: Prepared,
        selector: QueueSelector | None,
        tried: Sequence[str],
        lost: Mapping[str, tuple[str | None, float]],
        deadline_s: float,
    ) -> MessageQueue:
        """Where the next attempt goes; `lost`: the brokers that may be elsewhere, where and when they were tried first, and
        -inf of one that has answered."""

        def left_s() -> float:
            return max(0.0, deadline_s - time.monotonic())

        avoid = tried[-1] if tried else None
        mq = self._choose(prepared, await self.queues(prepared.topic, left_s()), selector, avoid)
        if mq.broker_name not in lost:
            return mq
        address, lost_s = lost[mq.broker_name]
        wait_s = left_s() / 2 if lost_s > -inf else min(left_s() / 2, IN_VAIN_S)
        await self._cluster.looked(prepared.topic, mq.broker_name, address, lost_s, wait_s)
        queues = await self.queues(prepared.topic, left_s())
        return mq if mq in queues else self._choose(prepared, queues, selector, avoid)

    async def _address_by(self, mq: MessageQueue, until_s: float) -> tuple[str, float]:
        """Of the queue's master, and how many milliseconds are left then."""
        address = await self.master_of(mq, (until_s - time.monotonic()) / 2)
        left_ms = (until_s - time.monotonic()) * 1000
        if left_ms <= 0:
            raise TimedOutError(address, "no time left to send")
        return address, left_ms

    async def _attempt(self, prepared: Prepared, mq: MessageQueue, until_s: float, attempt: int) -> SendResult:
        address, left_ms = await self._address_by(mq, until_s)
        context = self._context(prepared, mq, address)
        run_before(self._hooks, context)
        began_s = time.monotonic()
        try:
            answer = await self._cluster.remoting.request(address, prepared.command(mq), timeout_ms=left_ms)
            topic = self._access.unwrap(prepared.topic)
            context.result = result_of(answer, prepared.message_id, topic, mq.broker_name, attempt)
            if context.result is None:
                raise refusal(answer, prepared.code, address)
        except RocketcrewError as error:
            self._failed(context, error, prepared.topic)
            raise
        finally:
            self._rate(context, began_s)
            run_after(self._hooks, context)
        return context.result

    def _failed(self, context: SendContext, error: RocketcrewError, topic: str) -> None:
        context.error = error
        if may_be_elsewhere(error):
            self._cluster.look_again(topic)

    def _is_retried(self, error: RocketcrewError) -> bool:
        return isinstance(error, UnreachableError) or (
            isinstance(error, BrokerError) and error.code in self._rules.retry_codes
        )

    def _context(self, prepared: Prepared, mq: MessageQueue, address: str, *, oneway: bool = False) -> SendContext:
        return SendContext(
            self._access.unwrap(self._options.group),
            prepared.messages,
            prepared.message_id,
            len(prepared.body),
            mq._replace(topic=self._access.unwrap(mq.topic)),
            address,
            self._now_ms(),
            oneway,
        )

    def _rate(self, context: SendContext, began_s: float) -> None:
        if not self._rules.latency_faults:
            return
        now_ms = time.monotonic() * 1000
        broker_name, error = context.mq.broker_name, context.error
        if context.result is not None:
            self._faults.answered(now_ms, broker_name, now_ms - began_s * 1000)
        elif isinstance(error, BrokerError):
            self._faults.failed(now_ms, broker_name, reachable=False)
        elif isinstance(error, UnreachableError):
            self._faults.failed(now_ms, broker_name, reachable=not self._rules.probe_unreachable)

    def _choose(
        self, prepared: Prepared, queues: Sequence[MessageQueue], selector: QueueSelector | None, avoid: str | None
    ) -> MessageQueue:
        if selector is not None:
            plain = self._access.unwrap(prepared.topic)
            # A list of its own: it may sort it, or take from it.
            chosen = selector([mq._replace(topic=plain) for mq in queues] if plain != prepared.topic else list(queues))
            if not isinstance(chosen, MessageQueue):  # pyright: ignore[reportUnnecessaryIsInstance]  a user's mistake
                raise UsageError(
                    f"the selector chose {shown(chosen)}: it must return one of the queues that it is given"
                )
            return chosen._replace(topic=self._access.wrap(chosen.topic))
        return self._turns.select(prepared.topic, queues, avoid, self._preferences())

    def _preferences(self) -> Sequence[Wanted]:
        if not self._rules.latency_faults:
            return ()
        faults, now_ms = self._faults, time.monotonic() * 1000
        return (
            lambda mq: faults.is_available(now_ms, mq.broker_name),
            lambda mq: faults.is_reachable(mq.broker_name),
        )


def _ended(stored: SendResult | None, error: RocketcrewError, tried: Sequence[str], began_s: float) -> SendResult:
    """How a send ends that this error ends: with what was stored before; else raises it, saying what was tried."""
    if stored is not None:
        return stored
    if not tried or not isinstance(error, BrokerError | UnreachableError):
        raise error
    times = "once" if len(tried) == 1 else f"{len(tried)} times"
    note = f"sent {times} in {(time.monotonic() - began_s) * 1000:.0f} ms, to {', '.join(tried)}"
    if isinstance(error, BrokerError):
        raise BrokerError(error.code, error.remark, f"{error.request} ({note})") from error
    raise type(error)(error.address, f"{error.reason} ({note})") from error
