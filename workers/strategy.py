"""The process that runs a user's own allocation strategy: one JSON line in, one out, until its stdin ends.

No user code runs in the supervisor, and this is user code. A question is {"group", "client_id", "queues": [[topic, broker,
queue id], ...], "client_ids": [...]}, both lists sorted; the answer {"queues": [positions in the list]} or {"error": text}.
The first line of output is {"ready": name}, or {"error": text} when the function could not be loaded. What the user prints
goes to stderr, so that it cannot be taken for an answer.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from ..remoting.errors import UsageError
from ..remoting.queues import MessageQueue
from .loading import HandlerLoadError, describe, find
from .user_errors import describe_error


def answer(function: Any, line: str) -> dict[str, object]:
    """What the function makes of one question; whatever it raises becomes the error's text."""
    question = json.loads(line)
    queues = [MessageQueue(*entry) for entry in question["queues"]]
    try:
        mine = function(question["group"], question["client_id"], list(queues), list(question["client_ids"]))
        return {"queues": positions(queues, mine)}
    except BaseException as error:  # noqa: BLE001  also sys.exit(): it is the user's code
        return {"error": describe_error(error)}


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


def serve(import_path: str, lines: TextIO, out: TextIO) -> None:
    """Load the function, then answer every line."""

    def say(reply: dict[str, object]) -> None:
        out.write(json.dumps(reply) + "\n")
        out.flush()

    try:
        function = find(describe(import_path)).function
    except HandlerLoadError as error:
        say({"error": f"{error}\n{error.traceback}".rstrip()})
        return
    except UsageError as error:
        say({"error": str(error)})
        return
    say({"ready": import_path})
    for line in lines:
        say(answer(function, line))


def main() -> None:
    """`python -m rocketcrew.workers.strategy package.module:function`."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.argv[1], sys.stdin, out)


if __name__ == "__main__":
    main()
