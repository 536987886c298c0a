"""What workers report reaches the core: a salvage is complete as soon as it is reported, however long its worker boots."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.state import Worker
from rocketcrew.supervisor.pool.child import Child
from rocketcrew.supervisor.pool.hearing import LEFT_BEHIND, Hearing
from rocketcrew.workers import packets
from rocketcrew.workers.packets import QueueRanges, Salvaged

if TYPE_CHECKING:
    from .conftest import Bench

RUN = "w1"


class Ears:
    """A hearing of the bench's core, and what it sent to the pool."""

    def __init__(self, bench: Bench, **others: Any) -> None:
        self.bench = bench
        self.told: list[str] = []
        self.files: list[str] = []
        self.salvaged: list[tuple[str, ...]] = []

        async def make() -> Hearing:
            names = ("is_ready", "boot_failed", "progress", "notice", "kill", "directed", "check", "traced")
            calls: dict[str, Any] = dict.fromkeys(names, self.tell) | others
            return Hearing(
                bench.core, run_id=RUN, file_salvaged=lambda _, file: self.files.append(file),
                salvaged=lambda child: self.salvaged.append(child.worker.salvages), **calls,
            )  # fmt: skip

        self.hearing = asyncio.run(make())

    def tell(self, *_: object) -> None:
        self.told.append("something")

    def child(self, worker_id: str, *salvages: str) -> Child:
        nothing: Any = None
        worker = Worker(worker_id, salvages=salvages)
        self.bench.core.handle(ev.WorkerStarted(worker), self.bench.now)
        return Child(worker, 0, nothing, nothing, nothing)


def dies_with_two_messages(bench: Bench) -> None:
    """One worker had offsets 0 and 1 and has died; another is idle."""
    (handle,) = bench.open(0)
    bench.worker(f"{RUN}.1")
    bench.found(handle, [0, 1])
    assert len(bench.dispatched()) == 2
    bench.worker(f"{RUN}.2")
    bench.core.handle(ev.WorkerDied(f"{RUN}.1"), bench.now)


def salvaged(*ranges: tuple[int, int], worker: str = f"{RUN}.1") -> bytes:
    queue = QueueRanges("orders", "b", 0, ranges)
    (packet,) = packets.encode_salvaged(Salvaged("x.arrows", worker, 1, "x.arrows", 1, 1, (queue,)))
    return packet


def test_others_get_the_rest_when_the_salvage_is_told_and_not_when_its_worker_is_ready(bench: Bench) -> None:
    dies_with_two_messages(bench)
    ears = Ears(bench)
    successor = ears.child(f"{RUN}.3", f"{RUN}.1")
    ears.hearing.packet(successor, salvaged((0, 1)))
    assert bench.dispatched() == [], "more may come"
    ears.hearing.packet(successor, bytes((packets.SALVAGE_DONE,)))
    (rest,) = bench.dispatched()
    assert (rest.worker_id, rest.offsets) == (f"{RUN}.2", [1]), "the row of 0 is there"
    assert ears.salvaged == [(f"{RUN}.1",)]
    assert ears.told == []
    bench.none(act.KillWorker)


def test_what_earlier_runs_left_is_kept_for_the_journal(bench: Bench) -> None:
    ears = Ears(bench)
    first = ears.child(f"{RUN}.1", LEFT_BEHIND)
    ears.hearing.packet(first, salvaged((0, 1), worker="w0.7"))
    ears.hearing.packet(first, bytes((packets.SALVAGE_DONE,)))
    assert [(worker, seq) for worker, seq, _ in ears.hearing.leftovers] == [("w0.7", 1)]
    assert ears.salvaged == [(LEFT_BEHIND,)]


def test_a_worker_whose_packet_cannot_be_taken_is_killed_and_that_is_counted(bench: Bench) -> None:
    """What it reported would otherwise be waited for without an end."""

    def fails(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    killed: list[tuple[str, str]] = []
    ears = Ears(bench, notice=fails, kill=lambda *what: killed.append(what))
    ears.hearing.packet(ears.child(f"{RUN}.1"), packets.encode_notice(packets.PROGRESS))
    assert killed == [(f"{RUN}.1", "its packet could not be taken: a mistake of ours")]
    assert bench.counters.unexpected_errors == 1


def test_a_segment_of_which_nothing_counts_is_done_with_too(bench: Bench) -> None:
    ears = Ears(bench)
    successor = ears.child(f"{RUN}.3", LEFT_BEHIND)
    (packet,) = packets.encode_salvaged(Salvaged("x.arrows", "w0.1", 1, None, 0, 0, ()))
    ears.hearing.packet(successor, packet)
    assert (ears.files, ears.hearing.leftovers, successor.salvaged) == (["x.arrows"], [], {})
