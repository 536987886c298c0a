"""How a stream gets on: one line for each batch, how much still waits, that no task runs, why a query failed. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..source.lags import stream_lag

REASON_MAX = 2_000
LINES_MAX = 4
"""Of a failure that is none of ours: then its first ones say the most."""
IDLE_S = 60.0
"""An executor may take half a minute to start."""
IDLE_LOOK_S = 5.0
"""Spark is asked for each job and stage then, which takes milliseconds."""
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


class Idle:
    """Notices that Spark has tasks to run and runs none of them."""

    def __init__(self) -> None:
        self._since_s = -1.0
        self._told = False
        self._due_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Whether it is time to ask Spark again."""
        due = now_s >= self._due_s
        if due:
            self._due_s = now_s + IDLE_LOOK_S
        return due

    def look(self, now_s: float, left: int, active: int) -> bool:
        """Whether to tell of it: once, however long it lasts. `left`: tasks that are not done; `active`: those that run."""
        if active or not left:
            self._since_s, self._told = -1.0, False
            return False
        if self._since_s < 0:
            self._since_s = now_s
        tells = not self._told and now_s - self._since_s >= IDLE_S
        self._told = self._told or tells
        return tells


def reason_of(failure: str) -> str:
    """Why a query failed, from Spark's text, in which an error of ours stands between two stacks."""
    lines = [line for line in failure.splitlines() if line.strip()]
    ours = [found[1] for line in lines if (found := _OURS.match(line))]
    return (ours[-1] if ours else " | ".join(lines[:LINES_MAX]))[:REASON_MAX]
