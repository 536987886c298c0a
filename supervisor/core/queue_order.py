"""What an ordered mode knows of one assignment: its lanes, and how often which message was tried here.

A *lane* is what is handled in order, one thing at a time: the whole queue with order = "queue", one key of it with
order = "key". Both live and die with the assignment, so the local counts are lost with it, as in Java (only a send-back
writes a count down).
"""

from __future__ import annotations

from collections import deque

from .chunks import Chunk


class Lane:
    """Chunks in order of offset: those in a worker's hands, then those that wait."""

    __slots__ = ("handle", "in_hand", "key", "open", "queued", "sending", "suspended", "waiting", "worker_id")

    def __init__(self, handle: int, key: bytes | int) -> None:
        self.handle = handle
        self.key = key
        self.open = 0
        """Messages that are not finished, with order = "key": a lane without any is forgotten."""
        self.waiting: deque[Chunk] = deque()
        """Not handed out, or given back: the next one first."""
        self.in_hand: set[int] = set()
        """Chunks that a worker has, by id."""
        self.suspended = 0
        """Number of the suspension that holds it; 0 = none. A number, because an old timer must not end a new one."""
        self.sending = -1
        """The offset whose send-back is open: nothing behind it may start before that is accepted. -1 = none."""
        self.queued = False
        """It stands in a line of lanes that may be handed out."""
        self.worker_id: str | None = None
        """The worker that it sticks to, with order = "queue"."""

    @property
    def free(self) -> bool:
        """Nothing of it is under way that the next message has to wait for."""
        return not self.in_hand and not self.suspended and self.sending < 0


class QueueOrder:
    """One assignment's lanes."""

    __slots__ = ("attempts", "lanes", "of_offset", "uncommitted")

    def __init__(self) -> None:
        self.lanes: dict[bytes | int, Lane] = {}
        """By key; a message without a key has a lane of its own, under its offset."""
        self.of_offset: dict[int, Lane] = {}
        """The lane of each unfinished message, with order = "key"."""
        self.attempts: dict[int, int] = {}
        """How often the message at an offset was tried here and failed; forgotten when it is finished."""
        self.uncommitted: deque[Chunk] = deque()
        """Consumed by a handler that commits by itself, and neither committed nor rolled back."""
