"""What a generator returns at its end: an exception means what a plain function's means, what no row can be in means
nothing, anything else fails the message."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid
from array import array
from collections import Counter, OrderedDict, UserDict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow
import pytest
import structlog

from rocketcrew import BatchResult, Commit, Handler, Retry, Send, Suspend
from rocketcrew.testing import message, run
from rocketcrew.workers.boot import COLUMNS_FILE
from rocketcrew.workers.calls import batch_results
from rocketcrew.workers.copying import to_the_end
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.fitting import RowError
from rocketcrew.workers.inferring import Inferring
from rocketcrew.workers.rows import RowBuffer
from rocketcrew.workers.sends import run_out, sending

LOST = r"what the handler's rows ended with \({}\) would be lost: yield rows"
ORDER = message(b"x", topic="orders")


def ending(returned: object, *rows: object) -> Iterator[Any]:
    yield from rows
    return returned


class Ended(enum.Enum):
    ALL = 1


class Ending:
    """An iterator that is no generator, and ends with a value as one does."""

    def __init__(self, returned: object) -> None:
        self.returned = returned

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> object:
        raise StopIteration(self.returned)


def sent_out(given: Any) -> None:
    """What sends it is asked at the end of a generator."""
    list(sending(Handler(lambda message: given, sends=True), "billing", None)(ORDER))


def takers(folder: Path) -> list[Callable[[Any], object]]:
    """Everything that goes through what a handler returned."""
    inferring = Inferring(folder / COLUMNS_FILE, structlog.get_logger("test"))
    return [
        lambda given: RowBuffer[int](parse_ddl("a int"), "g").prepare(ORDER, given),
        lambda given: RowBuffer[int](None, "g", inferring).prepare(ORDER, given),
        lambda given: batch_results([ORDER], BatchResult(given)),
        run_out,
        lambda given: run_out(Commit(given)),
        sent_out,
    ]


class Totals(NamedTuple):
    a: int


@pytest.mark.parametrize(
    "returned",
    [
        {"a": 2},
        [{"a": 2}],
        (1, {"a": 2}),
        Totals(2),
        Send("a", b"1"),
        [Send("a", b"1")],
        Commit(),
        BatchResult(),
        object(),
    ],
)
def test_what_is_no_exception_is_refused(returned: object, tmp_path: Path) -> None:
    for take in takers(tmp_path):
        with pytest.raises(RowError, match=LOST.format(type(returned).__name__)):
            take(ending(returned, {"a": 1}))
        with pytest.raises(RowError, match=LOST.format(type(returned).__name__)):
            take(Ending(returned))


@pytest.mark.parametrize("returned", [Retry(3, "not yet"), Suspend(), ValueError("no")])
def test_an_exception_is_raised(returned: BaseException, tmp_path: Path) -> None:
    for take in takers(tmp_path):
        with pytest.raises(type(returned)) as raised:
            take(ending(returned, {"a": 1}))
        assert raised.value is returned


@pytest.mark.parametrize("returned", [Retry, [Retry], ValueError])
def test_the_class_of_an_exception_asks_for_nothing_and_is_refused(returned: Any, tmp_path: Path) -> None:
    buffer = RowBuffer[int](parse_ddl("a int"), "g")
    name = ValueError.__name__ if returned is ValueError else Retry.__name__
    for take in (run_out, lambda given: run_out(Commit(given))):
        with pytest.raises(RowError, match=rf"the handler returned the class {name}: return {name}\(…\), or raise it"):
            take(returned)
    for take in takers(tmp_path):
        with pytest.raises(RowError):
            take(ending(returned, {"a": 1}))
    with pytest.raises(RowError):
        buffer.prepare(ORDER, returned)


@pytest.mark.parametrize(
    "returned",
    [
        None, 3, 0.5, True, "done", b"done", decimal.Decimal(1), datetime.date(2026, 1, 1), datetime.time(1),
        datetime.timedelta(1), uuid.UUID(int=1), Ended.ALL, (2, 1), [2, "done"], {1, 2}, (2, None), [], (), {}, set[int](),
    ],
)  # fmt: skip
def test_what_can_be_no_row_means_nothing(returned: object, tmp_path: Path) -> None:
    for take in takers(tmp_path):
        take(ending(returned, {"a": 1}))
        take(Ending(returned))


def test_numpy_s_numbers_and_truths_mean_nothing_too() -> None:
    numpy: Any = pytest.importorskip("numpy")
    for returned in (numpy.int64(3), numpy.float32(0.5), numpy.bool_(True), numpy.datetime64(1, "s")):
        assert list(to_the_end(ending(returned, {"a": 1}))) == [{"a": 1}]


class Cart(list[str]):
    pass


@dataclasses.dataclass
class Parcel:
    items: list[str]

    def __len__(self) -> int:
        return len(self.items)


@pytest.mark.parametrize("returned", [Cart(), Parcel([])])
def test_what_is_empty_by_a_class_of_the_user_s_may_be_a_row_all_the_same(returned: object) -> None:
    with pytest.raises(RowError, match=LOST.format(type(returned).__name__)):
        list(to_the_end(ending(returned, {"a": 1})))


@pytest.mark.parametrize(
    "returned",
    [
        range(0), deque[int](), Counter[str](), bytearray(), {}.keys(), OrderedDict[str, int]().items(), UserDict[str, int](),
        array("i"), memoryview(b""), MappingProxyType[str, int]({}), pyarrow.table({}),
    ],
)  # fmt: skip
def test_what_is_empty_has_no_rows(returned: object) -> None:
    assert list(to_the_end(ending(returned, {"a": 1}))) == [{"a": 1}]


def test_an_array_without_a_length_is_refused_as_others() -> None:
    numpy: Any = pytest.importorskip("numpy")
    with pytest.raises(RowError, match=LOST.format("ndarray")):
        list(to_the_end(ending(numpy.array(3), {"a": 1})))


def test_its_message_fails_and_others_are_done() -> None:
    def count(given: Any) -> Iterator[dict[str, str]]:
        if given.keys == "k1":
            yield {"a": "1"}
        else:
            return {"a": "2"}

    ran = run(Handler(count, schema="a string"), [message(b"x", topic="t", keys=key) for key in ("k1", "k2")])
    assert ran.rows == [{"a": "1"}]
    assert ran.done == 1
    assert any("ended with (dict)" in str(line.get("error")) for line in ran.log)
