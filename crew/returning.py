"""Whether messages that were sent back still wait for their delay: decided from how far brokers are with their delay levels.

A broker keeps what is sent back in a queue of each delay level, and puts it into the retry topic when it is due, first in
first out. Whose messages these are, nobody is told. So the ends of these queues are noted once everything was sent back:
when the broker has come to all these ends, everything that was sent back is in its topic. What others add to the queues
afterwards is after these ends, and is not waited for.

A broker shows a message as part of its queue some milliseconds after it has stored it. Therefore the ends are noted by two
looks, of which the second counts, and one more look passes between the last delivery and the answer that nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

Levels = Mapping[tuple[str, int], int]
"""(broker name, delay level) -> a queue offset. A level that is not there is at 0."""

ENDS_LOOKS = 2


class Returning:
    """What one waiting crew knows of the delay levels; pure, what it needs is asked for by its arguments."""

    def __init__(self) -> None:
        self._sent_back = 0
        self._looks = 0
        self._ends: Levels = {}

    def left(self, sent_back: int, ends: Callable[[], Levels], reached: Callable[[list[str]], Levels]) -> int:
        """How many messages may still wait for their delay; 0 when none of this crew does.

        `sent_back`: how many messages this crew has sent back in all. `ends`: asks for the ends of the levels now, and
        gives none of a broker that does not say; `reached` asks the named brokers for the offsets up to which they have
        delivered. What they raise is raised, and the look is not counted.
        """
        if not sent_back:
            return 0
        if sent_back != self._sent_back:
            self._sent_back, self._looks = sent_back, 0
        if self._looks < ENDS_LOOKS:
            self._ends = ends()
            self._looks += 1
            if self._looks < ENDS_LOOKS:
                return 1
        at = reached(sorted({broker for broker, _ in self._ends}))
        waiting = sum(max(0, end - at.get(level, 0)) for level, end in self._ends.items())
        if waiting:
            self._looks = ENDS_LOOKS
            return min(waiting, sent_back)
        self._looks += 1
        return int(self._looks == ENDS_LOOKS + 1)
