"""Every event has its mechanism, in every order; what cannot be said is not swallowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.order import Order

if TYPE_CHECKING:
    from collections.abc import Callable

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


def test_the_order_of_the_handler_makes_all_mechanisms_anew(make: Callable[..., Bench]) -> None:
    """Workers may be ready before it is known. No timer of the mechanisms before looks at what is handed out later."""
    bench = make(chunk_messages_max=2)
    bench.worker("w1")
    assert bench.core.next_timer() is not None
    bench.core.set_order(Order())
    assert bench.core.next_timer() is None
    (handle,) = bench.open(0)
    bench.found(handle, [0, 1])
    looks = 0
    for _ in range(20):
        bench.pass_ms(5)
        looks += len(bench.take(act.ReadCell))
    assert 0 < looks <= 20
    bench.core.handle(ev.Start(), bench.now)
    with pytest.raises(AssertionError, match="before anything is pulled"):
        bench.core.set_order(Order())
