"""How much memory the requests that wait for messages take, over one connection and over all.

Their number alone is no bound: anybody can send long filters and bodies with them. What does not fit is answered at once, as
what is one too many. A set of tags counts once for each connection that waits with it: pulls without a filter of their own
share that of their group's subscription.
"""

from __future__ import annotations

from typing import Protocol

from ..remoting.command import Command
from .wanted import Wanted

CONNECTION_MAX_BYTES = 32 << 20  # of a member with 2,000 queues: 16 KiB each
ALL_MAX_BYTES = 256 << 20
CODE_BYTES = 100  # of a tag's hash in a set


class Held(Protocol):
    """A request that waits."""

    channel: int
    wanted: Wanted
    size_bytes: int


def held_bytes(command: Command) -> int:
    """What a request takes beyond what each of them does, and beside its set of tags."""
    fields = sum(len(name) + len(value) for name, value in command.fields.items())
    return fields + len(command.body)


class HeldBytes:
    """The sums by connection, and that of all."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
        self._sharing: dict[tuple[int, int], int] = {}  # connection, identity of a set of tags -> requests with it
        self.all = 0

    def has_room(self, held: Held) -> bool:
        count = self._beside_others(held)
        return self._of.get(held.channel, 0) + count <= CONNECTION_MAX_BYTES and self.all + count <= ALL_MAX_BYTES

    def add(self, held: Held) -> None:
        self._grow(held.channel, self._beside_others(held))
        if held.wanted.codes:
            key = held.channel, id(held.wanted.codes)
            self._sharing[key] = self._sharing.get(key, 0) + 1

    def remove(self, held: Held) -> None:
        """It is held no longer."""
        if held.wanted.codes:
            key = held.channel, id(held.wanted.codes)
            self._sharing[key] -= 1
            if not self._sharing[key]:
                del self._sharing[key]
        self._grow(held.channel, -self._beside_others(held))

    def _beside_others(self, held: Held) -> int:
        """What it takes beyond what the others of its connection take."""
        codes = held.wanted.codes
        is_shared = (held.channel, id(codes)) in self._sharing
        return held.size_bytes + (0 if codes is None or is_shared else CODE_BYTES * len(codes))

    def _grow(self, channel: int, count: int) -> None:
        self.all += count
        self._of[channel] = self._of.get(channel, 0) + count
        if not self._of[channel]:
            del self._of[channel]


__all__ = ["HeldBytes", "held_bytes"]
