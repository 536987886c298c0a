"""What waits on disk: marks that hold up pulling, offsets that wait for the table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.durable.intervals import OffsetSet
from rocketcrew.spark.staging import Staging
from rocketcrew.supervisor.backlog import Backlog, Marks
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev

Bench = Any


@pytest.mark.parametrize(
    ("held", "waiting", "holds"), [(False, 100, False), (False, 101, True), (True, 51, True), (True, 50, False)]
)
def test_pulling_stops_above_the_mark_and_goes_on_below_half_of_it(held: bool, waiting: int, holds: bool) -> None:
    assert Marks(100, 0).holds_backlog(held, waiting) is holds
    assert Marks(0, 0).holds_backlog(held, waiting) is False


@pytest.mark.parametrize(
    ("held", "free", "holds"), [(False, 100, False), (False, 99, True), (True, 199, True), (True, 200, False)]
)
def test_a_disk_that_is_nearly_full_holds_up_pulling(held: bool, free: int, holds: bool) -> None:
    assert Marks(0, 100).holds_disk(held, free) is holds
    assert Marks(0, 0).holds_disk(held, free) is False


def look(bench: Bench, segments: Path, marks: Marks) -> Backlog:
    """One look at the folder, with the bench's core."""

    async def once() -> Backlog:
        backlog = Backlog(bench.core, segments, marks, lambda: None)
        backlog.look()
        return backlog

    return asyncio.run(once())


@pytest.fixture
def segments(tmp_path: Path) -> Path:
    for name in ("ready", "bad"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_a_backlog_pauses_pulling_beside_other_reasons(bench: Bench, segments: Path) -> None:
    (segments / "ready" / "w-00000001.arrows").write_bytes(b"x" * 11)
    assert look(bench, segments, Marks(10, 0)).waiting.segments == 1
    assert bench.core.state.paused == {"backlog"}
    bench.core.handle(ev.Pause(), bench.now)
    (handle,) = bench.open(0)
    bench.none(act.Pull)
    (segments / "ready" / "w-00000001.arrows").unlink()
    look(bench, segments, Marks(10, 0))
    assert bench.core.state.paused == {"operator"}
    bench.none(act.Pull)
    bench.core.handle(ev.Resume(), bench.now)
    assert bench.one(act.Pull).handle == handle


def test_offsets_wait_until_the_segment_is_gone(make: Callable[..., Bench], segments: Path) -> None:
    bench = make(commit_after_loaded=True)
    (handle,) = bench.open(0)
    bench.worker("w")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.done(chunk, seq=1)
    file = segments / "ready" / "w-00000001.arrows"
    file.write_bytes(b"rows")
    bench.sealed("w", 1)
    look(bench, segments, Marks(0, 0))
    assert bench.persist() == []
    bench.none(act.JournalSealed)
    Staging(segments).quarantine(file.name, "cut off", OffsetSet())
    look(bench, segments, Marks(0, 0))
    assert bench.persist() == [], "set aside is not loaded"
    repaired = (segments / "bad" / file.name).rename(file)
    look(bench, segments, Marks(0, 0))
    assert bench.persist() == [], "it waits again"
    repaired.unlink()
    assert [path.name for path in (segments / "bad").iterdir()] == [f"{file.name}.reason.json"], "nobody deletes it"
    look(bench, segments, Marks(0, 0))
    bench.one(act.JournalSealed)
    assert bench.persist() == [1]


def test_rows_that_were_salvaged_wait_for_the_table_too(make: Callable[..., Bench]) -> None:
    bench = make(commit_after_loaded=True)
    (handle,) = bench.open(0)
    bench.worker("w")
    bench.found(handle, [0])
    bench.dispatched()
    bench.core.handle(ev.WorkerDied("w"), bench.now)
    bench.core.handle(ev.Salvaged("w", 1, [(bench.queue(), [(0, 1)])]), bench.now)
    bench.core.handle(ev.SalvageComplete("w"), bench.now)
    assert bench.counters.lost_rows_restarts == 0
    assert bench.persist() == []
    bench.core.handle(ev.Loaded("w", 1), bench.now)
    assert bench.persist() == [1]


def test_a_queue_that_is_to_end_asks_for_a_load_once(make: Callable[..., Bench]) -> None:
    bench = make(commit_after_loaded=True)
    (handle,) = bench.open(0)
    bench.worker("w")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.done(chunk, seq=1)
    bench.sealed("w", 1)
    bench.none(act.Load)
    bench.revoke()
    bench.one(act.Load)
    bench.core.handle(ev.Loaded("w", 1), bench.now)
    assert bench.commits() == [1]
    assert handle not in bench.core.state.queues


def test_a_queue_that_is_to_end_asks_for_a_load_when_its_seal_comes(make: Callable[..., Bench]) -> None:
    bench = make(commit_after_loaded=True)
    (handle,) = bench.open(0)
    bench.worker("w")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.done(chunk, seq=1)
    bench.revoke()
    bench.none(act.Load)
    bench.sealed("w", 1)
    bench.one(act.Load)
    bench.core.handle(ev.Loaded("w", 1), bench.now)
    assert bench.commits() == [1]


def test_a_load_is_asked_for_again_as_long_as_a_queue_waits_for_it(make: Callable[..., Bench]) -> None:
    """The loader that was asked may have died since."""
    bench = make(commit_after_loaded=True)
    (handle,) = bench.open(0)
    bench.worker("w")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.done(chunk, seq=1)
    bench.sealed("w", 1)
    bench.revoke()
    bench.one(act.Load)
    bench.persist()
    bench.one(act.Load)
