"""A process that runs a user's code for the supervisor: one JSON line in, one out, until its stdin ends.

No user code runs in the supervisor. The first line of output is {"ready": true}, or {"error": text} when the code could not
be loaded. What the user prints goes to stderr, so that it cannot be taken for an answer. The other end is in
supervisor/member/user_process.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from json import dumps, loads  # bound before the user's code, which may replace them
from typing import Any, TextIO

from ..conf.logging import set_up_as
from ..remoting.errors import UsageError
from .loading import HandlerLoadError
from .user_errors import describe_error

Answer = Callable[[Any], dict[str, object]]


def serve(load: Callable[[], Answer], lines: TextIO, out: TextIO) -> None:
    """`load` gives what answers a question (decoded JSON); whatever that raises becomes the error's text."""

    def say(reply: dict[str, object]) -> None:
        out.write(dumps(reply) + "\n")
        out.flush()

    try:
        answer = load()
    except HandlerLoadError as error:
        say({"error": f"{error}\n{error.traceback}".rstrip()})
        return
    except UsageError as error:
        say({"error": str(error)})
        return
    say({"ready": True})
    for line in lines:
        say(_answered(answer, loads(line)))


def _answered(answer: Answer, question: Any) -> dict[str, object]:
    try:
        return answer(question)
    except BaseException as error:  # noqa: BLE001  also sys.exit(): it is the user's code
        return {"error": describe_error(error)}


def run(process: str, load: Callable[[], Answer]) -> None:
    """`serve` on this process's stdin and stdout. Prints go to stderr from here on, line by line (it may be killed), and what
    the user's code logs goes to where the first argument says (`logs_as` in conf/settings.py)."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    log = loads(sys.argv[1])
    set_up_as(log, process, for_imports=True)

    def loaded() -> Answer:
        answer = load()
        set_up_as(log, process)
        return answer

    serve(loaded, sys.stdin, out)
