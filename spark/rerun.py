"""Putting records back into a table that has lost them, without Spark and each of them once.

Their rows lie sealed in a staging folder of their own, and an ordinary loader loads them into the table, but for one thing:
of the table's loaded set it does not see the records that are to be replaced. The batch that brings them gives the set back
whole. Nothing is remembered anywhere else: whoever is killed runs `reconcile` again, which finds what still lacks.

One re-run at a time works on a table (a lock in the table's folder); loaders may go on beside it, as batches are claimed.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from ..durable.files import try_lock
from ..durable.intervals import OffsetSet
from ..durable.outcomes import BatchOutcomes
from ..remoting.errors import UsageError
from .accounts import Accounts
from .arrow_writer import ArrowWriter
from .config import ARROW, DELTA_RS
from .convert import Staged
from .delta_log import is_delta
from .errors import LoaderError
from .iceberg_catalog import ICEBERG, is_iceberg
from .loader import Loader
from .object_store import STATE_DIR, Place
from .plan import Plan, PlanBounds, Trigger
from .staging import Staging
from .table_state import read_state
from .targets.delta import DeltaTarget, append_by_delta_rs, partition_columns
from .targets.iceberg import opened
from .targets.local_folder import LocalFolder
from .targets.parquet import STATE_FILE, ParquetTarget, batch_folder, last_batch
from .targets.target import TableState, Target

LOCK_FILE = "_rerun.lock"
BATCH_MAX = PlanBounds(1_000_000, 1 << 30)
PIECES_MAX = 1 << 30
"""The floor passes nothing: what is to be replaced is a hole in the set for the time of the re-run."""


class Reopened:
    """A target whose loaded set lacks `records` until a commit of ours."""

    def __init__(self, target: Target, records: OffsetSet, rows_lost: int) -> None:
        """`rows_lost`: what the table has less than was loaded. The ledger's count is set right with our first batch."""
        self._target = target
        self._records = records
        self._rows_lost = rows_lost

    def state(self) -> TableState:
        """The state as a loader is to see it."""
        state = self._target.state()
        return replace(state, loaded=state.loaded - self._records)

    def has(self, plan: Plan) -> bool:
        """As the target says."""
        return self._target.has(plan)

    def start(self) -> None:
        """As the target does."""
        self._target.start()

    def write(self, plan: Plan, staged: Staged) -> None:
        """As the target does."""
        self._target.write(plan, staged)

    def commit(self, plan: Plan, accounts: Accounts, told: BatchOutcomes) -> None:
        """Commit, with what was loaded before in the set again; what is in the table now is not taken a second time."""
        whole = replace(accounts, loaded=accounts.loaded | (self._target.state().loaded & self._records))
        self._target.commit(plan, whole, replace(told, rows=(told.rows or 0) - self._rows_lost))
        self._records, self._rows_lost = self._records - accounts.loaded, 0

    def outcomes(self, above: int = 0) -> Iterator[BatchOutcomes]:
        """As the target does."""
        return self._target.outcomes(above)

    def discard(self, plan: Plan) -> None:
        """As the target does."""
        self._target.discard(plan)

    def sweep(self) -> None:
        """As the target does."""
        self._target.sweep()

    def close(self) -> None:
        """As the target does."""
        self._target.close()


def how_written(table: Path) -> tuple[str, tuple[str, ...]]:
    """In which format a re-run writes rows of the table in `table`, and the columns that the table's folders are made of."""
    if is_delta(table):
        return DELTA_RS, partition_columns(table)
    if is_iceberg(table):
        with closing(opened(table)) as target:
            return ICEBERG, target.partition_columns()
    batch = last_batch(table)
    return ARROW, read_state(batch_folder(table, batch) / STATE_FILE).partition_by if batch else ()


def folder_target(table: Path, threads: Executor) -> Target:
    """A target for the table in the folder `table` that needs no JVM."""
    format_, by = how_written(table)
    if format_ == DELTA_RS:
        return DeltaTarget(table, append_by_delta_rs, lambda: None)
    if format_ == ICEBERG:
        return opened(table)
    return ParquetTarget(LocalFolder(table, threads), ArrowWriter(by), by)


@contextmanager
def only_rerun(table: Place) -> Generator[Path]:
    """Be the table's only re-run; gives its folder. Raises LoaderError, and UsageError for a table in a bucket."""
    if not isinstance(table, Path):
        raise UsageError(
            f"reconcile --rerun needs a lock beside the table, and {table} is in a bucket, where nobody can hold one. Consume"
            " the messages once more, in a new epoch: stop the members, and `rocketcrew reset -g GROUP -t TOPIC --to TIME"
            f" --reprocess --target {table}`"
        )
    folder = table / STATE_DIR if is_delta(table) or is_iceberg(table) else table
    lock = try_lock(folder / LOCK_FILE)
    if lock is None:
        raise LoaderError(f"another reconcile --rerun works on {table}: wait for its end")
    try:
        yield table
    finally:
        os.close(lock)


def load_again(table: Path, staging: Path, records: OffsetSet, rows_lost: int) -> int:
    """Load what is sealed in `staging` into `table`, `records` of its loaded set too; the rows loaded.

    Hold `only_rerun`, and have `records` (`Report.to_reopen`) and `rows_lost` from a report made under it.
    """
    rows = 0
    with (
        ThreadPoolExecutor(2, "rerun") as threads,
        closing(Reopened(folder_target(table, threads), records, rows_lost)) as target,
    ):
        folder = Staging(staging)
        folder.lock()
        try:
            loader = Loader(
                folder,
                target,
                Trigger(rows=1, bytes=1, wait_ms=0),
                BATCH_MAX,
                threads=threads,
                cores=1,
                new_id=lambda batch: f"{batch:08d}-{secrets.token_hex(6)}",
                pieces_max=PIECES_MAX,
            )
            for report in loader.drain(lambda: 0, lambda: False):
                rows += report.rows
        finally:
            folder.unlock()
    return rows
