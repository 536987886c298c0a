"""The columns of a table as its newest state file names them: what the supervisor asks before it starts workers.

JSON alone is read, without Arrow and without the log of a Delta table: that file is one of a plan that was committed, or of
one that was about to be, and both have the table's columns. Whether the table can be used at all is the loader's question.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..durable.versions import check_version
from ..remoting.errors import UsageError
from .delta_log import LOG_DIR, is_delta
from .iceberg_catalog import is_iceberg
from .object_store import STATE_DIR, Place

STATE_VERSION: Final = 2
"""Of a state file (table_state.py)."""
_BATCH: Final = re.compile(r"batch_id=(\d+)")
_FORMATS: Final = {
    "parquet": "pyarrow or parquet",
    "delta": "deltalake or delta",
    "iceberg": "iceberg or iceberg-spark",
}
_GIVE: Final = "give the path of a folder that is new, empty or a table of ours"
_STATE: Final = re.compile(r"(\d+)-.*\.json")


def table_columns(table: Place) -> tuple[tuple[str, str], ...]:
    """Name and Spark type of each column; none when there is no table yet, or nothing that can be read of it.

    Raises LaterVersionError for a table that a later version has loaded, as no loader of this one could, and LoaderError when
    an S3 server can't be asked.
    """
    try:
        states = _states(table)
        if not states:
            return ()
        newest = states[max(states)]
        state = json.loads(newest.read_bytes())
        check_version(state.get("version", STATE_VERSION), STATE_VERSION, newest)
        return tuple((str(name), str(type_)) for name, type_ in state["columns"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()


def refuse_foreign(folder: Path, format_: str) -> None:
    """Raise UsageError for a file, for a folder that cannot be read, or one that holds something and no table of the kind of
    `format_` (`spark.format`): rows of somebody else beside ours would be read as one table, or make both unreadable. One in
    which a batch of ours was begun is the loader's to judge, which knows what to do with what a lost one has left."""
    try:
        if folder.is_file():
            raise UsageError(f"the table folder {folder} is a file: {_GIVE}")
        kind = _kind_of(folder) if folder.is_dir() else ""
        if kind and format_ not in _FORMATS[kind].split(" or "):
            raise UsageError(
                f"the table folder {folder} has a table of another kind ({kind}) than spark.format = {format_} makes: {_GIVE}"
                f", or set spark.format to {_FORMATS[kind]}"
            )
        if kind or (folder / STATE_DIR).is_dir() or not folder.is_dir():
            return
        refuse_strangers(folder, "no batch", _BATCH.fullmatch)  # one may have come since
    except OSError as error:
        raise UsageError(f"the table folder {folder} can't be read: {error.strerror}") from None


def _kind_of(folder: Path) -> str:
    """Of a table that has begun; empty where none has."""
    if is_delta(folder):
        return "delta"
    if is_iceberg(folder):
        return "iceberg"
    return "parquet" if any(_BATCH.fullmatch(entry.name) for entry in folder.iterdir()) else ""


def refuse_strangers(
    folder: Place, is_not: str, is_own: Callable[[str], object] = lambda _: False, more: str = ""
) -> None:
    """Raise UsageError for what lies in a folder without a table of this kind, where readers of tables look.

    They pass over names that begin with `_` or `.`, but for the log of a Delta table. `is_own`: names of ours. `is_not`: what
    the others are not; `more`: what else there is to say.
    """
    seen = [
        entry.name for entry in folder.iterdir() if not entry.name.startswith(("_", ".")) and not is_own(entry.name)
    ]
    if is_delta(folder):
        seen.append(LOG_DIR)
    if seen:
        raise UsageError(
            f"the table folder {folder} holds {min(seen)!r}, which is {is_not} of rocketcrew: {_GIVE}{more}"
        )


def tried_batches(table: Place) -> set[int]:
    """The batches of a table that keeps states beside its rows, as far as these are kept; the last may be tried only."""
    states = table / STATE_DIR
    return set(_numbered(states, _STATE)) if states.exists() else set()


def _states(table: Place) -> dict[int, Place]:
    if not (is_delta(table) or is_iceberg(table)) and (batches := _numbered(table, _BATCH)):
        return {batch: folder / "_loaded.json" for batch, folder in batches.items()}
    return _numbered(table / STATE_DIR, _STATE)  # also before the first batch is there


def _numbered(folder: Place, name: re.Pattern[str]) -> dict[int, Place]:
    """What lies in the folder under such names, by the number in them."""
    found = ((name.fullmatch(entry.name), entry) for entry in folder.iterdir())
    return {int(match[1]): entry for match, entry in found if match}
