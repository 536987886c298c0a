"""How typed headers turn into extFields and back: one small machine under the declarations of `headers.py`.

A header is a frozen dataclass whose annotations are, literally, among those of `_READERS`. The name on the wire is the
attribute in camel case unless the class's `WIRE` says otherwise. None is not written; a field without a default is
required. Unknown extFields are ignored, as every version adds some.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

from .errors import ProtocolError

# Both are int; the annotation's text tells the reader which range the wire has.
Int32: TypeAlias = int
Int64: TypeAlias = int

_SMALL: dict[str, int] = {str(number): number for number in range(64)}
"""Numbers that need not be read."""

_is_integer = re.compile(r"[+-]?[0-9]{1,19}").fullmatch


class _Bad(Exception):
    """A value cannot be read; the text says what was expected."""


class _Field(NamedTuple):
    attribute: str
    wire: str
    read: Callable[[str], Any]
    is_text: bool
    is_bool: bool
    digits: int  # with fewer of them alone it is such a number, whatever they are
    default: Any  # MISSING when required
    put: Callable[[Any, Any], None]  # into a header that is being read


class Header:
    """Base of typed headers. Subclasses are frozen dataclasses with slots and without a __post_init__."""

    __slots__ = ()
    WIRE: ClassVar[Mapping[str, str]] = {}

    def to_fields(self) -> dict[str, str]:
        """The extFields of this header, in the order of its declaration; None is left out."""
        result: dict[str, str] = {}
        for attribute, wire, _, is_text, is_bool, *_ in _fields_of(type(self)):
            value = getattr(self, attribute)
            if value is None:
                continue
            if is_text:
                result[wire] = value
            elif is_bool:
                result[wire] = "true" if value else "false"
            else:
                result[wire] = str(value)
        return result

    @classmethod
    def from_fields(cls, values: Mapping[str, str]) -> Self:
        """The header in these extFields. Raises ProtocolError naming the field that is missing or unreadable.

        An empty text for a number or boolean is as if absent: a binary header writes null as no bytes.
        """
        header = object.__new__(cls)  # a frozen one's own constructor takes as long for its fields as all of this
        get = values.get
        for _, wire, read, is_text, _, digits, default, put in _declared.get(cls) or _fields_of(cls):
            text = get(wire)
            if text is None or (not text and not is_text):
                if default is MISSING:
                    raise ProtocolError(f"{wire} is missing", f"{cls.__name__} header")
                put(header, default)
            elif is_text:
                put(header, text)
            elif digits and text in _SMALL:
                put(header, _SMALL[text])  # most of them: a broker's id, flags, the start of a queue
            elif len(text) < digits and text.isdigit() and text.isascii():
                put(header, int(text))  # nearly all others: a call for each costs as much again
            else:
                try:
                    put(header, read(text))
                except _Bad as error:
                    raise ProtocolError(f"{wire} is {text!r:.60}, not {error}", f"{cls.__name__} header") from None
        return header


def _read_int32(text: str) -> int:
    return _read_integer(text, 31)


def _read_int64(text: str) -> int:
    return _read_integer(text, 63)


def _read_integer(text: str, bits: int) -> int:
    if _is_integer(text):
        value = int(text)
        if -(1 << bits) <= value < 1 << bits:
            return value
    raise _Bad(f"an int{bits + 1}")


def _read_bool(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise _Bad("true or false")
    return lowered == "true"


_READERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "str | None": str,
    "Int32": _read_int32,
    "Int32 | None": _read_int32,
    "Int64": _read_int64,
    "Int64 | None": _read_int64,
    "bool": _read_bool,
    "bool | None": _read_bool,
}
_DIGITS: dict[Callable[[str], Any], int] = {_read_int32: 10, _read_int64: 19}


def camel_case(name: str) -> str:
    """`queue_id` -> `queueId`."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


# What the declarations say, read once per class: a constant in effect, and as bounded as the number of classes.
_declared: dict[type[Header], tuple[_Field, ...]] = {}


def _fields_of(cls: type[Header]) -> tuple[_Field, ...]:
    known = _declared.get(cls)
    if known is None:
        known = _declared[cls] = _read_declaration(cls)
    return known


def _read_declaration(cls: type[Any]) -> tuple[_Field, ...]:
    wire: Mapping[str, str] = cls.WIRE
    result: list[_Field] = []
    for item in fields(cls):
        kind = str(item.type)
        result.append(
            _Field(
                item.name,
                wire.get(item.name, camel_case(item.name)),
                _READERS[kind],
                kind.startswith("str"),
                kind.startswith("bool"),
                _DIGITS.get(_READERS[kind], 0),
                item.default,
                getattr(cls, item.name).__set__,
            )
        )
    return tuple(result)
