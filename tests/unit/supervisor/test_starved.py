"""Queues that are pulled and pops share one slab: who waits in line for bytes is served before the next pop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.popping import PopResult

from .conftest import TOPIC

if TYPE_CHECKING:
    from .conftest import Bench


def pops_that_hold_the_slab(make: type[Bench]) -> tuple[Bench, list[act.Pop]]:
    """A queue that is pulled waits in line, because the pops that are out hold every unit that may be reserved."""
    bench = make(units=4, topics=(TOPIC, "popped"))
    queues = [MessageQueue("popped", "b", queue_id) for queue_id in range(8)]
    bench.core.handle(ev.PopAssigned("popped", queues), bench.now)
    pops = bench.take(act.Pop)
    bench.open(0)
    bench.none(act.Pull)
    assert len(bench.core.state.starved) == 1
    return bench, pops


def test_a_pop_that_is_answered_late_feeds_the_line(make: type[Bench]) -> None:
    bench, pops = pops_that_hold_the_slab(make)
    bench.core.handle(ev.Unsubscribe("popped"), bench.now)
    bench.core.handle(ev.Popped(pops[0].handle, PopResult(ResponseCode.POLLING_TIMEOUT)), bench.now)
    assert bench.one(act.Pull).mq == bench.queue(0)


def test_a_pop_without_an_answer_feeds_the_line(make: type[Bench]) -> None:
    bench, pops = pops_that_hold_the_slab(make)
    bench.core.handle(ev.NoAnswer(pops[0].handle), bench.now)
    assert bench.one(act.Pull).mq == bench.queue(0)


def test_the_next_pop_does_not_take_what_the_line_waits_for(make: type[Bench]) -> None:
    bench, pops = pops_that_hold_the_slab(make)
    bench.core.handle(ev.Popped(pops[0].handle, PopResult(ResponseCode.POLLING_TIMEOUT)), bench.now)
    assert bench.one(act.Pull).mq == bench.queue(0)
    bench.none(act.Pop)
    bench.core.handle(ev.Popped(pops[1].handle, PopResult(ResponseCode.POLLING_TIMEOUT)), bench.now)
    assert len(bench.take(act.Pop)) == 1, "nobody waits in line any more"
