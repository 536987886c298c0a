"""The supervisor's dealings with the cluster: performs the core's requests, and answers the brokers' own.

Every action becomes one task; its answer goes back to the core as an event, with the loop's clock. A task that fails
gives the failure event: the core decides what then. Nothing here decides about messages or remembers offsets.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog

from ..client.cluster import Cluster
from ..client.operations import Operations
from ..client.remoting_client import Remoting
from ..conf.settings import Settings
from ..remoting.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import Command
from ..remoting.errors import BrokerError, RocketcrewError, UnreachableError
from ..remoting.headers import PullRequest, PullResponse
from ..remoting.queues import MessageQueue
from ..remoting.stored import StoredMessage, decode_message
from . import actions as act
from .checks import consume_timestamp_ms
from .core import Core
from .first_offset import FirstOffset
from .pulling import PullResult
from .send_back import SendBacks
from .slab import Slot

RETRY_PREFIX = "%RETRY%"
INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
PULL_COMMIT, PULL_SUSPEND = 0x1, 0x2
"""PullSysFlag.java."""
PULL_BYTES_MAX = 256 * 1024
UNREGISTER_TIMEOUT_MS = 3000

log = structlog.get_logger("rocketcrew.member")


class GroupMember:
    """One client id in the group: heartbeats, look-ups, pulls, commits, send-backs, and the sign-off."""

    def __init__(
        self, settings: Settings, client_id: str, topics: Mapping[str, str], core: Core, view: memoryview,
        acted: Callable[[], None],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._group = settings.consumer.group
        self._client_id = client_id
        self._core = core
        self._view = view
        self._acted = acted
        self._loop = asyncio.get_running_loop()
        self._remoting = Remoting(
            on_request=self._asked,
            on_close=self._forget_greeting,
            connect_timeout_ms=settings.cluster.connect_timeout_ms,
        )
        self._cluster = Cluster(
            settings.cluster.name_servers,
            client_id=client_id,
            remoting=self._remoting,
            request_timeout_ms=settings.cluster.request_timeout_ms,
            poll_interval_ms=settings.cluster.poll_name_server_interval_ms,
        )
        self._operations = Operations(self._cluster)
        self._first_offset = FirstOffset(
            self._operations, self._group, settings.consumer.consume_from_where,
            consume_timestamp_ms(settings.consumer.consume_timestamp) or int(time.time() * 1000) - 30 * 60 * 1000,
        )  # fmt: skip
        self._send_backs = SendBacks(
            self._cluster, self._operations, self._group, settings.consumer.max_reconsume_times
        )
        now_ms = int(time.time() * 1000)
        self._subscriptions = {
            topic: SubscriptionData.of(topic, expression, now_ms)
            for topic, expression in {**topics, RETRY_PREFIX + self._group: "*"}.items()
        }
        self._found: set[str] = set()
        """Topics that have a route."""
        self._greeted: set[str] = set()
        """Brokers that have had our heartbeat on the connection that stands."""
        self._suggested: dict[MessageQueue, int] = {}
        """Broker id to pull from, as the last response of the queue suggested; 0 = the master."""
        self._first_commits: dict[str, asyncio.Lock] = {}
        self._offsets_known: set[str] = set()
        """Topics that have an offset of the group at the broker for certain, because we committed one."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._route_timer: asyncio.TimerHandle | None = None
        self._heartbeat_running = False
        self._heartbeat_again = False
        self.performs: dict[type, Callable[[Any], None]] = {
            act.FetchAssignment: lambda a: self._run(self._fetch_assignment(a)),
            act.FetchOffset: lambda a: self._run(self._fetch_offset(a)),
            act.Pull: lambda a: self._run(self._pull(a)),
            act.Commit: lambda a: self._run(self._commit(a)),
            act.SendBack: self._send_back,
            act.Heartbeat: lambda _: self._heartbeat_now(),
        }

    def wanted_tags(self, topic: str) -> tuple[str, ...] | None:
        """Tags that a worker must check once more (the broker filters by hash); None = every message is wanted."""
        data = self._subscriptions.get(topic)
        return tuple(sorted(data.tags_set)) if data is not None and data.tags_set else None

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the topics and join the group. Raises UnreachableError when no name server or broker answers."""
        for topic in self._subscriptions:
            if topic.startswith(RETRY_PREFIX):
                continue  # made by the first heartbeat
            try:
                await self._cluster.route(topic)
                self._found.add(topic)
            except BrokerError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                log.warning("topic_not_found", topic=topic, hint="consumed as soon as it exists: looked up again every"
                            f" {self._settings.cluster.poll_name_server_interval_ms} ms")  # fmt: skip
        await self._heartbeat_all()
        self._arm_heartbeat()
        self._arm_routes()

    async def stop(self) -> None:
        """Sign off from every broker, so that the group rebalances at once, and close."""
        self._disarm()
        await asyncio.gather(
            *(
                self._operations.unregister(address, self._client_id, self._group, timeout_ms=UNREGISTER_TIMEOUT_MS)
                for address in self._cluster.all_broker_addresses()
            ),
            return_exceptions=True,
        )
        await self.kill()

    async def kill(self) -> None:
        """Close every connection now."""
        self._disarm()
        for task in list(self._tasks):
            task.cancel()
        await self._cluster.close()
        await self._remoting.close()

    def _disarm(self) -> None:
        for timer in (self._heartbeat_timer, self._route_timer):
            if timer is not None:
                timer.cancel()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- heartbeats and routes ----------------------------------------------------------------------------------

    def _arm_heartbeat(self) -> None:
        delay_s = self._settings.cluster.heartbeat_interval_ms / 1000
        self._heartbeat_timer = self._loop.call_later(delay_s, self._heartbeat_due)

    def _heartbeat_due(self) -> None:
        self._heartbeat_now()
        self._arm_heartbeat()

    def _heartbeat_now(self) -> None:
        """Send heartbeats; a wish that comes while one round runs makes one more round after it, not many."""
        if self._heartbeat_running:
            self._heartbeat_again = True
        else:
            self._run(self._heartbeats())

    async def _heartbeats(self) -> None:
        self._heartbeat_running = True
        try:
            again = True
            while again:
                self._heartbeat_again = False
                await self._heartbeat_all()
                again = self._heartbeat_again
        except RocketcrewError as error:
            log.warning("heartbeat_failed", error=str(error))
        finally:
            self._heartbeat_running = False

    async def _heartbeat_all(self) -> None:
        """To every address known, masters and slaves, as Java does; one that fails is logged, all failing raises."""
        addresses = self._cluster.all_broker_addresses()
        data = self._heartbeat_data()
        answers = await asyncio.gather(
            *(self._operations.heartbeat(address, data) for address in addresses), return_exceptions=True
        )
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        self._greeted.update(
            address for address, answer in zip(addresses, answers, strict=True) if not isinstance(answer, BaseException)
        )
        for failure in failures:
            log.warning("heartbeat_failed", error=str(failure))
        if failures and len(failures) == len(addresses) and isinstance(failures[0], UnreachableError):
            raise failures[0]

    def _forget_greeting(self, address: str) -> None:
        self._greeted.discard(address)

    def _heartbeat_data(self) -> HeartbeatData:
        consumer = ConsumerData(
            group_name=self._group,
            consume_type="CONSUME_PASSIVELY",
            message_model=self._settings.consumer.message_model,
            consume_from_where=self._settings.consumer.consume_from_where,
            subscription_data_set=tuple(self._subscriptions.values()),
        )
        return HeartbeatData(self._client_id, (ProducerData(INNER_PRODUCER_GROUP),), (consumer,))

    def _arm_routes(self) -> None:
        delay_s = self._settings.cluster.poll_name_server_interval_ms / 1000
        self._route_timer = self._loop.call_later(delay_s, self._routes_due)

    def _routes_due(self) -> None:
        self._run(self._refresh_routes())
        self._arm_routes()

    async def _refresh_routes(self) -> None:
        """Renew the routes; topics that were not found before are asked for again; a changed one is rebalanced at once."""
        known = set(self._cluster.all_broker_addresses())
        changed = await self._cluster.refresh()
        for topic in self._missing_topics():
            with contextlib.suppress(RocketcrewError):
                await self._cluster.route(topic)
                self._found.add(topic)
                changed.add(topic)
        if set(self._cluster.all_broker_addresses()) - known:
            self._heartbeat_now()
        if changed:
            self._core.rebalance(self._loop.time())
            self._acted()

    def _missing_topics(self) -> list[str]:
        return [topic for topic in self._subscriptions if topic not in self._found]

    # --- the core's requests ------------------------------------------------------------------------------------

    async def _fetch_assignment(self, action: act.FetchAssignment) -> None:
        topic = action.topic
        queues: list[MessageQueue] | None = None
        members: list[str] | None = None
        try:
            queues = await self._cluster.queues_to_read(topic)
            self._found.add(topic)
            if not self._greeted.issuperset(self._cluster.all_broker_addresses()):
                # A broker that does not know us yet leaves us out of the list, and we would own nothing.
                await self._heartbeat_all()
            members = await self._operations.consumer_ids(self._group, topic)
        except RocketcrewError as error:
            if not topic.startswith(RETRY_PREFIX):
                log.warning("rebalance_look_up_failed", topic=topic, error=str(error))
        self._core.members(topic, queues, members, self._loop.time())
        self._acted()

    async def _fetch_offset(self, action: act.FetchOffset) -> None:
        offset: int | None = None
        try:
            offset, why = await self._first_offset.find(action.mq)
            log.info("queue_opened", topic=action.mq.topic, broker=action.mq.broker_name,
                     queue_id=action.mq.queue_id, offset=offset, because=why)  # fmt: skip
        except RocketcrewError as error:
            log.warning("first_offset_not_found", queue=tuple(action.mq), error=str(error))
        self._core.opened(action.handle, offset, self._loop.time())
        self._acted()

    async def _pull(self, action: act.Pull) -> None:
        slot: Slot | None = None

        def sink(_command: Command, length_bytes: int) -> memoryview | None:
            nonlocal slot
            slot = self._core.room_for(action.handle, length_bytes)
            return None if slot is None else self._view[slot.start : slot.start + length_bytes]

        try:
            response = await self._remoting.request(
                await self._pull_address(action.mq), self._pull_command(action),
                timeout_ms=self._settings.consumer.pull_timeout_ms, body_sink=sink,
            )  # fmt: skip
            result = self._pull_result(action, response, slot)
        except RocketcrewError as error:
            log.warning("pull_failed", queue=tuple(action.mq), offset=action.offset, error=str(error))
            self._core.pull_failed(action.handle, self._loop.time(), slot)
        else:
            self._core.pulled(action.handle, result, self._loop.time())
        self._acted()

    async def _pull_address(self, mq: MessageQueue) -> str:
        """Where the last answer told us to pull from; the master when that replica is gone."""
        suggested = self._suggested.get(mq, 0)
        return self._cluster.broker_address(mq.broker_name, suggested) or await self._cluster.address_of(mq)

    def _pull_command(self, action: act.Pull) -> Command:
        consumer, mq = self._settings.consumer, action.mq
        from_master = self._suggested.get(mq, 0) == 0
        commits = action.commit_offset > 0 and from_master and mq.topic in self._offsets_known
        subscription = self._subscriptions[mq.topic]
        header = PullRequest(
            consumer_group=self._group,
            topic=mq.topic,
            queue_id=mq.queue_id,
            queue_offset=action.offset,
            max_msg_nums=consumer.pull_batch_size,
            sys_flag=PULL_SUSPEND | (PULL_COMMIT if commits else 0),
            commit_offset=action.commit_offset,
            suspend_timeout_millis=consumer.suspend_timeout_ms,
            sub_version=subscription.sub_version,
            expression_type=subscription.expression_type,
            max_msg_bytes=PULL_BYTES_MAX,
            broker_name=mq.broker_name,
        )
        return Command(RequestCode.PULL_MESSAGE, header.to_fields())

    def _pull_result(self, action: act.Pull, response: Command, slot: Slot | None) -> PullResult:
        if response.code in _WITH_OFFSETS:
            header = PullResponse.from_fields(response.fields)
            self._suggested[action.mq] = header.suggest_which_broker_id
            if response.dropped:
                return PullResult(response.code, action.offset, dropped=True)
            return PullResult(response.code, header.next_begin_offset, len(response.body), slot)
        return PullResult(response.code, action.offset, slot=slot, remark=response.remark or "")

    async def _commit(self, action: act.Commit) -> None:
        ok = True
        try:
            async with self._alone_if_first(action.mq.topic):
                stored = (
                    await self._operations.query_consumer_offset(self._group, action.mq) if action.guarded else None
                )
                if stored is None or stored < action.offset:
                    await self._operations.update_consumer_offset(self._group, action.mq, action.offset)
                self._offsets_known.add(action.mq.topic)
        except RocketcrewError as error:
            ok = False
            log.warning("commit_failed", queue=tuple(action.mq), offset=action.offset, error=str(error))
        self._core.committed(action.handle, action.offset, ok, self._loop.time())
        self._acted()

    def _alone_if_first(self, topic: str) -> contextlib.AbstractAsyncContextManager[None]:
        """One commit at a time until the first of a topic is in.

        A broker makes the group's table of a topic with its first offset, and of several that come at once it keeps one
        (ConsumerOffsetManager.commitOffset): the others are answered with success and are lost.
        """
        if topic in self._offsets_known:
            return contextlib.nullcontext()
        return self._first_commits.setdefault(topic, asyncio.Lock())

    def _send_back(self, action: act.SendBack) -> None:
        """Copy and decode the record now, while its bytes are certainly ours, and send it back in a task."""
        record = bytes(self._view[action.start : action.end])
        message: StoredMessage | None = None
        try:
            message = decode_message(record)
        except RocketcrewError as error:
            # Damaged on the way: the broker finds its own copy by the offset that can still be read.
            log.error("failed_message_not_decodable", queue=tuple(action.mq), error=str(error))
        self._run(self._send_back_task(action, record, message))

    async def _send_back_task(self, action: act.SendBack, record: bytes, message: StoredMessage | None) -> None:
        accepted = await self._send_backs.send(action, record, message)
        self._core.sent_back(action.handle, action.chunk_id, action.index, accepted, self._loop.time())
        self._acted()

    # --- the brokers' requests ----------------------------------------------------------------------------------

    async def _asked(self, address: str, command: Command) -> Command | None:
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            if command.fields.get("consumerGroup") == self._group:
                self._core.rebalance(self._loop.time())
                self._acted()
            return None
        log.debug("request_not_supported", address=address, code=command.code)
        return command.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f"code {command.code} is not supported")


_WITH_OFFSETS = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
