"""The supervisor's dealings with the cluster: performs the core's requests, and answers the brokers' own.

Every action becomes one task; its answer goes back to the core as an event, with the loop's clock. A task that fails
gives the failure event: the core decides what then. Nothing here decides about messages or remembers offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from ...client.background import take_each
from ...client.clock import wall_ms
from ...client.cluster import Cluster
from ...client.operations import Operations
from ...client.remoting_client import Remoting
from ...client.route_cache import RouteCache
from ...client.trace import consumer_traces
from ...conf.settings import Settings, is_broadcasting
from ...remoting.bodies import (
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from ...remoting.command import Command
from ...remoting.errors import RocketcrewError, UsageError
from ...remoting.log_keys import place_keys, queue_keys
from ...remoting.names import INNER_PRODUCER_GROUP, RETRY_PREFIX
from ...remoting.namespaces import wrap
from ...remoting.queues import MessageQueue
from ...remoting.stored import StoredMessage
from ...remoting.subscription import FilterExpression
from ...remoting.traces import TraceRecord
from ...workers.failures import Mode
from ...workers.packets import QueueInfo
from ..core import actions as act
from ..core import events as ev
from ..core.checks import check_consumer, subscriptions
from ..core.decisions import Core
from ..core.failed_actions import action_failed
from ..core.subscriptions import Subscriptions
from .access import access_of
from .first_offset import offset_store
from .group_watch import GroupWatch
from .heartbeats import Heartbeats
from .look_ups import LookUps
from .pops import Pops
from .pulls import Pulls
from .queue_ends import QueueEnds
from .queue_locks import QueueLocks
from .recreated import LastBodies, deleted_queues
from .requests import Asked, Requests
from .route_keeper import RouteKeeper
from .running_info import Clocks, offsets_of, running_info
from .send_back import SendBacks, decoded
from .stale_locks import StaleLocks
from .tails import Tails

log = structlog.get_logger("rocketcrew.member")


class GroupMember:
    """One client id in the group: heartbeats, look-ups, pulls, commits, send-backs, and the sign-off."""

    def __init__(
        self, settings: Settings, client_id: str, topics: Mapping[str, FilterExpression], core: Core, view: memoryview,
        acted: Callable[[], None], act_soon: Callable[[], None], stacks: Callable[[], Awaitable[str]],
        consume: Callable[[QueueInfo, bytes], Awaitable[ConsumeDirectlyResult]], left: StaleLocks, own_broker: str,
        sealed: Callable[[], Awaitable[bool]], all_sealed: Callable[[], bool], routes_file: Path | None = None,
        refused: Callable[[UsageError], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """For administrators: `stacks` says what every process does, `consume` gives one record to a worker.

        `sealed` has on the disk what an offset depends on that is to be sent; False: it may not be sent. `all_sealed` says
        whether it is so already. `routes_file` keeps routes for the next start. `own_broker`: as of Supervisor.
        `refused` hears that the cluster is another one than that of what is here.
        """
        self._settings = settings
        self._group = settings.consumer.group
        self._client_id = client_id
        self._core, self._view = core, view
        self._acted, self._act_soon, self._sealed, self._all_sealed = acted, act_soon, sealed, all_sealed
        self._loop = asyncio.get_running_loop()
        access = access_of(settings)
        self._remoting = Remoting(
            on_request=self._asked, on_connect=self._connected, on_close=self._connection_lost, access=access
        )
        self._cluster = Cluster(access, client_id=client_id, remoting=self._remoting, place=own_broker)
        self._operations = Operations(self._cluster)
        trace = settings.trace
        self._traces = (
            consumer_traces(self._cluster, self._group, trace.topic, trace.batch_max) if trace.enabled else None
        )
        self._send_backs = SendBacks(
            self._cluster, self._operations, self._group, settings.consumer.max_reconsume_times,
            locks=core.state.config.locks, errors=settings.consumer.dead_letter_errors,
        )  # fmt: skip
        self._locks = QueueLocks(self._cluster, self._operations, core, self._group, self._loop.time, acted, left)
        alone = is_broadcasting(settings)
        self._started_ms = wall_ms()
        self._subscriptions = Subscriptions(topics, self._group, self._started_ms, broadcasting=alone)
        self.wanted_tags = self._subscriptions.wanted_tags
        self._begun_anew: set[MessageQueue] = set()
        """Queues whose topic was deleted and has no route yet: they open at 0, whatever a broker still remembers."""
        self._tasks: set[asyncio.Task[None]] = set()
        interval_ms = settings.cluster.heartbeat_interval_ms
        self._heartbeats = Heartbeats(self._cluster, self._operations, self._heartbeat_data, interval_ms, self._run)
        self._routes = RouteKeeper(
            self._cluster, self._subscriptions.keys, RouteCache(routes_file) if routes_file else None, held=core.topics_held,
            changed=self._routes_changed, new_brokers=self._heartbeats.now, renewed=self._look_for_deleted, run=self._run,
            refused=refused, retry_topic=RETRY_PREFIX + self._group,
        )  # fmt: skip
        self._commits, self._first_offset = offset_store(
            settings, client_id, self._cluster, self._operations, core, self._loop.time
        )
        self._group_watch = GroupWatch(
            self._cluster, self._operations, self._subscriptions, self._group, interval_ms, self._run
        )
        self._pulls = Pulls(
            self._cluster, LastBodies(self._operations), Tails(self._operations, self._group), core, view, settings.consumer,
            self._subscriptions, self._may_commit, self._loop.time, self._group_watch.pull_refused, self._run, self._failed,
            acted,
        )  # fmt: skip
        self._pops = Pops(
            self._cluster, core, view, settings.consumer, self._subscriptions, self._send_backs, self._loop.time
        )
        self._queue_ends = QueueEnds(core, self._operations.max_offset, self._loop.time, self._run)
        self._look_ups = LookUps(self._cluster, self._operations, self._heartbeats, settings, client_id)
        asked = Asked(
            rebalance=self._rebalance, reset_offsets=self._reset_offsets, offsets=lambda topic: offsets_of(core.state, topic),
            info=self._running_info, stacks=stacks, consume=consume,
        )  # fmt: skip
        self._requests = Requests(self._group, asked, settings.cluster.namespace)
        self.performs = self._performs()

    def _performs(self) -> dict[type, Callable[[Any], None]]:
        """What is done for each kind of the core's actions."""
        return {
            act.FetchAssignment: lambda a: self._run(self._fetch_assignment(a), a),
            act.FetchOffset: lambda a: self._run(self._fetch_offset(a), a),
            act.Pull: self._pulls.pull,
            act.Pop: lambda a: self._run(self._then_act(self._pops.pop(a)), a),
            act.Ack: lambda a: self._run(self._then_act(self._pops.ack(a)), a),
            act.Renew: lambda a: self._run(self._then_act(self._pops.renew(a)), a),
            act.Commit: lambda a: self._run(self._commit(a), a),
            act.SendBack: self._send_back,
            act.Heartbeat: lambda _: self._heartbeats.now(),
            act.LockQueues: lambda a: self._run(self._locks.lock(a), a),
            act.UnlockQueues: lambda a: self._run(self._locks.unlock(a), a),
        }

    def traced(self, records: Sequence[TraceRecord]) -> None:
        """Take workers' trace records; what finds no room is dropped."""
        if self._traces is not None:
            for record in records:
                self._traces.append(record)

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the topics and join the group. Raises UnreachableError when no name server or broker answers. A join that is
        broken off signs off where it was heard."""
        await self._routes.start()
        if self._traces is not None:
            self._traces.start()
        await self._look_ups.start()
        await self._look_ups.check_brokers(self._subscriptions)
        await self._heartbeats.check_filters()
        try:
            await self._heartbeats.send()
        except BaseException:
            if self._heartbeats.known_to_any():
                await self.sign_off()
            raise
        self._heartbeats.arm()
        self._group_watch.arm()
        self._routes.arm()
        self._queue_ends.arm()

    async def sign_off(self) -> None:
        """Leave the group at every broker, so that it rebalances at once. Connections stay open, for locks that are given up
        when an ordered call has ended."""
        self._disarm()
        await self._heartbeats.sign_off(self._client_id, self._group, INNER_PRODUCER_GROUP)

    async def stop(self) -> None:
        """After the sign-off: send the traces that are left, and close."""
        traces = () if self._traces is None else (self._traces.close,)
        await take_each(*traces, self.kill)

    async def kill(self) -> None:
        """Close every connection now."""
        self._disarm()
        self._pulls.cancel()
        for task in list(self._tasks):
            task.cancel()
        await take_each(self._look_ups.kill, self._cluster.close, self._remoting.close)

    def _disarm(self) -> None:
        self._heartbeats.disarm()
        self._group_watch.disarm()
        self._routes.disarm()
        self._queue_ends.disarm()

    def _run(self, work: Coroutine[Any, Any, None], action: act.Action | None = None) -> None:
        """Run `work` in a task; `action` is what it carries out for the core, which hears of it should the task fail."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(task, action))

    def _ended(self, task: asyncio.Task[None], action: act.Action | None) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if action is not None:
            self._failed(error, action)
            return
        log.error("task_failed", task=repr(task.get_coro()), exc_info=error)
        self._core.unexpected_error()

    def _failed(self, error: BaseException, action: act.Action) -> None:
        """What carries the action out for the core has failed as nobody expected."""
        log.error("task_failed", task=type(action).__name__, exc_info=error)
        action_failed(self._core, action, self._loop.time())
        self._acted()

    # --- heartbeats and routes ----------------------------------------------------------------------------------

    def _heartbeat_data(self) -> HeartbeatData:
        consumer = ConsumerData(
            group_name=self._group,
            consume_type="CONSUME_PASSIVELY",
            message_model=self._settings.consumer.message_model,
            consume_from_where=self._settings.consumer.consume_from_where,
            subscription_data_set=tuple(self._subscriptions.values()),
            unit_mode=self._settings.cluster.unit_mode,
        )
        return HeartbeatData(self._client_id, (ProducerData(INNER_PRODUCER_GROUP),), (consumer,))

    async def _look_for_deleted(self) -> None:
        """Queues of deleted topics begin at 0, so that nothing is passed when the topic is made again. What is remembered of
        queues that have left is forgotten here too, as this is called every little while."""
        self._pulls.keep(self._core.queues_held())
        without_route = self._cluster.without_route
        self._begun_anew = {mq for mq in self._begun_anew if mq.topic in without_route}
        deleted = await deleted_queues(self._cluster, self._core.state.by_mq)
        if deleted:
            log.warning("topic_deleted", queues=[tuple(mq) for mq in deleted])
            self._begun_anew.update(deleted)
            self._reset_offsets(dict.fromkeys(deleted, 0))

    def _routes_changed(self) -> None:
        self._locks.routes_changed()
        self._rebalance()

    def _rebalance(self) -> None:
        self._core.handle(ev.Rebalance(), self._loop.time())
        self._acted()

    def wish(self, topic: str, expression: str) -> tuple[str, FilterExpression]:
        """The topic as brokers call it, and the filter (tags, or SQL92:expression). Raises UsageError for what cannot be."""
        topic = wrap(self._settings.cluster.namespace, topic)
        [wish] = subscriptions((f"{topic}:{expression}",)).values()
        check_consumer(self._settings, {topic: wish})
        return topic, wish

    async def check_filter(self, topic: str, expression: str) -> None:
        """Ask a broker whether it can filter so. Raises RocketcrewError when it says no, UsageError as `wish`."""
        name, wish = self.wish(topic, expression)
        subscription = SubscriptionData.of(name, wish.expression, 0, wish.type)
        await self._heartbeats.check_filter(
            self._core.state.config.client_id, self._settings.consumer.group, subscription
        )

    def subscribe(self, topic: str, wish: FilterExpression) -> bool:
        """Consume the topic from now on, or with another filter, both as `wish` gives them; False when it is so already."""
        if not self._subscriptions.subscribe(topic, wish, wall_ms()):
            return False
        log.info("subscribed", topic=topic, filter=str(wish))
        self._core.handle(ev.Subscribe(topic), self._loop.time())
        self._tell_subscriptions()
        return True

    def unsubscribe(self, topic: str) -> bool:
        """Consume the topic no more; False when it is not subscribed. Raises UsageError for the last topic."""
        topic = wrap(self._settings.cluster.namespace, topic)
        if not self._subscriptions.unsubscribe(topic):
            return False
        log.info("unsubscribed", topic=topic)
        self._core.handle(ev.Unsubscribe(topic), self._loop.time())
        self._tell_subscriptions()
        return True

    def _tell_subscriptions(self) -> None:
        self._group_watch.changed()
        self._heartbeats.subscriptions_changed()
        self._acted()

    def missing_topics(self) -> list[str]:
        """Those that are subscribed and do not exist yet."""
        return self._routes.missing()

    def picture(self) -> dict[str, Any]:
        """What the status shows of the subscriptions, and which name servers tell of them."""
        return {
            "subscriptions": {
                topic: {"filter": data.sub_string, "type": data.expression_type, "version": data.sub_version}
                for topic, data in self._subscriptions.items()
            },
            "subscription_mismatch": self._group_watch.mismatches,
            "name_servers": list(self._cluster.name_servers.addresses),
        }

    # --- the core's requests ------------------------------------------------------------------------------------

    async def _fetch_assignment(self, action: act.FetchAssignment) -> None:
        topic = action.topic
        found = await self._look_ups.assignment(topic, ordered=self._core.state.config.order != "concurrent")
        if found.queues is not None:
            self._routes.has_route(topic)
        late = self._core.assigning.is_late(topic, action.asked_at)
        answer = ev.Members(topic, found.queues, found.members, found.mine, action.asked_at, found.unlisted)
        self._core.handle(answer, self._loop.time())
        if found.pop is not None and not late:
            self._core.handle(ev.PopAssigned(topic, found.pop), self._loop.time())
        self._acted()

    async def _fetch_offset(self, action: act.FetchOffset) -> None:
        offset: int | None = None
        final = self._cluster.is_final(action.mq)
        try:
            if action.in_doubt:
                offset = await self._first_offset.group_is_at(action.mq, action.known)
            else:
                offset = await self._first(action.mq)
        except RocketcrewError as error:
            if not action.in_doubt:  # else pulls and commits say it
                log.warning("first_offset_not_found", **queue_keys(action.mq), error=str(error))
        final = final and self._cluster.is_final(action.mq)
        self._core.handle(ev.Opened(action.handle, offset, wall_ms(), final), self._loop.time())
        self._act_soon()

    async def _first(self, mq: MessageQueue) -> int:
        self._pulls.opening(mq)
        if mq in self._begun_anew:
            offset, why = 0, "its topic was deleted"
        else:
            offset, why = await self._first_offset.find(mq)
        log.info("queue_opened", **place_keys(mq, offset), reason=why)
        return offset

    async def _then_act(self, work: Awaitable[None]) -> None:
        await work
        self._acted()

    def _may_commit(self, mq: MessageQueue) -> bool:
        """Whether a pull may take an offset of the queue along: never the first of its topic, which must be alone
        (commits.py), and none that depends on what is not sealed yet."""
        return self._commits.known(mq) and self._all_sealed()

    async def _commit(self, action: act.Commit) -> None:
        if await self._sealed():
            await self._commits.commit(action)
        else:
            self._core.handle(ev.Committed(action.handle, action.offset, False), self._loop.time())
        self._acted()

    def _send_back(self, action: act.SendBack) -> None:
        """Copy and decode the record now, while its bytes are certainly ours, and send it back in a task. Broadcasting: it is
        over at once."""
        if action.mode is Mode.DROP:
            self._core.handle(ev.SentBack(action.handle, action.chunk_id, action.index, True), self._loop.time())
            self._acted()
            return
        record = bytes(self._view[action.start : action.end])
        self._run(self._send_back_task(action, record, decoded(record, action.mq)), action)

    async def _send_back_task(self, action: act.SendBack, record: bytes, message: StoredMessage | None) -> None:
        if action.check is not None:
            accepted = await self._pops.later(action, record, message)
        else:
            accepted = await self._send_backs.send(action, record, message)
        self._core.handle(ev.SentBack(action.handle, action.chunk_id, action.index, accepted), self._loop.time())
        self._acted()

    # --- connections --------------------------------------------------------------------------------------------

    async def _asked(self, address: str, command: Command) -> Command | None:
        return await self._requests.serve(address, command)

    def _reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        self._pulls.reset(offsets)
        self._core.handle(ev.ResetOffsets(offsets), self._loop.time())
        self._acted()

    def _running_info(self, stacks: str | None) -> ConsumerRunningInfo:
        return running_info(
            self._core.state, self._settings, self._subscriptions, name_servers=self._cluster.name_servers.addresses,
            started_ms=self._started_ms, clocks=Clocks(self._loop.time(), wall_ms()), jstack=stacks,
            pop_loops=self._core.popping.loops.values(),
        )  # fmt: skip

    def _connected(self, address: str) -> None:
        self._heartbeats.connected(address)
        self._locks.connected(address)

    def _connection_lost(self, address: str) -> None:
        self._heartbeats.forget(address)
        self._locks.connection_lost(address)
        self._pulls.connection_lost(address)
