"""How much memory peers make this process hold, over all connections: parts of frames that have not ended, unread answers.

A frame is bounded, and so is a connection; but each of thousands may send most of a frame and stop, or ask and not read.
Together they may have ALL_MAX_BYTES of either kind. Above that some are disconnected, until an eighth of it is free, as to
choose costs a look at all of them.

Who has the most bytes goes first, and those of a peer for which nothing moves count once for each second of that. So

- a producer on a slow line goes on: as long as something of its frame comes each second, it is disconnected only when it has
  more than the others have on average;
- peers that have hung, or hold memory on purpose, are the first whatever they have: each second brings their turn nearer;
- of unread answers only those go of which nothing was read for a while: who reads steadily has little more than its share,
  as above the bound nobody is given more before it has read (edge.py). With twice as many as there may be, anybody goes;
- the age of a frame is not asked: whoever begins anew whenever it is disconnected would outlive the slow producer.

New ones are not refused instead: then those that hold the memory would keep all others out.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

ALL_MAX_BYTES = 256 << 20  # sixty of the largest messages, or sixteen of the largest frames
IDLE_MIN_MS = 1_000


class Share(NamedTuple):
    """What one connection has."""

    size_bytes: int
    last_ms: int
    """When something of it moved last: came, or was read."""

    def idle_ms(self, now_ms: int) -> int:
        return max(now_ms - self.last_ms, IDLE_MIN_MS)


class PeerBytes:
    """Those of all connections, by channel."""

    def __init__(self, all_max_bytes: int = ALL_MAX_BYTES) -> None:
        self._all_max_bytes = all_max_bytes
        self._of: dict[int, Share] = {}
        self.all_bytes = 0

    @property
    def are_too_many(self) -> bool:
        return self.all_bytes > self._all_max_bytes

    @property
    def channels(self) -> Collection[int]:
        return self._of.keys()

    @property
    def are_twice_too_many(self) -> bool:
        return self.all_bytes > 2 * self._all_max_bytes

    @property
    def even_share_bytes(self) -> int:
        return self._all_max_bytes // max(len(self._of), 1)

    def note(self, last_ms: int, channel: int, size_bytes: int) -> None:
        """A connection has so much now; `last_ms`: when something moved, also where it has as much as before."""
        self.forget(channel)
        if size_bytes:
            self._of[channel] = Share(size_bytes, last_ms)
            self.all_bytes += size_bytes

    def forget(self, channel: int) -> None:
        """The connection is gone, or has none."""
        before = self._of.pop(channel, None)
        if before is not None:
            self.all_bytes -= before.size_bytes

    def take_largest(self, now_ms: int, idle_min_ms: int = 0) -> dict[int, Share]:
        """Who is to be disconnected, and is not counted any more; nobody, unless they are too many. Only those for which
        nothing moved for `idle_min_ms`, unless they are twice too many."""

        def weight(pair: tuple[int, Share]) -> int:
            return pair[1].size_bytes * pair[1].idle_ms(now_ms)

        ended: dict[int, Share] = {}
        if self.are_twice_too_many:
            idle_min_ms = 0
        if self.are_too_many:
            for channel, share in sorted(self._of.items(), key=weight, reverse=True):
                if self.all_bytes <= self._all_max_bytes * 7 // 8:
                    break
                if share.idle_ms(now_ms) < idle_min_ms:
                    continue
                ended[channel] = share
                self.forget(channel)
        return ended


__all__ = ["PeerBytes", "Share"]
