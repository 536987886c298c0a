"""What arguments of the Python API may be, as rules, and the one sentence for those that are not. Pure.

    check("message", {"queue_id": queue_id}, {"queue_id": WHOLE})
    UsageError: message(queue_id=-1): give a whole number, 0 or more

Annotations say the same to type checkers, which most scripts and tests never meet. Where a call is on the way of every
message, it looks at the types by itself and comes here only to say what is wrong.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from .errors import UsageError

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
SHOWN_MAX: Final = 60
"""Characters of a value in a message."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What fits, and what the sentence asks for: "give {wanted}"."""

    wanted: str
    fits: Callable[[Any], bool]

    def __or__(self, other: Rule) -> Rule:
        return Rule(f"{self.wanted}, or {other.wanted}", lambda value: self.fits(value) or other.fits(value))


def _is_whole(value: object) -> bool:
    """What can be an index: numpy's integers can, and a bool is a mistake."""
    if isinstance(value, bool):
        return False
    try:
        operator.index(cast("Any", value))
    except TypeError:
        return False
    return True


def whole(low: int = 0, high: int = INT64_MAX) -> Rule:
    """A whole number; a bound that is INT32_MAX or INT64_MAX is not worth a word."""
    limits = f", {low} or more" if high >= INT32_MAX else f" from {low} to {high}"
    wide = low <= -INT32_MAX
    return Rule(
        f"a whole number{'' if wide else limits}",
        lambda value: _is_whole(value) and low <= operator.index(value) <= high,
    )


def number(low: float = 0, high: float = math.inf, unit: str = "") -> Rule:
    """A finite number."""
    limits = f", {low:g} or more" if high == math.inf else f" from {low:g} to {high:g}"
    return Rule(
        f"a number{f' of {unit}' if unit else ''}{limits}",
        lambda value: (isinstance(value, float) or _is_whole(value)) and math.isfinite(value) and low <= value <= high,
    )


def instance(kind: type | tuple[type, ...], wanted: str) -> Rule:
    """Objects of a class."""
    return Rule(wanted, lambda value: isinstance(value, kind))


def _are_texts(value: object) -> bool:
    if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        return False
    return all(isinstance(each, str) for each in cast("Iterable[object]", value))


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in cast("Mapping[object, object]", value))


NONE: Final = Rule("None", lambda value: value is None)
WHOLE: Final = whole()
INT32: Final = whole(0, INT32_MAX)
SECONDS: Final = number(unit="seconds")
MILLISECONDS: Final = whole()
FLAG: Final = instance(bool, "True or False")
TEXT: Final = instance(str, "a str")
FILLED: Final = Rule("a str that is not blank", lambda value: isinstance(value, str) and bool(value.strip()))
TEXTS: Final = Rule("a list of str", _are_texts)
TABLE: Final = Rule("a dict whose names are str", _is_table)
FUNCTION: Final = Rule("a function", callable)
PATH: Final = instance((str, Path), "a path (a str, or a Path)")


def shown(value: object) -> str:
    """The value as Python would write it, short."""
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 3]}..."


def refuse(call: str, name: str, value: object, wanted: str) -> NoReturn:
    """Raise UsageError with the sentence."""
    raise UsageError(f"{call}({name}={shown(value)}): give {wanted}")


def check(call: str, given: Mapping[str, object], rules: Mapping[str, Rule]) -> None:
    """Raise UsageError for the first of `given` that does not fit its rule. `call` is what the user wrote."""
    for name, value in given.items():
        rule = rules[name]
        if not rule.fits(value):
            refuse(call, name, value, rule.wanted)


def check_fields(made: object, rules: Mapping[str, Rule]) -> None:
    """`check` for the fields of a dataclass, from its __post_init__."""
    check(type(made).__name__, {name: getattr(made, name) for name in rules}, rules)
