"""Errors of the user's code as texts, with the user's own frames and none of ours; and as the failure of a message.

Everything of such an error may be the user's own code too (`__str__`, `__class__`, a property, its metaclass), and may raise
anything, SystemExit too: the message has failed then as it would have, and the worker goes on. Its texts may be of any size,
and are cut before they are copied.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from bdb import BdbQuit
from pathlib import Path
from types import TracebackType
from typing import Final, cast

from ..remoting.arguments import TEXT, Rule, check, whole
from ..remoting.errors import UsageError
from ..remoting.names import DELAY_LEVEL_MAX
from .api import INT32_OR_LESS, BodyError, Retry, Rollback, SoftTimeLimitExceeded, Suspend
from .failures import DEAD_LETTER_LEVEL, Cause, Failure, asked
from .packets import clip

TRACEBACK_FRAMES_MAX: Final = 30
NO_TERMINAL: Final = (
    "the debugger had nobody to ask, as a worker has no terminal: debug it under rocketcrew.testing.run, or by"
    " `rocketcrew dlq replay --handler … --pdb`"
)
"""What `breakpoint()` comes to in a worker. Where there is a terminal, nobody needs to be told of the q that he has typed."""
MESSAGE_CHARS_MAX: Final = 10_000
"""Of what an error says, from its beginning."""
FRAMES_CHARS_MAX: Final = 10_000
"""Of its frames, from the innermost one."""
# Not resolved: in a checkout the rooms are links, and the folder behind them holds tests and examples too.
_OWN_FOLDER: Final = str(Path(__file__).parent.parent) + os.sep


_ASKED: Final[tuple[tuple[tuple[type[BaseException], ...], str, Rule], ...]] = (
    ((Retry, BodyError), "delay_level", whole(DEAD_LETTER_LEVEL, DELAY_LEVEL_MAX)),
    ((Suspend, Rollback), "suspend_ms", INT32_OR_LESS),
    ((Retry, Suspend, Rollback), "reason", TEXT),
)
"""What an exception of ours has that a handler asks by: of which, and what fits."""


class CallTimedOutError(Exception):
    """A call of a coroutine handler was over its time limit and was cancelled."""


def describe_error(error: BaseException) -> str:
    """`TypeName: message (file:line)` of the innermost frame that is the user's, for logs and failure texts."""
    text = _in_short(error)
    frames = user_frames(_trace(error))
    if _is_quit(error):
        frames = [frame for frame in frames if Path(frame.filename).name not in ("bdb.py", "pdb.py")]
    if not frames:
        return text
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"


def _in_short(error: BaseException) -> str:
    message = _cut(_text(error))
    return f"{_name(error)}: {message}" if message else _name(error)


def _name(error: BaseException) -> str:
    """Of its class, whatever its metaclass says."""
    name: str = type.__dict__["__name__"].__get__(type(error))
    return name


def _trace(error: BaseException) -> TracebackType | None:
    """Its own, whatever a property of that name says."""
    trace: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(error)
    return trace


def _text(error: BaseException) -> str:
    try:
        return str(error) or (NO_TERMINAL if _is_quit(error) and not _has_terminal() else "")
    except BaseException:  # noqa: BLE001  a broken __str__ is the user's too, and must not end the worker
        return "<str() failed>"


def _is_quit(error: BaseException) -> bool:
    """The debugger was left; whatever a property of the error's says of its class."""
    return issubclass(type(error), BdbQuit)


def _has_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()  # pyright: ignore[reportUnnecessaryComparison]


def _cut(text: str) -> str:
    return text if len(text) <= MESSAGE_CHARS_MAX else f"{text[: MESSAGE_CHARS_MAX - 1]}…"


def user_frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    """The frames of `trace` that lie neither in this package nor in the import machinery, outermost first."""
    return [
        frame
        for frame in traceback.extract_tb(trace)
        if not frame.filename.startswith(("<frozen ", _OWN_FOLDER)) and "/importlib/" not in frame.filename
    ]


def user_traceback(error: BaseException) -> str:
    """Traceback text of the user's frames (the innermost TRACEBACK_FRAMES_MAX) and the error itself."""
    frames = user_frames(_trace(error))[-TRACEBACK_FRAMES_MAX:]
    if not frames:
        return _last_lines(error)
    return f"Traceback (most recent call last):\n{_innermost(traceback.format_list(frames))}{_last_lines(error)}"


def _innermost(frames: list[str]) -> str:
    text = "".join(frames)
    return text if len(text) <= FRAMES_CHARS_MAX else f"…{text[1 - FRAMES_CHARS_MAX :]}"


def _last_lines(error: BaseException) -> str:
    """As Python writes the error, with its notes; in short where that cannot be done, or is too long."""
    if len(_text(error)) <= MESSAGE_CHARS_MAX:  # Python would copy a longer one several times
        with contextlib.suppress(BaseException):  # it reads what may be anything: notes, the line of a SyntaxError
            text = "".join(traceback.format_exception_only(error))
            if len(text) <= MESSAGE_CHARS_MAX:
                return text
    return f"{_in_short(error)}\n"


def usable(error: BaseException) -> BaseException:
    """What the handler ended with; or where that asks for something that cannot be done, an error that says so.

    The constructors look at what they are given. But a subclass may not call them, and attributes can be set later: then the
    message has failed as any other, as it has where a constructor raises.
    """
    what = _name(error)
    try:
        for kinds, name, rule in _ASKED:
            if isinstance(error, kinds):
                if not hasattr(error, name):
                    raise UsageError(f"{what} has no {name}: call super().__init__() in its __init__")
                check(what, {name: getattr(error, name)}, {name: rule})
    except UsageError as wrong:
        return wrong.with_traceback(_trace(error))
    except BaseException as wrong:  # noqa: BLE001  a property of the user's
        return UsageError(f"{what}: {describe_error(wrong)}").with_traceback(_trace(error))
    return error


def is_soft_limit(error: BaseException) -> bool:
    """Also where it was raised in a task of a group."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.subgroup(SoftTimeLimitExceeded) is not None
    return isinstance(error, SoftTimeLimitExceeded)


def is_time_out(error: BaseException) -> bool:
    """The call was stopped at one of its limits."""
    return isinstance(error, CallTimedOutError) or is_soft_limit(error)


def failure_of(error: BaseException) -> Failure:
    """Why the message failed whose handler ended with this."""
    error = usable(error)
    if isinstance(error, (Retry, BodyError)):
        return asked(error.delay_level, clip(_cut(_text(error))))
    return Failure(Cause.TIME_LIMIT if is_time_out(error) else Cause.FAILED, clip(describe_error(error)))
