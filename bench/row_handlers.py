"""Handlers that return rows, for rows.py: `CASES` says what each returns. Imported by worker processes from this folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow

from rocketcrew import BatchResult, Message, handler
from rocketcrew.workers.api import Handler

pa: Any = pyarrow

FIVE = "n bigint, level string, text string, ratio double, ok boolean"
THIRTY = ", ".join(f"{name}{number} {kind}" for number in range(6) for name, kind in (
    ("n", "bigint"), ("level", "string"), ("text", "string"), ("ratio", "double"), ("ok", "boolean")))  # fmt: skip


@dataclass
class Row:
    n: int
    level: str
    text: str
    ratio: float
    ok: bool


def five(n: int) -> dict[str, object]:
    return {"n": n, "level": "warning", "text": f"line {n} of a module", "ratio": n / 7, "ok": True}


def thirty(n: int) -> dict[str, object]:
    return {f"{name}{number}": value for number in range(6) for name, value in five(n).items()}


@handler(schema=FIVE)
def none(_message: Message) -> None:
    """No rows: what the others are compared with."""


@handler(schema=FIVE)
def dict5(message: Message) -> dict[str, object]:
    n = message.queue_offset
    return {"n": n, "level": "warning", "text": f"line {n} of a module", "ratio": n / 7, "ok": True}


@handler(schema=FIVE)
def dict5_x10(message: Message) -> list[dict[str, object]]:
    return [five(message.queue_offset + number) for number in range(10)]


@handler(schema=FIVE)
def dict5_x100(message: Message) -> list[dict[str, object]]:
    return [five(message.queue_offset + number) for number in range(100)]


@handler(schema=FIVE)
def dataclass5(message: Message) -> Row:
    n = message.queue_offset
    return Row(n, "warning", f"line {n} of a module", n / 7, ok=True)


@handler(schema=THIRTY)
def dict30(message: Message) -> dict[str, object]:
    return thirty(message.queue_offset)


@handler(schema="n bigint, level string, text string, ratio double, raw binary")
def binary5(message: Message) -> dict[str, object]:
    n = message.queue_offset
    return {"n": n, "level": "warning", "text": f"line {n} of a module", "ratio": n / 7, "raw": b"0123456789abcdef"}


@handler(schema="n bigint, level string, text string, tags array<string>, place struct<line: int, file: string>")
def nested5(message: Message) -> dict[str, object]:
    n = message.queue_offset
    return {"n": n, "level": "warning", "text": f"line {n} of a module", "tags": ["a", "bc", "def"],
            "place": {"line": 7, "file": "module.py"}}  # fmt: skip


@handler(schema=FIVE)
def arrow5_x10(message: Message) -> pyarrow.RecordBatch:
    n = message.queue_offset
    numbers = list(range(n, n + 10))
    return pa.RecordBatch.from_pydict({"n": numbers, "level": ["warning"] * 10, "text": ["line of a module"] * 10,
                                       "ratio": [0.5] * 10, "ok": [True] * 10})  # fmt: skip


@handler(schema=FIVE, batch=True)
def batch_none(_messages: list[Message]) -> None:
    """No rows, for a list."""


@handler(schema=FIVE, batch=True)
def batch_dict5(messages: list[Message]) -> list[dict[str, object]]:
    return [five(message.queue_offset) for message in messages]


@handler(schema=FIVE, batch=True)
def batch_arrow5(messages: list[Message]) -> BatchResult:
    """One Arrow batch of all."""
    count = len(messages)
    numbers = [message.queue_offset for message in messages]
    rows = pa.RecordBatch.from_pydict({"n": numbers, "level": ["warning"] * count, "text": ["line of a module"] * count,
                                       "ratio": [0.5] * count, "ok": [True] * count})  # fmt: skip
    return BatchResult(rows=rows)


class Case(NamedTuple):
    """A handler, and how many rows a message it returns."""

    handler: Handler
    rows: int
    batch: int = 1
    """`consume_message_batch_max_size`."""


CASES: dict[str, Case] = {
    name: Case(globals()[name], rows, batch)
    for name, rows, batch in (
        ("none", 0, 1), ("dict5", 1, 1), ("dict5_x10", 10, 1), ("dict5_x100", 100, 1), ("dataclass5", 1, 1),
        ("dict30", 1, 1), ("binary5", 1, 1), ("nested5", 1, 1), ("arrow5_x10", 10, 1), ("batch_none", 0, 32),
        ("batch_dict5", 1, 32), ("batch_arrow5", 1, 32),
    )
}  # fmt: skip
"""By name."""


def made_only(name: str) -> Callable[[Any], None]:
    """The same handler, whose rows are made and dropped: what it costs without ours."""
    function = CASES[name].handler.function

    def call(given: Any) -> None:
        function(given)

    return call
