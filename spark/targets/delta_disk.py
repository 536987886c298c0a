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

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from ...durable.files import CALLS, FileCalls, sync_copy, sync_path
from ..delta_log import LOG_DIR, entry_of, is_delta
from ..errors import LoaderError
from ..object_store import STATE_DIR

_UNSYNCED_MAX: Final = 16
"""So many commits at the end of the log may not be on the disk: each is so for some milliseconds, and loaders are few."""


def first_unsynced(newest: int) -> int:
    """The oldest version that may not be on the disk when the table is at `newest`."""
    return max(newest - _UNSYNCED_MAX, 0)


def sync_commits(table: Path, first: int, last: int, *, anew: bool = False, calls: FileCalls = CALLS) -> None:
    """What commits from one version to another have written is on the disk when this returns. `anew`: as synced copies, where
    a sync may have failed before, since a second one says nothing; `check_commit` was asked before.

    A version whose entry is gone is older: a checkpoint has replaced it. The log's folder is not listed, as it has an entry
    for each of thousands of commits. Raises LoaderError for an entry that cannot be read.
    """

    def put(path: Path) -> None:
        if anew:
            sync_copy(path, calls=calls)
        else:
            sync_path(path, calls)

    log, there = table / LOG_DIR, [version for version in range(first, last + 1) if entry_of(table, version).exists()]
    folders = {table, log}
    for version in there:
        for added in _added(entry_of(table, version)):
            path = table / unquote(added["path"])
            if path.exists():  # a merge may have replaced it, and a vacuum deleted it
                put(path)
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
        path = table / unquote(added["path"])
        if unquote(added["path"]) in live and (fault := _fault(path, added)):
            raise LoaderError(
                f"version {version} of the Delta table {table} is not whole on the disk: {path} {fault}. The machine went"
                f" down or the disk failed before it was synced, and its segments are all here. {_way_out(table, version)}"
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
    return ""


def explain_no_log(table: Path) -> str:
    """What to do where there is no log beside what a first commit makes; empty for a folder of something else."""
    if not is_delta(table) and not (table / STATE_DIR).is_dir():
        return ""
    return f". Where the machine went down at the table's first batch: its segments are all here. {_way_out(table, 0)}"


def _way_out(table: Path, version: int) -> str:
    if version == 0 or not entry_of(table, version - 1).exists():
        return (
            "Move all in the table's folder but _rocketcrew to another place, and start again: the rows are loaded anew"
        )
    if entry_of(table, version + 1).exists():
        return (
            "Others have committed on top of it: load into a new table (spark.target) and consume again: rocketcrew reset"
            " --to earliest"
        )
    return (
        f"While nothing else uses the table, move {entry_of(table, version)} and, where they are, the checkpoint of that"
        " number and _last_checkpoint to another place, and start again: the rows are loaded anew"
    )


def _fault(path: Path, added: dict[str, Any]) -> str:
    """What is wrong with a file that a commit has added; empty when it reads as its writer says."""
    try:
        if path.stat().st_size != added["size"]:
            return f"has {path.stat().st_size} bytes, not {added['size']}"
        with pq.ParquetFile(path, page_checksum_verification=True) as opened:
            file: Any = opened
            rows = sum(batch.num_rows for batch in file.iter_batches())
    except (OSError, pa.ArrowException) as error:
        return f"cannot be read: {error}"
    noted = json.loads(added.get("stats") or "{}").get("numRecords", rows)
    return "" if rows == noted else f"has {rows} rows, not {noted}"


def _added(entry: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = entry.read_text(encoding="utf-8").splitlines()
        if not lines:  # its length was not on the disk yet; to delta-rs it is a version in which nothing happened
            raise ValueError("it is empty")
        for line in lines:
            if added := json.loads(line).get("add"):
                yield added
    except (ValueError, AttributeError) as error:
        table, version = entry.parent.parent, int(entry.stem)
        raise LoaderError(f"the entry {entry} of the log is damaged ({error}). {_way_out(table, version)}") from None
