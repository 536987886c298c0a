"""Offsets of a broadcasting member: in a file of its own, with Java's path and form (LocalFileOffsetStore.java).

`<folder>/<client id>/<group>/offsets.json`, the folder being ~/.rocketmq_offsets unless it is configured. The file is a JSON
object whose `offsetTable` has message queues as keys, written raw as fastjson does; Java reads ours and we read Java's, so
that a member may be replaced by one of the other kind. What was there before lies beside it as `.bak` and is read when the
file is damaged or empty. Java overwrites in place; here a new file, which is on the disk, takes the old one's name, so that a
kill and a loss of power leave a whole one.

Queues in the file that are not ours stay in it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from ...conf.settings import ConsumerSettings
from ...durable.files import CALLS, FileCalls, make_folders, write_atomically
from ...durable.room import NO_ROOM
from ...remoting.errors import ProtocolError, RocketcrewError, UsageError
from ...remoting.fastjson import dumps_object_keys, is_object, loads
from ...remoting.queues import MessageQueue
from ..core import events as ev
from ..core.actions import Commit
from ..core.decisions import Core

DEFAULT_FOLDER = ".rocketmq_offsets"
FILE_NAME = "offsets.json"
FILE_BYTES_MAX = 16 << 20

log = structlog.get_logger("rocketcrew.member")


def offsets_path(folder: str, client_id: str, group: str, home: Path) -> Path:
    """Where Java keeps the file; `folder` empty = the default one below the user's `home`."""
    return (Path(folder) if folder else home / DEFAULT_FOLDER) / client_id / group / FILE_NAME


def own_offsets_path(consumer: ConsumerSettings, client_id: str, home: Callable[[], Path] = Path.home) -> Path:
    """The file of this member. Raises UsageError where no folder is configured, and the user has no home."""
    try:
        default = Path() if consumer.local_offset_store_dir else home()
    except RuntimeError as error:  # a container whose user is in no passwd, without HOME
        raise UsageError(
            f"the offsets of this broadcasting member have no folder: {error} Name one that stays:"
            " consumer.local_offset_store_dir"
        ) from error
    return offsets_path(consumer.local_offset_store_dir, client_id, consumer.group, default)


def check_offsets_folder(path: Path) -> None:
    """Refuse a folder in which the file at `path` cannot be made: without it a member begins anew at each start, and what
    came in meanwhile is never handled. Raises UsageError, or RocketcrewError where the disk is full."""
    probe = path.with_name(f".{FILE_NAME}.probe")
    try:
        make_folders(path.parent)
        write_atomically(probe, "", durable=False)
        probe.unlink(missing_ok=True)
    except OSError as error:
        said = f"the offsets of this broadcasting member cannot be kept in {path.parent}: {error.strerror or error}"
        if error.errno in NO_ROOM:
            raise RocketcrewError(f"{said}. Make room on that disk, and start again") from error
        raise UsageError(
            f"{said}. Set consumer.local_offset_store_dir to a folder that this user may write, on a disk that stays"
        ) from error


def are_kept(path: Path) -> bool:
    """Whether the member has kept offsets: its file is there, or the one before it."""
    return path.exists() or _bak_of(path).exists()


def _bak_of(path: Path) -> Path:
    return path.with_name(FILE_NAME + ".bak")


def kept_by_others(path: Path) -> dict[str, float]:
    """Client ids beside this member's that have kept offsets for its group, Java's too, and when they last did."""
    own, group = path.parent.parent, path.parent.name
    found: dict[str, float] = {}
    with contextlib.suppress(PermissionError):  # a folder that only those see into who know its names
        for folder in own.parent.iterdir():
            with contextlib.suppress(OSError):  # of another group alone, or another user's
                if folder != own:
                    found[folder.name] = (folder / group / FILE_NAME).stat().st_mtime
    return found


def parse(data: bytes) -> dict[MessageQueue, int]:
    """The table in a file. Raises ProtocolError."""
    value = loads(data, FILE_NAME, size_max_bytes=FILE_BYTES_MAX)
    table = value.get("offsetTable", {}) if is_object(value) else None
    if not is_object(table):
        raise ProtocolError("no offsetTable", FILE_NAME)
    found: dict[MessageQueue, int] = {}
    for mq, offset in table.items():
        if not isinstance(mq, MessageQueue) or type(offset) is not int:
            raise ProtocolError(f"{mq!r}: {offset!r} is no queue and offset", FILE_NAME)
        found[mq] = offset
    return found


class LocalOffsets:
    """The file and its table in memory. Not for two processes at once: the client id is locked (slot.py)."""

    def __init__(self, path: Path, calls: FileCalls = CALLS) -> None:
        self.path = path
        self._calls = calls
        self._is_good = True
        """The file itself, if there is one: else `.bak` stays what it is."""
        self.table = self._load()

    def _load(self) -> dict[MessageQueue, int]:
        """The file's table, else that of `.bak`, else nothing. Raises UsageError when both are damaged or unreadable."""
        problems: list[str] = []
        for path in (self.path, self._bak):
            try:
                table = parse(path.read_bytes())
                if problems:
                    self._is_good = False
                    log.warning("local_offsets_from_bak", path=str(path), error=problems[0])
                return table
            except FileNotFoundError:
                continue
            except (OSError, ProtocolError) as error:
                problems.append(f"{path}: {error}")
        if problems:
            raise UsageError(
                f"the offsets of this broadcasting member cannot be read: {'; '.join(problems)}. Move the file away: the"
                " member then begins where consumer.consume_from_where says"
            )
        return {}

    @property
    def _bak(self) -> Path:
        return _bak_of(self.path)

    def read(self, mq: MessageQueue) -> int | None:
        """The stored offset, None without one."""
        return self.table.get(mq)

    def write(self, changes: dict[MessageQueue, int]) -> None:
        """Merge and store. Raises OSError; the table in memory then is as before."""
        table = {**self.table, **changes}
        make_folders(self.path.parent)
        if self._is_good and self.path.exists():
            # A second name for what is there, so that at no moment the file itself is missing.
            self._bak.unlink(missing_ok=True)
            try:
                self._calls.link(str(self.path), str(self._bak))
            except OSError:  # a disk without links: until the new file is there, the one before it is read
                self._calls.rename(str(self.path), str(self._bak))
        data = dumps_object_keys({"offsetTable": dict(sorted(table.items()))})
        write_atomically(self.path, data, durable=True, calls=self._calls)
        self.table, self._is_good = table, True


class _Batch:
    """Commits that are stored by one write."""

    def __init__(self) -> None:
        self.actions: list[Commit] = []
        self.ok = False


class LocalCommits:
    """Performs `Commit` on the file, all of one turn of the loop in one write, by a thread, as disks are slow; `now` is the
    loop's clock."""

    def __init__(self, offsets: LocalOffsets, core: Core, now: Callable[[], float]) -> None:
        self._offsets = offsets
        self._core = core
        self._now = now
        self._batch = _Batch()
        self._turn = asyncio.Lock()

    async def commit(self, action: Commit) -> None:
        """One commit, answered by `Committed`."""
        batch = self._batch
        batch.actions.append(action)
        async with self._turn:
            await asyncio.sleep(0)  # all that this turn of the loop commits
            if batch is self._batch:
                self._batch = _Batch()
                batch.ok = await asyncio.to_thread(self._write, batch.actions)
        self._core.handle(ev.Committed(action.handle, action.offset, batch.ok), self._now())

    def _write(self, actions: Sequence[Commit]) -> bool:
        try:
            self._write_all(actions)
        except Exception as error:  # a commit without an answer would leave its offset where it is for ever
            unexpected = None if isinstance(error, OSError) else error
            log.error("local_offsets_not_written", path=str(self._offsets.path), error=str(error), exc_info=unexpected)
            return False
        return True

    def _write_all(self, actions: Sequence[Commit]) -> None:
        changes: dict[MessageQueue, int] = {}
        for action in actions:
            before = changes.get(action.mq, self._offsets.read(action.mq))
            # A queue that ends late must not undo what its next assignment has stored.
            if not action.guarded or before is None or before < action.offset:
                changes[action.mq] = action.offset
        if changes:
            self._offsets.write(changes)

    def known(self, mq: MessageQueue) -> bool:
        """A pull never carries an offset to the broker."""
        del mq
        return False
