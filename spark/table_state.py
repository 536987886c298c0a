"""The table's state as a file: which batch, by which plan, which records, which columns.

Every target keeps one such file per batch where its commit makes it count: inside the batch's folder (Parquet), beside the
Delta log under the name that the commit carries, or in a ledger of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..conf.columns import Column
from ..conf.segment_format import OUTCOMES_DIR
from ..durable.files import make_folders, sync_path, write_atomically
from ..durable.intervals import OffsetSet
from ..durable.outcomes import BatchOutcomes
from ..remoting.errors import UsageError
from .errors import LoaderError
from .plan import Plan, tops_from_json, tops_to_json
from .targets.target import TableState

STATE_VERSION = 1
OUTCOMES_SUFFIX = ".json.gz"


def write_state(
    path: Path, plan: Plan, loaded: OffsetSet, rows: int, *, durable: bool, partition_by: Sequence[str] = ()
) -> None:
    """Write what the table is after `plan`, whole or not at all. Raises OSError."""
    state = {
        "version": STATE_VERSION,
        "plan": plan.id,
        "batch": plan.batch,
        "rows": rows,
        "segments": len(plan.takes),
        "columns": plan.columns,
        "loaded": loaded.to_json(),
        "tops": tops_to_json(plan.tops),
        **({"partition_by": list(partition_by)} if partition_by else {}),
    }
    write_atomically(path, json.dumps(state, separators=(",", ":")) + "\n", durable=durable)


def read_state(path: Path) -> TableState:
    """The state in the file `path`. Raises LoaderError when it is missing or not understood."""
    try:
        data = json.loads(path.read_bytes())
        if data["version"] != STATE_VERSION:
            raise ValueError(f"version {data['version']!r}, this program knows {STATE_VERSION}")
        return TableState(
            batch=int(data["batch"]),
            plan_id=str(data["plan"]),
            loaded=OffsetSet.from_json(data["loaded"]),
            columns=tuple(Column(str(name), str(type_)) for name, type_ in data["columns"]),
            tops=tops_from_json(data.get("tops", ())),
            partition_by=tuple(map(str, data.get("partition_by", ()))),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoaderError(
            f"{path} can't be used ({type(error).__name__}: {error}), so it is unknown what is in the table. Restore the"
            f" file, or move {path.parent} away if it was not made by rocketcrew"
        ) from None


def check_partitions(table: Path, wanted: Sequence[str], there: Sequence[str]) -> None:
    """Rows under other folders than the table's make it unreadable. Raises UsageError."""
    if tuple(wanted) != tuple(there):
        raise UsageError(
            f"the table {table} is partitioned by {list(there)}, and spark.partition_by is {list(wanted)}: set it as the"
            " table is, or give the path of a new table"
        )


def outcomes_path(folder: Path, plan: Plan) -> Path:
    """Where the ledger in `folder` keeps the outcomes that were noted with `plan`."""
    return folder / OUTCOMES_DIR / f"{plan.batch}-{plan.id}{OUTCOMES_SUFFIX}"


def write_outcomes(folder: Path, plan: Plan, told: BatchOutcomes) -> None:
    """Keep the outcomes in the ledger `folder`, on disk when this returns. Raises OSError."""
    path = outcomes_path(folder, plan)
    make_folders(path.parent)
    draft = path.with_name(f".{path.name}.new")
    draft.write_bytes(told.pack())
    sync_path(draft)
    draft.replace(path)
    sync_path(path.parent)
