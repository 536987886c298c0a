"""Every event has its mechanism, in every order; what cannot be said is not swallowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.allocation import average
from rocketcrew.supervisor.core.blame import Death, End
from rocketcrew.supervisor.core.decisions import Core
from rocketcrew.supervisor.core.order import Order
from rocketcrew.supervisor.core.slab import UNIT_BYTES, Slab
from rocketcrew.supervisor.core.state import CoreConfig, Worker
from rocketcrew.supervisor.core.states import WorkerState

if TYPE_CHECKING:
    from .conftest import Bench


def test_what_is_no_event_is_an_error(bench: Bench) -> None:
    with pytest.raises(KeyError):
        bench.core.handle("pulled", 0.0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_an_event_changes_nothing_once_it_was_handled(bench: Bench) -> None:
    """They are plain data: none of them carries the time or a live object of the core but slots of the slab."""
    for kind in get_args(ev.Event):
        assert "now" not in kind.__slots__
        assert "core" not in kind.__slots__


@pytest.mark.parametrize(
    "event",
    [ev.Returned("w1", 1, 0, 0, None, -1), ev.Consumed("w1", 1), ev.Classified("w1", 1, [b"k"])],
    ids=lambda event: type(event).__name__,
)
def test_a_worker_that_keeps_an_order_where_there_is_none_is_killed(bench: Bench, event: ev.Event) -> None:
    bench.worker("w1")
    bench.core.handle(event, bench.now)
    assert bench.one(act.KillWorker).worker_id == "w1"


def test_an_answer_that_nobody_asked_for_is_counted(bench: Bench) -> None:
    bench.core.handle(ev.Locked([bench.queue()], [], 0.0), bench.now)
    assert bench.counters.late_answers == 1


def test_workers_live_and_die_before_the_order_is_known_and_mechanisms_are_made_once() -> None:
    view = bytearray(UNIT_BYTES)
    core = Core(CoreConfig("c", "g", ("orders",), average), Slab(len(view)), view)
    for name in ("w1", "w2", "w3"):
        core.handle(ev.WorkerStarted(Worker(name)), 0.0)
    core.handle(ev.WorkerReady("w1"), 1.0)
    core.handle(ev.WorkerDied("w2", Death(End.CRASHED)), 1.0)
    core.handle(ev.SalvageComplete("w2"), 1.0)
    core.handle(ev.WorkerStops("w3"), 1.0)
    core.handle(ev.WorkerReady("w3"), 1.0)
    assert {name: worker.state for name, worker in core.state.workers.items()} == {
        "w1": WorkerState.READY, "w3": WorkerState.STOPPING,
    }  # fmt: skip
    assert (core.busy_workers(), core.next_timer(), core.take_actions()) == (set(), None, [])
    core.begin(Order("queue", locks=True))
    assert (core.state.config.order, core.ordered is core.dispatching) == ("queue", True)
    with pytest.raises(AssertionError, match="known once"):
        core.begin(Order())


def test_a_worker_that_reports_messages_before_any_was_dispatched_is_killed() -> None:
    view = bytearray(UNIT_BYTES)
    core = Core(CoreConfig("c", "g", ("orders",), average), Slab(len(view)), view)
    core.handle(ev.WorkerStarted(Worker("w1")), 0.0)
    core.handle(ev.Reported("w1", 1, 0, 1, 0, 1, 1, 0, ()), 0.0)
    (kill,) = core.take_actions()
    assert isinstance(kill, act.KillWorker)
    assert (kill.worker_id, kill.reason) == ("w1", "Reported before anything was dispatched")
