"""Targets that cannot say what they hold: a user's function (`foreach`), or any format that `df.write` knows.

The loaded set lies in a ledger beside the segments, written after the rows. A crash between the two runs the same plan
again: the same rows under the same batch number. So a function that does nothing for a number it knows, or a table with
a key, gives an exactly-once effect; plain appending gives *at least once*, and says so here.

    STAGING/ledger/state.json      the state after the last batch
    STAGING/ledger/id              what tells the ledger from others, whose batches have the same numbers
    STAGING/ledger.at              of a further staging folder: where the ledger is
    <place>/.rocketcrew-<hash>.lock  flock: one loader per destination, see `lock_paths`. N supervisors that fill one
                                   destination run without a loader, and one loader has all of their folders
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import math
import os
import pkgutil
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...conf.segment_format import LEDGER_AT, LEDGER_DIR, LEDGER_ID, LEDGER_STATE
from ...durable.files import make_folders, try_lock, write_atomically
from ...durable.intervals import OffsetSet
from ...durable.outcomes import BatchOutcomes
from ...remoting.errors import UsageError
from ..accounts import Accounts
from ..convert import Staged
from ..errors import LoaderError
from ..ledger_place import is_begun, known_ledger
from ..outcome_levels import FAN
from ..plan import Plan
from ..spark_writer import SparkWriter, numbered, partitioned
from ..table_state import ledger_outcomes, read_state, tried_outcomes, write_outcomes, write_state
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


Deliver = Callable[["DataFrame", int, list[Range], str], None]
"""Takes the rows, the batch's number, its offsets and the ledger's id. It may be called twice with the same id, number and
rows; another ledger, as of a staging folder that began anew, has another id and counts from 1 again."""


class LedgerTarget:
    """`deliver` gets the rows; the ledger in `folder` remembers them. `destination` names what is delivered to."""

    def __init__(
        self, folder: Path, destination: str, writer: SparkWriter, deliver: Deliver, place: str = "",
        keep_outcomes_s: float = math.inf, shown: str = "",
    ) -> None:  # fmt: skip
        """`place`: what the rows are saved to, where that is a path. `shown`: the destination without secrets, for messages
        and Spark's pages."""
        self._folder = folder
        self._keep_outcomes_s = keep_outcomes_s
        self._lock_paths = lock_paths(destination, place, folder)
        self._destination = shown or destination
        self._writer = writer
        self._deliver = deliver
        self._state_path = folder / LEDGER_STATE
        self._ranges: list[Range] = []
        self._staged: Staged | None = None
        self._locks: list[int] = []

    def state(self) -> TableState:
        """The state after the last batch that the ledger knows. Raises LoaderError."""
        self._claim()
        if not self._state_path.exists():
            return TableState(0, "", OffsetSet(), ())
        return read_state(self._state_path)

    def _claim(self) -> None:
        """Be the destination's only loader on this machine, as two ledgers would each load what the other has."""
        if self._locks:
            return
        try:
            for path in self._lock_paths:
                self._locks.append(self._locked(path))
        except BaseException:  # one of two locks is none
            self.close()
            raise

    def _locked(self, path: Path) -> int:
        try:
            make_folders(self._folder.parent)  # by the name that was given: a link to a disk that isn't there stays one
            lock = try_lock(path)
        except OSError as error:
            raise LoaderError(
                f"the lock {path} can't be used: {error.strerror}. The loader must be able to write it. One that another user"
                " has left may be removed while no loader runs"
            ) from None
        if lock is None:
            raise LoaderError(
                f"another loader delivers to {self._destination!r}, which can't tell what it holds (it has the lock {path})."
                " Run supervisors with spark.load = false and one loader for all: rocketcrew load --follow --staging A"
                " --staging B; or use the formats parquet, pyarrow, delta, deltalake or iceberg"
            )
        return lock

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

    def commit(self, plan: Plan, accounts: Accounts, told: BatchOutcomes) -> None:
        """Deliver the rows, then note it."""
        if self._staged is None:
            raise RuntimeError("write() comes before commit()")
        ranges, ledger_id = _ranges_of(accounts.new), _id_of(self._folder)

        def deliver(frame: DataFrame) -> None:
            self._deliver(frame, plan.batch, ranges, ledger_id)

        self._writer.run(self._staged.files, plan.columns, f"batch {plan.batch} to {self._destination}", deliver)
        self._staged = None
        make_folders(self._folder)
        for other in tried_outcomes(self._folder, plan.batch).values():  # of plans that never came to an end
            other.unlink()
        write_outcomes(self._folder, plan, told)
        write_state(self._state_path, plan, accounts, told.rows or 0, durable=True)
        if plan.batch % FAN == 0:
            ledger_outcomes(self._folder, plan.batch).tidy(time.time(), self._keep_outcomes_s)

    def outcomes(self, above: int = 0) -> Iterator[BatchOutcomes]:
        """What is kept of all commits."""
        return iter(ledger_outcomes(self._folder, self.state().batch).read(above))

    def discard(self, plan: Plan) -> None:
        """Nothing of a plan is left anywhere but at the destination."""

    def sweep(self) -> None:
        """Nothing is left lying."""

    def close(self) -> None:
        """Let the destination's next loader in, which may be one of this process."""
        while self._locks:
            os.close(self._locks.pop())


def ledger_of(stagings: Sequence[Path]) -> Path:
    """The one ledger of these staging folders: in the first, or where an earlier loader of one of them had it.

    The other folders get a file that says where it is, so that a loader of one of them alone, later, finds it; what it names
    has its id by then. Raises UsageError when two have ledgers of their own, as what the one has delivered the other would
    deliver again; or when the ledger of one is gone, as with a disk that is not mounted.
    """
    each = [known_ledger(staging) for staging in stagings]
    for staging, path in zip(stagings, each, strict=True):
        if path is not None and not is_begun(path):
            raise UsageError(
                f"the ledger {path} of {staging} is out of reach: neither {LEDGER_ID} nor {LEDGER_STATE} is there. It tells"
                f" what was delivered: have it there again; or write its new path into {staging / LEDGER_AT}; or delete that"
                " file, to begin with a new ledger and batch 1"
            )
    paths = [path for path in each if path is not None]
    known = {path.resolve(): path for path in reversed(paths)}  # one that has two names is one
    if len(known) > 1:
        raise UsageError(
            f"the ledgers {', '.join(map(str, sorted(known.values())))} each know a part of what was delivered: load each"
            " folder by itself, or begin with staging folders that no loader has worked on"
        )
    ledger = paths[0] if paths else stagings[0].absolute() / LEDGER_DIR
    for staging, path in zip(stagings, each, strict=True):
        if path is None and (staging / LEDGER_DIR).resolve() != ledger.resolve():
            _id_of(ledger)
            make_folders(staging)
            write_atomically(staging / LEDGER_AT, f"{ledger}\n", durable=True)
    return ledger


def _id_of(ledger: Path) -> str:
    """The ledger's id, on the disk before it is given to anybody."""
    path = ledger / LEDGER_ID
    with contextlib.suppress(FileNotFoundError):
        if known := path.read_text(encoding="utf-8").strip():
            return known
    make_folders(ledger)
    made = secrets.token_hex(8)
    write_atomically(path, f"{made}\n", durable=True)
    return made


def lock_paths(destination: str, place: str, folder: Path) -> list[Path]:
    """Where loaders of one destination meet: beside it where it is a path of this host. Else where the slots of a group are,
    by the name that was given, as each slot may be a link to a disk of its own; and beside the ledger, wherever it is, as one
    that has other names has other slots beside it. One loader holds all of them.

    Never in a folder that everybody may write: anybody could hold the lock there.

    `folder`: the ledger's. Loaders with their state in other folders (supervisor.data_dir) are not noticed.
    """
    path = Path(place.removeprefix("file://").removeprefix("file:"))
    if path.is_absolute():  # one lock for all its names, a link's too
        path = path.resolve()
        destination = destination.replace(place, str(path))
    name = f".rocketcrew-{hashlib.sha256(destination.encode()).hexdigest()[:24]}.lock"
    if path.is_absolute() and path.parent.is_dir() and os.access(path.parent, os.W_OK) and not _is_open(path.parent):
        return [path.parent / name]
    slot = folder.parent.parent  # data_dir/<group>/<slot>/segments/ledger
    among_slots = (slot.parent if slot.name.isdigit() else folder.parent) / name
    found = (among_slots, folder.resolve().parent / name)
    return list({one.resolve(): one for one in found}.values())  # locked twice, one file would keep ourselves away


def _is_open(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IWOTH)


def _ranges_of(taken: OffsetSet) -> list[Range]:
    hulls = ((key, offsets.hull().pieces[0]) for key, offsets in sorted(taken.queues.items()) if offsets)
    return [Range(*key[:4], start, end, key.epoch) for key, (start, end) in hulls]


def deliver_by_function(name: str) -> Deliver:
    """The user's function `module:function(df, batch_id[, ranges[, ledger_id]])`. Raises UsageError."""
    return deliver_to(_found(name), name)


def deliver_to(function: Callable[..., Any], name: str) -> Deliver:
    """Delivers to `function`, with as many arguments as it takes. A fourth one with a default is the user's own unless it is
    called ledger_id. Raises UsageError for a function that takes fewer than two."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    takes_all = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    if len(positional) < 2 and not takes_all:
        raise UsageError(
            f"spark.function {name} must take (df, batch_id), (df, batch_id, ranges) or (df, batch_id, ranges, ledger_id)"
        )
    wants_id = takes_all or any(one.name == "ledger_id" or one.default is one.empty for one in positional[3:4])
    count = 4 if wants_id else 3 if len(positional) > 2 else 2

    def deliver(frame: DataFrame, batch: int, ranges: list[Range], ledger_id: str) -> None:
        function(*(frame, batch, ranges, ledger_id)[:count])

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

    def deliver(frame: DataFrame, batch: int, _ranges: list[Range], _ledger_id: str) -> None:
        writing = numbered(frame, batch).write.format(format_).mode("append").options(**options)
        writing = partitioned(writing, partition_by)
        if target.startswith(TABLE_PREFIX):
            writing.saveAsTable(target.removeprefix(TABLE_PREFIX))
        elif target:
            writing.save(target)
        else:
            writing.save()

    return deliver
