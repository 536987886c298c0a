"""What a commit costs: a fixed part and a part per row, learnt from the commits that were made. Pure.

Starting a job, writing a log entry and a rename cost the same for one row as for a million (0.2 s Parquet, 1.5 s Delta by
Spark, 0.02 s delta-rs). The loader waits for so many rows that this fixed part is below a fifth of the whole, but never
longer than `spark.max_wait_ms`, nor for more than `spark.max_rows`; and no longer than until it is below a fifth of the
time where what waits is worth a file (plan.py, STREAM_ROWS).

The line `seconds = fixed + per_row * rows` is fitted by least squares; older commits count less and less, and what is
usual (SPARK_FIXED_S, ROW_S) counts like a few commits for ever, so that commits of one size do not make the line tumble.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

AIMED_SHARE: Final = 0.16
"""How much of the time the fixed part is to be, and not a fifth: the line is learnt from a few commits, and begins at what is
usual."""
FORGET: Final = 0.9
"""What an observation's weight is multiplied by when the next one comes."""
USUAL_WEIGHT: Final = 0.05
SPARK_FIXED_S: Final = 0.3
ROW_S: Final = 8e-6
_USUAL_ROWS: Final = 200_000.0
_LEAST_FIXED_S: Final = 1e-3
_LEAST_ROW_S: Final = 1e-7


@dataclass(frozen=True, slots=True)
class Costs:
    """Sums of a weighted least-squares fit. Immutable: `after` gives the next one."""

    weight: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0
    rows_rows: float = 0.0
    rows_seconds: float = 0.0

    def after(self, rows: int, seconds: float) -> Costs:
        """The costs known after one more commit."""
        return Costs(
            self.weight * FORGET + 1,
            self.rows * FORGET + rows,
            self.seconds * FORGET + seconds,
            self.rows_rows * FORGET + rows * rows,
            self.rows_seconds * FORGET + rows * seconds,
        )

    def line(self) -> tuple[float, float]:
        """Seconds per commit and per row; both above 0."""
        usual_s = SPARK_FIXED_S + ROW_S * _USUAL_ROWS
        weight = self.weight + 2 * USUAL_WEIGHT
        rows = self.rows + USUAL_WEIGHT * _USUAL_ROWS
        seconds = self.seconds + USUAL_WEIGHT * (SPARK_FIXED_S + usual_s)
        rows_rows = self.rows_rows + USUAL_WEIGHT * _USUAL_ROWS**2
        rows_seconds = self.rows_seconds + USUAL_WEIGHT * _USUAL_ROWS * usual_s
        spread = weight * rows_rows - rows * rows
        per_row = max(_LEAST_ROW_S, (weight * rows_seconds - rows * seconds) / spread)
        return max(_LEAST_FIXED_S, (seconds - per_row * rows) / weight), per_row

    def pause_s(self) -> float:
        """How far apart commits are of which the fixed parts take AIMED_SHARE of the time."""
        fixed, _ = self.line()
        return fixed / AIMED_SHARE

    def rows_wanted(self) -> int:
        """How many rows make the fixed part AIMED_SHARE of a commit; at least 1."""
        fixed, per_row = self.line()
        return max(1, math.ceil(fixed * (1 / AIMED_SHARE - 1) / per_row))
