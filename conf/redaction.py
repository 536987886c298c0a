"""What must not be shown of values that are not ours: settings of Spark and of a store, addresses, and misspelt settings.

Two things tell a secret: its name (of a setting, of a parameter within a text), and its place (the password in a URL, what
follows the address of a Spark Connect server). Where a text goes on after a secret nobody knows where the secret ends, so
nothing of the rest is shown. It is better to hide too much.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, cast

HIDDEN: Final = "********"
_SOUNDS: Final = (
    r"secret|passw|passphrase|passcode|pwd|token|credential(?!s?[._-]?provider)|private|dsn|signature"
    r"|(?:access|api|account|encryption)[._-]?key|(?<![a-z])(?:sas|sig|pass)(?![a-z])"
)
"""Spark's own rule, spark.redaction.regex, knows fewer. Which class provides credentials is worth knowing."""
_SOUNDS_SECRET: Final = re.compile(_SOUNDS, re.IGNORECASE)
_NAMED: Final = re.compile(
    rf"((?:{_SOUNDS})[\w.-]{{0,64}}(?:[\"'\\]*\s*=|[\"'\\]+\s*:|:\s)).*", re.IGNORECASE | re.DOTALL
)
"""name=value, "name": value and name: value; not topic:tag, nor module:function."""
_CONNECT: Final = re.compile(r"(sc://(?:[^;\s\"'s]|s(?!c://))*;)[^\s\"']*", re.IGNORECASE)
"""From the last address before a semicolon: looked for from each of many, a text would be gone through as often."""
_WITH_PASSWORD: Final = re.compile(r"(://[^/:@\s\"']*:)((?:[^\s\"']++|[\"'](?![\s,;:}\])]))*+)")
"""A user, and all that his password may be in. That may have a quote: one that ends a quoted URL ends this."""
_TOKEN_ALONE: Final = re.compile(
    r"(https?://)(?:(?:gh[a-z]|github_pat)_|glpat-|(?=[a-z]*\d)(?=\d*[a-z])\w{20})[^\s/:@\"']*(?=@)", re.IGNORECASE
)
"""In the place of a user, and like none: GitHub's, GitLab's, or twenty letters and digits."""


def sounds_secret(name: str) -> bool:
    """Whether what has this name must not be shown."""
    return _SOUNDS_SECRET.search(name) is not None


def masked_text(text: str) -> str:
    """The text with what looks like a secret hidden."""
    text = _CONNECT.sub(rf"\1{HIDDEN}", text)
    if "@" in text:  # both want one
        text = _TOKEN_ALONE.sub(rf"\1{HIDDEN}", _WITH_PASSWORD.sub(_without_password, text))
    return _NAMED.sub(rf"\1{HIDDEN}", text)


def _without_password(found: re.Match[str]) -> str:
    """Up to the last @: the secret keys of S3 may have a slash."""
    end = found[2].rfind("@")
    return found[0] if end < 0 else f"{found[1]}{HIDDEN}{found[2][end:]}"


def masked(value: object, name: str = "") -> object:
    """The value as it may be shown. In a file the parts of a name may be tables in each other: `name` is that of a table."""
    if isinstance(value, str):
        return masked_text(value)
    if isinstance(value, list | tuple):
        return [masked(each, name) for each in cast("list[object] | tuple[object, ...]", value)]
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        return {str(key): _masked_entry(f"{name}{key}", inner) for key, inner in table.items()}
    return value


def masked_repr(one: Any) -> str:
    """The repr of a dataclass whose fields may hold such values: for its `__repr__`."""
    shown = ", ".join(f"{each.name}={masked(getattr(one, each.name))!r}" for each in fields(one) if each.repr)
    return f"{type(one).__qualname__}({shown})"


def _masked_entry(name: str, value: object) -> object:
    return HIDDEN if sounds_secret(name) else masked(value, f"{name}.")
