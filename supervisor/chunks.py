"""What travels to a worker, and what is known of it until it is finished.

A *pull run* is what one pull brought and nobody has been given yet. A *chunk* is cut from its head: one descriptor for
as many messages as make a few milliseconds of handler time. A chunk's messages are finished in order of index; a failed
one stays open until its send-back is accepted; rows of finished ones are durable when their segment is sealed.
"""

from __future__ import annotations

from collections.abc import Sequence

from .slab import Slot

Token = tuple[str, int]
"""A segment: (worker id, sequence number). Outcomes that wait for it to be sealed carry it."""


class PullRun:
    """Records `[at, end)` of one pull body; `positions` has one entry more than `offsets` (the end of the last)."""

    __slots__ = ("at", "end", "offsets", "positions", "slot")

    def __init__(self, slot: Slot, positions: Sequence[int], offsets: Sequence[int], at: int, end: int) -> None:
        self.slot = slot
        self.positions = positions
        self.offsets = offsets
        self.at = at
        self.end = end

    @property
    def first_offset(self) -> int:
        return self.offsets[self.at]

    @property
    def count(self) -> int:
        return self.end - self.at


class Failure:
    """One failed message of a chunk, open until its send-back is accepted."""

    __slots__ = ("attempts", "delay_level", "error", "sent")

    def __init__(self, delay_level: int, error: str) -> None:
        self.delay_level = delay_level
        self.error = error
        self.attempts = 0
        self.sent = False
        """A send-back is under way or was accepted: it is not sent a second time beside it."""


class Chunk:
    """A contiguous byte range of one slot: `count` records at queue offsets `offsets`."""

    __slots__ = (
        "chunk_id", "count", "end_byte", "failed", "handle", "held", "lost", "offsets", "positions", "reported",
        "slot", "tokens", "worker_id",
    )  # fmt: skip

    def __init__(
        self, chunk_id: int, handle: int, slot: Slot, positions: Sequence[int], offsets: Sequence[int]
    ) -> None:
        self.chunk_id = chunk_id
        self.handle = handle
        self.slot = slot
        self.positions = positions
        """Byte positions of the records in the slab, and the end of the last."""
        self.offsets = offsets
        self.count = len(offsets)
        self.reported = 0
        """Messages `[0, reported)` have an outcome."""
        self.failed: dict[int, Failure] | None = None
        self.tokens: set[Token] | None = None
        """Segments with rows of this chunk that are not sealed yet."""
        self.lost = False
        """Rows of it were reported and then could not be salvaged: it never finishes, the queue is read again."""
        self.held = True
        """Its reference on the slot is still held."""
        self.worker_id: str | None = None

    @property
    def finished(self) -> bool:
        return self.reported == self.count and not self.failed and not self.tokens and not self.lost

    @property
    def floor(self) -> int:
        """The smallest queue offset of it that may not be passed by a commit. Only for a chunk that is not finished."""
        if self.tokens or self.lost:
            return self.offsets[0]
        if self.failed:
            return self.offsets[min(self.failed)]
        return self.offsets[self.reported]

    @property
    def needs_bytes(self) -> bool:
        """A worker may still read it, or a send-back may have to decode one of its records."""
        return self.reported < self.count or bool(self.failed)

    def durable_runs(self) -> list[tuple[int, int]]:
        """Intervals `[from, to)` of queue offsets that are finished and durable; nothing while a segment is open."""
        if self.tokens or self.lost:
            return []
        runs: list[tuple[int, int]] = []
        failed = self.failed or {}
        for index in range(self.reported):
            if index in failed:
                continue
            offset = self.offsets[index]
            if runs and index and index - 1 not in failed and runs[-1][1] == self.offsets[index - 1] + 1:
                runs[-1] = (runs[-1][0], offset + 1)
            else:
                runs.append((offset, offset + 1))
        return runs
