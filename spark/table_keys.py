"""The key columns of a table and its ledger, read without Spark: what `reconcile` compares.

Files are read one by one, every page against its checksum where it has one, and only key columns are kept: memory holds one
file's keys and the intervals found. A file that the Delta
log names and the disk does not have is a finding, no failure: its records are then missing. So is a file of somebody else.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet

from ..conf.segment_format import (
    BROKER,
    EPOCH,
    GROUP,
    LEDGER_AT,
    LOADER_STATUS_FILE,
    OFFSET,
    QUEUE_ID,
    REASON_SUFFIX,
    SEQ,
    STORE_TIME,
    TOPIC,
    key_fields,
)
from ..durable.facts import FACTS_SUFFIX, LEFT_SUFFIX, facts_from_bytes
from ..durable.files import read_sealed
from ..durable.intervals import IntervalSet, OffsetSet, QueueKey
from ..durable.outcomes import NO_ROWS, SETTLED, BatchOutcomes, Outcomes
from ..durable.versions import LaterVersionError
from ..remoting.errors import UsageError
from .accounts import NO_DETAIL, detail_after
from .delta_files import has_deletion_vectors, own_files
from .delta_log import is_delta
from .delta_snapshot import mapped_columns
from .errors import BadSegmentError, LoaderError, unreadable
from .iceberg_catalog import is_iceberg
from .object_store import Place
from .outcome_levels import Part, joined
from .plan import SegmentFacts
from .reconciling import TableFacts
from .segments import intervals_of, read_facts, read_times, readable_offsets
from .staging import Staging
from .status import batches_made, read_status, topics_of
from .table_lock import locked_table
from .table_state import read_state
from .targets.delta import DeltaTarget, append_by_delta_rs, delta_rs, open_log
from .targets.iceberg import opened
from .targets.local_folder import TABLE_LOCK_WAIT_S, data_files
from .targets.parquet import STATE_FILE, batch_folders, folder_outcomes, with_id
from .targets.target import TableState
from .views import nothing_loaded

pa: Any = pyarrow
pc: Any = pyarrow.compute
pads: Any = pyarrow.dataset
pq: Any = pyarrow.parquet

_QUEUE = (GROUP, TOPIC, BROKER, QUEUE_ID)
_PLACE = (*_QUEUE, OFFSET)

Files = Callable[[], Sequence[Place]]
"""The data files of a table, once they are wanted."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The table's own account: its state, the outcomes of all batches, and how many rows they brought (None: unknown)."""

    state: TableState
    outcomes: Outcomes
    rows: int | None
    untold: IntervalSet = field(default_factory=IntervalSet)
    """Among which batches are those whose outcomes are gone."""


def table_facts(table: Place, stagings: Sequence[Path]) -> tuple[TableFacts, list[str]]:
    """Everything that the table and the staging folders say, and the names of files that could not be read.

    Staging folders are only looked at, each once, before the table: what is loaded in between is then found in both, and
    counts as loaded. Where there is no table yet, they alone tell: of messages without rows, and of what waits or is set
    aside.
    Raises UsageError for what is no table of ours, LoaderError for a ledger that can't be used.
    """
    stagings = list({root.resolve(): root for root in stagings}.values())
    told = [status for root in stagings if (status := read_status(root / LOADER_STATUS_FILE)) is not None]
    noted, waiting, settled, later = _staged(stagings)
    aside, unknown, apart = _quarantined(stagings)
    broken = later + unknown
    presence = Presence()
    with _held(table):
        ledger, files = _empty_ledger() if _is_to_come(table, stagings) else _opened(table)
        for file in files():
            try:
                presence.add(_keys_of(file))
            except ForeignFileError as error:
                broken.append(str(error))
            except (OSError, pa.ArrowException) as error:
                broken.append(unreadable(file, error, iceberg=is_iceberg(table)))
    ours = [one for one in told if _is_of(one.known_of or one.target, table) or one.is_of(ledger.state.table)]
    newest, needless = ledger.state.epochs, tuple[str, ...]()
    if apart:
        needless = tuple(str(file) for file in apart if _is_loaded(table, file, presence.present()))
        broken += [_apart(file) for file in apart if str(file) not in needless]

    def now(key: QueueKey) -> QueueKey:
        return key.in_epoch(newest.get(key, 0))

    outcomes = Outcomes.union(
        [ledger.outcomes, Outcomes.of((kind, records.rekeyed(now)) for kind, records in noted.kinds.items())]
    )
    rows = None if ledger.rows is None else (presence.rows, ledger.rows)
    facts = TableFacts(
        presence.present(),
        presence.overlaps(),
        ledger.state.loaded,
        outcomes,
        waiting.rekeyed(now),
        rows,
        settled.rekeyed(now),
        aside.rekeyed(now),
        ledger.state.tops,
        (ledger.state.batch, batches_made(ours, ledger.state)),
        needless,
        max((one.batches_lost for one in ours), default=0),
        topics_of(one.topics_lost for one in ours if one.batches_lost),
        tuple(later),
        ledger.untold,
    )
    return facts, broken


def _is_of(target: str, table: Place) -> bool:
    """Whether that target in a loader's status is this table; it may have been moved since, and is known by its id then."""
    return Path(target).resolve() == table.resolve() if isinstance(table, Path) else target == str(table)


def _is_to_come(table: Place, stagings: Sequence[Path]) -> bool:
    """The loader has not begun the table: it is not there, and no staging folder knows of a batch, or of another table."""
    if not isinstance(table, Path) or is_delta(table) or is_iceberg(table):
        return False
    begun = table.exists() and not (table.is_dir() and all(one.name.startswith((".", "_")) for one in table.iterdir()))
    return bool(stagings) and not begun and all(_loaded_nothing(Staging(root), table) for root in stagings)


def _loaded_nothing(staging: Staging, table: Path) -> bool:
    status = staging.root / LOADER_STATUS_FILE
    if status.exists():
        told = read_status(status)
        if told is None or told.batch_id or not _is_of(told.target, table):
            return False
    return not (staging.done_plans() or staging.left() or (staging.root / LEDGER_AT).exists())


def _empty_ledger() -> tuple[Ledger, Files]:
    return Ledger(TableState(0, "", OffsetSet(), ()), Outcomes(), 0), tuple


def _held(table: Place) -> AbstractContextManager[None]:
    """No compaction exchanges the files of a Parquet table while they are read."""
    if not isinstance(table, Path) or not table.is_dir() or is_delta(table) or is_iceberg(table):
        return nullcontext()
    return locked_table(table, fcntl.LOCK_SH, TABLE_LOCK_WAIT_S)


def table_state(table: Place) -> TableState:
    """The state of the table at `table`. Raises UsageError, LoaderError."""
    return _opened(table)[0].state


def _keys_of(file: Place) -> Any:
    """The key columns of a data file, of which every page was looked at: checksums name bytes that have changed."""
    source = str(file) if isinstance(file, Path) else pa.BufferReader(pa.py_buffer(file.read_buffer()))
    reader: Any = pq.ParquetFile(source, page_checksum_verification=True)
    check_ours(file, reader.schema_arrow.names)
    wanted = [name for name in (*_QUEUE, OFFSET, SEQ, EPOCH) if name in reader.schema_arrow.names]
    batches = [batch.select(wanted) for batch in reader.iter_batches(use_threads=True)]
    found = pa.Table.from_batches(batches, pa.schema([reader.schema_arrow.field(name) for name in wanted]))
    return found.cast(_plain(wanted))


def _plain(names: Iterable[str]) -> Any:
    """The schema of key columns as loaders write them. Others that change rows write the same values in layouts that Arrow
    hardly computes with: delta-rs's UPDATE, DELETE and MERGE views of texts."""
    kinds = {field.name: field.type for field in key_fields()} | {EPOCH: pa.int64()}
    return pa.schema([(name, kinds[name]) for name in names])


def store_times(table: Place, wanted: Mapping[QueueKey, Iterable[int]]) -> dict[QueueKey, dict[int, int]]:
    """When these records were stored, by their rows, in us since 1970. Left out is what files do not give (`table_facts` says
    which), and all of a table in a bucket: for a few rows its files would be fetched once more."""
    places = {(key, offset) for key, offsets in wanted.items() for offset in offsets}
    found: dict[QueueKey, dict[int, int]] = {}
    if not places or not isinstance(table, Path):
        return found
    columns = [(*key[: len(_QUEUE)], offset) for key, offset in places]
    asked = pa.table(dict(zip(_PLACE, zip(*columns, strict=True), strict=True)), schema=_plain(_PLACE))
    with _held(table):
        for file in _opened(table)[1]():
            with suppress(LoaderError, OSError, pa.ArrowException):
                for key, offset, time_us in _times_in(file, asked):
                    if (key, offset) in places:
                        found.setdefault(key, {})[offset] = time_us
    return found


def _times_in(file: Place, asked: Any) -> Iterator[tuple[QueueKey, int, int]]:
    """Of the records in these places, in any epoch. Row groups with none of their offsets are not read."""
    there = pq.read_schema(str(file)).names
    check_ours(file, there)
    names = [name for name in (*_QUEUE, OFFSET, SEQ, STORE_TIME, EPOCH) if name in there]
    data = pads.dataset(str(file), schema=_plain(names), format="parquet")
    at, offsets = pc.field(OFFSET), pc.unique(asked.column(OFFSET))
    ends = pc.min_max(offsets)
    here = (at >= ends["min"]) & (at <= ends["max"]) & at.isin(offsets) & (pc.field(SEQ) == 0)
    # Each queue has its own offsets, and those of all others: thousands of queues would be millions of rows.
    rows = data.to_table(filter=here, use_threads=False).join(
        asked, [*_PLACE], join_type="left semi", use_threads=False
    )
    times = rows.column(STORE_TIME).cast(pa.int64()).to_pylist()
    for row, time_us in zip(rows.to_pylist(), times, strict=True):
        key = QueueKey(row[GROUP], row[TOPIC], row[BROKER], row[QUEUE_ID], row.get(EPOCH) or 0)
        yield key, row[OFFSET], time_us


class ForeignFileError(LoaderError):
    """A data file that no loader has written."""


def check_ours(file: Place, names: Iterable[str]) -> None:
    """Raise ForeignFileError for a data file that lacks key columns, by the names of those that it has."""
    missing = [name for name in (*_QUEUE, OFFSET, SEQ) if name not in names]
    if missing:
        raise ForeignFileError(
            f"{file} is no file of rocketcrew, as it has no column {missing[0]}: take it out of the table, whose readers take"
            " its rows for the table's"
        )


class Presence:
    """What was seen so far: offsets by queue, those seen twice, and how many rows.

    What files bring is only collected, and put together once at the end: file by file, the time would grow with the square
    of their number.
    """

    def __init__(self) -> None:
        self._seen: dict[QueueKey, list[tuple[int, int]]] = {}
        self._twice: dict[QueueKey, list[tuple[int, int]]] = {}
        self.rows = 0

    def add(self, keys: Any) -> None:
        self.rows += keys.num_rows
        if EPOCH not in keys.column_names:
            keys = keys.append_column(EPOCH, pa.nulls(keys.num_rows, pa.int64()))
        starts = keys.filter(pc.equal(keys.column(SEQ), 0))
        grouped = starts.group_by([*_QUEUE, EPOCH], use_threads=False).aggregate([(OFFSET, "list")])
        columns = (grouped.column(name).to_pylist() for name in (*_QUEUE, EPOCH))
        for place, (group, topic, broker, queue_id, epoch) in enumerate(zip(*columns, strict=True)):
            key = QueueKey(group, topic, broker, queue_id, epoch or 0)
            self._add_queue(key, grouped.column(f"{OFFSET}_list")[place].values.sort())

    def _add_queue(self, key: QueueKey, ordered: Any) -> None:
        again = ordered[1:].filter(pc.equal(ordered[1:], ordered[:-1]))
        found = intervals_of(ordered if not len(again) else ordered.unique())
        self._twice.setdefault(key, []).extend(IntervalSet.from_offsets(again.to_pylist()).pieces)
        self._seen.setdefault(key, []).extend(found.pieces)

    def present(self) -> OffsetSet:
        return OffsetSet.of((key, IntervalSet.of(pieces)) for key, pieces in self._seen.items())

    def overlaps(self) -> OffsetSet:
        return OffsetSet.of(
            (key, IntervalSet.of([*self._twice[key], *overlapping(pieces)])) for key, pieces in self._seen.items()
        )


def overlapping(pieces: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What more than one of the half-open `pieces` covers, in one pass over them in order."""
    reached = -1
    for start, stop in sorted(pieces):
        if start < reached:
            yield start, min(stop, reached)
        reached = max(reached, stop)


def _opened(table: Place) -> tuple[Ledger, Files]:
    if not isinstance(table, Path) or is_delta(table):
        return _delta(table)
    if is_iceberg(table):
        return _iceberg(table)
    folders = batch_folders(table)
    if not folders:
        raise nothing_loaded(table)
    told = folder_outcomes(table, max(folders)).told()
    state = with_id(table, read_state(folders[max(folders)] / STATE_FILE))
    return _ledger(state, told), lambda: [file for folder in folders.values() for file in data_files(folder)]


def _delta(table: Place) -> tuple[Ledger, Files]:
    target = DeltaTarget(table, append_by_delta_rs, lambda: None)
    state = target.state()
    if not state.batch:
        raise nothing_loaded(table)
    return _ledger(state, target.levels().told()), partial(_delta_files, table)


def _delta_files(table: Place) -> list[Place]:
    """Raises UsageError where the rows in them are not those of the table, LoaderError."""
    failed = delta_rs().exceptions.DeltaError
    try:
        log = open_log(table)
        deleted, added = has_deletion_vectors(table, log, failed), log.get_add_actions()
    except failed as error:
        said = str(error).partition("\n")[0]  # what follows are the stacks of delta-rs
        raise LoaderError(f"the log of {table} can't be read: {said}") from None
    if deleted:
        raise UsageError(
            f"{table} has deletion vectors, and the rows that they delete are in its files still: have Spark rewrite these"
            f" (REORG TABLE delta.`{table}` APPLY (PURGE)), then try again"
        )
    keys = (*_QUEUE, OFFSET, SEQ, EPOCH, STORE_TIME)
    if mapped := [name for name in mapped_columns(log) if name in keys]:
        raise UsageError(
            f"the files of {table} have other names for {', '.join(mapped)} (Delta's column mapping): its records can't be"
            " looked at without Spark"
        )
    return [table / path for path in own_files(table, added)]


def _iceberg(table: Path) -> tuple[Ledger, Files]:
    target = opened(table)
    state = target.state()
    if not state.batch:
        raise nothing_loaded(table)
    return _ledger(state, target.levels().told()), target.files


def _ledger(state: TableState, told: Sequence[tuple[Part, BatchOutcomes]]) -> Ledger:
    """Holes that floors have passed, and nobody has ended, are not loaded: outcomes say which."""
    together = joined([one for _, one in told])
    untold = IntervalSet.of((max(1, part.first), part.last + 1) for part, one in told if one.rows is None)
    state = state.exactly(detail_after(NO_DETAIL, state.loaded, state.holes, [together.outcomes]).open)
    return Ledger(state, together.outcomes, together.rows, untold)


def _staged(stagings: Iterable[Path]) -> tuple[Outcomes, OffsetSet, OffsetSet, list[str]]:
    """What files of facts and segments say, what waits, what is settled, and which of them a later version has made: they
    may lie beside those of this one, and nobody here can say what is in them."""
    later: list[str] = []
    noted: list[Outcomes] = []
    waiting: list[OffsetSet] = []
    for root in stagings:
        staging = Staging(root)
        # Before ready/ is listed: rows of what is settled are in there then, or in the table.
        noted.append(_notes(staging.outcomes, later))
        sealed = list(_facts(staging.ready, later))
        waiting += [facts.offsets for facts in sealed]
        noted.append(Outcomes.of((NO_ROWS, facts.finished) for facts in sealed))
        waiting += [readable_offsets(path) for path in sorted((staging.root / "open").glob("[!.]*.arrows"))]
    together = Outcomes.union(noted)
    return together.without(SETTLED), OffsetSet.union(waiting), together.of_kind(SETTLED), list(dict.fromkeys(later))


def _notes(folder: Path, later: list[str]) -> Outcomes:
    """What the files of facts say that can be read. Damaged ones are passed over."""

    def read(path: Path) -> Outcomes:
        try:
            return facts_from_bytes(path.read_bytes(), path)
        except LaterVersionError as error:
            later.append(str(error))
            return Outcomes()

    return Outcomes.union(read_sealed(folder, FACTS_SUFFIX, LEFT_SUFFIX, read=read).values())


def _quarantined(stagings: Iterable[Path]) -> tuple[OffsetSet, list[str], list[Path]]:
    """The records of files that are set aside, what is to be said of those of which nothing is known, and those whose records
    are other ones than the table knows by their offsets."""
    found = [Staging(root).quarantined() for root in stagings]
    told = [
        f"{file} is set aside, and nobody can make out what is in it: see {_reason(file)}"
        for _, unknown, _ in found
        for file in unknown
    ]
    return OffsetSet.union(records for records, *_ in found), told, [file for *_, apart in found for file in apart]


def _is_loaded(table: Place, file: Path, present: OffsetSet) -> bool:
    """Whether the table has every record of a file that was of no epoch in some epoch since, as after a reset that
    reprocesses: one of the same offset that was stored at the same time."""
    try:
        ours = {key: {each.first_offset: each.first_us for each in read_times(file, key, offsets)}
                for key, offsets in read_facts(file).offsets.queues.items()}  # fmt: skip
    except (BadSegmentError, LaterVersionError, OSError):
        return False
    wanted = {key: list(ours[key.in_epoch(0)]) for key in present.queues if key.in_epoch(0) in ours}
    theirs = {(key.in_epoch(0), offset, time_us) for key, times in store_times(table, wanted).items()
              for offset, time_us in times.items()}  # fmt: skip
    return all((key, offset, time_us) in theirs for key, times in ours.items() for offset, time_us in times.items())


def _apart(file: Path) -> str:
    return f"{file} is set aside: its records are other ones than the table has with their offsets: see {_reason(file)}"


def _reason(file: Path) -> str:
    return f"{file.name}{REASON_SUFFIX}"


def _facts(folder: Path, later: list[str]) -> Iterator[SegmentFacts]:
    for path in sorted(folder.glob("[!.]*.arrows")):
        try:
            yield read_facts(path)
        except FileNotFoundError:
            continue  # loaded meanwhile
        except LaterVersionError as error:
            later.append(str(error))
        except BadSegmentError:
            yield SegmentFacts(path.name, 0, 0, readable_offsets(path), False, ())
