"""Modules are imported without the collector: hardly anything that an import makes is garbage, and to look through all of it
again and again is a seventh of the time that large ones take. Commands are imported without what only looks better."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Generator
from typing import Any, Final

FOR_LOOKS: Final = "rich"
"""structlog imports it where it is installed (pyiceberg brings it), for tracebacks that no log of ours has: 70 ms of CPU."""


@contextlib.contextmanager
def uncollected() -> Generator[None]:
    """While modules are imported; afterwards the collector is as it was."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def without_looks() -> Generator[None]:
    """While modules of a command are imported: FOR_LOOKS is as if it were not installed, unless it has been imported. Not in
    workers, nor where we are a library: what a user's program logs looks as it wants."""
    if FOR_LOOKS in sys.modules:
        yield
        return
    modules: dict[str, Any] = sys.modules
    modules[FOR_LOOKS] = None  # what the import system takes for "is not there"
    try:
        yield
    finally:
        del modules[FOR_LOOKS]
