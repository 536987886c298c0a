"""Log lines of whatever values: what cannot be rendered is rendered as far as possible, for a line must never stop the work.

A handler logs what it has: a dict by day, a key that numpy made, a list that contains itself, NaN, which JSON does not have,
an object whose `__repr__` raises because its database session is closed. The usual line is rendered as it is. One that cannot
be is rendered again, of plain values. Pure.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from math import isfinite
from typing import Any, Final, cast

DEPTH_MAX: Final = 20
INT_BITS_MAX: Final = 64
"""A longer number is a text: Python refuses to write one of some thousand digits."""

Event = MutableMapping[str, Any]


class Rendering:
    """A processor of structlog's: the last ones of a chain, which make a text of the event."""

    def __init__(self, *processors: Callable[[Any, str, Any], Any]) -> None:
        self._processors = processors

    def __call__(self, logger: Any, name: str, event: Event) -> Any:
        try:
            return self._rendered(logger, name, dict(event))  # they take out of it
        except Exception:  # noqa: BLE001  whatever a value's own code raises
            return self._rendered(logger, name, _plain_event(event))

    def _rendered(self, logger: Any, name: str, event: Any) -> Any:
        for processor in self._processors:
            event = processor(logger, name, event)
        return event


def _plain_event(event: Event) -> Event:
    found = {key: plain(value) for key, value in event.items() if key != "exc_info"}
    if event.get("exc_info"):
        found["exception"] = _trouble(event["exc_info"])
    return found


def _trouble(exc_info: object) -> str:
    """`exc_info` as loggers take it: an error, what sys.exc_info() gives, or True."""
    error: Any = exc_info
    try:
        if type(exc_info) is tuple:
            _, error, _ = cast("tuple[object, ...]", exc_info)
        elif not isinstance(exc_info, BaseException):
            error = sys.exc_info()[1]
        return "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001  the error is the user's
        return text(error)


def interpolated(event: object, args: tuple[object, ...] | Mapping[str, object]) -> str:
    """`event % args`; arguments that do not fit it follow it."""
    message: Any = event
    with contextlib.suppress(Exception):  # whatever an argument's own code raises
        return cast("str", message % args)
    shown: Any = plain(args) if isinstance(args, Mapping) else tuple(plain(each) for each in args)
    with contextlib.suppress(Exception):
        return cast("str", message % shown)
    return f"{text(event)} {shown}"


def plain(value: object, above: tuple[int, ...] = ()) -> object:
    """The value in what JSON has, whose rendering never fails; `above` are ids of what it is in."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if (kind is int and cast("int", value).bit_length() <= INT_BITS_MAX) or (
        kind is float and isfinite(cast("float", value))
    ):
        return value
    if issubclass(kind, dict | list | tuple):
        if id(value) in above or len(above) >= DEPTH_MAX:
            return "..."
        try:
            return _plain_parts(value, (*above, id(value)))
        except Exception:  # noqa: BLE001  a class of somebody's, or another thread has changed it meanwhile
            return text(value)
    return text(value)


def _plain_parts(value: object, above: tuple[int, ...]) -> object:
    if isinstance(value, dict):
        entries = cast("dict[object, object]", value).items()
        return {text(key): plain(each, above) for key, each in entries}
    return [plain(each, above) for each in cast("list[object]", value)]


def text(value: object) -> str:
    """`str(value)`, or why there is none."""
    try:
        return str.__str__(str(value))  # no subclass, whose code could raise later
    except Exception as error:  # noqa: BLE001
        return f"<repr failed: {type(error).__name__}>"
