"""What a handler's return annotation says of its results: refused before anything is started where every call would fail.

    def count(message) -> int: ...          # a number is no row: refused where rows are wanted
    def bill(message) -> Send: ...          # without @handler(sends=True) nothing would send it: refused everywhere

Only what is sure is refused. A type that is not there when the handler runs (TYPE_CHECKING), or one that may be a row or not,
decides nothing: the results themselves are looked at, one by one.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterable, Awaitable, Iterable, Iterator
from dataclasses import is_dataclass
from typing import Any, Final

from ..remoting.errors import UsageError
from .api import Handler
from .bodies import is_union, result_annotation, shown

SENDS: Final = f"{__package__}.sends", "Send"
"""Module and name of Send, which brings Arrow: commands do not wait for that."""
VALUES: Final = (int, float, complex, str, bytes, bytearray, memoryview)
"""What is a value of a column, and never a row (bool is an int)."""
ROWS: Final = "a dict, a dataclass instance, a list of these or an Arrow batch; None is no row"


def check_result_type(handler: Handler, *, rows: bool) -> None:
    """`rows`: what it returns becomes rows. Raises UsageError for an annotation that no result can have."""
    for part in handler.parts or (handler,):
        wrong = _refusal(part, rows=rows)
        if wrong is not None:
            raise UsageError(f"handler {part.name} is annotated to return {wrong}")


def _refusal(handler: Handler, *, rows: bool) -> str | None:
    wanted = result_annotation(handler.plain)
    if wanted is None:
        return None
    types = list(_types_in(wanted))
    if not handler.sends and any(
        (each.__module__, each.__qualname__) == SENDS for each in types if inspect.isclass(each)
    ):
        return "a Send, and is not declared with @handler(sends=True): it would not be sent"
    for kind in types[:1]:
        waits = _is_a(kind, (Awaitable, AsyncIterable)) and not _is_a(kind, (Iterable,))
        if waits and not inspect.iscoroutinefunction(handler.plain):
            return f"{shown(wanted)}, which nothing would run: write the handler with `async def`, and return its rows"
    if rows and _is_no_row(wanted):
        return f"{shown(wanted)}, which cannot be a row. Return {ROWS}"
    return None


def _types_in(wanted: Any) -> Iterator[Any]:
    """The type itself, those of a union, and those of the items of what is iterated."""
    yield typing.get_origin(wanted) or wanted
    items = _items(wanted)
    for each in typing.get_args(wanted) if is_union(wanted) else () if items is None else (items,):
        yield from _types_in(each)


def _items(wanted: Any) -> Any:
    """Of `list[X]`, `Iterator[X]` and the like X; None for what is no such type, and for a tuple of several types."""
    kind, given = typing.get_origin(wanted), typing.get_args(wanted)
    if not inspect.isclass(kind) or not hasattr(kind, "__iter__") or issubclass(kind, typing.Mapping) or not given:
        return None
    return given[0] if len(given) == 1 or given[1] is Ellipsis or "send" in dir(kind) else None


def _is_no_row(wanted: Any) -> bool:
    """Whether nothing of this type can be rows; None may be."""
    if is_union(wanted):
        given = [each for each in typing.get_args(wanted) if each is not type(None)]
        return bool(given) and all(map(_is_no_row, given))
    items = _items(wanted)
    return _is_no_row(items) if items is not None else _is_a(wanted, VALUES) and not is_dataclass(wanted)


def _is_a(kind: Any, wanted: tuple[type, ...]) -> bool:
    return inspect.isclass(kind) and issubclass(kind, wanted)
