"""Where the log of a Delta table is, and how its entries are named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, overload

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


@overload
def entry_of(table: Path, version: int) -> Path: ...
@overload
def entry_of(table: Path | ObjectPath, version: int) -> Path | ObjectPath: ...
@overload
def entry_of(table: Place, version: int) -> Place: ...
def entry_of(table: Place, version: int) -> Place:
    """The entry that makes a version."""
    return table / LOG_DIR / f"{version:020d}.json"
