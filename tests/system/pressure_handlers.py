"""Handlers of the tests of journal, disk and memory: one that waits for a file, one that returns what the test names."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocketcrew import Message, handler

if TYPE_CHECKING:
    from harness import Crew

RELEASE = "TEST_RELEASE"
"""Names the file for which stuck messages wait."""


@handler(schema="number bigint")
def stuck_or_done(message: Message) -> dict[str, int]:
    """A body that ends in `stuck` waits for the file; all others are done at once."""
    number, _, word = message.body.decode().partition(" ")
    while word == "stuck" and not Path(os.environ[RELEASE]).exists():
        time.sleep(0.01)
    return {"number": int(number)}


def is_in_hand(crew: Crew) -> bool:
    """Whether a message is being handled (for the test)."""
    status = crew.status()
    return status is not None and any(worker["running"] for worker in status["workers"])


@handler(schema="number bigint, bytes bigint")
def large_body(message: Message) -> dict[str, int]:
    """The number in front of the first blank, and how large the body is."""
    return {"number": int(message.body[:12].split(b" ")[0]), "bytes": len(message.body)}


@handler(schema="number bigint, text string")
def wide_row(message: Message) -> dict[str, Any]:
    """A row of 20 kB, after a hundredth of a second."""
    time.sleep(0.01)
    return {"number": int(message.body), "text": os.urandom(10_000).hex()}


@handler(schema="number bigint, text string, data binary")
def rows_of_any_kind(message: Message) -> Any:
    """Rows by the body's second word: many, large, wrong, not picklable, of no known kind, or an ordinary one."""
    word, _, rest = message.body.decode().partition(" ")
    number, _, kind = rest.partition(" ")
    del word
    row = {"number": int(number), "text": kind, "data": b""}
    if kind == "many":
        return ({**row, "text": str(index)} for index in range(50_000))
    if kind == "large":
        return {**row, "text": "x" * (24 << 20), "data": bytes(24 << 20)}
    if kind == "wrong":
        return {**row, "number": "no number"}
    if kind == "unknown":
        return {**row, "column": 1}
    if kind == "lock":
        return {**row, "data": threading.Lock()}  # what no pickle takes
    if kind == "nothing":
        return object()
    return row
