"""Allocation strategies of the tests, imported by the strategy's process from this folder."""

from __future__ import annotations

import sys
import time
from typing import Any


def backwards(group: str, client_id: str, queues: list[Any], client_ids: list[str]) -> list[Any]:
    """By circle, from the end of the list."""
    print("what a user prints is no answer", group)  # noqa: T201
    return [mq for k, mq in enumerate(reversed(queues)) if k % len(client_ids) == client_ids.index(client_id)]


def moody(group: str, client_id: str, queues: list[Any], client_ids: list[str]) -> object:
    """Fails in every way, by the number of queues."""
    del group, client_id, client_ids
    if len(queues) == 1:
        raise ValueError("no mood")
    if len(queues) == 2:
        sys.exit(3)
    if len(queues) == 3:
        return [("a", "b", 7)]
    if len(queues) == 4:
        return 7
    if len(queues) == 5:
        time.sleep(3600)
    return queues
