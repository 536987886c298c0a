"""Handlers of test_comfort.py, imported by worker processes from this folder."""

from __future__ import annotations

import os
import time

from rocketcrew import Message, cancelled, handler, worker_index

NOTES = "TEST_NOTES_OF_COMFORT"
"""Names the file where workers tell of their end."""

loaded: list[int] = []
"""What the set-up hook made."""


def set_up() -> None:
    """Once in each worker."""
    loaded.append(os.getpid())


def tear_down() -> None:
    """A line of less than a page is one write."""
    with open(os.environ[NOTES], "a") as file:
        file.write(f"{os.getpid()}\n")


@handler(
    schema="number bigint, worker int, pid bigint, set_up string, nice int, cores string",
    setup=set_up,
    teardown=tear_down,
)
def tells(message: Message) -> dict[str, object]:
    """Where and how it runs; number 0 goes on until somebody wants the end."""
    number = int(message.body)
    while number == 0 and not cancelled():
        time.sleep(0.01)
    return {
        "number": number, "worker": worker_index(), "pid": os.getpid(), "set_up": str(loaded), "nice": os.nice(0),
        "cores": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
    }  # fmt: skip
