"""What commands say to programs (--json): on stdout, where nothing else is said meanwhile.

Handlers, a table's function, their modules and what they start print as they like, also past Python's own `sys.stdout`, and
may end no line. So descriptor 1 is standard error while they run, and the answer has a descriptor of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Mapping
from typing import TextIO

import click

from .json_text import ESCAPED, json_text
from .patient_output import drop_rest

Tell = Callable[[Mapping[str, object]], None]


@contextlib.contextmanager
def own_stdout(*, as_json: bool) -> Generator[TextIO | None]:
    """With `as_json`, the stream for the answer, and nothing else gets to stdout until the end of the block; otherwise None,
    which is stdout to `click.echo`."""
    if not as_json or sys.stdout is None:  # closed, and what has its number now is something else
        yield None
        return
    usual = sys.stdout
    usual.flush()
    with open(os.dup(1), "w", encoding="utf-8", errors=ESCAPED) as stdout:  # no child inherits this one
        os.dup2(2, 1)
        try:
            if _number(usual) == 1:
                yield stdout
            else:  # somebody's who calls us in his process
                with contextlib.redirect_stdout(sys.stderr):
                    yield usual
        finally:
            with contextlib.suppress(OSError):
                usual.flush()
            os.dup2(stdout.fileno(), 1)


def _number(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except OSError:  # it has none
        return None


@contextlib.contextmanager
def for_program(*, as_json: bool) -> Generator[Tell | None]:
    """With `as_json`, what writes a line for a program to `own_stdout`."""
    with own_stdout(as_json=as_json) as stdout:
        yield (lambda facts: tell_program(facts, stdout)) if as_json else None


def tell_program(facts: Mapping[str, object], stdout: TextIO | None = None) -> None:
    """A line of JSON on stdout. Where it cannot be written a warning says so once, and the rest goes nowhere: a member does
    not end, and does not end otherwise, because nobody reads it."""
    to = stdout or sys.stdout
    try:
        click.echo(json_text(facts), file=to)
    except OSError as error:
        import structlog  # it brings asyncio, which the help of a command does not need

        drop_rest((to.fileno(),))
        structlog.get_logger("rocketcrew.run").warning("stdout_not_written", line=facts["event"], error=error.strerror)
