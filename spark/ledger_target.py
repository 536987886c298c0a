"""Targets that cannot say what they hold: a user's function (`foreach`), or any format that `df.write` knows.

The loaded set lies in a ledger beside the segments, written after the rows. A crash between the two runs the same plan
again: the same rows under the same batch number. So a function that does nothing for a number it knows, or a table with
a key, gives an exactly-once effect; plain appending gives *at least once*, and says so here.

    STAGING/ledger/state.json      the state after the last batch
    STAGING/ledger/<hash>.lock     flock: one loader per destination on this machine. N supervisors that load into one
                                   destination share one staging folder, and so one loader
"""

from __future__ import annotations

import hashlib
import inspect
import pkgutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..remoting.errors import UsageError
from .convert import Staged
from .errors import LoaderError
from .files import make_folders, try_lock
from .intervals import OffsetSet
from .outcomes import BatchOutcomes
from .plan import Plan
from .spark_writer import SparkWriter, numbered
from .table_state import read_state, write_outcomes, write_state
from .target import TableState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE_PREFIX = "table:"


class Range(NamedTuple):
    """Offsets `[start, end)` of one queue that are new with a batch; gaps between them are not shown.

    `epoch`: how often the queue's offsets began anew (`spark.on_recreated`, `reset --reprocess`); in the rows it is `_epoch`.
    """

    group: str
    topic: str
    broker: str
    queue_id: int
    start: int
    end: int
    epoch: int = 0


Deliver = Callable[["DataFrame", int, list[Range]], None]
"""Takes the rows, the batch's number and its offsets. It may be called twice with the same number and rows."""


class LedgerTarget:
    """`deliver` gets the rows; the ledger in `folder` remembers them. `destination` names what is delivered to."""

    def __init__(self, folder: Path, destination: str, writer: SparkWriter, deliver: Deliver) -> None:
        self._folder = folder
        self._destination = destination
        self._writer = writer
        self._deliver = deliver
        self._state_path = folder / "state.json"
        self._ranges: list[Range] = []
        self._staged: Staged | None = None
        self._lock: int | None = None

    def state(self) -> TableState:
        """The state after the last batch that the ledger knows. Raises LoaderError."""
        self._claim()
        if not self._state_path.exists():
            return TableState(0, "", OffsetSet(), ())
        return read_state(self._state_path)

    def _claim(self) -> None:
        """Be the destination's only loader on this machine, as two ledgers would each load what the other has."""
        if self._lock is not None:
            return
        name = f"rocketcrew-{hashlib.sha256(self._destination.encode()).hexdigest()[:24]}.lock"
        self._lock = try_lock(Path(tempfile.gettempdir()) / name)
        if self._lock is None:
            raise LoaderError(
                f"another loader delivers to {self._destination!r}, which can't tell what it holds: let supervisors share"
                " one staging folder and its one loader, or use the formats parquet, delta or deltalake"
            )

    def has(self, plan: Plan) -> bool:
        """Whether the ledger's last batch is this plan."""
        return self.state().plan_id == plan.id

    def start(self) -> None:
        """Start Spark."""
        self._writer.start()

    def write(self, plan: Plan, staged: Staged) -> None:
        """Nothing can be written ahead."""
        del plan
        self._staged = staged

    def commit(self, plan: Plan, loaded: OffsetSet, told: BatchOutcomes) -> None:
        """Deliver the rows, then note it."""
        if self._staged is None:
            raise RuntimeError("write() comes before commit()")
        ranges = _ranges_of(loaded - self.state().loaded)

        def deliver(frame: DataFrame) -> None:
            self._deliver(frame, plan.batch, ranges)

        self._writer.run(self._staged.files, plan.columns, f"batch {plan.batch} to {self._destination}", deliver)
        self._staged = None
        make_folders(self._folder)
        write_outcomes(self._folder, plan, told)
        write_state(self._state_path, plan, loaded, told.rows, durable=True)

    def discard(self, plan: Plan) -> None:
        """Nothing of a plan is left anywhere but at the destination."""

    def sweep(self) -> None:
        """Nothing is left lying."""


def _ranges_of(taken: OffsetSet) -> list[Range]:
    hulls = ((key, offsets.hull().pieces[0]) for key, offsets in sorted(taken.queues.items()) if offsets)
    return [Range(*key[:4], start, end, key.epoch) for key, (start, end) in hulls]


def deliver_by_function(name: str) -> Deliver:
    """The user's function `module:function(df, batch_id[, ranges])`. Raises UsageError when there is none such."""
    function = _found(name)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    takes_all = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    if len(positional) < 2 and not takes_all:
        raise UsageError(f"spark.function {name} must take (df, batch_id) or (df, batch_id, ranges)")

    def deliver(frame: DataFrame, batch: int, ranges: list[Range]) -> None:
        function(*((frame, batch, ranges) if takes_all or len(positional) > 2 else (frame, batch)))

    return deliver


def _found(name: str) -> Callable[..., Any]:
    try:
        function: object = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"spark.function {name!r} can't be found ({error}): write it as package.module:function, importable from here"
        ) from None
    if not callable(function):
        raise UsageError(f"spark.function {name!r} is no function but a {type(function).__name__}")
    return function


def deliver_by_format(
    format_: str, target: str, options: Mapping[str, str], partition_by: Sequence[str] = ()
) -> Deliver:
    """Appends through `df.write.format(…)`; the rows carry their batch's number."""

    def deliver(frame: DataFrame, batch: int, _ranges: list[Range]) -> None:
        writing = numbered(frame, batch).write.format(format_).mode("append").options(**options)
        if partition_by:
            writing = writing.partitionBy(*partition_by)
        if target.startswith(TABLE_PREFIX):
            writing.saveAsTable(target.removeprefix(TABLE_PREFIX))
        elif target:
            writing.save(target)
        else:
            writing.save()

    return deliver
