"""The table of all settings, and what must hold between two of them.

`defaults.toml` is what users read: meaning, unit, range and the reason of each default. This table is what the machine
reads. `tests/unit/conf` holds the two and the dataclasses of `settings.py` against each other, so that a setting in one
of them alone, or a range that two of them tell differently, fails a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ..remoting.names import DELAY_LEVEL_MAX
from . import formats
from .rules import Choice, Pairs, Rule, Switch, Text, Texts, Whole, any_text
from .segment_format import FOLDER_FORMATS

# Brokers sweep held pulls every 5 s, so a pull may be answered that much after its suspend time (PullRequestHoldService).
PULL_HOLD_SWEEP_MS: Final = 5000

_NAME = Text("letters, digits and _ . # % | -", formats.plain_name, empty_ok=False)
_FOLDER = Text("a folder's path", formats.folder, empty_ok=False, length_max=4096)
_PATH = Text("a file's path, or empty", length_max=4096)
_SECRET = Text("a text, or empty", length_max=65_536, secret=True)
_NAMESPACE = f"at most {formats.NAMESPACE_LENGTH_MAX} of the characters letters, digits, % | _ -, or empty"
_HOST = Text("a host name or an IP address", formats.host, empty_ok=False)


def _ms(low: int, high: int) -> Whole:
    return Whole(low, high, "ms")


def _mib(low: int, high: int) -> Whole:
    return Whole(low, high, "MiB")


_BROKER_NAME = f"1 to {formats.TOPIC_LENGTH_MAX} of the characters letters, digits, % | _ -"
_GROUP = f"1 to {formats.GROUP_LENGTH_MAX} of the characters letters, digits, % | _ - and not DEFAULT_CONSUMER"
_TRACE_TOPIC = f"at most {formats.TOPIC_LENGTH_MAX} of the characters letters, digits, % | _ -, or empty"
_TOPICS = (
    'each "topic", "topic:tagA || tagB" or "topic:SQL92:expression", a topic once,'
    f" at most {formats.TOPIC_LENGTH_MAX} characters"
)
_HOOK = Text("package.module:function, or empty", formats.import_path)
_STRATEGIES = f"{', '.join(formats.STRATEGIES)}, or package.module:function"
_LEVELS = f"numbers above 0, each followed by ms, s, m, h or d, at most {formats.DELAY_LEVELS_MAX}, at most 3d each"

SCHEMA: Final[Mapping[str, Mapping[str, Rule]]] = {
    "cluster": {
        "name_servers": Texts('each "host:port", a server once', formats.address, separators=";,"),
        "namesrv_domain": Text("host or host:port, or empty", formats.domain),
        "namesrv_domain_subgroup": _NAME,
        "unit_mode": Switch(),
        "namespace": Text(_NAMESPACE, formats.namespace),
        "namespace_v2": Text("letters, digits and _ . # % | -, or empty", formats.plain_name),
        "vip_channel_enabled": Switch(),
        "unit_name": Text("letters, digits and _ . # % | -, or empty", formats.plain_name),
        "instance_name": _NAME,
        "client_ip": Text("an IP address, or empty", formats.ip_address),
        "heartbeat_interval_ms": _ms(100, 60_000),
        "poll_name_server_interval_ms": _ms(100, 600_000),
        "request_timeout_ms": _ms(100, 600_000),
        "connect_timeout_ms": _ms(100, 600_000),
    },
    "security": {
        "access_key": Text("a text, or empty", length_max=1024),
        "secret_key": _SECRET,
        "security_token": _SECRET,
        "key_file": _PATH,
        "tls_enable": Switch(),
        "tls_auth_server": Switch(),
        "tls_trust_cert_path": _PATH,
        "tls_cert_path": _PATH,
        "tls_key_path": _PATH,
        "tls_key_password": _SECRET,
        "tls_check_hostname": Switch(),
        "tls_server_name": Text("a host name, or empty", formats.host),
    },
    "consumer": {
        "group": Text(_GROUP, formats.group),
        "topics": Texts(_TOPICS, formats.subscription, key=formats.topic_of, split=formats.split_subscriptions),
        "message_model": Choice(("CLUSTERING", "BROADCASTING")),
        "consume_from_where": Choice(
            (
                "CONSUME_FROM_LAST_OFFSET",
                "CONSUME_FROM_FIRST_OFFSET",
                "CONSUME_FROM_TIMESTAMP",
                # Deprecated in Java, and there as here the same as the first.
                "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
                "CONSUME_FROM_MIN_OFFSET",
                "CONSUME_FROM_MAX_OFFSET",
            )
        ),
        "consume_timestamp": Text("yyyyMMddHHmmss, or empty", formats.consume_timestamp),
        "allocate_strategy": Text(_STRATEGIES, formats.allocate_strategy, empty_ok=False),
        "allocate_queues": Texts('each "topic@broker:queueId", a queue once', formats.queue, entries_max=65_536),
        "consistent_hash_virtual_nodes": Whole(1, 1000, "places"),
        "machine_room_ids": Texts("each a room's name, a room once", formats.plain_name),
        "machine_rooms": Pairs(),
        "pull_batch_size": Whole(1, 1024, "messages"),
        "pull_interval_ms": _ms(0, 65_535),
        "pull_threshold_for_queue": Whole(1, 65_535, "messages"),
        "pull_threshold_size_for_queue_mib": _mib(1, 1024),
        "pull_threshold_for_topic": Whole(1, 6_553_500, "messages", also=(-1,), also_means="off"),
        "pull_threshold_size_for_topic_mib": Whole(1, 102_400, "MiB", also=(-1,), also_means="off"),
        "consume_concurrently_max_span": Whole(1, 65_535, "offsets"),
        "consume_message_batch_max_size": Whole(1, 1024, "messages"),
        "consume_timeout_min": Whole(1, 10_080, "minutes"),
        "max_reconsume_times": Whole(0, 2_147_483_647, "attempts", also=(-1,), also_means="RocketMQ's 16"),
        "order": Choice(("auto", "concurrent", "queue", "key")),
        "order_key": Text("a property's name, or empty", formats.property_name, length_max=255),
        "order_on_failure": Choice(("hold", "pass")),
        "suspend_current_queue_time_ms": _ms(10, 30_000),
        "delay_level_when_next_consume": Whole(
            0, DELAY_LEVEL_MAX, also=(-1,), also_means="straight to the dead-letter topic"
        ),
        "dead_letter_errors": Switch(),
        "persist_consumer_offset_interval_ms": _ms(100, 600_000),
        "rebalance_interval_ms": _ms(100, 600_000),
        "client_rebalance": Switch(),
        "pop_invisible_time_ms": _ms(5_000, 300_000),
        "pop_batch_nums": Whole(1, 32, "messages"),
        "pop_threshold_for_queue": Whole(1, 65_535, "messages"),
        "suspend_timeout_ms": _ms(0, 60_000),
        "pull_timeout_ms": _ms(1000, 600_000),
        "local_offset_store_dir": Text("a folder's path, or empty", formats.folder, length_max=4096),
    },
    "workers": {
        "count": Whole(0, 256, "processes"),
        "transport": Choice(("auto", "slab", "stream")),
        "chunk_target_us": Whole(100, 1_000_000, "us"),
        "chunk_messages_max": Whole(1, 1024, "messages"),
        "chunks_in_flight": Whole(1, 16, "chunks"),
        "flush_interval_us": Whole(0, 100_000, "us"),
        "boot_timeout_ms": _ms(1000, 3_600_000),
        "recycle_messages": Whole(0, 1_000_000_000, "messages"),
        "recycle_jitter_percent": Whole(0, 100, "per cent"),
        "recycle_memory_mib": _mib(0, 1_048_576),
        "recycle_age_s": Whole(0, 31_536_000, "s"),
        "recycle_share_percent": Whole(1, 100, "per cent"),
        "reload_canary_messages": Whole(0, 1_000_000, "messages"),
        "reload_canary_ms": _ms(1000, 3_600_000),
        "capture_output": Switch(),
        "nice": Whole(0, 19),
        "cpu_affinity": Choice(("none", "spread")),
        "async_concurrency": Whole(1, 10_000, "calls"),
        "topic_concurrency": Texts(
            'each "topic=calls", a topic once', formats.topic_limit, key=lambda entry: entry.partition("=")[0]
        ),
        "rate_limit": Text('messages and a unit such as "100/s", "30/m", "10/h", or empty', formats.rate_limit),
        "topic_rate_limit": Texts(
            'each "topic=100/s", a topic once', formats.topic_rate_limit, key=lambda entry: entry.partition("=")[0]
        ),
        "soft_time_limit_ms": _ms(0, 604_800_000),
        "hard_time_limit_ms": _ms(0, 604_800_000),
        "stall_timeout_ms": _ms(1000, 3_600_000),
        "max_worker_deaths": Whole(1, 100, "deaths"),
    },
    "memory": {
        "pulled_bytes_mib": _mib(1, 65_536),
    },
    "results": {
        "enabled": Switch(),
        "schema": Text("DDL such as: module string, line int; infer; or empty"),
        "seal_rows": Whole(1, 10_000_000, "rows"),
        "seal_bytes_mib": _mib(1, 1024),
        "seal_idle_ms": _ms(10, 3_600_000),
        "commit_after": Choice(("sealed", "loaded")),
        "high_water_mib": _mib(0, 1 << 20),
        "free_disk_min_mib": _mib(0, 1 << 20),
    },
    "spark": {
        "load": Switch(),
        "target": Text("a folder's path, s3://bucket/table, or empty", length_max=4096),
        "format": Text(
            "parquet, pyarrow, delta, deltalake, iceberg, iceberg-spark, foreach, or another format of Spark",
            formats.table_format,
            empty_ok=False,
            length_max=255,
        ),
        "table": Text("database.table, or empty", formats.metastore_name),
        "function": Text("module:function, or empty", formats.import_path, length_max=4096),
        "partition_by": Texts("each a column of the rows, a column once", formats.plain_name),
        "delta_jars": Text("a folder, or files with commas", length_max=65_536),
        "iceberg_jars": Text("a folder, or files with commas", length_max=65_536),
        "master": Text("a Spark master URL", empty_ok=False, length_max=4096),
        "driver_memory": Text("a number followed by k, m or g", formats.java_memory, empty_ok=False),
        "max_wait_ms": _ms(100, 3_600_000),
        "max_rows": Whole(1, 100_000_000, "rows"),
        "max_bytes_mib": _mib(1, 65_536),
        "target_file_mib": _mib(1, 65_536),
        "jvm_timeout_ms": _ms(0, 3_600_000),
        "on_recreated": Choice(("stop", "epoch")),
        "on_gap": Choice(("stop", "leave")),
        "keep_outcomes_days": Whole(1, 36_500, "days"),
        "vacuum": Switch(),
        "merge_files": Switch(),
        "conf": Pairs(),
        "options": Pairs(),
        "java_home": Text("a folder's path, or empty", length_max=4096),
    },
    "engine": {
        "max_offsets_per_trigger": Whole(1, 1_000_000_000, "messages"),
        "trigger_interval_ms": _ms(0, 3_600_000),
        "partitions": Whole(0, 100_000, "tasks"),
        "py_files": Texts("each the path or URL of a .py, .zip or .egg file, a file once", any_text),
    },
    "supervisor": {
        "data_dir": _FOLDER,
        "stop_deadline_ms": _ms(100, 3_600_000),
        "drain_deadline_ms": _ms(0, 600_000),
        "send_back_retry_ms": _ms(100, 600_000),
        "journal_max_mib": _mib(1, 4096),
    },
    "metrics": {
        "port": Whole(0, 65_535),
        "port_count": Whole(1, 1_000),
        "host": _HOST,
        "page": Switch(),
        "token": _SECRET,
    },
    "trace": {
        "enabled": Switch(),
        "topic": Text(_TRACE_TOPIC, formats.broker_name),
        "batch_max": Whole(1, 20, "records"),
        "spans": Switch(),
    },
    "sentry": {
        "dsn": Text("a DSN as Sentry shows it, http(s)://KEY@HOST/PROJECT, or empty", formats.sentry_dsn, secret=True),
        "environment": Text("at most 64 characters without blanks and slashes, or empty", formats.sentry_environment),
        "release": Text("at most 200 characters, or empty", length_max=200),
        "sample_percent": Whole(1, 100, "per cent"),
        "include_bodies": Switch(),
    },
    "hooks": {
        "on_start": _HOOK,
        "on_rebalance": _HOOK,
        "on_dead_letter": _HOOK,
        "on_worker_death": _HOOK,
        "timeout_ms": _ms(10, 600_000),
    },
    "log": {
        "level": Choice(("debug", "info", "warning", "error")),
        "format": Choice(("auto", "human", "json")),
        "file": _PATH,
    },
    "broker": {
        "host": Text("an IP address", formats.ip_address, empty_ok=False),
        "announce": Text("an IP address, or empty", formats.announced_address),
        "name_server_port": Whole(0, 65_535),
        "port": Whole(0, 65_535),
        "dir": _FOLDER,
        "name": Text(_BROKER_NAME, formats.broker_name, empty_ok=False),
        "cluster": Text(_BROKER_NAME, formats.broker_name, empty_ok=False),
        "message_delay_level": Text(_LEVELS, formats.delay_levels, empty_ok=False),
        "acl_file": _PATH,
        "tls_cert_path": _PATH,
        "tls_key_path": _PATH,
        "flush": Choice(("sync", "async")),
        "flush_interval_ms": _ms(1, 60_000),
        "mapped_file_size_commit_log": Whole(1 << 20, 1 << 30),  # RocketMQ's name, so without its unit
        "disk_max_used_space_ratio": Whole(1, 95),
        "register_with": Texts('each "host:port", a server once', formats.address, separators=";,"),
    },
}

# Names that RocketMQ users bring along and difflib cannot guess.
ALIASES: Final[Mapping[str, str]] = {
    "consume_thread_min": "workers.count",
    "consume_thread_max": "workers.count",
    "consumer_group": "consumer.group",
    "namesrv_addr": "cluster.name_servers",
    "allocate_message_queue_strategy": "consumer.allocate_strategy",
    "local_offset_store_dir": "consumer.local_offset_store_dir",
    "consumeridcs": "consumer.machine_room_ids",
    "virtual_node_cnt": "consumer.consistent_hash_virtual_nodes",
    "flush_disk_type": "broker.flush",
    "heartbeat_broker_interval": "cluster.heartbeat_interval_ms",
    "mq_client_api_timeout": "cluster.request_timeout_ms",
    "vip_channel": "cluster.vip_channel_enabled",
    "use_tls": "security.tls_enable",
    "enable_msg_trace": "trace.enabled",
    "enable_trace": "trace.enabled",
    "customized_trace_topic": "trace.topic",
    "trace_msg_batch_num": "trace.batch_max",
    "await_termination_millis_when_shutdown": "supervisor.stop_deadline_ms",
}


@dataclass(frozen=True, slots=True)
class Relation:
    """Two settings that must agree. `holds` gets their values, as `because` does if it is a function; it ends the message."""

    first: str
    second: str
    holds: Callable[[object, object], bool]
    must: str
    because: str | Callable[[object, object], str]


def _at_least(first: object, second: object) -> bool:
    return isinstance(first, int) and isinstance(second, int) and first >= second


def _answered_in_time(pull_timeout_ms: object, suspend_timeout_ms: object) -> bool:
    return (
        isinstance(pull_timeout_ms, int)
        and isinstance(suspend_timeout_ms, int)
        and pull_timeout_ms >= suspend_timeout_ms + PULL_HOLD_SWEEP_MS
    )


def _below_unless_off(soft_ms: object, hard_ms: object) -> bool:
    return isinstance(soft_ms, int) and isinstance(hard_ms, int) and (not hard_ms or soft_ms < hard_ms)


def _two_ports(first: object, second: object) -> bool:
    return first != second or first == 0


def _loads_if_waited_for(commit_after: object, on: object) -> bool:
    return commit_after != "loaded" or on is True


def _is_table(target: object, format_: object) -> bool:
    return format_ not in FOLDER_FORMATS or not formats.not_a_table(str(target), str(format_))


def _why_no_table(target: object, format_: object) -> str:
    return f"the target {formats.not_a_table(str(target), str(format_))}"


def _can_be_registered(table: object, format_: object) -> bool:
    return not table or not formats.not_registered(str(format_))


def _why_not_registered(_table: object, format_: object) -> str:
    return formats.not_registered(str(format_))


def _both_or_none(first: object, second: object) -> bool:
    return bool(first) == bool(second)


def _needs(first: object, second: object) -> bool:
    return not first or bool(second)


RELATIONS: Final[tuple[Relation, ...]] = (
    Relation(
        "security.access_key",
        "security.secret_key",
        _both_or_none,
        "must be given together with",
        "a signature needs both",
    ),
    Relation(
        "security.security_token",
        "security.access_key",
        _needs,
        "needs",
        "a token belongs to temporary keys",
    ),
    Relation(
        "security.tls_key_path",
        "security.tls_cert_path",
        _needs,
        "needs",
        "a key alone proves nothing to the server",
    ),
    Relation(
        "broker.tls_key_path",
        "broker.tls_cert_path",
        _needs,
        "needs",
        "a key alone turns no TLS on: the broker would answer in plain text",
    ),
    Relation(
        "security.tls_check_hostname",
        "security.tls_auth_server",
        _needs,
        "needs",
        "a certificate that is not checked may name any host",
    ),
    Relation(
        "consumer.consume_concurrently_max_span",
        "consumer.consume_message_batch_max_size",
        _at_least,
        "must be at least",
        "a handler's batch is cut from one chunk, and no chunk is larger than the span",
    ),
    Relation(
        "workers.chunk_messages_max",
        "consumer.consume_message_batch_max_size",
        _at_least,
        "must be at least",
        "a handler's batch is cut from one chunk",
    ),
    Relation(
        "workers.soft_time_limit_ms",
        "workers.hard_time_limit_ms",
        _below_unless_off,
        "must be below",
        "the worker is killed at the hard limit",
    ),
    Relation(
        "consumer.pull_timeout_ms",
        "consumer.suspend_timeout_ms",
        _answered_in_time,
        f"must be at least {PULL_HOLD_SWEEP_MS} more than",
        "a broker answers a held pull up to 5 s after its suspend time",
    ),
    Relation(
        "supervisor.stop_deadline_ms",
        "supervisor.drain_deadline_ms",
        _at_least,
        "must be at least",
        "a stop drains every queue",
    ),
    Relation(
        "spark.target",
        "spark.format",
        _is_table,
        "must be the place of a table for this",
        _why_no_table,
    ),
    Relation(
        "spark.table",
        "spark.format",
        _can_be_registered,
        "must be empty for this",
        _why_not_registered,
    ),
    Relation(
        "spark.max_rows",
        "results.seal_rows",
        _at_least,
        "must be at least",
        "a batch of the loader takes whole segments",
    ),
    Relation(
        "spark.max_bytes_mib",
        "results.seal_bytes_mib",
        _at_least,
        "must be at least",
        "a batch of the loader takes whole segments",
    ),
    Relation(
        "results.commit_after",
        "spark.load",
        _loads_if_waited_for,
        '"loaded" needs',
        "without the loader no offset would ever be committed",
    ),
    Relation(
        "results.commit_after",
        "results.enabled",
        _loads_if_waited_for,
        '"loaded" needs',
        "without results there is nothing to load",
    ),
    Relation(
        "broker.port",
        "broker.name_server_port",
        _two_ports,
        "must differ from",
        "both listen on the same address",
    ),
)
