"""The Delta table: rows and loaded set in one commit of the Delta log, numbered by an application transaction.

    TARGET/_delta_log/…                      Delta's own; each of our commits carries txn (`rocketcrew`, batch) and the plan
    TARGET/_rocketcrew/<batch>-<plan>.json   the table's state as it is if that plan becomes that batch
    TARGET/_rocketcrew/outcomes/…            what became of the records of each batch (outcome_levels.py)

The state file is written and fsynced before the commit, under a name that only this plan has, so the commit decides in one
step both what is in the table and which state file says so. Delta refuses or skips a second commit with the same number,
whoever makes it; afterwards the log is asked who has it, and the other one plans again. State files of batches that are
two back are deleted. The state also has Delta's own id of the table: where a table is gone, Spark makes a new one in silence,
and another one may have come into its place. On a disk of this host, what the commit wrote is synced before anything depends
on it (delta_disk.py).

Where spark.vacuum is on, a loader vacuums, behind a commit and a day apart: files of rows that are in no version any more, or
never were, are deleted a week later, or later still if the table's own delta.deletedFileRetentionDuration says so, so slow
readers and streams keep theirs (delta_vacuum.py). Versions go with the log's entries, as Delta's delta.logRetentionDuration
says, whenever a checkpoint is written. Where spark.merge_files is on, whoever gets every FAN-th number merges small files
behind its commit (delta_merging.py), else `compact` alone does, in the same way: beside delta-rs's own `optimize` (1.6),
which commits whatever others have merged meanwhile, no merge may run that nobody has asked for.

Two ways to commit: by Spark (`delta`), for cluster-sized batches, and by delta-rs (`deltalake`), which needs no JVM and
takes 20 ms for a small one (docs/protocol.md). Each reads what the other wrote. The log is read by delta-rs in both cases,
so that looking whether there is anything to do needs no Spark.

The table is a folder of this file system, or, written by delta-rs alone, in a bucket of an S3 server (object_store.py): there
a put is what a fsync and a rename are on a disk, and a conditional put of the log's next entry is the commit.

Sources: Delta's protocol ("Transaction Identifiers"), and OptimisticTransaction.scala for what a repeated transaction does.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow
import pyarrow.dataset

from ...client.logs import get_logger
from ...conf.columns import BATCH_COLUMN, Column, check_partition_columns, misfits, plain_schema
from ...conf.delta_names import NEW_TABLES_MAPPING, NOT_MAPPED, maps_names, refused_by_delta
from ...conf.segment_format import OUTCOMES_DIR
from ...durable.files import CALLS, FileCalls, spark_path
from ...durable.intervals import OffsetSet
from ...durable.outcomes import BatchOutcomes
from ...remoting.errors import UsageError
from ..accounts import Accounts
from ..column_bounds import has_floats, with_bounds
from ..convert import Staged
from ..delta_log import check_path, entry_of
from ..delta_merging import CHECKPOINT_COMMITS, merge_small_files
from ..delta_snapshot import TRANSACTIONS_KEPT, check_constraints, column_mapping, columns_of_log, refuse_forgetting
from ..delta_vacuum import unneeded
from ..errors import CHECK_REMEDY, CONSUME_AGAIN, BatchTakenError, LoaderError, remedy, without_rows
from ..merging import MergeBounds
from ..object_store import PROBE, STATE_DIR, ObjectPath, Place, short
from ..outcome_levels import FAN, OutcomeLevels
from ..plan import Plan
from ..spark_writer import SparkWriter, numbered, partitioned
from ..status import is_another
from ..table_columns import refuse_strangers, tried_batches
from ..table_lock import only_merge
from ..table_state import (
    as_in_table,
    check_partitions,
    delete_old_states,
    ledger_outcomes,
    look,
    outcomes_path,
    read_state,
    tried_outcomes,
    write_before_commit,
)
from .delta_disk import check_commit, explain_no_log, explain_torn_log, first_unsynced, sync_commits
from .delta_restores import MARK, Restores, plan_noted
from .target import TableState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pa: Any = pyarrow
ds: Any = pyarrow.dataset

APP_ID = "rocketcrew"
TABLE_NAME = "rocketcrew results"
"""Given to a table that is made before its first batch, so that the next start knows it for ours."""
STATES_KEPT = 2
HISTORY_FIRST = 50
"""Commits of the log that are looked at before all of them are."""
FILE_BYTES = 128 * 1024 * 1024
PROBE_S = 3600
"""Age at which the probe of a server is nobody's any more."""
VACUUM_S = 86_400
"""Between two looks for files that nobody needs: each lists the whole table."""

Append = Callable[[Place, Plan, Staged, "object | None"], None]
"""Commits the plan's rows to a table, as transaction (APP_ID, plan.batch); the last argument is delta-rs's snapshot on
which the plan was made, None when there was no table. Raises BatchTakenError or LoaderError."""


class DeltaTarget:
    """A Delta table at `path`; `append` commits, `start` prepares that."""

    def __init__(
        self, path: Place, append: Append, start: Callable[[], None], partition_by: Sequence[str] | None = None,
        keep_outcomes_s: float = math.inf, vacuum: bool = False, merge: MergeBounds | None = None,
        calls: FileCalls = CALLS,
    ) -> None:  # fmt: skip
        """`partition_by` is what the table is to have; None: whatever it has, for those that only read. `merge`: of small
        files; None: none are. Raises UsageError."""
        check_path(path)
        self.path = path
        self._partition_by = partition_by
        self._append = append
        self._start = start
        self._calls = calls
        self._keep_outcomes_s = keep_outcomes_s
        self._vacuums = vacuum
        self._vacuumed_s = -math.inf
        self._merge_bounds = merge
        self._not_merged = ""
        """Why not, when it was tried last."""
        self._synced = -1
        """Versions below it are on the disk, as far as this loader is to see to that."""
        self._snapshot: Any = None
        self._opened_at = 0
        """The version with which the snapshot was opened."""
        self._seen: tuple[int, tuple[int, int] | None] = (0, None)
        """The newest version that was read, and what its entry looked like."""
        self._restores = Restores(path)
        self._staged: Staged | None = None

    def state(self) -> TableState:
        """The state that the newest of our commits names. Raises LoaderError, UsageError for a table of somebody else."""
        batch = self._own()
        if not batch:
            return TableState(0, "", OffsetSet(), ())
        if self._partition_by is not None:
            check_partitions(self.path, self._partition_by, self._snapshot.metadata().partition_columns)
            refuse_forgetting(self.path, self._snapshot)
        state = read_state(self._state_path(batch, self._winner(batch)))
        if is_another(state.table, self._table_id()):
            raise _replaced(self.path, batch)
        return as_in_table(state, self._table_id(), columns_of_log(self._snapshot))

    def _refresh(self) -> int:
        """Read the log anew; the number of our last commit, 0 when there is none."""
        library = delta_rs()
        try:
            if self._goes_on():
                self._snapshot.update_incremental()
            else:
                self._snapshot = _opened(self.path)
                if self._snapshot is None:  # none yet, or removed under us
                    return 0
                self._opened_at = int(self._snapshot.version())
                self._seen = self._look(self._opened_at)
            if (version := int(self._snapshot.version())) != self._seen[0]:
                self._seen = self._look(version)
            return int(self._snapshot.transaction_version(APP_ID) or 0) or self._remembered()
        except library.exceptions.DeltaError as error:
            more = explain_torn_log(self.path) if isinstance(self.path, Path) else ""
            raise LoaderError(f"the log of {self.path} can't be read: {error}. The segments stay{more}") from None
        except OSError as error:
            if isinstance(self.path, Path):
                raise
            raise LoaderError(
                f"the S3 server of {self.path} can't be asked: {short(error)}. The segments stay"
            ) from None

    def _goes_on(self) -> bool:
        """Whether the snapshot is taken further, instead of a new one.

        Not on another table than it was: going on from its old end would tear a hole into its log. And not for more commits
        than lie between two checkpoints of the log, as each of them makes all that is done with the snapshot slower.
        """
        if self._snapshot is None:
            return False
        version = int(self._snapshot.version())
        same_stretch = version // CHECKPOINT_COMMITS == self._opened_at // CHECKPOINT_COMMITS
        # A table that was made again may be further than this one was, and have an entry of that number too.
        return same_stretch and self._seen[1] is not None and self._seen == self._look(self._seen[0])

    def _look(self, version: int) -> tuple[int, tuple[int, int] | None]:
        return version, look(entry_of(self.path, version))

    def _remembered(self) -> int:
        """The number of our last commit where the log has no transaction of ours: of a table that others have told to forget
        them (TRANSACTIONS_KEPT) it is the last whose plan the log names. 0: there is none. Raises LoaderError."""
        tried = {plan: batch for batch in tried_batches(self.path) for plan in self._tried(batch)}
        found = self._in_log(tried) if tried else None
        if found is not None:
            return tried[found]
        if tried and not entry_of(self.path, 0).exists():
            raise LoaderError(
                f"the log of {self.path} has neither a transaction of {APP_ID} any more nor the commits that it was noted"
                f" with, so it is unknown what is in the table: Delta forgets them where {TRANSACTIONS_KEPT} is set. Load"
                f" into a new table (spark.target), {CONSUME_AGAIN}"
            )
        return 0

    def _table_id(self) -> str:
        """Of the table that was read last; empty: there is none."""
        return "" if self._snapshot is None else str(self._snapshot.metadata().id)

    def _own(self) -> int:
        """The number of our last commit; 0 where there is none, and nothing of others in the folder. Raises UsageError."""
        if batch := self._refresh():
            return batch
        try:
            self._refuse_foreign()
        except UsageError:
            # What is in the folder may be of another loader that has made the table since we looked.
            if not (batch := self._refresh()):
                self._refuse_foreign()
        return batch

    def _refuse_foreign(self) -> None:
        if self._snapshot is not None:
            if self._snapshot.metadata().name == TABLE_NAME:
                return  # made, and nothing loaded yet
            raise UsageError(f"{self.path} is a Delta table that rocketcrew did not make: give the path of a new one")
        if not self.path.exists():
            return
        # A first batch has files of rows before its entry: of a loader that writes it now, or was killed at it. They count
        # for nothing. No power failure has undone more than that: no segment is deleted before its entry is on the disk.
        begun = tried_batches(self.path) == {1}
        more = explain_no_log(self.path) if isinstance(self.path, Path) else ""
        refuse_strangers(self.path, "of no Delta table", lambda name: begun and self._is_of_rows(name), more)

    def _is_of_rows(self, name: str) -> bool:
        """Whether it is the name of a file of rows, or of a folder of `partition_by`."""
        column, is_folder, _ = name.partition("=")
        if not is_folder:
            return name.endswith(".parquet")
        return column != BATCH_COLUMN if self._partition_by is None else column in self._partition_by

    def _winner(self, batch: int) -> str:
        """The id of the plan that became `batch`: the only one that tried, or the one that the log names."""
        tried = self._tried(batch)
        if not tried:
            raise LoaderError(
                f"the table {self.path} is at batch {batch}, and {self.path / STATE_DIR} has no state of it (those of the"
                f" newest {STATES_KEPT} batches are kept): it was taken back to an old version, or copied without it."
                " Take it back to its newest version (RESTORE TABLE, or DeltaTable.restore of the deltalake package), or load"
                f" into a new table (spark.target), {CONSUME_AGAIN}"
            )
        return tried[0] if len(tried) == 1 else self._logged(batch, tried)

    def _tried(self, batch: int) -> list[str]:
        return [path.name.partition("-")[2].removesuffix(".json") for path in self._states(batch)]

    def _logged(self, batch: int, tried: Iterable[str]) -> str:
        found = self._in_log(tried)
        if found is not None:
            return found
        raise LoaderError(
            f"the log of {self.path} does not say which plan became batch {batch}, so it is unknown what is in the table:"
            f" keep one file {batch}-*.json in {self.path / STATE_DIR}"
        )

    def _in_log(self, tried: Iterable[str]) -> str | None:
        found = self._found_in_log(tried)
        return None if found is None else found[0]

    def _found_in_log(self, tried: Iterable[str]) -> tuple[str, int] | None:
        """The newest of these plans that the log names, and its version."""
        for limit in (HISTORY_FIRST, None):
            for commit in self._snapshot.history(limit):
                plan = plan_noted(commit)
                if plan in tried:
                    return plan, int(commit["version"])
        return None

    def has(self, plan: Plan) -> bool:
        """Whether the plan became its batch, as far as the log still says so of one that others have gone on from: else it is
        answered by its records, which are loaded."""
        newest = self._refresh()
        if newest < plan.batch or plan.id != (self._winner(newest) if newest == plan.batch else self._named(plan)):
            return False
        if isinstance(self.path, Path):
            self._check(plan, self.path)
        return True

    def _check(self, plan: Plan, path: Path) -> None:
        """A commit that an earlier try made, perhaps of a machine that went down or on a disk that failed: whole, and on the
        disk."""
        found = self._found_in_log((plan.id,))
        if found is not None:
            version, newest = found[1], int(self._snapshot.version())
            names: list[str] = self._snapshot.get_add_actions().column("path").to_pylist()
            check_commit(path, version, {unquote(name) for name in names})
            sync_commits(path, version, version, anew=True, calls=self._calls)
            sync_commits(path, max(version + 1, first_unsynced(newest)), newest, calls=self._calls)

    def _sync(self) -> None:
        """Bring to the disk what is in the log and may not be there: other loaders' last commits too, which they may not
        have synced yet."""
        if not isinstance(self.path, Path) or self._snapshot is None:
            return
        newest = int(self._snapshot.version())
        if not 0 <= self._synced <= newest + 1:  # the first time, or of another table
            self._synced = first_unsynced(newest)
        sync_commits(self.path, self._synced, newest, calls=self._calls)
        self._synced = newest + 1

    def start(self) -> None:
        """Start what commits."""
        self._start()

    def write(self, plan: Plan, staged: Staged) -> None:
        """Nothing to write ahead: Delta hides what is not committed."""
        check_partition_columns(self._partition_by or (), plan.columns)
        self._staged = staged

    def commit(self, plan: Plan, accounts: Accounts, told: BatchOutcomes) -> None:
        """Append the rows as the transaction `plan.batch`, and look who has got it."""
        staged, self._staged = self._staged, None
        if staged is None:
            raise RuntimeError("write() comes before commit()")
        self._refuse_other(plan, self._refresh())
        table, path = self._table_id(), self._state_path(plan.batch, plan.id)
        write_before_commit(path, plan, accounts, told, self.path, table)
        # A table of another format may have come into the folder since the plan was made; one that comes now meets our state
        # (Parquet), or our log's first entry: an Iceberg table may still be made before that is there.
        if plan.batch == 1 and self._own():
            raise _taken(self.path, plan)
        self._tell_of_restores()
        self._sync()  # before ours is on top of it
        try:
            self._append(self.path, plan, staged, self._snapshot)
        except LoaderError:
            # Whatever it says: when the number is somebody else's now, that is why. And when it is ours, the commit was made
            # all the same: its answer was lost on the way, and a second try found the first one there.
            newest = self._refresh()
            if newest < plan.batch - 1:
                raise _replaced(self.path, plan.batch) from None
            if newest < plan.batch or (not isinstance(path, ObjectPath) and self._is_ours(plan, newest)):
                raise
            if not self._is_ours(plan, newest):
                raise _taken(self.path, plan) from None
        newest = self._refresh()
        if newest < plan.batch:
            raise LoaderError(f"{self.path}: the commit of batch {plan.batch} ended well, but is not in the log")
        if is_another(table, self._table_id()):  # Spark makes a new one where none is
            raise _replaced(self.path, plan.batch)
        if not self._is_ours(plan, newest):
            raise _taken(self.path, plan)
        self._tell_of_restores()
        self._sync()
        self._tidy(plan)

    def _refuse_other(self, plan: Plan, newest: int) -> None:
        """Raise BatchTakenError unless the table, at `newest`, is what the plan was made on: it may be gone, or a copy of
        before or another one may be in its place."""
        if newest >= plan.batch:
            raise _taken(self.path, plan)
        if newest < plan.batch - 1 or not plan.follows(newest, self._winner(newest) if newest else ""):
            raise BatchTakenError(f"{self.path} is not the table any more that batch {plan.batch} was planned for")
        if wrong := misfits([] if self._snapshot is None else columns_of_log(self._snapshot), plan.columns):
            raise BatchTakenError(f"others have changed columns of {self.path}: {'; '.join(wrong)}")

    def _tell_of_restores(self) -> None:
        if self._snapshot is not None:
            self._restores.tell(self._snapshot, delta_rs().exceptions.DeltaError)

    def _is_ours(self, plan: Plan, newest: int) -> bool:
        """Whether the log names this plan for its number: asked always, as Spark skips a repeated number in silence.

        When others have gone on while we stood still, the winner's state may be deleted, and the log alone counts.
        """
        if newest > plan.batch:
            return self._named(plan) == plan.id
        return self._logged(plan.batch, self._tried(plan.batch)) == plan.id

    def _named(self, plan: Plan) -> str | None:
        """The plan that the log names for this one's number, among those of which there are files; None: none of them."""
        return self._in_log({plan.id, *self._tried(plan.batch), *tried_outcomes(self.path / STATE_DIR, plan.batch)})

    def _tidy(self, plan: Plan) -> None:
        delete_old_states(self.path / STATE_DIR, plan, STATES_KEPT)
        if plan.batch % FAN == 0:
            self._outcomes(plan.batch).tidy(time.time(), self._keep_outcomes_s)
            self._merge(time.time())
            self._vacuum(time.monotonic())

    def _merge(self, now_s: float) -> None:
        """Make small files into larger ones, of the version that was just read. A merge that another commit has overtaken
        comes again FAN batches later, as does one that failed."""
        if self._merge_bounds is None:
            return
        log = get_logger()
        try:
            with only_merge(self.path) as alone:
                if not alone:
                    return
                done = merge_small_files(self.path, self._snapshot, self._merge_bounds, int(now_s * 1000))
        except FileExistsError:
            log.info("delta_files_merged_by_others", table=str(self.path))
            return
        except Exception as error:  # noqa: BLE001 -- the batch is committed, and a table without the merge is whole
            known = isinstance(error, (delta_rs().exceptions.DeltaError, LoaderError, OSError))
            said = short(error) if known else f"{type(error).__name__}: {short(error)}"
            if self._not_merged != said:
                log.warning("delta_files_not_merged", table=str(self.path), error=said)
            self._not_merged = said
            return
        if done is not None:
            log.info("delta_files_merged", table=str(self.path), files=done.files, into=done.into, bytes=done.bytes)

    def _vacuum(self, now_s: float) -> None:
        """Delete files of rows that no version needs; `now_s` is monotonic. What another loader deletes at the same moment is
        no error, and what fails is tried a day later."""
        if not self._vacuums or now_s - self._vacuumed_s < VACUUM_S:
            return
        self._vacuumed_s = now_s
        log = get_logger()
        try:
            gone = unneeded(partial(open_log, self.path))
            for name in gone:
                (self.path / name).unlink(missing_ok=True)
        except (delta_rs().exceptions.DeltaError, LoaderError, UsageError, OSError) as error:
            log.warning("delta_files_not_vacuumed", table=str(self.path), error=short(error))
            return
        if gone:
            log.info("delta_files_vacuumed", table=str(self.path), files=len(gone))

    def outcomes(self, above: int = 0) -> Iterator[BatchOutcomes]:
        """What is kept of all commits."""
        return iter(self.levels().read(above))

    def levels(self) -> OutcomeLevels:
        """The files that have them."""
        return self._outcomes(self._refresh())

    def _outcomes(self, batch: int) -> OutcomeLevels:
        return ledger_outcomes(self.path / STATE_DIR, batch, winner=self._winner_of_outcomes)

    def _winner_of_outcomes(self, batch: int, tried: Sequence[str]) -> str:
        """A plan that lost its number, and whose loader died, leaves outcomes of records that are not in the table."""
        found = self._in_log(tried)
        if found is None:
            raise LoaderError(
                f"the log of {self.path} does not say which plan became batch {batch}, so it is unknown which outcomes"
                f" count: keep one file {batch}-<plan>.json.gz in {self.path / STATE_DIR / OUTCOMES_DIR}"
            )
        return found

    def discard(self, plan: Plan) -> None:
        """Delete the state file and the outcomes of a plan whose number is another plan's.

        While the number is free they stay: a commit that a dead loader has begun may still be made, and would be a batch
        without a state. Whoever gets the number deletes them. And a plan of a loader that died after its commit is found
        again when others have gone on: its outcomes count. So where the log names nobody, it must be there from its first
        entry on to say that the number, below the newest, is another's.
        """
        newest = self._refresh()
        if plan.batch > newest:
            return
        named = self._named(plan)
        lost = named is None and plan.batch < newest and entry_of(self.path, 0).exists()
        if lost or named not in (None, plan.id):
            self._state_path(plan.batch, plan.id).unlink(missing_ok=True)
        if lost or self._outcomes_of_another(plan):
            outcomes_path(self.path / STATE_DIR, plan).unlink(missing_ok=True)

    def _outcomes_of_another(self, plan: Plan) -> bool:
        """Whether the plan's number is another plan's. Who commits has written outcomes before: a single file is the
        winner's."""
        tried = tried_outcomes(self.path / STATE_DIR, plan.batch)
        try:
            return len(tried) > 1 and self._logged(plan.batch, tried) != plan.id
        except LoaderError:
            return False  # the log does not say: both are kept

    def sweep(self) -> None:
        """Rows that were not committed are Delta's to vacuum; in a bucket, objects of a start that was killed are ours."""
        if isinstance(self.path, ObjectPath):
            for probe in (self.path / STATE_DIR).glob(f"{PROBE}*"):
                with contextlib.suppress(FileNotFoundError):
                    if probe.stat().st_mtime < time.time() - PROBE_S:
                        probe.unlink()

    def close(self) -> None:
        """Nothing is locked."""

    def _state_path(self, batch: int, plan_id: str) -> Place:
        return self.path / STATE_DIR / f"{batch}-{plan_id}.json"

    def _states(self, batch: int) -> list[Place]:
        return sorted((self.path / STATE_DIR).glob(f"{batch}-*.json"), key=str)


def _taken(path: Place, plan: Plan) -> BatchTakenError:
    return BatchTakenError(f"batch {plan.batch} of {path} was committed by another loader")


def _replaced(path: Place, batch: int) -> LoaderError:
    return LoaderError(
        f"{path} is not the table any more that batch {batch} was made for: it was removed or replaced, and what is there now"
        " lacks rows of earlier batches. The segments stay: put the table back (one that was overwritten: RESTORE TABLE, or"
        " DeltaTable.restore of the deltalake package, to the version before that); or move the folder away, and start again"
        " to hear how to go on without it. While it is there, --table-replaced does not help: it would count rows as loaded"
        " that are gone"
    )


def delta_rs() -> Any:
    try:
        import deltalake
    except ImportError as error:
        raise UsageError(
            f"Delta tables need the deltalake package ({error}): pip install 'rocketcrew[delta]'"
        ) from None
    return deltalake


def storage_options(path: Place) -> dict[str, str] | None:
    """What delta-rs is told of the server."""
    return path.storage_options if isinstance(path, ObjectPath) else None


def partition_columns(path: Place) -> tuple[str, ...]:
    """The columns that the folders of the table at `path` are made of. Raises delta-rs's errors."""
    found = _opened(path)
    return () if found is None else tuple(map(str, found.metadata().partition_columns))


def _opened(path: Place) -> Any:
    """The newest snapshot; None when there is no table. Raises delta-rs's errors.

    `is_deltatable` would ask a server with Python's lock held: all threads stand still until it answers.
    """
    library = delta_rs()
    if isinstance(path, Path) and not library.DeltaTable.is_deltatable(str(path)):
        return None
    try:
        return open_log(path)
    except library.exceptions.TableNotFoundError:
        return None


def open_log(path: Place) -> Any:
    """The newest snapshot of the Delta table at `path`. Raises delta-rs's errors."""
    return delta_rs().DeltaTable(str(path), storage_options=storage_options(path))


def append_by_spark(writer: SparkWriter, partition_by: Sequence[str] = ()) -> Append:
    """Commits by a Spark job. Delta's jars must be in the session (session.delta_conf). Raises UsageError for names of
    columns that Spark refuses there: segments may have been sealed for another format."""

    def append(path: Place, plan: Plan, staged: Staged, snapshot: Any) -> None:
        assert isinstance(path, Path), "LoaderConfig lets no table in a bucket be written by Spark"
        known = [] if snapshot is None else [Column(field.name, "") for field in snapshot.schema().fields]
        if wrong := refused_by_delta(known, plan.columns):
            new = snapshot is None
            if not maps_names(writer.setting(NEW_TABLES_MAPPING, NOT_MAPPED) if new else column_mapping(snapshot)):
                raise UsageError(
                    f"{wrong}. The segments stay: load --set spark.format=deltalake loads them as they are"
                )

        def as_delta(rows: DataFrame) -> None:
            writing = numbered(rows, plan.batch).write.format("delta")
            options = {
                "txnAppId": APP_ID,
                "txnVersion": str(plan.batch),
                "userMetadata": f"{MARK} {plan.id}",
                "mergeSchema": "true",
            }
            partitioned(writing, partition_by).mode("append").options(**options).save(spark_path(path))

        writer.run(staged.files, plan.columns, f"batch {plan.batch} to {path.name}", as_delta)

    return append


def append_by_delta_rs(
    path: Place, plan: Plan, staged: Staged, snapshot: Any, file_bytes: int = FILE_BYTES,
    partition_by: Sequence[str] = (),
) -> None:  # fmt: skip
    """Commits without a JVM, in this process: the rows stream through memory, a batch of Arrow at a time."""
    library = delta_rs()
    properties = library.CommitProperties(
        custom_metadata={MARK: plan.id},
        app_transactions=[library.Transaction(APP_ID, plan.batch)],
    )
    try:
        # delta-rs (1.6) merges no schema into one with mapped columns, be there nothing new in it.
        known: Any = pa.schema([])
        if snapshot is not None and column_mapping(snapshot) != NOT_MAPPED:
            known = pa.schema(snapshot.schema())
        rows = numbered_rows(staged.files, plan.batch, [field for field in known if field.name != BATCH_COLUMN])
        if snapshot is None:
            snapshot = _created(path, rows.schema, partition_by)
        library.write_deltalake(
            snapshot,
            rows,
            mode="append",
            schema_mode=None if len(rows.schema) == len(known) else "merge",
            partition_by=list(partition_by) or None,
            target_file_size=file_bytes,
            commit_properties=properties,
            writer_properties=_writing(library, rows.schema, mapped=bool(known)),
        )
    except library.exceptions.CommitFailedError as error:
        raise LoaderError(f"the commit to {path} was refused: {error}{remedy(str(error))}. The segments stay") from None
    except library.exceptions.DeltaError as error:
        said = without_rows(str(error)).rstrip(".")
        checks = ", ".join(check_constraints(snapshot)) if CHECK_REMEDY in remedy(said) else ""
        raise LoaderError(
            f"the commit to {path} failed: {said}{checks and f' ({checks})'}{remedy(said)}. The segments stay"
        ) from None
    except Exception as error:
        if type(error) is not Exception:  # delta-rs's own, as of a value that does not go into a column's type
            raise
        raise LoaderError(f"the commit to {path} failed: {without_rows(str(error))}. The segments stay") from None


def _writing(library: Any, schema: Any, *, mapped: bool) -> Any:
    """How delta-rs writes files: it takes the statistics of the log from those of Parquet (column_bounds.py).

    Floats get no dictionary (merged_file.py). What is within other columns, or is `mapped` to another name, delta-rs (1.6)
    knows no properties for: where a float is or may be there, none of those gets one.
    """
    bounded = with_bounds(schema, in_log=True)
    if bounded is True:
        return None
    floats = {field.name for field in schema if has_floats(field.type)}
    plain = [field.name for field in schema if not pa.types.is_nested(field.type)]

    def column(name: str) -> Any:
        return library.ColumnProperties(
            dictionary_enabled=name not in floats, statistics_enabled="CHUNK" if name in bounded else "NONE"
        )

    return library.WriterProperties(
        # delta-rs's choices, and not those of these properties: the log would have texts of any length.
        compression="SNAPPY",
        statistics_truncate_length=64,
        default_column_properties=library.ColumnProperties(
            dictionary_enabled=floats.issubset(plain) and not mapped, statistics_enabled="NONE"
        ),
        column_properties={name: column(name) for name in plain},
    )


def _created(path: Place, schema: Any, partition_by: Sequence[str]) -> object:
    """The table, made for itself: a commit to a path would not notice that another loader has just made batch 1 of it.

    One try: with a second one delta-rs puts our columns over those of the table that another loader has made meanwhile.

    Raises BatchTakenError when another loader was first, whether or not its batch is in the table yet, and also when another
    one has committed to our table before delta-rs gave it to us: that is its newest version, and a batch that is appended
    there meets no conflict with the same number. To be planned again.
    """
    library = delta_rs()
    try:
        made = library.DeltaTable.create(
            str(path), schema, mode="error", name=TABLE_NAME, partition_by=list(partition_by) or None,
            storage_options=storage_options(path), commit_properties=library.CommitProperties(max_commit_retries=0),
        )  # fmt: skip
    except library.exceptions.DeltaError:
        if _opened(path) is not None:
            raise BatchTakenError(f"{path} was made by another loader in the same moment") from None
        raise
    if made.version() != 0:
        raise BatchTakenError(f"{path} has a commit of another loader since it was made")
    return made


def numbered_rows(files: Sequence[Path], batch: int, known: Sequence[Any] = ()) -> Any:
    """All rows as a RecordBatchReader, with the types that table formats have and the batch's number as the last column; of
    the fields `known` they have every one, null where no file has it."""
    schema = pa.unify_schemas([plain_schema(pa.parquet.read_schema(str(file))) for file in files])
    schema = pa.schema([*schema, *(field for field in known if field.name not in schema.names)])
    out = schema.append(pa.field(BATCH_COLUMN, pa.int64()))
    scanner = ds.dataset([str(file) for file in files], schema=schema, format="parquet").scanner(use_threads=False)

    def batches() -> Iterable[Any]:
        for rows in scanner.to_batches():
            yield rows.append_column(BATCH_COLUMN, pa.repeat(pa.scalar(batch, pa.int64()), rows.num_rows)).cast(out)

    return pa.RecordBatchReader.from_batches(out, batches())
