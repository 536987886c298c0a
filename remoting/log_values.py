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
PARTS_MAX: Final = 10_000
"""Dicts and lists that list each other have exponentially many, as each is shown in all that it is in."""
INT_BITS_MAX: Final = 64
"""A longer number is a text: Python refuses to write one of some thousand digits."""

Event = MutableMapping[str, Any]


class Rendering:
    """A processor of structlog's: the last ones of a chain, which make a text of the event. Where they fail also with an
    event of texts they raise `dropped`, which is structlog's DropEvent."""

    def __init__(self, dropped: type[BaseException], *processors: Callable[[Any, str, Any], Any]) -> None:
        self._dropped = dropped
        self._processors = processors

    def __call__(self, logger: Any, name: str, event: Event) -> Any:
        for values in (_copy, _plain_event, _texts):
            # No `except`: in that sys.exc_info() is the rendering's own error, and not the one that the caller logs.
            with contextlib.suppress(Exception):  # whatever a value's own code raises
                return self._rendered(logger, name, values(event))
        raise self._dropped

    def _rendered(self, logger: Any, name: str, event: Any) -> Any:
        for processor in self._processors:
            event = processor(logger, name, event)
        return event


def _copy(event: Event) -> Event:
    return dict(event)  # processors take out of it


def _plain_event(event: Event) -> Event:
    found = {key: plain(value) for key, value in event.items() if key != "exc_info"}
    if trouble := _trouble(event.get("exc_info")):
        found["exception"] = trouble
    # Renderers write these two as they are.
    return found | {key: text(found[key]) for key in ("exception", "stack") if found.get(key) is not None}


def _texts(event: Event) -> Event:
    return {text(key): text(value) for key, value in _plain_event(event).items()}


def _trouble(exc_info: object) -> str:
    """`exc_info` as loggers take it: an error, what sys.exc_info() gives, or True. Empty for none."""
    error: Any = exc_info
    try:
        if type(exc_info) is tuple:
            _, error, _ = cast("tuple[object, ...]", exc_info)
        elif exc_info and not isinstance(exc_info, BaseException):
            error = sys.exc_info()[1]
        return "".join(traceback.format_exception(error)).rstrip("\n") if error else ""
    except Exception:  # noqa: BLE001  the error is the user's
        return text(error)


def interpolated(event: object, args: tuple[object, ...] | Mapping[str, object]) -> str:
    """`event % args`; arguments that do not fit it follow it."""
    if not args:
        return text(event)
    message: Any = event
    with contextlib.suppress(Exception):  # whatever an argument's own code raises
        return cast("str", message % args)
    as_plain: Any = plain(args) if isinstance(args, Mapping) else tuple(plain(each) for each in args)
    with contextlib.suppress(Exception):
        return cast("str", message % as_plain)
    return f"{text(event)} {as_plain}"


def plain(value: object) -> object:
    """The value in what JSON has, whose rendering never fails, of its first PARTS_MAX parts."""
    return _Plain().of(value, ())


class _Plain:
    def __init__(self) -> None:
        self.parts = 0

    def of(self, value: object, above: tuple[int, ...]) -> object:
        """`above` are ids of what it is in."""
        self.parts += 1
        kind = type(value)
        if self.parts > PARTS_MAX:
            return "..."
        if value is None or kind is bool or kind is str:
            return value
        if issubclass(kind, int):
            number = int.__int__(cast("int", value))  # of an IntEnum, too, as JSON has it
            return number if number.bit_length() <= INT_BITS_MAX else text(value)
        if issubclass(kind, float):
            real = float.__float__(cast("float", value))  # of numpy's float64, too
            return real if isfinite(real) else text(value)
        if not issubclass(kind, dict | list | tuple):
            return text(value)
        if id(value) in above or len(above) >= DEPTH_MAX:
            return "..."
        try:
            return self._of_parts(value, (*above, id(value)))
        except Exception:  # noqa: BLE001  a class of somebody's, or another thread has changed it meanwhile
            return text(value)

    def _of_parts(self, value: object, above: tuple[int, ...]) -> object:
        named, listed = dict[str, object](), list[object]()
        if isinstance(value, dict):
            for key, each in cast("dict[object, object]", value).items():
                name = text(key)
                # JSON would have both of the keys 1 and "1".
                named[f"{name} ({len(named) + 1})" if name in named else name] = self.of(each, above)
                if self.parts > PARTS_MAX:
                    break
            return named
        for each in cast("list[object]", value):
            listed.append(self.of(each, above))
            if self.parts > PARTS_MAX:
                break
        return listed


def shown(value: object) -> str:
    """`repr(value)`; where that has more than PARTS_MAX parts, of its plain form."""
    return repr(plain(value) if _is_long(value) else value)


def _is_long(value: object) -> bool:
    waiting, parts = [value], 0
    while waiting and parts < PARTS_MAX:
        each = waiting.pop()
        parts += 1
        if isinstance(each, dict):
            waiting.extend(cast("dict[object, object]", each).values())
        elif isinstance(each, list | tuple):
            waiting.extend(cast("list[object]", each))
    return bool(waiting)  # in a circle always


def text(value: object) -> str:
    """`str(value)`, of a text itself; or why there is none."""
    try:
        # No subclass, whose code could raise later; and of an Enum that is a text what JSON has.
        return str.__str__(value if isinstance(value, str) else str(value))
    except Exception as error:  # noqa: BLE001
        return f"<repr failed: {type(error).__name__}>"
