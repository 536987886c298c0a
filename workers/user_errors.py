"""Errors of the user's code as texts, with the user's own frames and none of ours; and as the failure of a message."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

from .api import BodyError, Retry, SoftTimeLimitExceeded
from .failures import Cause, Failure, asked
from .packets import clip

TRACEBACK_FRAMES_MAX: Final = 30
# Not resolved: in a checkout the rooms are links, and the folder behind them holds tests and examples too.
_OWN_FOLDER: Final = str(Path(__file__).parent.parent) + os.sep


class CallTimedOutError(Exception):
    """A call of a coroutine handler was over its time limit and was cancelled."""


def describe_error(error: BaseException) -> str:
    """`TypeName: message (file:line)` of the innermost frame that is the user's, for logs and failure texts."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  a broken __str__ is the user's too, and must not end the worker
        message = "<str() failed>"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    frames = user_frames(error.__traceback__)
    if not frames:
        return text
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"


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
    return "".join([*head, *traceback.format_exception_only(error)])


def failure_of(error: BaseException) -> Failure:
    """Why the message failed whose handler ended with this."""
    if isinstance(error, (Retry, BodyError)):
        return asked(error.delay_level, clip(str(error)))
    timed_out = isinstance(error, (SoftTimeLimitExceeded, CallTimedOutError))
    return Failure(Cause.TIME_LIMIT if timed_out else Cause.FAILED, clip(describe_error(error)))
