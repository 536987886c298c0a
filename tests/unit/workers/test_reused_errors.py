"""An error object that a module has, and that is raised or returned for many messages, holds what its last raise had: not one
frame more for each message."""

from __future__ import annotations

import copy
import pickle
import re
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.workers.api import Handler, Retry, Rollback, handler
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.message import Message
from rocketcrew.workers.ordered_packets import Classify, OrderedDescriptor, encode_classify, encode_ordered
from rocketcrew.workers.user_errors import describe_error, keep_last_raise, usable, user_traceback

Make = Callable[..., Any]
MESSAGES = 6

Raise = Callable[[BaseException], object]


def raising(error: BaseException) -> object:
    raise error


def returning(error: BaseException) -> object:
    return error


def caught_and_returned(error: BaseException) -> object:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


def ending_a_generator(error: BaseException) -> Iterator[object]:
    yield None
    return error


def raising_in_a_generator(error: BaseException) -> Iterator[object]:
    yield None
    raise error


def raising_another_from_it(error: BaseException) -> object:
    try:
        raise error
    except BaseException as cause:
        raise KeyError("of it") from cause


def raising_another_in_spite_of_it(error: BaseException) -> object:
    try:
        raise error
    except BaseException:  # noqa: BLE001
        raise KeyError("of it") from None


def raising_it_in_a_group(error: BaseException) -> object:
    try:
        raise error
    except BaseException as one:  # noqa: BLE001
        raise BaseExceptionGroup("several", [one]) from None


WAYS: list[Raise] = [
    raising, returning, caught_and_returned, ending_a_generator, raising_in_a_generator, raising_another_from_it,
    raising_another_in_spite_of_it, raising_it_in_a_group,
]  # fmt: skip


def entries(error: BaseException) -> int:
    return len(list(traceback.walk_tb(error.__traceback__)))


class Growth:
    """A handler that notes at each call how many entries the traceback of its error has."""

    def __init__(self, way: Raise, error: BaseException) -> None:
        self._way, self._error = way, error
        self.seen: list[int] = []

    def __call__(self, _given: object) -> object:
        self.seen.append(entries(self._error))
        return self._way(self._error)

    def check(self) -> None:
        self.seen.append(entries(self._error))
        first, *others = self.seen
        assert first == 0
        assert set(others) == {others[0]}


ERRORS: list[type[Exception]] = [ValueError, Retry]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ERRORS)
def test_of_a_handler(bench: Make, make_record: Make, way: Raise, kind: type[Exception]) -> None:
    growth = Growth(way, kind())
    b = bench(growth)
    b.chunk([make_record(b"x", offset=n) for n in range(MESSAGES)])
    b.steps(4)
    assert len(b.outcomes()[1]) == MESSAGES
    growth.check()


@pytest.mark.parametrize("way", [raising, returning, raising_another_from_it])
def test_of_a_batch_handler_each_of_whose_messages_is_told_where_it_was(
    bench: Make, make_record: Make, way: Raise
) -> None:
    error = ValueError("no")
    growth = Growth(way, error)
    b = bench(Handler(growth, batch=True), bounds=WorkerBounds(batch_messages_max=2))
    b.chunk([make_record(b"x", offset=n) for n in range(MESSAGES)])
    b.steps(4)
    growth.check()
    told = [event["exception"] for event in b.log.events if event["event"] == "message_failed"]
    assert len(told) == MESSAGES
    assert all((f"in {way.__name__}" in text) == (way is not returning) for text in told)


def test_of_the_results_of_a_batch_handler(bench: Make, make_record: Make) -> None:
    error = ValueError("no")
    growth = Growth(lambda error: [caught_and_returned(error)] * MESSAGES, error)
    b = bench(Handler(growth, batch=True), bounds=WorkerBounds(batch_messages_max=MESSAGES))
    for chunk_id in range(1, 4):
        b.chunk([make_record(b"x", offset=chunk_id * MESSAGES + n) for n in range(MESSAGES)], chunk_id)
        b.steps(4)
    growth.check()
    told = [event["exception"] for event in b.log.events if event["event"] == "message_failed"]
    assert len(told) == 3 * MESSAGES
    assert all("in caught_and_returned" in text for text in told)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "auto_commit"), [(ValueError, True), (Rollback, True), (Rollback, False)])
def test_in_order(bench: Make, make_record: Make, way: Raise, kind: type[Exception], auto_commit: bool) -> None:
    growth = Growth(way, kind())
    b = bench(Handler(growth, order="queue", auto_commit=auto_commit))
    for number in range(MESSAGES):
        data = make_record(b"x", offset=number)
        b.link.send(encode_ordered([OrderedDescriptor(number + 1, 1, 0, len(data), 1, 0, ())], 0), data)
        b.steps(4)
    growth.check()


def test_of_a_filter_and_of_a_key(bench: Make, make_record: Make) -> None:
    of_filter, of_key = Growth(raising, ValueError("no")), Growth(raising, ValueError("no"))

    @handler(filter=of_filter, order="key", key=of_key)
    def handle(_: Message) -> None: ...

    b = bench(handle)
    data = b"".join(make_record(b"x", offset=n) for n in range(MESSAGES))
    b.link.send(encode_classify(Classify(1, 0, len(data), MESSAGES)), data)
    b.steps(4)
    b.chunk([make_record(b"x", offset=n) for n in range(MESSAGES)])
    b.steps(4)
    of_filter.check()
    of_key.check()


def test_the_last_raise_stays_and_the_error_is_left_to_its_owner() -> None:
    error = ValueError("no")

    def first() -> None:
        raise error

    def second() -> None:
        raise error

    for each in (first, second):
        with pytest.raises(ValueError, match="no"):
            each()
        keep_last_raise(error)
        assert usable(error) is error
    text = user_traceback(error)
    assert "in second" in text
    assert "in first" not in text
    for twin in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert twin.args == ("no",)


def test_where_it_was_raised_first_is_told_once_that_is_cut_off() -> None:
    future: Future[object] = Future()
    try:
        {}["weights"]
    except KeyError as error:
        future.set_exception(error)
    told: list[str] = []
    for _ in range(3):
        with pytest.raises(KeyError) as caught:
            future.result()
        told.append(describe_error(usable(caught.value)))
    line = test_where_it_was_raised_first_is_told_once_that_is_cut_off.__code__.co_firstlineno + 3
    first = f"{Path(__file__).name}:{line}"
    assert told[0] == f"KeyError: 'weights' ({first})"
    assert told[1] == told[2]
    asked = rf"{re.escape(Path(__file__).name)}:{line + 6}, in _base\.py:\d+"
    assert re.fullmatch(rf"KeyError: 'weights' \({asked}, first raised at {re.escape(first)}\)", told[1])


def test_where_it_is_raised_each_time_is_told_once() -> None:
    error = ValueError("no")
    told: set[str] = set()
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            raising(error)
        told.add(describe_error(usable(error)))
    assert len(told) == 1
    assert "first" not in told.pop()


def test_errors_without_end_behind_one_are_not_all_looked_at() -> None:
    error = innermost = ValueError("no")
    for _ in range(1_000):
        error = ValueError("no", error)
        error.__cause__ = innermost
        innermost = error
    keep_last_raise(error)
    error.__context__ = error
    keep_last_raise(error)
