"""How far a stream is behind its topics, from Spark's progress. Pure.

Spark takes metrics of their own from sources in Java only. From one in Python it takes the latest offsets: the ends of all
queues when the batch was planned, so the lag is what lies between these and where the batch ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from .offsets import BESIDE


def stream_lag(progress: Any) -> dict[str, int]:
    """Messages by topic that were stored when the last batch was planned and are not in it.

    `progress` is `query.lastProgress`, or the event's in a StreamingQueryListener; None (no batch yet) gives {}. Sources that
    are none of RocketMQ's are passed over.
    """
    if progress is None:
        return {}
    reported = cast("Mapping[str, Any]", progress if isinstance(progress, Mapping) else json.loads(progress.json))
    found: dict[str, int] = {}
    for source in reported["sources"]:
        try:
            ends, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
        except (ValueError, TypeError, AttributeError, KeyError):
            continue
        for queue, offset in latest.items():
            found[queue[0]] = found.get(queue[0], 0) + max(0, offset - ends.get(queue, 0))
    return found


def _offsets(text: Any) -> dict[tuple[str, str, str], int]:
    """Spark's JSON of {topic: {broker: {queue: offset}}}; empty where it says nothing."""
    given: Any = json.loads(text or "null") if isinstance(text, str) else text
    topics: dict[str, dict[str, dict[str, Any]]] = given or {}
    return {
        (topic, broker, queue): int(offset)
        for topic, brokers in topics.items()
        if topic not in BESIDE
        for broker, queues in brokers.items()
        for queue, offset in queues.items()
    }
