"""How a stream gets on: one line for each batch, and how much still waits at the brokers. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def told(progress: Mapping[str, Any]) -> dict[str, object]:
    """What is told of one of Spark's StreamingQueryProgress objects.

    `waiting`: messages of all topics that were stored when the batch was planned and are not in it.
    """
    messages = int(progress["numInputRows"])
    seconds = int(dict(progress["durationMs"]).get("triggerExecution", 0)) / 1000
    waiting = 0
    for source in progress["sources"]:
        ends, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
        waiting += sum(max(0, offset - ends.get(queue, 0)) for queue, offset in latest.items())
    rate = round(messages / seconds) if seconds else 0
    found: dict[str, object] = {
        "batch": int(progress["batchId"]), "messages": messages, "seconds": round(seconds, 2), "messages_per_s": rate,
        "waiting": waiting,
    }  # fmt: skip
    if waiting and rate:
        found["seconds_left"] = round(waiting / rate, 1)
    return found


def _offsets(text: Any) -> dict[tuple[str, str, str], int]:
    """Spark's JSON of {topic: {broker: {queue: offset}}}; empty where it says nothing."""
    given: Any = json.loads(text or "null") if isinstance(text, str) else text
    topics: dict[str, dict[str, dict[str, Any]]] = given or {}
    return {
        (topic, broker, queue): int(offset)
        for topic, brokers in topics.items()
        for broker, queues in brokers.items()
        for queue, offset in queues.items()
    }
