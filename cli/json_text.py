"""Answers for programs: JSON that each of them reads, on a stdout of any encoding."""

from __future__ import annotations

import codecs
import io
import sys
from math import isfinite
from typing import Any, Final, cast

ESCAPED: Final = "rocketcrew.escaped"
"""Name of the error handler for what stdout's encoding does not have."""


def json_text(value: object, *, indent: int | None = None) -> str:
    """The value as JSON. What JSON lacks is a text, as in the log: NaN, infinities, times, decimals, other keys."""
    try:
        return _dumped(value, indent)
    except (ValueError, TypeError):
        return _dumped(_plain(value), indent)


def _dumped(value: object, indent: int | None) -> str:
    import json  # the help of a command has none

    as_they_are = _is_utf8(sys.stdout)
    return json.dumps(value, ensure_ascii=not as_they_are, default=str, allow_nan=False, indent=indent)


def _is_utf8(stdout: Any) -> bool:
    """Programs read JSON as UTF-8, of which ASCII is a part, whatever stdout's encoding is. A stream of texts has none."""
    encoding = getattr(stdout, "encoding", None)
    return encoding is None or codecs.lookup(encoding).name == "utf-8"


def _plain(value: object) -> object:
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, dict):
        return {_key(key): _plain(each) for key, each in cast("dict[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in cast("list[object]", value)]
    return value


def _key(key: object) -> str | int | None:
    """JSON writes its own kinds as it has them: `null`, `true`, and not `None`, `True`."""
    return key if key is None or isinstance(key, str | int) else str(key)


def escape_in(stdout: Any) -> None:
    r"""Let \u20ac be written, which JSON reads and people can, where the encoding has no such character (UTF-8 lacks
    halves of pairs); else an answer would end in the middle. What is no stream of this process stays as it is."""
    if isinstance(stdout, io.TextIOWrapper):
        stdout.reconfigure(errors=ESCAPED)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "only what is written is escaped"
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex(" ", 2)
    return "".join(f"\\u{unit}" for unit in units.split()), error.end


codecs.register_error(ESCAPED, _escaped)
