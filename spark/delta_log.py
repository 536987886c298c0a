"""Where the log of a Delta table is, how its entries are named, and what is in one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final, overload

from ..conf.formats import not_for_delta
from ..remoting.errors import UsageError
from .object_store import ObjectPath, Place

LOG_DIR: Final = "_delta_log"


def is_delta(table: Place) -> bool:
    """Whether it is a Delta table; a session needs `session.delta_conf` to read it.

    A log without an entry makes none: Spark has its folder some seconds before the first one, and for good where it is killed
    then. In a bucket there are no empty folders.
    """
    log = table / LOG_DIR
    if not isinstance(log, Path):
        return log.is_dir()
    try:
        with os.scandir(log) as entries:  # one is enough, of many thousands
            return any(entry.name[:1].isdecimal() for entry in entries)
    except OSError:  # where it may not be listed, whoever reads it says so
        return log.is_dir()


def check_path(table: Place) -> None:
    """Raise UsageError for a folder that delta-rs, which follows links first, would take for another one."""
    if isinstance(table, Path) and (wrong := not_for_delta(str(table.resolve()))):
        raise UsageError(f"{table.resolve()} {wrong}")


@overload
def entry_of(table: Path, version: int) -> Path: ...
@overload
def entry_of(table: Path | ObjectPath, version: int) -> Path | ObjectPath: ...
@overload
def entry_of(table: Place, version: int) -> Place: ...
def entry_of(table: Place, version: int) -> Place:
    """The entry that makes a version."""
    return table / LOG_DIR / f"{version:020d}.json"


def actions_of(entry: bytes) -> list[dict[str, Any]]:
    """The actions of an entry of the log, one a line. Lines end in bytes: a text has more ends, such as U+2028, that JSON may
    have within its values. Raises ValueError."""
    return [json.loads(line) for line in entry.splitlines()]
