"""A handler whose module takes long to import: a start that goes on for a while."""

from __future__ import annotations

import os
import time
from pathlib import Path

if "SLOW_IMPORT_MARK" in os.environ:
    Path(os.environ["SLOW_IMPORT_MARK"]).write_text(str(os.getpid()))
    time.sleep(60)


def number(_message: object) -> None:
    """Never called."""
