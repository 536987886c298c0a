"""What travels to a worker, and what is known of it until it is finished.

A *pull run* is what one pull brought and nobody has been given yet. A *chunk* is cut from its head: one descriptor for
as many messages as make a few milliseconds of handler time. A chunk's messages are finished in order of index; a failed
one stays open until its send-back is accepted. What is finished of it goes into the queue's ledger (ledger.py); a chunk of
which all is finished is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...workers.failures import Failure
from .slab import Slot

Token = tuple[str, int]
"""A segment: (worker id, sequence number). What waits for it to be sealed carries it."""


class PullRun:
    """Records `[at, end)` of one pull body; `positions` has one entry more than `offsets` (the end of the last).

    A record's offset is its last one (an inner batch holds several), so it begins right after the record before it:
    what lies between, the broker did not deliver, mostly because its tag does not match. `begin` is where record `at` begins.
    """

    __slots__ = ("at", "begin", "end", "offsets", "positions", "slot")

    def __init__(
        self, slot: Slot, positions: Sequence[int], offsets: Sequence[int], at: int, end: int, begin: int
    ) -> None:
        self.begin = begin
        self.slot = slot
        self.positions = positions
        self.offsets = offsets
        self.at = at
        self.end = end

    @property
    def count(self) -> int:
        return self.end - self.at

    def cut(self, count: int, chunk_id: int, handle: int) -> Chunk:
        """Take the first `count` records off as a chunk. The run's reference on the slot passes to the chunk that takes the
        last of them; each chunk before has one of its own."""
        end = self.at + count
        chunk = Chunk(
            chunk_id, handle, self.slot, self.positions[self.at : end + 1], self.offsets[self.at : end], self.begin
        )
        if end < self.end:
            self.slot.refs += 1
        self.at, self.begin = end, self.offsets[end - 1] + 1
        return chunk


class Chunk:
    """A contiguous byte range of one slot: `count` records that end at queue offsets `offsets`.

    `begin` is the offset at which the first one begins, see PullRun: a commit must not pass it before that is finished.
    """

    __slots__ = (
        "alone", "begin", "chunk_id", "count", "failed", "handle", "held", "length_bytes", "never_begun", "offsets", "origin",
        "positions", "reported", "said", "slot", "unpaid", "worker_id",
    )  # fmt: skip

    def __init__(
        self, chunk_id: int, handle: int, slot: Slot, positions: Sequence[int], offsets: Sequence[int], begin: int
    ) -> None:
        self.begin = begin
        self.chunk_id = chunk_id
        self.handle = handle
        self.slot = slot
        self.positions = positions
        """Byte positions of the records in the slab, and the end of the last."""
        self.length_bytes = positions[-1] - positions[0]
        self.offsets = offsets
        self.count = len(offsets)
        self.reported = 0
        """Messages `[0, reported)` have an outcome."""
        self.said = 0
        """So many of them its worker has reported itself; the others were read off its cell (workers/unreported.py)."""
        self.never_begun = 0
        """So many at its end came back from workers that had not begun them, as far as is known."""
        self.failed: dict[int, Failure] | None = None
        self.held = True
        """Its reference on the slot is still held."""
        self.worker_id: str | None = None
        self.origin: tuple[Chunk, int] | None = None
        """Set: a shadow, see retries.py: it runs that failed message of that chunk again."""
        self.alone = False
        """It is suspected of having killed a worker, see quarantine.py."""
        self.unpaid = False
        """It was cut to wait for its turn alone, and takes the tokens of its rate then (rate_limits.py)."""

    def begin_of(self, index: int) -> int:
        """The offset at which record `index` begins; it ends at `offsets[index]`."""
        return self.offsets[index - 1] + 1 if index else self.begin

    def split(self, at: int, chunk_id: int) -> Chunk:
        """Cut `[at, count)` off as a chunk that no worker has, with a reference of its own on the slot. Only what has no
        outcome can be cut off: `at` is at least `reported`."""
        assert self.reported <= at <= self.count, f"a cut at {at} of {self.reported} reported, {self.count} messages"
        rest = self._copy(at, self.count, chunk_id)
        self.positions, self.offsets, self.count = self.positions[: at + 1], self.offsets[:at], at
        self.length_bytes -= rest.length_bytes
        return rest

    def shadow(self, index: int, chunk_id: int) -> Chunk:
        """A chunk of that failed record alone, which runs it again; the failure stays here (retries.py)."""
        shadow = self._copy(index, index + 1, chunk_id)
        shadow.origin = self, index
        return shadow

    def _copy(self, start: int, end: int, chunk_id: int) -> Chunk:
        self.slot.refs += 1
        return Chunk(
            chunk_id, self.handle, self.slot, self.positions[start : end + 1], self.offsets[start:end],
            self.begin_of(start),
        )  # fmt: skip

    @property
    def floor(self) -> int:
        """Where its first unfinished message begins, see `begin`; only of a chunk that is open."""
        return self.begin_of(min(self.failed) if self.failed else self.reported)

    @property
    def first_unfinished(self) -> int:
        """The offset of that message."""
        return self.offsets[min(self.failed) if self.failed else self.reported]
