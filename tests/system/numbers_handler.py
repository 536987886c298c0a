"""Handlers of the system tests, imported by worker processes from this folder.

What takes its time sleeps: other tests have use for the processor. Where it must be Python at work, the handler says so.
"""

from __future__ import annotations

import os
import time

from rocketcrew import Message, handler


@handler(schema="number bigint, attempt int")
def number(message: Message) -> dict[str, int]:
    """One row a message; every 50th fails twice before it succeeds, every 1000th always fails."""
    value = int(message.body)
    if value % 1000 == 999:
        raise ValueError(f"{value} always fails")
    if value % 50 == 7 and message.reconsume_times < 2:
        raise ValueError(f"{value} fails at first")
    return {"number": value, "attempt": message.reconsume_times}


@handler(schema="number bigint, attempt int")
def slow_number(message: Message) -> dict[str, int]:
    """The same, and half a millisecond passes, so that a fault finds messages under way."""
    time.sleep(0.0005)
    return number.function(message)  # type: ignore[no-any-return]


def endless_c_loop(message: Message) -> None:
    """Never returns and never lets the interpreter look at signals."""
    del message
    sum(iter(int, 1))


def dawdle(message: Message) -> None:
    """A hundredth of a second of Python."""
    del message
    time.sleep(0.01)


@handler(teardown=lambda: time.sleep(4))
def slow_to_leave(message: Message) -> None:
    """Its worker takes nearly all of the time that it has to end."""
    del message


@handler(schema="number bigint, attempt int")
def number_retried_once(message: Message) -> dict[str, int]:
    """One row a message; every 50th fails once. A retry that showed another topic would find no route to its handler."""
    value = int(message.body)
    assert not message.topic.startswith("%"), message.topic
    if value % 50 == 7 and message.reconsume_times < 1:
        raise ValueError(f"{value} fails at first")
    return {"number": value, "attempt": message.reconsume_times}


@handler(schema="number bigint, attempt int", filter=lambda message: not message.body.endswith(b"9"))
def number_without_nines(message: Message) -> dict[str, int]:
    """`number` after a filter of the user's own."""
    return number.function(message)  # type: ignore[no-any-return]


@handler(schema="number bigint")
def slow_plain_number(message: Message) -> dict[str, int]:
    """Takes two milliseconds, and nothing fails."""
    time.sleep(0.002)
    return {"number": int(message.body)}


def undeclared(message: Message) -> dict[str, object]:
    """A row of which nobody has declared the columns."""
    value = int(message.body)
    return {"number": value, "text": "7" if value % 50 == 7 else "other"}


@handler(schema="number bigint")
def number_from_elsewhere(message: Message) -> dict[str, int]:
    """One row a message, and its worker's current folder is the one that the variable names."""
    os.chdir(os.environ["ELSEWHERE"])
    return {"number": int(message.body)}
