"""Modules are imported without the collector: hardly anything that an import makes is garbage, and to look through all of it
again and again is a seventh of the time that large ones take."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator


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
