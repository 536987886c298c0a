"""What all unit tests share: none leaves many descriptors open, else later tests of the same process would run out; and
the clock of their loops, which a machine that stands still for seconds does not move by seconds."""

from __future__ import annotations

import asyncio
import gc
import os
import selectors
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

import pytest

OPEN_FOLDER = "/proc/self/fd"
LEFT_MAX = 48
"""So many may stay: libraries open some at their first use and keep them (thread pools, an event loop of their own)."""

TURN_MAX_S = 0.05
"""So much of the time between two looks for events counts in a loop of a test; more is a pause of the machine."""


class SteadySelector(selectors.DefaultSelector):
    """Adds up the loop's time."""

    def __init__(self) -> None:
        super().__init__()
        self._seen_s = self._then_s = time.monotonic()

    def time(self) -> float:
        return self._then_s + min(time.monotonic() - self._seen_s, TURN_MAX_S)

    def select(self, timeout: float | None = None) -> Any:
        self._look()
        found = super().select(timeout if timeout is None else min(timeout, TURN_MAX_S))
        self._look()
        return found

    def skip_s(self, seconds: float) -> None:
        self._then_s += seconds

    def _look(self) -> None:
        self._then_s, self._seen_s = self.time(), time.monotonic()


class SteadyLoop(asyncio.SelectorEventLoop):
    """Its clock does not move while the process does not run. Else a request of 3 s would fail by a pause of the
    machine, although both ends are well."""

    def __init__(self) -> None:
        self._steady = SteadySelector()
        super().__init__(self._steady)

    def time(self) -> float:
        return self._steady.time()

    def skip_ms(self, ms: float) -> None:
        """Let what waits until then run out now, however slow the machine is."""
        self._steady.skip_s(ms / 1000)


class SteadyLoops(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return SteadyLoop()


@pytest.fixture(autouse=True, scope="module")
def steady_loops() -> Iterator[None]:
    """For `asyncio.run` of tests, and of what they call. Not for the loops of `LoopThread` and of other processes."""
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(SteadyLoops())
    yield
    asyncio.set_event_loop_policy(before)


@pytest.fixture(autouse=True)
def descriptors_are_given_back() -> Iterator[None]:
    before = len(os.listdir(OPEN_FOLDER))
    yield
    left = len(os.listdir(OPEN_FOLDER)) - before
    if left > LEFT_MAX:
        gc.collect()  # what libraries keep in cycles goes with the next collection, which may be far
        left = len(os.listdir(OPEN_FOLDER)) - before
    assert left <= LEFT_MAX, f"the test left {left} descriptors open"


@pytest.fixture
def no_collection() -> Iterator[None]:
    """For tests that count steps or descriptors: a collection in between runs what others have registered for it, and
    closes what earlier tests have left, and that is counted."""
    gc.disable()
    yield
    gc.enable()


@contextmanager
def _at_first(call: object, act: Callable[[], object]) -> Iterator[None]:
    left = [act]

    def look(_frame: FrameType, event: str, made: object) -> None:
        if event == "c_call" and made is call and left:
            left.pop()()

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)
        assert not left


@pytest.fixture
def at_first() -> Callable[[object, Callable[[], object]], AbstractContextManager[None]]:
    """Something happens just before a call (of a function of C) is first made in a block, and it is made."""
    return _at_first


@pytest.fixture(scope="session")
def calls_of() -> Callable[[Callable[[], object]], int]:
    """How many functions, of Python and of C, an action calls: what it costs, whatever the machine does beside it."""
    return _calls_of


def _calls_of(action: Callable[[], object]) -> int:
    count = 0

    def seen(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count
