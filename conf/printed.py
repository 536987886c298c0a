"""What messages print for whoever reads them: numbers of things, and command lines that can be typed as they are. Pure.

In a command line, words in capitals, as HANDLER or TIME, are what only the reader knows.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

from .redaction import sounds_secret
from .settings import Settings, value_of
from .sources import DEFAULT_FILE, is_secret

FLAGS: Final = {"consumer.group": "-g", "cluster.name_servers": "-n", "spark.target": "--target"}
"""Settings that commands have an option for. Not every command has each."""
SHAPE: Final = ("spark.format", "spark.partition_by")
"""What a table has from its first batch on: loaded without these, segments begin one of another kind."""
DEFAULT_FORMAT: Final = "parquet"
_NOT_FOUND_BY: Final = "spark.load"
_FOUND_BY: Final = ("cluster.", "security.", "spark.", "supervisor.data_dir", "consumer.message_model")
"""By these a command finds brokers, folders and the table; the others say how a member works."""


def counted(number: int, what: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def command_line(*words: object) -> str:
    """`rocketcrew reset -g billing`, each word as a shell wants it."""
    return shlex.join(("rocketcrew", *map(str, words)))


def same_settings(settings: Settings, *names: str) -> list[str]:
    """The options with which another command finds what this one was told of: those of `names`, of `FLAGS` or `SHAPE`,
    wherever they came from, then the file that was named, and what else was a flag or an argument. Without what is secret."""
    words: list[str] = []
    for name in names:
        value = value_of(settings, name)
        if value and name in FLAGS:
            words += [FLAGS[name], _text(value)]
        elif value and settings.origin[name] != "default":
            words += ["--set", f"{name}={_text(value)}"]
    files = [origin.removeprefix("file ") for origin in settings.origin.values() if origin.startswith("file ")]
    if files and files[0] != DEFAULT_FILE:
        words += ["-c", files[0]]
    for name, origin in settings.origin.items():
        if (
            name in (*FLAGS, *names, _NOT_FOUND_BY)
            or is_secret(name)
            or not (origin.startswith(("flag ", "argument ")) and name.startswith(_FOUND_BY))
        ):
            continue
        value = value_of(settings, name)
        if not any(map(sounds_secret, _names(value))):
            words += ["--set", f"{name}={_text(value)}"]
    return words


def shape_of(format_: str, partition_by: Sequence[str]) -> list[str]:
    """The options of a table without a batch that is to have these: `SHAPE`, as far as it is not the default."""
    words = ["--set", f"spark.format={format_}"] if format_ not in ("", DEFAULT_FORMAT) else []
    return words + (["--set", f"spark.partition_by={','.join(partition_by)}"] if partition_by else [])


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
