"""`rocketcrew broker convert`: a store whose log has another shape becomes one with segments of the configured size.

Stores whose segments have another size, as of genuine brokers with another mappedFileSizeCommitLog, are served as they are;
but a genuine broker opens a log only if all its segments have one size. So all records are written to a new log, in order,
each with its new position; queue offsets, store times and everything else stay. Message ids have the position in them, and
the new log begins above the end of the old one: ids that somebody has from before name nothing any more, and what a client
sends back by such an id is refused, never taken for another message. Unique keys and keys go on.

- What cannot be read whole is refused: damage, missing offsets, what only some genuine brokers write (refused_folders.py).
- The new store is made beside the old one, as `<folder>.converting`, and read whole: the same records in the same order, the
  same queues with the same ends. Only then the old folder is renamed to `<folder>.before-conversion`, and the new one takes
  its name. Nothing of the old one is deleted, ever.
- The old store is locked from the first look until the new one has its name: no broker writes to it meanwhile.
- A kill at any moment leaves the old store where it was, or beside a whole new one; the next run goes on from there. Until
  then no broker begins an empty store in its place. A store that has its shape already is left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from pathlib import Path

from ..durable.files import free_bytes
from ..remoting.errors import UsageError
from .checking import check
from .config import BrokerConfig
from .core import BrokerCore
from .disk import DiskStorage
from .log_scan import Kind, LogScan
from .log_writing import BLANK_MIN_BYTES, blank
from .message_store import LOG
from .pops import POPS_TABLE
from .recovery import Key
from .refused_folders import CONVERTED as DONE
from .refused_folders import CONVERTING
from .removed_topics import REMOVED, REMOVED_JOURNAL, removed_in
from .state import TOPICS_JOURNAL
from .storage import StorageError, StoredFile
from .timers import TIMERS_TABLE

BEFORE = ".before-conversion"
WRITE_BYTES = 1 << 20
_POSITION = slice(28, 36)  # of a record: its own place in the log
_KEPT_OUT = (REMOVED, REMOVED_JOURNAL, TOPICS_JOURNAL, "config/checkpoint.json")

Ends = dict[Key, tuple[int, int]]
Waiting = tuple[int, int]  # how many timers, and half messages, are open


@dataclass(frozen=True, slots=True)
class Converted:
    """What was done; `before` is where the old store is now, None when there was nothing to do."""

    records: int
    segments: int
    before: Path | None


def convert(folder: Path, config: BrokerConfig, now_ms: int) -> Converted:
    """Give the store in `folder` segments of `config.mapped_file_size_commit_log` bytes. Raises UsageError, StorageError."""
    fresh, before = folder.with_name(folder.name + CONVERTING), folder.with_name(folder.name + BEFORE)
    if (fresh / DONE).exists() and not folder.exists():
        return _take_over(folder, fresh, before)  # a kill came between the two renames
    _refuse_leftovers(folder, fresh, before)
    source = DiskStorage(folder, name=config.name)  # locked until the new one has its name
    try:
        if _has_shape(folder / LOG, config.mapped_file_size_commit_log):
            return Converted(0, len(list((folder / LOG).iterdir())), None)
        _refuse_taken_names(fresh, before)
        if fresh.exists():
            shutil.rmtree(fresh)  # an earlier conversion was cut short; the source has everything
        try:
            records = _copy(source, folder, fresh, replace(config, dir=str(folder)), now_ms)
        finally:
            source.end()
        if source.syncer.table_trouble is not None:  # it would be written after the renames, to the new store
            raise StorageError(source.syncer.table_trouble)
        with (fresh / DONE).open("w", encoding="ascii") as done:
            done.write(f"{records}\n")
            done.flush()
            os.fsync(done.fileno())
        _sync_folder(fresh)
        return _take_over(folder, fresh, before)
    finally:
        source.abandon()


def to_convert(folder: Path, config: BrokerConfig) -> int | None:
    """How many records `convert` would copy, None when there is nothing to do; nothing is changed.

    Raises as `convert` for what would be refused, but for what is found only while the tables are read."""
    fresh, before = folder.with_name(folder.name + CONVERTING), folder.with_name(folder.name + BEFORE)
    if (fresh / DONE).exists() and not folder.exists():
        return int((fresh / DONE).read_text(encoding="ascii"))
    _refuse_leftovers(folder, fresh, before)
    has_lock = (folder / "lock").exists()
    source = DiskStorage(folder, name=config.name)
    try:
        if _has_shape(folder / LOG, config.mapped_file_size_commit_log):
            return None
        _refuse_taken_names(fresh, before)
        _refuse_if_full(folder)
        report = check(source)
        if report.damaged:
            raise UsageError(f"{folder} has damage, and is not converted: `rocketcrew broker check` names it")
        return report.records
    finally:
        if not has_lock:
            (folder / "lock").unlink(missing_ok=True)  # while it is ours: who has it open finds that it has no name
        source.abandon()


def _refuse_leftovers(folder: Path, fresh: Path, before: Path) -> None:
    if (fresh / DONE).exists() and (before.exists() or not (folder / LOG).is_dir()):
        raise UsageError(
            f"a conversion of {folder} was cut short, and something else was put there since: the converted messages are in "
            f"{fresh}. Move {folder} away and run `rocketcrew broker convert` again to have those; or, to keep what is in "
            f"{folder} instead, move {fresh} and {before} away"
        )
    if not (folder / LOG).is_dir():
        raise UsageError(f"broker data folder {folder} has no {LOG}: there is nothing to convert")


def _refuse_taken_names(fresh: Path, before: Path) -> None:
    if before.exists():
        raise UsageError(f"{before} is there from an earlier conversion: move or remove it first")
    if fresh.exists() and not fresh.joinpath("lock").exists():
        raise UsageError(f"{fresh} is no store that a conversion began: move or remove it first")


def _copy(source: DiskStorage, folder: Path, fresh: Path, config: BrokerConfig, now_ms: int) -> int:
    """Make the new store and compare it; returns how many records it has."""
    ends, waiting, names = _settle(source, config, now_ms)
    _refuse_if_full(folder)
    _write(source, fresh, config.mapped_file_size_commit_log, names)
    return _compare(source, fresh, config, now_ms, ends, waiting)


def _take_over(folder: Path, fresh: Path, before: Path) -> Converted:
    """The new folder takes the name of the old one, which is kept under another name; both stay locked meanwhile."""
    taken = DiskStorage(fresh)
    try:
        if not (fresh / DONE).exists():
            raise UsageError(f"{folder} was converted by another process at this moment")
        records = int((fresh / DONE).read_text(encoding="ascii"))
        if folder.exists():
            folder.rename(before)
            _sync_folder(folder.parent)
        fresh.rename(folder)
        _sync_folder(folder.parent)
        (folder / DONE).unlink()
        return Converted(records, len(list((folder / LOG).iterdir())), before)
    finally:
        taken.abandon()


def _has_shape(log: Path, segment_bytes: int) -> bool:
    """Whether all segments have that size, and follow each other without holes."""
    starts = sorted(int(path.name) for path in log.iterdir())
    sizes = {path.stat().st_size for path in log.iterdir()}
    return sizes <= {segment_bytes} and all(after - start == segment_bytes for start, after in pairwise(starts))


def _settle(source: DiskStorage, config: BrokerConfig, now_ms: int) -> tuple[Ends, Waiting, list[str]]:
    """Start a broker on the old store and stop it, so that log and tables are whole; its queues' ends, what waits in it, and
    its tables."""
    core = BrokerCore(config, source, now_ms=now_ms)
    found = core.state.store.found
    while core.state.store.is_rebuilding:
        core.state.store.rebuild_some()
    if found.damaged_ranges or found.missing_offsets or source.aside():
        raise UsageError(
            f"the store in {config.dir} has lost something ({found.damaged_ranges} damaged ranges, {found.missing_offsets} "
            f"missing offsets, {len(source.aside())} parts in damaged/): it is served as it is, but not converted; "
            "`rocketcrew broker check` says where"
        )
    ends, waiting = ends_of(core), _waiting_in(core)
    core.stop()
    source.replace(
        TIMERS_TABLE, core.state.timers.dump(), sync=True
    )  # a genuine store has what was delivered elsewhere
    source.replace(POPS_TABLE, core.state.pops.table.dump(), sync=True)  # its journal is not copied
    folder = Path(config.dir) / "config"
    names = [f"config/{path.name}" for path in sorted(folder.iterdir()) if path.suffix == ".json"]
    return ends, waiting, [name for name in names if name not in _KEPT_OUT]


def ends_of(core: BrokerCore) -> Ends:
    """The first and the next offset of each queue."""
    store = core.state.store
    return {
        key: (store.min_offset(*key), store.max_offset(*key)) for key in store.queue_keys() if store.max_offset(*key)
    }


def _waiting_in(core: BrokerCore) -> Waiting:
    return len(core.state.timers), len(core.state.transactions)


def used_bytes(paths: Iterable[Path]) -> int:
    """What the files among `paths` take on the disk, without those that have gone: the store that is read writes its
    checkpoint meanwhile, by a file that is renamed."""
    used = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            used += found.st_blocks * 512 if stat.S_ISREG(found.st_mode) else 0
    return used


def _refuse_if_full(folder: Path) -> None:
    """The copy needs as much room again."""
    needed = used_bytes(folder.rglob("*"))
    free = free_bytes(folder)
    if free < needed + (64 << 20):
        raise UsageError(
            f"converting {folder} needs {needed >> 20} MiB beside it, and the disk has {free >> 20} MiB free"
        )


def _write(source: DiskStorage, fresh: Path, segment_bytes: int, tables: list[str]) -> None:
    target = DiskStorage(fresh)
    try:
        log, old = target.open(LOG, segment_bytes, buffered=False), source.open(LOG, segment_bytes, buffered=False)
        if old.end > old.start:  # above all old positions: none of those names another message now
            log.reset(-(-old.end // segment_bytes) * segment_bytes)
        removals = sorted((removed_in(source.load(REMOVED)) or {}).items(), key=lambda item: item[1])
        moved: dict[str, int] = {}
        waiting: list[bytes] = []
        position = log.end
        for at, record in records_of(old):
            while removals and removals[0][1] <= at:
                moved[removals.pop(0)[0]] = position
            if len(record) + BLANK_MIN_BYTES > segment_bytes:
                raise UsageError(
                    f"the record at {at} has {len(record)} bytes and does not fit into a segment of {segment_bytes} "
                    "(mapped_file_size_commit_log)"
                )
            room = segment_bytes - position % segment_bytes
            if room < len(record) + BLANK_MIN_BYTES:
                log.append(b"".join(waiting))
                log.roll(blank(room))
                waiting, position = [], position + room
            waiting.append(record[: _POSITION.start] + position.to_bytes(8, "big") + record[_POSITION.stop :])
            position += len(record)
            if len(waiting) * len(record) > WRITE_BYTES:
                log.append(b"".join(waiting))
                waiting = []
        log.append(b"".join(waiting))
        moved |= {topic: position for topic, _ in removals}
        for name in tables:
            target.replace(name, source.load(name) or b"", sync=True)
        target.replace(REMOVED, json.dumps(moved).encode(), sync=True)
        target.sync_now()
    finally:
        target.close()


def records_of(log: StoredFile) -> Iterator[tuple[int, bytes]]:
    """Position and bytes of each record. Raises UsageError at anything that cannot be read."""
    for part in LogScan(log, log.start, lambda _: True):
        if part.kind is Kind.RECORD:
            yield part.position, log.read(part.position, part.length_bytes)
        elif part.kind is not Kind.UNWRITTEN:
            raise UsageError(
                f"{part.length_bytes} bytes at {part.position} of the commit log cannot be read ({part.kind.value}): "
                "the store is served as it is, but not converted"
            )


def _compare(source: DiskStorage, fresh: Path, config: BrokerConfig, now_ms: int, ends: Ends, waiting: Waiting) -> int:
    """Read the new store whole beside the old one; returns how many records both have. Raises UsageError."""

    def differs(what: str) -> UsageError:
        return UsageError(f"the copy in {fresh} is not what {config.dir} has ({what}): the old store stays in use")

    target = DiskStorage(fresh)
    try:
        core = BrokerCore(replace(config, dir=str(fresh)), target, now_ms=now_ms)
        if ends_of(core) != ends:
            raise differs("ends of queues")
        while core.state.store.is_rebuilding:  # the index by keys: a genuine broker never looks back at what has none
            core.state.store.rebuild_some()
        if _waiting_in(core) != waiting:
            raise differs(f"open timers and transactions: {_waiting_in(core)}, not {waiting}")
        core.stop()
        count = 0
        segment_bytes = config.mapped_file_size_commit_log
        logs = (storage.open(LOG, segment_bytes, buffered=False) for storage in (source, target))
        for old, new in zip_longest(*map(records_of, logs)):
            if old is None or new is None or _without_position(old[1]) != _without_position(new[1]):
                raise differs(f"record {count} of the log")
            count += 1
        report = check(target)
        if not report.is_fine or report.records != count:
            raise differs("; ".join(report.lines()))
        return count
    finally:
        target.close()


def _without_position(record: bytes) -> bytes:
    return record[: _POSITION.start] + record[_POSITION.stop :]


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


__all__ = ["Converted", "convert", "ends_of", "records_of", "to_convert"]
