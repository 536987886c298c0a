"""A soft time limit that comes while a row is copied or converted ends the call: nobody takes it for an error of a value."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from rocketcrew import SoftTimeLimitExceeded
from rocketcrew.workers.api import BatchResult
from rocketcrew.workers.boot import COLUMNS_FILE
from rocketcrew.workers.calls import batch_results
from rocketcrew.workers.copying import listed
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.fitting import Columns, RowError
from rocketcrew.workers.inferring import Inferring, columns_of
from rocketcrew.workers.message import make_message
from rocketcrew.workers.rows import RowBuffer

Convert = Callable[[Any], object]


class Steps:
    """Code of a value: the limit comes in its n-th step."""

    def __init__(self, limit_at: int) -> None:
        self.left = limit_at

    def step(self) -> None:
        self.left -= 1
        if not self.left:
            raise SoftTimeLimitExceeded(1.0)


class Number:
    """Of what an `__index__` raises, Arrow makes an error of its own, whatever it was: its calls are no steps."""

    def __init__(self, steps: Steps, number: int = 0) -> None:
        """Without a `number` it is none."""
        self.steps = steps
        self.number = number

    def __index__(self) -> int:
        if sys._getframe(1).f_code.co_name in ("_check_integers", "_whole"):
            self.steps.step()
        if not self.number:
            raise TypeError("no number")
        return self.number


class Uncopied(Number):
    def __deepcopy__(self, memo: object) -> Number:
        self.steps.step()
        raise RuntimeError("no copy")


class Copied(Number):
    def __deepcopy__(self, memo: object) -> int:
        self.steps.step()
        return 1


class Zone(datetime.tzinfo):
    def __init__(self, steps: Steps, hours: int) -> None:
        self.steps = steps
        self.hours = hours

    def utcoffset(self, _time: datetime.datetime | None) -> datetime.timedelta:
        self.steps.step()
        return datetime.timedelta(hours=self.hours)

    def tzname(self, _time: datetime.datetime | None) -> str:
        self.steps.step()
        return "+01:00"


@dataclasses.dataclass
class Row:
    """Of which an attribute is code."""

    v: int
    steps: dataclasses.InitVar[Any] = None

    def __post_init__(self, steps: Any) -> None:
        self.own = steps

    def __getattribute__(self, name: str) -> Any:
        if name == "v" and (own := object.__getattribute__(self, "__dict__").get("own")) is not None:
            own.step()
        return object.__getattribute__(self, name)


def seen(ddl: str) -> Columns:
    """Columns that know the class `Row`."""
    columns = Columns(parse_ddl(ddl))
    columns.values_of(Row(1))
    return columns


def each_step(make: Callable[[Steps], Any], convert: Convert) -> int:
    """Let the limit come in each step that there is; in how many it came."""
    for at in itertools.count(1):
        steps = Steps(at)
        value = make(steps)
        try:
            convert(value)
        except SoftTimeLimitExceeded:
            continue
        except (RowError, AttributeError):
            pass
        assert steps.left > 0, f"taken for an error of a value in step {at}"
        return at - 1
    raise AssertionError


VALUES: list[tuple[str, Callable[[Steps], Any]]] = [
    ("int", lambda steps: Number(steps, 1)),
    ("int", lambda steps: Number(steps, 1 << 40)),
    ("int", Number),
    ("array<int>", lambda steps: [1, Number(steps, 1 << 40)]),
    ("array<int>", lambda steps: [Number(steps)]),
    ("map<int,int>", lambda steps: {Number(steps, 1): Number(steps, 1 << 40)}),
    ("map<int,int>", lambda steps: [(1, Number(steps, 1 << 40))]),
    ("struct<a: int>", lambda steps: {"a": Number(steps, 1 << 40)}),
    ("struct<a: int>", lambda steps: [("a", Number(steps, 1 << 40))]),
    ("timestamp", lambda steps: datetime.datetime(2026, 1, 1, tzinfo=Zone(steps, 1))),
    ("timestamp", lambda steps: datetime.datetime(2026, 1, 1, tzinfo=Zone(steps, 30))),
]


@pytest.mark.parametrize(("ddl", "make"), VALUES)
def test_in_a_conversion(ddl: str, make: Callable[[Steps], Any]) -> None:
    columns = Columns(parse_ddl(f"v {ddl}"))
    assert each_step(make, lambda value: columns.arrays([(value,)])) > 0
    assert each_step(make, lambda value: columns.arrays([(value,), (value,)])) > 0
    assert each_step(make, lambda value: columns.arrays([(None, value)])) > 0


@pytest.mark.parametrize("kind", [Number, Uncopied, Copied])
def test_in_a_copy(kind: Callable[[Steps, int], Any]) -> None:
    for wrap in (lambda value: value, lambda value: {"v": value}, lambda value: {"v": [value]}):
        each_step(lambda steps, wrap=wrap: wrap(kind(steps, 1)), lambda value: listed(iter([value])))
    messages = [make_message(b"", queue_offset=at) for at in range(2)]

    def of_batch(value: Any) -> object:
        return batch_results(messages, BatchResult(iter([{"v": 1}, {"v": value}])))

    found = each_step(lambda steps: kind(steps, 1), of_batch)
    assert found == (0 if kind is Number else 1)


def test_in_an_attribute_of_a_row() -> None:
    columns, buffer = seen("v int"), RowBuffer[int](parse_ddl("v int"), "g")
    message = make_message(b"")
    buffer.prepare(message, Row(1))
    several: list[Convert] = [
        columns.values_of_plain,
        lambda row: columns.values_of_plain_rows([row, row]),
        lambda row: columns.values_of_each_plain([row, row]),
        lambda row: buffer.together([row, row]),
        lambda row: buffer.prepare(message, row),
        lambda row: buffer.prepare(message, [row, row]),
        lambda row: buffer.prepare(message, row, at_once=True),
    ]
    for convert in several:
        assert each_step(lambda steps: Row(1, steps), convert) > 0


def test_where_the_first_rows_decide_on_the_columns(tmp_path: Path) -> None:
    buffer = RowBuffer[int](None, "g", Inferring(tmp_path / COLUMNS_FILE, structlog.get_logger()))

    def zoned(steps: Steps) -> Any:
        return {"v": datetime.datetime(2026, 1, 1, tzinfo=Zone(steps, 1))}

    assert each_step(zoned, lambda row: columns_of([row])) > 0
    assert each_step(zoned, lambda row: buffer.prepare(make_message(b""), row)) > 0
