"""Which data files a version of a Delta table has, and whether its rows are all that is in them, as far as delta-rs tells."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

import pyarrow
import pyarrow.parquet

from ..remoting.errors import UsageError
from .delta_log import LOG_DIR, actions_of
from .errors import LoaderError
from .object_store import Place

pa: Any = pyarrow
pq: Any = pyarrow.parquet

_DELETION_VECTOR: Final = "deletionVector"
_ELSEWHERE: Final = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")


def own_files(table: Place, added: Any) -> list[str]:
    """The data files that delta-rs's `get_add_actions` names, as paths below the table. Raises UsageError for a shallow
    clone, whose rows are in another table's files."""
    # Not file_uris(): that has the table's folder encoded as a URI and what is below it as the disk has it.
    paths: list[str] = pa.table(added).column("path").to_pylist()
    if any(map(is_elsewhere, paths)):
        raise UsageError(
            f"{table} has files of another table (a shallow clone): read it with Spark, as rocketcrew query --engine spark"
            " does"
        )
    return [unquote(path) for path in paths]


def is_elsewhere(path: str) -> bool:
    """Whether a file's path in the log does not begin at the table's folder."""
    return _ELSEWHERE.match(path) is not None


def has_deletion_vectors(table: Place, log: Any, errors: type[Exception]) -> bool:
    """Whether rows in the files of delta-rs's snapshot are deleted; `errors`: delta-rs's.

    It is asked only where the table has that feature, and does not answer (1.6) where there are others that it does not know:
    then every file of the log is read, and a vector counts also where a RESTORE has taken it back. Raises LoaderError.
    """
    if "deletionVectors" not in (log.protocol().reader_features or ()):
        return False
    try:
        return any(batch.num_rows for batch in log.deletion_vectors())
    except errors:
        current = set(pa.table(log.get_add_actions()).column("path").to_pylist())
    try:
        return any(add["path"] in current and add.get(_DELETION_VECTOR) for add in _all_added(table / LOG_DIR))
    except (OSError, ValueError) as error:
        raise LoaderError(f"the log of {table} can't be read to its beginning: {error}") from None


def _all_added(log_dir: Place) -> Iterator[dict[str, Any]]:
    """Every addition of a file that the log has, of its entries and checkpoints."""
    for entry in log_dir.glob("*.json"):
        yield from (action["add"] for action in actions_of(entry.read_bytes()) if action.get("add"))
    for place in (log_dir, log_dir / "_sidecars"):
        for checkpoint in place.glob("*.parquet"):
            actions = pq.ParquetFile(pa.BufferReader(pa.py_buffer(checkpoint.read_bytes())))
            found = actions.read(["add.path", f"add.{_DELETION_VECTOR}.storageType"])
            if "add" in found.column_names:
                yield from filter(None, found.column("add").to_pylist())
