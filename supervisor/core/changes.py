"""Which settings a running supervisor takes from a changed configuration, and which only hold after a restart."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from ...conf.settings import Settings

CHANGEABLE: Final[Mapping[str, frozenset[str]]] = {
    "workers": frozenset(
        {
            "count", "chunk_target_us", "chunk_messages_max", "chunks_in_flight", "flush_interval_us", "boot_timeout_ms",
            "soft_time_limit_ms", "hard_time_limit_ms", "recycle_messages", "recycle_jitter_percent",
            "recycle_memory_mib", "recycle_age_s", "recycle_share_percent", "reload_canary_messages",
            "reload_canary_ms", "capture_output", "nice", "cpu_affinity", "async_concurrency", "topic_concurrency",
            "rate_limit", "topic_rate_limit",
        }
    ),
    "consumer": frozenset(
        {
            "pull_threshold_for_queue", "pull_threshold_size_for_queue_mib", "consume_concurrently_max_span",
            "pull_interval_ms", "consume_message_batch_max_size", "delay_level_when_next_consume",
            "persist_consumer_offset_interval_ms", "rebalance_interval_ms",
        }
    ),
    "results": frozenset({"seal_rows", "seal_bytes_mib", "seal_idle_ms"}),
    "supervisor": frozenset({"stop_deadline_ms", "drain_deadline_ms", "send_back_retry_ms"}),
}  # fmt: skip
"""By section: what new workers get, and what the core looks at each time. All else is part of what the member is."""


@dataclasses.dataclass(frozen=True, slots=True)
class Merged:
    """`settings` as they will hold; "section.key" of what `changed`, and of what was changed and `kept` as it was."""

    settings: Settings
    changed: tuple[str, ...]
    kept: tuple[str, ...]


def merge(old: Settings, new: Settings) -> Merged:
    """The old settings with those of the new ones that may change."""
    sections: dict[str, Any] = {}
    changed: list[str] = []
    kept: list[str] = []
    for section in dataclasses.fields(old):
        if section.name == "origin":
            continue
        before, after = getattr(old, section.name), getattr(new, section.name)
        values: dict[str, Any] = {}
        for field in dataclasses.fields(before):
            value = getattr(after, field.name)
            if value == getattr(before, field.name):
                continue
            name = f"{section.name}.{field.name}"
            if field.name in CHANGEABLE.get(section.name, ()):
                values[field.name] = value
                changed.append(name)
            else:
                kept.append(name)
        sections[section.name] = dataclasses.replace(before, **values)
    return Merged(dataclasses.replace(old, **sections), tuple(changed), tuple(kept))
