"""How many calls of the handler may work on one topic at once, over all workers (`workers.topic_concurrency`).

A worker counts as one from the moment messages of the topic are dispatched to it until all of them are reported: it runs one
call at a time, so a worker that has some of the topic may have more of it. A worker with a coroutine handler runs all that it
has, so there messages count. Messages of the retry topic may be of any topic: while one is limited, they count for each
limited topic.

What is in flight is counted as it is dispatched and reported, so a question costs the same with any number of workers and
queues. Without limits nothing is counted, and a reload that changes them counts once anew.

What finds no room waits beside the line of its kind, and other topics pass it. Only without an order: there a queue, or a
key, is one call at a time anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from ...remoting.names import is_own_retry

UNLIMITED: Final = 1 << 30
W = TypeVar("W", bound=Hashable)


@dataclass(slots=True)
class InFlight(Generic[W]):
    """One chunk in flight; `messages` of it are not reported, `side_by_side` = its worker runs them all at once."""

    chunk_id: int
    worker: W
    topic: str
    messages: int
    side_by_side: bool


@dataclass(slots=True)
class _Calls(Generic[W]):
    """What counts for one limited topic."""

    chunks: dict[W, int] = field(default_factory=dict[W, int])
    """Chunks in flight, by workers that run one call at a time."""
    messages: int = 0
    """In flight at workers that run several."""

    @property
    def used(self) -> int:
        return len(self.chunks) + self.messages


class TopicLimits(Generic[W]):
    """Asked before each dispatch. `limits` (calls by topic) come with each question, as a reload may change them."""

    def __init__(self, in_flight: Callable[[], Iterable[InFlight[W]]], group: str) -> None:
        """`in_flight()` is all that workers have, for a count anew."""
        self._group = group
        self._all_in_flight = in_flight
        self._in_flight: dict[int, InFlight[W]] = {}
        self._limits: Mapping[str, int] = {}
        self._calls: dict[str, _Calls[W]] = {}
        """By limited topic."""
        self.counts = False
        """Some topic is limited: what is dispatched, reported and over is to be said here."""

    # --- what is in flight --------------------------------------------------------------------------------------

    def dispatched(self, chunk_id: int, topic: str, messages: int, worker: W, *, side_by_side: bool) -> None:
        """The worker has so many messages of the topic more in flight."""
        chunk = self._in_flight[chunk_id] = InFlight(chunk_id, worker, topic, messages, side_by_side)
        self._count(chunk, 1)

    def reported(self, chunk_id: int, messages: int) -> None:
        """So many messages of the chunk are over."""
        chunk = self._in_flight.get(chunk_id)
        if chunk is None:
            return
        chunk.messages -= messages
        if chunk.side_by_side:
            for calls in self._of(chunk.topic):
                calls.messages -= messages

    def over(self, chunk_id: int) -> None:
        """Its worker does not have the chunk any more."""
        chunk = self._in_flight.pop(chunk_id, None)
        if chunk is not None:
            self._count(chunk, -1)

    def _count(self, chunk: InFlight[W], sign: int) -> None:
        for calls in self._of(chunk.topic):
            if chunk.side_by_side:
                calls.messages += sign * chunk.messages
                continue
            chunks = calls.chunks.get(chunk.worker, 0) + sign
            if chunks:
                calls.chunks[chunk.worker] = chunks
            else:
                del calls.chunks[chunk.worker]

    def _is_of_any(self, topic: str) -> bool:
        return is_own_retry(topic, self._group)

    def _of(self, topic: str) -> Iterable[_Calls[W]]:
        if self._is_of_any(topic):
            return self._calls.values()
        found = self._calls.get(topic)
        return () if found is None else (found,)

    # --- questions ----------------------------------------------------------------------------------------------

    def room(self, limits: Mapping[str, int], topic: str, worker: W, *, side_by_side: bool) -> int:
        """How many messages of the topic may be dispatched to the worker now."""
        if not limits:
            return UNLIMITED
        room = UNLIMITED
        for limit, calls in self._bounds(limits, topic):
            if side_by_side:
                room = min(room, max(0, limit - calls.used))
            elif calls.used >= limit and worker not in calls.chunks:
                return 0
        return room

    def holders(self, limits: Mapping[str, int], topic: str) -> Collection[W]:
        """While the topic is at its limit: the workers that have some of it and run one call at a time, at most as many as
        the limit says. Nobody else may have more of it. Empty when it is not at its limit."""
        full = [calls.chunks.keys() for limit, calls in self._bounds(limits, topic) if calls.used >= limit]
        return min(full, key=len, default=())

    def _bounds(self, limits: Mapping[str, int], topic: str) -> Iterable[tuple[int, _Calls[W]]]:
        if limits is not self._limits:
            self._recount(limits)
        if self._is_of_any(topic):
            return [(limit, self._calls[name]) for name, limit in limits.items()]
        limit = limits.get(topic)
        return () if limit is None else ((limit, self._calls[topic]),)

    def _recount(self, limits: Mapping[str, int]) -> None:
        self._limits = limits
        self.counts = bool(limits)
        self._calls = {topic: _Calls() for topic in limits}
        self._in_flight = {chunk.chunk_id: chunk for chunk in self._all_in_flight()}
        for chunk in self._in_flight.values():
            self._count(chunk, 1)
