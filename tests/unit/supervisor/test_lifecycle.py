"""What the user's life-cycle hooks hear of, and in which measure; the process that calls them is in tests/system."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rocketcrew.conf.settings import load
from rocketcrew.remoting.errors import UsageError
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.lifecycle import EVENTS_MAX, LOG_EVERY_S, OF_LOG, Faults, Line, assigned_queues, moved

if TYPE_CHECKING:
    from .conftest import Bench


def test_a_line_takes_what_somebody_wants_up_to_its_bound() -> None:
    line = Line(["on_start"])
    assert not line.put("on_rebalance", {})
    assert line.dropped == 0
    assert all(line.put("on_start", {"number": number}) for number in range(EVENTS_MAX))
    assert not line.put("on_start", {})
    assert (len(line), line.dropped) == (EVENTS_MAX, 1)
    assert line.next() == ("on_start", {"number": 0})


def test_a_hook_that_fails_again_and_again_is_one_line_a_minute() -> None:
    faults = Faults()
    assert [faults.times("a", now) for now in (0.0, 1.0, 2.0, LOG_EVERY_S, LOG_EVERY_S + 1)] == [1, 0, 0, 3, 0]
    assert faults.times("b", 1.0) == 1


def test_a_rebalance_is_what_came_and_what_went(bench: Bench) -> None:
    before = assigned_queues(bench.core)
    assert before == frozenset()
    assert moved(before, before) is None
    bench.open(0, 1)
    after = assigned_queues(bench.core)
    first, second = ["orders", "b", 0], ["orders", "b", 1]
    assert moved(before, after) == {"assigned": [first, second], "added": [first, second], "removed": []}
    bench.revoke()
    last = assigned_queues(bench.core)
    assert moved(after, last) == {"assigned": [], "added": [], "removed": [first, second]}


def test_the_core_logs_what_the_hooks_are_called_for(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("a")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.done(chunk, failures=[(0, -1, "ValueError: no")])
    back = bench.one(act.SendBack)

    bench.core.handle(ev.SentBack(back.handle, back.chunk_id, back.index, accepted=True), bench.now)
    bench.core.handle(ev.WorkerDied("a"), bench.now)
    logged = {log.event: log.keys for log in bench.take(act.Log)}
    assert logged.keys() >= OF_LOG.keys()
    letter = logged["message_dead_lettered"]
    assert (letter["topic"], letter["queue_id"], letter["offset"]) == ("orders", 0, 0)
    assert letter["error"] == "ValueError: no"
    assert logged["worker_died"]["worker"] == "a"


def test_hooks_are_named_by_their_import_path() -> None:
    assert load({"hooks.on_start": "shop:begun"}, {}, None).hooks.on_start == "shop:begun"
    for wrong in ("shop", "shop.py:begun()", ":begun"):
        with pytest.raises(UsageError, match=r"hooks\.on_dead_letter"):
            load({"hooks.on_dead_letter": wrong}, {}, None)
