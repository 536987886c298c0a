"""Small files of a Delta table become larger ones, in a commit of the log that changes no row.

    written     each group of small files (merging.py) is one new file; no version names it yet
    committed   THE COMMIT: the next entry of the log, which must not be there, takes the small files out and the new ones in

The entry is made behind the version whose files were read, or behind commits that have done nothing since but add files:
each of them is read before the number behind it is tried. Where another one has committed a DELETE, the same merge, or
another schema, this merge is given up, and its files are deleted. That is why neither
delta-rs's `optimize` (1.6) is used, which takes its entry further without that look and puts the rows of two merges into the
table twice, nor its `create_write_transaction`, which escapes paths again and so takes no file out whose name has an escaped
character.

All of its actions say `dataChange: false`, so streams that read the table, and its change feed, pass over them; it carries no
transaction, so the table's batch and state stay what they are. The small files stay on the disk for older versions' readers.

Sources: Delta's protocol ("Add File and Remove File", "Per-file Statistics"), and Spark's OptimizeTableCommand.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import re
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import IO, Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow

from ..client.logs import get_logger
from ..durable.files import sync_path
from .delta_files import is_elsewhere
from .delta_log import LOG_DIR, actions_of, entry_of
from .delta_vacuum import foreign_to
from .errors import LoaderError, unreadable
from .hdfs import HdfsPath
from .merged_file import compression_of, open_part, write_merged
from .merging import MergeBounds, SmallFile, merge_each, merge_groups
from .object_store import ObjectPath, Place, short
from .rights import Rights, make_alike, rights_of
from .targets.delta_disk import sync_commits

pa: Any = pyarrow

POINTS: Final = ("written", "committed")
ENGINE: Final = "rocketcrew"
CHECKPOINT_PROPERTY: Final = "delta.checkpointInterval"
ADDS_FILES: Final = frozenset({"add", "cdc", "commitInfo", "txn"})
"""What commits consist of that a merge may go behind."""
PASSED_MAX: Final = 1000
"""So many of them."""
CHECKPOINT_COMMITS: Final = 100
"""delta-rs's default for it; Spark makes them more often."""
ENDED: Final = (Exception, KeyboardInterrupt, SystemExit)
"""Whatever a merge can be ended by and still tidy up: Ctrl-C too."""
DRAFT_S: Final = 6 * 3600.0
"""A draft of an entry that is older is what a kill has left."""
_DRAFT: Final = re.compile(r"\.\d{20}\.json\.[0-9a-f]{32}\.new")
OWN_ENTRY_FIELDS: Final = frozenset({"inCommitTimestamp"})
"""Features that ask for more than ours in an entry of the log."""


class Merged(NamedTuple):
    """What a commit has made of how many files."""

    files: int
    into: int
    bytes: int


def merge_small_files(
    path: Place, log: Any, bounds: MergeBounds, now_ms: int, on_point: Callable[[str], None] = lambda _: None
) -> Merged | None:
    """Merge small files of delta-rs's snapshot `log` of the table at `path`. None: there was nothing to do.

    Raises FileExistsError when another one has committed meanwhile; LoaderError for a table that can't be merged, or where
    there are only files that can't be; OSError, and delta-rs's and Arrow's errors. The table is what it was then. What fails
    behind the commit is a warning, and `log` may be at the version before.
    """
    assert not isinstance(path, HdfsPath), "LoaderConfig lets no Delta table be there"
    _sweep(path, now_ms / 1000)
    files, metadata, read = _files_of(path, log), log.metadata(), int(log.version())
    merge = _Merge(path, files, pa.schema(log.schema()), metadata.partition_columns, now_ms)
    with merge.discarded_unless_made():
        groups = merge_each(files.small(), bounds, merge.merged, files.rights)
        if not groups:
            if merge.failed:
                raise merge.failed[0]
            return None
        for error in merge.failed:
            get_logger().warning("delta_files_not_merged", table=str(path), error=short(error))
        on_point("written")
        version = merge.commit(read, merge.info(read, groups))
    on_point("committed")
    try:
        _follow(path, log, version, metadata.configuration.get(CHECKPOINT_PROPERTY))
    except Exception as error:  # noqa: BLE001 -- the commit stands, whatever is said of what comes behind it
        get_logger().warning("delta_checkpoint_not_made", table=str(path), error=short(error))
    taken = [one for group in groups for one in group]
    return Merged(len(taken), len(groups), sum(one.bytes for one in taken))


def _follow(path: Place, log: Any, version: int, interval: str | None) -> None:
    """Take the snapshot to our commit, and make the checkpoint that is due there: Spark makes one at the multiples of the
    interval, delta-rs just before them; whoever commits behind this makes none. It is synced at once: the table is read by
    it."""
    log.update_incremental()
    every = int(interval or CHECKPOINT_COMMITS)
    if 0 in (version % every, (version + 1) % every):
        log.create_checkpoint()
        if isinstance(path, Path):
            for made in ("_last_checkpoint", f"{int(log.version()):020d}.checkpoint.parquet"):
                with contextlib.suppress(OSError), open(path / LOG_DIR / made, "rb", opener=_no_link) as file:
                    make_alike(file.fileno(), entry_of(path, version - 1))
            sync_commits(path, int(log.version()), int(log.version()))


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def groups_to_merge(path: Place, log: Any, bounds: MergeBounds) -> list[list[SmallFile]]:
    """What `merge_small_files` would merge. Raises LoaderError for a table that can't be merged."""
    files = _files_of(path, log)
    return merge_groups(files.small(), bounds, files.rights)


def _files_of(path: Place, log: Any) -> _Files:
    metadata = log.metadata()
    if foreign := foreign_to(log.protocol(), metadata.configuration, OWN_ENTRY_FIELDS):
        raise LoaderError(f"the table has {', '.join(foreign)}: have Spark merge its files (OPTIMIZE)")
    if why := _unsure_partitions(pa.schema(log.schema()), metadata.partition_columns):
        raise LoaderError(why)
    return _Files(path, log.get_add_actions())


def _unsure_partitions(schema: Any, columns: Sequence[str]) -> str:
    """A partition's value is text in the log. Of these types it is the same text whoever writes it."""
    for name in columns:
        kind = schema.field(name).type
        if not (
            pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or kind == pa.date32()
        ):
            return f"the table is partitioned by {name}, a {kind}: have Spark merge its files (OPTIMIZE)"
    return ""


class _Files:
    """The files of a version, as delta-rs lists them: its rows are looked at only for the files that are merged."""

    def __init__(self, table: Place, added: Any) -> None:
        self._table = table
        self._added: Any = pa.table(added)
        self._row_of: dict[str, int] = {}

    def small(self) -> Iterator[SmallFile]:
        """All that lie below the table, with their values of the partition columns."""
        listed = self._added
        partitioned = "partition" in listed.column_names
        parts: list[Any] = list(listed.column("partition")) if partitioned else []
        columns = (
            listed.column(name).to_pylist() for name in ("path", "size_bytes", "num_records", "modification_time")
        )
        for row, (path, size, rows, made_ms) in enumerate(zip(*columns, strict=True)):
            if is_elsewhere(path):  # a shallow clone's are another table's
                continue
            try:
                values: dict[str, Any] = (parts[row].as_py() if parts else None) or {}
            except (ArithmeticError, ValueError):  # a value that Python does not have: such a partition stays as it is
                continue
            self._row_of[path] = row
            yield SmallFile(path, size, rows or 0, tuple(values.items()), made_ms)

    def rights(self, one: SmallFile) -> Rights | None:
        """The same of files that may be merged with each other: who may read some of the rows may not read them all. None in
        a bucket, and of a file that is gone: its group is dropped when it is read."""
        with contextlib.suppress(OSError):
            return rights_of(self._table / unquote(one.path)) if isinstance(self._table, Path) else None
        return None

    def statistics(self, path: str) -> dict[str, Any]:
        """num_records, null_count, min and max of a file, the latter by column; what nobody has noted is None."""
        return {name: _as_python(self._added.column(name)[self._row_of[path]]) for name in self._added.column_names}


def _as_python(value: Any) -> Any:
    """What delta-rs has read of the log. None for what Python does not have: dates outside of the years 1 to 9999."""
    if isinstance(value, pa.StructScalar):
        return {name: _as_python(one) for name, one in value.items()} if value.is_valid else None
    try:
        return value.as_py()
    except (ArithmeticError, ValueError):
        return None


class _Merge:
    """One merge of a version's files."""

    def __init__(
        self, path: Path | ObjectPath, files: _Files, schema: Any, partitions: Sequence[str], now_ms: int
    ) -> None:
        self._path = path
        self._files = files
        self._schema = pa.schema([field for field in schema if field.name not in partitions])
        self._known = set(schema.names)
        self._now_ms = now_ms
        self._actions: list[dict[str, Any]] = []
        self._written: list[Path | ObjectPath] = []
        self._may_be_made = False
        self.failed: list[LoaderError] = []
        """Of the groups that were dropped."""

    def merged(self, group: Sequence[SmallFile]) -> bool:
        """Write the group's rows. False: one of its files can't be read, and so the group stays as it is."""
        before = len(self._written)
        try:
            self._actions.extend(self.actions(group))
        except LoaderError as error:
            self.failed.append(error)
        except (pa.ArrowException, ArithmeticError, ValueError) as error:
            self.failed.append(LoaderError(f"{group[0].path} and {len(group) - 1} more can't be merged: {error}"))
        else:
            return True
        while len(self._written) > before:
            self._discard(self._written.pop())
        return False

    def commit(self, read: int, info: Mapping[str, Any]) -> int:
        """Make the entry behind version `read`, or behind commits that have only added files since; gives its version.

        Raises FileExistsError where another one has done more than that, OSError.
        """
        data = _entry([info, *self._actions])
        taken = {action["remove"]["path"] for action in self._actions if "remove" in action}
        unsynced = read + 1
        for version in range(read + 1, read + 1 + PASSED_MAX):
            entry = entry_of(self._path, version)
            there = _read(entry)
            if there is None:
                if isinstance(self._path, Path) and unsynced < version:
                    sync_commits(self._path, unsynced, version - 1)  # before ours is on top of them
                    unsynced = version
                if self._makes(entry, data, entry_of(self._path, version - 1)):
                    return version
                there = entry.read_bytes()
            if not _only_adds(there, taken):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(entry))
        raise FileExistsError(f"{PASSED_MAX} commits since version {read}")

    def _makes(self, entry: Path | ObjectPath, data: bytes, before: Path | ObjectPath) -> bool:
        """Make the entry behind `before`; False: another one has its number."""
        self._may_be_made = True
        try:
            _create(entry, data, before)
        except FileExistsError:
            self._may_be_made = entry.read_bytes() == data  # its answer was lost, and it was put again
            return self._may_be_made
        except ENDED:
            self._may_be_made = _may_be_there(entry, data)
            raise
        return True

    @contextlib.contextmanager
    def discarded_unless_made(self) -> Generator[None]:
        """Delete what was written where something is raised and no entry can name it."""
        try:
            yield
        except ENDED:
            if not self._may_be_made:
                for place in self._written:
                    self._discard(place)
            raise

    def _discard(self, place: Path | ObjectPath) -> None:
        with contextlib.suppress(OSError, LoaderError):
            place.unlink(missing_ok=True)

    def info(self, read: int, groups: Sequence[Sequence[SmallFile]]) -> dict[str, Any]:
        """What the table's history says of the commit."""
        removed = sum(len(group) for group in groups)
        return {"commitInfo": {
            "timestamp": self._now_ms, "operation": "OPTIMIZE", "operationParameters": {"predicate": "[]"},
            "readVersion": read, "isolationLevel": "SnapshotIsolation", "isBlindAppend": False, "engineInfo": ENGINE,
            "operationMetrics": {"numRemovedFiles": str(removed), "numAddedFiles": str(len(groups))},
        }}  # fmt: skip

    def actions(self, group: Sequence[SmallFile]) -> Iterator[dict[str, Any]]:
        """Write the group's rows as one file; what the log is to say of it, and of those that it replaces."""
        noted = [self._files.statistics(one.path) for one in group]
        values: dict[str, object] = noted[0].get("partition") or {}
        of_partition = {name: _as_text(value) for name, value in values.items()}
        first = self._opened(group[0].path)
        codec = compression_of(first)
        folder, slash, _ = group[0].path.rpartition("/")
        path = f"{folder}{slash}part-00000-{uuid.uuid4()}-c000.{codec.lower()}.parquet"
        columns: list[set[str]] = []
        rows = self._rows(group, first, [known["num_records"] for known in noted], columns)
        self._written.append(self._place(path))
        with _written(self._place(path), self._place(group[0].path)) as file:
            write_merged(rows, self._schema, file, codec)
            size = file.tell()
        stats = merged_statistics(self._schema, noted, columns)
        shared = {"partitionValues": of_partition, "dataChange": False}
        for one in group:
            gone = {
                "path": one.path,
                "deletionTimestamp": self._now_ms,
                "extendedFileMetadata": True,
                "size": one.bytes,
            }
            yield {"remove": {**gone, **shared}}
        made = {"path": path, "size": size, "modificationTime": self._now_ms, "stats": json.dumps(stats)}
        yield {"add": {**made, **shared}}

    def _place(self, path: str) -> Path | ObjectPath:
        """Paths in the log are URIs: a character that is escaped there is itself in the file's name."""
        return self._path / unquote(path)

    def _opened(self, path: str) -> Any:
        place = self._place(path)
        try:
            source = place if isinstance(place, Path) else pa.BufferReader(pa.py_buffer(place.read_bytes()))
            return open_part(source)
        except (pa.ArrowException, OSError) as error:
            raise LoaderError(unreadable(place, error)) from None

    def _check(self, path: str, part: Any, noted: int | None) -> None:
        """Raise LoaderError for a file that has what the table has not: rows would change by a merge.

        Columns of the partition may be in it (Spark has written them): what the log says counts, so they are left out.
        """
        if noted is not None and part.metadata.num_rows != noted:
            raise LoaderError(
                f"{self._place(path)} has {part.metadata.num_rows} rows, and the table's log says {noted}"
            )
        if unknown := [name for name in part.schema_arrow.names if name not in self._known]:
            raise LoaderError(
                f"{self._place(path)} has the columns {', '.join(unknown)}, which the table does not have"
            )

    def _rows(
        self, group: Sequence[SmallFile], first: Any, noted: Sequence[int | None], columns: list[set[str]]
    ) -> Iterator[Any]:
        """The rows of all files, one open at a time; `columns` gets the names that each of them has."""
        for number, one in enumerate(group):
            with self._opened(one.path) if number else first as part:
                self._check(one.path, part, noted[number])
                columns.append(set(part.schema_arrow.names))
                for row_group in range(part.num_row_groups):
                    try:
                        rows = part.read_row_group(row_group)
                    except (pa.ArrowException, OSError) as error:
                        raise LoaderError(unreadable(self._place(one.path), error)) from None
                    yield rows


def merged_statistics(schema: Any, noted: Sequence[Mapping[str, Any]], columns: Sequence[set[str]]) -> dict[str, Any]:
    """The statistics of the file that has the rows of those with these; `columns`: the names that each of them has. Pure.

    What one of them does not say, the merged one does not say either: whoever skips files by it would lose rows. Nested
    columns and decimals, which JSON's numbers do not hold, have only what is counted. Floats have no greatest value: to Spark
    that is NaN, and delta-rs leaves it out (column_bounds.py).
    """
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in schema:
        name = field.name
        counts = [_nulls(one, name, has=name in there) for one, there in zip(noted, columns, strict=True)]
        if None not in counts and not pa.types.is_nested(field.type):
            nulls[name] = sum(count or 0 for count in counts)
        with_values = [
            one for one, count in zip(noted, counts, strict=True) if count != one["num_records"] or count is None
        ]
        _bound(least, name, field.type, [_of(one, "min", name) for one in with_values], min)
        _bound(greatest, name, field.type, [_of(one, "max", name) for one in with_values], max)
    said: dict[str, Any] = {"minValues": least, "maxValues": greatest, "nullCount": nulls}
    if all(one["num_records"] is not None for one in noted):
        return {"numRecords": sum(one["num_records"] for one in noted), **said}
    return said


def _nulls(noted: Mapping[str, Any], name: str, *, has: bool) -> int | None:
    count: int | None = _of(noted, "null_count", name) if has else noted["num_records"]
    return count


def _of(noted: Mapping[str, Any], kind: str, name: str) -> Any:
    by_column: dict[str, Any] = noted.get(kind) or {}
    return by_column.get(name)


def _bound(
    said: dict[str, Any], name: str, kind: Any, values: Sequence[Any], choose: Callable[[Iterable[Any]], Any]
) -> None:
    if pa.types.is_nested(kind) or pa.types.is_decimal(kind) or not values or None in values:
        return
    if pa.types.is_floating(kind):
        if choose is min and all(isinstance(value, float) and math.isfinite(value) for value in values):
            said[name] = choose(values) or -0.0  # equal to 0.0, but not to each reader: it is to hold for both
        return
    bound = choose(values)
    if isinstance(bound, datetime):
        local = bound.astimezone(UTC).replace(tzinfo=None) if bound.tzinfo else bound
        said[name] = local.isoformat(timespec="milliseconds") + ("Z" if bound.tzinfo else "")
    elif isinstance(bound, date):
        said[name] = bound.isoformat()
    elif isinstance(bound, bool | int | str):
        said[name] = bound


def _as_text(value: object) -> str | None:
    """A partition's value as the log has it."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) else str(value)


def _entry(actions: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(action, ensure_ascii=False) + "\n" for action in actions).encode()


@contextlib.contextmanager
def _written(place: Path | ObjectPath, model: Path | ObjectPath) -> Generator[IO[bytes]]:
    """A new file to be written under the name that it keeps, with the rights of `model`: nobody reads it before the log
    names it, and what a kill leaves is known to the vacuum. It is on the disk when this ends."""
    if not isinstance(place, Path):
        data = io.BytesIO()
        yield data
        place.create(data.getvalue())
        return
    with place.open("xb") as file:
        if isinstance(model, Path):
            make_alike(file.fileno(), model)
        yield file
        file.flush()
        os.fsync(file.fileno())
    sync_path(place.parent)


def _only_adds(entry: bytes, taken: Collection[str]) -> bool:
    """Whether a commit has added files, none of `taken` anew, and done nothing else."""
    try:
        actions = actions_of(entry)
    except ValueError:
        return False
    return all(ADDS_FILES.issuperset(action) and action.get("add", {}).get("path") not in taken for action in actions)


def _read(entry: Path | ObjectPath) -> bytes | None:
    """An entry of the log; None where there is none yet."""
    try:
        return entry.read_bytes()
    except FileNotFoundError:
        return None


def _may_be_there(entry: Path | ObjectPath, data: bytes) -> bool:
    """Whether the entry is what we tried to make, or may become it: a store may do late what it has not answered."""
    try:
        return entry.read_bytes() == data
    except FileNotFoundError:
        return not isinstance(entry, Path)
    except OSError:
        return True


def _sweep(table: Path | ObjectPath, now_s: float) -> None:
    """Delete the drafts of entries that kills have left: of a folder only, a bucket has none. No vacuum knows them."""
    if not isinstance(table, Path):
        return
    with contextlib.suppress(OSError), os.scandir(table / LOG_DIR) as found:
        for one in found:
            if _DRAFT.fullmatch(one.name) and one.stat().st_mtime < now_s - DRAFT_S:
                Path(one.path).unlink(missing_ok=True)


def _create(entry: Path | ObjectPath, data: bytes, before: Path | ObjectPath) -> None:
    """Make an entry of the log, whole or not at all, and on the disk, with the rights of the one before. Raises
    FileExistsError where there is one."""
    if not isinstance(entry, Path):
        entry.create(data)
        return
    draft = entry.with_name(f".{entry.name}.{uuid.uuid4().hex}.new")
    try:
        with _written(draft, before) as file:
            file.write(data)
        os.link(draft, entry)  # unlike a rename, it never replaces
    finally:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
    sync_path(entry.parent)
