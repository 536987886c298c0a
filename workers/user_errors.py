"""Errors of the user's code as texts, with the user's own frames and none of ours; and as the failure of a message."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

from ..conf.formats import DELAY_LEVEL_MAX
from ..remoting.arguments import TEXT, Rule, check, whole
from ..remoting.errors import UsageError
from .api import INT32_OR_LESS, BodyError, Retry, Rollback, SoftTimeLimitExceeded, Suspend
from .failures import DEAD_LETTER_LEVEL, Cause, Failure, asked
from .packets import clip

TRACEBACK_FRAMES_MAX: Final = 30
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
    message = _text(error)
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    frames = user_frames(error.__traceback__)
    if not frames:
        return text
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  a broken __str__ is the user's too, and must not end the worker
        return "<str() failed>"


def user_frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    """The frames of `trace` that lie neither in this package nor in the import machinery, outermost first."""
    return [
        frame
        for frame in traceback.extract_tb(trace)
        if not frame.filename.startswith(("<frozen ", _OWN_FOLDER)) and "/importlib/" not in frame.filename
    ]


def user_traceback(error: BaseException) -> str:
    """Traceback text of the user's frames (the innermost TRACEBACK_FRAMES_MAX) and the error itself."""
    frames = user_frames(error.__traceback__)[-TRACEBACK_FRAMES_MAX:]
    head = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    try:
        last = traceback.format_exception_only(error)
    except Exception:  # noqa: BLE001  it reads attributes that may be anything: of a SyntaxError that a handler made, its notes
        last = [f"{type(error).__name__}: {_text(error)}\n"]
    return "".join([*head, *last])


def usable(error: BaseException) -> BaseException:
    """What the handler ended with; or where that asks for something that cannot be done, an error that says so.

    The constructors look at what they are given. But a subclass may not call them, and attributes can be set later: then the
    message has failed as any other, as it has where a constructor raises.
    """
    what = type(error).__name__
    try:
        for kinds, name, rule in _ASKED:
            if isinstance(error, kinds):
                if not hasattr(error, name):
                    raise UsageError(f"{what} has no {name}: call super().__init__() in its __init__")
                check(what, {name: getattr(error, name)}, {name: rule})
    except UsageError as wrong:
        return wrong.with_traceback(error.__traceback__)
    except Exception as wrong:  # noqa: BLE001  a property of the user's
        return UsageError(f"{what}: {describe_error(wrong)}").with_traceback(error.__traceback__)
    return error


def failure_of(error: BaseException) -> Failure:
    """Why the message failed whose handler ended with this."""
    error = usable(error)
    if isinstance(error, (Retry, BodyError)):
        return asked(error.delay_level, clip(_text(error)))
    timed_out = isinstance(error, (SoftTimeLimitExceeded, CallTimedOutError))
    return Failure(Cause.TIME_LIMIT if timed_out else Cause.FAILED, clip(describe_error(error)))
