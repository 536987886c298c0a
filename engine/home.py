"""The engine's place on disk: `data_dir/<group>/engine`. The driver and all executors see it at the same path.

lock             flock: one driver for a group and folder
checkpoint/      Spark's: offsets of the stream. It alone says where the next batch begins
state.json       the last batch of that stream that is in the table, up to where each queue is done, what the table reached
starting.json    where the stream begins, until the checkpoint says more; also in queues that were there at a later start
batches/<n>/     a batch on its way: open/ (segments), failed/ (messages), hands/, then manifest.json
segments/        a staging folder as that of a supervisor's slot: what the loader's steps load (spark/staging.py)
spark/, ship/    the driver's JVM, and the handler's modules on their way to executors

Where tasks run as another user, `data_dir` is a group's to write. Of what is below, that group may write `TASK_DIRS` only:
the driver starts `spark/.../bin/java` and sends `ship/`, so whoever may write, rename or plant these is the driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from ..conf.segment_format import OPEN_DIR, READY_DIR
from ..durable.files import make_folders, remove_tree, sync_path, try_lock, write_atomically
from ..durable.room import unusable
from ..durable.versions import LaterVersionError, check_version
from ..remoting.errors import RocketcrewError, UsageError
from ..source.offsets import Offsets, from_json, to_json
from .hands import HANDS_DIR
from .planned import Planned, is_known, parse_checkpoint

ENGINE_DIR, CHECKPOINT_DIR, LOCK_FILE = "engine", "checkpoint", "lock"
MANIFEST = "manifest.json"
FAILED_DIR, SEEN_DIR = "failed", "seen"
TASK_DIRS = (OPEN_DIR, READY_DIR, FAILED_DIR, SEEN_DIR, HANDS_DIR)
"""What tasks write into, below the folder of their batch, and nothing else."""
STATE_VERSION = 2
READ_BITS = stat.S_ISGID | stat.S_IRGRP | stat.S_IXGRP
"""Of a folder that its group may look into, and whose files get that group."""
WRITE_BITS = READ_BITS | stat.S_IWGRP
NOT_OTHERS = 0o022
"""As a umask: what is made is only its owner's to change."""

_log = structlog.get_logger("rocketcrew.engine")


class Reached(NamedTuple):
    """What the table is known to have reached: its batch number, its id, and the plan that became that batch (TableState).
    Empty: not known, as an earlier version did not note them."""

    batch: int = 0
    table: str = ""
    plan: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """What is done of a stream; `ends`: up to where, of each queue."""

    query: str
    done: int
    reached: Reached
    ends: Offsets

    def knows(self, planned: Planned) -> bool:
        """Whether nothing of this batch is left to do."""
        return is_known(self.ends, planned)


class Home:
    """See the module's text."""

    def __init__(self, data_dir: Path, group: str) -> None:
        """Makes what is missing. Raises UsageError when that can't be done."""
        # Tasks may run with another current folder.
        self.root = (data_dir / group / ENGINE_DIR).absolute()
        self.checkpoint = self.root / CHECKPOINT_DIR
        self.batches = self.root / "batches"
        self.segments = self.root / "segments"
        self.spark = self.root / "spark"
        self.ship = self.root / "ship"
        self.table = self.root.parent / "table"
        try:
            for folder in (self.batches, self.segments, self.ship):
                make_folders(folder)
            own, closed = (self.batches, self.segments), (self.ship, self.spark, self.checkpoint)
            for reason in guard(self.root.parents[1], self.root, own=own, closed=closed):
                warn_of(reason)
        except OSError as error:
            raise self._unusable(error) from None
        self._lock: int | None = None

    def _unusable(self, error: OSError) -> RocketcrewError:
        return unusable(self.root.parents[1], error, "that driver and executors share")

    def make_task_folders(self, folder: Path) -> None:
        """The folder of a batch, with all that its tasks write into. Raises UsageError."""
        try:
            make_task_folders(folder, self.root.parents[1])  # what that cannot mend was told of by the constructor
        except OSError as error:
            raise self._unusable(error) from None

    def lock(self) -> None:
        """Be the only driver here, until the end of the process. Raises UsageError."""
        try:
            self._lock = try_lock(self.root / LOCK_FILE)
        except OSError as error:  # a file system without locks
            raise self._unusable(error) from None
        if self._lock is None:
            raise UsageError(
                f"another `run --engine spark` works in {self.root}: stop it, or give this one another group"
            )

    def query(self) -> str:
        """The id of the stream that the checkpoint is of, empty before it ran."""
        try:
            return str(json.loads((self.checkpoint / "metadata").read_text())["id"])
        except FileNotFoundError:
            return ""
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{self.checkpoint}/metadata is not understood: {type(error).__name__}: {error}") from None

    def begun(self) -> bool:
        """Whether the stream has planned a batch: from then on its checkpoint says where it goes on."""
        folder = self._offsets_dir
        return folder.is_dir() and any(one.name.isdigit() for one in folder.iterdir())

    def known(self) -> Offsets:
        """Where the stream is by its checkpoint or, in queues that are not in there yet, where it begins."""
        last = max((int(one.name) for one in self._offsets_dir.iterdir() if one.name.isdigit()), default=None)
        return self.starting_offsets() | ({} if last is None else self._offsets(last))

    def planned(self, batch: int) -> Planned:
        """What Spark's checkpoint says that a batch is made of. Raises UsageError when it cannot be read."""
        end = self._offsets(batch)
        return Planned(self._offsets(batch - 1) if batch else self.starting_offsets(), end)

    def _offsets(self, batch: int) -> Offsets:
        path = self._offsets_dir / str(batch)
        try:
            return parse_checkpoint(path.read_text())
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{path} is not understood ({type(error).__name__}: {error}), so nobody knows which messages batch {batch} is"
                " made of: restore the checkpoint, or begin at the group's offsets by"
                " `rocketcrew reset -g GROUP -t TOPIC --to TIME`"
            ) from None

    def starting(self) -> str | None:
        """Where the stream begins, as the option startingOffsets has it; None when it was not noted."""
        try:
            return self._starting_path.read_text()
        except FileNotFoundError:
            return None

    def write_starting(self, starting: Offsets) -> str:
        """Note where the stream begins: it must be the same place after a restart. The option startingOffsets."""
        text = json.dumps(to_json(starting))
        write_atomically(self._starting_path, text, durable=True)
        return text

    def starting_offsets(self) -> Offsets:
        """The same as offsets; none when it was not noted."""
        text = self.starting()
        return from_json(json.loads(text)) if text else {}

    def state(self, query: str) -> State:
        """What is done of the stream `query`. Raises UsageError when it cannot be read.

        Batches of another stream are of a checkpoint that somebody removed: what is left of them is deleted.
        """
        state = self._state()
        if state.query != query:
            for folder in self.batches.iterdir():
                remove_tree(folder)
            state = State(query, -1, state.reached, {})
            self.write_state(state)
        return state

    def reached(self) -> Reached:
        """What the table had reached after the last batch of ours."""
        return self._state().reached

    def write_state(self, state: State) -> None:
        """Note what is done: in the table, failures sent."""
        told = {
            "version": STATE_VERSION, "query": state.query, "done": state.done, "table_batch": state.reached.batch,
            "table": state.reached.table, "plan": state.reached.plan, "ends": to_json(state.ends),
        }  # fmt: skip
        write_atomically(self._state_path, json.dumps(told) + "\n", durable=True)

    @property
    def _state_path(self) -> Path:
        return self.root / "state.json"

    @property
    def _offsets_dir(self) -> Path:
        return self.checkpoint / "offsets"

    @property
    def _starting_path(self) -> Path:
        return self.root / "starting.json"

    def _state(self) -> State:
        try:
            told: dict[str, Any] = json.loads(self._state_path.read_text())
            check_version(told["version"], STATE_VERSION, self._state_path)
            reached = Reached(int(told["table_batch"]), str(told.get("table", "")), str(told.get("plan", "")))
            return State(str(told["query"]), int(told["done"]), reached, from_json(told["ends"]))
        except FileNotFoundError:
            return State("", -1, Reached(), {})
        except LaterVersionError:
            raise
        except (ValueError, KeyError, TypeError, UsageError) as error:
            raise UsageError(f"{self._state_path} is not understood: {type(error).__name__}: {error}") from None


def make_task_folders(folder: Path, data_dir: Path) -> list[Path]:
    """`folder`, somewhere below `data_dir`, and what is in `TASK_DIRS`; made here, as containers of YARN may run as another
    user, whose folders nobody else may empty. Where the group may write `data_dir`, it may write `TASK_DIRS`. What
    `guard` returns and raises."""
    inside = [folder / name for name in TASK_DIRS]
    for one in inside:
        one.mkdir(parents=True, exist_ok=True)
    return guard(data_dir, folder, shared=inside)


def is_shared(data_dir: Path) -> bool:
    """Whether a group may write there."""
    return bool(data_dir.stat().st_mode & stat.S_IWGRP)


@contextlib.contextmanager
def own_files(data_dir: Path) -> Generator[None]:
    """Meanwhile the group that may write `data_dir` may not write what this process and its children make, whatever the
    umask is."""
    before = os.umask(NOT_OTHERS)
    shared = data_dir.is_dir() and is_shared(data_dir)
    os.umask(before | NOT_OTHERS if shared else before)
    try:
        yield
    finally:
        os.umask(before)


def guard(
    data_dir: Path, folder: Path, *, own: Iterable[Path] = (), shared: Iterable[Path] = (), closed: Iterable[Path] = ()
) -> list[Path]:
    """Where a group may write `data_dir`: it may read `folder`, what is above, and `own`; it may write `shared`, and has no
    way into `closed` (passed over where not there). Those that stay open to it, as only their owner may close them. Raises
    OSError, and UsageError for one that somebody else has planted.
    """
    if not is_shared(data_dir):
        return []
    top = data_dir.stat()
    left = [] if _make_sticky(data_dir, top) else [data_dir]
    way = [*reversed([one for one in folder.parents if data_dir in one.parents]), folder, *own]
    for one, bits in [*((one, READ_BITS) for one in way), *((one, WRITE_BITS) for one in shared)]:
        left += [] if _set_rights(one, top, bits) else [one]
    for one in closed:
        if os.path.lexists(one):
            left += [] if _set_rights(one, top, 0) else [one]
    return left


def warn_of(folder: Path) -> None:
    """That `guard` could not close it."""
    _log.warning("engine_folder_open_to_group", folder=str(folder), hint="let its owner do chmod 3770, or g-w below",
                 reason="each of the group may replace what is in there, and so run code as this user")  # fmt: skip


def _make_sticky(data_dir: Path, top: os.stat_result) -> bool:
    """Else each of the group may rename what is in there, and put what is his own into its place. False: it is not ours."""
    if not top.st_mode & stat.S_ISVTX and os.geteuid() == top.st_uid:
        with contextlib.suppress(OSError):
            data_dir.chmod(stat.S_IMODE(top.st_mode) | stat.S_ISVTX)
    return bool(data_dir.stat().st_mode & stat.S_ISVTX)


def _set_rights(one: Path, top: os.stat_result, bits: int) -> bool:
    """Give it to the group of `top`, with these bits of `WRITE_BITS`. False: it is not ours, and open to that group. Raises
    OSError, UsageError."""
    there = one.stat()
    for owner in {there.st_uid, one.lstat().st_uid} - {os.geteuid(), top.st_uid, 0}:
        raise UsageError(
            f"{one} belongs to user {owner}, who could run code as this one (user {os.geteuid()}), and a group may write"
            " supervisor.data_dir: delete it, name another folder, or run the engine as that user"
        )
    mode = stat.S_IMODE(there.st_mode)
    wanted = mode & ~(WRITE_BITS | stat.S_IWOTH) | bits if bits else mode & ~(stat.S_IRWXG | stat.S_IRWXO)
    if there.st_uid != os.geteuid():
        return bool(bits & stat.S_IWGRP) or not mode & stat.S_IWGRP
    if there.st_gid != top.st_gid or mode != wanted:
        os.chown(one, -1, top.st_gid)
        one.chmod(wanted)
    return True


def move_into(paths: list[Path], folder: Path) -> None:
    """Rename those of `paths` that are still there into `folder`; the others went there before. On disk afterwards."""
    for path in paths:
        if path.exists():
            path.rename(folder / path.name)
    sync_path(folder)
