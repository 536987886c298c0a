"""The core's timers: what is due runs once a tick, whatever it sets for itself meanwhile."""

from __future__ import annotations

import pytest

from rocketcrew.supervisor.core.allocation import average
from rocketcrew.supervisor.core.slab import UNIT_BYTES, Slab
from rocketcrew.supervisor.core.state import CoreConfig, State


@pytest.fixture
def state() -> State:
    view = bytearray(UNIT_BYTES)
    return State(CoreConfig("me", "g", ("t",), average), Slab(len(view)), view)


def test_a_timer_that_sets_itself_again_for_now_runs_once_a_tick(state: State) -> None:
    ran: list[float] = []

    def again(now: float) -> None:
        ran.append(now)
        state.at(now, again)

    state.at(1.0, again)
    state.run_timers(1.0)
    assert ran == [1.0]
    assert state.next_timer() == 1.0, "the next tick runs it"
    state.run_timers(2.0)
    assert ran == [1.0, 2.0]


def test_timers_run_in_the_order_of_their_times_and_those_of_one_time_as_they_were_set(state: State) -> None:
    ran: list[str] = []
    for due, name in ((3.0, "c"), (1.0, "a"), (1.0, "b"), (9.0, "later")):
        state.at(due, lambda _now, name=name: ran.append(name))
    state.run_timers(3.0)
    assert ran == ["a", "b", "c"]
    assert state.next_timer() == 9.0


def test_when_one_raises_the_others_are_due_again(state: State) -> None:
    ran: list[str] = []

    def breaks(now: float) -> None:
        raise ArithmeticError(f"at {now}")

    state.at(1.0, lambda _now: ran.append("first"))
    state.at(1.0, breaks)
    state.at(2.0, lambda _now: ran.append("last"))
    with pytest.raises(ArithmeticError):
        state.run_timers(2.0)
    assert ran == ["first"]
    state.run_timers(2.0)
    assert ran == ["first", "last"]
