"""Whether a handler, and the functions declared with it, can take what they will be called with.

Judged by signatures alone: nothing is called. A function that no signature is known of (some of C) gets the benefit of the
doubt. The check comes before anything joins the group: a handler that cannot take a message would send the whole backlog
to the retry topic, message by message.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from .api import Handler

SHOWN_MAX: Final = 200
"""Characters of a signature in a message: annotations and defaults may be as long as they like."""


def refusal(handler: Handler) -> str | None:
    """What is wrong, with the signature and what is expected; None when every call will fit."""
    expected = "messages" if handler.batch else "message"
    what = "a list of messages (batch=True)" if handler.batch else "one message"
    wrong = _misfit(handler.function, (expected,))
    if wrong is not None:
        name = "handle" if inspect.isclass(handler.function) else _short_name(handler.function)
        return f"handler {handler.name} cannot take {what}: {wrong}. Expected is def {name}({expected})"
    for option, function, arguments in (
        ("filter", handler.filter, ("message",)),
        ("key", handler.key if callable(handler.key) else None, ("message",)),
        ("setup", handler.setup, ()),
        ("teardown", handler.teardown, ()),
    ):
        wrong = None if function is None else _misfit(function, arguments, a_class_will_do=True)
        if wrong is not None:
            taken = "one message" if arguments else "no arguments"
            return f"handler {handler.name}: {option} is called with {taken}, but {wrong}"
    return None


def takes_one(function: Callable[..., Any]) -> bool:
    """Whether a plain function can be called with one message."""
    return _misfit(function, ("message",)) is None


def _misfit(function: Callable[..., Any], arguments: tuple[str, ...], *, a_class_will_do: bool = False) -> str | None:
    """Why `function(*arguments)` cannot be called; None when it can."""
    if inspect.isclass(function) and not a_class_will_do:
        return (
            f"{_short_name(function)} is a class, and calling it makes an object and handles nothing (name an instance"
            " with a __call__ method, or a function)"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*arguments)
    except TypeError as error:
        shown = str(signature)
        shown = shown if len(shown) <= SHOWN_MAX else shown[:SHOWN_MAX] + "..."
        return f"its signature is {_short_name(function)}{shown} ({error})"
    return None


def _short_name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
