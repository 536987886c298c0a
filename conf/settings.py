"""The settings as every room gets them: read once, checked whole, frozen, passed down.

`load` is the only way to make them. It takes what it reads from (flags, environment, a file) as arguments: nothing in
this room looks at the process it runs in, apart from opening that one file. What each setting means stands in
`defaults.toml`, what it may hold in `schema.py`; here are only names and types, so that a type checker knows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any, cast

from ..remoting.errors import UsageError
from ..remoting.light_dataclass import dataclass
from .redaction import masked_repr
from .sources import environment_name, gather

NO_NAMES: Mapping[str, str] = {}
ROOM_SHARE = 2.0
"""Of results.free_disk_min_mib: where a disk without room has held up pulling, it goes on above so much."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """`[cluster]`: how to find and talk to RocketMQ."""

    name_servers: tuple[str, ...]
    namesrv_domain: str
    namesrv_domain_subgroup: str
    unit_name: str
    unit_mode: bool
    namespace: str
    namespace_v2: str
    vip_channel_enabled: bool
    instance_name: str
    client_ip: str
    heartbeat_interval_ms: int
    poll_name_server_interval_ms: int
    request_timeout_ms: int
    connect_timeout_ms: int


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """`[security]`: how to be let in. No secret is part of its repr."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(repr=False)
    key_file: str
    tls_enable: bool
    tls_auth_server: bool
    tls_trust_cert_path: str
    tls_cert_path: str
    tls_key_path: str
    tls_key_password: str = field(repr=False)
    tls_check_hostname: bool
    tls_server_name: str


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """`[consumer]`: the member of the consumer group, in the terms of DefaultMQPushConsumer."""

    group: str
    topics: tuple[str, ...]
    message_model: str
    consume_from_where: str
    consume_timestamp: str
    allocate_strategy: str
    allocate_queues: tuple[str, ...]
    consistent_hash_virtual_nodes: int
    machine_room_ids: tuple[str, ...]
    machine_rooms: Mapping[str, str]
    pull_batch_size: int
    pull_interval_ms: int
    pull_threshold_for_queue: int
    pull_threshold_size_for_queue_mib: int
    pull_threshold_for_topic: int
    pull_threshold_size_for_topic_mib: int
    consume_concurrently_max_span: int
    consume_message_batch_max_size: int
    consume_timeout_min: int
    max_reconsume_times: int
    order: str
    order_key: str
    order_on_failure: str
    suspend_current_queue_time_ms: int
    delay_level_when_next_consume: int
    dead_letter_errors: bool
    persist_consumer_offset_interval_ms: int
    rebalance_interval_ms: int
    client_rebalance: bool
    pop_invisible_time_ms: int
    pop_batch_nums: int
    pop_threshold_for_queue: int
    suspend_timeout_ms: int
    pull_timeout_ms: int
    local_offset_store_dir: str


@dataclass(frozen=True, slots=True)
class WorkersSettings:
    """`[workers]`: the processes that run the handler."""

    count: int
    transport: str
    chunk_target_us: int
    chunk_messages_max: int
    chunks_in_flight: int
    flush_interval_us: int
    boot_timeout_ms: int
    recycle_messages: int
    recycle_jitter_percent: int
    recycle_memory_mib: int
    recycle_age_s: int
    recycle_share_percent: int
    reload_canary_messages: int
    reload_canary_ms: int
    capture_output: bool
    nice: int
    cpu_affinity: str
    async_concurrency: int
    topic_concurrency: tuple[str, ...]
    rate_limit: str
    topic_rate_limit: tuple[str, ...]
    soft_time_limit_ms: int
    hard_time_limit_ms: int
    stall_timeout_ms: int
    max_worker_deaths: int


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """`[memory]`: the byte budget of the process."""

    pulled_bytes_mib: int


@dataclass(frozen=True, slots=True)
class ResultsSettings:
    """`[results]`: the rows that handlers return."""

    enabled: bool
    schema: str
    seal_rows: int
    seal_bytes_mib: int
    seal_idle_ms: int
    commit_after: str
    high_water_mib: int
    free_disk_min_mib: int


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """`[spark]`: the loader process. No key of a store and no token is part of its repr."""

    load: bool
    target: str
    format: str
    table: str
    function: str
    partition_by: tuple[str, ...]
    delta_jars: str
    iceberg_jars: str
    master: str
    driver_memory: str
    max_wait_ms: int
    max_rows: int
    max_bytes_mib: int
    target_file_mib: int
    jvm_timeout_ms: int
    on_recreated: str
    on_gap: str
    keep_outcomes_days: int
    vacuum: bool
    merge_files: bool
    conf: Mapping[str, str]
    options: Mapping[str, str]
    java_home: str

    def __repr__(self) -> str:
        return masked_repr(self)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """`[engine]`: `run --engine spark`, and `replay`."""

    max_offsets_per_trigger: int
    trigger_interval_ms: int
    partitions: int
    py_files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """`[supervisor]`: state on disk and deadlines."""

    data_dir: str
    stop_deadline_ms: int
    drain_deadline_ms: int
    send_back_retry_ms: int
    journal_max_mib: int


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """`[metrics]`: what is served by HTTP: metrics, probes, status, a page for people."""

    port: int
    port_count: int
    host: str
    page: bool
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """`[trace]`: what is told of each message to others."""

    enabled: bool
    topic: str
    batch_max: int
    spans: bool


@dataclass(frozen=True, slots=True)
class SentrySettings:
    """`[sentry]`: failed calls of the handler as events."""

    dsn: str = field(repr=False)
    environment: str
    release: str
    sample_percent: int
    include_bodies: bool


@dataclass(frozen=True, slots=True)
class HooksSettings:
    """`[hooks]`: the user's functions that hear of the life of the member."""

    on_start: str
    on_rebalance: str
    on_dead_letter: str
    on_worker_death: str
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class LogSettings:
    """`[log]`."""

    level: str
    format: str
    file: str


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """`[broker]`: the embedded name server and broker."""

    host: str
    announce: str
    name_server_port: int
    port: int
    dir: str
    name: str
    cluster: str
    message_delay_level: str
    acl_file: str
    tls_cert_path: str
    tls_key_path: str
    flush: str
    flush_interval_ms: int
    mapped_file_size_commit_log: int
    disk_max_used_space_ratio: int
    register_with: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. `origin` maps "section.key" to where its value came from, in words."""

    cluster: ClusterSettings
    security: SecuritySettings
    consumer: ConsumerSettings
    workers: WorkersSettings
    memory: MemorySettings
    results: ResultsSettings
    spark: SparkSettings
    engine: EngineSettings
    supervisor: SupervisorSettings
    metrics: MetricsSettings
    trace: TraceSettings
    sentry: SentrySettings
    hooks: HooksSettings
    log: LogSettings
    broker: BrokerSettings
    origin: Mapping[str, str] = field(compare=False, repr=False)


def load(
    flags: Mapping[str, object],
    env: Mapping[str, str],
    file: Path | None,
    *,
    flag_names: Mapping[str, str] = NO_NAMES,
) -> Settings:
    """Read and check all settings: flags before environment before file before default.

    `flags` maps "section.key" to a typed value or to text; `flag_names` says what the user typed, for
    messages ("--group", or "group=" of a call). `env` is the process's environment, of which ROCKETCREW_* and
    NAMESRV_ADDR are read.
    Raises ConfigError (a UsageError) listing every problem there is, not only the first.
    """
    gathered = gather(flags, env, file, flag_names)
    # The values were checked against SCHEMA, whose types tests/unit/conf holds against the annotations above.
    sections = cast("dict[str, dict[str, Any]]", gathered.values)
    return Settings(
        cluster=ClusterSettings(**sections["cluster"]),
        security=SecuritySettings(**sections["security"]),
        consumer=ConsumerSettings(**sections["consumer"]),
        workers=WorkersSettings(**sections["workers"]),
        memory=MemorySettings(**sections["memory"]),
        results=ResultsSettings(**sections["results"]),
        spark=SparkSettings(**sections["spark"]),
        engine=EngineSettings(**sections["engine"]),
        supervisor=SupervisorSettings(**sections["supervisor"]),
        metrics=MetricsSettings(**sections["metrics"]),
        trace=TraceSettings(**sections["trace"]),
        sentry=SentrySettings(**sections["sentry"]),
        hooks=HooksSettings(**sections["hooks"]),
        log=LogSettings(**sections["log"]),
        broker=BrokerSettings(**sections["broker"]),
        origin=gathered.origin,
    )


def is_broadcasting(settings: Settings) -> bool:
    """Every member gets everything, and nothing is retried."""
    return settings.consumer.message_model == "BROADCASTING"


def logs_as(settings: Settings) -> dict[str, str]:
    """How a process that the supervisor starts logs, for `logging.set_up_as`."""
    return {**asdict(settings.log), "group": settings.consumer.group}


def way_to_own_broker(*, tls: bool, account: bool) -> dict[str, object]:
    """By "section.key", what clients of a broker of ours have in place of the way into a cluster, beside its address. `tls`
    and `account`: the broker wants them, so what is set of them stays; so do namespaces, by which other commands find the
    group."""
    way: dict[str, object] = {"cluster.namesrv_domain": "", "cluster.vip_channel_enabled": False}
    if not tls:
        way["security.tls_enable"] = False
    if not account:
        way |= dict.fromkeys(
            ("security.access_key", "security.secret_key", "security.security_token", "security.key_file"), ""
        )
    return way


def with_values(settings: Settings, values: Mapping[str, object]) -> Settings:
    """`settings` with these values, by "section.key"; they are not checked."""
    for name, value in values.items():
        section, _, key = name.partition(".")
        settings = replace(settings, **{section: replace(getattr(settings, section), **{key: value})})
    return settings


def value_of(settings: Settings, name: str) -> object:
    """The value of "section.key"."""
    section, _, key = name.partition(".")
    return getattr(getattr(settings, section), key)


def require(settings: Settings, names: Iterable[str], *, flag_names: Mapping[str, str] = NO_NAMES) -> None:
    """Raise UsageError naming each of `names` that is empty and the ways to set it.

    A group is no fault of a configuration that only starts a broker, so `load` lets it be empty; the command that
    needs it asks here.
    """
    missing: list[str] = []
    for name in names:
        if name == "cluster.name_servers" and settings.cluster.namesrv_domain:
            continue  # an address server tells them
        if not value_of(settings, name):
            flag = flag_names.get(name, f"--set {name}=...")
            section, _, key = name.partition(".")
            variable = "NAMESRV_ADDR" if name == "cluster.name_servers" else environment_name(name)
            place = f"{variable} in the environment, or {key} under [{section}] in the file"
            missing.append(f"  {name}: give {flag}, or {place}")
    if missing:
        raise UsageError("something is needed that is not set:\n" + "\n".join(missing))
