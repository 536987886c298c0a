"""What a task has in hand, in a file that outlives its process: so that a message that kills is found out on Spark too.

Spark repeats a task whose Python process died, and would repeat it until the query fails. So each attempt writes into a cell
(workers/cells.py) in the job's folder which message it is about to run, as a worker does for its supervisor; the next
attempt reads the cells of those before it. A message that alone was in hand is charged with that death; with
`workers.max_worker_deaths` of them it is a dead letter. What was in hand together (a batch) runs one by one from then on.
A message that was stopped at its hard time limit has failed, and is not run again in this batch.

An executor that is lost with all its processes charges what they had in hand too: nobody can tell why it was lost.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import structlog

from ..remoting.queues import MessageQueue
from ..workers.cells import STATE, CellFile, CellView, map_cell, private_cell

HANDS_DIR = "hands"
CELL, OVER = ".cell", ".over"
Record = tuple[MessageQueue, int]

_log = structlog.get_logger("rocketcrew.engine")


class Hands:
    """One attempt's cell, and what earlier attempts of the same partition left."""

    def __init__(self, folder: Path, partition: int, attempt: int, pid: int) -> None:
        """`attempt` is a number that no other attempt has. Where files cannot be mapped nobody is found out."""
        self.deaths: Counter[Record] = Counter()
        self.suspects: set[Record] = set()
        self.over: set[Record] = set()
        hands = folder / HANDS_DIR
        self._path = hands / f"{partition}.{time.time_ns()}-{attempt}{CELL}"
        self.cell: CellView = private_cell()
        try:
            hands.mkdir(parents=True, exist_ok=True)
            for path in hands.glob(f"{partition}.*{CELL}"):
                self._read(path)
            for path in hands.glob(f"{partition}.*{OVER}"):
                topic, broker, queue_id, offsets = json.loads(path.read_text())
                self.over |= {(MessageQueue(topic, broker, queue_id), offset) for offset in offsets}
            CellFile(self._path, 1).close()
            self.cell = map_cell(self._path, 0, pid)
        except OSError as error:
            _log.warning("hands_not_noted", folder=str(hands), error=str(error))

    def _read(self, path: Path) -> None:
        file = CellFile(path, 1)
        try:
            cell, queue = file.read(0), file.queue(0)
        finally:
            file.close()
        if cell is None or queue is None or path.with_suffix(OVER).exists():
            return
        if cell.records == 1 or cell.taken is not None:
            self.deaths[queue, cell.offset if cell.taken is None else cell.taken] += 1
        self.suspects |= {(queue, offset) for offset in range(cell.offset, cell.last + 1)}

    def note_over(self) -> None:
        """What is in hand now is over its hard time limit, and this process is about to end."""
        file = CellFile(self._path, 1)
        cell, queue = file.read(0), file.queue(0)
        file.close()
        if cell is not None and queue is not None:
            told = [*queue, list(range(cell.offset, cell.last + 1))]
            draft = self._path.with_suffix(".new")
            draft.write_text(json.dumps(told))
            draft.replace(self._path.with_suffix(OVER))

    def put_down(self) -> None:
        """The attempt ends, and nothing of the handler's is under way."""
        self.cell[STATE] = 0
        self._path.unlink(missing_ok=True)
