"""POP: what the broker has shown of a queue and this member does not have. Pure.

Members share the queues that they pop. So of each queue there are holes between what one member got: another one has these
messages, the broker left them out because of their tags, or their time was over and they come again from the retry topic,
under another offset. None of them comes again under this one, but from a member that still has it in hand; so a hole has its
end when that is long enough ago: after the invisible time, and after the time that others take to have their rows in the
table. Who is later is loaded all the same (spark/accounts.py).

A broker shows a queue in order, so it is enough to know how far: all below it has been shown, whoever ran before. What this
member has in hand itself is left out, and said once that is over.

A queue that is shown from below what it was shown before has begun anew: its topic was made again, the broker has lost its
newest messages, or the group was reset. What was to be said of the old messages is not said of the new ones.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ...durable.intervals import IntervalSet
from ...remoting.queues import MessageQueue

STEPS: Final = 8
"""Into so many parts the wait is cut: a queue has three more marks than that at most, however often it is popped."""


class Shown:
    """Per queue, how far it was shown when."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._marks: dict[MessageQueue, deque[tuple[float, int]]] = {}
        """When a mark is over, and its end; the newest one still moves until `step_s` of its time have gone."""
        self._over: dict[MessageQueue, int] = {}
        self._told: dict[MessageQueue, IntervalSet] = {}

    @property
    def step_s(self) -> float:
        """How often to ask for what is over."""
        return self._wait_s / STEPS

    def __bool__(self) -> bool:
        """Whether something will be over."""
        return bool(self._marks)

    def show(self, mq: MessageQueue, start: int, end: int, now: float) -> bool:
        """The broker has shown messages of the queue, in order, within `[start, end)`; whether it begins anew with them."""
        back = mq in self._marks and start < max([self._over.get(mq, 0), *(before for _, before in self._marks[mq])])
        if back:
            self._forget(mq)
        marks = self._marks.setdefault(mq, deque())
        if marks and marks[-1][0] > now + self._wait_s:  # still open
            marks[-1] = (marks[-1][0], max(end, marks[-1][1]))
        else:
            marks.append((now + self._wait_s + self.step_s, end))
        return back

    def _forget(self, mq: MessageQueue) -> None:
        del self._marks[mq]
        self._over.pop(mq, None)
        self._told.pop(mq, None)

    def over(self, mq: MessageQueue, in_hand: set[int], now: float) -> IntervalSet:
        """What nobody brings any more, of a queue that was shown; nothing where that was said before."""
        marks = self._marks[mq]
        while marks and marks[0][0] <= now:
            self._over[mq] = max(self._over.get(mq, 0), marks.popleft()[1])
        end = self._over.get(mq, 0)
        kept = [offset for offset in in_hand if offset < end]
        found = IntervalSet.of([(0, end)]) - IntervalSet.from_offsets(kept) if end else IntervalSet()
        told = self._told.get(mq)
        if marks or kept:
            self._told[mq] = found
        else:  # a queue of which all is said takes no room
            self._forget(mq)
        return IntervalSet() if found == told else found

    def queues(self) -> list[MessageQueue]:
        """Those of which something is still to be said."""
        return list(self._marks)
