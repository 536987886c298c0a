"""The Parquet table: a folder with one folder per batch, made visible by one rename.

    TARGET/batch_id=1/part-….parquet      the rows; with spark.partition_by in folders of their own, batch_id=1/day=…/
    TARGET/batch_id=1/_loaded.json        the table's state after batch 1, in the newest batches
    TARGET/batch_id=1/_outcomes.json.gz   what became of the records that were loaded or noted with batch 1
    TARGET/_outcomes/                      the same of older batches, in files of many (outcome_levels.py)
    TARGET/batch_id=2/…
    TARGET/_tmp/…                          a batch being written; readers ignore names that start with an underscore

Why one rename is enough: the state file lies inside the folder with the data, so both appear together or not at all.
The rename fails where that batch is there already, so of two loaders that want to be batch 7 one gets it and the other
knows. Any reader of Parquet folders (Spark, pyarrow, DuckDB) sees whole batches only, and gets `batch_id` as a partition
column. The state of the table is the state file of the highest batch.

Only for file systems whose rename is atomic. What differs between them is a `TableFolder`: local_folder.py for a folder of
this host (local disks, NFS with one client, HDFS through a mount), hdfs_folder.py for `hdfs://`. Not object stores.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Protocol, TypeVar, cast

from ...conf.columns import BATCH_COLUMN, check_partition_columns
from ...durable.intervals import OffsetSet
from ...durable.outcomes import BatchOutcomes
from ...remoting.errors import UsageError
from ..accounts import Accounts
from ..convert import Staged
from ..errors import BatchTakenError, LoaderError
from ..object_store import STATE_DIR, Place
from ..outcome_levels import FAN, OutcomeLevels, Part
from ..plan import Plan
from ..table_columns import refuse_strangers, tried_batches
from ..table_state import check_partitions, look, read_state, write_state
from .target import TableState, Writer

STATE_FILE = "_loaded.json"
OUTCOMES_FILE = "_outcomes.json.gz"
OUTCOMES_FOLDER = "_outcomes"
_BATCH_NAME = re.compile(BATCH_COLUMN + r"=([1-9]\d*)")
AnyPlace = TypeVar("AnyPlace", bound=Place)


class TableFolder(Protocol):
    """A table's folder on its file system: the steps of a commit that are not the same on all of them.

    Whatever fails raises OSError, UsageError or LoaderError.
    """

    @property
    def path(self) -> Place:
        """The table's folder, which may be missing."""
        ...

    def identity(self) -> object:
        """What the folder is known by, None when there is none. When it changes, the batches are listed anew."""
        ...

    def prepare(self, plan: Plan) -> Place:
        """A place to write the plan's files to: no reader sees it, nothing is in it, and it stays ours until `release`."""
        ...

    def writing(self, output: Place) -> AbstractContextManager[None]:
        """Around the writing of the data files."""
        ...

    def rows(self, output: Place) -> int:
        """How many rows the data files hold that were written to `output`, by their footers."""
        ...

    def make_durable(self, output: Place) -> None:
        """Have all that was written survive a power failure."""
        ...

    def publish(self, output: Place, batch: Place) -> None:
        """Rename what was made durable to `batch`. Raises FileExistsError when that is there."""
        ...

    def sync(self) -> None:
        """Have the names of the batches that are there survive a power failure: who renamed one may have died before."""
        ...

    def release(self, plan: Plan) -> None:
        """The plan is written no more: leave nothing of `prepare` but what was published."""
        ...

    def discard(self, plan: Plan) -> None:
        """Delete what was written of the plan and is not published."""
        ...

    def sweep(self) -> None:
        """Delete what loaders that are dead left unpublished."""
        ...

    def close(self) -> None:
        """Give back the locks of what was prepared, and leave the rest to the sweep."""
        ...


class ParquetTarget:
    """A table in `folder`, whose files `writer` writes."""

    def __init__(
        self, folder: TableFolder, writer: Writer, partition_by: Sequence[str] = (), keep_outcomes_s: float = math.inf
    ) -> None:
        """`writer` makes the folders of `partition_by`; a table keeps what it began with."""
        self._folder = folder
        self.path = folder.path
        self._partition_by = tuple(partition_by)
        self._writer = writer
        self._newest = 0
        self._identity: object = None
        self._read: tuple[tuple[int, tuple[int, int] | None], TableState] | None = None
        self._keep_outcomes_s = keep_outcomes_s
        self._table = ""
        """Of the state that was read last."""
        self._output: Place | None = None
        """Where the plan that was written last waits for its commit."""

    def state(self) -> TableState:
        """The state after the highest batch. Raises LoaderError when that can't be read."""
        batch = self._own()
        if not batch:
            return TableState(0, "", OffsetSet(), ())
        state = with_id(self.path, self._read_state(batch))
        check_partitions(self.path, self._partition_by, state.partition_by)
        self._table = state.table
        return state

    def _read_state(self, batch: int) -> TableState:
        """The state file of the batch; one that was read before is not parsed again, for it never changes."""
        path = batch_folder(self.path, batch) / STATE_FILE
        seen = look(path)
        if seen is None or self._read is None or self._read[0] != (batch, seen):
            self._read = ((batch, seen), read_state(path))
        return self._read[1]

    def _own(self) -> int:
        """The highest batch; 0 where there is none, and nothing of others in the folder. Raises UsageError."""
        if (batch := self._last_batch()) or not self.path.exists():
            return batch
        self._refuse_foreign()
        # What was passed over as a batch may be of another loader that has made the table since we looked.
        return self._last_batch()

    def _refuse_foreign(self) -> None:
        """Rows of somebody else beside ours would be read as one table, or make both unreadable."""
        refuse_strangers(self.path, "no batch", _BATCH_NAME.fullmatch)
        if tried_batches(self.path):
            raise UsageError(
                f"the table folder {self.path} has the beginnings of a table of another spark.format in {STATE_DIR}, whose"
                " rows would stand beside these: give the path of a new folder, or delete this one if nothing loads into it"
            )

    def _last_batch(self) -> int:
        """The highest batch, by a look at the numbers after the one that is known: a listing costs more with each batch.

        Numbers are given one after the other. Only a compaction leaves some out, and it exchanges the folder: then, and
        when the known batch is gone, the folder is listed.
        """
        identity = self._folder.identity()
        if identity is None:
            self._newest, self._identity = 0, None
            return 0
        if identity != self._identity or not (self._newest and batch_folder(self.path, self._newest).exists()):
            self._newest, self._identity = last_batch(self.path), identity
        while batch_folder(self.path, self._newest + 1).exists():
            self._newest += 1
        return self._newest

    def has(self, plan: Plan) -> bool:
        """Whether batch `plan.batch` is this plan: it is the only number that a plan can ever get.

        One of long ago, whose state file is gone, is answered by its records: they are loaded. Its segments are deleted by a
        yes, so the rename is on the disk by then.
        """
        folder = batch_folder(self.path, plan.batch)
        if plan.batch < self._last_batch() and not (folder / STATE_FILE).exists():
            return False
        if not folder.exists() or self._read_state(plan.batch).plan_id != plan.id:
            return False
        self._folder.sync()
        return True

    def start(self) -> None:
        """Start the writer."""
        self._writer.start()

    def write(self, plan: Plan, staged: Staged) -> None:
        """Have the writer make the data files, fsyncing those that are finished while others are still written.

        Raises BatchTakenError when the table is no more what the plan was made on: a compaction may have merged away the
        plan's own number with its neighbours, and the rename would find the place free. From here to the commit none can.
        """
        check_partition_columns(self._partition_by, plan.columns)
        with self._unlocked_when_failed(plan):
            output = self._output = self._folder.prepare(plan)
            if not self._is_next(plan):
                raise _taken(self.path, plan)
            with self._folder.writing(output):
                self._writer.write(staged.files, output, plan.columns, staged.bytes)
            written = self._folder.rows(output)
            if written != staged.rows:
                raise LoaderError(f"{output} holds {written} rows, but {staged.rows} were to be written: not committed")

    @contextmanager
    def _unlocked_when_failed(self, plan: Plan) -> Generator[None]:
        """A compaction waits for the locks; whoever tries again takes them anew. What lost its number is of no use."""
        try:
            yield
        except BatchTakenError:
            self._folder.discard(plan)
            raise
        except BaseException:
            self._folder.close()
            raise

    def _is_next(self, plan: Plan) -> bool:
        batch = self._last_batch()
        return plan.follows(batch, self._read_state(batch).plan_id if batch else "")

    def commit(self, plan: Plan, accounts: Accounts, told: BatchOutcomes) -> None:
        """Rename the written folder to the plan's batch; see the top of this file."""
        output, self._output = self._output, None
        assert output is not None, "write() comes before commit()"
        with self._unlocked_when_failed(plan):
            try:
                self._publish(output, plan, accounts, told)
            except FileExistsError:
                raise _taken(self.path, plan) from None
            except FileNotFoundError:
                if self._is_next(plan):
                    raise
                raise BatchTakenError(
                    f"{self.path} was removed or replaced while batch {plan.batch} was written"
                ) from None
            self._tidy(plan)
        self._folder.release(plan)

    def _publish(self, output: Place, plan: Plan, accounts: Accounts, told: BatchOutcomes) -> None:
        write_state(
            output / STATE_FILE, plan, accounts, told.rows or 0, durable=False, partition_by=self._partition_by,
            table=plan.id if plan.batch == 1 else self._table,
        )  # fmt: skip
        (output / OUTCOMES_FILE).write_bytes(told.pack())
        self._folder.make_durable(output)
        if plan.batch == 1:
            self._look_again(plan)
        self._folder.publish(output, batch_folder(self.path, plan.batch))

    def _look_again(self, plan: Plan) -> None:
        """No table of another format may have come into the folder since the plan was made. A loader of one writes a state
        before it looks for our batches, so both commit only if all of that falls between this look and our rename."""
        try:
            self._refuse_foreign()
        except UsageError:
            self._folder.discard(plan)  # the folder is another table's: nobody sweeps it for us
            raise

    def _tidy(self, plan: Plan) -> None:
        if plan.batch % FAN == 0:  # before `release`: no compaction takes the folder away meanwhile
            self._outcomes(plan.batch).tidy(time.time(), self._keep_outcomes_s)
            for old in range(max(1, plan.batch - 2 * FAN), plan.batch - FAN):  # FAN of them at least stay
                (batch_folder(self.path, old) / STATE_FILE).unlink(missing_ok=True)

    def outcomes(self, above: int = 0) -> Iterator[BatchOutcomes]:
        """What is kept of all commits."""
        return iter(self._outcomes(self._last_batch()).read(above))

    def _outcomes(self, newest: int) -> OutcomeLevels:
        return folder_outcomes(self.path, newest)

    def discard(self, plan: Plan) -> None:
        """Delete what was written of the plan."""
        self._folder.discard(plan)

    def sweep(self) -> None:
        """Delete what dead loaders left unfinished, also those of staging folders that are gone."""
        self._folder.sweep()

    def close(self) -> None:
        """Give back the folder's locks."""
        self._folder.close()


def _taken(table: Place, plan: Plan) -> BatchTakenError:
    return BatchTakenError(f"another loader has committed batch {plan.batch} of {table}")


def batch_folder(table: AnyPlace, batch: int) -> AnyPlace:
    """Where that batch of the folder `table` is."""
    return cast("AnyPlace", table / f"{BATCH_COLUMN}={batch}")


def with_id(table: Place, state: TableState) -> TableState:
    """The newest state of the folder `table`, with the table's id where an earlier version has written it, which knew none
    (nor `plans`): the first batch tells it until its state file is deleted, then the last one before that has it."""
    before = range(state.batch - 1, max(1, state.batch - FAN), -1)
    for batch in () if state.table or state.plans else (1, *before):
        with suppress(LoaderError):  # deleted, or merged away
            one = read_state(batch_folder(table, batch) / STATE_FILE)
            if found := one.plan_id if batch == 1 else one.table:
                return replace(state, table=found)
    return state


def last_batch(table: Place) -> int:
    """The highest batch number in the folder `table`, 0 when there is none or no folder."""
    return max(batch_folders(table), default=0)


def batch_folders(table: AnyPlace) -> dict[int, AnyPlace]:
    """Every batch of the folder `table` by its number, in order; none when there is no folder. Raises UsageError."""
    try:
        names = [(_BATCH_NAME.fullmatch(entry.name), cast("AnyPlace", entry)) for entry in table.iterdir()]
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"the table folder {table} can't be read: {error}") from None
    return dict(sorted((int(match[1]), entry) for match, entry in names if match))


def folder_outcomes(table: Place, newest: int, fan: int = FAN) -> OutcomeLevels:
    """The outcomes of the batches up to `newest` of the folder `table`."""

    def singles(above: int) -> Iterator[Part]:
        for batch in range(max(1, above + 1), newest + 1):
            folder = batch_folder(table, batch)
            if (folder / OUTCOMES_FILE).exists():
                yield Part(batch, batch, 0, folder / OUTCOMES_FILE)
            elif folder.exists():
                yield Part(batch, batch, 0, None)

    return OutcomeLevels(table / OUTCOMES_FOLDER, singles, fan)
