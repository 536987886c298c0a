"""The process that calls the hooks of the section [hooks] (line_process.py).

    def letter(event):
        page(f"{event['topic']} {event['offset']}: {event['error']}")

    [hooks]
    on_dead_letter = "shop:letter"

A question is {"hook": name, "event": {...}}; the answer {"done": name} or {"error": text}. A hook is a plain function of one
argument, a dict; what it returns is dropped. All hooks of a member run in this one process, one call at a time.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

from ..remoting.errors import UsageError
from .line_process import Answer, run
from .loading import describe, find, never_awaited, takes_one


def hooks_at(named: Sequence[str]) -> Answer:
    """`named` are "hook=package.module:function". Raises UsageError for what cannot be had or called."""
    functions: dict[str, Any] = {}
    for entry in named:
        name, _, import_path = entry.partition("=")
        function = find(describe(import_path)).function
        if inspect.iscoroutinefunction(function) or never_awaited(function) is not None or not takes_one(function):
            raise UsageError(
                f"hooks.{name} = {import_path!r} is to be a plain function of one argument, def hook(event)"
            )
        functions[name] = function

    def answer(question: Any) -> dict[str, object]:
        functions[question["hook"]](question["event"])
        return {"done": question["hook"]}

    return answer


if __name__ == "__main__":
    run(lambda: hooks_at(sys.argv[1:]))
