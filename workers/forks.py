"""A child process that a handler forked, and that came back out of the handler: it must not go on as a worker.

It has the worker's link, segment and cell, and would report the parent's messages a second time. So it ends as a program
does that has come to its end: with the code of sys.exit, with a traceback and 1 for an error, with 0 otherwise.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import NoReturn


def exit_code_of(error: BaseException | None) -> int:
    """As the interpreter has it."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        code = error.code
        return code & 0xFF if isinstance(code, int) else int(code is not None)
    return 1


def end_if_forked(pid: int, error: BaseException | None = None) -> None:
    """End this process with the end of what was begun in process `pid`, where it is another one."""
    if os.getpid() != pid:
        end_fork(error)


def end_fork(error: BaseException | None) -> NoReturn:
    """End this process at once; nothing of the worker is flushed, closed or reported."""
    with contextlib.suppress(Exception):
        if error is not None and not isinstance(error, SystemExit):
            traceback.print_exception(error)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    os._exit(exit_code_of(error))
