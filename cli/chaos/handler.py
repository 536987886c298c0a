"""The handler that `rocketcrew chaos` runs: it logs every start and end to one file, and can be told to go wrong.

A body is a number, and perhaps what is to happen to it. A line of the file is one write of less than a page, so that lines
of several processes never mix; it says what happened, to which message, and when (CLOCK_MONOTONIC, the same in all
processes of a machine). The file is in the current folder, which a worker has from its supervisor.
"""

from __future__ import annotations

import os
import time
from typing import Final

from ...workers.api import handler
from ...workers.message import Message

TRACE: Final = "trace"
EXIT: Final = "exit"
HANG: Final = "hang"
NAP_S: Final = 0.002
FAILS_FIRST: Final = 50
"""Every so many-th message fails the first time, so that retries are part of what is disturbed."""


def tell(what: str, message: Message, number: int) -> None:
    """One line: what, process, topic, queue, offset, key, number, time in ns."""
    line = (
        f"{what} {os.getpid()} {message.queue.topic} {message.queue_id} {message.queue_offset} {message.keys or '-'}"
        f" {number} {time.monotonic_ns()}\n"
    )
    file = os.open(TRACE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@handler(schema="number bigint, attempt int")
def numbered(message: Message) -> dict[str, int]:
    """One row: the message's number, and how often it had been tried before."""
    text, _, evil = message.body.decode().partition(" ")
    number = int(text)
    tell("BEGIN", message, number)
    if evil == EXIT:
        os._exit(70)
    if evil == HANG and not message.reconsume_times:
        sum(iter(int, 1))  # a C loop that never lets the interpreter look at signals
    time.sleep(NAP_S)
    if number % FAILS_FIRST == 7 and not message.reconsume_times:
        tell("FAIL", message, number)
        raise ValueError(f"{number} fails at first, on purpose")
    tell("END", message, number)
    return {"number": number, "attempt": message.reconsume_times}
