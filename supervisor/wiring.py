"""From settings to what the core and the workers are made with."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from math import ceil
from pathlib import Path

from ..client.identity import client_id, client_ip, instance_name
from ..conf.delta_names import maps_new_names
from ..conf.formats import on_hdfs, per_second
from ..conf.limits import group_folders, own_cgroup, read_cgroup
from ..conf.segment_format import FOLDER_FORMATS
from ..conf.settings import Settings, is_broadcasting, logs_as
from ..remoting.names import RETRY_PREFIX
from ..remoting.namespaces import wrap
from ..spark.iceberg_catalog import ICEBERG, ICEBERG_SPARK, catalog_of, hadoop_catalog_of
from ..spark.object_store import check_conditional_puts, place_of
from ..spark.table_columns import refuse_foreign, table_columns
from ..workers.boot import COLUMNS_FILE, NEW_TABLE, TableSpec, WorkerBoot, hard_limit_ms, worker_bounds
from ..workers.cells import CELLS_FILE
from ..workers.failures import Attempts
from ..workers.link import Transport
from ..workers.loading import HandlerSpec
from ..workers.routing import agreed_topics
from ..workers.sentry import MODULE as SENTRY_MODULE
from ..workers.slab_memory import SlabMemory
from ..workers.spawn import Forkserver
from .backlog import Marks
from .core.allocation import strategy_of
from .core.order import Order
from .core.rate_limits import MEMBER
from .core.staffing import Policy
from .core.state import CoreConfig
from .loader_child import DRAIN_TIMEOUT_S, where
from .member.access import access_of
from .pool.child import NewWorker
from .slot import Slot

CELL_SLOTS = 512
"""Workers at one time: twice the most that may be configured, for each may have its successor beside it."""

LEAVE_SLACK_S = 15.0
"""What a worker that leaves may take after its last call: a stack, sealing, the tear-down hook."""


def own_client_id(settings: Settings) -> str:
    """`ip@instance[@unit]`, the instance being pid#nanos for a clustering member without a name of its own."""
    cluster = settings.cluster
    instance = instance_name(
        cluster.instance_name, pid=os.getpid(), nanos=time.monotonic_ns(), keep_default=is_broadcasting(settings)
    )
    return client_id(client_ip(cluster.client_ip), instance, cluster.unit_name)


def core_config(settings: Settings, client_id: str, topics: tuple[str, ...]) -> CoreConfig:
    """The settings that the core decides by; `topics` are the subscribed ones."""
    s, c = settings, settings.consumer
    loaded = s.results.enabled and s.results.commit_after == "loaded"
    return CoreConfig(
        client_id=client_id,
        group=c.group,
        topics=topics if is_broadcasting(settings) else (*topics, RETRY_PREFIX + c.group),
        broadcasting=is_broadcasting(settings),
        strategy=strategy_of(c),
        pull_threshold_for_queue=c.pull_threshold_for_queue,
        pull_threshold_size_bytes=c.pull_threshold_size_for_queue_mib << 20,
        pull_threshold_for_topic=c.pull_threshold_for_topic,
        pull_threshold_size_for_topic_bytes=max(-1, c.pull_threshold_size_for_topic_mib << 20),
        consume_concurrently_max_span=c.consume_concurrently_max_span,
        pull_interval_ms=c.pull_interval_ms,
        pop_threshold_for_queue=c.pop_threshold_for_queue,
        pop_elsewhere_after_ms=c.pop_invisible_time_ms + 2 * s.spark.max_wait_ms,
        persist_interval_ms=c.persist_consumer_offset_interval_ms,
        rebalance_interval_ms=c.rebalance_interval_ms,
        chunk_target_us=s.workers.chunk_target_us,
        chunk_messages_max=min(s.workers.chunk_messages_max, c.consume_concurrently_max_span),
        batch_messages_max=c.consume_message_batch_max_size,
        report_after_ms=s.workers.flush_interval_us / 1000,
        chunks_in_flight=s.workers.chunks_in_flight,
        topic_concurrency=topic_concurrency(settings),
        rate_limits={name: per_second(rate) for name, rate in rates_written(settings).items()},
        rates_written=rates_written(settings),
        order_holds=c.order_on_failure == "hold",
        max_reconsume_times=c.max_reconsume_times,
        suspend_current_queue_time_ms=c.suspend_current_queue_time_ms,
        send_back_retry_ms=s.supervisor.send_back_retry_ms,
        delay_level_when_next_consume=c.delay_level_when_next_consume,
        max_worker_deaths=s.workers.max_worker_deaths,
        seal_rows=s.results.seal_rows,
        commit_after_loaded=loaded,
        drain_deadline_ms=s.supervisor.drain_deadline_ms,
        stop_deadline_ms=s.supervisor.stop_deadline_ms,
        stop_load_ms=int(DRAIN_TIMEOUT_S * 1000) if loaded else 0,
    )


def topic_concurrency(settings: Settings) -> dict[str, int]:
    """Limits by topic, named as brokers know it."""
    namespace = settings.cluster.namespace
    parts = (entry.partition("=") for entry in settings.workers.topic_concurrency)
    return {wrap(namespace, topic): int(calls) for topic, _, calls in parts}


def rates_written(settings: Settings) -> dict[str, str]:
    """Rates such as `10/m` by topic, named as brokers know it, and of the whole member."""
    namespace = settings.cluster.namespace
    parts = (entry.partition("=") for entry in settings.workers.topic_rate_limit)
    rates = {wrap(namespace, topic): rate for topic, _, rate in parts}
    return rates | ({MEMBER: settings.workers.rate_limit} if settings.workers.rate_limit else {})


def renewed_config(running: CoreConfig, settings: Settings) -> CoreConfig:
    """After a reload: what the settings say now, and what the member is: its topics, which may have changed meanwhile, and
    its order, which the handler has a word in."""
    kept = {field.name: getattr(running, field.name) for field in fields(Order)}
    return replace(core_config(settings, running.client_id, ()), topics=running.topics, **kept)


def backlog_marks(settings: Settings) -> Marks:
    """When sealed segments and the disk hold up pulling."""
    return Marks(settings.results.high_water_mib << 20, settings.results.free_disk_min_mib << 20)


def staff_policy(settings: Settings) -> Policy:
    """How many workers there are, and when they are replaced."""
    w = settings.workers
    return Policy(
        w.count or available_cores(),
        recycle_messages=w.recycle_messages,
        recycle_jitter_percent=w.recycle_jitter_percent,
        recycle_age_s=float(w.recycle_age_s),
        recycle_share_percent=w.recycle_share_percent,
        boot_timeout_s=w.boot_timeout_ms / 1000,
        canary_messages=w.reload_canary_messages,
        canary_s=w.reload_canary_ms / 1000,
        leave_max_s=hard_limit_ms(settings) / 1000 + LEAVE_SLACK_S,
    )


def available_cores() -> int:
    """Cores that this process may use: those of its affinity, or as many as the CPU quota of its container amounts to.

    A quota gives time, and hides no core from who counts them. The kernel stops all threads of a control group that has used
    up its time of a period: more busy workers than that would stand still together, and the supervisor with them.
    """

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, quota_cores(own_cgroup(), read_cgroup) or cores)


def quota_cores(own: str, text: Callable[[str], str]) -> int | None:
    """The smallest quota of this process's control group and those above it, in cores, of which a part counts as one; None
    where there is no quota. `own` and `text` are as in conf/limits.py. Pure but for `text`.
    """
    found = [cores for each in _quotas(own, text) if (cores := _cores_of(each))]
    return min(found, default=None)


def _quotas(own: str, text: Callable[[str], str]) -> Iterator[str]:
    """As "quota period", in us."""
    for version_1, folder in group_folders(own, "cpu"):
        if version_1:
            yield f"{text(f'{folder}cpu.cfs_quota_us')} {text(f'{folder}cpu.cfs_period_us')}"
        else:
            yield text(f"{folder}cpu.max")


def _cores_of(quota: str) -> int | None:
    """None where it is "max" or -1."""
    numbers = [int(each) for each in quota.split() if each.isdigit()]
    return max(1, ceil(numbers[0] / numbers[1])) if len(numbers) == 2 and numbers[1] else None


def with_topics(settings: Settings, handler: HandlerSpec) -> Settings:
    """The settings with the topics that the handler names. Raises UsageError where they contradict the configured ones."""
    topics = agreed_topics(settings.consumer.topics, handler.subscriptions or (), f"handler {handler.name}")
    return replace(settings, consumer=replace(settings.consumer, topics=topics))


def forkserver_for(handler: HandlerSpec, settings: Settings) -> Forkserver:
    """The forkserver of one generation, with the handler's module to import."""
    modules = [handler.module] if handler.module else []
    if settings.sentry.dsn:
        modules.insert(0, SENTRY_MODULE)  # takes 200 ms to import, and starts no thread
    return Forkserver(modules, start_timeout_ms=settings.workers.boot_timeout_ms, log=logs_as(settings))


def table_spec(settings: Settings, slot: Slot) -> TableSpec:
    """The table as it is now, which workers that start compare their columns with. Raises as `table_at`."""
    return table_at(settings, slot.table)


def table_at(settings: Settings, folder: Path, *, probe: bool = True) -> TableSpec:
    """As `table_spec`; `folder` is the group's own table, where no other is named. An S3 server must prove that it keeps
    conditional puts, by an object that is put and deleted, unless `probe` is False. Of a table on HDFS nothing is asked, as
    that takes Spark: the loader compares columns at its start.

    Raises UsageError for a folder of something else, and UsageError and LoaderError for a table on an S3 server that can't be
    asked, or that ignores conditional puts.
    """
    target = where(settings.spark, folder)
    columns: tuple[tuple[str, str], ...] = ()
    if settings.results.enabled and settings.spark.format in FOLDER_FORMATS and not on_hdfs(target):
        place = place_of(target, settings.spark.options)
        if settings.spark.format in (ICEBERG, ICEBERG_SPARK) and isinstance(place, Path):
            catalog_of(place, settings.spark.options)  # refused here, before a message is pulled
        if settings.spark.load and probe:
            check_conditional_puts(place)
        if settings.spark.load and isinstance(place, Path):
            refuse_foreign(place, settings.spark.format)
        columns = table_columns(place)
    elif settings.results.enabled and settings.spark.format == ICEBERG_SPARK:
        hadoop_catalog_of(target, settings.spark.options)
    mapped = maps_new_names(settings.spark.conf)
    return TableSpec(target, columns, settings.spark.partition_by, settings.spark.format, mapped)


def attempts_of(s: Settings) -> Attempts:
    """What decides whether a failure is the last one."""
    c = s.consumer
    return Attempts(c.max_reconsume_times, c.delay_level_when_next_consume, is_broadcasting(s))


@dataclass(frozen=True, slots=True)
class Boots:
    """Makes the start parameters of workers."""

    settings: Settings
    handler: HandlerSpec
    slot: Slot
    transport: Transport
    memory: SlabMemory | None
    """None: the transport is a stream."""
    client_id: str
    table: TableSpec = NEW_TABLE

    def __call__(self, new: NewWorker) -> WorkerBoot:
        s = self.settings
        return WorkerBoot(
            worker_id=new.worker_id,
            index=new.index,
            handler=self.handler,
            link=new.link,
            transport=self.transport,
            slab=self.memory.handle() if self.memory is not None else None,
            group=self.slot.key_group,
            segments_dir=self.slot.segments if s.results.enabled else None,
            schema=s.results.schema,
            columns_file=self.slot.path.parent / COLUMNS_FILE,
            table=self.table,
            salvage=new.salvage,
            cells_path=self.slot.path / CELLS_FILE,
            cell_slot=new.cell_slot,
            stacks=new.stacks,
            capture_output=s.workers.capture_output,
            nice=s.workers.nice,
            cpu_affinity=s.workers.cpu_affinity,
            async_concurrency=s.workers.async_concurrency,
            recycle_memory_mib=s.workers.recycle_memory_mib,
            member=self.client_id,
            namespace=s.cluster.namespace or s.cluster.namespace_v2,
            traces=s.trace.enabled,
            spans=s.trace.spans,
            sentry=s.sentry if s.sentry.dsn else None,
            attempts=attempts_of(s),
            bounds=worker_bounds(s),
            access=None if self.handler.sends is False else access_of(s),
            log_format=s.log.format,
            log_level=s.log.level,
            log_file=s.log.file,
        )
