"""The process that runs a user's own allocation strategy (line_process.py).

A question is {"group", "client_id", "queues": [[topic, broker, queue id], ...], "client_ids": [...]}, both lists sorted; the
answer {"queues": [positions in the list]} or {"error": text}.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from ..remoting.errors import UsageError
from ..remoting.queues import MessageQueue
from .line_process import Answer, run
from .loading import called_at


def strategy_at(import_path: str) -> Answer:
    """What answers with the queues that the function there chooses. Raises UsageError when it cannot be had."""
    function = called_at(import_path)
    return lambda question: answer(function, question)


def answer(function: Any, question: Any) -> dict[str, object]:
    """What the function makes of one question. Raises what it raises, and UsageError for nonsense."""
    queues = [MessageQueue(*entry) for entry in question["queues"]]
    mine = function(question["group"], question["client_id"], list(queues), list(question["client_ids"]))
    return {"queues": positions(queues, mine)}


def positions(queues: list[MessageQueue], mine: object) -> list[int]:
    """Where the returned queues stand in the list; each once. Raises UsageError for what is no queue of it."""
    if not isinstance(mine, Iterable):
        raise UsageError(f"it returned {type(mine).__name__}, not the list of its queues")
    where = {mq: position for position, mq in enumerate(queues)}
    found: dict[int, None] = {}
    for mq in mine:  # pyright: ignore[reportUnknownVariableType]  it is the user's
        if mq not in where:
            raise UsageError(f"it returned {mq!r}, which is none of the queues that it was given")
        found[where[mq]] = None
    return list(found)


if __name__ == "__main__":
    run("strategy", lambda: strategy_at(sys.argv[2]))
