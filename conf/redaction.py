"""What must not be shown of values that are not ours: settings of Spark and of a store, addresses, and misspelt settings.

Two things tell a secret: its name (of a setting, of a parameter within a text), and its place (the password in a URL, what
follows the address of a Spark Connect server). Where a text goes on after a secret nobody knows where the secret ends, so
nothing of the rest is shown. It is better to hide too much.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, cast

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
_CONNECT: Final = re.compile(r"(sc://[^;\s\"']*;)[^\s\"']*", re.IGNORECASE)
_WITH_PASSWORD: Final = re.compile(r"(://[^/:@\s\"']*:)(?:[^\s\"']|[\"'](?![\s,;:}\])]))*(?=@)")
"""Up to the last @: the secret keys of S3 may have a slash, and a password a quote. One that ends a quoted URL ends this."""
_TOKEN_ALONE: Final = re.compile(
    r"(https?://)(?:(?:gh[a-z]|github_pat)_|glpat-|(?=[a-z]*\d)(?=\d*[a-z])\w{20})[^\s/:@\"']*(?=@)", re.IGNORECASE
)
"""In the place of a user, and like none: GitHub's, GitLab's, or twenty letters and digits."""


def sounds_secret(name: str) -> bool:
    """Whether what has this name must not be shown."""
    return _SOUNDS_SECRET.search(name) is not None


def masked_text(text: str) -> str:
    """The text with what looks like a secret hidden."""
    before_hosts = (_WITH_PASSWORD, _TOKEN_ALONE) if "@" in text else ()  # they look far for it
    for pattern in (_CONNECT, *before_hosts, _NAMED):
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text


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


def _masked_entry(name: str, value: object) -> object:
    return HIDDEN if sounds_secret(name) else masked(value, f"{name}.")
