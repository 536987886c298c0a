"""The loggers of what also runs in a process of the user's, who calls it from a script, a notebook or a test.

A log line must never stop the work: one that cannot be written (its reader has gone, the disk is full, the stream is
closed) is dropped, as Python's own `logging` does, and the caller's call goes on. One of the user's own whose values cannot
be rendered is rendered of plain ones.

Where nobody has said how, an error has a plain traceback: structlog's own shows the locals of each frame, and so the bodies
of the messages that are in hand there.

Our own processes configure structlog (conf/logging.py), and so may the user: then that holds. Where nobody has said by a
`logger_factory` where lines go, structlog prints on standard output, which is the script's own answer: here it is standard
error. A level, processors or `capture_logs()` alone say nothing of that.

A worker is a process of ours that runs the user's code: there our loggers keep our configuration (`keep_configuration`).
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, Final, cast

import structlog

from ..remoting.log_values import Rendering

_UNWRITABLE = (OSError, ValueError)
"""What streams raise; ValueError when they are closed."""


_BUILTIN: Final = vars(import_module("structlog._config"))
_DEFAULT_FACTORY: object = _BUILTIN.get("_BUILTIN_DEFAULT_LOGGER_FACTORY")
"""The one that holds while nobody has given another: structlog tells that nowhere else, as `is_configured()` is true after a
level was set. It is asked first all the same, should a structlog have another name for this."""


_SHOWS_LOCALS: Any = (_BUILTIN.get("_BUILTIN_DEFAULT_PROCESSORS") or [None])[-1]
"""What renders a line while nobody has given another. The user may change it, as `ConsoleRenderer.get_active()` gives it to
him."""
_FORMATTERS: Final = [vars(structlog.dev).get(f"default_{kind}exception_formatter") for kind in ("", "monochrome_")]
"""Of tracebacks, until he does; the second where he says no colours."""
_FORMATTER: Final = "_exception_formatter"


def _rendering(each: Any) -> Any:
    """A processor as it is for our lines."""
    if each is not _SHOWS_LOCALS or not any(getattr(each, _FORMATTER, None) is one for one in _FORMATTERS):
        return each
    plain = copy.copy(each)
    vars(plain)[_FORMATTER] = structlog.dev.plain_traceback
    return plain


class _Processors:
    """A configured list, as it is when a line is written: `capture_logs()` changes the list itself, also for loggers that
    have been bound before."""

    def __init__(self, configured: list[Any]) -> None:
        self._configured = configured

    def __iter__(self) -> Iterator[Any]:
        return iter([*map(_rendering, [*self._configured])])  # another thread may be about to change it


_kept: dict[str, Any] = {}
"""The configuration of our loggers; empty where that of structlog holds for them."""


def keep_configuration() -> None:
    """Our loggers go on with structlog's configuration of now. What a handler's code configures later is for its own: a
    processor that raises, or a wrapper that wants an event loop, would end the worker at its next line."""
    found = structlog.get_config()
    _kept.update(found, processors=[*found["processors"]])  # a copy: `capture_logs()` changes the list itself


_UNRENDERED: Final = Rendering(
    structlog.DropEvent,
    structlog.processors.add_log_level,
    structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
)
"""As structlog renders where nobody has said how."""


class _Sink:
    """What structlog calls a logger. Which one it is, and which stream, is asked for with each line: loggers are made when a
    module is imported, and configured afterwards."""

    def __init__(self, name: str, kept: Mapping[str, Any]) -> None:
        self._name = name
        self._kept = kept

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._logger(), method)
        if not callable(found):
            return found

        if method == "debug" and not self._kept and not structlog.is_configured():
            return structlog.ReturnLogger().debug  # nobody has asked for all that structlog would show

        def write(*args: Any, **keys: Any) -> Any:
            try:
                return found(*args, **keys)
            except _UNWRITABLE:
                return None
            except TypeError:
                if args:
                    raise
            # Nothing has rendered it: `capture_logs()` in another thread has emptied the list, and is about to fill it.
            with suppress(TypeError, *_UNWRITABLE):
                return found(_UNRENDERED(None, method, keys))

        return write

    def _logger(self) -> Any:
        factory = (self._kept or structlog.get_config())["logger_factory"]
        if not self._kept and (factory is _DEFAULT_FACTORY or not structlog.is_configured()):
            return structlog.ReturnLogger() if sys.stderr is None else structlog.PrintLogger(sys.stderr)
        try:
            return factory(self._name)
        except _UNWRITABLE:  # it opens a file
            return structlog.ReturnLogger()


def _bound(kept: Mapping[str, Any], logger: Any, processors: Any, context: Any) -> Any:
    """The logger that writes one line, as it is configured when the line is written."""
    del processors
    config = kept or structlog.get_config()
    found = cast("list[Any]", _Processors(config["processors"]))
    return config["wrapper_class"](logger, processors=found, context=config["context_class"](context))


def get_logger(name: str = "rocketcrew") -> Any:
    """As structlog's, and no line of it is on standard output unless somebody has said so."""
    bind: Any = partial(_bound, _kept)
    return structlog.wrap_logger(_Sink(name, _kept), wrapper_class=bind, context_class=dict)


class _UsersProcessors:
    """Those that are configured when a line is written; the last one, if any, renders it."""

    def __iter__(self) -> Iterator[Any]:
        processors = [*structlog.get_config()["processors"]]  # another thread may be about to change it
        return iter((*processors[:-1], *(Rendering(structlog.DropEvent, last) for last in processors[-1:])))


def users_logger(name: str) -> Any:
    """The same, one of the user's own: what he configures holds for it in a worker, too."""
    return structlog.wrap_logger(_Sink(name, {}), processors=cast("list[Any]", _UsersProcessors()))
