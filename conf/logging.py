"""The log of every process: one event name and its keys a line, for people on a terminal and as JSON otherwise.

Each process calls `set_up` once, before it logs, with what tells it from the others (`process="worker"`, its id, the
group): those keys stand on every line, also on those of libraries that log through Python's own `logging`. Of these the root
logger's level lets warnings pass, or what a handler's module has set it to, down to `log.level`.

Loggers are not cached on first use. A cached one would keep the stream that was there when it was first used, which is
wrong in a test that runs a command in-process. What is logged often should hold the result of `get_logger().bind(...)`,
which costs nothing to look up; that is also where the keys of a queue or a worker are bound once.

A log line must never stop the work: a stream that is closed, or whose reader has gone, drops the line. What cannot be
rendered is rendered as far as possible (remoting/log_values.py). Only a call that structlog's loggers do not take raises, as
with theirs: `event=` beside the text, a level of one's own.

A line is one write to the descriptor, however long it is, so that those of several processes stay apart: Python's own streams
would write a long one in pieces.

With `log.file` the processes of a crew write to one file (`LogFile`), which may be rotated under them.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import os
import re
import sys
import threading
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Generator, Mapping
from importlib import import_module
from types import FunctionType
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor

from ..remoting.errors import UsageError
from ..remoting.log_values import Rendering, interpolated, plain, shown, text
from .repeats import Outages, Repeats
from .visible import visible

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


OF_OUTAGES = frozenset(
    {
        "name_server_failed", "pull_failed", "heartbeat_failed", "route_not_renewed", "connection_closed",
        "rebalance_look_up_failed", "send_back_failed", "resend_failed", "lock_failed", "unlock_failed", "pop_failed",
        "ack_failed", "search_offset_failed", "address_server_failed", "commit_failed",
    }
)  # fmt: skip
"""Events that come many times a second while a broker or name server is away, of every queue and connection."""
REFUSED = " was refused: "
"""In the error of a server that answers (BrokerError): that is no outage, and counted by itself."""

OF_MESSAGES = frozenset(
    {
        "filter_failed", "key_function_failed", "consume_hook_failed", "send_hook_failed", "taken_as_success",
        "invisible_time_not_changed", "traces_not_sent", "drain_deadline", "drain_cut_short",
        "pop_refused", "request_failed", "journal_write_failed", "local_offsets_not_written",
        "send_back_refused", "dead_letter_refused",
    }
)  # fmt: skip
"""Events of a fault that is not a message's own and that each message meets again: a filter, a hook, a full disk. What fails
for its own reasons (`message_failed`, `message_dead_lettered`) has a line each, with its id."""


USERS_LOGGER = "rocketcrew.handler"
"""The name of the one that handlers are given (`rocketcrew.logger()`): its lines are the user's."""
_NUMBER = re.compile(r"\d+")
ERROR_MAX = 200
"""Characters of an error that tell one fault from another."""

OTHERS_S_MAX = 1.0
"""For so long a line waits for those of other threads; then it is written into the middle of one."""

FAULTS_MAX = 50
_faults: deque[dict[str, object]] = deque(maxlen=FAULTS_MAX)


def recent_faults() -> list[dict[str, object]]:
    """The newest warnings and errors of this process, the oldest first: at most FAULTS_MAX, with their keys."""
    return list(_faults)


class LineWriter:
    """What structlog calls a logger: writes finished lines to one stream."""

    is_ours = True
    """It is that of our own loggers, not of the user's."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._descriptor = _descriptor_of(stream)

    def msg(self, message: str) -> None:
        """Write one line; a stream that cannot be written to drops it."""
        with contextlib.suppress(OSError, ValueError):
            if self._descriptor is None:
                self._stream.write(message + "\n")
            self._stream.flush()  # what others have left in it comes first; ValueError where it was closed
            if self._descriptor is not None:
                self._descriptor.write(message + "\n")

    debug = info = warning = error = critical = exception = fatal = log = msg


class _Descriptor:
    """A descriptor that several processes write lines to, each in one write where it takes all of it at once.

    One that takes a line in parts, as a pipe does that is full, lets go of it between them. Threads of this process wait for
    each other, but not for ever: a signal's handler may log, and whoever it keeps waiting may be who reads the pipe.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._cut = False
        """It took only a part of the last line, as far as is known: the next one begins a line all the same. So does a
        signal's handler that logs between the parts of one."""
        self._locks: dict[int, threading.RLock] = {}
        """By process: what a thread of its parent held when it was forked nobody gives back in a child."""

    def write(self, text: str) -> int:
        """Append whole lines. Raises OSError, as when the disk is full."""
        lock = self._locks.setdefault(os.getpid(), threading.RLock())
        try:
            lock.acquire(timeout=OTHERS_S_MAX)  # in the `try`: a signal's handler may raise as soon as it is held
            self._write(text)
        finally:
            with contextlib.suppress(RuntimeError):  # not held: it took too long
                lock.release()
        return len(text)

    def _write(self, text: str) -> None:
        data, written = self._encoded(("\n" if self._cut else "") + text), 0
        cut_before, self._cut = self._cut, True  # what a signal's handler raises says nothing of what was written
        cut = True
        try:
            while written < len(data):
                written += os.write(self._number, data[written:] if written else data)
            cut = False
        except OSError as error:
            # Without a number it is an error of a signal's handler, as TimeoutError.
            cut = cut_before or written > 0 or not error.errno
            raise
        finally:
            self._cut = cut

    def _encoded(self, text: str) -> bytes:
        return text.encode("utf-8", "backslashreplace")


class _StreamDescriptor(_Descriptor):
    """That of one of Python's own streams, whose encoding may be changed at any time (`reconfigure`)."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(stream.fileno())
        self._stream = stream

    def _encoded(self, text: str) -> bytes:
        return text.encode(self._stream.encoding, self._stream.errors or "strict")


def _descriptor_of(stream: TextIO) -> _Descriptor | None:
    """None for what has none, as in tests, and for what does something else with a line than to write it there: a notebook's
    stream, a tee, a file that is compressed."""
    if isinstance(stream, io.TextIOWrapper):
        wrapper = cast("io.TextIOWrapper", stream)
        with contextlib.suppress(OSError, ValueError):
            plain = isinstance(wrapper.buffer, io.BufferedWriter | io.BufferedRandom | io.FileIO)
            if plain and wrapper.write == io.TextIOWrapper.write.__get__(wrapper):
                return _StreamDescriptor(wrapper)
    return None


class LogFile(_Descriptor):
    """A log file that several processes append to, and that is rotated in either of logrotate's ways.

    Renamed, or deleted: the next line goes to a new file of that name, and no signal is needed; as long as that cannot be
    made, lines go on into the old one. Copied and cut short (`copytruncate`): the next line is at the new end. The
    file is not locked, so no process waits for another.
    """

    def __init__(self, path: str) -> None:
        """`path` counts from the current folder, also when the process leaves that. Raises UsageError."""
        self._path = os.path.abspath(path)
        try:
            super().__init__(self._open())
        except OSError as error:
            raise UsageError(
                f"log.file = {path!r} cannot be written ({error.strerror}): name a file in a folder that is there and that"
                " this user may write to, or leave log.file empty to log to stderr"
            ) from error
        self._id = self._id_of_open()

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        """As above, to the file that has the name now."""
        self._follow()
        return super().write(text)

    def flush(self) -> None:
        """Nothing is kept back."""

    def close(self) -> None:
        """Nothing is written after this: who still has it gets OSError, and not the file that has the number by then."""
        number, self._number = self._number, -1
        os.close(number)

    def _follow(self) -> None:
        """Take the file that has the name now, under the same descriptor: a thread that writes meanwhile has one too."""
        if self._number < 0:
            return
        with contextlib.suppress(OSError):
            try:
                found = os.stat(self._path)
                if (found.st_dev, found.st_ino) == self._id:
                    return
            except FileNotFoundError:
                pass
            number = self._open()
            os.dup2(number, self._number, inheritable=False)
            os.close(number)
            self._id, self._cut = self._id_of_open(), False

    def _open(self) -> int:
        # Of a FIFO the opening would wait for a reader, and a write for one that reads; of a file nothing waits anyhow.
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY, 0o666)

    def _id_of_open(self) -> tuple[int, int]:
        found = os.fstat(self._number)
        return found.st_dev, found.st_ino


def log_stream(file: str, otherwise: TextIO) -> TextIO:
    """Where a process logs to: `log.file`, or `otherwise` where that is empty. Raises UsageError."""
    return cast("TextIO", LogFile(file)) if file else otherwise


def log_of(file: str) -> TextIO:
    """The same for a process that was started by another: stderr also where the file cannot be opened any more, for what it
    does is worth more than its log."""
    try:
        return log_stream(file, sys.stderr)
    except UsageError:
        return sys.stderr


class _LineHandler(logging.Handler):
    """Python's own `logging` through the same writer: libraries, asyncio, warnings."""

    def __init__(self, writer: LineWriter, users_level: int) -> None:
        super().__init__()
        self._writer = writer
        self.users_level = users_level
        """That of the root logger before: NOTSET where it was Python's own."""

    def emit(self, record: logging.LogRecord) -> None:
        # Unlike structlog's own loggers this one does not expect DropEvent, which is no Exception.
        with contextlib.suppress(Exception, structlog.DropEvent):
            try:
                line = self.format(record)
            except Exception:  # noqa: BLE001  whatever a library's format does
                # A library's `log("%d", "text")` is its fault, and no reason for a traceback in the middle of ours.
                record.msg, record.args = interpolated(record.msg, record.args or ()), None
                line = self.format(record)
            self._writer.msg(line)


_own_keys: dict[str, object] = {}


def _with_own_keys(_logger: object, _name: str, event: EventDict) -> EventDict:
    """A processor that puts the process's own keys on each line, without covering keys of the event. A logger that was bound
    in the forkserver, while it imported the handler's module, has the worker's keys in a worker."""
    for key, value in _own_keys.items():
        event.setdefault(key, value)
    return event


class _Counted:
    """A processor that lets the first of a repeated event pass, then some, each with the number `times` that it stands for.

    Outages are counted together (`repeats.Outages`), those of each level apart: a line that stands for several events names
    them in `counts`. The same fault that messages meet is the same event of the same topic and hook, with the same error but
    for its numbers: two filters have a line each. What comes after the last line that passed is in no `times`.
    Only lines of ours are looked at: an event of the user's may have the same name, and each of them counts.
    """

    def __init__(self) -> None:
        self._repeats = Repeats()
        self._outages = defaultdict[str, Outages](Outages)

    def __call__(self, logger: object, name: str, event: EventDict) -> EventDict:
        what = text(event.get("event"))
        if not getattr(logger, "is_ours", False) or (what not in OF_OUTAGES and what not in OF_MESSAGES):
            return event
        error, now = text(event.get("error", "")), time.monotonic()
        server = text(event.get("broker") or event.get("address") or event.get("url") or "")
        if what in OF_OUTAGES and REFUSED not in error:
            counts = self._outages[name].came(what, server, now)
            times = sum(counts.values())
            more = {"counts": dict(counts)} if len(counts) > 1 else {}
        else:
            fault = (what, text(event.get("topic")), text(event.get("hook")), _NUMBER.sub("", error)[:ERROR_MAX])
            times = self._repeats.came(fault if what in OF_MESSAGES else (*fault, server), now)
            more = {}
        if not times:
            raise structlog.DropEvent
        return event if times == 1 else {**event, "times": times, **more}


def _with_trace(_logger: object, _name: str, event: EventDict) -> EventDict:
    """A processor that adds the id of OpenTelemetry's current span, where this process has imported OpenTelemetry."""
    api = sys.modules.get("opentelemetry.trace")
    if api is not None and "trace_id" not in event:
        context = api.get_current_span().get_span_context()
        if context.is_valid:
            event["trace_id"] = f"{context.trace_id:032x}"
    return event


class _Remembered:
    """A processor that keeps warnings and errors for those who ask later: of their values what is plain, as an error would
    keep alive all that its frames had."""

    def __call__(self, logger: object, name: str, event: EventDict) -> EventDict:
        if event.get("level") in ("warning", "error", "critical"):
            _faults.append({text(key): plain(value) for key, value in event.items() if key != "exc_info"})
        return event


class _Shown:
    """What ConsoleRenderer writes as it is, for of what is no text it writes the repr."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


_WITHOUT_REPR = frozenset({"event", "exception", "level", "logger", "logger_name", "stack", "timestamp"})
"""Keys whose values ConsoleRenderer writes as they are; of other texts it writes the repr where they have a blank."""
_HARMLESS = frozenset({int, float, bool, type(None)})


def _visible_event(_logger: object, _name: str, event: EventDict) -> EventDict:
    """A processor for lines that people read: what a terminal would obey is shown, and escaped once."""
    return {
        visible(key): value
        if type(value) in _HARMLESS or (type(value) is str and value.isprintable())
        else _visible_value(key, value)
        for key, value in event.items()
    }


def _visible_value(key: str, value: object) -> object:
    if key in _WITHOUT_REPR:
        return visible(str(value))
    if isinstance(value, str):
        return value if visible(value) == value else _Shown(repr(value))
    return _Shown(visible(shown(value)))


def set_up(
    format: str, level: str, stream: TextIO, process: str = "supervisor", *,
    colors: bool | None = None, for_imports: bool = False, **bound: object,
) -> None:  # fmt: skip
    """Set up logging for this process. May be called again: the last call holds.

    `format` is "human", "json" or "auto" (human when `stream` is a terminal), `level` one of LEVELS. `colors` None means
    colours on a terminal only. `process` and `bound` stand on every line, but for what is empty. `for_imports`: the
    user's modules are imported next, and find the root logger as Python makes it. Raises ValueError for another word.
    """
    if format not in ("auto", "human", "json") or level not in LEVELS:
        raise ValueError(f"log format {format!r} or level {level!r} is none that is known")
    terminal = _is_terminal(stream)
    human = format == "human" or (format == "auto" and terminal)
    _own_keys.clear()
    _own_keys.update({"process": process, **{key: value for key, value in bound.items() if value != ""}})
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        _with_own_keys,
        _with_trace,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f" if human else "iso", utc=not human),
        structlog.processors.StackInfoRenderer(),
    ]
    if process != "worker":  # nobody asks there, and a line of the handler's may be long
        shared.append(_Remembered())
    if human:
        render = Rendering(
            structlog.DropEvent,
            structlog.processors.format_exc_info,
            _visible_event,
            structlog.dev.ConsoleRenderer(
                colors=terminal if colors is None else colors,
                exception_formatter=structlog.dev.plain_traceback,
                pad_event_to=28,
            ),
        )
    else:
        as_json = structlog.processors.JSONRenderer(default=str, allow_nan=False)
        render = Rendering(structlog.DropEvent, structlog.processors.format_exc_info, as_json)
    writer = LineWriter(stream)
    users = copy.copy(writer)  # at the same descriptor
    users.is_ours = False
    structlog.configure(
        processors=[_Counted(), *shared, render],
        wrapper_class=_logger_class(LEVELS[level]),
        logger_factory=lambda *name: writer if name and _is_ours(name[0]) else users,
        cache_logger_on_first_use=False,
    )
    _take_over_logging(shared, render, writer, LEVELS[level], for_imports=for_imports)


@contextlib.contextmanager
def logging_given_back() -> Generator[None]:
    """For a process that is not ours: what `set_up` changes in it meanwhile is as before in the end."""
    root, warned = logging.getLogger(), logging.getLogger("py.warnings")
    loggers = {logger: (logger.level, list(logger.handlers)) for logger in (root, warned)}
    last_resort, shows_warning, own_keys = logging.lastResort, warnings.showwarning, dict(_own_keys)
    configured = structlog.get_config() if structlog.is_configured() else None
    try:
        yield
    finally:
        for logger, (level, handlers) in loggers.items():
            logger.setLevel(level)
            kept = [each for each in logger.handlers if each not in handlers and not isinstance(each, _LineHandler)]
            logger.handlers[:] = handlers + kept  # what the user's own code has added stays
        logging.lastResort = last_resort
        if warnings.showwarning is not shows_warning:
            logging.captureWarnings(False)
        _own_keys.clear()
        _own_keys.update(own_keys)
        if configured is None:
            structlog.reset_defaults()
        else:
            structlog.configure(**configured)


def _is_ours(name: object) -> bool:
    found = text(name)
    return found != USERS_LOGGER and found.split(".")[0] == "rocketcrew"


def _logger_class(level: int) -> Any:
    """Structlog's, whose methods take arguments that their text does not fit, as Python's own loggers do.

    They are its own functions with another interpolation: one of ours around each would be the place of the line for a
    user's CallsiteParameterAdder, and the end of the stack for `stack_info`.
    """
    usual = structlog.make_filtering_bound_logger(level)
    names = {**vars(import_module("structlog._native")), "_maybe_interpolate": _interpolated}
    methods = {
        name: FunctionType(each.__code__, names, each.__name__, each.__defaults__, each.__closure__)
        for name, each in vars(usual).items()
        if isinstance(each, FunctionType)
    }
    return type(usual.__name__, (usual,), methods)


def _interpolated(event: object, args: tuple[object, ...]) -> object:
    """What a method of a logger is given: of a single argument that is a mapping the text takes the values by name."""
    if not args:
        return event
    if len(args) == 1 and isinstance(args[0], Mapping) and args[0]:
        return interpolated(event, cast("Mapping[str, object]", args[0]))
    return interpolated(event, args)


def set_up_as(log: Mapping[str, str], process: str, *, for_imports: bool = False) -> None:
    """`set_up` for a process that was started with what settings.py `logs_as` says."""
    set_up(log["format"], log["level"], log_of(log["file"]), process, for_imports=for_imports, group=log["group"])


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def _take_over_logging(
    shared: list[Processor], render: Processor, writer: LineWriter, level: int, *, for_imports: bool
) -> None:
    root, warned = logging.getLogger(), logging.getLogger("py.warnings")
    old = [handler for handler in root.handlers if isinstance(handler, _LineHandler)]
    users_level = old[0].users_level if old else logging.NOTSET if root.level == logging.WARNING else root.level
    handler = _LineHandler(writer, users_level)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    for logger in (root, warned):
        for each in [each for each in logger.handlers if isinstance(each, _LineHandler)]:
            logger.removeHandler(each)
    logging.captureWarnings(True)
    if for_imports:
        # Where the root logger has a handler `logging.basicConfig` does nothing, and a level that it is given would be lost.
        # The logger of warnings gets one of Python's own, which writes nothing, unless it has another.
        handler.setLevel(level)
        logging.lastResort = handler
        warned.addHandler(handler)
        return
    root.addHandler(handler)
    # Libraries tell at INFO what only their authors want to know (py4j: each command). Who has set a level wants to hear it.
    usual = max(level, logging.WARNING) if level > logging.DEBUG else logging.INFO
    root.setLevel(max(users_level, level) if users_level else usual)
