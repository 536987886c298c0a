"""Pulls at the edge: from which broker, with which header, and the body straight into the slab.

A broker says with each answer which of its replicas the next pull is to go to (`suggestWhichBrokerId`). As in Java
(PullAPIWrapper.java, MQClientInstance.findBrokerAddressInSubscribe) a replica that is gone is replaced by any other of that
broker, a missing route is asked for at once, and only the master gets the commit that a pull can carry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import structlog

from ...client.cluster import Cluster
from ...conf.settings import ConsumerSettings
from ...remoting.bodies import SubscriptionData
from ...remoting.codes import PULL_COMMIT_OFFSET, PULL_SUSPEND, RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.errors import RocketcrewError
from ...remoting.headers import PullRequest, PullResponse
from ...remoting.names import MASTER_ID
from ...remoting.queues import MessageQueue
from ..core import events as ev
from ..core.actions import Pull
from ..core.decisions import Core
from ..core.pulling import PullResult
from ..core.slab import Slot
from .recreated import LastBodies

PULL_BYTES_MAX = 256 * 1024
OFFSET, COMMIT_OFFSET, SYS_FLAG = "queueOffset", "commitOffset", "sysFlag"
COMMITTING = str(PULL_SUSPEND | PULL_COMMIT_OFFSET)
WITH_OFFSETS = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
"""Answers whose header says where to go on; refusals have none."""

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


class Pulls:
    """Sends one pull and gives its answer to the core. `subscriptions` is looked at anew for each pull; `commits_known`
    says whether a commit of its topic is in already (the first must be alone, see commits.py); `now` is the loop's clock."""

    def __init__(
        self, cluster: Cluster, last: LastBodies, core: Core, view: memoryview, settings: ConsumerSettings,
        subscriptions: Mapping[str, SubscriptionData], commits_known: Callable[[MessageQueue], bool],
        now: Callable[[], float], refused: Callable[[int], None],
    ) -> None:  # fmt: skip
        """`refused` is called with the code of every answer that is a refusal."""
        self._cluster = cluster
        self._last = last
        self._core = core
        self._view = view
        self._settings = settings
        self._subscriptions = subscriptions
        self._commits_known = commits_known
        self._now = now
        self._suggested: dict[MessageQueue, int] = {}
        """Broker id to pull from, as the last response of the queue suggested; 0 = the master."""
        self._bases: dict[MessageQueue, tuple[SubscriptionData, dict[str, str]]] = {}
        """Header fields by queue, and the subscription that they were made of: most of a pull's fields never change."""
        self._refused = refused

    async def pull(self, action: Pull) -> None:
        """One pull, answered by `Pulled` or `NoAnswer`."""
        sink = BodySink(self._core, self._view, action.handle)
        try:
            address, is_master = await self._where(action.mq)
            if action.mq.topic not in self._subscriptions:
                raise RocketcrewError(f"{action.mq.topic} was unsubscribed meanwhile")
            response = await self._cluster.remoting.request(
                address, self._command(action, is_master), timeout_ms=self._settings.pull_timeout_ms, body_sink=sink
            )
            result = self._result(action, response, sink.slot)
            if result.code == ResponseCode.PULL_OFFSET_MOVED:
                result.next_offset = await self._corrected(action, result.next_offset)
        except RocketcrewError as error:
            log.warning("pull_failed", queue=tuple(action.mq), offset=action.offset, error=str(error))
            self._core.handle(ev.NoAnswer(action.handle, sink.slot), self._now())
        except BaseException:
            sink.give_back()
            raise
        else:
            self._core.handle(ev.Pulled(action.handle, result), self._now())

    async def _corrected(self, action: Pull, answered: int) -> int:
        """Where to go on after PULL_OFFSET_MOVED; the broker's own word when the look-up fails."""
        try:
            return await self._last.corrected(action.mq, action.offset, answered)
        except RocketcrewError as error:
            log.warning("search_offset_failed", queue=tuple(action.mq), error=str(error))
            return answered

    async def _where(self, mq: MessageQueue) -> tuple[str, bool]:
        """The address that the last answer suggested, else another of the broker's; whether it is the master's."""
        wanted = self._suggested.get(mq, MASTER_ID)
        address = await self._cluster.address_of(mq, wanted, only_this=False)
        return address, address == self._cluster.broker_address(mq.broker_name)

    def _command(self, action: Pull, is_master: bool) -> Command:
        mq = action.mq
        commits = action.commit_offset > 0 and is_master and self._commits_known(mq)
        subscription = self._subscriptions[mq.topic]
        base = self._bases.get(mq)
        if base is None or base[0] is not subscription:
            base = self._bases[mq] = (subscription, self._fields(mq, subscription))
        fields = base[1].copy()
        fields[OFFSET] = str(action.offset)
        fields[COMMIT_OFFSET] = str(action.commit_offset)
        if commits:
            fields[SYS_FLAG] = COMMITTING
        return Command(RequestCode.PULL_MESSAGE, fields)

    def _fields(self, mq: MessageQueue, subscription: SubscriptionData) -> dict[str, str]:
        """What all pulls of the queue have in common; offsets are set for each."""
        consumer = self._settings
        return PullRequest(
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

    def _result(self, action: Pull, response: Command, slot: Slot | None) -> PullResult:
        if response.code in WITH_OFFSETS:
            header = PullResponse.from_fields(response.fields)
            self._suggested[action.mq] = header.suggest_which_broker_id
            if response.dropped:
                return PullResult(response.code, action.offset, dropped=True)
            self._last.note(action.mq, response.body)
            return PullResult(
                response.code, header.next_begin_offset, len(response.body), slot, end_offset=header.max_offset
            )
        self._refused(response.code)
        return PullResult(response.code, action.offset, slot=slot, remark=response.remark or "")

    def keep(self, ours: Collection[MessageQueue]) -> None:
        """What is remembered of other queues is forgotten: they are not ours any more."""
        for known in (self._suggested, self._bases):
            for mq in known.keys() - ours:
                del known[mq]
        self._last.keep(ours)
