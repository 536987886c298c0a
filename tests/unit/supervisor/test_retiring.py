"""Workers that leave finish what they have and get nothing more; a pause pulls nothing and forgets nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.blame import Death, End
from rocketcrew.supervisor.core.state import BACKLOG, DISK

if TYPE_CHECKING:
    from rocketcrew.supervisor.core.chunks import Chunk

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


@pytest.mark.parametrize("reason", [BACKLOG, DISK])
@pytest.mark.parametrize("order", ["concurrent", "queue", "key"])
def test_where_there_is_no_room_for_rows_nothing_more_is_begun(
    make: Callable[..., Bench], reason: str, order: str
) -> None:
    """A thousand small messages are pulled, and each may have a megabyte of rows."""
    bench = make(order=order, order_key="", chunk_messages_max=2)
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.found(handle, range(20))
    if order == "key":
        bench.core.handle(ev.Classified("a", handle, [b"%d" % number for number in range(20)]), bench.now)
    begun = in_hand(bench)
    bench.core.handle(ev.Pause(reason), bench.now)
    bench.worker("b")
    assert begun
    for chunk in begun:
        bench.done(chunk)
    assert not in_hand(bench)
    bench.core.handle(ev.Pause(), bench.now)
    bench.core.handle(ev.Resume(reason), bench.now)
    assert in_hand(bench), "an operator's pause does not hold what was pulled"


def test_what_a_dead_worker_had_goes_on_where_there_is_no_room(make: Callable[..., Bench]) -> None:
    bench = make(chunk_messages_max=2)
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.found(handle, range(20))
    offsets = [chunk.offsets for chunk in bench.dispatched()]
    bench.core.handle(ev.Pause(DISK), bench.now)
    bench.core.handle(ev.WorkerDied("a"), bench.now)
    bench.core.handle(ev.SalvageComplete("a"), bench.now)
    bench.worker("b")
    again = bench.dispatched()
    assert [chunk.offsets for chunk in again] == offsets[: len(again)]
    for _ in range(10):
        for chunk in again:
            bench.done(chunk)
        again = bench.dispatched()
    assert bench.pq(handle).head_offset == sum(map(len, offsets))


def test_a_stop_finishes_what_waited_for_room_below_what_was_begun(make: Callable[..., Bench]) -> None:
    bench = make(order="key", order_key="", chunk_messages_max=1)
    (handle,) = bench.open(0)
    bench.worker("a", "b")
    bench.found(handle, range(4))
    bench.core.handle(ev.Classified("a", handle, [b"same", b"same", b"other", b"same"]), bench.now)
    (zero, two) = in_hand(bench)
    assert (zero.offsets, two.offsets) == ([0], [2])
    bench.core.handle(ev.Pause(BACKLOG), bench.now)
    bench.done(zero)
    bench.done(two)
    assert not in_hand(bench)
    bench.core.handle(ev.Stop(), bench.now)
    (one,) = in_hand(bench)
    assert one.offsets == [1]
    bench.done(one)
    assert [*bench.commits(), *bench.commits()] == [1, 3]


def in_hand(bench: Bench) -> list[Chunk]:
    """Dispatched since the last look, in any order mode."""
    return bench.dispatched() + [one.chunk for dispatch in bench.take(act.DispatchOrdered) for one in dispatch.chunks]
