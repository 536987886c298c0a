"""What POP keeps apart: a loop for each assignment, and for what one pop brought from one queue a process queue of its own.

Such a queue is never pulled and commits nothing: it is made with its messages, and is gone when the last of them was
acknowledged or handed back. Everything between (dispatch, outcomes, seals, the deaths of workers) is as for the others.
"""

from __future__ import annotations

from ...remoting.check_points import CheckPoint
from ...remoting.queues import MessageQueue
from .process_queue import ProcessQueue
from .states import Queue


class PopLoop:
    """One assignment: pops follow each other, one at a time."""

    __slots__ = ("handle", "in_hand", "last_body_bytes", "last_pop", "mq", "pending", "waiting")

    def __init__(self, handle: int, mq: MessageQueue) -> None:
        self.handle = handle
        self.mq = mq
        self.pending = False
        """A pop is out, or the next one has its time."""
        self.waiting = False
        """The next pop waits for acknowledgements or for bytes of the slab."""
        self.in_hand = 0
        """Messages popped and not yet acknowledged or handed back."""
        self.last_body_bytes = 0
        self.last_pop = 0.0
        """When the last one was sent; 0 = never yet."""


class PopQueue(ProcessQueue):
    """The messages that one pop brought from one queue."""

    __slots__ = ("_info_handle", "acking", "checks", "invisible_s", "loop", "renewing", "suspects")

    pops = True

    def __init__(
        self, handle: int, mq: MessageQueue, info_handle: int, loop: PopLoop, checks: dict[int, CheckPoint],
        invisible_s: float,
    ) -> None:  # fmt: skip
        super().__init__(handle, mq)
        self.state = Queue.ASSIGNED
        self.pull_pending = True  # it is never pulled
        self.commit_asked = 0  # and commits nothing
        self._info_handle = info_handle
        self.loop = loop
        self.checks = checks
        """By queue offset: messages that are neither acknowledged nor handed back."""
        self.invisible_s = invisible_s
        self.acking = 0
        """Acknowledgements under way."""
        self.renewing: set[int] = set()
        """Offsets whose invisible time is being changed: they are not acknowledged with the check point that is replaced."""
        self.suspects: list[int] = []
        """Offsets that may have killed whole runs (charges.py)."""

    @property
    def info_handle(self) -> int:
        """One for all that is ever popped from the queue: workers remember every handle that they were told."""
        return self._info_handle
