"""What arguments of the Python API may be, as rules, and the one sentence for those that are not. Pure.

    check("message", {"queue_id": queue_id}, {"queue_id": WHOLE})
    UsageError: message(queue_id=-1): give a whole number, 0 or more

`check` returns what fits as Python's own types have it: numpy's numbers, members of a `class Tag(str, Enum)` and iterators
among them. What an iterator gives is there only once, so its reader goes on with the tuple that was checked.

Annotations say the same to type checkers, which most scripts and tests never meet. Where a call is on the way of every
message, it looks at the types by itself and comes here only to say what is wrong.
"""

from __future__ import annotations

import difflib
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, Final, NoReturn, cast

from .errors import UsageError

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
SHOWN_MAX: Final = 60
"""Characters of a value in a message."""
NAMES_SHOWN_MAX: Final = 8
Filename = str | PathLike[str]
SECONDS_MAX: Final = 1_000_000_000
"""Thirty years; what waits for locks can wait for 290."""
NUMBER_MAX: Final = 1_000_000_000_000


def plain(value: Any) -> Any:
    """A str, bool or number of another library, or of an Enum, as Python's own; anything else as it is.

    `str(value)` of a member of `class Tag(str, Enum)` is its name, and everybody who compares it takes its value.
    """
    if isinstance(value, str):
        return value if type(value) is str else str.__str__(value)
    if value is None or type(value) in {bool, int, float}:
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in {"bool", "bool_"}:
        return bool(value)
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        return float(value) if isinstance(value, numbers.Real) else value
    except OverflowError:
        return value


@dataclass(frozen=True, slots=True)
class Rule:
    """What fits, and what the sentence asks for: "give {wanted}"."""

    wanted: str
    fits: Callable[[Any], bool]
    """Of a value that was `taken`."""
    taken: Callable[[Any], Any] = lambda value: value

    def __or__(self, other: Rule) -> Rule:
        return Rule(
            f"{self.wanted}, or {other.wanted}",
            lambda value: self.fits(value) or other.fits(value),
            lambda value: other.taken(self.taken(value)),
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)  # a bool is a mistake


def whole(low: int = 0, high: int = INT64_MAX) -> Rule:
    """A whole number; a bound that is INT32_MAX or INT64_MAX is not worth a word."""
    limits = f", {low} or more" if high >= INT32_MAX else f" from {low} to {high}"
    wide = low <= -INT32_MAX
    return Rule(
        f"a whole number{'' if wide else limits}",
        lambda value: _is_whole(value) and low <= value <= high,
        plain,
    )


def number(low: float = 0, high: float = NUMBER_MAX, unit: str = "") -> Rule:
    """A finite number."""
    limits = f", {low:g} or more" if high == NUMBER_MAX else f" from {low:g} to {high:,.10g}"
    return Rule(
        f"a number{f' of {unit}' if unit else ''}{limits}",
        lambda value: (isinstance(value, float) or _is_whole(value)) and low <= value <= high,
        plain,
    )


def instance(kind: type | tuple[type, ...], wanted: str) -> Rule:
    """Objects of a class."""
    return Rule(wanted, lambda value: isinstance(value, kind))


def several(taken: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Of several values a tuple of what is `taken` of each: the one place that goes through what a caller gives."""

    def all_taken(value: Any) -> Any:
        if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or not isinstance(value, Iterable):
            return taken(value)
        return tuple(map(taken, cast("Iterable[object]", value)))

    return all_taken


def list_of(rule: Rule, wanted: str) -> Rule:
    """Several values that fit `rule`, in anything that can be gone through."""

    def fits(value: object) -> bool:
        return isinstance(value, tuple) and all(map(rule.fits, cast("tuple[object, ...]", value)))

    return Rule(wanted, fits, several(rule.taken))


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in cast("Mapping[object, object]", value))


def _table(value: Any) -> Any:
    return (
        {plain(name): each for name, each in cast("Mapping[object, object]", value).items()}
        if isinstance(value, Mapping)
        else value
    )


def _path(value: Any) -> Any:
    """As a str: a Path, pytest's `tmpdir`, and any other object that says what path it is."""
    return plain(fspath(cast("PathLike[str]", value)) if isinstance(value, PathLike) else value)


NONE: Final = Rule("None", lambda value: value is None)
WHOLE: Final = whole()
INT32: Final = whole(0, INT32_MAX)
SECONDS: Final = number(0, SECONDS_MAX, "seconds")
MILLISECONDS: Final = whole()
FLAG: Final = Rule("True or False", lambda value: isinstance(value, bool), plain)
TEXT: Final = Rule("a str", lambda value: isinstance(value, str), plain)
FILLED: Final = Rule("a str that is not blank", lambda value: isinstance(value, str) and bool(value.strip()), plain)
TEXTS: Final = list_of(TEXT, "a list of str")
TABLE: Final = Rule("a dict whose names are str", _is_table, _table)
FUNCTION: Final = Rule("a function", callable)
PATH: Final = Rule(
    "a path (a str that is not blank, or a Path)", lambda value: FILLED.fits(value) and "\0" not in value, _path
)


def shown(value: object) -> str:
    """The value as Python would write it, short."""
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 3]}..."


def near(name: str, names: Iterable[str]) -> str:
    """What a mistyped name is to be: `: did you mean x?`, else `; there are a, b`, else nothing."""
    listed = sorted(names)
    close = close_names(name, listed)
    if close or not listed:
        return close
    more = f" and {len(listed) - NAMES_SHOWN_MAX} more" if len(listed) > NAMES_SHOWN_MAX else ""
    return f"; there are {', '.join(listed[:NAMES_SHOWN_MAX])}{more}"


def close_names(name: str, names: Iterable[str]) -> str:
    """`: did you mean x?`, or nothing."""
    close = difflib.get_close_matches(name, sorted(names), 3)
    return f": did you mean {' or '.join(close)}?" if close else ""


def refuse(call: str, name: str, value: object, wanted: str) -> NoReturn:
    """Raise UsageError with the sentence."""
    raise UsageError(f"{call}({name}={shown(value)}): give {wanted}")


def check(call: str, given: Mapping[str, object], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """What is given, as it is `taken`; raises UsageError for the first that does not fit its rule. `call` is what the user
    wrote."""
    found = {name: rules[name].taken(value) for name, value in given.items()}
    for name, value in given.items():
        if not rules[name].fits(found[name]):
            refuse(call, name, value, rules[name].wanted)
    return found


def check_fields(made: object, rules: Mapping[str, Rule]) -> None:
    """`check` for the fields of a dataclass, from its __post_init__; they become what is taken, also where it is frozen."""
    for name, value in check(type(made).__name__, {name: getattr(made, name) for name in rules}, rules).items():
        object.__setattr__(made, name, value)
