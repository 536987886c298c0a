"""What a killed supervisor leaves besides results and journal: sockets. Noted in its slot, swept at the next start.

The slot's lock says that its last owner is dead, so what that one noted in the slot is nobody's any more. Shared memory
has no names here and goes with its last process; segments and journal are taken over (slot.py), not swept.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from multiprocess import util

from .control import SOCKET_NAME

TEMP_NOTE = "temp_dir"
"""In the slot: the folder with the forkserver's socket."""
TEMP_PREFIX = "pymp-"
"""multiprocess' own; nothing else is ever removed, whatever the note says."""


def temp_dir() -> str:
    """This process's own."""
    return util.get_temp_dir()


def note(slot: Path) -> None:
    """Say where this process's forkserver has its socket."""
    (slot / TEMP_NOTE).write_text(temp_dir())


def sweep(slot: Path) -> None:
    """Remove what the last owner of the slot left. The caller holds the slot's lock."""
    (slot / SOCKET_NAME).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        noted = Path((slot / TEMP_NOTE).read_text())
        if noted.name.startswith(TEMP_PREFIX) and str(noted) != temp_dir():
            shutil.rmtree(noted, ignore_errors=True)
        (slot / TEMP_NOTE).unlink()
