"""The list of a batch handler is its own: it may sort it, take messages out of it, or empty it as a list of work.

So the list is put back as it came when the call ends. Whoever is around the call, be it a trace, a hook or what sends
messages, finds the batch there; and results in the order in which the handler left its list are put into that of the batch.
Java hands over a list that cannot be changed; here `messages.sort(...)` and `while messages: messages.pop()` are habits.
"""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import is_
from typing import Any, cast

from .api import BatchResult, Handler
from .calls import batch_results, is_tagged, iterated
from .fitting import RowError
from .message import Message


def keeping_list(handler: Handler, returns: Any) -> Handler:
    """The same batch handler, whose calls leave their list as it was. `returns` is how its result is annotated."""
    function = handler.function

    def call(messages: list[Message]) -> object:
        batch = messages.copy()
        try:
            return _settled(batch, messages, function(messages))
        finally:
            messages[:] = batch

    async def awaited(messages: list[Message]) -> object:
        batch = messages.copy()
        try:
            return _settled(batch, messages, await function(messages))
        finally:
            messages[:] = batch

    wrapped = copy.copy(handler)
    wrapped.function = wrapped.plain = own = awaited if inspect.iscoroutinefunction(function) else call
    own.__module__, own.__qualname__ = handler.name.split(":", 1)
    own.__annotations__["return"] = returns
    return wrapped


def _settled(batch: list[Message], messages: list[Message], result: object) -> object:
    if result is None or (result.__class__ is list and _same(batch, messages)):  # the usual ones
        return result
    return in_order(batch, (batch,), (messages,), result)


def in_order(batch: list[Message], given: Sequence[list[Any]], left: Sequence[list[Any]], result: object) -> object:
    """What a batch handler returned, as if it had left its lists as they were `given`: the messages, their bodies, or both.
    Its results follow the lists as they are `left`. Raises RowError where these do not say whose a result is."""
    if isinstance(result, BatchResult):
        result = _made(result)
    if all(map(_same, given, left)) or isinstance(result, BaseException):
        return result
    order = _moved(given, left)
    if order is None:
        found = batch_results(batch, result) if isinstance(result, BatchResult) else result
        if len(batch) > 1 and _by_place(result, found):
            raise _of_changed(len(given))
        return found
    results: list[object] = [None] * len(batch)
    for place, each in zip(order, batch_results([batch[place] for place in order], result), strict=True):
        results[place] = each
    return results


def _made(result: BatchResult) -> BatchResult:
    """With the rows of a generator, which is the handler's code and may change the lists as well."""
    if not hasattr(result.rows, "__next__") or hasattr(result.rows, "schema"):
        return result
    rows = iterated(result.rows)
    if rows is None:
        return result
    made = copy.copy(result)
    made.rows = rows
    return made


def _same(given: list[Any], left: list[Any]) -> bool:
    # Not by ==, which runs the code of what a handler put there; and a copy's iteration does not note what is taken.
    return len(given) == len(left) and all(map(is_, given, left.copy()))


def _moved(given: Sequence[list[Any]], left: Sequence[list[Any]]) -> list[int] | None:
    """The place at which each item was given; None where something else was done to the lists than to sort them alike."""
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place in reversed(range(len(given[0]))):
        places[id(given[0][place])].append(place)  # several of one body, as of small numbers
    order = [places[id(item)].pop() for item in left[0].copy() if places[id(item)]]
    alike = all(_same([each[place] for place in order], now) for each, now in zip(given, left, strict=True))
    return order if alike and len(order) == len(given[0]) else None


def _by_place(result: object, found: object) -> bool:
    """Whether it depends on the order of the messages; `found`: the results in it."""
    if isinstance(result, BatchResult):
        if result.ack_index is not None and result.ack_index < len(cast("list[object]", found)) - 1:
            return result.ack_index >= 0
        rows: Any = result.rows
        if isinstance(rows, Iterable) and any(map(is_tagged, cast("Iterable[object]", rows))):
            return False
    return isinstance(found, list | tuple) and any(each is not None for each in cast("Sequence[object]", found))


def _of_changed(lists: int) -> RowError:
    what = "its list by more than sorting it" if lists == 1 else "its lists by more than sorting both alike"
    return RowError(
        f"the batch handler changed {what}, so that nobody knows which message each result is for: "
        f"let it work on a copy, list(messages), or give (message, row) for each row in a BatchResult"
    )
