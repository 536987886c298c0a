"""The Spark that Iceberg is built for, beside the one of this environment, and Iceberg's jars for it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from servers import ServerError, cache_folder, resolved

from rocketcrew.spark.needs import ICEBERG_BUILDS, SQLITE_DRIVER

PYSPARK: Final = "4.1.4"
PY4J: Final = "0.10.9.9"
INSTALL_MAX_S: Final = 1500


def iceberg_jars() -> str:
    """Iceberg's and SQLite's for Spark 4.1, with commas. Raises ServerError where they cannot be had."""
    jars = resolved("iceberg-spark-4.1", [ICEBERG_BUILDS["4.1"], SQLITE_DRIVER]).split(os.pathsep)
    return ",".join(jar for jar in jars if "/iceberg-spark-runtime" in jar or "/sqlite-jdbc" in jar)


def older_pyspark() -> Path:
    """The folder for PYTHONPATH with that pyspark, installed on first use. Raises ServerError."""
    folder = cache_folder() / f"pyspark-{PYSPARK}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            # Only these two: all else is what this environment has, and lies behind them on the path.
            command = [str(Path(sys.executable).parent / "uv"), "pip", "install", "--quiet", "--python", sys.executable,
                       "--target", str(folder), "--no-deps", f"pyspark=={PYSPARK}", f"py4j=={PY4J}"]  # fmt: skip
            try:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_MAX_S)
            except (OSError, subprocess.SubprocessError) as error:
                said = str(getattr(error, "stderr", "") or error).strip()
                raise ServerError(f"pyspark {PYSPARK} cannot be installed: {said[-500:]}") from error
            (folder / "complete").touch()
    return folder
