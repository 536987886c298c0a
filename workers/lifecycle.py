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
from .loading import called_at, never_awaited, takes_one


def hooks_at(named: Sequence[str]) -> Answer:
    """`named` are "hook=package.module:function". Raises UsageError for what cannot be had or called."""
    functions: dict[str, Any] = {}
    for entry in named:
        name, _, import_path = entry.partition("=")
        function = called_at(import_path)
        waits = inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function)
        if waits or never_awaited(function) is not None or not takes_one(function):
            raise UsageError(
                f"hooks.{name} = {import_path!r} is to be a plain function of one argument, def hook(event), without yield"
            )
        functions[name] = function

    def answer(question: Any) -> dict[str, object]:
        check_hook_ran(functions[question["hook"]](question["event"]))
        return {"done": question["hook"]}

    return answer


def check_hook_ran(result: object) -> None:
    """Raise UsageError for what a hook returns and nobody runs, as a lambda around a coroutine function does."""
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
        raise UsageError(f"it returned a {type(result).__name__}, which nobody runs: make it a plain function")


if __name__ == "__main__":
    run("hooks", lambda: hooks_at(sys.argv[2:]))
