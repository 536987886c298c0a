"""A Delta table on a disk of this host: neither delta-rs nor Spark syncs what it writes, so it is done here.

- Before a loader deletes the segments of a commit, and before it commits on top of another's, what is in the log so far is
  synced: entries, the files that they name, checkpoints, folders.
- A power cut before that may leave an entry whose files are not whole, and sizes prove nothing. So a commit that a loader
  finds made when it starts is read from beginning to end before it counts. One that is damaged is refused with what to do:
  its segments are still there. A whole one is copied, file by file, as its sync may have failed: the kernel then takes what
  is not on the disk for written, and a second sync succeeds. Nothing is ever taken out of a table here, as others may have
  read it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from ...durable.files import CALLS, FileCalls, SyncError, sync_copy, sync_path
from ..delta_log import LOG_DIR, actions_of, entry_of, is_delta
from ..errors import CONSUME_AGAIN, LoaderError
from ..table_columns import tried_batches

_UNSYNCED_MAX: Final = 16
"""So many commits at the end of the log may not be on the disk: each is so for some milliseconds, and loaders are few."""


def first_unsynced(newest: int) -> int:
    """The oldest version that may not be on the disk when the table is at `newest`."""
    return max(newest - _UNSYNCED_MAX, 0)


def sync_commits(table: Path, first: int, last: int, *, anew: bool = False, calls: FileCalls = CALLS) -> None:
    """What commits from one version to another have written is on the disk when this returns. `anew`: as synced copies, where
    a sync may have failed before, since a second one says nothing.

    A version whose entry is gone is older: a checkpoint has replaced it. The log's folder is not listed, as it has an entry
    for each of thousands of commits. Raises LoaderError for an entry that cannot be read, and for a file that is not whole
    where it is copied.
    """

    def put(path: Path, check: Callable[[Path], None] | None = None) -> None:
        if anew:
            sync_copy(path, calls=calls, check=check)
            return
        try:
            sync_path(path, calls)
        except SyncError:  # told once, and it may be another loader's file, whose own sync says yes then
            sync_copy(path, calls=calls, check=check)
            raise

    log, there = table / LOG_DIR, [version for version in range(first, last + 1) if entry_of(table, version).exists()]
    folders = {table, log}
    for version in there:
        for added in _added(entry_of(table, version)):
            path = table / unquote(added["path"])
            if path.exists():  # a merge may have replaced it, and a vacuum deleted it
                put(path, partial(_refuse_fault, table, version, added))
                folders.update(parent for parent in path.parents if parent.is_relative_to(table))
        put(entry_of(table, version))
        if (checkpoint := log / f"{version:020d}.checkpoint.parquet").exists():
            put(checkpoint)
    if there and (hint := log / "_last_checkpoint").exists():
        put(hint)
    for folder in sorted(folders, reverse=True):
        sync_path(folder, calls)


def check_commit(table: Path, version: int, live: Collection[str]) -> None:
    """Read all that the commit has added and that is `live`: the paths of the newest version, as names of files. Raises
    LoaderError when that is not what its writer wrote."""
    for added in _added(entry_of(table, version)):
        if unquote(added["path"]) in live:
            _refuse_fault(table, version, added, table / unquote(added["path"]))


def _refuse_fault(table: Path, version: int, added: dict[str, Any], path: Path) -> None:
    """`path` is the file, or a copy of it."""
    if fault := _fault(path, added):
        file = table / unquote(added["path"])
        raise LoaderError(
            f"version {version} of the Delta table {table} is not whole on the disk: {file} {fault}."
            " The machine went down or the disk failed before it was synced, and its segments are all here."
            f" {_way_out(table, version)}"
        )


def explain_torn_log(table: Path) -> str:
    """What to do where delta-rs cannot read the log; empty where a power cut is not the reason."""
    entries = sorted((table / LOG_DIR).glob("[0-9]*.json"))
    try:
        for entry in entries[-_UNSYNCED_MAX:]:
            list(_added(entry))
    except LoaderError as error:
        return f". {error}"
    if entries and int(entries[0].stem) and not list((table / LOG_DIR).glob("*.checkpoint*")):
        return f". The log has no entry of version 0. {_way_out(table, 0)}"
    return _explain_torn_checkpoint(table)


def _explain_torn_checkpoint(table: Path) -> str:
    """As `explain_torn_log`, of the newest checkpoint and of the one that is noted as the last. Without them the log is read
    from the newest whole one, or from its first entry: where an entry from there on is gone, they stay."""
    noted = table / LOG_DIR / "_last_checkpoint"
    found: dict[int, list[Path]] = {}
    for path in sorted((table / LOG_DIR).glob("[0-9]*.checkpoint*.parquet"), reverse=True):
        found.setdefault(int(path.name.partition(".")[0]), []).append(path)
    last = set(list(found)[:1])
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # one that is torn itself is passed over
        last.add(int(json.loads(noted.read_bytes())["version"]))
    base = next((version for version, files in found.items() if _whole(files)), -1)
    later = {version: files for version, files in found.items() if version > base or version in last}
    torn = sorted(path for files in later.values() for path in files if _torn(path))
    gone = not all(_whole(found.get(version, [])) for version in last)
    entries = {int(entry.stem) for entry in (table / LOG_DIR).glob("[0-9]*.json") if entry.stem.isdecimal()}
    if not (torn or gone) or not entries.issuperset(range(base + 1, max(entries | last, default=0) + 1)):
        return ""
    away = " and ".join(str(path) for path in (*torn, noted) if path.exists())
    return (
        ". The machine went down before the log's last checkpoint was synced, and the log's entries have all that it had."
        f" While nothing else uses the table, move {away} to another place, and start again"
    )


def _whole(checkpoint: Collection[Path]) -> bool:
    """Of files of one version: `<version>.checkpoint.parquet`, or all of `<version>.checkpoint.<part>.<parts>.parquet`."""
    good = [path.name.split(".")[2:-1] for path in checkpoint if not _torn(path)]
    return any(len(parts) < 2 or sum(one[1:] == parts[1:] for one in good) == int(parts[1]) for parts in good)


def _torn(path: Path) -> bool:
    try:
        _rows(path)
    except (OSError, pa.ArrowException):
        return True
    return False


def _rows(path: Path) -> int:
    with pq.ParquetFile(path, page_checksum_verification=True) as opened:
        file: Any = opened
        return sum(batch.num_rows for batch in file.iter_batches())


def explain_no_log(table: Path) -> str:
    """What to do where the log of a table of ours is gone; empty for a folder of something else."""
    if is_delta(table) or max(tried_batches(table), default=1) == 1:
        return ""
    return (
        f". It was a table of rocketcrew, and its log {table / LOG_DIR} is gone: put it back, or load into a new table"
        f" (spark.target), {CONSUME_AGAIN}"
    )


def _way_out(table: Path, version: int) -> str:
    if version == 0 or not entry_of(table, version - 1).exists():
        return (
            "While nothing else uses the table, move all in its folder but _rocketcrew to another place, and start again: the"
            " rows are loaded anew"
        )
    if entry_of(table, version + 1).exists():
        return f"Others have committed on top of it: load into a new table (spark.target), {CONSUME_AGAIN}"
    return (
        f"While nothing else uses the table, move {entry_of(table, version)} and, where they are, the checkpoint of that"
        " number and _last_checkpoint to another place, and start again: the rows are loaded anew"
    )


def _fault(path: Path, added: dict[str, Any]) -> str:
    """What is wrong with a file that a commit has added; empty when it reads as its writer says."""
    try:
        if path.stat().st_size != added["size"]:
            return f"has {path.stat().st_size} bytes, not {added['size']}"
        rows = _rows(path)
    except (OSError, pa.ArrowException) as error:
        return f"cannot be read: {error}"
    noted = json.loads(added.get("stats") or "{}").get("numRecords", rows)
    return "" if rows == noted else f"has {rows} rows, not {noted}"


def _added(entry: Path) -> Iterator[dict[str, Any]]:
    try:
        actions = actions_of(entry.read_bytes())
        if not actions:  # its length was not on the disk yet; to delta-rs it is a version in which nothing happened
            raise ValueError("it is empty")
        for action in actions:
            if added := action.get("add"):
                yield added
    except (ValueError, AttributeError) as error:
        table, version = entry.parent.parent, int(entry.stem)
        raise LoaderError(f"the entry {entry} of the log is damaged ({error}). {_way_out(table, version)}") from None
