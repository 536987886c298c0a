"""Delta's jars for tests: from Maven's cache or the network, as those of the genuine servers are."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "interop"))

from servers import ServerError, missing_programs, resolved

DELTA_JARS = "io.delta:delta-spark_4.2_2.13:4.4.0"


def delta_jars() -> str:
    """Delta's own, with commas. Raises ServerError where they cannot be had."""
    if missing_programs("mvn"):
        raise ServerError("mvn is missing on the PATH")
    jars = resolved("delta", [DELTA_JARS]).split(os.pathsep)
    return ",".join(jar for jar in jars if "/io/delta/" in jar)
