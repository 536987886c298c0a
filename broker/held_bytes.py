"""What all requests that wait for messages have, and how much memory they take, over one connection and over all.

Their number alone is no bound: anybody can send long filters and bodies with them. What does not fit is answered at once, as
what is one too many. A set of tags counts once for each connection that waits with it: pulls without a filter of their own
share that of their group's subscription.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..remoting.command import Command
from .wanted import Wanted

CONNECTION_MAX_BYTES = 32 << 20  # of a member with 2,000 queues: 16 KiB each
ALL_MAX_BYTES = 256 << 20
CODE_BYTES = 400  # of a tag's hash: in a set 120, and as a way to that set 250


@dataclass(slots=True, eq=False)
class Held:
    """A request that waits."""

    channel: int
    command: Command
    wanted: Wanted
    deadline_ms: int
    number: int = field(default=0, kw_only=True)
    size_bytes: int = field(init=False)
    """What it takes beyond what each of them does, and beside its set of tags."""

    def __post_init__(self) -> None:
        fields = self.command.fields
        self.size_bytes = sum(map(len, fields)) + sum(map(len, fields.values())) + len(self.command.body)

    def takes(self, tags_code: int, properties: Mapping[str, str]) -> bool:
        """Whether its filter lets the message through; a filter that fails lets it, as the repeated request says why."""
        try:
            return self.wanted.takes(tags_code, properties)
        except Exception:  # noqa: BLE001  its failure belongs to this request, not to the sender of the message
            return True


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
        if not codes or (held.channel, id(codes)) in self._sharing:
            return held.size_bytes
        return held.size_bytes + CODE_BYTES * len(codes)

    def _grow(self, channel: int, count: int) -> None:
        self.all += count
        self._of[channel] = self._of.get(channel, 0) + count
        if not self._of[channel]:
            del self._of[channel]


__all__ = ["Held", "HeldBytes"]
