"""Pulls that wait for a message (BR/longpolling/{PullRequestHoldService,ManyPullRequest}.java).

A pull that found nothing new is kept here without an answer. It ends in one of five ways:

- a message that its filter lets through is stored in its queue: pull again, at once;
- messages were stored that its filter does not want: pull again at the next sweep, which answers "no match" with an
  advanced offset, so that the client's offset does not fall behind;
- its deadline passes: pull again, which answers "nothing new";
- its connection closes: dropped, nobody is there to be answered;
- the broker stops.

"Pull again" is the caller's: this table only says which. A pull that is given out is no longer held, so that nothing
can be answered twice.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ..remoting.command import Command
from ..remoting.headers import PullRequest
from .held_bytes import HeldBytes, held_bytes
from .wanted import Wanted

NO_PROPERTIES: Mapping[str, str] = {}

_Key = TypeVar("_Key")


@dataclass(slots=True, eq=False)
class HeldPull:
    """One waiting pull, and what it waits for."""

    channel: int
    address: str
    command: Command
    request: PullRequest
    wanted: Wanted
    deadline_ms: int
    number: int = 0
    skipped: bool = False
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.size_bytes = held_bytes(self.command)


class HeldPulls:
    """Held pulls by queue, by channel and by deadline. Order of all answers is the order in which they came."""

    def __init__(self, held_max: int) -> None:
        self._held_max = held_max
        self._by_queue: dict[tuple[str, int], dict[int, HeldPull]] = {}
        self._by_channel: dict[int, dict[int, HeldPull]] = {}
        self._all: dict[int, HeldPull] = {}
        self._deadlines: list[tuple[int, int]] = []  # heap; entries of pulls that ended are skipped
        self._next_number = 0
        self._skipped: dict[int, HeldPull] = {}
        self.bytes = HeldBytes()  # of those that are parked too
        self.parked: dict[int, list[HeldPull]] = {}
        """By channel: pulls that are due, and whose answers wait until the peer has read what it got before."""

    def __len__(self) -> int:
        return len(self._all) + sum(map(len, self.parked.values()))

    def hold(self, pull: HeldPull) -> bool:
        """Keep a pull; False when there are too many, or they are too large: then the caller answers it now."""
        if len(self._all) >= self._held_max or not self.bytes.has_room(pull):
            return False
        self.bytes.add(pull)
        self._next_number += 1
        pull.number = self._next_number
        self._all[pull.number] = pull
        self._by_queue.setdefault((pull.request.topic, pull.request.queue_id), {})[pull.number] = pull
        self._by_channel.setdefault(pull.channel, {})[pull.number] = pull
        heapq.heappush(self._deadlines, (pull.deadline_ms, pull.number))
        return True

    def waits(self, topic: str, queue_id: int) -> bool:
        return (topic, queue_id) in self._by_queue

    def arrived(
        self, topic: str, queue_id: int, tags_code: int, properties: Mapping[str, str] = NO_PROPERTIES
    ) -> list[HeldPull]:
        """Pulls to repeat because a message with this tag hash and these properties was stored."""
        woken: list[HeldPull] = []
        for pull in self._by_queue.get((topic, queue_id), {}).values():
            if _takes(pull, tags_code, properties):
                woken.append(pull)
            else:
                self._skipped[pull.number] = pull
        return self._end(woken)

    def due(self, now_ms: int) -> list[HeldPull]:
        """Pulls to repeat because their deadline passed."""
        found: list[HeldPull] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            pull = self._all.get(heapq.heappop(self._deadlines)[1])
            if pull is not None:
                found.append(pull)
        return self._end(found)

    def swept(self) -> list[HeldPull]:
        """Pulls to repeat because only messages that they do not want arrived."""
        return self._end(list(self._skipped.values()))

    def drop_channel(self, channel: int) -> int:
        """Forget the pulls of a closed connection; returns how many."""
        parked = len(self.unparked(channel))
        return parked + len(self._end(list(self._by_channel.get(channel, {}).values())))

    def park(self, pull: HeldPull) -> None:
        """Keep a pull that was given out, until `unparked`."""
        self.bytes.add(pull)
        self.parked.setdefault(pull.channel, []).append(pull)

    def unparked(self, channel: int) -> list[HeldPull]:
        """The parked pulls of a connection, which are parked no longer."""
        pulls = self.parked.pop(channel, [])
        for pull in pulls:
            self.bytes.remove(pull)
        return pulls

    def next_deadline_ms(self) -> int | None:
        while self._deadlines and self._deadlines[0][1] not in self._all:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _end(self, pulls: list[HeldPull]) -> list[HeldPull]:
        for pull in pulls:
            del self._all[pull.number]
            self.bytes.remove(pull)
            self._skipped.pop(pull.number, None)
            _discard(self._by_queue, (pull.request.topic, pull.request.queue_id), pull.number)
            _discard(self._by_channel, pull.channel, pull.number)
        if len(self._deadlines) > 2 * len(self._all) + 64:  # ended long before their deadline, most of them
            self._deadlines = [(pull.deadline_ms, pull.number) for pull in self._all.values()]
            heapq.heapify(self._deadlines)
        return pulls


def _takes(pull: HeldPull, tags_code: int, properties: Mapping[str, str]) -> bool:
    """Whether its filter lets the message through; a filter that fails lets it, as the repeated pull says why."""
    try:
        return pull.wanted.takes(tags_code, properties)
    except Exception:  # noqa: BLE001  its failure belongs to this pull, not to the sender of the message
        return True


def _discard(table: dict[_Key, dict[int, HeldPull]], key: _Key, number: int) -> None:
    pulls = table[key]
    del pulls[number]
    if not pulls:
        del table[key]
