"""What one setting may hold: the kinds of rules that `schema.py` puts together.

A rule reads a value in the two forms in which it arrives: typed (from a TOML file, or from code that calls `load`) and
as text (from the environment and from `--set`). Both end in the same check, and both end in a value that nobody can
change any more: lists become tuples. A rule never knows the name of its setting nor where the value came from; `load`
joins the two, so that every message has the same four parts.

`ValueError` raised here is caught in `sources.py` and never leaves this room.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from ..remoting.light_dataclass import dataclass

TRUE_WORDS = frozenset({"true", "1", "yes", "on"})
FALSE_WORDS = frozenset({"false", "0", "no", "off"})


class Rule(Protocol):
    """One setting's legal values."""

    @property
    def legal(self) -> str:
        """The legal range in words, as it stands at the end of a message."""
        ...

    def check(self, value: object) -> object:
        """Return the typed value, frozen; raise ValueError when it is not legal."""
        ...

    def parse(self, text: str) -> object:
        """The same for a value given as text."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `low` to `high`, both legal, or one of `also` (RocketMQ's -1 for "off" and the like)."""

    low: int
    high: int
    unit: str = ""
    also: tuple[int, ...] = ()
    also_means: str = ""

    @property
    def legal(self) -> str:
        words = f"{self.low} to {self.high}" + (f" {self.unit}" if self.unit else "")
        for value in self.also:
            words += f", or {value}" + (f" ({self.also_means})" if self.also_means else "")
        return words

    def check(self, value: object) -> int:
        # bool is an int in Python; `port = true` is a mistake all the same.
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("is not a whole number")
        if value in self.also or self.low <= value <= self.high:
            return value
        raise ValueError("is out of range")

    def parse(self, text: str) -> int:
        if not re.fullmatch(r"\s*[+-]?[0-9_]{1,20}\s*", text):
            raise ValueError("is not a whole number")
        return self.check(int(text))


@dataclass(frozen=True, slots=True)
class Switch:
    """true or false."""

    legal: str = "true or false"

    def check(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        raise ValueError("is not true or false")

    def parse(self, text: str) -> bool:
        word = text.strip().lower()
        if word in TRUE_WORDS:
            return True
        if word in FALSE_WORDS:
            return False
        raise ValueError("is not true or false")


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words. Upper and lower case count as the same; the spelling of the table is what comes out."""

    words: tuple[str, ...]

    @property
    def legal(self) -> str:
        return " or ".join([*filter(None, [", ".join(self.words[:-1])]), self.words[-1]])

    def check(self, value: object) -> str:
        if isinstance(value, str):
            for word in self.words:
                if word.lower() == value.strip().lower():
                    return word
        raise ValueError("is not known")

    def parse(self, text: str) -> str:
        return self.check(text)


def any_text(value: str) -> str:
    """The check of a text that may hold anything."""
    return value


@dataclass(frozen=True, slots=True)
class Text:
    """A text of bounded length; `test` returns it, perhaps tidied, or raises ValueError saying what is wrong."""

    legal: str
    test: Callable[[str], str] = any_text
    empty_ok: bool = True
    length_max: int = 65_536
    secret: bool = False
    """Never shown: not in messages, not by `config show`."""

    def check(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError("is not a text")
        if "\0" in value or len(value) > self.length_max:
            raise ValueError(f"holds a NUL character or more than {self.length_max} characters")
        if not value.strip():
            if self.empty_ok:
                return ""
            raise ValueError("is empty")
        return self.test(value)

    def parse(self, text: str) -> str:
        return self.check(text)


@dataclass(frozen=True, slots=True)
class Texts:
    """A list of texts. As text: separated by any of `separators`. `key` tells which two entries say the same."""

    legal: str
    test: Callable[[str], str]
    separators: str = ","
    entries_max: int = 1024
    key: Callable[[str], str] = any_text
    split: Callable[[str], list[str]] | None = None
    """For entries that may hold a separator themselves."""

    def check(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError("is not a list of texts")
        entries = cast("list[object] | tuple[object, ...]", value)
        if len(entries) > self.entries_max:
            raise ValueError(f"has more than {self.entries_max} entries")
        found: dict[str, str] = {}
        for entry in entries:
            if not isinstance(entry, str):
                raise ValueError(f"holds {entry!r}, which is not a text")
            tidy = self.test(entry.strip())
            if self.key(tidy) in found:
                raise ValueError(f"names {self.key(tidy)!r} twice")
            found[self.key(tidy)] = tidy
        return tuple(found.values())

    def parse(self, text: str) -> tuple[str, ...]:
        if re.match(r'\s*\[\s*["\'\]]', text):  # an IPv6 address has brackets too
            by = " or ".join("a comma" if one == "," else "a semicolon" for one in self.separators)
            raise ValueError(
                f"is written as in a file: in flags and the environment several are separated by {by}, as in x,y"
            )
        parts = self.split(text) if self.split else re.split(f"[{re.escape(self.separators)}]", text)
        return self.check([part for part in parts if part.strip()])


@dataclass(frozen=True, slots=True)
class Pairs:
    """Names with a text each, passed on to another program. As text: `name=value,name=value` or a JSON object."""

    legal: str = "a table of names and texts; as text: name=value,name=value or a JSON object"
    entries_max: int = 256

    def check(self, value: object) -> Mapping[str, str]:
        if not isinstance(value, Mapping):
            raise ValueError("is not a table")
        flat: dict[str, str] = {}
        self._flatten(cast("Mapping[object, object]", value), "", flat)
        return flat

    def parse(self, text: str) -> Mapping[str, str]:
        if text.lstrip().startswith("{"):
            try:
                return self.check(json.loads(text))
            except (json.JSONDecodeError, RecursionError) as error:
                raise ValueError(f"is not a JSON object ({error})") from None
        flat: dict[str, str] = {}
        for number, part in enumerate(text.split(","), 1):
            if not part.strip():
                continue
            name, equals, value = part.partition("=")
            if not equals:  # the part is not shown: it may be the rest of a secret that has a comma
                raise ValueError(f"holds part {number} without an equals sign (commas separate the parts)")
            flat[name.strip()] = value.strip()
        return self.check(flat)

    def _flatten(self, table: Mapping[object, object], prefix: str, flat: dict[str, str]) -> None:
        """TOML reads `spark.sql.x = 1` as three tables inside each other; Spark means one name with dots."""
        for key, value in table.items():
            name = f"{prefix}{key}"
            if isinstance(value, Mapping):
                self._flatten(cast("Mapping[object, object]", value), name + ".", flat)
            elif isinstance(value, bool):
                flat[name] = "true" if value else "false"
            elif isinstance(value, (str, int, float)):
                flat[name] = str(value)
            else:
                raise ValueError(f"holds {name!r}, which is neither text nor number")
            if len(flat) > self.entries_max or len(name) > 1024:
                raise ValueError(f"has more than {self.entries_max} entries or a name of more than 1024 characters")
