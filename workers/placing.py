"""Where and how urgently a worker runs: niceness, and the core it is bound to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any


def core_for(index: int, cores: Sequence[int]) -> int | None:
    """The core of the worker with this index, in turn over those that may be used; None when there are none."""
    return sorted(cores)[index % len(cores)] if cores else None


def place(index: int, nice: int, cpu_affinity: str, log: Any) -> None:
    """Apply the settings to this process; what the platform refuses is logged and does no harm."""
    try:
        if nice:
            os.nice(nice)
        if cpu_affinity == "spread" and hasattr(os, "sched_setaffinity"):
            core = core_for(index, list(os.sched_getaffinity(0)))
            if core is not None:
                os.sched_setaffinity(0, {core})
    except OSError as error:
        log.warning("worker_not_placed", nice=nice, cpu_affinity=cpu_affinity, error=str(error))
