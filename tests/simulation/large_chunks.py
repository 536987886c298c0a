"""Worlds of backlogs and calls of some milliseconds: chunks are large, workers hold their reports as the real ones do, and
queues leave while workers have much of them. What makes them so must happen, or such a world proves nothing."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, NamedTuple

from .parts import Parts
from .planted import COMING_AND_GOING

LARGE: dict[str, Any] = {
    "chunk_messages_max": 256, "pull_batch": 256, "pull_bytes_max": 80_000, "bursts": (1, 40, 150, 300), "span_max": 2_000,
    "threshold_messages": 1_000, "threshold_bytes": 1 << 24, "slab_units": 64, "holds_reports": True, "restart_ms": 300.0,
    "topic_limit": 0, "rate": 0.0,
}  # fmt: skip


def calls_of(ms: int) -> dict[str, Any]:
    """Calls that take so long, on average, and say so."""
    return {"call_ms": ms, "handler_us": 1_000 * ms}


LEAVING: dict[str, Any] = LARGE | calls_of(10) | {
    "queues": 8, "members": 1, "members_max": 3, "workers": 2, "messages_max": 300, "fault_rate": 0.01, "slow": 0.15,
    "chunk_target_us": 200_000, "deadly": 0, "hard_limit_ms": 0, "auto_commit": True, "batch": 1,
}  # fmt: skip
"""A stop has no more than 100 ms, see SimMember."""


def _mixed(seed: int, order: str) -> dict[str, Any]:
    """Drawn anew for each seed."""
    random = Random(f"large chunks {seed}")
    members_max = random.choice([1, 3])
    return LARGE | calls_of(random.choice([1, 2, 5, 10])) | {
        "queues": random.choice([1, 2, 4, 8, 64]), "workers": random.choice([1, 2, 3, 6]),
        "members": random.randint(1, members_max), "members_max": members_max, "messages_max": random.choice([300, 600]),
        "chunk_messages_max": random.choice([32, 256]), "chunk_target_us": random.choice([10_000, 100_000]),
        "report_after_ms": random.choice([0.5, 5.0, 5.0, 40.0]), "slow": random.choice([0.0, 0.01, 0.05]),
        "batch": random.choice([1, 1, 4]) if order == "concurrent" else 1,
        "auto_commit": order == "concurrent" or random.random() < 0.8,
        "rows_always": random.random() < 0.2, "rows_never": random.random() < 0.4,
        "deadly": random.choice([0, 0, 8]), "hard_limit_ms": random.choice([0, 0, 500]),
    }  # fmt: skip


class LargeWorld(NamedTuple):
    """One kind of world, and what has to happen in it."""

    order: str
    wanted: frozenset[str]
    leaving: bool = False

    def parts(self, seed: int) -> Parts:
        fields: Mapping[str, Any] = {"order": self.order, "key_function": False}
        if self.leaving:
            return Parts(COMING_AND_GOING, LEAVING | fields)
        return Parts(("kill worker", "recycle worker"), _mixed(seed, self.order) | fields)


def _leaving(order: str, *wanted: str) -> LargeWorld:
    cut_short = {f"{order}: a drain was cut short by a {why}" for why in ("stop", "rebalance")}
    return LargeWorld(order, frozenset({*wanted, *cut_short}), leaving=True)


LARGE_WORLDS = {
    "side by side": LargeWorld(
        "concurrent",
        frozenset({
            "concurrent: a large chunk", "concurrent: a report was held", "rows were held for those of others",
            "finished messages were read off a cell",
        }),
    ),
    "queues in order": LargeWorld("queue", frozenset({"queue: a large chunk", "queue: a report was held"})),
    "queues leave, side by side": _leaving(
        "concurrent", "messages of a large chunk were taken back", "messages of a queue that leaves were taken back"
    ),
    "queues leave, in order": _leaving("queue", "queue: a large chunk was recalled"),
    "queues leave, keys in order": _leaving("key", "a message was given back: a queue leaves"),
}  # fmt: skip
