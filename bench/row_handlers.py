"""Handlers that return rows, for rows.py: `CASES` says what each returns. Imported by worker processes from this folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from typing import Any, NamedTuple

import pyarrow

from rocketcrew import BatchResult, Message, handler
from rocketcrew.workers.api import Handler
from rocketcrew.workers.ddl import as_schema

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
    rows: pyarrow.RecordBatch = pa.RecordBatch.from_pydict({
        "n": numbers, "level": ["warning"] * 10, "text": ["line of a module"] * 10, "ratio": [0.5] * 10, "ok": [True] * 10,
    })  # fmt: skip
    return rows


@handler(schema=FIVE, batch=True)
def batch_none(_messages: list[Message]) -> None:
    """No rows, for a list."""


@handler(schema=FIVE, batch=True)
def batch_dict5(messages: list[Message]) -> list[dict[str, object]]:
    return [five(message.queue_offset) for message in messages]


@handler(schema=FIVE, batch=True)
def batch_arrow5(messages: list[Message]) -> BatchResult:
    """One Arrow batch of all, with a row for each."""
    count = len(messages)
    numbers = [message.queue_offset for message in messages]
    rows = pa.RecordBatch.from_pydict({"n": numbers, "level": ["warning"] * count, "text": ["line of a module"] * count,
                                       "ratio": [0.5] * count, "ok": [True] * count})  # fmt: skip
    return BatchResult(rows=rows)


@handler(schema=FIVE)
def dict5_x10_dropped(message: Message) -> None:
    """What making ten rows costs by itself."""
    dict5_x10.function(message)


@handler(schema=FIVE, batch=True)
def batch_arrow5_dropped(messages: list[Message]) -> None:
    """What making the Arrow batch costs by itself."""
    batch_arrow5.function(messages)


@handler(schema="ended_ns bigint")
def ended(_message: Message) -> dict[str, int]:
    """When the call ended, in ns since 1970."""
    return {"ended_ns": time.time_ns()}


# --- the matrix: how rows are given, how many columns they have, how many a message returns -----------------------------

MIXED = "n bigint, level string, raw binary, tags array<string>, place struct<line: int, file: string>"
MIXED30 = ", ".join(
    f"n{number} bigint, level{number} string, raw{number} binary, tags{number} array<string>, "
    f"place{number} struct<line: int, file: string>" for number in range(6)
)  # fmt: skip
FORMS = ("dict", "dataclass", "arrow")
WIDTHS = (5, 30)
COUNTS = (1, 10, 100)


def mixed(n: int, width: int) -> dict[str, object]:
    """One row."""
    row: dict[str, object] = {"n": n, "level": "warning", "raw": b"0123456789abcdef", "tags": ["a", "bc", "def"],
                              "place": {"line": 7, "file": "module.py"}}  # fmt: skip
    return row if width == 5 else {f"{name}{number}": value for number in range(6) for name, value in row.items()}


MIXED_ROW: dict[int, type] = {
    width: make_dataclass(f"Mixed{width}", list(mixed(0, width))) for width in WIDTHS
}  # fmt: skip
MIXED_SCHEMA: dict[int, str] = {5: MIXED, 30: MIXED30}


def mixed_handler(form: str, width: int, count: int) -> Handler:
    """A handler that returns `count` rows of `width` columns, in that form."""
    types: Any = as_schema(MIXED_SCHEMA[width])
    row_class = MIXED_ROW[width]

    def call(message: Message) -> Any:
        n = message.queue_offset
        rows = [mixed(n + number, width) for number in range(count)]
        if form == "arrow":
            return pa.RecordBatch.from_pylist(rows, schema=types)
        made = rows if form == "dict" else [row_class(**row) for row in rows]
        return made[0] if count == 1 else made

    call.__name__ = call.__qualname__ = f"{form}{width}_mixed_x{count}"
    call.__module__ = __name__
    return handler(schema=MIXED_SCHEMA[width])(call)


MATRIX: dict[str, tuple[Handler, int]] = {
    f"{form}{width}_mixed_x{count}": (mixed_handler(form, width, count), count)
    for count in COUNTS for form in FORMS for width in WIDTHS
}  # fmt: skip
globals().update({name: found for name, (found, _) in MATRIX.items()})


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
        ("batch_dict5", 1, 32), ("batch_arrow5", 1, 32), ("dict5_x10_dropped", 0, 1), ("batch_arrow5_dropped", 0, 32),
    )
} | {name: Case(found, rows) for name, (found, rows) in MATRIX.items()}  # fmt: skip
"""By name."""
USUAL = [name for name in CASES if name not in MATRIX]
"""Those that are measured when nothing is said."""


def made_only(name: str) -> Callable[[Any], None]:
    """The same handler, whose rows are made and dropped: what it costs without ours."""
    function = CASES[name].handler.function

    def call(given: Any) -> None:
        function(given)

    return call
