"""Small files of a table made into large ones, in one step that readers and loaders see whole or not at all.

A Parquet table is written anew beside itself and exchanged for it:

    (swept)     PARENT/.<table>.compact is what an earlier run left: a draft, or the table as it was. Deleted
    merged      groups of neighbouring batches are one folder each in the draft, named as their last batch
    linked      all other batches are hard links in the draft; it is on the disk
    exchanged   THE COMMIT: draft and table have changed names by one system call (renameat2)
    removed     the table as it was is deleted

Whoever dies leaves either the old table or the new one in its place, and the other one under the draft's name, to be swept.
The last batch's state goes along, so loaders go on as if nothing had happened; they hold a shared lock on the table's folder
while they write a batch, and the exchange waits for a moment without one. Merged rows get the number of their group's last
batch as their batch_id: Spark and DuckDB take it from the folder's name, also where the file has such a column, and pyarrow
refuses both together. The other numbers of the group are names that are free again, and stay taken: a loader that planned one
of them before finds, under its lock, that the table has gone on, and plans anew (targets/parquet.py).

A reader sees each row once: the old files or the new ones. One that listed the old folder and opens its files only after the
exchange finds some of them gone, and has to begin again. Linux only, and file systems that can exchange folders (ext4, xfs,
btrfs, tmpfs, overlayfs; not NFS): others are refused before anything is changed.

A Delta table's files are merged in one commit of its log, as the loader does it (delta_merging.py).

Root works as the table's owner (rights.py), so all of a Parquet table is to be of one user. Where only root changes names in
the folder above, lock, draft and exchange are root's, and the table's folder itself may be root's too.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import shutil
import stat
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow
import pyarrow.parquet

from ..client.clock import wall_ms
from ..durable.files import remove_tree, sync_path, sync_tree
from ..remoting.errors import UsageError
from .delta_files import own_files
from .delta_log import LOG_DIR, entry_of, is_delta
from .delta_merging import PASSED_MAX, groups_to_merge, merge_small_files
from .errors import LoaderError, unreadable, unusable
from .iceberg_catalog import is_iceberg
from .merged_file import compression_of, open_part, schema_of, write_merged
from .merging import MergeBounds
from .object_store import Place
from .outcome_levels import joined, read_part
from .rights import Rights, as_owner_of, as_root, give, is_root_s, mode_beside, rights_of, set_rights
from .table_keys import check_ours
from .table_lock import lock_compact, locked_table, only_merge
from .table_state import read_state
from .targets.delta import DeltaTarget, append_by_delta_rs, delta_rs, open_log
from .targets.delta_disk import first_unsynced, sync_commits
from .targets.local_folder import TMP_DIR, data_files
from .targets.parquet import OUTCOMES_FILE, STATE_FILE, batch_folder, batch_folders, folder_outcomes
from .views import nothing_loaded

pa: Any = pyarrow
pq: Any = pyarrow.parquet

POINTS: Final = ("merged", "linked", "exchanged", "removed")
DELTA_TRIES: Final = 5
"""Of a merge that others' commits have overtaken."""
LOCK_WAIT_S: Final = 600.0
"""How long a moment is waited for in which no loader writes."""
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_UNFINISHED: Final = 0o700
"""The rights of a folder until it has those of the one that it replaces."""
_KINDS: Final = 2
"""Of rights in batches that may become one: those of all folders, and those of all files."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What was done: files before and after, both of the whole table."""

    files_before: int
    files_after: int
    files_apart: int = 0
    """Of a Parquet table's, those that would be merged but for their owner, group, mode or ACL."""


@dataclass(frozen=True, slots=True)
class BatchSize:
    """One batch of the table: the bytes of its data files, by the folder below the batch's own that they lie in."""

    batch: int
    sizes: Mapping[str, Sequence[int]]


def groups_of(
    batches: Sequence[BatchSize], file_bytes: int, rights: Callable[[int], frozenset[Rights]] = lambda _: frozenset()
) -> list[list[int]]:
    """Neighbouring batches that fit into one file together, where that saves files; `rights`: those that a batch's folders
    and files have, asked for at last, as it looks at each file. Pure, and one look at each batch."""
    groups: list[list[int]] = []
    rights_once = functools.cache(rights)
    open_group = _Group(file_bytes, rights_once)
    for one in batches:
        if not open_group.takes(one):
            groups += open_group.found()
            open_group = _Group(file_bytes, rights_once)
        open_group.add(one)
    return groups + open_group.found()


class _Group:
    """Batches that may become one: of each folder below theirs, the bytes and the number of files so far."""

    def __init__(self, file_bytes: int, rights: Callable[[int], frozenset[Rights]]) -> None:
        self._file_bytes = file_bytes
        self._rights_of = rights
        self._batches: list[int] = []
        self._unasked: list[int] = []
        self._rights: frozenset[Rights] = frozenset()
        self._stays = False
        self._bytes: Counter[str] = Counter()
        self._files: Counter[str] = Counter()

    def takes(self, one: BatchSize) -> bool:
        """Whether no folder's file would be too large, and nobody may read it who may not read all of its rows; whatever
        comes first is let in."""
        if not self._batches:
            return True
        return (
            not self._stays
            and all(self._bytes[folder] + sum(sizes) <= self._file_bytes for folder, sizes in one.sizes.items())
            and len(self._all_rights() | self._rights_of(one.batch)) <= _KINDS
        )

    def add(self, one: BatchSize) -> None:
        self._batches.append(one.batch)
        self._unasked.append(one.batch)
        for folder, sizes in one.sizes.items():
            self._bytes[folder] += sum(sizes)
            self._files[folder] += len(sizes)
            self._stays |= self._bytes[folder] > self._file_bytes

    def found(self) -> list[list[int]]:
        """The group, where it saves files."""
        saves = not self._stays and any(count > 1 for count in self._files.values())
        return [self._batches] if saves and len(self._all_rights()) <= _KINDS else []

    def _all_rights(self) -> frozenset[Rights]:
        while self._unasked:
            self._rights |= self._rights_of(self._unasked.pop())
        return self._rights


def compact(table: Place, file_bytes: int, on_point: Callable[[str], None] = lambda _: None) -> Compacted:
    """Compact the table at `table`. Raises UsageError, LoaderError; the table is whole in any case."""
    table = _resolved(table)
    with _as_owner(table):
        if _is_delta(table):
            return _compact_delta(table, file_bytes, on_point)
        return _Exchange(_parquet(table), file_bytes, on_point).run()


def to_merge(table: Place, file_bytes: int) -> tuple[int, int]:
    """How many files of the table `compact` would merge, and how many it has; nothing is changed. Raises as `compact`."""
    table = _resolved(table)
    with _as_owner(table):
        return _to_merge(table, file_bytes)


def _resolved(table: Place) -> Place:
    """Where links lead: the name that is exchanged is the folder's own, and not that of a link to it."""
    return Path(os.path.realpath(table)) if isinstance(table, Path) else table


def _to_merge(table: Place, file_bytes: int) -> tuple[int, int]:
    if _is_delta(table):
        log, bounds = open_log(table), MergeBounds.all_small(file_bytes)
        try:
            merged = groups_to_merge(table, log, bounds)
        except LoaderError as error:
            raise _not_compacted(table, str(error)) from None
        return sum(map(len, merged)), len(own_files(table, log.get_add_actions()))
    folders = batch_folders(found := _parquet(table))
    _hand_above(found)
    files = {batch: len(data_files(folder)) for batch, folder in folders.items()}
    groups = _groups_in(folders, file_bytes)
    return sum(files[batch] for group in groups for batch in group), sum(files.values())


@contextmanager
def _as_owner(table: Place) -> Generator[None]:
    """Of a folder: whose it is, or, where it is root's, as a volume may be, whose the log or the batches in it are."""
    if not isinstance(table, Path):
        yield
        return
    try:
        owner = table.stat()
    except FileNotFoundError:
        raise nothing_loaded(table) from None
    except OSError as error:
        raise UsageError(f"the table folder {table} can't be read: {error}") from None
    if owner.st_uid == 0:
        owner = next(_others_in(table), owner)
    if owner.st_uid and is_delta(table):
        delta_rs()  # imported as root
    with as_owner_of(table, owner):
        yield


def _others_in(table: Path) -> Iterator[os.stat_result]:
    """The log's and the batches' folders, the newest first, that are not root's."""
    for folder in (table / LOG_DIR, *reversed(batch_folders(table).values())):
        with contextlib.suppress(OSError):
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid:
                yield found


_Hand = Callable[[], contextlib.AbstractContextManager[None]]


def _hand_above(table: Path) -> _Hand:
    """As whom names in the folder above the table are made and changed. Raises UsageError."""
    writes = functools.partial(os.access, mode=os.W_OK | os.X_OK, effective_ids=True)
    if not writes(table):
        raise UsageError(
            f"{table} can't be written by user {os.geteuid()}: run it as the user that loads it, and where its file system is"
            " mounted for writing"
        )
    if is_root_s(table.parent):
        return as_root
    if (owner := table.stat().st_uid) != os.geteuid():
        raise UsageError(
            f"{table} belongs to user {owner}, and user {os.geteuid()} can't make another such folder: give all of the table"
            " to one user (chown -R), and compact it as that user, or as root"
        )
    if writes(table.parent):
        return contextlib.nullcontext
    raise UsageError(
        f"the folder {table.parent} can't be written by user {os.geteuid()}, and a compacted table is made there: give it to"
        " him (chown), or run compact as root where it and all folders above it are root's, and no others may write there"
    )


def _is_delta(table: Place) -> bool:
    """Whether it is a Delta table with a batch. Raises UsageError for one without."""
    if not is_delta(table):
        return False
    if not DeltaTarget(table, append_by_delta_rs, lambda: None).state().batch:
        raise nothing_loaded(table)
    return True


def _parquet(table: Place) -> Path:
    """The folder of a Parquet table that has a batch. Raises UsageError for anything else."""
    if is_iceberg(table):
        raise UsageError(
            f"{table} is an Iceberg table, whose files pyiceberg does not merge: have Spark do it (CALL"
            " system.rewrite_data_files), beside the loader if you like"
        )
    if not isinstance(table, Path):
        raise nothing_loaded(table)
    folders = batch_folders(table)
    if not folders:
        raise nothing_loaded(table)
    read_state(folders[max(folders)] / STATE_FILE)
    return table


def _compact_delta(table: Place, file_bytes: int, on_point: Callable[[str], None]) -> Compacted:
    library = delta_rs()
    with only_merge(table) as alone:
        if not alone:
            raise LoaderError(f"another compact works on {table}, or its loader merges files: wait for its end")
        for _ in range(DELTA_TRIES):
            opened = open_log(table)
            before, read = len(own_files(table, opened.get_add_actions())), int(opened.version())
            if isinstance(table, Path):
                sync_commits(table, first_unsynced(read), read)
            try:
                bounds = MergeBounds.all_small(file_bytes)
                with _umask_for(entry_of(table, read)):
                    done = merge_small_files(table, opened, bounds, wall_ms(), on_point)
            except FileExistsError:
                continue
            except (library.exceptions.DeltaError, LoaderError, OSError) as error:
                raise _not_compacted(table, str(error)) from None
            except Exception as error:
                raise _not_compacted(table, f"{type(error).__name__}: {error}") from error
            if done and int(opened.version()) == read:  # the commit stands, and the log could not be read again
                return Compacted(before, before - done.files + done.into)
            return Compacted(before, len(opened.file_uris()))
    why = f"{DELTA_TRIES} times others have deleted or merged rows of it meanwhile, or made more than {PASSED_MAX} commits"
    raise _not_compacted(table, f"{why}: try it when less is written")


@contextmanager
def _umask_for(model: Place) -> Generator[None]:
    """One that keeps out nobody whom the model lets in. delta-rs names a checkpoint before we can give it rights: were we
    killed there, the loader might not read it, and so not the table. It is the whole process's, so not for loaders."""
    mode = 0
    with contextlib.suppress(OSError):
        mode = mode_beside(model) if isinstance(model, Path) else 0
    before = os.umask(0o077)
    try:
        os.umask(before & ~mode)
        yield
    finally:
        os.umask(before)


def _not_compacted(table: Place, why: str) -> LoaderError:
    return LoaderError(f"{table} was not compacted: {why}. Nothing is lost; no row has changed")


class _Exchange:
    """One compaction of a Parquet table."""

    def __init__(self, table: Path, file_bytes: int, on_point: Callable[[str], None]) -> None:
        self._table = table
        self._draft = table.with_name(f".{table.name}.compact")
        self._file_bytes = file_bytes
        self._on_point = on_point
        self._exchanged = False
        self._above = _hand_above(table)

    def run(self) -> Compacted:
        with self._alone():
            self._remove()
            folders = batch_folders(self._table)
            before = sum(len(data_files(folder)) for folder in folders.values())
            groups = _groups_in(folders, self._file_bytes)
            apart = _apart(folders, groups, self._file_bytes)
            if not groups:
                return Compacted(before, before, apart)
            try:
                self._write([[folders[batch] for batch in group] for group in groups])
                self._replace(groups)
            except Exception:
                if not self._exchanged:
                    self._remove()  # a disk that was too small for it gets its room back
                raise
            self._on_point("exchanged")
            self._remove()
            self._on_point("removed")
            after = sum(len(data_files(folder)) for folder in batch_folders(self._table).values())
            return Compacted(before, after, apart)

    def _remove(self) -> None:
        try:
            remove_tree(self._draft)
        except PermissionError:
            with self._above():
                self._draft.rmdir()  # what is in it is its user's to delete

    @contextmanager
    def _alone(self) -> Generator[None]:
        path = self._table.with_name(f"{self._draft.name}.lock")
        try:
            with self._above():
                lock = lock_compact(path, self._table)
        except OSError as error:
            raise unusable(f"the folder {self._table.parent} can't be written by user {os.geteuid()}", error) from None
        if lock is None:
            raise LoaderError(f"another compaction works on {self._table}: wait for its end")
        try:
            yield
        finally:
            with self._above():
                path.unlink(missing_ok=True)  # another user can't lock a file of ours
            os.close(lock)

    def _write(self, groups: Sequence[Sequence[Path]]) -> None:
        """The draft, with a folder for each group."""
        user = os.geteuid()
        with self._above():
            self._draft.mkdir(_UNFINISHED)
            os.lchown(self._draft, user, -1)
        if self._above is not as_root:
            _given(give, self._draft, rights_of(self._table))
        _can_exchange(self._draft)
        for group in groups:
            self._merge(group)
        self._on_point("merged")

    def _merge(self, folders: Sequence[Path]) -> None:
        """One folder in the draft in place of several, with one file, or one for each partition."""
        last = folders[-1]
        output = self._draft / last.name
        _make_folder(output, last)
        parts: dict[Path, list[Path]] = {}
        alike = {output: rights_of(last)}
        for folder in folders:
            for file in data_files(folder):
                parts.setdefault(file.parent.relative_to(folder), []).append(file)
        for place, files in parts.items():
            merged = output / place / f"part-00000-{time.time_ns():x}.compact.parquet"
            within = len(place.parts)
            levels = zip(merged.parents[:within], files[-1].parents[:within], strict=True)
            for folder, model in reversed(list(levels)):
                if not folder.exists():
                    _make_folder(folder, model)
                    alike[folder] = rights_of(model)
            merge_files(files, merged)
            alike[merged] = rights_of(files[-1])
        with contextlib.suppress(FileNotFoundError):  # old batches have none any more, and loaders go on to delete them
            rights = rights_of(last / STATE_FILE)
            shutil.copyfile(last / STATE_FILE, output / STATE_FILE)
            alike[output / STATE_FILE] = rights
        for made, rights in reversed(alike.items()):  # the folders at last, as these let others in
            make_like(rights, made)

    def _gather_outcomes(self, groups: Sequence[Sequence[int]]) -> None:
        """The outcomes of each group's batches, into the group's folder; under the lock, as loaders merge these files too."""
        known = folder_outcomes(self._table, max(map(max, groups))).parts()
        parts = {part.first: part for part in known if not part.level}
        for group in groups:
            of_group = [parts[batch] for batch in group if batch in parts]
            told = [read_part(part) for part in of_group]
            if any(one.rows is not None or one.outcomes for one in told):
                file = batch_folder(self._draft, group[-1]) / OUTCOMES_FILE
                file.write_bytes(joined(told).pack())
                newest = max(part.path.stat().st_mtime for part in of_group if part.path is not None)
                os.utime(file, (newest, newest))  # they are forgotten by that
                make_like(rights_of(data_files(file.parent)[0]), file)

    def _replace(self, groups: Sequence[Sequence[int]]) -> None:
        merged = {batch for group in groups for batch in group}
        with ThreadPoolExecutor(2, "compact") as threads, locked_table(self._table, fcntl.LOCK_EX, LOCK_WAIT_S):
            self._gather_outcomes(groups)
            left_out = {self._table / TMP_DIR, *(batch_folder(self._table, batch) for batch in merged)}
            for entry in self._table.iterdir():
                if entry not in left_out:
                    _link(entry, self._draft / entry.name)
            rights = rights_of(self._table)
            with self._above():
                if self._above is as_root:
                    os.lchown(self._draft, rights.user, -1)
                make_like(rights, self._draft)  # at last: none of its group is to be in there before
            sync_tree(self._draft, threads)
            self._on_point("linked")
            with self._above():
                exchange(self._draft, self._table)
                self._exchanged = True
                sync_path(self._table.parent)


def _groups_in(folders: Mapping[int, Path], file_bytes: int) -> list[list[int]]:
    sizes = [_size(batch, folder) for batch, folder in folders.items()]
    return groups_of(sizes, file_bytes, lambda batch: _rights_in(folders[batch]))


def _apart(folders: Mapping[int, Path], groups: Sequence[Sequence[int]], file_bytes: int) -> int:
    """How many files are in none of the groups, and would be without their rights."""
    sizes = [_size(batch, folder) for batch, folder in folders.items()]
    left = {batch for group in groups_of(sizes, file_bytes) for batch in group}.difference(*groups)
    return sum(len(data_files(folders[batch])) for batch in left)


def _size(batch: int, folder: Path) -> BatchSize:
    sizes: dict[str, list[int]] = {}
    for file in data_files(folder):
        sizes.setdefault(str(file.parent.relative_to(folder)), []).append(file.stat().st_size)
    return BatchSize(batch, sizes)


def _rights_in(folder: Path) -> frozenset[Rights]:
    paths = {folder}
    for file in data_files(folder):
        paths.update((file, *file.parents[: len(file.parent.relative_to(folder).parts)]))
    return frozenset(map(rights_of, paths))


def _link(entry: Path, target: Path) -> None:
    if not entry.is_dir():
        os.link(entry, target)
        return
    _make_folder(target, entry)
    for below in entry.iterdir():
        _link(below, target / below.name)
    make_like(rights_of(entry), target)


def _make_folder(made: Path, model: Path) -> None:
    """For us alone, and refused before there is work in it that can't be given away."""
    made.mkdir(_UNFINISHED)
    _given(give, made, rights_of(model))


def make_like(rights: Rights, made: Path) -> None:
    """Give what was made the group and rights of what it replaces: nobody reads what was not for him. Raises LoaderError
    where this user can't, or is not the one who has that."""
    _given(set_rights, made, rights)


def _given(how: Callable[[Path, Rights], None], made: Path, rights: Rights) -> None:
    try:
        how(made, rights)
    except OSError as error:
        remedy = (
            "put him into that group, or give all of the table a group that he is in (chgrp -R)"
            if rights.user == os.geteuid()
            else "give all of the table to one user (chown -R), and compact it as that user and a member of group"
            f" {rights.group}"
        )
        raise LoaderError(
            f"what {made} replaces belongs to user {rights.user} and group {rights.group}, and it can't be given to them by"
            f" user {os.geteuid()} ({error.strerror}): {remedy}. The table stays as it is"
        ) from None


def merge_files(files: Sequence[Path], output: Path) -> None:
    """All rows of `files`, in order, as one file; columns that some lack are null there. Raises LoaderError."""
    opened = [_opened(file) for file in files]
    for file, one in zip(files, opened, strict=True):
        check_ours(file, one.schema_arrow.names)
    try:
        schema = pa.unify_schemas([schema_of(one) for one in opened])
    except pa.ArrowException as error:
        raise LoaderError(
            f"{files[0]} and its neighbours have other columns: {error}. The table stays as it is"
        ) from None
    rows = (pa.Table.from_batches([batch]) for batch in _batches(files, opened))
    write_merged(rows, schema, str(output), compression_of(opened[0]))
    found = pq.read_metadata(str(output)).num_rows
    wanted = sum(one.metadata.num_rows for one in opened)
    if found != wanted:
        raise LoaderError(f"{output} has {found} rows, its parts had {wanted}: the table stays as it is")


def _opened(file: Path) -> Any:
    try:
        return open_part(str(file))
    except (pa.ArrowException, OSError) as error:
        raise _damaged(file, error) from None


def _batches(files: Sequence[Path], opened: Sequence[Any]) -> Iterator[Any]:
    for file, one in zip(files, opened, strict=True):
        try:
            yield from one.iter_batches()
        except (pa.ArrowException, OSError) as error:
            raise _damaged(file, error) from None


def _damaged(file: Path, error: Exception) -> LoaderError:
    return LoaderError(f"{unreadable(file, error)}. The table stays as it is")


def _can_exchange(folder: Path) -> None:
    """Try it on two empty folders. Raises UsageError."""
    one, two = folder / ".one", folder / ".two"
    one.mkdir()
    two.mkdir()
    try:
        exchange(one, two)
    finally:
        one.rmdir()
        two.rmdir()


def exchange(one: Path, two: Path) -> None:
    """Exchange the names of two folders of one file system in one step. Raises UsageError where that can't be done."""
    libc = ctypes.CDLL(None, use_errno=True)
    renameat2 = getattr(libc, "renameat2", None)
    code = errno.ENOSYS
    if renameat2 is not None:
        if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(two), _RENAME_EXCHANGE) == 0:
            return
        code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        raise UsageError(
            f"the file system of {two} can't exchange two folders ({os.strerror(code)}), so a Parquet table on it can't be"
            " compacted under its readers: use a delta table there"
        )
    raise OSError(code, os.strerror(code), str(two))
