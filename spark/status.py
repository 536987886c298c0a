"""`loader.json`: how the loader is doing, for the supervisor, for people, and for the loader's own next start.

Replaced as a whole, so a reader never sees half of it; not fsynced, it is no truth that anything depends on, but for one
check: a table that has fewer batches than this file remembers, or another one of that number, was taken away.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..conf.segment_format import LOADER_STATUS_FILE
from ..durable.files import write_atomically

if TYPE_CHECKING:
    from .targets.target import TableState

STATUS_VERSION = 1
COMMIT_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds: a folder's commit takes some hundredths, one in a bucket or a catalog seconds."""
_BOUNDS: Final = (*map(str, COMMIT_S), "+Inf")
TOPICS_MAX: Final = 200
"""Topics that are noted; more are as good as all, and the file is written every second."""
_OF_TABLE: Final = ("batch_id", "plan", "began", "table", "topics", "batches_total", "rows_total")
STARTING, WAITING, LOADING, STOPPED, FAILED = "starting", "waiting", "loading", "stopped", "failed"


@dataclass(slots=True)
class LoaderStatus:
    """The fields of loader.json. Times are wall-clock milliseconds since 1970, unless the name says seconds.

    `restarts`: starts after an end that was not in order. `batch_id`: the table's last batch that this folder loaded.
    `plan`: the id of the plan that became that batch; `began`: that of the first batch in `batches_total`, by which a copy of
    the folder is known; `table`: the id of that table (TableState). Empty: not known.
    `batches_lost`: of a table that was removed or taken back, and without which it was gone on (`load --table-replaced`).
    `topics`: those of the table, as of the last batch that this folder loaded; `topics_lost`: those of which batches may be
    lost. None: it can be any. `known_of`: the target of which all these are known, until it is known whether what is at
    `target` is that table, moved.
    `*_total` count over all runs, the others since this start. `commit_buckets`, over all runs: commits by the bound, as
    text in seconds, that their time is not above. `last`: the figures of the last batch. `waiting`: what lies in ready/.
    `running`: how far the batch in work is, every few seconds; empty when there is none. `jvm_pid`: 0 until Spark runs.
    `elsewhere`: POP, messages that others were shown and that have not come again (reports.py).
    `unregistered`: why the metastore does not know the table as it is (`spark.table`); empty when it does.
    """

    version: int = STATUS_VERSION
    pid: int = 0
    state: str = STARTING
    target: str = ""
    master: str = ""
    started_ms: int = 0
    updated_ms: int = 0
    restarts: int = 0
    batch_id: int = 0
    plan: str = ""
    began: str = ""
    table: str = ""
    known_of: str = ""
    batches_total: int = 0
    batches_lost: int = 0
    topics: list[str] | None = None
    topics_lost: list[str] | None = None
    rows_total: int = 0
    commit_buckets: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_BOUNDS, 0))
    commit_seconds_total: float = 0.0
    rows: int = 0
    rows_dropped: int = 0
    segments: int = 0
    quarantined: int = 0
    replanned: int = 0
    elsewhere: int = 0
    jvm_pid: int = 0
    spark_start_seconds: float = 0.0
    last: dict[str, float] = field(default_factory=dict[str, float])
    waiting: dict[str, int] = field(default_factory=dict[str, int])
    running: dict[str, float | str] = field(default_factory=dict[str, float | str])
    unregistered: str = ""
    exit_code: int | None = None
    error: str = ""

    @property
    def knows_batches(self) -> bool:
        """Whether a loader of the folder has found or made batches of the target, or missed some."""
        return bool(self.batch_id or self.batches_total or self.batches_lost)

    def is_of(self, table: str) -> bool:
        """Whether the batches are of the table with this id, wherever it is now. An empty one tells nothing."""
        return table != "" and self.table == table

    def committed(self, seconds: float) -> None:
        """Count one more commit."""
        self.commit_buckets[_BOUNDS[bisect_left(COMMIT_S, seconds)]] += 1
        self.commit_seconds_total = round(self.commit_seconds_total + seconds, 3)


class StatusFile:
    """Reads what an earlier run left, then writes this run's status."""

    def __init__(self, staging: Path, target: str) -> None:
        """Takes over the totals of an earlier run; `found` drops them where they are of another table."""
        self._path = staging / LOADER_STATUS_FILE
        before = read_status(self._path)
        self.status = LoaderStatus(target=target, known_of=target)
        if before is not None:
            self.status.restarts = before.restarts + (before.state != STOPPED)
            # Also with another target: a table may be moved, and what it lacks would count as explained from then on.
            self.status.batches_lost, self.status.topics_lost = before.batches_lost, before.topics_lost
            self.status.known_of = before.known_of or before.target
            self._take(before)

    @property
    def moved(self) -> bool:
        """Whether it is not known yet if the table at the target is the one whose totals these are."""
        return self.status.known_of != self.status.target

    def found(self, table: str) -> None:
        """The table at the target has this id (TableState): if another one was known elsewhere, that is forgotten."""
        if self.moved and not self.status.is_of(table):
            self._take(LoaderStatus())
        self.status.known_of = self.status.target

    def _take(self, told: LoaderStatus) -> None:
        """What is told of a table there."""
        for name in _OF_TABLE:
            setattr(self.status, name, getattr(told, name))
        if told.commit_buckets.keys() == self.status.commit_buckets.keys():
            self.status.commit_buckets = told.commit_buckets
            self.status.commit_seconds_total = told.commit_seconds_total

    def take_on(self, batch: int, lost: int, topics: list[str] | None, table: str = "", plan: str = "") -> None:
        """Go on with a table that is at `batch`, though it was further by so many, which may be of these topics."""
        status = self.status
        status.table, status.plan = table, plan
        status.topics_lost = topics_of([topics, *([status.topics_lost] if status.batches_lost else [])])
        status.batch_id, status.batches_total, status.began = batch, 0, ""
        status.batches_lost += lost

    def write(self, now_ms: int) -> None:
        """Replace the file. Raises OSError."""
        self.status.updated_ms = now_ms
        write_atomically(self._path, json.dumps(asdict(self.status), indent=1) + "\n", durable=False)


def is_another(known: str, now: str) -> bool:
    """Whether these are the ids of two tables, or of two plans; one that is not known tells nothing."""
    return "" not in (known, now) and known != now


def batches_made(statuses: Iterable[LoaderStatus], state: TableState) -> int:
    """How many batches a table has had at least, by what its loaders say: each has counted its own, and they have no number
    in common. `state` is what it is now; those of one that was at its place before are beside these."""
    before: list[LoaderStatus] = []
    its: list[LoaderStatus] = []
    for one in statuses:
        (before if is_another(one.table, state.table) else its).append(one)
    made = _made(its)
    if any(is_another(one.plan, state.plan_of(one.batch_id)) for one in its):  # at least that one is not in it
        made = max(made, state.batch + 1)
    return max(made, state.batch) + _made(before) if before else made


def _made(told: list[LoaderStatus]) -> int:
    """A folder and its copies have their first batches in common: of these the one that has made the most counts."""
    most: dict[str | int, int] = {}
    for place, one in enumerate(told):
        began = one.began or one.plan or place
        most[began] = max(most.get(began, 0), one.batches_total)
    return max([sum(most.values()), *(one.batch_id for one in told)], default=0)


def topics_of(told: Iterable[Iterable[str] | None]) -> list[str] | None:
    """The topics of all these, None where one of them can be any."""
    found: set[str] = set()
    for topics in told:
        if topics is None:
            return None
        found.update(topics)
    return sorted(found) if len(found) <= TOPICS_MAX else None


def read_status(path: Path) -> LoaderStatus | None:
    """The status in the file `path`, None when there is none or it is not understood."""
    try:
        data: dict[str, Any] = json.loads(path.read_bytes())
        if data["version"] != STATUS_VERSION:
            return None
        known = {one.name for one in fields(LoaderStatus)}
        return LoaderStatus(**{name: value for name, value in data.items() if name in known})
    except (OSError, ValueError, KeyError, TypeError):
        return None
