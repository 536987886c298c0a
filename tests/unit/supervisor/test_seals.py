"""When a seal is asked for: a queue leaves, a stop waits, or too much waits for it. Never because there is a backlog."""

from __future__ import annotations

from collections import Counter, deque

import pytest

from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.assigning import CUT_SHORT_MS
from rocketcrew.supervisor.core.pulling import PullResult

from .conftest import Bench, record

MESSAGES = 100_000
SEAL_ROWS = 5_000
PULL_BATCH = 32
OFFSET_AT = 20
"""The queue offset's place in a stored record."""


class Reporting:
    """Workers that give one row for each message and seal when they have enough, or are asked to; queues with a backlog."""

    def __init__(self, bench: Bench, names: list[str]) -> None:
        self.bench = bench
        self.rows = Counter[str]()
        self.segments = 0
        self.seq = dict.fromkeys(names, 1)
        self.body = record(0) * PULL_BATCH
        bench.worker(*names)

    def pulled(self, pull: act.Pull) -> None:
        bench, size = self.bench, len(self.body) // PULL_BATCH
        slot = bench.core.room_for(pull.handle, len(self.body))
        assert slot is not None
        bench.view[slot.start : slot.start + len(self.body)] = self.body
        for index in range(PULL_BATCH):
            at = slot.start + index * size + OFFSET_AT
            bench.view[at : at + 8] = (pull.offset + index).to_bytes(8, "big")
        result = PullResult(ResponseCode.SUCCESS, pull.offset + PULL_BATCH, len(self.body), slot)
        bench.core.handle(ev.Pulled(pull.handle, result), bench.now)

    def run(self, chunk: act.Dispatch) -> None:
        name = chunk.worker_id
        self.rows[name] += chunk.chunk.count
        self.bench.done(chunk.chunk, seq=self.seq[name], us=30)
        if self.rows[name] >= SEAL_ROWS:
            self.seal(name)

    def seal(self, name: str) -> None:
        if self.rows[name]:
            self.segments += 1
            self.rows[name] = 0
            self.seq[name] += 1
            self.bench.sealed(name, self.seq[name] - 1)

    def consume(self, messages: int) -> None:
        """With a backlog: each pull is answered at once. A message a millisecond and worker."""
        bench, todo = self.bench, deque[act.Action]()
        done = 0
        while done < messages:
            todo.extend(bench.core.take_actions())
            if not todo:
                bench.pass_ms(1)
                continue
            action = todo.popleft()
            if isinstance(action, act.Pull):
                self.pulled(action)
            elif isinstance(action, act.Dispatch):
                done += action.chunk.count
                self.run(action)
                bench.pass_ms(action.chunk.count / len(self.seq))
            elif isinstance(action, act.Seal):
                self.seal(action.worker_id)
            elif isinstance(action, act.Commit):
                bench.core.handle(ev.Committed(action.handle, action.offset, True), bench.now)


@pytest.mark.parametrize("queues", [1, 64])
def test_a_backlog_asks_for_no_seals(make: type[Bench], queues: int) -> None:
    bench = make(units=20_000, chunk_messages_max=64, seal_rows=SEAL_ROWS)
    bench.open(*range(queues))
    pulls = bench.take(act.Pull)
    crew = Reporting(bench, ["w1", "w2"])
    for pull in pulls:
        crew.pulled(pull)
    crew.consume(MESSAGES)
    assert bench.counters.commits > 0
    assert crew.segments <= 2 * MESSAGES // SEAL_ROWS + 2


def test_what_waits_for_a_segment_is_bounded_also_where_few_messages_have_rows(make: type[Bench]) -> None:
    """One row in a report of many messages: all of them wait for its segment, which its worker would not seal for long."""
    bench = make(units=20_000, chunk_messages_max=64, seal_rows=100)
    [handle] = bench.open(0)
    bench.worker("w1")
    for start in range(0, 320, 32):
        assert bench.found(handle, range(start, start + 32))
        while chunks := bench.dispatched():
            for chunk in chunks:
                bench.done(chunk, seq=1)
        if start < 96:
            bench.none(act.Seal)
    assert [seal.worker_id for seal in bench.take(act.Seal)] == ["w1"], "asked for once"


def test_a_segment_that_was_sealed_before_its_outcome_came_waits_for_the_table_too() -> None:
    bench = Bench(commit_after_loaded=True)
    (handle,) = bench.open(0)
    bench.worker("w")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.sealed("w", 1)
    bench.done(chunk, seq=1)
    assert bench.persist() == []
    bench.core.handle(ev.Loaded("w", 1), bench.now)
    assert bench.persist() == [1]


def stopping_while_the_table_is_waited_for(*, finished: int) -> Bench:
    """At the deadline of a stop: of two messages so many are finished, and their rows sealed."""
    bench = Bench(commit_after_loaded=True, stop_load_ms=5_000)
    (handle,) = bench.open(0)
    bench.worker("w")
    bench.found(handle, [0, 1])
    for chunk in bench.dispatched():
        at_most = finished - chunk.first_unfinished
        if at_most > 0:
            bench.done(chunk, seq=1, count=min(chunk.count, at_most))
    bench.sealed("w", 1)
    bench.core.handle(ev.Stop(), bench.now)
    bench.pass_ms(bench.config.stop_deadline_ms)
    return bench


def test_a_stop_goes_on_after_its_deadline_where_only_the_table_is_waited_for() -> None:
    bench = stopping_while_the_table_is_waited_for(finished=2)
    bench.none(act.Finished)
    bench.pass_ms(4_000)
    bench.core.handle(ev.Loaded("w", 1), bench.now)
    assert bench.commits() == [2]
    assert bench.one(act.Finished).clean


def test_a_stop_waits_for_the_table_so_long_and_no_longer() -> None:
    bench = stopping_while_the_table_is_waited_for(finished=2)
    bench.pass_ms(5_000)
    left = bench.one(act.Finished)
    assert (left.unfinished, left.unsealed, left.uncommitted) == (0, 2, 0)


def test_a_stop_waits_for_no_table_behind_a_call_that_does_not_end() -> None:
    bench = stopping_while_the_table_is_waited_for(finished=1)
    left = bench.one(act.Finished)
    assert (left.unfinished, left.unsealed) == (1, 1)


def test_a_stop_waits_for_no_table_where_rows_are_in_a_segment_that_is_not_sealed() -> None:
    """Its worker does not get to it: another queue's call does not end."""
    bench = Bench(commit_after_loaded=True, stop_load_ms=5_000)
    bench.worker("w")
    for handle in bench.open(0, 1):
        bench.found(handle, [0])
    first, _ = bench.dispatched()
    bench.done(first, seq=1)
    bench.core.handle(ev.Stop(), bench.now)
    bench.pass_ms(bench.config.stop_deadline_ms)
    assert bench.one(act.Finished).unfinished == 1


def test_a_stop_waits_for_the_table_also_where_workers_gave_something_back_that_they_had_not_begun() -> None:
    bench = Bench(commit_after_loaded=True, stop_load_ms=5_000, chunk_messages_max=4)
    (handle,) = bench.open(0)
    bench.worker("w")
    bench.found(handle, range(8))
    first, _ = bench.dispatched()
    bench.core.handle(ev.Stop(), bench.now)
    bench.pass_ms(CUT_SHORT_MS)
    bench.core.handle(ev.Reclaimed("w", bench.one(act.Reclaim).chunk_ids, 1, 0), bench.now)
    bench.done(first, seq=1)
    bench.sealed("w", 1)
    bench.pass_ms(bench.config.stop_deadline_ms)
    bench.core.handle(ev.Loaded("w", 1), bench.now)
    assert bench.commits() == [first.count]
    assert bench.one(act.Finished).clean
