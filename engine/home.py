"""The engine's place on disk: `data_dir/<group>/engine`. The driver and all executors see it at the same path.

lock             flock: one driver for a group and folder
checkpoint/      Spark's: offsets of the stream. It alone says where the next batch begins
state.json       the last batch of that stream that is in the table, and the table's batch number
batches/<n>/     a batch on its way: open/ (segments), failed/ (messages), hands/, then manifest.json
segments/        a staging folder as that of a supervisor's slot: what the loader's steps load (spark/staging.py)
spark/, ship/    the driver's JVM, and the handler's modules on their way to executors
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..conf.segment_format import SETTLED_FILE
from ..durable.files import remove_tree, sync_path, try_lock, write_atomically
from ..durable.intervals import OffsetSet
from ..remoting.errors import UsageError

ENGINE_DIR, CHECKPOINT_DIR, LOCK_FILE = "engine", "checkpoint", "lock"
MANIFEST = "manifest.json"
STATE_VERSION = 1


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
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"supervisor.data_dir = {str(data_dir)!r} cannot be used: {error.strerror} ({error.filename}). Name a folder"
                " that this user may write, and that driver and executors share"
            ) from None
        self._lock: int | None = None

    def lock(self) -> None:
        """Be the only driver here, until the end of the process. Raises UsageError."""
        self._lock = try_lock(self.root / LOCK_FILE)
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

    def done(self, query: str) -> int:
        """The last batch of the stream `query` that needs nothing any more, -1 when there is none.

        Batches of another stream are of a checkpoint that somebody removed: what is left of them is deleted.
        """
        state = self._state()
        if state["query"] != query:
            for folder in self.batches.iterdir():
                remove_tree(folder)
            self.mark_done(query, -1, int(state["table_batch"]))
            return -1
        return int(state["done"])

    def table_batch(self) -> int:
        """The table's batch number after the last one of ours."""
        return int(self._state()["table_batch"])

    def mark_done(self, query: str, batch: int, table_batch: int) -> None:
        """The batch is finished: in the table, its failures sent."""
        state = {"version": STATE_VERSION, "query": query, "done": batch, "table_batch": table_batch}
        write_atomically(self._state_path, json.dumps(state) + "\n", durable=True)

    def write_settled(self, settled: OffsetSet) -> None:
        """Replace settled.json of the staging folder."""
        queues = [
            {
                "group": key.group,
                "topic": key.topic,
                "broker": key.broker,
                "queue_id": key.queue_id,
                "from": start,
                "to": end,
            }
            for key, offsets in sorted(settled.queues.items())
            for start, end in offsets.pieces
        ]
        text = json.dumps({"version": 1, "queues": queues}, separators=(",", ":"))
        write_atomically(self.segments / SETTLED_FILE, text, durable=True)

    @property
    def _state_path(self) -> Path:
        return self.root / "state.json"

    def _state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads(self._state_path.read_text())
            if state["version"] != STATE_VERSION:
                raise ValueError(f"version {state['version']!r}, this program knows {STATE_VERSION}")
        except FileNotFoundError:
            return {"query": "", "done": -1, "table_batch": 0}
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{self._state_path} is not understood: {type(error).__name__}: {error}") from None
        return state


def move_into(paths: list[Path], folder: Path) -> None:
    """Rename those of `paths` that are still there into `folder`; the others went there before. On disk afterwards."""
    for path in paths:
        if path.exists():
            path.rename(folder / path.name)
    sync_path(folder)
