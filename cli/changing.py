"""What commands that change something have in common: --dry-run, --yes, the question, and what was done when they end early.

The rule: every command that changes data, a group or a running supervisor takes --dry-run, which says what would be done and
does nothing, and -y/--yes, so a script may give both to all of them. Of these, a command asks first, on a terminal only, when
it has messages skipped, consumed once more or left out, which no other command undoes. The others never ask.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from typing import Any, ParamSpec, TypeVar

import click

from ..conf.exit_codes import EXIT_FAILURE
from ..remoting.errors import RocketcrewError
from .exit_codes import exit_code, system_in_words
from .interrupts import typed_line
from .json_text import json_text
from .wording import in_words

P = ParamSpec("P")
R = TypeVar("R")


def changes(*, asks: bool) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a command --dry-run (parameter `dry_run`) and -y/--yes (parameter `yes`, of a command that `asks` only)."""
    words = "Do not ask. Without a terminal nobody is asked anyway." if asks else "This command never asks."

    def decorate(command: Callable[P, R]) -> Callable[P, R]:
        command = click.option("-y", "--yes", is_flag=True, expose_value=asks, help=words)(command)
        return click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")(command)

    return decorate


def asks(*, yes: bool) -> bool:
    """Whether there is somebody to ask: who sits at a terminal, and has not said --yes."""
    return not yes and sys.stdin.isatty() and sys.stderr.isatty()


def agrees(question: str, *, yes: bool) -> bool:
    """Ask, if there is somebody to ask. Raises Abort for Ctrl-C."""
    return not asks(yes=yes) or confirms(question, default=False)


def confirms(question: str, *, default: bool) -> bool:
    """As `click.confirm` on stderr, which may lose a Ctrl-C that comes as it begins to read."""
    while True:
        try:
            click.echo(f"{question} [{'Y/n' if default else 'y/N'}]: ", nl=False, err=True)
            line = typed_line(sys.stdin)
        except KeyboardInterrupt:
            raise click.Abort from None
        match line.strip().lower():
            case "y" | "yes":
                return True
            case "n" | "no":
                return False
            case "" if line:
                return default
            case "":
                raise click.Abort
            case _:
                click.echo("Error: invalid input", err=True)


def would(what: str, *, as_json: bool, **facts: Any) -> None:
    """The answer to --dry-run: `what` would be done (a verb first), with `facts` for programs."""
    if as_json:
        click.echo(json_text({"would": what, "done": False, **facts}))
    else:
        click.echo(f"would {what}; nothing was done")


class StoppedError(Exception):
    """Somebody left the debugger by `q`."""


class UnfinishedError(RocketcrewError):
    """Some was done, and then came an error: `exit_code` is that one's."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text, exit_code)
        self.text = text
        self.exit_code = exit_code

    def __str__(self) -> str:
        return self.text


@contextlib.contextmanager
def so_far(said: Callable[[], str]) -> Generator[None]:
    """Report what was done, as `said`, before an error or Ctrl-C ended it; nothing where that is empty. Raises
    UnfinishedError with both texts, and Abort for Ctrl-C."""
    try:
        yield
    except RocketcrewError as error:
        if not (done := said()):
            raise
        raise UnfinishedError(f"{done}: {in_words(error)}", exit_code(error)) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        if not (done := said()):
            raise
        raise UnfinishedError(f"{done}: {system_in_words(error)}", EXIT_FAILURE) from error
    except (KeyboardInterrupt, StoppedError):
        if done := said():
            click.echo(done, err=True)
        raise click.Abort from None
