"""How much memory the parts of frames take that have not ended yet, over all connections.

A frame is bounded, and so is a connection; but each of thousands may send most of a frame and stop. Together they may have
ALL_MAX_BYTES. Above that some are disconnected, until an eighth of it is free, as to choose costs a look at all of them.

Who has the most bytes goes first, and those of a peer that sends nothing count once for each second of that. So

- a producer on a slow line goes on: as long as something of its frame comes each second, it is disconnected only when it has
  more than the others have on average;
- peers that have hung, or hold memory on purpose, are the first whatever they have: each second brings their turn nearer;
- the age of a frame is not asked: whoever begins anew whenever it is disconnected would outlive the slow producer.

New ones are not refused instead: then those that hold the memory would keep all others out.
"""

from __future__ import annotations

from typing import NamedTuple

ALL_MAX_BYTES = 256 << 20  # sixty of the largest messages, or sixteen of the largest frames
IDLE_MIN_MS = 1_000


class HalfFrame(NamedTuple):
    """What one connection has."""

    size_bytes: int
    last_ms: int
    """When something of it came last."""

    def idle_ms(self, now_ms: int) -> int:
        return max(now_ms - self.last_ms, IDLE_MIN_MS)


class HalfFrames:
    """Those of all connections, by channel."""

    def __init__(self, all_max_bytes: int = ALL_MAX_BYTES) -> None:
        self._all_max_bytes = all_max_bytes
        self._of: dict[int, HalfFrame] = {}
        self.all_bytes = 0

    def note(self, now_ms: int, channel: int, size_bytes: int) -> dict[int, HalfFrame]:
        """A connection has so much now, and something came, also where it has as much as before: whole frames may have gone.

        Returns who is to be disconnected, and is not counted any more.
        """
        self.forget(channel)
        if size_bytes:
            self._of[channel] = HalfFrame(size_bytes, now_ms)
            self.all_bytes += size_bytes
        return self._too_much(now_ms) if self.all_bytes > self._all_max_bytes else {}

    def forget(self, channel: int) -> None:
        """The connection is gone, or has none."""
        before = self._of.pop(channel, None)
        if before is not None:
            self.all_bytes -= before.size_bytes

    def _too_much(self, now_ms: int) -> dict[int, HalfFrame]:
        def weight(pair: tuple[int, HalfFrame]) -> int:
            return pair[1].size_bytes * pair[1].idle_ms(now_ms)

        ended: dict[int, HalfFrame] = {}
        for channel, half in sorted(self._of.items(), key=weight, reverse=True):
            if self.all_bytes <= self._all_max_bytes * 7 // 8:
                break
            ended[channel] = half
            self.forget(channel)
        return ended


__all__ = ["HalfFrame", "HalfFrames"]
