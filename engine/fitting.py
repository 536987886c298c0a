"""Which settings mean something to the engine on Spark. Pure.

Those that hold mean what they mean to the supervisor. The others describe its own processes, queues and files; whoever sets
one of them expects something that will not happen, so that is refused, by name and with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..conf.settings import Settings, value_of
from ..conf.sources import show_setting
from ..remoting.errors import UsageError
from ..remoting.subscription import EXPRESSION_TAG, split_subscription
from ..spark.connect import is_remote
from ..workers.api import Handler
from ..workers.ddl import INFER

_PROCESSES = "Spark starts the Python processes: set spark.master, or spark.executor.cores in spark.conf"
_GROUP = "Spark divides the queues among tasks, and there is no member of the group"
_PULLS = "the source pulls whole ranges: see engine.max_offsets_per_trigger and engine.partitions"
_SEALED = "every batch is loaded when its last task has ended"
_SERVICE = "there is no supervisor process"
_SENTRY = "events are sent by workers: call sentry_sdk.init in the handler's set-up hook"

MEANINGLESS: Mapping[str, str] = {
    "cluster.instance_name": _GROUP, "cluster.client_ip": _GROUP, "cluster.unit_mode": _GROUP,
    "cluster.namesrv_domain_subgroup": "the source knows no such option", "cluster.heartbeat_interval_ms": _GROUP,
    "cluster.poll_name_server_interval_ms": "routes are looked up before each batch",
    "consumer.message_model": "a broadcasting member reads for its own host, and tasks run anywhere",
    "consumer.allocate_strategy": _GROUP, "consumer.allocate_queues": _GROUP,
    "consumer.consistent_hash_virtual_nodes": _GROUP, "consumer.machine_room_ids": _GROUP, "consumer.machine_rooms": _GROUP,
    "consumer.pull_interval_ms": _PULLS,
    "consumer.pull_threshold_for_queue": _PULLS, "consumer.pull_threshold_size_for_queue_mib": _PULLS,
    "consumer.pull_threshold_for_topic": _PULLS, "consumer.pull_threshold_size_for_topic_mib": _PULLS,
    "consumer.consume_concurrently_max_span": _PULLS,
    "consumer.order": "a failed message comes again by the retry topic, behind others: order needs the supervisor",
    "consumer.order_key": "order needs the supervisor", "consumer.order_on_failure": "order needs the supervisor",
    "consumer.suspend_current_queue_time_ms": "order needs the supervisor",
    "consumer.persist_consumer_offset_interval_ms": "offsets are told when the next batch is looked for",
    "consumer.rebalance_interval_ms": _GROUP, "consumer.client_rebalance": _GROUP,
    "consumer.pop_invisible_time_ms": _PULLS, "consumer.pop_batch_nums": _PULLS,
    "consumer.pop_threshold_for_queue": _PULLS, "consumer.suspend_timeout_ms": _PULLS,
    "consumer.local_offset_store_dir": "offsets are in Spark's checkpoint",
    "workers.count": _PROCESSES, "workers.transport": _PROCESSES, "workers.chunk_target_us": _PULLS,
    "workers.chunk_messages_max": _PULLS, "workers.chunks_in_flight": _PULLS,
    "workers.flush_interval_us": "a task reports once, at its end",
    "workers.boot_timeout_ms": _PROCESSES, "workers.recycle_messages": _PROCESSES,
    "workers.recycle_jitter_percent": _PROCESSES,
    "workers.recycle_memory_mib": "set spark.executor.pyspark.memory in spark.conf",
    "workers.recycle_age_s": _PROCESSES, "workers.recycle_share_percent": _PROCESSES,
    "workers.reload_canary_messages": "there is no reload: stop, and start with the new code",
    "workers.reload_canary_ms": "there is no reload: stop, and start with the new code",
    "workers.capture_output": "what a handler prints is in the logs of the executors",
    "workers.nice": _PROCESSES, "workers.cpu_affinity": _PROCESSES,
    "workers.async_concurrency": "a task has one message in hand at a time, coroutine or not",
    "workers.rate_limit": "tasks run side by side, and nobody counts over them: limit engine.max_offsets_per_trigger",
    "workers.topic_rate_limit": "tasks run side by side, and nobody counts over them: limit engine.max_offsets_per_trigger",
    "workers.topic_concurrency": "tasks run side by side, whatever their topics: limit spark.cores.max or the like",
    "workers.stall_timeout_ms": _PROCESSES,
    "memory.pulled_bytes_mib": _PULLS,
    "results.seal_idle_ms": _SEALED, "results.commit_after": _SEALED, "results.high_water_mib": _SEALED,
    "results.free_disk_min_mib": _SEALED,
    "spark.load": "batches are loaded by the engine itself; results.enabled = false drops rows",
    "spark.table": "the engine tells no metastore: have a loader fill the table (run without --engine), or tell it yourself",
    "spark.max_wait_ms": "a batch is loaded when it is done: see engine.trigger_interval_ms",
    "supervisor.journal_max_mib": _SERVICE,
    "hooks.on_start": _SERVICE, "hooks.on_rebalance": _GROUP, "hooks.on_dead_letter": _SERVICE,
    "hooks.on_worker_death": _PROCESSES, "hooks.timeout_ms": _SERVICE,
    "metrics.port": "Spark has a page of its own: set spark.ui.enabled = true in spark.conf", "metrics.host": _SERVICE,
    "metrics.port_count": _SERVICE, "metrics.page": _SERVICE, "metrics.token": _SERVICE,
    "trace.enabled": "message traces are told by members of the group", "trace.topic": "message traces are not told",
    "trace.batch_max": "message traces are not told",
    "sentry.dsn": _SENTRY, "sentry.environment": _SENTRY, "sentry.release": _SENTRY, "sentry.sample_percent": _SENTRY,
    "sentry.include_bodies": _SENTRY,
}  # fmt: skip
# Not drain_deadline_ms: a stop deadline must be at least that, so who wants a short one sets it.
HARMLESS: Mapping[str, object] = {"consumer.order": "concurrent"}
"""Values that say what is so anyhow."""


def problems_of(settings: Settings) -> Iterator[str]:
    """Every setting that somebody has set and that means nothing here, with the reason."""
    for name, why in MEANINGLESS.items():
        origin, value = settings.origin[name], value_of(settings, name)
        if origin != "default" and value != HARMLESS.get(name):
            yield f"{name} = {show_setting(name, value)} (from {origin}): {why}"


def check_settings(settings: Settings) -> None:
    """Raise UsageError naming all settings and subscriptions that cannot hold."""
    found = list(problems_of(settings))
    if settings.results.schema == INFER:
        found.append("results.schema = infer: tasks on many hosts would find many: declare the columns")
    if is_remote(settings.spark.master):
        found.append(
            "spark.master: a Spark Connect server has its driver elsewhere, and batches run in this process: use local[N],"
            " spark://... or another master of spark-submit (`load` and `query` take sc://)"
        )
    for text in settings.consumer.topics:
        topic, wish = split_subscription(text)
        if wish.type != EXPRESSION_TAG:
            found.append(f"consumer.topics: {topic} with an SQL92 filter: brokers filter those, and a batch must be able to"
                         " run again: use tags, or a filter in the handler's decorator")  # fmt: skip
    if found:
        raise UsageError(
            "these settings have no meaning with --engine spark; leave them out:\n"
            + "\n".join(f"  {one}" for one in found)
        )


def check_handler(handler: Handler) -> None:
    """Raise UsageError for what the decorator asks for and Spark cannot keep."""
    if handler.is_ordered or not handler.auto_commit:
        asked = f'order="{handler.order}"' if handler.is_ordered else "auto_commit=False"
        raise UsageError(
            f"handler {handler.name} has {asked}: {MEANINGLESS['consumer.order']}. Run it with --engine workers"
        )
    if handler.sends:
        raise UsageError(
            f"handler {handler.name} has sends=True: the tasks of a job send no messages. Run it with --engine workers"
        )
