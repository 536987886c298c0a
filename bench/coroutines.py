"""Handlers that are coroutine functions, whose calls wait and use no CPU: messages a second, and what a message costs.

A crew on the replay source, two workers. Each case is one handler (it returns at once, waits for nothing, 1 or 10 ms) at one
number of calls at a time in a worker (workers.async_concurrency); `no_op` is a plain function, for comparison. CPU µs a
message of supervisor and workers by schedstat; `of_calls` is the rate as a share of what calls side by side could do.

    python bench/coroutines.py [--messages 60000] [--runs 3] [--at-once 16 256]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from measure import Crew, Source, figures, interruptible, median, report

WORKERS = 2
CASES = {"no_op": None, "returns": 0.0, "waits_0": 0.0, "waits_1ms": 0.001, "waits_10ms": 0.01, "waits_row": 0.0}
"""Handlers, and for how many seconds each call waits; None: it is no coroutine function."""


def measured(case: str, messages: int, at_once: int) -> dict[str, float]:
    source = Source(messages)
    try:
        with tempfile.TemporaryDirectory() as name:
            settings = {"workers.count": WORKERS, "workers.async_concurrency": at_once}
            crew = Crew(Path(name), source.name_server, case, "replay", settings)
            try:
                return figures(crew, source.messages)
            finally:
                crew.stop()
    finally:
        source.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--at-once", type=int, nargs="+", default=[16, 256])
    options = parser.parse_args()
    interruptible()
    cases = [(case, at_once) for case in CASES for at_once in options.at_once]
    found = [[measured(case, options.messages, at_once) for case, at_once in cases] for _ in range(options.runs)]
    rows: list[dict[str, object]] = []
    for (case, at_once), runs in zip(cases, zip(*found, strict=True), strict=True):
        row: dict[str, object] = {"case": case, "at_once": at_once, "runs": options.runs}
        row |= {key: median(run[key] for run in runs) for key in runs[0]}
        if wait_s := CASES[case]:
            row["of_calls"] = median(run["rate"] for run in runs) / (WORKERS * at_once / wait_s)
        rows.append(row)
    report("coroutines", rows)


if __name__ == "__main__":
    main()
