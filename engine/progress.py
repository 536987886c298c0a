"""How a stream gets on: one line for each batch, how much still waits at the brokers, and why a query failed. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..source.lags import stream_lag

REASON_MAX = 2_000
LINES_MAX = 4
"""Of a failure that is none of ours: then its first ones say the most."""
_OURS = re.compile(r"^\s*(?:rocketcrew(?:\.\w+)+: |(?=rocketmq: ))(.+)")
"""The last line of a traceback that ends in an error of ours."""


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


def reason_of(failure: str) -> str:
    """Why a query failed, from Spark's text, in which an error of ours stands between two stacks."""
    lines = [line for line in failure.splitlines() if line.strip()]
    ours = [found[1] for line in lines if (found := _OURS.match(line))]
    return (ours[-1] if ours else " | ".join(lines[:LINES_MAX]))[:REASON_MAX]
