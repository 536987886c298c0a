"""What the loader asks of a table: the one place where "exactly once" is decided.

A target keeps the *loaded set* with the data (as accounts.py has it) and changes both in one step that either happens or
does not. From that alone follows the promise, whatever crashes: before `commit` nothing of a plan is visible, after it the
loaded set drops whatever comes again. Numbers of batches are claimed by that same step, so that two loaders (two
supervisors on two state folders) may load one table: the later one gets BatchTakenError, reads the table anew, and plans
again.

    parquet      parquet.py   a folder per batch, visible by one rename that carries the loaded set; also on HDFS
    pyarrow      parquet.py   the same table, its files written by Arrow: no JVM, several times as fast on one machine
    delta        delta.py     Spark's Delta commit, numbered by a transaction id of the application
    deltalake    delta.py     the same commit by delta-rs: no JVM, small batches cheap
    iceberg      iceberg.py   one transaction of an Iceberg catalog, by pyiceberg: no JVM
    any other    ledger.py    a user's function or any format of `df.write`: the loaded set is stored apart, so a crash
                              between the two repeats one batch: the same rows with the same number
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from ...conf.columns import Column
from ...durable.intervals import OffsetSet, QueueKey
from ...durable.outcomes import BatchOutcomes
from ..accounts import Accounts
from ..connect import ConnectSession
from ..convert import Staged
from ..epochs import opened
from ..object_store import Place
from ..plan import Plan, Top
from ..session import Session

PLANS_KEPT: Final = 64
"""That many plan ids are 1.5 KB of a state."""


@dataclass(frozen=True, slots=True)
class TableState:
    """The table after its last batch: `batch` 0 means that there is none yet."""

    batch: int
    plan_id: str
    loaded: OffsetSet
    columns: tuple[Column, ...]
    tops: Mapping[QueueKey, Top] = field(default_factory=dict[QueueKey, Top])
    partition_by: tuple[str, ...] = ()
    holes: OffsetSet = field(default_factory=OffsetSet)
    """Per queue one interval: of offsets in it some may not be loaded although `loaded` has them (accounts.py)."""
    table: str = ""
    """What tells the table from another one that was made at its place: Delta's and Iceberg's own id, in a Parquet table the
    id of its first plan. Empty: not known, as in Parquet tables whose first batches were of earlier versions."""
    plans: tuple[str, ...] = ()
    """The ids of the plans of the batches before it, the newest last: of PLANS_KEPT at most, of fewer where earlier versions
    have made some of them. They tell a table from a copy of it that others have gone on with."""
    others: tuple[Column, ...] = ()
    """What the table has beside `columns`, of which no batch of ours has brought any."""

    @property
    def epochs(self) -> dict[QueueKey, int]:
        """The newest epoch of each queue that is not in its first, by its key in epoch 0."""
        return opened(self.loaded.queues)

    @property
    def newest_plans(self) -> tuple[str, ...]:
        """What the next state has as its `plans`."""
        return (*self.plans, self.plan_id)[-PLANS_KEPT:] if self.batch else ()

    def plan_of(self, batch: int) -> str:
        """The id of the plan that became `batch`; empty: not known."""
        told, back = (*self.plans, self.plan_id), self.batch - batch
        return told[-1 - back] if 0 <= back < len(told) else ""

    def exactly(self, open_holes: OffsetSet) -> TableState:
        """The same with these holes open, and no others."""
        return replace(self, loaded=self.loaded - open_holes, holes=open_holes.hull())


class Target(Protocol):
    """A table that can take batches exactly once."""

    def state(self) -> TableState:
        """Read the table's state. Raises LoaderError when it is not one of ours or damaged."""
        ...

    def has(self, plan: Plan) -> bool:
        """Whether this very plan is committed: the question after a crash."""
        ...

    def start(self) -> None:
        """Be ready to write; slow the first time (Spark starts). Raises SparkStartError."""
        ...

    def write(self, plan: Plan, staged: Staged) -> None:
        """Write the rows where no reader sees them. Anything left there by an earlier try is replaced.

        Raises BatchTakenError when it is clear already that the batch's number is gone.
        """
        ...

    def commit(self, plan: Plan, accounts: Accounts, told: BatchOutcomes) -> None:
        """Make rows and state visible in one step, the list of outcomes beside them.

        Raises BatchTakenError when the batch number is gone.
        """
        ...

    def outcomes(self, above: int = 0) -> Iterator[BatchOutcomes]:
        """What the commits after batch `above` have noted and is still kept, in order: read from files when it is needed.

        Where files have been merged, earlier ones may be among them. Raises LoaderError.
        """
        ...

    def discard(self, plan: Plan) -> None:
        """Delete what `write` left of a plan that won't be committed."""
        ...

    def sweep(self) -> None:
        """Delete what loaders that are dead left unfinished; those that live may be at work."""
        ...

    def close(self) -> None:
        """Give back every lock, as the end of the process would: what is unfinished is another start's to sweep."""
        ...


class Engine(Protocol):
    """What does the writing: started when the first batch is there, cancelled when there is no time left."""

    @property
    def session(self) -> Session | ConnectSession | None:
        """The Spark that runs; None before `start`, and of an engine that has none."""
        ...

    @property
    def start_seconds(self) -> float:
        """What `start` took the first time, 0 before."""
        ...

    def check(self) -> None:
        """Look, cheaply, whether `start` has a chance, or whether what was started is still there. Raises LoaderError."""
        ...

    def start(self) -> None:
        """Be ready to write; slow the first time. Raises SparkStartError."""
        ...

    def cancel(self) -> None:
        """Make a running job end soon; called from another thread, harmless when none runs."""
        ...

    def tasks(self) -> tuple[int, int]:
        """Tasks done, and tasks in all, of the job that runs; 0 and 0 when none does, or nobody can tell.

        Called from another thread; blocks while a JVM hangs.
        """
        ...

    def close(self) -> None:
        """End whatever `start` started; bounded, and never raises."""
        ...


class Writer(Engine, Protocol):
    """Turns staged Parquet files into the table's data files. Spark, or Arrow."""

    def write(self, files: Sequence[Path], output: Place, columns: Sequence[Column], bytes_in: int) -> None:
        """Write all rows of `files` as Parquet files of `columns` into the folder `output`, replacing what is there.

        Raises SparkDiedError, StoppedError after `cancel`, LoaderError for anything else.
        """
        ...
