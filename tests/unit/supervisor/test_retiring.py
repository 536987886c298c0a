"""Workers that leave finish what they have and get nothing more; a pause pulls nothing and forgets nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.blame import Death, End

if TYPE_CHECKING:
    from .conftest import Bench


def test_a_retired_worker_finishes_and_gets_nothing_more(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("old")
    bench.found(handle, [0, 1, 2, 3])
    first, second = bench.dispatched()
    bench.worker("new")
    bench.core.handle(ev.RetireWorker("old"), bench.now)
    assert [chunk.worker_id for chunk in bench.dispatched()] == ["new", "new"]
    bench.none(act.Retired)
    bench.done(first)
    bench.none(act.Retired, act.Dispatch)
    bench.done(second)
    assert bench.one(act.Retired).worker_id == "old"
    bench.core.handle(ev.WorkerDied("old", Death(End.RETIRED)), bench.now)
    bench.core.handle(ev.SalvageComplete("old"), bench.now)
    assert bench.counters.worker_deaths == 0


def test_an_idle_worker_leaves_at_once_and_only_once(bench: Bench) -> None:
    bench.worker("w")
    bench.core.handle(ev.RetireWorker("w"), bench.now)
    assert bench.one(act.Retired).worker_id == "w"
    bench.core.handle(ev.RetireWorker("w"), bench.now)
    bench.core.handle(ev.RetireWorker("unknown"), bench.now)
    bench.none(act.Retired)


def test_a_leaving_worker_that_dies_leaves_its_messages_to_others_and_is_counted(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("old")
    bench.found(handle, [0])
    bench.dispatched()
    bench.core.handle(ev.RetireWorker("old"), bench.now)
    bench.worker("new")
    bench.core.handle(ev.WorkerDied("old"), bench.now)
    bench.core.handle(ev.SalvageComplete("old"), bench.now)
    (again,) = bench.dispatched()
    assert (again.worker_id, again.offsets) == ("new", [0])
    assert bench.counters.worker_deaths == 1


def test_a_leaving_worker_is_still_asked_to_seal(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w")
    bench.found(handle, [0, 1])
    first, _ = bench.dispatched()
    bench.core.handle(ev.RetireWorker("w"), bench.now)
    bench.done(first, seq=1)
    bench.revoke()
    assert bench.one(act.Seal).worker_id == "w"


def test_a_pause_pulls_nothing_until_it_ends(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w")
    bench.one(act.Pull)
    bench.core.handle(ev.Pause(), bench.now)
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()  # what the broker held is still consumed
    bench.done(chunk)
    bench.pass_ms(60_000)
    bench.none(act.Pull)
    bench.core.handle(ev.Resume(), bench.now)
    assert bench.one(act.Pull).offset == 1
    bench.core.handle(ev.Resume(), bench.now)
    bench.none(act.Pull)


def test_a_pause_keeps_no_place_in_the_line_for_bytes(make: Callable[..., Bench]) -> None:
    bench = make(units=1)
    one, two = bench.open(0, 1)
    bench.one(act.Pull)
    bench.core.handle(ev.Pause(), bench.now)
    bench.answer(one, ResponseCode.PULL_NOT_FOUND, 0)
    bench.none(act.Pull)
    bench.core.handle(ev.Resume(), bench.now)
    assert bench.one(act.Pull).handle in (one, two)
