"""A handler whose module takes long to import by workers, not in the trial before: a start that goes on for a while."""

from __future__ import annotations

import os
import time
from pathlib import Path

if "SLOW_IMPORT_MARK" in os.environ:
    mark = Path(os.environ["SLOW_IMPORT_MARK"])
    tried = mark.with_suffix(".tried")
    if tried.exists():
        part = mark.with_suffix(".part")
        part.write_text(str(os.getpid()))
        part.rename(mark)  # who sees it may end this process at once
        time.sleep(3600)
    tried.touch()


def number(_message: object) -> None:
    """Never called."""
