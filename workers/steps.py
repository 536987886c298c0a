"""Which of many coroutines is at work: the cell names the call whose step runs, for as long as it runs.

Calls of a coroutine handler are under way side by side, but only one of them runs at a time, and a step that runs is what
kills a worker or blocks its loop. So each step, the first too, is entered and left by way of the cell. Tasks that a call
starts (gather, wait_for, a task group) work for it: they inherit its context, and are named as it is.

Between two steps the loop itself is at work, or sleeps. One call under way is named all the same, as that of a plain
function would be. Of several none is: the state word is BETWEEN. A death there was brought about by what no step can be
blamed for, a thread or a callback of the handler's, and the supervisor looks at all of them, one by one (quarantine.py).

A call that was cancelled for its time and goes on all the same is named for good, as of its own begin: so it is over its hard
time limit as one of a plain function is, and its worker is killed for it.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

from .cells import BETWEEN, CALLS, CHUNK_ID, LAST, OLDEST_NS, RECORDS, STARTED_NS, STATE, TAKEN, CellView
from .forks import end_fork
from .packets import QueueInfo


class CallUnderWay:
    """Records `first .. last` (queue offsets) of a chunk, `records` of them, in one call of the handler."""

    __slots__ = ("began_ns", "chunk_id", "ending", "last", "queue", "records", "state")

    def __init__(self, chunk_id: int, queue: QueueInfo, first: int, last: int, records: int) -> None:
        self.chunk_id = chunk_id
        self.queue = queue
        self.state = first + 1
        self.last = last
        self.records = records
        self.began_ns = 0
        self.ending = False
        """Its worker ends, and the call with it: whatever the handler makes of that is neither reported nor a failure."""


call_under_way: ContextVar[CallUnderWay | None] = ContextVar("call_under_way", default=None)
"""The call that a task works for; None outside of one."""


class Steps:
    """Names the calls of one worker in its cell. `name_queue` writes the queue's name there."""

    def __init__(self, cell: CellView, clock: Callable[[], int], name_queue: Callable[[QueueInfo], None]) -> None:
        self._cell = cell
        self._clock = clock
        self._name_queue = name_queue
        self._calls: dict[CallUnderWay, None] = {}
        """Those under way, the oldest first."""
        self._only: CallUnderWay | None = None
        """The one under way when it is a single one."""
        self._named: CallUnderWay | None = None
        """Whose words are in the cell."""
        self._at_work: CallUnderWay | None = None
        self._stuck: CallUnderWay | None = None
        """The one that is named for good."""
        self.started: weakref.WeakSet[Any] = weakref.WeakSet()
        """Tasks that calls have started."""
        self.ending = False
        """The worker ends: no call begins any more."""
        self.forked = False
        """This is a child that a step forked: loop and cell are its parent's, so it ends with that step."""

    def begin(self, call: CallUnderWay) -> None:
        """It is under way from now on."""
        call.began_ns = self._clock()
        self._calls[call] = None
        self._only = call if len(self._calls) == 1 else None

    def end(self, call: CallUnderWay) -> None:
        """It is over."""
        calls = self._calls
        del calls[call]
        if call is self._stuck:
            self._stuck = None
            self._cell[STARTED_NS] = self._clock()  # what is named from now on has not taken as long
        self._only = next(iter(calls)) if len(calls) == 1 else None
        self.rest()

    def end_all(self) -> None:
        """The worker ends, and with it all that is under way."""
        self.ending = True
        for call in self._calls:
            call.ending = True

    def rest(self) -> None:
        """No step runs: name the only call, if it is one."""
        if self._stuck is not None:
            return
        if self._only is not None:
            self._name(self._only)
        else:
            self._cell[STATE] = BETWEEN if self._calls else 0

    def aside(self) -> None:
        """What is done now is none of the handler's business, until `rest`."""
        if self._stuck is None:
            self._cell[STATE] = 0

    def forget(self) -> None:
        """Somebody else has written into the cell: the next step names its call anew."""
        self._named = None

    def name_last(self, call: CallUnderWay) -> None:
        """The worker ends by what came with this call; whoever else has written into the cell meanwhile."""
        self.forget()
        self._name(call)

    def beat(self, stuck: CallUnderWay | None) -> None:
        """Note that the loop turns, and what is under way; `stuck` does not end although it was cancelled for its time."""
        cell, oldest = self._cell, next(iter(self._calls), None)
        cell[CALLS] = len(self._calls)
        cell[OLDEST_NS] = 0 if oldest is None else oldest.began_ns
        self._stuck = None
        if stuck is None:
            cell[STARTED_NS] = self._clock()
            return
        self.name_last(stuck)
        cell[STARTED_NS] = stuck.began_ns
        self._stuck = stuck

    def _name(self, call: CallUnderWay) -> None:
        if self._stuck is not None:
            return
        cell = self._cell
        if self._named is not call:
            self._named = call
            cell[STATE] = 0
            cell[CHUNK_ID] = call.chunk_id
            cell[RECORDS] = call.records
            cell[LAST] = call.last
            cell[TAKEN] = 0
            self._name_queue(call.queue)
        cell[STARTED_NS] = self._clock()
        cell[STATE] = call.state

    def named(self, call: CallUnderWay, steps: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        """The same coroutine, each of its steps under the name of the call."""
        return _Named(self, call, steps)

    def step(self, call: CallUnderWay, run: Callable[[Any], Any], given: Any) -> Any:
        """Run one. This is what each step costs."""
        if self.forked:
            end_fork(None)  # it came back in a callback on the loop
        outer, self._at_work = self._at_work, call
        self._name(call)
        try:
            return run(given)
        except BaseException as error:
            if self.forked:
                end_fork(None if isinstance(error, StopIteration) else error)
            raise
        finally:
            if self.forked:
                end_fork(None)
            self._at_work = outer
            if outer is not None:
                self._name(outer)  # this one began inside of another's: an eager task
            elif self._only is not call:
                self.rest()

    def name_tasks_of(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tasks that a call starts on the loop are named as the call is; those of nobody are left alone."""
        before: Any = loop.get_task_factory()

        def make(on: asyncio.AbstractEventLoop, steps: Any, **more: Any) -> Any:
            context = more.get("context")
            call = call_under_way.get() if context is None else context.get(call_under_way)
            if call is not None:
                steps = self.named(call, steps)
            task = asyncio.Task(steps, loop=on, **more) if before is None else before(on, steps, **more)
            if call is not None:
                self.started.add(task)
            return task

        loop.set_task_factory(make)


class _Named(Coroutine[Any, Any, Any]):
    """Looks like the coroutine that it runs, to tasks and to messages about them."""

    __slots__ = ("_call", "_of", "_steps")

    def __init__(self, of: Steps, call: CallUnderWay, steps: Coroutine[Any, Any, Any]) -> None:
        self._of = of
        self._call = call
        self._steps = steps

    def send(self, value: Any, /) -> Any:
        return self._of.step(self._call, self._steps.send, value)

    def throw(self, *error: Any) -> Any:
        return self._of.step(self._call, lambda given: self._steps.throw(*given), error)

    def close(self) -> None:
        self._of.step(self._call, lambda _: self._steps.close(), None)

    def __await__(self) -> _Named:
        return self

    def __iter__(self) -> _Named:
        return self

    def __next__(self) -> Any:
        return self._of.step(self._call, self._steps.send, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._steps, name)
