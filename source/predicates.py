"""What of a query's WHERE decides which offsets are pulled at all.

Spark hands over the parts that are joined by AND (only with spark.sql.python.filterPushdown.enabled=true, which is off by
default). Conditions on topic, brokerName, queueId and queueOffset are kept exactly, so Spark need not look again. Those on
storeTimestamp narrow the range by a search of the broker's, with a second to spare on both sides because a broker's clock
may have stepped, and Spark looks again. Filters are known by their class's name, so this needs no pyspark. Pure.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..remoting.queues import MessageQueue
from .planning import Range

SPARE_MS = 1_000
OFFSET_MAX = (1 << 63) - 1
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EQUAL = ("EqualTo", "EqualNullSafe")


@dataclass(frozen=True, slots=True)
class Predicates:
    """Queues and offsets that a query wants; None: no bound. `offset_end` and `store_end_ms` are not included."""

    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    queue_id_start: int = 0
    queue_id_end: int = OFFSET_MAX
    offset_start: int = 0
    offset_end: int = OFFSET_MAX
    store_start_ms: int | None = None
    store_end_ms: int | None = None

    def wants(self, queue: MessageQueue) -> bool:
        """Whether anything of a queue can be wanted."""
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.brokers is None or queue.broker_name in self.brokers)
            and (self.queue_ids is None or queue.queue_id in self.queue_ids)
            and self.queue_id_start <= queue.queue_id < self.queue_id_end
        )

    def narrowed(self, part: Range, found_start: int | None = None, found_end: int | None = None) -> Range:
        """The part of a range that is wanted. `found_…`: where brokers find the two times; may be empty (start == end)."""
        start = max(part.start, self.offset_start, found_start or 0)
        end = min(part.end, self.offset_end, part.end if found_end is None else found_end)
        return Range(part.queue, start, max(start, end))


def push(known: Predicates, filters: Sequence[Any]) -> tuple[Predicates, list[Any]]:
    """What is known with these filters, and the filters that Spark still has to apply."""
    left: list[Any] = []
    for condition in filters:
        path: list[str] = list(getattr(condition, "attribute", ()))
        more = _one(known, path[0].lower(), type(condition).__name__, condition) if len(path) == 1 else None
        if more is not None:
            known = more
        if more is None or path[0].lower() == "storetimestamp":
            left.append(condition)
    return known, left


def _one(known: Predicates, column: str, kind: str, condition: Any) -> Predicates | None:
    """`known` narrowed by one filter; None when it says nothing to us."""
    if kind == "IsNotNull":
        return known if column in ("topic", "brokername", "queueid", "queueoffset", "storetimestamp") else None
    value = getattr(condition, "value", None)
    if column in ("topic", "brokername"):
        return _texts(known, column, kind, value)
    if column == "queueid":
        return _queue_ids(known, kind, value)
    if column == "queueoffset":
        bounds = _bounds(kind, value)
        if bounds is None:
            return None
        low, high = bounds
        return replace(known, offset_start=max(known.offset_start, low), offset_end=min(known.offset_end, high))
    if column == "storetimestamp" and isinstance(value, datetime.datetime):
        return _times(known, kind, value)
    return None


def _texts(known: Predicates, column: str, kind: str, value: Any) -> Predicates | None:
    if kind in _EQUAL and isinstance(value, str):
        wanted = frozenset({value})
    elif kind == "In" and all(isinstance(each, str) for each in value):
        wanted = frozenset[str](value)
    else:
        return None
    if column == "topic":
        return replace(known, topics=wanted if known.topics is None else known.topics & wanted)
    return replace(known, brokers=wanted if known.brokers is None else known.brokers & wanted)


def _queue_ids(known: Predicates, kind: str, value: Any) -> Predicates | None:
    if kind == "In" and all(type(each) is int for each in value):
        wanted = frozenset[int](value)
        return replace(known, queue_ids=wanted if known.queue_ids is None else known.queue_ids & wanted)
    bounds = _bounds(kind, value)
    if bounds is None:
        return None
    low, high = bounds
    return replace(known, queue_id_start=max(known.queue_id_start, low), queue_id_end=min(known.queue_id_end, high))


def _bounds(kind: str, value: Any) -> tuple[int, int] | None:
    """First and one past the last whole number for which a comparison holds."""
    if type(value) is not int:
        return None
    if kind in _EQUAL:
        return value, value + 1
    return {
        "GreaterThan": (value + 1, OFFSET_MAX),
        "GreaterThanOrEqual": (value, OFFSET_MAX),
        "LessThan": (0, value),
        "LessThanOrEqual": (0, value + 1),
    }.get(kind)


def _times(known: Predicates, kind: str, value: datetime.datetime) -> Predicates | None:
    # Naive times do not come from a timestamp column; whose clock they are by cannot be known.
    if value.tzinfo is None:
        return None
    ms = (value - _EPOCH) // datetime.timedelta(milliseconds=1)
    start, end = known.store_start_ms, known.store_end_ms
    if kind in ("GreaterThan", "GreaterThanOrEqual", *_EQUAL):
        start = max(start or 0, ms - SPARE_MS, 0)
    if kind in ("LessThan", "LessThanOrEqual", *_EQUAL):
        bound = max(ms + 1 + SPARE_MS, 0)
        end = bound if end is None else min(end, bound)
    if (start, end) == (known.store_start_ms, known.store_end_ms) and kind not in _EQUAL:
        return known if kind in ("GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual") else None
    return replace(known, store_start_ms=start, store_end_ms=end)
