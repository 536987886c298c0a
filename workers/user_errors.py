"""Errors of the user's code as texts, with the user's own frames and none of ours; and as the failure of a message.

Everything of such an error may be the user's own code too (`__str__`, `__class__`, a property, its metaclass), and may raise
anything, SystemExit too: the message has failed then as it would have, and the worker goes on. Its texts may be of any size,
and are cut before they are copied.

An error may also be one object that is raised for many messages (`GIVE_UP = Retry(-1)` in a module): see `keep_last_raise`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
import textwrap
import traceback
from bdb import BdbQuit
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, cast

from ..remoting.arguments import TEXT, Rule, check, whole
from ..remoting.errors import UsageError
from ..remoting.names import DELAY_LEVEL_MAX
from .api import INT32_OR_LESS, BodyError, Retry, Rollback, SoftTimeLimitExceeded, Suspend
from .failures import DEAD_LETTER_LEVEL, Cause, Failure, asked
from .packets import clip

TRACEBACK_FRAMES_MAX: Final = 30
LEAVES_MAX: Final = 3
"""Errors of a group whose traceback is told, in MESSAGE_CHARS_MAX together."""
RELATED_MAX: Final = 100
"""Errors that one came from, or that are in its group, of which older raises are forgotten."""
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
_INSTALLED: Final = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_STANDARD: Final = frozenset(
    folder + os.sep for folder in (os.path.dirname(os.__file__), *map(sysconfig.get_path, ("stdlib", "platstdlib")))
)
FILES_MAX: Final = 1_000
"""Of which it is remembered where they lie."""


_ASKED: Final[tuple[tuple[tuple[type[BaseException], ...], str, Rule], ...]] = (
    ((Retry, BodyError), "delay_level", whole(DEAD_LETTER_LEVEL, DELAY_LEVEL_MAX)),
    ((Suspend, Rollback), "suspend_ms", INT32_OR_LESS),
    ((Retry, Suspend, Rollback), "reason", TEXT),
)
"""What an exception of ours has that a handler asks by: of which, and what fits."""


class CallTimedOutError(Exception):
    """A call of a coroutine handler was over its time limit and was cancelled."""


def describe_error(error: BaseException) -> str:
    """`TypeName: message (file:line)`, for logs and failure texts. A group is followed by the first error in it.
    The place is the user's, followed by that of the library that raised the error there."""
    keep_last_raise(error)
    first = next(_leaves(error), error)
    texts = [_in_short(error)] if first is error else [_in_short(error), _in_short(first)]
    place = _told_place(first) or _told_place(error)
    return ": ".join(texts) + (f" ({place})" if place else "")


def _told_place(error: BaseException) -> str:
    told = _told_of(error)
    place = _place(error) if told is None else told.place
    if place and told is not None and told.first != place:  # that of a future, say, has lost why it is there
        return f"{place}, first raised at {told.first}"
    return place


def _place(error: BaseException) -> str:
    """`file:line` of the innermost frame that is the user's own, `, in file:line` of the innermost one where that is a
    library's; empty where there is none."""
    entries = [entry for entry in _entries(_trace(error)) if _is_user_s(entry)]
    if _is_quit(error):
        entries = [entry for entry in entries if os.path.basename(_file(entry)) not in ("bdb.py", "pdb.py")]
    if not entries:
        return ""
    libraries = [_library(_file(entry)) for entry in entries]
    # Where the handler is installed too, what lies beside it is the user's own. It may be called by the standard library.
    user_s = "" if "" in libraries else next((each for each in libraries if each not in _STANDARD), "")
    own = next((entry for entry in reversed(entries) if _library(_file(entry)) == user_s), entries[-1])
    return _line_of(own) if own is entries[-1] else f"{_line_of(own)}, in {_line_of(entries[-1])}"


def _line_of(entry: TracebackType) -> str:
    return f"{os.path.basename(_file(entry))}:{entry.tb_lineno}"


@functools.lru_cache(maxsize=FILES_MAX)
def _library(file: str) -> str:
    """The folder of the installed package that it is of, the standard library's, the name of generated code; empty for any
    other file."""
    if file.startswith("<"):
        return file
    for installed in _INSTALLED:
        before, found, inside = file.rpartition(installed)
        if found:
            return before + found + inside.partition(os.sep)[0]
    return next((folder for folder in _STANDARD if file.startswith(folder)), "")


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """What a group has, in its order, or the error itself; of RELATED_MAX errors at most."""
    left = [error]
    for _ in range(RELATED_MAX):
        if not left:
            return
        found = left.pop()
        if issubclass(type(found), BaseExceptionGroup):
            left += reversed(BaseExceptionGroup.__dict__["exceptions"].__get__(found))
        else:
            yield found


def _in_short(error: BaseException) -> str:
    message = _shortened(_text(error))
    return f"{_name(error)}: {message}" if message else _name(error)


def _name(error: BaseException) -> str:
    """Of its class, whatever its metaclass says."""
    name: str = type.__dict__["__name__"].__get__(type(error))
    return name


def _of(error: BaseException, name: str) -> Any:
    """What the error has of its own, whatever a property of that name says."""
    return BaseException.__dict__[name].__get__(error)


def _trace(error: BaseException) -> TracebackType | None:
    trace: TracebackType | None = _of(error, "__traceback__")
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


def _shortened(text: str) -> str:
    return text if len(text) <= MESSAGE_CHARS_MAX else f"{text[: MESSAGE_CHARS_MAX - 1]}…"


def _file(entry: TracebackType) -> str:
    return entry.tb_frame.f_code.co_filename


def _is_user_s(entry: TracebackType) -> bool:
    """Whether it lies neither in this package nor in the import machinery."""
    file = _file(entry)
    return not file.startswith(("<frozen ", _OWN_FOLDER)) and "/importlib/" not in file


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def user_traceback(error: BaseException) -> str:
    """Traceback text of the user's frames (the innermost TRACEBACK_FRAMES_MAX) and the error itself. After that of a group
    those of what is in it, the first LEAVES_MAX."""
    text = _traceback(error)
    if not issubclass(type(error), BaseExceptionGroup):
        return text
    leaves = "".join(
        f"  +---------------- {number} ----------------\n{textwrap.indent(_traceback(leaf), '  | ')}"
        for number, leaf in enumerate(islice(_leaves(error), LEAVES_MAX), 1)
    )
    return text + _shortened(leaves)


def _traceback(error: BaseException) -> str:
    trace: TracebackType | None = None
    with contextlib.suppress(BaseException):  # generated code may have no positions, and the code of a loader runs
        entries = deque((entry for entry in _entries(_trace(error)) if _is_user_s(entry)), maxlen=TRACEBACK_FRAMES_MAX)
        for entry in reversed(entries):  # to look up the lines of all entries takes long
            trace = TracebackType(trace, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
        if frames := traceback.format_list(traceback.extract_tb(trace)):
            return f"Traceback (most recent call last):\n{_innermost(frames)}{_last_lines(error)}"
    return _last_lines(error)


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


class _Told:
    """In an error's `__dict__`: its traceback when it was told of last, where it was raised then, and where it
    was raised when it was told of first. A deep copy of the error and a pickled one have nothing of it; a shallow one shares
    it, and nothing is cut off there."""

    __slots__ = ("first", "place", "trace")

    def __init__(self, trace: TracebackType | None, place: str, first: str) -> None:
        self.trace, self.place, self.first = trace, place, first or place

    def __reduce__(self) -> tuple[type[str], tuple[()]]:
        return str, ()


_TOLD: Final = "_rocketcrew_told"
_DICT: Final[Any] = dict
"""For its own methods: a `__dict__` may be of a class of the user's."""


def keep_last_raise(error: BaseException) -> None:
    """Forget older raises of an object that is raised again, and of those that it came from. Each puts its entries before
    the older ones, and their frames hold the message, its body and the handler's variables: the worker would grow with each
    message, and soon do nothing but go through them."""
    told = _told_of(error)
    if told is not None and told.trace is not None and told.trace is _trace(error):
        return
    with contextlib.suppress(BaseException):  # a `__dict__` may have the user's keys
        for each in related(error):
            known = _told_of(each)
            if known is not None and known.trace is not None:
                _cut_off(each, known.trace)
            told = _Told(_trace(each), _place(each), "" if known is None else known.first)
            _DICT.__setitem__(_of(each, "__dict__"), _TOLD, told)


def _told_of(error: BaseException) -> _Told | None:
    told: object = None
    with contextlib.suppress(BaseException):
        told = _DICT.get(_of(error, "__dict__"), _TOLD)
    return told if type(told) is _Told else None


def _cut_off(error: BaseException, known: TracebackType) -> None:
    """Cut off what was known before. But where we alone have raised it since, as it was returned or is that of several
    messages of a batch, what was known says where the user did."""
    entry, last, by_user = _trace(error), None, False
    while entry is not None and entry is not known:
        by_user = by_user or _is_user_s(entry)
        entry, last = entry.tb_next, entry
    if entry is None or last is None:
        return
    if by_user:
        last.tb_next = None
    else:
        BaseException.__dict__["__traceback__"].__set__(error, known)


def related(error: BaseException) -> Iterator[BaseException]:
    """The error, those that it came from, and those in a group; RELATED_MAX of them at most. No code of theirs runs."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left and len(seen) < RELATED_MAX:
        found = left.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        left += [_of(found, "__cause__"), _of(found, "__context__")]
        if issubclass(type(found), BaseExceptionGroup):
            left += BaseExceptionGroup.__dict__["exceptions"].__get__(found)


def usable(error: BaseException) -> BaseException:
    """What the handler ended with; or where that asks for something that cannot be done, an error that says so.

    The constructors look at what they are given. But a subclass may not call them, and attributes can be set later: then the
    message has failed as any other, as it has where a constructor raises.
    """
    keep_last_raise(error)
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
        return asked(error.delay_level, clip(_shortened(_text(error))))
    return Failure(Cause.TIME_LIMIT if is_time_out(error) else Cause.FAILED, clip(describe_error(error)))
