"""Months of one member: what is kept does not grow, and a collection that is never cleared is found wherever it is.

`pytest -rP tests/simulation/test_months.py` prints every collection by name with its sizes.
"""

from __future__ import annotations

import sys
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rocketcrew.conf.segment_format import READY_DIR
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.actions import JournalDone, JournalSealed
from rocketcrew.supervisor.core.allocation import average
from rocketcrew.supervisor.core.assigning import Assigning
from rocketcrew.supervisor.core.blame import Death, End
from rocketcrew.supervisor.core.decisions import Core
from rocketcrew.supervisor.core.journal import Entry, JournalState
from rocketcrew.supervisor.core.process_queue import ProcessQueue
from rocketcrew.supervisor.core.slab import UNIT_BYTES, Slab
from rocketcrew.supervisor.core.staffing import Policy, Staffing, Start
from rocketcrew.supervisor.core.state import CoreConfig
from rocketcrew.supervisor.pool.child import KNOWN_QUEUES_MIN, KnownQueues
from rocketcrew.workers.api import as_handler
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.cells import private_cell
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.link import Transport, WorkerLink, link_pair
from rocketcrew.workers.packets import QueueInfo, encode_chunk, encode_forget, encode_queue, encode_seal
from rocketcrew.workers.rows import RowBuffer
from rocketcrew.workers.sealing import Sealer
from rocketcrew.workers.segment import SegmentWriter
from rocketcrew.workers.worker import WorkerLoop

from .disk import Table
from .months import LEAP_MS, LEAPS_A_MONTH, SLACK, Months, Sizes, modules, sizes
from .parts import Parts
from .planted import CoreParts
from .world import Violation

SEEDS, MONTHS = 6, 3
PLANTED_SEEDS = 8
ROUNDS = 60
"""Of a worker, a month: each gives new handles to its queues."""
QUEUES_A_ROUND = 5
SEAL_EVERY = 15
NS_A_LOOK = 10**6


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_kept_does_not_grow(seed: int) -> None:
    world = Months(seed)
    world.run(MONTHS)
    sys.stdout.write(world.report())
    assert len(world.counted) == MONTHS
    assert world.world.now_ms > MONTHS * LEAPS_A_MONTH * LEAP_MS
    assert {
        "State.queues", "State.workers", "State._timers", "State.recovered", "JournalState.queues", "OffsetSet.queues",
        "JournalEncoder._workers", "rocketcrew.supervisor.core.failed_actions.EVENTS",
    } <= set(world.counted[-1])  # fmt: skip


# --- planted leaks ------------------------------------------------------------------------------------------------------


class RemembersEnded(CoreParts):
    """Something of each assignment is remembered for ever."""

    class assigning_class(Assigning):
        def _forget(self, pq: ProcessQueue, now: float) -> None:
            self.__dict__.setdefault("bodies", {})[pq.handle] = pq.next_offset
            super()._forget(pq, now)


class RemembersWorkers(CoreParts):
    """Workers that are gone stay in a table."""

    class assigning_class(Assigning):
        def persist_all(self, now: float) -> None:
            self.__dict__.setdefault("hands", set()).update(self.s.workers)
            super().persist_all(now)


class RemembersInAClosure(CoreParts):
    """What a function holds is seen, too."""

    class assigning_class(Assigning):
        def _forget(self, pq: ProcessQueue, now: float) -> None:
            if "note" not in self.__dict__:
                ended: dict[int, ProcessQueue] = {}

                def note(left: ProcessQueue) -> None:
                    ended[left.handle] = left

                note.__module__ = Assigning.__module__  # only functions of ours are looked into
                self.__dict__["note"] = note
            self.__dict__["note"](pq)
            super()._forget(pq, now)


class KeepsItsSegments(Parts):
    """Of each segment that was sealed, the journal's state keeps that it was."""

    def into_journal(self, journal: JournalState, entry: Entry) -> bool:
        went_back = super().into_journal(journal, entry)
        if isinstance(entry, JournalSealed):
            journal.pending[entry.worker_id, entry.seq] = {}
        return went_back


@pytest.mark.parametrize(
    ("parts", "name", "script"),
    [(RemembersEnded, "assigning_class.bodies", {}), (RemembersWorkers, "assigning_class.hands", {}),
     (RemembersInAClosure, ".note()", {}),
     (KeepsItsSegments, "JournalState.pending",  # many small segments, and no take-over, which makes a state anew
      {"order": "concurrent", "seal_rows": 12, "rows_always": True, "members": 1, "members_max": 1})],
)  # fmt: skip
def test_what_is_never_cleared_is_found(parts: type[Parts], name: str, script: dict[str, object]) -> None:
    found = ""
    for seed in range(PLANTED_SEEDS):
        two = {"members": 2, "members_max": 2}
        world = Months(seed, parts(("cut", "kill worker", "recycle worker"), two | script))
        try:
            world.run(MONTHS)
        except Violation as violation:
            found = str(violation)
            break
    assert "more from month to month" in found
    assert name in found


class FoldsNothing(Table):
    """What is settled without rows is never folded into the loaded set: each such message leaves a gap there."""

    def _commit(self, *args: Any) -> None:
        *others, fold, version = args
        super()._commit(*others, type(fold)(), version)


def test_a_loaded_set_of_more_and_more_intervals_is_found() -> None:
    world = Months(0, Parts(script={"rows_never": False}))  # where no message has a row there is nothing but gaps
    world.table = FoldsNothing(world.world, world.truth)
    with pytest.raises(Violation, match=r"more from month to month.*OffsetSet\.queues"):
        world.run(MONTHS)


def test_a_collection_is_found_wherever_it_is() -> None:
    """In a module, reached by a bound method, in an unbounded cache; what has a bound of its own is none."""
    module: Any = ModuleType("rocketcrew.made_for_this")
    module.TABLE = {"a": [1, 2, 3]}
    module.known = lru_cache(maxsize=None)(lambda number: number)
    module.some = lru_cache(maxsize=10)(lambda number: number)
    module.journal = JournalState().apply
    for number in range(7):
        module.known(number), module.some(number)
        module.journal(JournalDone(MessageQueue("t", "b", number), 0, 1, "w", 1))
    found = sizes(module)
    assert found["rocketcrew.made_for_this.TABLE"] == 1 + 3
    assert found["rocketcrew.made_for_this.known"] == 7
    assert found["JournalState.pending"] == 1 + 7 + 7  # one segment, seven queues in it, an interval of each
    assert "rocketcrew.made_for_this.some" not in found


# --- parts that the simulated member does not have ----------------------------------------------------------------------


def growth(counted: list[Sizes], slack: int = SLACK) -> set[str]:
    """Names of what there is more of at the end than after the first month."""
    return {name for name, size in counted[-1].items() if size > counted[0][name] + slack}


def record(offset: int) -> bytes:
    return encode_message(StoredMessage("orders", b"%d" % offset, b"", queue_offset=offset))


def worker_months(folder: Path, kind: type[WorkerLoop]) -> list[Sizes]:
    """A worker whose queues come and go, with what the supervisor remembers of it; its sizes at the end of each month."""
    link, sock = link_pair(Transport.STREAM)
    theirs = WorkerLink(sock, Transport.STREAM)
    rows, bounds, now = (
        RowBuffer[Any](parse_ddl("n bigint"), "group"),
        WorkerBounds(),
        count(NS_A_LOOK, NS_A_LOOK),
    )
    pauses: list[str] = []
    segments = SegmentWriter(
        folder, "w1", rows.schema, seal_rows=bounds.seal_rows, seal_bytes=bounds.seal_bytes,
        seal_idle_ms=bounds.seal_idle_ms, pause=lambda what, _: pauses.append(what),
    )  # fmt: skip
    sealer = Sealer(folder / READY_DIR, pause=lambda what, _: pauses.append(what), waits=None)
    worker = kind(
        theirs, as_handler(lambda message: {"n": message.queue_offset}), bounds=bounds, slab=None, rows=rows,
        segments=segments, sealer=sealer, clock=partial(next, now), cell=private_cell(),
    )  # fmt: skip
    known, handles, chunks, counted = KnownQueues(), count(1), count(1), list[Sizes]()
    for _ in range(MONTHS):
        for turn in range(ROUNDS):
            mine = [next(handles) for _ in range(QUEUES_A_ROUND)]
            gone, new = known.meet(mine, partial(set, mine))
            queues = [encode_queue(at, QueueInfo("g", "orders", "b", at % QUEUES_A_ROUND)) for at in new]
            for packet in (*encode_forget(gone), *queues):
                link.send(packet)
            for handle in mine:
                data = record(0) + record(1)
                link.send(encode_chunk(next(chunks), handle, 0, len(data), 2), data)
            if not turn % SEAL_EVERY:
                link.send(encode_seal())
            for _ in range(len(new) + len(gone) + QUEUES_A_ROUND + 4):
                worker.step()
            assert link.receive(), "it reports"
        for path in (folder / READY_DIR).iterdir():
            path.unlink()  # as the loader does
        counted.append(sizes(worker, known, *modules()))
    link.close()
    theirs.close()
    assert not pauses
    return counted


def test_a_worker_keeps_nothing_of_queues_that_left(tmp_path: Path) -> None:
    counted = worker_months(tmp_path, WorkerLoop)
    assert growth(counted, 2 * KNOWN_QUEUES_MIN) == set()
    assert counted[-1]["WorkerLoop._queues"] > 0


class ForgetsNoQueue(WorkerLoop):
    """FORGET is not heard."""

    def _on_forget(self, packet: object) -> None:
        pass


def test_a_worker_that_forgets_no_queue_is_found(tmp_path: Path) -> None:
    assert growth(worker_months(tmp_path, ForgetsNoQueue), 2 * KNOWN_QUEUES_MIN) == {"ForgetsNoQueue._queues"}


def staffing_months() -> list[Sizes]:
    """Workers boot, serve, die and are replaced; sizes at the end of each month."""
    core = Core(CoreConfig("c", "g", ("orders",), strategy=average), Slab(UNIT_BYTES), bytearray(UNIT_BYTES))
    core.begin()
    staffing, now, counted = Staffing(core, Policy(3), "r"), 100.0, list[Sizes]()
    for _ in range(MONTHS):
        for _ in range(ROUNDS):
            now += 100.0
            for action in staffing.run(now):
                if isinstance(action, Start):
                    core.handle(ev.WorkerReady(action.worker_id), now)
                    staffing.ready(action.worker_id)
            worker = staffing.serving()[0]
            was = worker.state
            core.handle(ev.WorkerDied(worker.worker_id, Death(End.CRASHED)), now)
            core.handle(ev.SalvageComplete(worker.worker_id), now)
            staffing.ended(worker, was, now, charged=True, leaves=False)
            core.take_actions()
        counted.append(sizes(core, staffing, *modules()))
    return counted


def test_deaths_of_workers_leave_nothing_behind() -> None:
    counted = staffing_months()
    assert growth(counted) == set()
    assert counted[-1]["State.workers"] == 2, "one has died in the last round, and is not replaced yet"
