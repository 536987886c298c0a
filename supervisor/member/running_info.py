"""What `mqadmin consumerStatus` and the console show of a member: answer to GET_CONSUMER_RUNNING_INFO.

DefaultMQPushConsumerImpl.consumerRunningInfo, ProcessQueue.fillProcessQueueInfo and MixAll.object2Properties (popped queues
are in a table of their own, which tools of 5.x show): the settings
are under the names of the fields of DefaultMQPushConsumer and ClientConfig, those of our own under their own names with
a `rocketcrew.` before them. The core's times are monotonic seconds; on the wire they are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...conf.settings import Settings
from ...remoting.bodies import ConsumerRunningInfo, PopProcessQueueInfo, ProcessQueueInfo, SubscriptionData
from ...remoting.queues import MessageQueue
from ..core.order import QUEUE
from ..core.popping import PopLoop
from ..core.process_queue import PulledQueue
from ..core.retry_delays import RETRY_DELAYS, encode_counts
from ..core.state import State
from ..core.states import QueueState, WorkerState

CLIENT_VERSION = "V5_5_0"
"""The name of the version that we announce (VERSION of remoting/codes.py) in MQVersion.java."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """One instant on both clocks."""

    monotonic_s: float
    wall_ms: int

    def wall_of(self, monotonic_s: float) -> int:
        """That moment in ms since 1970; 0 when it never was."""
        return self.wall_ms - round((self.monotonic_s - monotonic_s) * 1000) if monotonic_s > 0 else 0


def running_info(
    state: State, settings: Settings, subscriptions: Mapping[str, SubscriptionData], *, name_servers: Iterable[str],
    started_ms: int, clocks: Clocks, jstack: str | None = None, pop_loops: Iterable[PopLoop] = (),
) -> ConsumerRunningInfo:  # fmt: skip
    """The whole answer. `started_ms` is when the member was started, `jstack` the stacks if they were asked for."""
    ready = sum(worker.state is WorkerState.READY for worker in state.workers.values())
    return ConsumerRunningInfo(
        properties=properties(settings, state, name_servers=name_servers, started_ms=started_ms, workers=ready),
        subscription_set=tuple(subscriptions[topic] for topic in sorted(subscriptions)),
        mq_table={
            q.pq.mq: process_queue_info(q, clocks)
            for q in sorted(state.pulled.values(), key=lambda q: q.pq.mq)
            if q.pq.state is not QueueState.OPENING
        },
        mq_pop_table={loop.mq: pop_queue_info(loop, clocks) for loop in sorted(pop_loops, key=lambda loop: loop.mq)},
        status_table={topic: state.stats.status(topic) for topic in sorted(subscriptions)},
        user_consumer_info={
            "rocketcrew.workers": str(ready),
            **{f"rocketcrew.{name}": str(value) for name, value in state.counters.as_dict().items()},
            RETRY_DELAYS: encode_counts(state.retry_delays.waiting(clocks.monotonic_s)),
        },
        jstack=jstack,
    )


def process_queue_info(q: PulledQueue, clocks: Clocks) -> ProcessQueueInfo:
    """One queue. Cached are the unfinished messages; `locked` is true for concurrent consumers, as Java has it."""
    pq = q.pq
    locks = pq.locked_until != float("inf")
    return ProcessQueueInfo(
        commit_offset=pq.head_offset,
        cached_msg_min_offset=pq.next_offset - pq.span if pq.unfinished else 0,
        cached_msg_max_offset=pq.next_offset - 1 if pq.unfinished else 0,
        cached_msg_count=pq.unfinished,
        cached_msg_size_in_mib=pq.unfinished_bytes >> 20,
        locked=pq.locked,
        droped=pq.state is not QueueState.ASSIGNED,
        last_lock_timestamp=clocks.wall_of(pq.locked_at) if locks else clocks.wall_ms,
        last_pull_timestamp=clocks.wall_of(q.last_pull),
        last_consume_timestamp=clocks.wall_of(pq.last_consume),
    )


def pop_queue_info(loop: PopLoop, clocks: Clocks) -> PopProcessQueueInfo:
    """One assignment that is popped (PopProcessQueue.fillPopProcessQueueInfo); one that was taken away is left out."""
    return PopProcessQueueInfo(loop.in_hand, droped=False, last_pop_timestamp=clocks.wall_of(loop.last_pop))


def offsets_of(state: State, topic: str) -> dict[MessageQueue, int]:
    """The offsets that may be committed of a topic's queues (GET_CONSUMER_STATUS_FROM_CLIENT; cloneOffsetTable)."""
    return {
        pq.mq: pq.head_offset
        for pq in state.by_topic.get(topic, {}).values()
        if pq.state in (QueueState.ASSIGNED, QueueState.DRAINING)
    }


def properties(
    settings: Settings, state: State, *, name_servers: Iterable[str], started_ms: int, workers: int
) -> dict[str, str]:
    """The settings as text, under Java's names, and the properties that tools ask for."""
    c, cluster = settings.consumer, settings.cluster
    servers = list(name_servers)
    ip, _, rest = state.config.client_id.partition("@")
    values: dict[str, object] = {
        "consumerGroup": c.group,
        "messageModel": c.message_model,
        "consumeFromWhere": c.consume_from_where,
        "consumeTimestamp": c.consume_timestamp or None,
        "allocateMessageQueueStrategy": c.allocate_strategy,
        "consumeThreadMin": workers,
        "consumeThreadMax": workers,
        "consumeConcurrentlyMaxSpan": c.consume_concurrently_max_span,
        "pullThresholdForQueue": c.pull_threshold_for_queue,
        "pullThresholdSizeForQueue": c.pull_threshold_size_for_queue_mib,
        "pullThresholdForTopic": c.pull_threshold_for_topic,
        "pullThresholdSizeForTopic": c.pull_threshold_size_for_topic_mib,
        "pullInterval": c.pull_interval_ms,
        "consumeMessageBatchMaxSize": c.consume_message_batch_max_size,
        "pullBatchSize": c.pull_batch_size,
        "maxReconsumeTimes": c.max_reconsume_times,
        "consumeTimeout": c.consume_timeout_min,
        "namesrvAddr": ";".join(servers),
        "clientIP": ip,
        "instanceName": rest.partition("@")[0],
        "unitName": cluster.unit_name or None,
        "pollNameServerInterval": cluster.poll_name_server_interval_ms,
        "heartbeatBrokerInterval": cluster.heartbeat_interval_ms,
        "persistConsumerOffsetInterval": c.persist_consumer_offset_interval_ms,
        "mqClientApiTimeout": cluster.request_timeout_ms,
        "unitMode": cluster.unit_mode,
        "namespace": cluster.namespace or None,
        "namespaceV2": cluster.namespace_v2 or None,
        "vipChannelEnabled": cluster.vip_channel_enabled,
        "useTLS": settings.security.tls_enable,
        "language": "PYTHON",
        "rocketcrew.delay_level_when_next_consume": c.delay_level_when_next_consume,
        "rocketcrew.transport": settings.workers.transport,
        "rocketcrew.pulled_bytes_mib": settings.memory.pulled_bytes_mib,
        "rocketcrew.order": state.config.order,
        "suspendCurrentQueueTimeMillis": c.suspend_current_queue_time_ms,
        "PROP_CONSUMEORDERLY": state.config.order == QUEUE,
        "PROP_THREADPOOL_CORE_SIZE": workers,
        "PROP_CONSUMER_START_TIMESTAMP": started_ms,
        "PROP_NAMESERVER_ADDR": "".join(f"{server};" for server in servers),
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CLIENT_VERSION": CLIENT_VERSION,
    }
    return {name: _text(value) for name, value in values.items() if value is not None}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
