"""Pulls at the edge: from which broker, with which header, and the body straight into the slab.

A broker says with each answer which of its replicas the next pull is to go to (`suggestWhichBrokerId`). As in Java
(PullAPIWrapper.java, MQClientInstance.findBrokerAddressInSubscribe) a replica that is gone is replaced by any other of that
broker, a missing route is asked for at once, and only the master gets the commit that a pull can carry.

A pull on an open connection waits for nothing but its answer: it is sent at once, without a task, which costs as much as all
that the core does for a pull. One read brings the answers of several queues, and they are given to the core together, so
that what it wants is done once for all of them. What has to wait for something else is done by a task: a connection or a
route that is missing, a server that sends us away, an offset that was moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final

import structlog

from ...client.cluster import Cluster
from ...client.operations import pull_header, pull_position
from ...conf.settings import ConsumerSettings
from ...remoting.bodies import SubscriptionData
from ...remoting.codes import PULL_COMMIT_OFFSET, PULL_SUSPEND, RequestCode, ResponseCode
from ...remoting.command import Command, PreparedHeader
from ...remoting.errors import RocketcrewError, UnreachableError
from ...remoting.frame import prepare
from ...remoting.headers import PullRequest
from ...remoting.log_keys import place_keys, queue_keys
from ...remoting.names import MASTER_ID
from ...remoting.queues import MessageQueue
from ...source.searching import WasResetError
from ..core import events as ev
from ..core.actions import Pull
from ..core.decisions import Core
from ..core.pulling import PullResult
from ..core.slab import Slot
from ..core.subscriptions import takes_all
from .recreated import LastBodies
from .tails import Tails

PULL_BYTES_MAX = 256 * 1024
OFFSET, COMMIT_OFFSET, SYS_FLAG = "queueOffset", "commitOffset", "sysFlag"
COMMITTING, NOT_COMMITTING = str(PULL_SUSPEND | PULL_COMMIT_OFFSET), str(int(PULL_SUSPEND))
DELETED: Final = frozenset({"OFFSET_FOUND_NULL", "MESSAGE_WAS_REMOVING"})
"""Remarks by which a broker answers a pull when the file of the queue, or those of the messages, are gone (the status of
DefaultMessageStore.getMessage). Their codes are those of an empty queue and of a filter."""
WITH_OFFSETS = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
"""Answers whose header says where to go on; refusals have none."""
GO_AWAY: Final = ResponseCode.GO_AWAY
MOVED: Final = ResponseCode.PULL_OFFSET_MOVED
AT_ONCE: Final = ResponseCode.PULL_RETRY_IMMEDIATELY
"""Asked for of each answer: a member read off its class takes twice as long as a call (Python 3.11)."""

log = structlog.get_logger("rocketcrew.member")


class BodySink:
    """Where the body of one pull or pop is received: a slot that the core gives when the length is known, or nowhere.

    `slot` is what the core gave, None as long as it gave none.
    """

    __slots__ = ("_core", "_handle", "_view", "slot")

    def __init__(self, core: Core, view: memoryview, handle: int) -> None:
        self._core = core
        self._view = view
        self._handle = handle
        self.slot: Slot | None = None

    def __call__(self, _command: Command, length_bytes: int) -> memoryview | None:
        """Room for a body of that length; None = it is read and dropped."""
        slot = self.slot = self._core.room_for(self._handle, length_bytes)
        return None if slot is None else self._view[slot.start : slot.start + length_bytes]

    def give_back(self) -> None:
        """Nobody will say what landed: its bytes are free again."""
        if self.slot is not None:
            self._core.state.release(self.slot)
            self.slot = None


class PullWaiter(BodySink):
    """One pull that was sent: the sink of its body, and who is told its answer (client/pending.py, Waiter)."""

    __slots__ = ("_came", "_over", "action", "address", "answer")

    def __init__(
        self, core: Core, view: memoryview, action: Pull, came: Callable[[PullWaiter], None]
    ) -> None:  # fmt: skip
        super().__init__(core, view, action.handle)
        self.action = action
        self.address = ""
        """Where it was sent."""
        self.answer: Command | Exception | None = None
        """What it was told."""
        self._came = came
        self._over = False

    def done(self) -> bool:
        return self._over

    def set_result(self, result: Command | Exception) -> None:
        self._over = True
        self.answer = result
        self._came(self)

    set_exception = set_result

    def cancel(self) -> None:
        """It waits no more, and what it was told counts for nothing."""
        self._over = True
        self.answer = None
        self.give_back()


class Pulls:
    """Sends pulls and gives their answers to the core. `subscriptions` is looked at anew for each pull; `may_commit`
    says whether an offset of the queue may go along; `now` is the loop's clock."""

    def __init__(
        self, cluster: Cluster, last: LastBodies, tails: Tails, core: Core, view: memoryview, settings: ConsumerSettings,
        subscriptions: Mapping[str, SubscriptionData], may_commit: Callable[[MessageQueue], bool],
        now: Callable[[], float], refused: Callable[[int], None],
        run: Callable[[Coroutine[Any, Any, None], Pull], None], failed: Callable[[BaseException, Pull], None],
        acted: Callable[[], None],
    ) -> None:  # fmt: skip
        """`refused` is called with the code of every answer that is a refusal, `acted` after the core was given one.
        `run` makes a task of what has to wait; an unexpected error of it, or one given to `failed`, fails the action."""
        self._cluster = cluster
        self._last = last
        self._tails = tails
        self._core = core
        self._view = view
        self._settings = settings
        self._subscriptions = subscriptions
        self._may_commit = may_commit
        self._now = now
        self._suggested: dict[MessageQueue, int] = {}
        """Broker id to pull from, as the last response of the queue suggested; 0 = the master."""
        self._bases: dict[MessageQueue, tuple[SubscriptionData, dict[str, str], PreparedHeader]] = {}
        """Header fields by queue, also as text, and the subscription that they were made of: most of a pull's fields never
        change."""
        self._unfiltered: set[str] = set()
        """Topics whose last pulls were for a subscription that takes all. When it changes, the queues of the topic end, and
        answers to earlier pulls are dropped."""
        self._refused = refused
        self._run = run
        self._failed = failed
        self._acted = acted
        self._waiting: set[PullWaiter] = set()
        """For answers that no task waits for."""
        self._told: list[PullWaiter] = []
        """Those of them whose answers the core is given at the end of this turn of the loop."""

    def opening(self, mq: MessageQueue) -> None:
        """Its offset is about to be looked up."""
        self._last.begin(mq)

    def reset(self, queues: Iterable[MessageQueue]) -> None:
        """An operator has said where they go on."""
        for mq in queues:
            self._last.passed(mq)
            self._tails.passed(mq)

    def connection_lost(self, address: str) -> None:
        """Who answers there next may not have what we had from there."""
        self._tails.connection_lost(address)

    def pull(self, action: Pull) -> None:
        """Send one pull; it is answered by `Pulled` or `NoAnswer`."""
        mq = action.mq
        address = self._cluster.broker_address(mq.broker_name, self._wanted(mq), only_this=False)
        waiter = PullWaiter(self._core, self._view, action, self._came)
        if (
            address is not None
            and mq.topic in self._subscriptions
            and not self._tails.in_doubt(mq, address, self._now())
        ):
            self._waiting.add(waiter)
            waiter.address = address
            try:
                sent = self._cluster.remoting.ask(
                    address, self._command(action, address), waiter, timeout_ms=self._settings.pull_timeout_ms,
                    body_sink=waiter,
                )  # fmt: skip
            except RocketcrewError as error:
                self._waiting.discard(waiter)
                self._unanswered(action, waiter, error)
                return
            if sent:
                return
            self._waiting.discard(waiter)
        self._run(self._pull(action, waiter), action)

    def cancel(self) -> None:
        """Wait for no answer any more. What tasks wait for is the affair of who runs them."""
        for waiter in self._waiting:
            waiter.cancel()
        self._waiting.clear()
        self._told.clear()

    def _came(self, waiter: PullWaiter) -> None:
        """Its answer is there, or the certainty that there is none; others may come with the same read."""
        if not self._told:
            asyncio.get_running_loop().call_soon(self._take)
        self._told.append(waiter)

    def _take(self) -> None:
        """Give the core all that has come, and do what it wants."""
        told, self._told = self._told, []
        if not told:
            return  # they are not waited for any more
        errors: list[Exception] = []
        for waiter in told:
            self._waiting.discard(waiter)
            try:
                self._answered(waiter)
            except Exception as error:  # noqa: BLE001 - whatever it is, the queue must not wait for this answer
                try:
                    self._failed(error, waiter.action)
                except Exception as again:  # noqa: BLE001 - nor other queues for theirs
                    errors.append(again)
        self._acted()
        if errors:
            raise ExceptionGroup("the core could not be told that pulls have failed", errors)

    def _answered(self, waiter: PullWaiter) -> None:
        action, answer = waiter.action, waiter.answer
        try:
            if isinstance(answer, Exception):
                raise answer
            assert answer is not None, "it was told"
            if answer.code == GO_AWAY:
                waiter.give_back()
                self._run(self._pull(action, BodySink(self._core, self._view, action.handle)), action)
                return
            result = self._result(action, answer, waiter.slot, waiter.address)
        except RocketcrewError as error:
            self._unanswered(action, waiter, error)
        except BaseException:
            waiter.give_back()
            raise
        else:
            if result.code == MOVED:
                self._run(self._moved(action, result), action)
            else:
                self._give(action, result)

    def _give(self, action: Pull, result: PullResult) -> None:
        self._core.handle(ev.Pulled(action.handle, result), self._now())
        self._tails.note(action.mq, action.offset, result.newest)

    async def _pull(self, action: Pull, sink: BodySink) -> None:
        """As `pull`, with all that may have to be waited for."""
        try:
            address = await self._cluster.address_of(action.mq, self._wanted(action.mq), only_this=False)
            if action.mq.topic not in self._subscriptions:
                raise RocketcrewError(f"{action.mq.topic} was unsubscribed meanwhile")
            if self._tails.in_doubt(action.mq, address, self._now()) and await self._looked(action, address):
                return
            response = await self._cluster.remoting.request(
                address, self._command(action, address), timeout_ms=self._settings.pull_timeout_ms, body_sink=sink
            )
            result = self._result(action, response, sink.slot, address)
        except RocketcrewError as error:
            self._unanswered(action, sink, error)
            self._acted()
        except BaseException:
            sink.give_back()
            raise
        else:
            await self._moved(action, result)

    async def _looked(self, action: Pull, address: str) -> bool:
        """Whether the queue goes on elsewhere, as was found or told by a look at its marks."""
        try:
            back_to = await self._tails.replaced_from(action.mq, address, action.offset, self._now())
        except WasResetError as reset:
            header = reset.header
            result = PullResult(MOVED, header.next_begin_offset, end_offset=header.max_offset)
            result.min_offset = header.min_offset
            await self._moved(action, result)
            return True
        if back_to is None:
            return False
        log.warning("queue_tail_replaced", **place_keys(action.mq, action.offset), first_other=back_to)
        self._give(action, PullResult(MOVED, back_to))
        self._acted()
        return True

    async def _moved(self, action: Pull, result: PullResult) -> None:
        """Give the answer to the core; where it moves the offset, find out first where to go on. Where that look-up fails the
        queue is pulled again: at the broker's own word alone, all of a topic that was made again would be passed over."""
        try:
            if result.code == MOVED and result.next_offset >= 0:
                result.next_offset = await self._last.corrected(
                    action.mq, action.offset, result.next_offset, result.end_offset
                )
                if action.offset <= result.end_offset:
                    self._tails.passed(action.mq)
                else:
                    self._tails.corrected(action.mq, result.next_offset)
        except RocketcrewError as error:
            log.warning("search_offset_failed", **queue_keys(action.mq), error=str(error))
            self._core.handle(ev.NoAnswer(action.handle, result.slot), self._now())
        except BaseException:
            if result.slot is not None:
                self._core.state.release(result.slot)
            raise
        else:
            self._give(action, result)
        self._acted()

    def _unanswered(self, action: Pull, sink: BodySink, error: RocketcrewError) -> None:
        log.warning("pull_failed", **place_keys(action.mq, action.offset), error=str(error))
        self._tails.pull_failed(action.mq)
        if isinstance(error, UnreachableError):
            self._cluster.look_again(action.mq.topic)
        self._core.handle(ev.NoAnswer(action.handle, sink.slot), self._now())

    def _wanted(self, mq: MessageQueue) -> int:
        """The broker id that the last answer suggested."""
        return self._suggested.get(mq, MASTER_ID)

    def _command(self, action: Pull, address: str) -> Command:
        mq = action.mq
        commits = (
            action.commit_offset > 0
            and self._may_commit(mq)
            and address == self._cluster.broker_address(mq.broker_name)
        )
        subscription = self._subscriptions[mq.topic]
        base = self._bases.get(mq)
        if base is None or base[0] is not subscription:
            same = self._fields(mq, subscription)
            base = self._bases[mq] = (subscription, same, prepare(RequestCode.PULL_MESSAGE, same))
            (self._unfiltered.add if takes_all(subscription) else self._unfiltered.discard)(mq.topic)
        fields = base[1].copy()
        fields[OFFSET] = str(action.offset)
        fields[COMMIT_OFFSET] = str(action.commit_offset)
        fields[SYS_FLAG] = COMMITTING if commits else NOT_COMMITTING
        return Command(RequestCode.PULL_MESSAGE, fields, prepared=base[2])

    def _fields(self, mq: MessageQueue, subscription: SubscriptionData) -> dict[str, str]:
        """What all pulls of the queue have in common; what each has of its own comes after it."""
        consumer = self._settings
        fields = PullRequest(
            consumer_group=consumer.group,
            topic=mq.topic,
            queue_id=mq.queue_id,
            queue_offset=0,
            max_msg_nums=consumer.pull_batch_size,
            sys_flag=PULL_SUSPEND,
            commit_offset=0,
            suspend_timeout_millis=consumer.suspend_timeout_ms,
            sub_version=subscription.sub_version,
            expression_type=subscription.expression_type,
            max_msg_bytes=PULL_BYTES_MAX,
            broker_name=mq.broker_name,
        ).to_fields()
        for name in (OFFSET, COMMIT_OFFSET, SYS_FLAG):
            del fields[name]
        return fields

    def _result(self, action: Pull, response: Command, slot: Slot | None, address: str) -> PullResult:
        if response.code in WITH_OFFSETS:
            header = pull_position(response, action.mq.broker_name)
            self._suggested[action.mq] = header.suggest_which_broker_id
            if response.dropped:
                return PullResult(response.code, action.offset, dropped=True)
            self._last.note(action.mq, response.body)
            result = PullResult(
                response.code, header.next_begin_offset, len(response.body), slot, end_offset=header.max_offset,
                takes_all=action.mq.topic in self._unfiltered, deleted=response.remark in DELETED,
            )  # fmt: skip
            if response.code == MOVED:
                result.min_offset = pull_header(response, action.mq.broker_name).min_offset
            elif response.code == AT_ONCE:
                suggested = self._cluster.broker_address(
                    action.mq.broker_name, header.suggest_which_broker_id, only_this=False
                )
                result.elsewhere = suggested not in (None, address)
            return result
        self._refused(response.code)
        return PullResult(response.code, action.offset, slot=slot, remark=response.remark or "")

    def keep(self, ours: Collection[MessageQueue]) -> None:
        """What is remembered of other queues is forgotten: they are not ours any more."""
        for known in (self._suggested, self._bases):
            for mq in known.keys() - ours:
                del known[mq]
        self._last.keep(ours)
        self._tails.keep(ours)
