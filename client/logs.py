"""The loggers of what also runs in a process of the user's, who calls it from a script, a notebook or a test.

A log line must never stop the work: one that cannot be written (its reader has gone, the disk is full, the stream is
closed) is dropped, as Python's own `logging` does, and the caller's call goes on.

Our own processes configure structlog (conf/logging.py), and so may the user: then that holds. Where nobody has said by a
`logger_factory` where lines go, structlog prints on standard output, which is the script's own answer: here it is standard
error. A level, processors or `capture_logs()` alone say nothing of that.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import structlog

_UNWRITABLE = (OSError, ValueError)
"""What streams raise; ValueError when they are closed."""


_DEFAULT_FACTORY: object = vars(import_module("structlog._config")).get("_BUILTIN_DEFAULT_LOGGER_FACTORY")
"""The one that holds while nobody has given another: structlog tells that nowhere else, as `is_configured()` is true after a
level was set. It is asked first all the same, should a structlog have another name for this."""


class _Sink:
    """What structlog calls a logger. Which one it is, and which stream, is asked for with each line: loggers are made when a
    module is imported, and configured afterwards."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._logger(), method)
        if not callable(found):
            return found

        if method == "debug" and not structlog.is_configured():
            return structlog.ReturnLogger().debug  # nobody has asked for all that structlog would show

        def write(*args: Any, **keys: Any) -> Any:
            try:
                return found(*args, **keys)
            except _UNWRITABLE:
                return None

        return write

    def _logger(self) -> Any:
        factory = structlog.get_config()["logger_factory"]
        if factory is _DEFAULT_FACTORY or not structlog.is_configured():
            return structlog.ReturnLogger() if sys.stderr is None else structlog.PrintLogger(sys.stderr)
        try:
            return factory(self._name)
        except _UNWRITABLE:  # it opens a file
            return structlog.ReturnLogger()


def get_logger(name: str = "rocketcrew") -> Any:
    """As structlog's, and no line of it is on standard output unless somebody has said so."""
    return structlog.wrap_logger(_Sink(name))
