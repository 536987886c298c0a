"""The truth about ends in the world of POP: what became of each message under the offset by which it was shown first.

A broker shows a message once under that offset; shown again it is one of the retry topic. It may have been shown to another
member, its answer may be lost, and the run that had it may die with what it had noted since facts were sealed last. What must
hold: settled is what is finished and durable; elsewhere is what was shown long enough ago, and is not finished here
afterwards; and when all is quiet, everything below the newest message that the living run was shown has an end.

A broker that loses its tail gives the same offsets to other messages. What was true of the old ones may be said until this
run is shown that the queue went back, and not after.
"""

from __future__ import annotations

from rocketcrew.durable.outcomes import DEAD_LETTER, ELSEWHERE, NO_ROWS, SENT_BACK, SETTLED, Outcomes

from .world import Violation

ELSEWHERE_MS = 800


class PopEnds:
    """Of the messages of one queue, by their numbers, which are their offsets."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._shown: dict[int, float] = {}
        """Number: when a broker showed it first, to whomever, in milliseconds."""
        self._waiting: list[tuple[str, set[int]]] = []
        """What was noted since facts were sealed last."""
        self._ended: set[int] = set()
        self._elsewhere: set[int] = set()
        """What the living run has said is elsewhere."""
        self._newest = -1
        self._reached = -1
        """How far the living run knows that the queue went: a message below that shows it that the queue went back."""
        self._before: dict[int, float] = {}
        """As `_shown`, of messages that the broker has lost, while this run cannot know that."""

    def shown(self, number: int, now_ms: float) -> None:
        """To this member or another one."""
        self._shown.setdefault(number, now_ms)

    def came(self, numbers: list[int]) -> None:
        """The living run was shown these, for the first time that anybody was."""
        if not numbers:
            return
        if min(numbers) <= self._reached:  # they are not shown twice: the queue went back
            self._before.clear()
            self._elsewhere -= set(range(min(numbers), self._reached + 1))
            self._reached = -1
        self._newest = max([self._newest, *numbers])
        self._reached = max([self._reached, *numbers])

    def lost(self, first: int) -> None:
        """The broker has lost the messages from this one on."""
        self._before = {number: at for number, at in self._shown.items() if number >= first} | self._before
        self._shown = {number: at for number, at in self._shown.items() if number < first}
        self._waiting = [(kind, {one for one in numbers if one < first}) for kind, numbers in self._waiting]
        self._ended = {number for number in self._ended if number < first}
        self._newest = min(self._newest, first - 1)

    def noted(self, notes: Outcomes, durable: set[int], now_ms: float) -> bool:
        """Check what the core has noted, which is to be sealed; whether something was said to be elsewhere."""
        said = False
        for kind, records in notes.kinds.items():
            for key, offsets in records.queues.items():
                numbers = {number for start, stop in offsets.pieces for number in range(start, stop)}
                if kind == SETTLED and not numbers <= durable:
                    raise Violation(f"{numbers - durable} are settled, and not finished and durable")
                if key.topic != self._topic:
                    continue
                if kind == ELSEWHERE:
                    said = True
                    self._check_elsewhere(numbers, now_ms)
                if kind in (SETTLED, ELSEWHERE, NO_ROWS, SENT_BACK, DEAD_LETTER):
                    self._waiting.append((kind, numbers))
        return said

    def _check_elsewhere(self, numbers: set[int], now_ms: float) -> None:
        shown = self._shown | self._before
        early = [number for number in numbers if shown.get(number, now_ms) + ELSEWHERE_MS > now_ms]
        if early:
            raise Violation(f"{early} are said to be elsewhere before their time")
        self._elsewhere |= numbers

    def finished(self, topic: str, numbers: list[int]) -> None:
        """The living run has finished these."""
        if topic == self._topic and not self._elsewhere.isdisjoint(numbers):
            raise Violation(f"{self._elsewhere.intersection(numbers)} are finished, and were said to be elsewhere")

    def sealed(self) -> None:
        """What was noted is on the disk."""
        for _, numbers in self._waiting:
            self._ended |= numbers
        self._waiting.clear()

    def died(self) -> None:
        """The run, with what it had not sealed; the next one has been shown nothing."""
        self._waiting.clear()
        self._elsewhere.clear()
        self._before.clear()
        self._newest = self._reached = -1

    def check_end(self) -> None:
        """All is quiet, and sealed."""
        self.sealed()
        without = set(range(self._newest + 1)) - self._ended
        if without:
            raise Violation(f"{sorted(without)} were shown or passed over, and have no end")
