"""The Iceberg table: rows on a branch, then one transaction that moves `main` and names the state.

    TARGET/data/… metadata/…                 Iceberg's own; the catalog has the name of the newest metadata file
    TARGET/_rocketcrew/iceberg.json          which catalog that is (iceberg_catalog.py)
    TARGET/_rocketcrew/<batch>-<plan>.json   the table's state as it is if that plan becomes that batch
    TARGET/_rocketcrew/outcomes/…            what became of the records of each batch (outcome_levels.py)

An append that finds another commit before it is made once more on top of that, in silence, by pyiceberg and by Spark: of
two loaders with the same records both would be in the table, whatever they had read before. So no append of ours is to
`main`. The rows go to the branch `rocketcrew-<plan>`, which nobody reads. Then one transaction without an append sets `main`
and the tag `rocketcrew` to that snapshot, and the table's properties to batch, plan and snapshot; it requires that `main` and
the tag are what they were when the state was read. It is made or not, and never on top of something else. The tag is ours
alone: should `main` be rolled back by hand between our look and our commit, it says that another batch was there.

pyiceberg writes the rows, or Spark does (`rows`). All else is the same: what the one has begun the other one goes on with.

Others may append, delete and merge: while `main` goes on from our last snapshot, the state is right. When it does not
(`iceberg_catalog.Main`), the loader refuses, with the command that puts it right.

Sources: Iceberg's specification ("Table Requirements" of the REST catalog), pyiceberg's Transaction.commit_transaction for
the rebase, and its _stage, which keeps one requirement of a kind: ours are given to the catalog directly.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow

from ...client.logs import get_logger
from ...conf.columns import check_partition_columns
from ...durable.files import CALLS, FileCalls, sync_path
from ...durable.intervals import OffsetSet
from ...durable.outcomes import BatchOutcomes
from ...remoting.errors import UsageError
from ..accounts import Accounts
from ..convert import FILE_BYTES, Staged
from ..errors import CONSUME_AGAIN, BatchTakenError, LoaderError, remedy
from ..hdfs import HdfsPath
from ..iceberg_catalog import (
    AGE_MAX,
    CatalogSpec,
    Kept,
    Main,
    added_files,
    asked,
    expirable,
    failures,
    is_iceberg,
    last_in_order,
    local_path,
    location_of,
    main_is,
    open_catalog,
    partition_columns,
    read_spec,
    refuse_transforms,
    retention,
    short,
    superseded,
    write_spec,
)
from ..iceberg_spark import JavaCatalog, SparkMerges, SparkRows, delete_old_versions
from ..merging import FILES_LEAST, MergeBounds
from ..object_store import STATE_DIR
from ..outcome_levels import FAN, OutcomeLevels
from ..plan import Plan
from ..table_columns import refuse_strangers, tried_batches
from ..table_state import (
    check_partitions,
    delete_old_states,
    ledger_outcomes,
    outcomes_path,
    read_state,
    write_before_commit,
)
from .delta import numbered_rows
from .iceberg_commits import (
    BATCH,
    BRANCH,
    DELETE_OLD,
    MAIN,
    MERGED,
    PLAN,
    SNAPSHOT,
    TAG,
    Commit,
    at,
    batch_of,
    came_next,
    commit_table,
    deletes_old,
    is_over,
    judges_here,
    made_with,
    mark_of,
    moves,
    plan_of,
    requirements,
    snapshot_of,
    unchanged,
)
from .iceberg_rows import add_columns, fitted_rows, pieces
from .target import TableState

pa: Any = pyarrow

PROPERTIES: Final[Mapping[str, str]] = {
    "format-version": "2",
    "commit.manifest-merge.enabled": "true",  # else each commit adds a manifest that every reader opens
    DELETE_OLD: "true",
    "write.metadata.previous-versions-max": "10",
    AGE_MAX: "21600000",  # 6 h: written out, so that all see it and can change it
}
TRIES_MAX: Final = 20
"""Commits that others were faster than, one after the other, with a state that stays: then something is wrong."""
STATES_KEPT: Final = 2


class IcebergTarget:
    """The Iceberg table in the folder `path`, by the catalog of `spec`."""

    def __init__(
        self, path: Path | HdfsPath, spec: CatalogSpec, partition_by: Sequence[str] | None = None,
        keep_outcomes_s: float = math.inf, file_bytes: int = FILE_BYTES, commit: Commit = commit_table,
        now_s: Callable[[], float] = time.time, calls: FileCalls = CALLS, rows: SparkRows | None = None,
        java: JavaCatalog | None = None, merge_files: bool = False, spark_merges: SparkMerges | None = None,
        vacuum: bool = False,
    ) -> None:  # fmt: skip
        """`partition_by` is what the table is to have; None: whatever it has. `commit`: another one is for tests.

        `now_s`: wall-clock time, by which snapshots are old. `rows`: Spark writes them. `java`: the catalog that is asked in
        place of pyiceberg's, of a table on HDFS. `merge_files`: small files are made into large ones; by `spark_merges`
        where pyiceberg reads no files. `vacuum`: the files that were merged are deleted when no snapshot names them any more.
        """
        self.path = path.absolute() if isinstance(path, Path) else path
        self._rows = rows
        self._java = java
        self._spec = spec
        self._partition_by = partition_by
        self._keep_outcomes_s = keep_outcomes_s
        self._file_bytes = file_bytes
        self._commit = commit
        self._now_s = now_s
        self._calls = calls
        self._merges = merge_files
        self._spark_merges = spark_merges
        self._vacuums = vacuum
        self._looked_at: int | None = None
        """Up to this snapshot of `main` there was nothing to merge."""
        self._catalog: Any = java
        self._staged: Staged | None = None

    def partition_columns(self) -> tuple[str, ...]:
        """The columns that the table's folders are made of; none where there is no table."""
        table = self.table()
        return () if table is None else partition_columns(table)

    def state(self) -> TableState:
        """The state that the table's properties name. Raises LoaderError, UsageError for a table of somebody else."""
        table = self._own()
        if table is None:
            return TableState(0, "", OffsetSet(), ())
        if self._partition_by is not None:
            refuse_transforms(self._spec.table, table, self._partition_by, by_spark=self._rows is not None)
            check_partitions(self.path, self._partition_by, partition_columns(table))
        self._check_main(table)
        batch = batch_of(table)
        with asked(self._spec), suppress(PermissionError):  # of somebody who only reads
            self._sync_catalog()
        if not batch:
            return TableState(0, "", OffsetSet(), ())
        return replace(read_state(self._state_path(batch, plan_of(table))), table=str(table.metadata.table_uuid))

    def table(self) -> Any:
        """pyiceberg's table as it is now; None when there is none. Raises LoaderError, UsageError for another one's."""
        if isinstance(self.path, Path) and (self._catalog is None or self._spec.sqlite is not None):
            # A file that was replaced is another catalog, and a connection to the old one would not know.
            if self._catalog is not None:
                self._catalog.close()
            self._catalog = open_catalog(self._spec, self.path, known=is_iceberg(self.path))
        with asked(self._spec):
            from pyiceberg.exceptions import NoSuchTableError

            try:
                table = self._catalog.load_table(self._spec.table)
            except NoSuchTableError:
                return None
            except FileNotFoundError:
                if (self.path / "metadata").exists():
                    raise
                raise LoaderError(
                    f"the Iceberg catalog {self._spec} still has the table {self._spec.table}, and {self.path / 'metadata'}"
                    " is gone: drop the table there, or put the folder back. The segments stay"
                ) from None
            finally:
                self._catalog.close()  # else a look keeps a descriptor open until Python collects its garbage
        if BATCH not in table.properties:
            raise UsageError(
                f"{self._spec.table} of the catalog {self._spec} is an Iceberg table that rocketcrew did not make: name"
                " another one (spark.options.table)"
            )
        if self._java is not None and deletes_old(table.properties):
            raise LoaderError(
                f"{self._spec.table} has {DELETE_OLD} = true, by which a writer on HDFS that stood still for a while can take"
                f" back what others have committed since: ALTER TABLE {self._spec.table} SET TBLPROPERTIES ('{DELETE_OLD}' ="
                " 'false') in Spark. The segments stay"
            )
        if not self._is_here(table.location()):
            raise UsageError(
                f"{self._spec.table} of the catalog {self._spec} is in {table.location()}, and spark.target is {self.path}:"
                " set it so, or name another table (spark.options.table)"
            )
        return table

    def _is_here(self, location: str) -> bool:
        return local_path(location) == self.path if isinstance(self.path, Path) else location == str(self.path)

    def _own(self) -> Any:
        """The table; None where there is none, and nothing of others in its folder. Raises LoaderError, UsageError."""
        if (table := self.table()) is not None:
            return table
        try:
            self._refuse_foreign()
        except (LoaderError, UsageError):
            # What is in the folder may be of another loader that has made the table since we looked.
            if (table := self.table()) is None:
                raise
        return table

    def _there(self) -> Any:
        """The table, in the middle of a batch. Raises LoaderError when it is gone."""
        table = self.table()
        if table is None:
            raise LoaderError(
                f"the Iceberg table {self._spec.table} was dropped from the catalog {self._spec} while a batch was written."
                " The segments stay"
            )
        return table

    def _refuse_foreign(self) -> None:
        if is_iceberg(self.path):
            found = read_spec(self.path)
            raise LoaderError(
                f"{self.path} has the Iceberg table {found.table} of the catalog {found}, and the catalog {self._spec} does"
                f" not know {self._spec.table}: put that catalog back, or set spark.options as they were, or have the"
                " newest file of metadata/ registered (register_table of pyiceberg). A folder that was moved goes back to its"
                " place, which Iceberg's files name. The segments stay"
            )
        # A loader that died while it made the table has left a state and metadata that no catalog knows.
        begun = 1 in tried_batches(self.path)
        if self.path.exists():
            refuse_strangers(self.path, "of no Iceberg table", lambda name: begun and name == "metadata")

    def _check_main(self, table: Any) -> None:
        ours, batch, head = int(table.properties[SNAPSHOT]), batch_of(table), snapshot_of(table, MAIN)
        snapshots = table.metadata.snapshots
        parents = {one.snapshot_id: one.parent_snapshot_id for one in snapshots}
        marks = {one.snapshot_id: mark[0] for one in snapshots if (mark := mark_of(one)) is not None}
        found = main_is(head, ours, batch, parents, marks)
        if found is Main.IN_ORDER:
            return
        name = self._spec.table
        said = f"main of the Iceberg table {name} is at snapshot {head}, and batch {batch} at {ours}: {found.value}"
        if found is Main.UNKNOWN:
            raise LoaderError(
                f"{said}. If main goes on from there, so that no batch is missing, say so: ALTER TABLE {name} SET"
                f" TBLPROPERTIES ('{SNAPSHOT}' = '{head}') in Spark, or the same by set_properties of pyiceberg"
            )
        if ours in parents:
            log = [one.snapshot_id for one in table.metadata.snapshot_log]
            back = last_in_order(log, ours, batch, parents, marks)
            lacks = "" if back in log else f" (commits of others after batch {batch} are not in it)"
            raise LoaderError(
                f"{said}. Take it back to {back}, its last snapshot with that batch{lacks}: CALL"
                f" system.set_current_snapshot('{name}', {back}) in Spark, or"
                f" table.manage_snapshots().set_current_snapshot({back}).commit() of pyiceberg. What others have committed"
                " since main was moved is not in it. The segments stay"
            )
        raise LoaderError(
            f"{said}, which was expired: load into a new table (spark.target, spark.options.table), {CONSUME_AGAIN}"
        )

    def has(self, plan: Plan) -> bool:
        """Whether the plan became its batch, as far as snapshots still say so of one that others have gone on from: else it
        is answered by its records, which are loaded."""
        table = self.table()
        if table is None or (plan_of(table) != plan.id and _winners(table).get(plan.batch) != plan.id):
            return False
        with asked(self._spec):
            self._sync_catalog()
        return True

    def _sync_catalog(self) -> None:
        """Have what was read from a SQLite catalog survive a power failure: segments are deleted by it.

        A commit of SQLite ends with the removal of its journal, and leaves the folder to the system. A journal that is there
        again after a power failure takes the commit back. Raises OSError.
        """
        if self._spec.sqlite is not None:
            sync_path(self._spec.sqlite.resolve().parent, self._calls)

    def start(self) -> None:
        """Start what writes rows, where it is Spark."""
        if self._rows is not None:
            self._rows.start()

    def write(self, plan: Plan, staged: Staged) -> None:
        """Nothing to write ahead: rows on a branch are part of the commit."""
        check_partition_columns(self._partition_by or (), plan.columns)
        self._staged = staged

    def commit(self, plan: Plan, accounts: Accounts, told: BatchOutcomes) -> None:
        """Write the rows to the plan's branch, and have `main` moved there if the table is what the plan was made for."""
        staged, self._staged = self._staged, None
        if staged is None:
            raise RuntimeError("write() comes before commit()")
        write_before_commit(self._state_path(plan.batch, plan.id), plan, accounts, told, self.path)
        for _ in range(TRIES_MAX):
            table = self._own() or (self._there() if plan.batch > 1 else self._created(plan, staged))
            self._refuse_taken(table, plan)
            self._check_main(table)
            write_spec(self.path, self._spec)  # from here on a catalog without the table is the wrong one
            if self._tried(table, plan, staged):
                break
        else:
            raise LoaderError(
                f"the Iceberg table {self._spec.table} was changed by others {TRIES_MAX} times while batch {plan.batch} was"
                " written. The segments stay"
            )
        if not self.has(plan):
            raise LoaderError(
                f"the Iceberg catalog {self._spec} took batch {plan.batch} and does not have it: was it replaced meanwhile?"
                " The segments stay"
            )
        delete_old_states(self.path / STATE_DIR, plan, STATES_KEPT)
        if plan.batch % FAN == 0:
            self._outcomes(plan.batch).tidy(time.time(), self._keep_outcomes_s)
            if self._merges:
                self.merge(plan.batch)
            self.expire(plan.batch)
            if isinstance(self.path, HdfsPath):
                delete_old_versions(self.path, self._now_s())

    def expire(self, batch: int) -> None:
        """Take old snapshots of ours out of the metadata, which every commit reads and writes whole.

        No file is deleted, but where that is asked for: those that a merge has replaced, with the last snapshot before it.

        The table's own properties and branches say what is old (`iceberg_catalog.retention`).
        It is a transaction of its own, after the commit of `batch`. If it is refused, the next one comes FAN batches later.
        """
        import pyiceberg.table.update

        made: Any = pyiceberg.table.update
        refused: tuple[type[Exception], ...] = (LoaderError, *failures())
        try:
            folded = max((part.last for part in self._outcomes(batch).parts() if part.level > 0), default=0)
            table = self._there()
            keep = retention(table.properties, table.metadata.refs, int(self._now_s() * 1000))
            if keep is None:
                return
            snapshots = [
                Kept(
                    one.snapshot_id,
                    one.timestamp_ms,
                    made_with(one),
                    one.parent_snapshot_id,
                )
                for one in table.metadata.snapshots
            ]
            if gone := expirable(snapshots, keep, int(table.properties[SNAPSHOT]), folded):
                unneeded = self._unneeded(table, snapshots, gone)
                needed = requirements(table, table.metadata.refs)
                expiry = (made.RemoveSnapshotsUpdate(snapshot_ids=gone),)
                answer = commit_table(table, (*needed, *unchanged(table)), expiry)
                self._delete(unneeded, alone=came_next(table, answer))
        except refused as error:
            get_logger().warning("iceberg_snapshots_not_expired", table=self._spec.table, error=short(error))

    def _unneeded(self, table: Any, snapshots: Sequence[Kept], gone: Sequence[int]) -> Sequence[Path]:
        """The files that nobody can read any more when the snapshots `gone` are: merges among them have replaced them."""
        if not self._vacuums or self._java is not None:
            return ()
        merges = [one for one in gone if mark_of(table.snapshot_by_id(one)) is None]  # ours are batches or merges
        merges = superseded(merges, snapshots, gone)
        if not merges:
            return ()
        from ..iceberg_merge import replaced

        return replaced(table, merges)

    def _delete(self, unneeded: Sequence[Path], *, alone: bool) -> None:
        """Delete files with whose last snapshots the metadata was just rid of. `alone`: by a commit that nothing came before.

        Else a branch that was made meanwhile may need them. What is not deleted is nobody's business any more but that of
        `remove_orphan_files`, so it is named.
        """
        log = get_logger()
        if not unneeded:
            return
        try:
            if not alone:
                raise LoaderError("the table may have been changed while snapshots were expired")
            self._sync_catalog()  # else a power failure brings the snapshots back, without files
        except (LoaderError, OSError) as error:
            log.warning("iceberg_files_left", table=self._spec.table, files=len(unneeded), error=short(error))
            return
        for path in unneeded:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("iceberg_file_not_deleted", table=self._spec.table, file=str(path), error=short(error))

    def merge(self, batch: int) -> None:
        """Make small files into large ones, by a transaction of its own after the commit of `batch`, as a batch is committed.

        Only the loader that has the number does it. What is refused, or fails, is tried again FAN batches later: nothing but
        the work is lost.
        """
        refused: tuple[type[Exception], ...] = (LoaderError, *failures())
        log = get_logger()
        merge = None
        try:
            table = self._there()
            self._check_main(table)
            if self._added(table) < FILES_LEAST:
                return
            merge = self._merged(table, {MERGED: str(batch)})
            if merge is None:
                self._looked_at = snapshot_of(table, MAIN)
                return
            self._commit(table, requirements(table), (*merge.updates, *at(table, merge.snapshot)))
        except refused as error:
            log.warning("iceberg_files_not_merged", table=self._spec.table, error=short(error))
            if merge is not None:
                self._lost(merge, error)
        else:
            log.info("iceberg_files_merged", table=self._spec.table, files=merge.files, made=merge.made)

    def _added(self, table: Any) -> int:
        """How many files `main` has got since it was looked at, or since a merge. No file is read for it."""
        snapshots = {one.snapshot_id: one for one in table.metadata.snapshots}
        return added_files(snapshots, snapshot_of(table, MAIN), self._looked_at, MERGED)

    def _merged(self, table: Any, marks: Mapping[str, str]) -> Any:
        bounds = MergeBounds(self._file_bytes)
        if self._spark_merges is not None:
            branch = (
                f"{BRANCH}{batch_of(table):08d}-merge-{secrets.token_hex(6)}"  # that of a batch which is over: swept
            )
            merge = self._spark_merges.merged(self._there, branch, bounds, marks)
            if merge is not None and not self._goes_on_from(snapshot_of(table, MAIN), merge.snapshot, 1):
                merge.discard()
                raise LoaderError("main was moved while files were merged")
            return merge
        from ..iceberg_merge import write_merged

        return write_merged(table, bounds, marks)

    def _lost(self, merge: Any, error: Exception) -> None:
        """Delete the files of a merge that was not made. One that a server may still make, or has made, keeps them."""
        from pyiceberg.exceptions import BadRequestError, CommitFailedException

        refused: tuple[type[Exception], ...] = (LoaderError, *failures())
        try:
            table = self._there()
            is_over = isinstance(error, CommitFailedException | BadRequestError) or judges_here(table)
            if is_over and not merge.was_made(table):
                merge.discard()
        except refused as failed:
            get_logger().warning("iceberg_files_left", table=self._spec.table, error=short(failed))

    def _refuse_taken(self, table: Any, plan: Plan) -> None:
        if not plan.follows(batch_of(table), plan_of(table)):
            raise BatchTakenError(f"batch {plan.batch} of {self._spec.table} was committed by another loader")

    def _tried(self, table: Any, plan: Plan, staged: Staged) -> bool:
        """One try: whether the table is at the plan's batch now. False: others have changed it, look anew."""
        from pyiceberg.exceptions import BadRequestError, CommitFailedException

        needed = requirements(table)  # before anything is committed, after which pyiceberg's `table` is a newer one
        was, main = table.metadata.last_sequence_number, snapshot_of(table, MAIN)
        snapshot = None
        try:
            snapshot, appended = self._on_branch(table, plan, staged)
            if not self._goes_on_from(main, snapshot, appended):
                return False
            self._commit(table, needed, moves(table, plan, snapshot))
        except CommitFailedException:
            # Also after an answer was lost, and the client has asked a second time: then it is there.
            return self.has(plan)
        except failures() as error:
            if snapshot is None and isinstance(error, ValueError | BadRequestError) and self._has_more_than(was):
                # That another's snapshot has the sequence number is no conflict to pyiceberg and to servers.
                return False
            if not self.has(plan):
                raise LoaderError(
                    f"batch {plan.batch} was not put into the Iceberg table {self._spec.table}: {short(error)}"
                    f"{remedy(str(error))}. The segments stay"
                ) from None
        return True

    def _goes_on_from(self, main: int | None, snapshot: int, appended: int) -> bool:
        """Whether the snapshot has the rows of `main`, what was appended now in as many snapshots, and nothing else.

        It has not where pyiceberg has made its append a second time, as the table was changed meanwhile: the branch then
        begins with nothing, and to move `main` there would take all earlier rows out of the table; or it begins with the
        rows of a try before this one, whose request a server made late, and the batch would be in the table twice.
        """
        table = self._there()
        at: int | None = snapshot
        for _ in range(appended):
            found = None if at is None else table.snapshot_by_id(at)
            if found is None:
                return False
            at = found.parent_snapshot_id
        return at == main

    def _has_more_than(self, sequence: int) -> bool:
        """Whether a snapshot was committed after that sequence number."""
        now = self.table()
        return now is not None and bool(now.metadata.last_sequence_number > sequence)

    def _created(self, plan: Plan, staged: Staged) -> Any:
        """The table with its first snapshot, which is empty: a branch needs one to begin at."""
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
        from pyiceberg.table.update.snapshot import ManageSnapshots

        properties = {**PROPERTIES, "write.target-file-size-bytes": str(self._file_bytes)}
        marks = {BATCH: "0", PLAN: ""}
        if self._java is not None:
            with asked(self._spec), suppress(CommitFailedException, TableAlreadyExistsError):
                given = properties | {DELETE_OLD: "false"}  # iceberg_spark.py says why
                self._java.create(plan.columns, self._partition_by or (), given, TAG, marks, SNAPSHOT)
            return self._there()
        rows = numbered_rows(staged.files, plan.batch).schema
        schema = pa.schema([field.with_nullable(True) for field in rows])
        with asked(self._spec):
            namespace = self._spec.table.rpartition(".")[0]
            try:
                self._catalog.create_namespace_if_not_exists(namespace)
            except failures():  # another loader makes it in this moment, which SQL catalogs report as they like
                if not self._catalog.namespace_exists(namespace):
                    raise
            try:
                making = self._catalog.create_table_transaction(
                    self._spec.table, schema, location=location_of(Path(str(self.path))), properties=properties
                )
                with making.update_spec() as spec:
                    for name in self._partition_by or ():
                        spec.add_identity(name)
                with making.update_snapshot(snapshot_properties=marks).fast_append() as empty:
                    first = empty.snapshot_id
                with ManageSnapshots(making) as refs:
                    refs.create_tag(first, TAG)
                making.set_properties({**marks, SNAPSHOT: str(first)})
                making.commit_transaction()
            except (CommitFailedException, TableAlreadyExistsError):
                pass  # another loader was first: what it has made is looked at next
        return self._there()

    def _on_branch(self, table: Any, plan: Plan, staged: Staged) -> tuple[int, int]:
        """Write the rows to the plan's branch, which begins at `main`; its snapshot, and of how many it should consist.

        `main` is not touched by that.
        """
        from pyiceberg.table.update.snapshot import ManageSnapshots

        branch = BRANCH + plan.id
        if branch in table.refs():  # of a try before this one, perhaps of a process that is dead
            table.manage_snapshots().remove_branch(branch).commit()
        rows = fitted_rows(table, staged.files, plan.batch)
        marks = {BATCH: str(plan.batch), PLAN: plan.id}
        writing = table.transaction()
        with ManageSnapshots(writing) as refs:
            refs.create_branch(table.refs()[MAIN].snapshot_id, branch)
        with writing.update_schema() as schema:
            added = add_columns(table, schema, rows.schema)
        if self._rows is not None:
            writing.commit_transaction()
            self._log_added(added)
            return self._rows.append(self._there, plan, staged, branch, marks), 1
        appended = 0
        for piece in (rows,) if table.spec().is_unpartitioned() else pieces(rows):
            writing.append(piece, snapshot_properties=marks, branch=branch)
            appended += 1
        made = writing.commit_transaction()
        self._log_added(added)
        return int(made.refs()[branch].snapshot_id), appended

    def _log_added(self, columns: Sequence[str]) -> None:
        for name in columns:  # also one that others have renamed or dropped, and that comes back by this name
            get_logger().info("iceberg_column_added", table=self._spec.table, column=name)

    def outcomes(self, above: int = 0) -> Iterator[BatchOutcomes]:
        """What is kept of all commits."""
        return iter(self.levels().read(above))

    def levels(self) -> OutcomeLevels:
        """The files that have them."""
        table = self.table()
        return self._outcomes(0 if table is None else batch_of(table))

    def _outcomes(self, batch: int) -> OutcomeLevels:
        return ledger_outcomes(self.path / STATE_DIR, batch, winner=self._winner)

    def _winner(self, batch: int, tried: Sequence[str]) -> str:
        table = self.table()
        found = None if table is None else _winners(table).get(batch)
        if found in tried:
            return str(found)
        raise LoaderError(
            f"no snapshot of the Iceberg table {self._spec.table} says which plan became batch {batch}, so it is unknown"
            f" which outcomes count: keep one file {batch}-<plan>.json.gz in {self.path / STATE_DIR / 'outcomes'}"
        )

    def discard(self, plan: Plan) -> None:
        """Delete the branch, the state file and the outcomes of a plan whose number is another plan's.

        While the number is free they stay: a transaction that a dead loader has sent may still be made, and would be a batch
        without a state. Whoever gets the number deletes them.
        """
        table = self.table()
        if table is None or plan.batch > batch_of(table):
            return
        if _winners(table).get(plan.batch, plan.id) != plan.id:
            self._state_path(plan.batch, plan.id).unlink(missing_ok=True)
            outcomes_path(self.path / STATE_DIR, plan).unlink(missing_ok=True)
        self.sweep()

    def sweep(self) -> None:
        """Delete the branches of plans whose numbers are gone. Their files are Iceberg's to delete, with the snapshots."""
        from pyiceberg.exceptions import CommitFailedException

        table = self.table()
        if table is None:
            return
        gone = [name for name in table.refs() if is_over(name, batch_of(table))]
        if not gone:
            return
        with asked(self._spec):
            removing = table.manage_snapshots()
            for name in gone:
                removing = removing.remove_branch(name)
            with suppress(CommitFailedException):  # another loader sweeps too, or commits; the next start does it
                removing.commit()

    def close(self) -> None:
        """Nothing is held: the catalog is closed after each look."""

    def files(self) -> list[Path]:
        """The data files of the table as it is. Raises LoaderError, UsageError where rows of them were deleted since."""
        table = self.table()
        return [] if table is None else data_files(table)

    def _state_path(self, batch: int, plan_id: str) -> Path | HdfsPath:
        return self.path / STATE_DIR / f"{batch}-{plan_id}.json"


def opened(folder: Path) -> IcebergTarget:
    """The table in `folder`, by the catalog that it was loaded through. Raises UsageError, LoaderError."""
    return IcebergTarget(folder, read_spec(folder))


def _winners(table: Any) -> dict[int, str]:
    """The plans that became batches, as far back as snapshots are kept."""
    snapshots = {one.snapshot_id: one for one in table.metadata.snapshots}
    found = {batch_of(table): plan_of(table)}
    at = snapshots.get(int(table.properties[SNAPSHOT]))
    while at is not None:
        mark = mark_of(at)
        if mark is not None:
            found.setdefault(*mark)
        at = snapshots.get(at.parent_snapshot_id)
    return found


def data_files(table: Any) -> list[Path]:
    """The data files of `main`. Raises UsageError where rows of them were deleted by files of deletes."""
    tasks = list(table.scan().plan_files())
    if any(task.delete_files for task in tasks):
        raise UsageError(
            f"{'.'.join(table.name())} has files of deleted rows, which are only understood with its data: have Spark merge"
            " them (CALL system.rewrite_data_files), then try again"
        )
    return [local_path(task.file.file_path) for task in tasks]
