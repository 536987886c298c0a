"""How much memory the requests that wait for messages take, over one connection and over all.

Their number alone is no bound: anybody can send long filters and bodies with them. What does not fit is answered at once, as
what is one too many.
"""

from __future__ import annotations

from ..remoting.command import Command
from .wanted import Wanted

CONNECTION_MAX_BYTES = 32 << 20  # of a member with 2,000 queues: 16 KiB each
ALL_MAX_BYTES = 256 << 20
CODE_BYTES = 100  # of a tag's hash in a set


def held_bytes(command: Command, wanted: Wanted) -> int:
    """What a request takes beyond what each of them does."""
    fields = sum(len(name) + len(value) for name, value in command.fields.items())
    return fields + len(command.body) + CODE_BYTES * len(wanted.codes or ())


class HeldBytes:
    """The sums by connection, and that of all."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
        self.all = 0

    def has_room(self, channel: int, count: int) -> bool:
        return self._of.get(channel, 0) + count <= CONNECTION_MAX_BYTES and self.all + count <= ALL_MAX_BYTES

    def add(self, channel: int, count: int) -> None:
        """`count` below 0: they are held no longer."""
        self.all += count
        self._of[channel] = self._of.get(channel, 0) + count
        if not self._of[channel]:
            del self._of[channel]


__all__ = ["HeldBytes", "held_bytes"]
