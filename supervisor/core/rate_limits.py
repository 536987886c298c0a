"""How many messages are dispatched in a second: of a topic (`workers.topic_rate_limit`), and of all (`workers.rate_limit`).

A token bucket for each limit: a dispatched message takes a token, tokens come at the rate, and no more than the burst are
kept. So in any stretch of t seconds at most `burst + rate * t` messages are dispatched. The burst is what comes in BURST_S,
and at least one call of the handler. A bucket that was found empty gives nothing before it has some tokens (GATHER_S): a
fast topic is not dispatched message by message.

Messages of the retry topic may be of any topic: they take a token of every limited topic. They wait for the lowest of these
rates, and for the others only while those owe something: these may come to owe one message, or what comes in GATHER_S, which
is added to the bound. (If they waited for tokens of all at the same moment, retries would starve beside topics that take each
token as it comes.) What a dead worker left, or was
reclaimed, runs again without another token where there is no order; with one, each dispatch takes its tokens. A suspect that
waits to run alone (quarantine.py) takes its token when it runs.

What is held waits in its process queue, other topics pass it, and the queue is not pulled while some of it waits. Virtual
time: `now` is in seconds of the core's clock and comes with each question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ...remoting.names import is_own_retry
from .topic_limits import UNLIMITED

MEMBER: Final = ""
"""In the place of a topic: the limit of the whole member."""
BURST_S: Final = 0.1
GATHER_S: Final = 0.02
"""At most so often a second, 50 times, is a limited topic looked at for its limit alone."""
LOOK_S_MAX: Final = 1.0
"""A reload may raise a limit: an empty bucket is looked at again after that, however low its rate is."""
SLACK: Final = 1e-6
"""Tokens; a sum of differences may round to less than what was waited for."""


@dataclass(slots=True)
class Bucket:
    """The tokens of one limit; `rate` in messages a second."""

    rate: float
    burst: float
    tokens: float
    at: float
    """The time of `tokens`."""
    empty: bool = False
    """It was found empty, and has not gathered enough since."""

    def room(self, now: float) -> int:
        """How many messages may be dispatched now."""
        self._fill(now)
        if self.empty and self.tokens + SLACK < self._enough():
            return 0
        whole = int(self.tokens + SLACK)
        self.empty = whole < 1
        return max(whole, 0)

    def credit(self, now: float) -> int:
        """How many may be dispatched now of what owes nothing yet: more than there is, but no more than is gathered."""
        self._fill(now)
        return 0 if self.tokens < -SLACK else max(int(self.tokens + SLACK), int(self._enough()))

    def paid(self, now: float) -> float:
        """When it owes nothing; at most LOOK_S_MAX from now."""
        return now + min(max(-self.tokens, 0.0) / self.rate, LOOK_S_MAX)

    def owes(self, now: float) -> bool:
        return self.tokens + max(0.0, now - self.at) * self.rate < -SLACK

    def take(self, messages: int, now: float) -> None:
        self._fill(now)
        self.tokens -= messages

    def due(self, now: float) -> float:
        """When an empty bucket has enough again; at most LOOK_S_MAX from now."""
        return now + min(max(self._enough() - self.tokens, 0.0) / self.rate, LOOK_S_MAX)

    def holds(self, now: float) -> bool:
        """Whether messages wait for it, if there are any."""
        return self.empty and self.tokens + (now - self.at) * self.rate + SLACK < self._enough()

    def _enough(self) -> float:
        return min(self.burst, max(1.0, self.rate * GATHER_S))

    def _fill(self, now: float) -> None:
        self.tokens = min(self.burst, self.tokens + max(0.0, now - self.at) * self.rate)
        self.at = max(self.at, now)


class RateLimits:
    """Asked before each dispatch. `rates` (by topic, MEMBER for all) come with each question, as a reload may change them."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._rates: Mapping[str, float] = {}
        self._buckets: dict[str, Bucket] = {}
        self._lowest = MEMBER
        """The topic with the lowest rate; MEMBER when no topic has one."""

    def room(self, rates: Mapping[str, float], topic: str, call_messages: int, now: float) -> int:
        """How many messages of the topic may be dispatched now; `call_messages` are what one call of the handler gets."""
        if not rates:
            return UNLIMITED
        if rates is not self._rates:
            self._renew(rates, call_messages, now)
        room = min((bucket.room(now) for _, bucket in self._of(topic)), default=UNLIMITED)
        return min([room, *(bucket.credit(now) for _, bucket in self._on_credit(topic))])

    def take(self, topic: str, messages: int, now: float) -> None:
        """So many of the topic are dispatched."""
        for _, bucket in (*self._of(topic), *self._on_credit(topic)):
            bucket.take(messages, now)

    def due(self, topic: str, now: float) -> float:
        """When to ask again after an answer of 0."""
        dues = [bucket.due(now) for _, bucket in self._of(topic) if bucket.empty]
        return max([now, *dues, *(bucket.paid(now) for _, bucket in self._on_credit(topic))])

    def holding(self, topic: str, now: float) -> list[str]:
        """The limits (topics, or MEMBER) that hold messages of the topic back now, if there are any."""
        found = [name for name, bucket in self._of(topic) if bucket.holds(now)]
        return found + [name for name, bucket in self._on_credit(topic) if bucket.owes(now)]

    def _is_of_any(self, topic: str) -> bool:
        return is_own_retry(topic, self._group)

    def _of(self, topic: str) -> Iterable[tuple[str, Bucket]]:
        """The limits that must have tokens."""
        own = self._lowest if self._is_of_any(topic) else topic
        return [(name, self._buckets[name]) for name in dict.fromkeys((own, MEMBER)) if name in self._buckets]

    def _on_credit(self, topic: str) -> Iterable[tuple[str, Bucket]]:
        """The limits that count the messages, and may come to owe some."""
        if not self._is_of_any(topic):
            return ()
        return [(name, bucket) for name, bucket in self._buckets.items() if name not in (self._lowest, MEMBER)]

    def _renew(self, rates: Mapping[str, float], call_messages: int, now: float) -> None:
        """Limits that have not changed keep their tokens."""
        before, self._rates, self._buckets = self._buckets, rates, {}
        self._lowest = min((name for name in rates if name != MEMBER), key=lambda name: rates[name], default=MEMBER)
        for name, rate in rates.items():
            burst = max(1.0, float(call_messages), rate * BURST_S)
            old = before.get(name)
            kept = old is not None and (old.rate, old.burst) == (rate, burst)
            self._buckets[name] = old if old is not None and kept else Bucket(rate, burst, burst, now)
