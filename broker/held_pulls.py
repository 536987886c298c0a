"""Pulls that wait for a message (BR/longpolling/{PullRequestHoldService,ManyPullRequest}.java).

A pull that found nothing new is kept here without an answer. It ends in one of five ways:

- a message that its filter lets through is stored in its queue: pull again, at once. Only pulls count that were held when it
  came: those that are held later have found nothing from it on;
- messages were stored that its filter does not want: pull again at the next sweep, which answers "no match" with an
  advanced offset, so that the client's offset does not fall behind;
- its deadline passes: pull again, which answers "nothing new";
- its connection closes: dropped, nobody is there to be answered;
- the broker stops.

"Pull again" is the caller's: this table only says which, and at most so many at a time as the caller takes: thousands may be
due together. All that need not wait any longer, whatever the reason, stand in one line and are given out from its front, so
that none of the reasons can keep the others out. A pull that is given out is no longer held, so that nothing can be answered
twice.

A message costs what those cost that want it, however many wait in its queue for other tags: pulls with tags are found by the
sets of tags that have the message's one. Those with an SQL92 filter are looked at one by one, as nothing else tells.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile
from operator import attrgetter

from ..remoting.headers import PullRequest
from .held_bytes import Held, HeldBytes

_Tags = frozenset[int]  # by their hashes


@dataclass(slots=True, eq=False)
class HeldPull(Held):
    """One waiting pull, and what it waits for."""

    request: PullRequest

    @property
    def queue(self) -> tuple[str, int]:
        return self.request.topic, self.request.queue_id


class _TagSets:
    """The sets of tags that are waited with, by each of their tags. Equal ones are one, whosever they are."""

    def __init__(self) -> None:
        self._users: dict[_Tags, int] = {}
        self._by_code: dict[int, dict[_Tags, None]] = {}

    def add(self, tags: _Tags) -> None:
        self._users[tags] = users = self._users.get(tags, 0) + 1
        if users == 1:
            for code in tags:
                self._by_code.setdefault(code, {})[tags] = None

    def remove(self, tags: _Tags) -> None:
        self._users[tags] -= 1
        if self._users[tags]:
            return
        del self._users[tags]
        for code in tags:
            del self._by_code[code][tags]
            if not self._by_code[code]:
                del self._by_code[code]

    def with_code(self, code: int, among: Mapping[_Tags | None, object]) -> Iterable[_Tags]:
        """Those of `among` that have the tag; costs what the fewer are."""
        having = self._by_code.get(code)
        return having.keys() & among.keys() if having else ()


class HeldPulls:
    """Held pulls by queue and tags, by channel and by deadline.

    They are answered in the order in which their waits end. Where one message ends several, the oldest pull is the first.
    """

    def __init__(self, held_max: int) -> None:
        self._held_max = held_max
        self._by_queue: dict[tuple[str, int], dict[_Tags | None, dict[int, HeldPull]]] = {}
        """Those that wait; None: without tags."""
        self._tag_sets = _TagSets()  # of each queue's
        self._by_channel: dict[int, dict[int, HeldPull]] = {}
        self._all: dict[int, HeldPull] = {}
        self._deadlines: list[tuple[int, int]] = []  # heap; entries of pulls that wait no longer are skipped
        self.last_number = 0  # of the pull that was held last
        self._ready: dict[int, HeldPull] = {}  # need not wait any longer, and are not given out yet; the first first
        self._skipped: dict[tuple[str, int], int] = {}
        """Queues with messages that somebody does not want, and the last pull that was held when the last of them came."""
        self._sweeping: deque[tuple[tuple[str, int], _Tags | None, int]] = deque()
        """Likewise, of the sweep that is under way: queue, one of its sets of tags, and the last pull."""
        self.bytes = HeldBytes()  # of those that are parked too
        self.parked: dict[int, deque[HeldPull]] = {}
        """By channel: pulls that are due, and whose answers wait until the peer has read what it got before."""
        self._count = 0  # with those

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull) -> bool:
        """Keep a pull; False when there are too many, or they are too large: then the caller answers it now."""
        if self._count >= self._held_max or not self.bytes.has_room(pull):
            return False
        self.bytes.add(pull)
        self._count += 1
        self.last_number += 1
        pull.number = self.last_number
        self._all[pull.number] = pull
        self._by_channel.setdefault(pull.channel, {})[pull.number] = pull
        heapq.heappush(self._deadlines, (pull.deadline_ms, pull.number))
        by_tags, tags = self._by_queue.setdefault(pull.queue, {}), pull.wanted.codes
        if tags not in by_tags:
            by_tags[tags] = {}
            if tags is not None:
                self._tag_sets.add(tags)
        by_tags[tags][pull.number] = pull
        return True

    def waits(self, topic: str, queue_id: int) -> bool:
        return (topic, queue_id) in self._by_queue

    # What ends a wait

    def arrived(self, topic: str, queue_id: int, tags_code: int, properties: Mapping[str, str], last: int) -> None:
        """A message with this tag hash and these properties was stored when `last` was `last_number`: wake who wants it."""
        queue = topic, queue_id
        by_tags = self._by_queue.get(queue)
        if by_tags is None:
            return
        found: list[HeldPull] = []
        for tags in (None, *self._tag_sets.with_code(tags_code, by_tags)):
            for pull in by_tags.get(tags, {}).values():
                if pull.number > last:
                    break
                if pull.takes(tags_code, properties):
                    found.append(pull)
        if len(by_tags) > 1:
            found.sort(key=attrgetter("number"))
        self._wait_no_longer(found)
        if queue in self._by_queue:
            self._skipped[queue] = last

    def begin_sweep(self) -> None:
        """Whose queue got only messages that they do not want are to be repeated too; not before the last sweep has ended."""
        if self._sweeping:
            return
        for queue, last in self._skipped.items():
            self._sweeping.extend((queue, tags, last) for tags in self._by_queue.get(queue, ()))
        self._skipped = {}

    @property
    def has_more(self) -> bool:
        """Whether there are pulls to repeat now, whatever the time."""
        return bool(self._ready or self._sweeping)

    def may_be_ready(self, now_ms: int) -> bool:
        """False: `ready` has none."""
        return self.has_more or bool(self._deadlines and self._deadlines[0][0] <= now_ms)

    def take(self, count_max: int) -> list[HeldPull]:
        """The first pulls of those to repeat."""
        return self._end(list(islice(self._ready.values(), count_max)))

    def ready(self, now_ms: int, count_max: int) -> list[HeldPull]:
        """As `take`, after those whose deadline passed have come to the others, and then those of the sweep."""
        self._wait_no_longer(self._due(now_ms, count_max))
        self._wait_no_longer(self._swept(count_max))
        return self.take(count_max)

    def _wait_no_longer(self, pulls: Iterable[HeldPull]) -> None:
        for pull in pulls:
            self._leave_queue(pull)
            self._ready[pull.number] = pull

    def _due(self, now_ms: int, count_max: int) -> list[HeldPull]:
        found: list[HeldPull] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms and len(found) < count_max:
            pull = self._all.get(heapq.heappop(self._deadlines)[1])
            if pull is not None and pull.number not in self._ready:
                found.append(pull)
        return found

    def _swept(self, count_max: int) -> list[HeldPull]:
        found: list[HeldPull] = []
        while self._sweeping and len(found) < count_max:
            found += islice(self._held_until(*self._sweeping[0]), count_max - len(found))
            if len(found) < count_max:
                self._sweeping.popleft()
        return found

    def _held_until(self, queue: tuple[str, int], tags: _Tags | None, last: int) -> Iterator[HeldPull]:
        """The pulls of a queue with such tags that waited already when the one of that number came."""
        return takewhile(lambda pull: pull.number <= last, self._by_queue.get(queue, {}).get(tags, {}).values())

    def drop_channel(self, channel: int) -> int:
        """Forget the pulls of a closed connection; returns how many."""
        parked = len(list(self.unparked(channel)))
        return parked + len(self._end(list(self._by_channel.get(channel, {}).values())))

    def next_deadline_ms(self) -> int | None:
        while self._deadlines and ((number := self._deadlines[0][1]) not in self._all or number in self._ready):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    # Those that are due, and whose peer has to read first

    def park(self, pull: HeldPull) -> None:
        """Keep a pull that was given out, until `unparked`."""
        self.bytes.add(pull)
        self._count += 1
        self.parked.setdefault(pull.channel, deque()).append(pull)

    def unparked(self, channel: int) -> Iterator[HeldPull]:
        """The parked pulls of a connection, the oldest first; each is parked until the iterator comes to it."""
        while (parked := self.parked.get(channel)) is not None:
            pull = parked.popleft()
            if not parked:
                del self.parked[channel]
            self._count -= 1
            self.bytes.remove(pull)
            yield pull

    # Ends

    def _end(self, pulls: list[HeldPull]) -> list[HeldPull]:
        self._count -= len(pulls)
        for pull in pulls:
            del self._all[pull.number]
            self.bytes.remove(pull)
            if self._ready.pop(pull.number, None) is None:
                self._leave_queue(pull)
            channel = self._by_channel[pull.channel]
            del channel[pull.number]
            if not channel:
                del self._by_channel[pull.channel]
        if len(self._deadlines) > 2 * len(self._all) + 64:  # ended long before their deadline, most of them
            self._deadlines = [(pull.deadline_ms, pull.number) for pull in self._all.values()]
            heapq.heapify(self._deadlines)
        return pulls

    def _leave_queue(self, pull: HeldPull) -> None:
        by_tags, tags = self._by_queue[pull.queue], pull.wanted.codes
        del by_tags[tags][pull.number]
        if by_tags[tags]:
            return
        del by_tags[tags]
        if tags is not None:
            self._tag_sets.remove(tags)
        if not by_tags:
            del self._by_queue[pull.queue]
