"""Handlers of test_uneven.py, imported by worker processes from this folder."""

from __future__ import annotations

import os
import time
from pathlib import Path

from rocketcrew import Message, handler

SLOW_EVERY = 200
DONE = "done"
"""A file with a byte for each quick message that ran, in the folder that UNEVEN names."""
GIVES_UP_S = 240.0
CLAIMED_ALONE_S = 60e-6
"""More than a worker claims at once (workers/claims.py), on any machine: what is claimed with a slow message waits for it."""


def _note(name: str, text: str) -> None:
    fd = os.open(Path(os.environ["UNEVEN"]) / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, text.encode())
    os.close(fd)


def done() -> int:
    """Quick messages that ran so far."""
    path = Path(os.environ["UNEVEN"]) / DONE
    return path.stat().st_size if path.exists() else 0


@handler(schema="number bigint")
def uneven(message: Message) -> dict[str, int]:
    """One message in 200 comes to its end only when every other one ran."""
    number = int(message.body)
    if number < 0 or number % SLOW_EVERY:
        until = time.perf_counter() + CLAIMED_ALONE_S
        while time.perf_counter() < until:
            pass
        _note(DONE, ".")
        return {"number": number}
    wanted, deadline = int(os.environ["UNEVEN_QUICK"]), time.monotonic() + GIVES_UP_S
    while done() < wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    _note("slow", f"{number} {done()}\n")
    return {"number": number}


SLOW_S = 2.0
QUICK_S = 0.0001


@handler(schema="number bigint")
def one_in_200(message: Message) -> dict[str, int]:
    """Takes 2 s for one message in 200, 0.1 ms of CPU for the others, and notes when that was (bench/uneven.py)."""
    began = time.monotonic_ns()
    number, sent = map(int, message.body.split())
    if number % SLOW_EVERY == SLOW_EVERY - 1:
        time.sleep(SLOW_S)
    else:
        until = time.perf_counter() + QUICK_S
        while time.perf_counter() < until:
            pass
    _note("calls", f"{os.getpid()} {number} {sent} {began} {time.monotonic_ns()}\n")
    return {"number": number}
