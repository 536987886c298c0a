"""A Delta table on a disk of this host: neither delta-rs nor Spark syncs what it writes, so it is done here.

- Before a loader deletes the segments of a commit, the commit's entry in the log, the files that it names and their folders
  are synced: `sync_commits`.
- A power cut before that may leave an entry without its files, and sizes prove nothing. So a note is written ahead, with the
  boot of the machine: `announce`. What is found at a start of the same boot is synced, as only a process died. After another
  boot nobody knows what the disk has: the entry is taken out of the log, and the plan, whose segments are all there, is run
  again. Whoever commits on top of an entry that is announced syncs that first, so only the newest is ever taken out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count, takewhile
from pathlib import Path
from socket import gethostname
from typing import Final
from urllib.parse import unquote

import structlog

from ...durable.files import remove_tree, sync_path, write_atomically

LOG_DIR: Final = "_delta_log"
NOTE: Final = "committing-"
"""A file beside the states: `committing-<first version that it may become>-<plan id>`, its text the boot."""


def boot_id() -> str:
    """This host, and what is another one after each of its starts; without that where nobody says."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return f"{gethostname()} {boot}"


def went_down(noted: str, boot: str) -> bool:
    """Whether the machine of the note has started anew since. What another host has announced may be under way."""
    host, _, before = noted.partition(" ")
    here, _, now = boot.partition(" ")
    return host == here and bool(before) and bool(now) and before != now


def versions(table: Path, first: int) -> list[int]:
    """Those from `first` on. The folder is not listed: it has an entry for each of thousands of commits."""
    return list(takewhile(lambda version: entry_of(table, version).exists(), count(first)))


def entry_of(table: Path, version: int) -> Path:
    return table / LOG_DIR / f"{version:020d}.json"


def announce(table: Path, notes: Path, first: int, plan_id: str, boot: str) -> Path:
    """The note that a commit is to come, as version `first` or later; what others have announced is synced before that, as
    the commit goes on top of it."""
    others = list(notes.glob(f"{NOTE}*"))
    if others:
        sync_commits(table, min(map(first_of, others)))
    note = notes / f"{NOTE}{first}-{plan_id}"
    write_atomically(note, boot, durable=True)
    return note


def sync_commits(table: Path, first: int) -> None:
    """What commits from that version on have written is on the disk. A version that a checkpoint has replaced is older."""
    folders = {table, table / LOG_DIR}
    for version in versions(table, first):
        for path in _added(table, entry_of(table, version)):
            if path.exists():  # a compaction may have replaced it, and a vacuum deleted it
                sync_path(path)
                folders.update(parent for parent in path.parents if parent.is_relative_to(table))
        sync_path(entry_of(table, version))
    for folder in sorted(folders, reverse=True):
        sync_path(folder)


def is_made(table: Path, note: Path) -> None:
    """The announced commit was made: it is on the disk, and its note is not, when this returns."""
    sync_commits(table, first_of(note))
    note.unlink(missing_ok=True)
    sync_path(note.parent)


def settle(table: Path, notes: Path, boot: str) -> None:
    """Deal with commits that were announced, and not synced by who made them. A loader that runs syncs its own too."""
    for note in sorted(notes.glob(f"{NOTE}*"), key=first_of):
        try:
            noted = note.read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        if not went_down(noted, boot):
            sync_commits(table, first_of(note))
            continue
        _take_back(table, notes, first_of(note), note.name.split("-", 2)[2])
        note.unlink(missing_ok=True)
        sync_path(notes)


def _take_back(table: Path, notes: Path, first: int, plan_id: str) -> None:
    """Take the plan's entry out of the log if it is the newest. With a table's first commit goes all that there is of it.
    What is taken out is kept with the states."""
    there = versions(table, first)
    if first == 0 and len(there) <= 2:  # the entry that made the table, and the commit's
        gone = [path for path in table.iterdir() if path != notes]
    elif there and _is_of(entry_of(table, there[-1]), plan_id):
        gone = [entry_of(table, there[-1])]
    else:
        return
    kept = notes / f"taken-back-{plan_id}"
    remove_tree(kept)
    kept.mkdir()
    for path in gone:
        path.rename(kept / path.name)
        sync_path(path.parent)
    if gone:
        structlog.get_logger().warning("delta_commit_taken_back", table=str(table), plan=plan_id, kept=str(kept),
                                       reason="the machine went down before it was on the disk")  # fmt: skip


def _is_of(entry: Path, plan_id: str) -> bool:
    """Whether the entry names the plan, or is damaged, as what was synced is not."""
    try:
        text = entry.read_text(encoding="utf-8")
        for line in text.splitlines():
            json.loads(line)
    except ValueError:
        return True
    return plan_id in text or not text.strip()


def first_of(note: Path) -> int:
    """The first version that the announced commit may have become."""
    return int(note.name.removeprefix(NOTE).partition("-")[0])


def _added(table: Path, entry: Path) -> Iterator[Path]:
    for line in entry.read_text(encoding="utf-8").splitlines():
        added = json.loads(line).get("add")
        if added is not None:
            yield table / unquote(added["path"])
