"""Pops and notifications that wait for a message (BR/longpolling/PopLongPollingService.java).

They wait by topic and group, for one queue or (-1) for any. A message that arrives wakes one pop of each group, since one is
enough, and a notification that waits for longer, as that takes nothing; when the pop leaves something, its answer wakes the
next (`wake`). A message that is shown again wakes those of its own group alone. Who is woken is held no longer: the caller
executes the request again, and may hold it again. At its deadline each is answered that there is nothing.

At most so many are woken at a time as the caller takes: an arrival stays until all groups were asked. When a queue can be
read again that could not be (`rebuilt`), one of each group that looked there is woken.

All queues were empty for who waits. So it looks only into those where something arrived (`News`): of a thousand messages that
arrive together, each is looked for once, however many wait and however many queues there are.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from ..remoting.codes import RequestCode
from .held_bytes import Held, HeldBytes

ANY_QUEUE = -1
_NUMBER = attrgetter("number")


@dataclass(slots=True, eq=False)
class HeldPop(Held):
    """One waiting request, and what it waits for."""

    topic: str
    group: str
    retry_topic: str
    queue_id: int


class Arrival(NamedTuple):
    """A message that can be read now."""

    topic: str
    queue_id: int
    tags_code: int
    properties: Mapping[str, str]
    last_pull: int
    """The number of the last pull that was held when it came."""


class News:
    """In which queues something arrived, less those that a pop of the group has read to their end since."""

    def __init__(self, arrivals: Iterable[Arrival]) -> None:
        self._queues: dict[str, dict[int, None]] = {}
        for arrival in arrivals:
            self._queues.setdefault(arrival.topic, {})[arrival.queue_id] = None
        self._left: dict[tuple[str, str], dict[int, None]] = {}

    def left(self, topic: str, group: str) -> dict[int, None]:
        """The queues of a topic, or retry topic, into which a pop of the group is to look."""
        found = self._left.get((topic, group))
        if found is None:
            found = self._left[topic, group] = dict(self._queues.get(topic, ()))
        return found

    def asked(self, held: HeldPop) -> Iterator[tuple[str, int]]:
        """Topic and queue of each into which a request is to look."""
        left = self.left(held.topic, held.group)
        for queue_id in left if held.queue_id == ANY_QUEUE else left.keys() & {held.queue_id}:
            yield held.topic, queue_id
        if held.retry_topic != held.topic:
            for queue_id in self.left(held.retry_topic, held.group):
                yield held.retry_topic, queue_id

    def take(self, held: HeldPop) -> Iterator[tuple[str, int]]:
        """As `asked`; the next ones of the group look into none of them, unless it is `put_back`."""
        while (found := next(self.asked(held), None)) is not None:
            topic, queue_id = found
            del self.left(topic, held.group)[queue_id]
            yield found

    def put_back(self, topic: str, group: str, queue_id: int) -> None:
        """Something is left there."""
        self.left(topic, group)[queue_id] = None


class HeldPops:
    """Held requests by topic and group, by channel and by deadline; the oldest is woken first."""

    def __init__(self, held_max: int) -> None:
        self._held_max = held_max
        self._all: dict[int, HeldPop] = {}
        self._by_topic: dict[str, dict[str, list[HeldPop]]] = {}  # the oldest first
        self._by_retry_topic: dict[str, tuple[str, str]] = {}
        self._by_channel: dict[int, dict[int, HeldPop]] = {}
        self._deadlines: list[tuple[int, int]] = []  # heap; entries of what was woken are skipped
        self._next_number = 0
        self.bytes = HeldBytes()
        self.to_wake: OrderedDict[tuple[str, str, int], None] = OrderedDict()
        """Topic, group and queue (-1: any) for which one more is to be woken: something is there for it."""
        self.asks_on = False
        self._asked: set[str] = set()  # groups that were asked for the arrival that asks on
        self.rebuilding: dict[tuple[str, int], dict[tuple[str, str], None]] = {}
        """Queues that cannot be read before they are built anew, and who is to look into them then: topic and group."""

    def __len__(self) -> int:
        return len(self._all)

    def has_room(self, held: HeldPop) -> bool:
        return len(self._all) < self._held_max and self.bytes.has_room(held)

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """How many wait for that queue (-1: for any)."""
        return sum(held.queue_id == queue_id for held in self._waiting(topic, group))

    def _waiting(self, topic: str, group: str) -> list[HeldPop]:
        return self._by_topic.get(topic, {}).get(group, [])

    def hold(self, held: HeldPop) -> None:
        """Keep a request; look at `has_room` first. One that was held before has its place again: its deadline is nearer."""
        self.bytes.add(held)
        if not held.number:
            self._next_number += 1
            held.number = self._next_number
        self._all[held.number] = held
        insort(self._by_topic.setdefault(held.topic, {}).setdefault(held.group, []), held, key=_NUMBER)
        self._by_retry_topic[held.retry_topic] = held.topic, held.group
        self._by_channel.setdefault(held.channel, {})[held.number] = held
        heapq.heappush(self._deadlines, (held.deadline_ms, held.number))

    def waits(self, topic: str) -> bool:
        """Whether a message of this topic, or retry topic, could wake anybody."""
        return topic in self._by_topic or topic in self._by_retry_topic

    def arrived(self, arrival: Arrival, news: News, count_max: int, full: Iterable[int] = ()) -> list[HeldPop]:
        """Whom a message wakes, until there are so many; when it `asks_on` then, the same arrival comes next time.

        Nobody of a group that has read its queue to the end since. `full` are channels whose peer does not read.
        """
        topic, queue_id, tags_code, properties, _ = arrival
        retried = self._by_retry_topic.get(topic)
        groups = self._by_topic.get(topic, {}).items() if retried is None else [(retried[1], self._waiting(*retried))]
        self.asks_on = False
        woken: list[HeldPop] = []
        for group, waiting in groups:
            if group in self._asked or queue_id not in news.left(topic, group):
                continue
            if len(woken) >= count_max:
                self.asks_on = True
                break
            self._asked.add(group)
            woken += _up_to_a_pop(
                held
                for held in waiting
                if held.channel not in full
                and (retried or (held.queue_id in (ANY_QUEUE, queue_id) and held.takes(tags_code, properties)))
            )
        if not self.asks_on:
            self._asked.clear()
        return self._end(woken)

    def woken(self, count_max: int, full: Iterable[int] = ()) -> list[HeldPop]:
        """One of each of those that are `to_wake`, until there are so many."""
        woken: list[HeldPop] = []
        while self.to_wake and len(woken) < count_max:
            (topic, group, queue_id), _ = self.to_wake.popitem(last=False)
            waiting = self._waiting(topic, group)
            woken += self._end(
                _up_to_a_pop(held for held in waiting if held.queue_id == queue_id and held.channel not in full)
            )
        return woken

    def wake(self, topic: str, group: str, queue_id: int) -> None:
        """Something is there for one more of those that wait for this queue (-1: for any)."""
        if any(held.queue_id == queue_id for held in self._waiting(topic, group)):
            self.to_wake[topic, group, queue_id] = None

    def wake_group(self, topic: str, group: str) -> None:
        """Something may be there for any of the group's: one more of each queue that they wait for."""
        self._wake_each(self._waiting(topic, group))

    def wake_channel(self, channel: int) -> None:
        """The peer reads again: for what its requests wait may have come meanwhile."""
        self._wake_each(self._by_channel.get(channel, {}).values())

    def wake_when_rebuilt(self, queue: tuple[str, int], topic: str, group: str) -> None:
        """Something may be there for the group's, but this queue cannot be read before it is built anew."""
        if self._waiting(topic, group):
            self.rebuilding.setdefault(queue, {})[topic, group] = None

    def rebuilt(self, queue: tuple[str, int]) -> None:
        for topic, group in self.rebuilding.pop(queue):
            self.wake_group(topic, group)

    def _wake_each(self, found: Iterable[HeldPop]) -> None:
        for held in found:
            self.to_wake[held.topic, held.group, held.queue_id] = None

    def due(self, now_ms: int, count_max: int) -> list[HeldPop]:
        """Whose deadline has passed, at most so many; the earliest first."""
        found: list[HeldPop] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms and len(found) < count_max:
            held = self._all.get(heapq.heappop(self._deadlines)[1])
            if held is not None and held.deadline_ms <= now_ms:
                found += self._end([held])
        return found

    def may_be_due(self, now_ms: int) -> bool:
        """False: `due` has none."""
        return bool(self._deadlines and self._deadlines[0][0] <= now_ms)

    def drop_channel(self, channel: int) -> None:
        """Forget the requests of a closed connection."""
        self._end(list(self._by_channel.get(channel, {}).values()))

    def next_deadline_ms(self) -> int | None:
        while self._deadlines and self._deadlines[0][1] not in self._all:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _end(self, ended: list[HeldPop]) -> list[HeldPop]:
        for held in ended:
            del self._all[held.number]
            self.bytes.remove(held)
            groups = self._by_topic[held.topic]
            waiting = groups[held.group]
            del waiting[bisect_left(waiting, held.number, key=_NUMBER)]
            if not waiting:
                del groups[held.group]
                self._by_retry_topic.pop(held.retry_topic, None)
                if not groups:
                    del self._by_topic[held.topic]
            channel = self._by_channel[held.channel]
            del channel[held.number]
            if not channel:
                del self._by_channel[held.channel]
        if len(self._deadlines) > 2 * len(self._all) + 64:
            self._deadlines = [(held.deadline_ms, held.number) for held in self._all.values()]
            heapq.heapify(self._deadlines)
        return ended


def _up_to_a_pop(found: Iterable[HeldPop]) -> list[HeldPop]:
    """The first pop, and the first notification if that waits for longer: it takes nothing."""
    woken: list[HeldPop] = []
    for held in found:
        if held.command.code != RequestCode.NOTIFICATION:
            return [*woken, held]
        woken = woken or [held]
    return woken
