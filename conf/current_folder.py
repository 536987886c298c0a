"""A current folder that was removed is named: Python says of it no more than "No such file or directory"."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

from ..remoting.errors import UsageError


@contextlib.contextmanager
def current_folder_named() -> Generator[None]:
    """For what a user calls: the error of a relative path becomes a UsageError where it means nothing any more."""
    try:
        yield
    except FileNotFoundError as error:
        if error.filename is not None or _is_there():
            raise
        gone = os.readlink("/proc/self/cwd").removesuffix(" (deleted)")
        raise UsageError(
            f"the current folder {gone} was removed: change to one that is there, and start again"
        ) from None


def _is_there() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True
