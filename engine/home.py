"""The engine's place on disk: `data_dir/<group>/engine`. The driver and all executors see it at the same path.

lock             flock: one driver for a group and folder
checkpoint/      Spark's: offsets of the stream. It alone says where the next batch begins
state.json       the last batch of that stream that is in the table, up to where each queue is done, the table's batch number
starting.json    where the stream begins, until the checkpoint says more; also in queues that were there at a later start
batches/<n>/     a batch on its way: open/ (segments), failed/ (messages), hands/, then manifest.json
segments/        a staging folder as that of a supervisor's slot: what the loader's steps load (spark/staging.py)
spark/, ship/    the driver's JVM, and the handler's modules on their way to executors
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..conf.segment_format import OPEN_DIR
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
TASK_DIRS = (OPEN_DIR, FAILED_DIR, SEEN_DIR, HANDS_DIR)
"""What tasks write into, below the folder of their batch."""
STATE_VERSION = 2
SHARED_BITS = stat.S_ISGID | stat.S_IRWXG
"""Of a folder that its group may use, and whose files get that group."""


@dataclass(frozen=True, slots=True)
class State:
    """What is done of a stream; `ends`: up to where, of each queue."""

    query: str
    done: int
    table_batch: int
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
        except OSError as error:
            raise self._unusable(error) from None
        self._lock: int | None = None

    def _unusable(self, error: OSError) -> RocketcrewError:
        return unusable(self.root.parents[1], error, "that driver and executors share")

    def make_task_folders(self, folder: Path) -> None:
        """The folder of a batch, with all that its tasks write into. Raises UsageError."""
        try:
            make_task_folders(folder, self.root.parents[1])
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
            state = State(query, -1, state.table_batch, {})
            self.write_state(state)
        return state

    def table_batch(self) -> int:
        """The table's batch number after the last one of ours."""
        return self._state().table_batch

    def write_state(self, state: State) -> None:
        """Note what is done: in the table, failures sent."""
        told = {
            "version": STATE_VERSION, "query": state.query, "done": state.done, "table_batch": state.table_batch,
            "ends": to_json(state.ends),
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
            return State(str(told["query"]), int(told["done"]), int(told["table_batch"]), from_json(told["ends"]))
        except FileNotFoundError:
            return State("", -1, 0, {})
        except LaterVersionError:
            raise
        except (ValueError, KeyError, TypeError, UsageError) as error:
            raise UsageError(f"{self._state_path} is not understood: {type(error).__name__}: {error}") from None


def make_task_folders(folder: Path, data_dir: Path) -> None:
    """`folder`, somewhere below `data_dir`, and what is in `TASK_DIRS`; made here, as containers of YARN may run as another
    user, whose folders nobody else may empty. Where the group may write `data_dir`, it may write these."""
    above = [one for one in folder.parents if data_dir in one.parents]
    inside = [folder, *(folder / name for name in TASK_DIRS)]
    for one in inside:
        one.mkdir(parents=True, exist_ok=True)
    told = data_dir.stat()
    if not told.st_mode & stat.S_IWGRP:
        return
    for one in [*reversed(above), *inside]:
        there = one.stat()
        if there.st_uid == os.geteuid() and (there.st_gid != told.st_gid or there.st_mode & SHARED_BITS != SHARED_BITS):
            os.chown(one, -1, told.st_gid)
            one.chmod(stat.S_IMODE(there.st_mode) | SHARED_BITS)


def move_into(paths: list[Path], folder: Path) -> None:
    """Rename those of `paths` that are still there into `folder`; the others went there before. On disk afterwards."""
    for path in paths:
        if path.exists():
            path.rename(folder / path.name)
    sync_path(folder)
