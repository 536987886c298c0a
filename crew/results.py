"""The rows of one run of a supervisor, read from its sealed segments: those of each pulled record once.

A worker's id begins with the id of the supervisor's run, so earlier runs of the same slot are told apart. A record that was
handled twice (its worker died before it had reported) may have rows in two segments: the first counts, as for a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow

from ..conf.segment_format import (
    BAD_DIR,
    KEY_COLUMNS,
    OPEN_DIR,
    PLAN_DIR,
    READY_DIR,
    REASON_SUFFIX,
    SEGMENT_NAME,
)
from ..durable.intervals import OffsetSet
from ..remoting.errors import RocketcrewError
from ..spark.errors import BadSegmentError
from ..spark.plan import Take
from ..spark.segments import read_facts, read_rows
from ..workers.plain_rows import plain_rows

# The stubs' generics ask for value types, which only the run knows here.
pa: Any = pyarrow

LOADER_FAILURES: Final = 3
"""In a row, without a batch in between: nobody waits for such a loader any longer."""


class ResultsError(RocketcrewError):
    """Rows that were sealed cannot be read any more: the text names the file."""


def waiting_for_table(segments: Path) -> int:
    """How many files in the folder `segments` have rows that a loader has still to put into its table."""
    files = sum(1 for name in (OPEN_DIR, READY_DIR) for _ in (segments / name).iterdir())
    plans = (segments / PLAN_DIR).glob("*.json")
    return files + sum(not path.with_suffix(".done").exists() for path in plans)


def set_aside_of(segments: Path, run: str) -> list[Path]:
    """The files of the run `run` that a loader could not load and has put into bad/, sorted."""
    found = (segments / BAD_DIR).glob(f"{run}.*")
    return sorted(path for path in found if not path.name.endswith(REASON_SUFFIX))


def loader_trouble(loader: Mapping[str, Any]) -> str:
    """Why the loader, by its part of the supervisor's status, has failed again and again; empty while it has not."""
    return str(loader.get("error") or "") if loader["failures_in_a_row"] >= LOADER_FAILURES else ""


def sealed_of(segments: Path, run: str) -> list[Path]:
    """The sealed segments in the folder `segments` that workers of the run `run` wrote, sorted by worker and number."""
    found: list[Path] = []
    for path in (segments / READY_DIR).iterdir():
        match = SEGMENT_NAME.fullmatch(path.name)
        if match and match["worker"].startswith(f"{run}."):
            found.append(path)
    return sorted(found)


def tables_of(segments: Path, run: str) -> Iterator[Any]:
    """Each segment's rows as a `pyarrow.Table` with the key columns, without records that an earlier one had.

    Raises ResultsError for a segment that is damaged, or that somebody has loaded and removed meanwhile.
    """
    seen = OffsetSet()
    for path in sealed_of(segments, run):
        try:
            facts = read_facts(path)
            new = facts.offsets - seen
            whole = not facts.repeats and new.count() == facts.offsets.count()
            table = read_rows(path, Take(path.name, None if whole else new))
        except BadSegmentError as error:
            raise ResultsError(f"the rows in {path} cannot be read: {error}") from None
        except FileNotFoundError:
            raise ResultsError(
                f"the rows in {path} are not there any more: a loader has put them into its table; read them from there"
            ) from None
        seen |= facts.offsets
        if table.num_rows:
            yield table


def rows_of(segments: Path, run: str) -> Iterator[Mapping[str, Any]]:
    """The rows as dicts of the handler's columns. Raises as `tables_of`."""
    for table in tables_of(segments, run):
        yield from plain_rows(table.drop_columns(list(KEY_COLUMNS)))


def table_of(segments: Path, run: str) -> Any:
    """All rows as one `pyarrow.Table` with the key columns; without columns while there is none. Raises as `tables_of`."""
    found = list(tables_of(segments, run))
    return pa.concat_tables(found, promote_options="permissive") if found else pa.table({})
