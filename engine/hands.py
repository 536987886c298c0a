"""What a task has in hand, in a file that outlives its process: so that a message that kills is found out on Spark too.

Spark repeats a task whose Python process died, and would repeat it until the query fails. So each attempt writes into a cell
(workers/cells.py) in the job's folder which message it is about to run, as a worker does for its supervisor; the next
attempt reads the cells of those before it. A message that alone was in hand is charged with that death; with
`workers.max_worker_deaths` of them it is a dead letter. What was in hand together (a batch) runs one by one from then on.
A message that was stopped at its hard time limit has failed, and is not run again in this batch.

Charged is only a death that was seen: a later attempt of the same job runs below the same process of the same executor
(Spark's Python daemon), so Spark wanted the task to go on, and nothing but the worker died. Spark and its operators end
workers too: an executor that is preempted or lost takes its daemon along, and after a cancelled job (a forced stop, a query
that failed elsewhere) no attempt of that job follows. Such deaths say nothing about the message. But ten of them count as
one: some messages take the whole executor along (its memory limit), and nobody would ever be left to see that.

    hands/<partition>.<time>-<attempt>-<witness>.cell    an attempt that runs, or whose death nobody has seen
    hands/….death                                        an attempt whose death was seen
    hands/….over                                         beside a cell: what was over its hard time limit
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from pathlib import Path

import structlog

from ..durable.files import write_atomically
from ..durable.mounts import boot_id
from ..remoting.log_keys import place_keys
from ..remoting.queues import MessageQueue
from ..workers.cells import STATE, CellFile, CellView, map_cell, private_cell

HANDS_DIR = "hands"
CELL, DEATH, OVER = ".cell", ".death", ".over"
UNSEEN_PER_DEATH = 10
"""Three such deaths happen to a message that takes minutes, on executors that come and go; thirty do not."""
Record = tuple[MessageQueue, int]

_log = structlog.get_logger("rocketcrew.engine")


def witness_of(job: str) -> str:
    """A name for this job's tasks below the process that started this one; another one when that process is new."""
    parent = os.getppid()
    boot = boot_id() or os.uname().nodename
    try:
        began = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):  # no Linux: a number that is used again would have to be met
        began = ""
    return hashlib.sha256(f"{job} {boot} {parent} {began}".encode()).hexdigest()[:16]


class Hands:
    """One attempt's cell, and what earlier attempts of the same partition left."""

    def __init__(self, folder: Path, partition: int, attempt: int, pid: int, witness: str) -> None:
        """`attempt` is a number that no other attempt has, `witness` that of `witness_of`.

        Where files cannot be mapped nobody is found out.
        """
        self.deaths: Counter[Record] = Counter()
        self.suspects: set[Record] = set()
        self.over: set[Record] = set()
        self._unseen: Counter[Record] = Counter()
        hands = folder / HANDS_DIR
        self._path = hands / f"{partition}.{time.time_ns()}-{attempt}-{witness}{CELL}"
        self.cell: CellView = private_cell()
        try:
            hands.mkdir(parents=True, exist_ok=True)
            for path in hands.glob(f"{partition}.*-{witness}{CELL}"):
                path.rename(path.with_suffix(DEATH))
            for path in sorted(hands.glob(f"{partition}.*")):
                if path.suffix in (CELL, DEATH):
                    self._read(path)
            for path in hands.glob(f"{partition}.*{OVER}"):
                self.over |= _records_over(path)
            for record, count in self._unseen.items():
                self.deaths[record] += count // UNSEEN_PER_DEATH
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
            record = queue, cell.offset if cell.taken is None else cell.taken
            counter = self.deaths if path.suffix == DEATH else self._unseen
            counter[record] += 1
            if path.suffix != DEATH:
                _log.warning(
                    "death_not_charged", **place_keys(queue, record[1]), times=counter[record],
                    hint="its executor was lost or its job was cancelled",
                )  # fmt: skip
        self.suspects |= {(queue, offset) for offset in range(cell.offset, cell.last + 1)}

    def note_over(self) -> None:
        """What is in hand now is over its hard time limit, and this process is about to end."""
        file = CellFile(self._path, 1)
        cell, queue = file.read(0), file.queue(0)
        file.close()
        if cell is not None and queue is not None:
            told = [*queue, list(range(cell.offset, cell.last + 1))]
            write_atomically(self._path.with_suffix(OVER), json.dumps(told), durable=True)

    def put_down(self) -> None:
        """The attempt ends, and nothing of the handler's is under way."""
        self.cell[STATE] = 0
        self._path.unlink(missing_ok=True)


def _records_over(path: Path) -> set[Record]:
    """What that file says was over its time limit. Nothing, where it is damaged: it runs, and is stopped, once more."""
    try:
        topic, broker, queue_id, offsets = json.loads(path.read_text())
        return {(MessageQueue(str(topic), str(broker), int(queue_id)), int(offset)) for offset in offsets}
    except (ValueError, TypeError) as error:
        _log.warning("hands_not_noted", folder=str(path.parent), error=f"{path.name}: {error}")
        return set()
