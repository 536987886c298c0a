"""A `spark.function` for tests: it keeps each batch in a folder of its number, and notes how it was called."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from segment_helpers import read_table


def keep_and_die_once(frame: Any, batch: int, ranges: list[Any]) -> None:
    """Overwrite batch `batch` of the folder in DELIVERIES, note the call, and at the first call kill this process."""
    output = Path(os.environ["DELIVERIES"])
    frame.write.mode("overwrite").parquet(str(output / f"batch_id={batch}"))
    notes = output / "_calls"
    first = not notes.exists()
    with notes.open("a") as file:
        print(json.dumps([batch, [[one.queue_id, one.start, one.end] for one in ranges]]), file=file, flush=True)
    if first:
        os.kill(os.getpid(), signal.SIGKILL)


def keep(frame: Any, batch: int) -> None:
    """Overwrite batch `batch` of the folder in DELIVERIES: whatever was killed in it before, it is there once."""
    frame.write.mode("overwrite").parquet(str(Path(os.environ["DELIVERIES"]) / f"batch_id={batch}"))


def rows(output: Path) -> list[Any]:
    """All rows in the folder."""
    found: list[Any] = read_table(output)
    return found


def calls(output: Path) -> list[tuple[int, list[tuple[int, ...]]]]:
    """Batch number and (queue id, start, end) of each call, in order."""
    lines = [json.loads(line) for line in (output / "_calls").read_text().splitlines()]
    return [(batch, [tuple(one) for one in ranges]) for batch, ranges in lines]
