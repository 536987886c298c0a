"""The ledger of an assignment, against a model with one word per offset; and what it costs when nothing is loaded yet."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rocketcrew.durable.intervals import Intervals
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.chunks import Token
from rocketcrew.supervisor.core.ledger import Ledger

from .conftest import Bench

pytestmark = pytest.mark.usefixtures("no_collection")

BEGIN = 10
TOKENS: list[Token] = [("w1", 1), ("w1", 2), ("w2", 1)]


class LedgerMachine(RuleBasedStateMachine):
    """Runs of offsets are pulled, finished, held, released, lost or not delivered, in any order."""

    @initialize(recovered=st.sets(st.integers(BEGIN, BEGIN + 30)))
    def begin(self, recovered: set[int]) -> None:
        self.ledger = Ledger(BEGIN, Intervals((at, at + 1) for at in recovered))
        self.recovered = recovered
        self.next_offset = BEGIN
        self.open: list[tuple[int, int]] = []
        self.done: set[int] = set(recovered)
        self.passed: set[int] = set()
        self.held: dict[Token, set[int]] = {}

    @rule(gap=st.integers(0, 3), length=st.integers(1, 4), after=st.integers(0, 2))
    def pull(self, gap: int, length: int, after: int) -> None:
        """A run of messages; what was finished before is not run again."""
        begin, first = self.next_offset, self.next_offset + gap
        for at in range(first, first + length):
            if at in self.recovered:
                self.ledger.pass_over(begin, at + 1)
                self.passed.update(range(begin, at + 1))
            else:
                self.open.append((begin, at + 1))
            begin = at + 1
        self.ledger.pass_over(begin, begin + after)
        self.passed.update(range(begin, begin + after))
        self.next_offset = begin + after

    @precondition(lambda self: self.open)
    @rule(data=st.data(), token=st.none() | st.sampled_from(TOKENS))
    def finish(self, data: st.DataObject, token: Token | None) -> None:
        start, end = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        if token is not None:
            self.ledger.hold(token, start, end, 1)
            while start < end - 1 and start in self.done:
                start += 1  # a gap that was passed before waits for no segment
            self.held.setdefault(token, set()).update(range(start, end))
        self.ledger.finish(start, end)
        self.done.update(range(start, end))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """A message is given up; what is done stays below what is lost."""
        self.ledger.lose(*self.open.pop(data.draw(st.integers(0, len(self.open) - 1))))
        assert self.ledger.first_open <= self.ledger.lost.start

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(sorted(self.held)))
        self.ledger.release(token)
        del self.held[token]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def lose_rows(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(sorted(self.held)))
        self.ledger.lose_rows(token)
        self.done -= self.held.pop(token)

    @precondition(lambda self: self.open and not self.ledger.lost)
    @rule()
    def forget_the_last(self) -> None:
        """The last of what was pulled and is not finished is given up, if nothing above it is finished. A queue that has lost
        something leaves and does not pull again."""
        start, end = self.open[-1]
        if not any(at >= end and at not in self.recovered for at in self.done):
            self.open.pop()
            self.ledger.pull_again_from(start)
            self.passed = {at for at in self.passed if at < start}
            self.next_offset = start

    @invariant()
    def it_says_what_the_model_says(self) -> None:
        if not hasattr(self, "ledger"):
            return
        held = set[int]().union(*self.held.values())
        first_open = head = BEGIN
        while first_open in self.done or first_open in self.passed:
            first_open += 1
        while head < first_open and head not in held:
            head += 1
        assert min(self.ledger.first_open, self.next_offset) == min(first_open, self.next_offset)
        assert min(self.ledger.head, self.next_offset) == min(head, self.next_offset)
        finished = self.ledger.finished_above(BEGIN)
        assert all((at in finished) for at in self.done - held)
        assert not any(at in finished for at in held)
        unfinished = {at for start, end in self.open for at in range(start, end)} - self.recovered
        assert not any(at in finished for at in unfinished)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=80, stateful_step_count=40)


def test_a_message_held_by_two_segments_waits_for_both() -> None:
    ledger = Ledger(0)
    for token in TOKENS[:2]:
        ledger.hold(token, 0, 4, 4)
    ledger.finish(0, 4)
    assert (ledger.release(TOKENS[0]), ledger.head) == (4, 0)
    assert (ledger.release(TOKENS[1]), ledger.head) == (4, 4)


def lines_run(act_once: Callable[[], Any]) -> int:
    """Lines of Python that one call runs: what it costs, whatever the machine has to do beside."""
    count = 0

    def trace(_frame: Any, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act_once()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("segment_messages", [10_000, 50])
def test_neither_a_pull_nor_an_outcome_nor_a_commit_costs_more_with_much_that_is_not_loaded_yet(
    make: type[Bench], segment_messages: int
) -> None:
    """With `commit_after_loaded`: everything is finished and sealed, and the table has none of it."""
    costs: list[list[int]] = []
    for messages in (20_000, 50_000):
        bench = make(commit_after_loaded=True, pull_threshold_for_queue=1)
        (handle,) = bench.open(0)
        bench.worker("w1")
        pq, state = bench.pq(handle), bench.core.state
        for offset in range(messages):
            state.hold(pq, ("w0", offset // segment_messages), offset, offset + 1, 1)
            pq.ledger.finish(offset, offset + 1)
        state.unloaded.update(pq.ledger.held)
        bench.take(act.Pull)
        pq.next_offset = messages
        assert (pq.head_offset, pq.span, len(state.unsealed)) == (0, 0, messages // segment_messages)
        found = lines_run(partial(bench.found, handle, range(messages, messages + 3)))
        first, second = bench.dispatched()
        plain = lines_run(partial(bench.done, first))
        with_rows = lines_run(partial(bench.done, second, seq=1))
        assert bench.one(act.Pull).offset == messages + 3
        commit = lines_run(bench.persist)
        loaded = lines_run(partial(bench.core.handle, ev.Loaded("w0", 0), bench.now))
        assert pq.head_offset == segment_messages
        costs.append([found, plain, with_rows, commit, loaded])
    assert all(more - less < 100 for less, more in zip(*costs, strict=True)), costs
