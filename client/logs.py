"""The loggers of what also runs in a process of the user's, who calls it from a script, a notebook or a test.

Our own processes configure structlog (conf/logging.py), and so may the user: then that holds. Where nobody has, structlog
prints on standard output, which is the script's own answer: here it is standard error.
"""

from __future__ import annotations

import sys
from typing import Any

import structlog


class _Sink:
    """What structlog calls a logger. Which one it is, and which stream, is asked for with each line: loggers are made when a
    module is imported, and configured afterwards."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        if structlog.is_configured():
            return getattr(structlog.get_config()["logger_factory"](self._name), method)
        logger = structlog.ReturnLogger() if sys.stderr is None else structlog.PrintLogger(sys.stderr)
        return getattr(logger, method)


def get_logger(name: str = "rocketcrew") -> Any:
    """As structlog's, and no line of it is on standard output unless somebody has said so."""
    return structlog.wrap_logger(_Sink(name))
