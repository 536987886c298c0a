"""Where the log of a Delta table is, and how its entries are named."""

from __future__ import annotations

from pathlib import Path
from typing import Final, overload

from .object_store import ObjectPath, Place

LOG_DIR: Final = "_delta_log"


def is_delta(table: Place) -> bool:
    """Whether it is a Delta table; a session needs `session.delta_conf` to read it."""
    return (table / LOG_DIR).is_dir()


@overload
def entry_of(table: Path, version: int) -> Path: ...
@overload
def entry_of(table: Path | ObjectPath, version: int) -> Path | ObjectPath: ...
@overload
def entry_of(table: Place, version: int) -> Place: ...
def entry_of(table: Place, version: int) -> Place:
    """The entry that makes a version."""
    return table / LOG_DIR / f"{version:020d}.json"
