"""The one place where an error becomes a message and an exit code.

Commands raise; nothing else in this room catches errors in order to print them. What rocketcrew raises on purpose is told
without a traceback, because its text says what is wrong and what to do. Anything else is a fault of ours, and keeps its
traceback: that is what a report needs. Where `log.format` is "json" and known to be, what a service says is one object in one
line, as its log lines are: collectors take each line for itself.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import sys
import traceback
from collections.abc import Callable
from typing import Final

import click

from ..conf.current_folder import current_folder_named
from ..conf.exit_codes import (
    EXIT_FAILURE,
    EXIT_FINE,
    EXIT_FORCED,
    EXIT_HANDLER,
    EXIT_INTERRUPTED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
)
from ..conf.hiding import hidden_module
from ..conf.limits import is_no_thread, remedy_of, used_up, with_remedy
from ..remoting.errors import RocketcrewError, UnreachableError, UsageError
from .patient_output import drop_rest
from .tables import seen
from .wording import in_words

# Errors of rooms that must not be imported for `--help`, by their full name.
BY_NAME: Final = {
    "rocketcrew.workers.loading.HandlerLoadError": EXIT_HANDLER,
    "rocketcrew.supervisor.pool.child.HandlerError": EXIT_HANDLER,
}


SERVICES: Final = frozenset({"run", "dev", "broker", "load"})
"""Commands whose standard error is a log. The others answer somebody who waits, in words."""
NO_TEMPORARY_FOLDER: Final = "No usable temporary directory found"
"""How the words of Python's `tempfile` begin, whoever asks it: libraries do when they are imported."""


class ForcedStopError(RocketcrewError):
    """A second signal, or the end of a deadline, cut the work short."""

    exit_code = EXIT_FORCED


class NotStartedError(RocketcrewError):
    """`run --check` has found faults. `exit_code` says what may pass by itself (checkups.check_exit_code)."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code

    def __str__(self) -> str:
        return "nothing was started, because of the faults above; without --check it would be"


class Said:
    """How this process says on stderr what failed: in words, until it is known that its log is JSON."""

    def __init__(self) -> None:
        self._service = ""
        self._as_json = False

    def begin(self, command: str, log_format: object) -> None:
        """It is this command; `log_format` as far as it is known, in whatever case the settings accept (conf/rules.py)."""
        self._service = command if command in SERVICES else ""
        self._as_json = isinstance(log_format, str) and log_format.strip().lower() == "json"

    @property
    def objects(self) -> bool:
        return self._as_json and bool(self._service)

    def failed(self, code: int, message: str, user_traceback: object = "") -> int:
        """Say why the command ends with `code`, which is returned."""
        if self.objects:
            more = {"exception": user_traceback} if user_traceback else {}
            self.line("error", "command_failed", error=message, exit_code=code, **more)
        else:
            tell(message, user_traceback)
        return code

    def line(self, level: str, event: str, **keys: object) -> None:
        """One object, with the keys that log lines have."""
        import json  # the help of a command has none
        from datetime import UTC, datetime

        at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        line = {**keys, "event": event, "level": level, "process": self._service, "timestamp": at}
        click.echo(json.dumps(line, default=str), err=True)
        sys.stderr.flush()


def exit_code(error: BaseException) -> int:
    """The exit code of `error`: its own attribute `exit_code`, else by class, else 1."""
    own = getattr(error, "exit_code", None)
    if isinstance(own, int):
        return own
    for kind in type(error).__mro__:
        code = BY_NAME.get(f"{kind.__module__}.{kind.__qualname__}")
        if code is not None:
            return code
    if isinstance(error, UnreachableError):
        return EXIT_UNREACHABLE
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILURE


def guarded(command: Callable[[], object], said: Said | None = None) -> int:
    """Run `command`; say its error on stderr and return the exit code. Only SystemExit passes through."""
    said = said or Said()
    try:
        with current_folder_named():
            result = command()
    except click.exceptions.Exit as asked:
        return asked.exit_code
    except click.ClickException as error:
        if said.objects:
            return said.failed(error.exit_code, error.format_message())
        error.show()  # and how it is used
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return said.failed(EXIT_INTERRUPTED, "interrupted")
    except RocketcrewError as error:
        words, remedy = in_words(error), remedy_of(error)
        words = f"{words} ({remedy})" if remedy and remedy not in words else words
        return said.failed(exit_code(error), words, getattr(error, "traceback", ""))
    except BrokenPipeError:
        # `rocketcrew lag | head`: the reader has what it wanted. Nothing may be flushed into the pipe at exit.
        drop_rest((1,))
        return EXIT_FAILURE
    except OSError as error:
        text = error.strerror or f"{error}"
        if text.startswith(NO_TEMPORARY_FOLDER):
            remedy = "mount one at /tmp, or set TMPDIR to a folder that this user may write and that has room"
            return said.failed(_code_without_temporary_folder(text), f"{text}: {remedy}")
        return said.failed(EXIT_FAILURE, system_in_words(error))
    except Exception as error:  # noqa: BLE001  the last seam: a fault of ours ends with its traceback and 1
        if is_no_thread(error):
            return said.failed(EXIT_FAILURE, with_remedy(error))
        hidden, frames = hidden_module(), traceback.format_exc()
        if hidden:
            return said.failed(EXIT_USAGE, hidden, frames)
        return said.failed(EXIT_FAILURE, "this is a fault in rocketcrew, not in how you called it", frames)
    # With standalone_mode off, click hands the code of `context.exit(code)` back as the result.
    return result if isinstance(result, int) and not isinstance(result, bool) else EXIT_FINE


def _code_without_temporary_folder(named: str) -> int:
    """A folder that may be written is full, and that may pass."""
    return EXIT_FAILURE if any(os.access(folder, os.W_OK) for folder in re.findall("'(.*?)'", named)) else EXIT_USAGE


def system_in_words(error: OSError) -> str:
    """What the system refused, of which file, and the limit of this process that it met."""
    return (error.strerror or f"{error}") + (f": {error.filename}" if error.filename else "") + _limit_of(error)


def _limit_of(error: OSError) -> str:
    """The limit of this process that it has met, where one is known; what is only memory has no file's name."""
    if remedy := used_up(error):
        return f" ({remedy})"
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if error.errno != errno.EFBIG or limit == resource.RLIM_INFINITY:
        return ""
    return (
        f" (no file and no shared memory may be larger than {limit} bytes here: raise `ulimit -f`, or LimitFSIZE of"
        " systemd)"
    )


def tell(message: str, user_traceback: object = "") -> None:
    """One message on stderr; a handler's own frames stand above it, as Python prints them."""
    if isinstance(user_traceback, str) and user_traceback.strip():
        click.echo(seen(user_traceback.rstrip("\n"), err=True), err=True)
    click.echo(seen(f"rocketcrew: {message}", err=True), err=True)
    sys.stderr.flush()
