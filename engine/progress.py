"""How a stream gets on: one line for each batch, and how much still waits at the brokers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..source.lags import stream_lag


def told(progress: Mapping[str, Any]) -> dict[str, object]:
    """What is told of one of Spark's StreamingQueryProgress objects.

    `waiting`: messages of all topics that were stored when the batch was planned and are not in it.
    """
    messages = int(progress["numInputRows"])
    seconds = int(dict(progress["durationMs"]).get("triggerExecution", 0)) / 1000
    waiting = sum(stream_lag(progress).values())
    rate = round(messages / seconds) if seconds else 0
    found: dict[str, object] = {
        "batch": int(progress["batchId"]), "messages": messages, "seconds": round(seconds, 2), "messages_per_s": rate,
        "waiting": waiting,
    }  # fmt: skip
    if waiting and rate:
        found["seconds_left"] = round(waiting / rate, 1)
    return found
