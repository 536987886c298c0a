"""Which offset store a member uses: the brokers' when clustering, its own file when broadcasting
(DefaultMQPushConsumerImpl.start)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ...client.cluster import Cluster
from ...client.operations import Operations
from ...conf.settings import Settings, is_broadcasting
from ..core.checks import consume_timestamp_ms
from ..core.decisions import Core
from .commits import Commits
from .first_offset import BrokersOffsets, FileOffsets, FirstOffset
from .local_offsets import LocalCommits, LocalOffsets, offsets_path

CONSUME_TIMESTAMP_BACK_MS = 30 * 60 * 1000


def offset_store(
    settings: Settings, client_id: str, cluster: Cluster, operations: Operations, core: Core, now: Callable[[], float]
) -> tuple[Commits | LocalCommits, FirstOffset]:
    """Where offsets are told, and how the first one is found. Raises UsageError for a file that cannot be read."""
    consumer = settings.consumer
    timestamp_ms = consume_timestamp_ms(consumer.consume_timestamp)
    if timestamp_ms is None:
        timestamp_ms = int(time.time() * 1000) - CONSUME_TIMESTAMP_BACK_MS
    where = consumer.consume_from_where
    if not is_broadcasting(settings):
        stored = BrokersOffsets(operations, consumer.group)
        return Commits(cluster, operations, core, consumer.group, now), FirstOffset(
            operations, stored, where, timestamp_ms
        )
    local = LocalOffsets(offsets_path(consumer.local_offset_store_dir, client_id, consumer.group, Path.home()))
    return LocalCommits(local, core, now), FirstOffset(operations, FileOffsets(local), where, timestamp_ms)
