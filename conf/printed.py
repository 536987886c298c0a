"""What messages print for whoever reads them: numbers of things, and command lines that can be typed as they are. Pure.

In a command line, words in capitals, as HANDLER or TIME, are what only the reader knows.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Final, cast

from .redaction import sounds_secret
from .settings import Settings, value_of
from .sources import DEFAULT_FILE, is_secret

FLAGS: Final = {"consumer.group": "-g", "cluster.name_servers": "-n", "spark.target": "--target"}
"""Settings that commands have an option for. Not every command has each."""
_FOUND_BY: Final = ("cluster.", "security.", "spark.", "supervisor.data_dir", "consumer.message_model")
"""By these a command finds brokers, folders and the table; the others say how a member works."""


def counted(number: int, what: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def command_line(*words: object) -> str:
    """`rocketcrew reset -g billing`, each word as a shell wants it."""
    return shlex.join(("rocketcrew", *map(str, words)))


def same_settings(settings: Settings, *names: str) -> list[str]:
    """The options with which another command finds what this one was told of: those of `names`, keys of `FLAGS`, wherever
    they came from, then the file that was named, and what else was a flag or an argument. Without what is secret."""
    words: list[str] = []
    for name in names:
        value = value_of(settings, name)
        words += [FLAGS[name], _text(value)] if value else []
    files = [origin.removeprefix("file ") for origin in settings.origin.values() if origin.startswith("file ")]
    if files and files[0] != DEFAULT_FILE:
        words += ["-c", files[0]]
    for name, origin in settings.origin.items():
        if (
            name in FLAGS
            or is_secret(name)
            or not (origin.startswith(("flag ", "argument ")) and name.startswith(_FOUND_BY))
        ):
            continue
        value = value_of(settings, name)
        if not any(map(sounds_secret, _names(value))):
            words += ["--set", f"{name}={_text(value)}"]
    return words


def _names(value: object) -> Iterable[str]:
    """Of the members of a setting that is a table."""
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else ()


def _text(value: object) -> str:
    """A setting's value as a flag has it."""
    if isinstance(value, tuple):
        return ",".join(map(str, cast("tuple[object, ...]", value)))
    if isinstance(value, Mapping):
        return json.dumps(dict(cast("Mapping[str, object]", value)))
    return str(value).lower() if isinstance(value, bool) else str(value)
