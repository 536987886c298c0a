"""Return annotations that no result can have."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from rocketcrew.remoting.errors import UsageError
from rocketcrew.testing import message, run
from rocketcrew.workers.api import BatchResult, Commit, Handler
from rocketcrew.workers.loading import HandlerLoadError, ready
from rocketcrew.workers.message import Message
from rocketcrew.workers.result_types import check_result_type
from rocketcrew.workers.sends import Send

if TYPE_CHECKING:
    from nowhere import Unknown


@dataclass
class Row:
    number: int


def returning(annotation: Any) -> Callable[[Any], Any]:
    def function(message: Any) -> Any:
        return message

    function.__annotations__["return"] = annotation
    return function


def unknown(message: Message) -> Unknown:
    return message


def by_body(body: bytes) -> int:
    return len(body)


@pytest.mark.parametrize(
    "annotation",
    [
        int, bool, str, bytes, float, int | None, list[str], tuple[int, ...], Iterator[int], Generator[str, None, None],
        set[str] | int, "int",
    ],
)  # fmt: skip
def test_values_are_refused_where_rows_are_wanted_and_nowhere_else(annotation: Any) -> None:
    own = Handler(returning(annotation))
    check_result_type(own, rows=False)
    with pytest.raises(
        UsageError, match=r"which cannot be a row\. Return a dict, a dataclass instance, a list of these"
    ):
        check_result_type(own, rows=True)
    assert ready(own).function is own.function


@pytest.mark.parametrize(
    "annotation",
    [
        None, type(None), Any, object, dict, dict[str, int], Row, Row | None, list[Row], Iterator[dict[str, Any]],
        tuple[Row, int], list, Generator[Row, None, None], dict[str, int] | int, Commit, BatchResult, list[list[Row]],
        Message, "list[Nowhere]", list[None], ValueError, [], 5,
    ],
)  # fmt: skip
def test_what_may_be_rows_is_let_through(annotation: Any) -> None:
    check_result_type(Handler(returning(annotation)), rows=True)


def test_a_name_for_type_checkers_only_decides_nothing() -> None:
    check_result_type(Handler(unknown), rows=True)
    check_result_type(Handler(len), rows=True)
    check_result_type(Handler(print), rows=True)


@pytest.mark.parametrize("annotation", [Send, list[Send], Iterator[Row | Send], Row | Send, Send | None])
def test_a_send_is_declared(annotation: Any) -> None:
    with pytest.raises(HandlerLoadError, match=r"a Send, and is not declared with @handler\(sends=True\)"):
        ready(Handler(returning(annotation)))
    check_result_type(Handler(returning(annotation), sends=True), rows=True)


@pytest.mark.parametrize("annotation", [Awaitable[Row], AsyncIterator[Row]])
def test_what_nothing_would_run_is_refused(annotation: Any) -> None:
    with pytest.raises(HandlerLoadError, match=r"\[Row\], which nothing would run: write the handler with `async def`"):
        ready(Handler(returning(annotation)))


def test_a_rehearsed_run_refuses_it_as_workers_do() -> None:
    with pytest.raises(UsageError, match="annotated to return int, which cannot be a row"):
        run(Handler(returning(int), schema="number int"), [message("x")])


async def counted(message: Message) -> int:
    return len(message.body)


def test_a_coroutine_function_and_one_of_bodies_are_looked_at_too() -> None:
    for own in (ready(Handler(counted)), ready(Handler(by_body)), ready(Handler(returning(list[int]), batch=True))):
        with pytest.raises(UsageError, match=r"is annotated to return (int|list\[int\]), which cannot be a row"):
            check_result_type(own, rows=True)


def as_row(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(inner)
    def outer(given: Any) -> Any:
        return {"n": inner(given)}

    return outer


class Both:
    """Its results may be iterated in either way."""

    def __iter__(self) -> Iterator[dict[str, int]]:
        return iter([{"n": 1}])

    async def __aiter__(self) -> AsyncIterator[dict[str, int]]:
        yield {"n": 1}


@dataclass
class Numbered(int):
    number: int = 0


def test_an_annotation_that_is_not_of_what_is_called_decides_nothing() -> None:
    assert run(Handler(as_row(by_body), schema="n bigint"), [message(b"abc")]).rows == [{"n": 3}]
    check_result_type(Handler(as_row(by_body)), rows=True)
    check_result_type(Handler(functools.partial(as_row(by_body))), rows=True)
    check_result_type(Handler(functools.singledispatch(by_body)), rows=True)


@pytest.mark.parametrize("annotation", [Both, Numbered, Generator[dict[str, int], Send, None]])
def test_what_may_be_rows_is_not_refused(annotation: Any) -> None:
    check_result_type(Handler(returning(annotation)), rows=True)
