"""Handlers of the tests of order: each logs its start and end to one file that all workers append to.

A line is one write of less than a page, so lines of several processes never mix; their order in the file is the order in
which they were written.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from rocketcrew import Commit, Message, Rollback, Suspend, handler

TRACE = "TEST_TRACE_OF_ORDER"
"""Names the file."""


def tell(what: str, message: Message) -> None:
    """One line: what, process, topic, queue, offset, key, number, times."""
    line = (
        f"{what} {os.getpid()} {message.queue.topic} {message.queue_id} {message.queue_offset} {message.keys or '-'}"
        f" {int(message.body)} {message.reconsume_times} {time.monotonic_ns()}\n"
    )
    file = os.open(os.environ[TRACE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def _number(message: Message) -> dict[str, int]:
    """Every 50th fails twice before it succeeds."""
    tell("BEGIN", message)
    time.sleep(0.0005)
    value = int(message.body)
    if value % 50 == 7 and message.reconsume_times < 2:
        tell("FAIL", message)
        raise Suspend(20, f"{value} fails at first")
    tell("END", message)
    return {"number": value, "attempt": message.reconsume_times}


@handler(schema="number bigint, attempt int", order="queue")
def by_queue(message: Message) -> dict[str, int]:
    """In the order of the queue."""
    return _number(message)


@handler(schema="number bigint, attempt int", order="key")
def by_key(message: Message) -> dict[str, int]:
    """In the order of KEYS."""
    return _number(message)


def key_of(message: Message) -> str | None:
    """The key, by a function."""
    return message.keys


@handler(schema="number bigint, attempt int", order="key", key=key_of)
def by_function(message: Message) -> dict[str, int]:
    """In the order of what key_of says."""
    return _number(message)


@handler(schema="number bigint", order="queue")
def stubborn(message: Message) -> dict[str, int]:
    """Every 10th never succeeds."""
    tell("BEGIN", message)
    if int(message.body) % 10 == 3:
        tell("FAIL", message)
        raise Suspend(10)
    tell("END", message)
    return {"number": int(message.body)}


@handler(schema="number bigint, attempt int", order="queue", auto_commit=False)
def by_commit(message: Message) -> Commit | dict[str, int]:
    """Commits every 5th; the first time that it sees the 8th of ten, it rolls back."""
    tell("BEGIN", message)
    value = int(message.body)
    row = {"number": value, "attempt": message.reconsume_times}
    seen = Path(os.environ[TRACE] + f".{value}")
    if value % 10 == 7 and not seen.exists():
        seen.touch()
        tell("FAIL", message)
        raise Rollback(10)
    tell("END", message)
    return Commit(row) if value % 5 == 4 else row


@handler(schema="number bigint, attempt int", order="queue", auto_commit=False)
def by_commit_of_ten(message: Message) -> Commit | dict[str, int]:
    """Commits every 10th; of each ten it suspends the 3rd once, and rolls back at the 8th, the first time that it sees it."""
    tell("BEGIN", message)
    value = int(message.body)
    row = {"number": value, "attempt": message.reconsume_times}
    seen = Path(os.environ[TRACE] + f".{value}")
    if value % 10 in (2, 7) and not seen.exists():
        seen.touch()
        tell("FAIL", message)
        if value % 10 == 7:
            raise Rollback(10)
        raise Suspend(10)
    tell("END", message)
    return Commit(row) if value % 10 == 9 else row


@handler(schema="number bigint, attempt int")
def fails_when_told(message: Message) -> dict[str, int]:
    """In no order: number 5 waits for the test's sign, and then fails until its fourth attempt."""
    value = int(message.body)
    tell("BEGIN", message)
    while value == 5 and not Path(os.environ[TRACE] + ".go").exists():
        time.sleep(0.01)
    if value == 5 and message.reconsume_times < 3:
        tell("FAIL", message)
        raise ValueError("not yet")
    tell("END", message)
    return {"number": value, "attempt": message.reconsume_times}


@handler(schema="number bigint, attempt int")
def waits_at_one(message: Message) -> dict[str, int]:
    """In no order: number 0 waits for the test's sign, number 7 fails once."""
    value = int(message.body)
    tell("BEGIN", message)
    while value == 0 and not Path(os.environ[TRACE] + ".go").exists():
        time.sleep(0.01)
    if value == 7 and message.reconsume_times == 0:
        tell("FAIL", message)
        raise ValueError("not yet")
    tell("END", message)
    return {"number": value, "attempt": message.reconsume_times}
