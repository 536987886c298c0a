"""BrokerConfig: every number the embedded broker obeys, with the reason for its default.

Defaults are those of RocketMQ 5.3 (BrokerConfig.java, MessageStoreConfig.java) unless the comment says otherwise.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from ..conf.formats import DELAY_LEVELS, DELAY_MAX_MS, delay_levels_ms
from ..conf.units import HOUR_MS
from ..remoting.errors import UsageError
from ..remoting.names import host_and_port

FLUSHES = ("sync", "async")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one embedded broker; checked when made, raises UsageError."""

    host: str = "127.0.0.1"  # address to bind; loopback, because without an ACL nobody is authenticated
    announce: str = ""  # IP that clients are told; "" = host. Needed when host is a wildcard
    name_server_port: int = 9876
    port: int = 10911
    dir: str = ".rocketcrew/broker"
    name: str = "embedded"  # the genuine one most often has broker-a, and a table tells queues apart by this name
    cluster: str = "DefaultCluster"
    message_delay_level: str = DELAY_LEVELS
    acl_file: str = ""  # accounts (acl.py); "" lets everybody do everything
    tls_cert_path: str = ""  # PEM, RocketMQ's tls.server.certPath; with it both ports speak TLS and nothing else
    tls_key_path: str = ""  # PEM, tls.server.keyPath; "" = the key stands in the certificate's file

    flush: str = "sync"  # RocketMQ's flushDiskType; its default is async. In memory there is nothing to wait for
    flush_interval_ms: int = 500  # with async; bounds what a crash of the machine loses
    checkpoint_interval_ms: int = 5_000  # consume queues to the disk; bounds what a start has to scan again
    offset_flush_interval_ms: int = 1_000  # genuine: 5 s; shorter, so that a kill -9 repeats less
    mapped_file_size_commit_log: int = 64 << 20  # bytes, RocketMQ's name; genuine: 1 GiB; ours is the step of retention
    retention_ms: int = DELAY_MAX_MS
    disk_max_used_space_ratio: int = 75  # percent of the disk for log, queues and index, RocketMQ's name and default

    default_queues_max: int = 8  # TBW102's queues, upper bound for a topic made on first use
    auto_create_topic: bool = True
    auto_create_group: bool = True
    topics_max: int = 10_000
    """Of users, and as many of groups beside them (topic_room.py); remoting/registration.py bounds the sum."""
    queues_per_topic_max: int = 1_024
    body_max_bytes: int = 4 << 20
    properties_max_bytes: int = 32_767

    pull_messages_max: int = 32
    pull_bytes_max: int = 262_144
    pull_scan_entries_max: int = 800
    held_pulls_max: int = 100_000
    hold_timeout_max_ms: int = 60_000  # genuine: none; a client that asks for more gets this
    pops_in_flight_max: int = 200_000  # popped and not acknowledged, RocketMQ's popCkMaxBufferSize; of all groups
    hold_sweep_interval_ms: int = 5_000
    long_polling_enable: bool = True  # False: a pull is looked at once more after short_polling_ms, and not woken
    short_polling_ms: int = 1_000

    channel_expiry_ms: int = 120_000
    expiry_scan_interval_ms: int = 10_000
    lock_expiry_ms: int = 60_000
    registration_interval_ms: int = 30_000
    register_with: tuple[str, ...] = ()  # name servers of others, each "host:port"
    forward_timeout_ms: int = 10_000
    transaction_timeout_ms: int = 6_000  # how old a half message is when its producers are asked for the first time
    transaction_check_interval_ms: int = 30_000
    transaction_checks_max: int = 15
    transactions_max: int = 100_000  # open half messages; genuine: no bound
    timer_max_delay_sec: int = 259_200  # RocketMQ's timerMaxDelaySec: three days
    timers_max: int = 100_000  # messages that wait for their time; genuine: a bound for each slot of its wheel
    deliver_batch_max: int = 1_000  # delayed messages delivered in one tick, so that one tick stays short

    def __post_init__(self) -> None:
        if max(self.delay_levels_ms) > self.retention_ms:
            raise UsageError(
                f"broker message_delay_level = {self.message_delay_level!r}: messages are kept for "
                f"{self.retention_ms / HOUR_MS:g} h, and one that waits for longer would be dropped before its time; "
                "give levels up to that"
            )
        if not 1 <= self.default_queues_max <= self.queues_per_topic_max:
            raise UsageError(
                f"broker default_queues_max = {self.default_queues_max}: 1 to {self.queues_per_topic_max} are possible"
            )
        if self.tls_key_path and not self.tls_cert_path:
            raise UsageError(
                f"broker tls_key_path = {self.tls_key_path!r} needs tls_cert_path: a key alone turns no TLS on; give the "
                "certificate too, or leave the key out"
            )
        for field in ("name", "cluster"):
            value = getattr(self, field)
            if re.fullmatch(r"[%|a-zA-Z0-9_-]{1,127}", value) is None:
                raise UsageError(f"broker {field} = {value!r}: 1 to 127 characters of [%|a-zA-Z0-9_-] are possible")
        if self.flush not in FLUSHES:
            raise UsageError(f"broker flush = {self.flush!r}: one of {', '.join(FLUSHES)} is possible")
        if not 1 <= self.disk_max_used_space_ratio <= 95:
            raise UsageError(
                f"broker disk_max_used_space_ratio = {self.disk_max_used_space_ratio}: 1 to 95 (percent) are possible"
            )
        for field in ("name_server_port", "port"):
            value = getattr(self, field)
            if not 0 <= value <= 65_535:
                raise UsageError(f"broker {field} = {value}: 0 (any free port) to 65535 are possible")
        try:
            ipaddress.ip_address(self.announce or self.host)
        except ValueError:
            raise UsageError(
                f"broker host = {self.announce or self.host!r}: give an IP address, message ids carry it"
            ) from None

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        try:
            return delay_levels_ms(self.message_delay_level)
        except ValueError as error:
            raise UsageError(f"broker message_delay_level = {self.message_delay_level!r} {error}") from None

    @property
    def address(self) -> str:
        """What the name server gives to clients."""
        return host_and_port(self.announce or self.host, self.port)
