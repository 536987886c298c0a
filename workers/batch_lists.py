"""The list of a batch handler is its own: it may sort it, take messages out of it, or empty it as a list of work.

So the list is put back as it came when the call ends. Whoever is around the call, be it a trace, a hook or what sends
messages, finds the batch there. Java hands over a list that cannot be changed; here `messages.sort(...)` and
`while messages: messages.pop()` are habits.

Results by place are those of the messages as they came. Where the handler has moved some, nobody knows which order its
results have: it may have made them before it sorted, or after. So they are refused.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from .api import BatchResult, Handler
from .message import HandedList, Message

_set: Callable[[list[Message], slice, list[Message]], None] = list[Message].__setitem__
"""Not the list's own, which looks for moves."""


def keeping_list(handler: Handler, returns: Any) -> Handler:
    """The same batch handler, whose calls leave their list as it was. `returns` is how its result is annotated."""
    function = handler.function

    def call(messages: list[Message]) -> object:
        batch, own = messages.copy(), _handed(messages)
        try:
            return _settled(batch, own, function(own))
        finally:
            _set(messages, slice(None), batch)

    async def awaited(messages: list[Message]) -> object:
        batch, own = messages.copy(), _handed(messages)
        try:
            return _settled(batch, own, await function(own))
        finally:
            _set(messages, slice(None), batch)

    wrapped = copy.copy(handler)
    wrapped.function = wrapped.plain = made = awaited if inspect.iscoroutinefunction(function) else call
    made.__module__, made.__qualname__ = handler.name.split(":", 1)
    made.__annotations__["return"] = returns
    return wrapped


def _handed(messages: list[Message]) -> HandedList:
    return messages if isinstance(messages, HandedList) else HandedList(messages)


def _settled(batch: list[Message], messages: HandedList, result: object) -> object:
    if result is None or (result.__class__ is list and messages.is_unchanged()):  # the usual ones
        return result
    return in_order(batch, (messages,), result)


def in_order(batch: list[Message], left: Sequence[HandedList], result: object) -> object:
    """What a batch handler returned that `left` its lists so: of the messages, their bodies, or both. Raises RowError where
    it goes by the order of the messages, and they have other places."""
    if isinstance(result, BatchResult):
        result = _made(result)
    if all(own.is_unchanged() for own in left) or isinstance(result, BaseException):
        return result
    result = _kept(left, result)
    if all(own.in_place() for own in left):
        return result
    from .calls import batch_results  # here, as it brings Arrow, which the command line does not wait for

    found = batch_results(batch, result) if isinstance(result, BatchResult) else result
    if len(batch) > 1 and _by_place(result, found):
        raise _of_moved(len(left))
    return found


def _made(result: BatchResult) -> BatchResult:
    """With the rows of a generator, which is the handler's code and may change the lists as well."""
    if not hasattr(result.rows, "__next__") or hasattr(result.rows, "schema"):
        return result
    from .calls import iterated

    rows = iterated(result.rows)
    return result if rows is None else _of_rows(result, rows)


def _kept(left: Sequence[list[Any]], result: object) -> object:
    """The result as it is now, also where it is a list of the call's, which is put back."""
    for own in left:
        if result is own:
            return own.copy()
        if isinstance(result, BatchResult) and result.rows is own:
            return _of_rows(result, own.copy())
    return result


def _of_rows(result: BatchResult, rows: list[Any]) -> BatchResult:
    made = copy.copy(result)
    made.rows = rows
    return made


def _by_place(result: object, found: object) -> bool:
    """Whether it depends on the order of the messages; `found`: the results in it."""
    from .calls import is_tagged

    if isinstance(result, BatchResult):
        if result.ack_index is not None and result.ack_index < len(cast("list[object]", found)) - 1:
            return result.ack_index >= 0
        rows: Any = result.rows
        if isinstance(rows, Iterable) and any(map(is_tagged, cast("Iterable[object]", rows))):
            return False
    return isinstance(found, list | tuple) and any(each is not None for each in cast("Sequence[object]", found))


def _of_moved(lists: int) -> Exception:
    from .copying import RowError

    what = "its list" if lists == 1 else "one of its lists"
    return RowError(
        f"the batch handler sorted {what}, took from it, added to it or moved an item in it, so that nobody knows which"
        " message each result is for: leave it as it is, and return the results (or the ack_index) in the order in which"
        " the messages came, also where it sorts a copy; or give (message, row) for each row in a BatchResult"
    )
