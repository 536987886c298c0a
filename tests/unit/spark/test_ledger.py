"""Targets that cannot say what they hold: what a user's function is told, and what `df.write` is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loader_world import World

from rocketcrew.spark.epochs import EpochRequest
from rocketcrew.spark.intervals import QueueKey
from rocketcrew.spark.ledger_target import LedgerTarget, Range

QUEUE = QueueKey("g", "orders", "broker-a", 0)


class Frame:
    """Stands for a DataFrame and its writer: it notes what is called."""

    def __init__(self) -> None:
        self.called: list[tuple[object, ...]] = []

    @property
    def write(self) -> Frame:
        return self

    def __getattr__(self, name: str) -> Any:
        def call(*words: object, **options: object) -> Frame:
            self.called.append((name, *words, *sorted(options.items())))
            return self

        return call


class Writer:
    """Stands for Spark."""

    def start(self) -> None:
        pass

    def run(self, _files: object, _columns: object, _what: str, action: Any) -> None:
        action(Frame())


def ledger(folder: Path, calls: list[tuple[int, list[Range]]]) -> LedgerTarget:
    """Deliveries are noted in `calls`."""
    writer: Any = Writer()
    return LedgerTarget(folder, str(folder), writer, lambda _, batch, ranges: calls.append((batch, ranges)))


def test_the_ranges_of_two_epochs_of_a_queue_are_told_apart(world: World, segments: Any, tmp_path: Path) -> None:
    calls: list[tuple[int, list[Range]]] = []
    loader = world.loader(target=ledger(tmp_path / "ledger", calls))
    world.seal([segments.Record(offset) for offset in (1, 2, 4)])
    world.drain(loader)
    request = EpochRequest((QUEUE.in_epoch(1),), frozenset())
    (world.roots[0] / "epochs.json").write_text(request.to_json())
    world.seal([segments.Record(offset, ["again"]) for offset in (1, 2, 4)])
    world.drain(loader)
    assert calls == [(1, [Range(*QUEUE[:4], 1, 5)]), (2, [Range(*QUEUE[:4], 1, 5, epoch=1)])]
    assert calls[0][1] != calls[1][1]
