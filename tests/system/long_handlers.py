"""Handlers of test_long_calls.py, imported by worker processes from this folder: one message keeps its worker.

How it keeps it stands in the environment: LONG_CALLS is a folder, LONG_HOW one of "sleep", "python" and "c".
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from rocketcrew import Message, handler

LONG = b"long"
GIVES_UP_S = 600.0
C_STEPS = 24_000_000_000
"""About as long in one call into C, with the interpreter's lock held all the time. A kill ends it long before."""


def note(name: str) -> None:
    (Path(os.environ["LONG_CALLS"]) / name).touch()


def released() -> bool:
    return (Path(os.environ["LONG_CALLS"]) / "release").exists()


def sleeps() -> None:
    deadline = time.monotonic() + GIVES_UP_S
    while not released() and time.monotonic() < deadline:
        time.sleep(0.05)


def computes() -> None:
    deadline = time.monotonic() + GIVES_UP_S
    while time.monotonic() < deadline and not released():
        for _ in range(100_000):
            pass


def holds_the_lock() -> None:
    sum(range(C_STEPS))


HOW: dict[str, Callable[[], None]] = {"sleep": sleeps, "python": computes, "c": holds_the_lock}


def run(message: Message) -> None:
    if message.body == LONG:
        note("entered")
        HOW[os.environ["LONG_HOW"]]()
        note("left")


@handler
def without_rows(message: Message) -> None:
    run(message)


@handler(schema="number bigint")
def with_rows(message: Message) -> dict[str, int] | None:
    run(message)
    return None if message.body == LONG else {"number": int(message.body)}
