"""What the loader tells of itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one committed batch was. `rows_dropped` were delivered again, and are in the table already."""

    batch: int
    segments: int
    rows: int
    rows_dropped: int
    bytes: int
    stage_s: float
    job_s: float
    commit_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """What lies in ready/ after a step: the queue that back-pressure looks at."""

    segments: int = 0
    rows: int = 0
    bytes: int = 0
    oldest_ms: int = 0


@dataclass(slots=True)
class Totals:
    """Counters since the process started."""

    batches: int = 0
    rows: int = 0
    rows_dropped: int = 0
    segments: int = 0
    quarantined: int = 0
    replanned: int = 0
