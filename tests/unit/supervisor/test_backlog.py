"""What waits on disk: marks that hold up pulling, offsets that wait for the table."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.durable.intervals import OffsetSet
from rocketcrew.spark.staging import Staging
from rocketcrew.supervisor.backlog import Backlog, Marks
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev

from .test_scale import FLAT, steps

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


# --- notices --------------------------------------------------------------------------------------------------------


def name_of(number: int) -> str:
    return f"w-{number:08d}.arrows"


async def noticed(bench: Bench, segments: Path) -> Backlog:
    """Started, and looked at once."""
    backlog = Backlog(bench.core, segments, Marks(0, 0), lambda: None)
    backlog.start()
    backlog.look()
    return backlog


def test_what_comes_and_goes_is_known_without_listing(bench: Bench, segments: Path) -> None:
    async def run() -> None:
        ready = segments / "ready"
        for number in range(3):
            (ready / name_of(number)).write_bytes(b"x" * 10)
        backlog = await noticed(bench, segments)
        assert (backlog.waiting.segments, backlog.waiting.bytes) == (3, 30)
        (segments / "new").write_bytes(b"x" * 5)
        (segments / "new").rename(ready / name_of(3))
        (ready / name_of(0)).unlink()
        (ready / name_of(1)).rename(segments / "bad" / name_of(1))
        (ready / name_of(4)).write_bytes(b"x")
        (ready / name_of(4)).unlink()
        backlog.look()
        assert (backlog.waiting.segments, backlog.waiting.bytes) == (2, 15)
        for path in ready.iterdir():
            path.unlink()
        backlog.look()
        assert (backlog.waiting.segments, backlog.waiting.bytes, backlog.waiting.oldest_s) == (0, 0, 0.0)
        assert backlog.listings == 1
        await backlog.stop()

    asyncio.run(run())


@pytest.mark.parametrize("moved", [False, True])
def test_a_folder_that_was_replaced_is_watched_like_the_one_before(bench: Bench, segments: Path, moved: bool) -> None:
    async def run() -> None:
        ready = segments / "ready"
        backlog = await noticed(bench, segments)
        if moved:
            ready.rename(segments / "ready-before")
        else:
            ready.rmdir()
        ready.mkdir()
        backlog.look()
        listings = backlog.listings
        (ready / name_of(1)).write_bytes(b"x")
        backlog.look()
        assert backlog.waiting.segments == 1
        assert backlog.listings == listings
        await backlog.stop()

    asyncio.run(run())


def test_the_oldest_is_known_when_older_ones_go(bench: Bench, segments: Path) -> None:
    async def run() -> None:
        now = time.time()
        for number, age_s in enumerate((100, 900, 500)):
            path = segments / "ready" / name_of(number)
            path.write_bytes(b"x")
            os.utime(path, (now - age_s, now - age_s))
        backlog = await noticed(bench, segments)
        ages = [round(backlog.waiting.oldest_s / 100)]
        for number in (1, 2, 0):
            (segments / "ready" / name_of(number)).unlink()
            backlog.look()
            ages.append(round(backlog.waiting.oldest_s / 100))
        assert ages == [9, 5, 1, 0]
        await backlog.stop()

    asyncio.run(run())


def sealed(bench: Bench, segments: Path, number: int) -> None:
    """One message whose row is in segment `number`."""
    handle = next(iter(bench.core.state.queues))
    bench.found(handle, [number - 1])
    (chunk,) = bench.dispatched()
    bench.done(chunk, seq=number)
    (segments / "ready" / name_of(number)).write_bytes(b"rows")
    bench.sealed("w", number)


@pytest.mark.parametrize("gone_first", [False, True])
def test_a_segment_is_loaded_when_it_goes(make: Callable[..., Bench], segments: Path, gone_first: bool) -> None:
    """Also when it went before the core had heard that it was sealed."""
    bench = make(commit_after_loaded=True)
    bench.open(0)
    bench.worker("w")

    async def run() -> None:
        backlog = await noticed(bench, segments)
        sealed(bench, segments, 1)
        if not gone_first:
            backlog.look()
            bench.none(act.JournalSealed)
        (segments / "ready" / name_of(1)).unlink()
        backlog.look()
        bench.one(act.JournalSealed)
        assert not bench.core.state.unloaded
        await backlog.stop()

    asyncio.run(run())


def test_a_segment_that_is_set_aside_is_looked_for_again(make: Callable[..., Bench], segments: Path) -> None:
    bench = make(commit_after_loaded=True)
    bench.open(0)
    bench.worker("w")

    async def run() -> None:
        backlog = await noticed(bench, segments)
        sealed(bench, segments, 1)
        Staging(segments).quarantine(name_of(1), "cut off", OffsetSet())
        backlog.look()
        bench.none(act.JournalSealed)
        (segments / "bad" / name_of(1)).rename(segments / "ready" / name_of(1))
        backlog.look()
        bench.none(act.JournalSealed)
        (segments / "ready" / name_of(1)).unlink()
        backlog.look()
        bench.one(act.JournalSealed)
        await backlog.stop()

    asyncio.run(run())


@pytest.mark.parametrize("loaded", [False, True])
def test_a_look_costs_what_has_changed(make: Callable[..., Bench], segments: Path, loaded: bool) -> None:
    """Files that wait, and offsets that wait with them, cost a look nothing."""

    async def cost(files: int) -> int:
        bench = make(units=2_000, commit_after_loaded=loaded)
        bench.open(0)
        bench.worker("w")
        for number in range(1, files + 1):
            sealed(bench, segments, number)
        backlog = await noticed(bench, segments)
        backlog.look()
        (segments / "ready" / name_of(1)).unlink()
        found = steps(backlog.look)
        assert backlog.waiting.segments == files - 1
        await backlog.stop()
        for path in (segments / "ready").iterdir():
            path.unlink()
        return found

    async def both() -> None:
        assert await cost(600) <= FLAT * await cost(20)

    asyncio.run(both())


def test_without_notices_the_folder_is_listed_for_a_share_of_the_time(bench: Bench, segments: Path) -> None:
    async def run() -> None:
        backlog = Backlog(bench.core, segments, Marks(0, 0), lambda: None)
        for _ in range(3):
            backlog.look()
        assert backlog.listings == 3, "an empty folder costs nothing"

    asyncio.run(run())
