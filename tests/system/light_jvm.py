"""JVMs that start fast: a light compiler, a light collector, and Spark's classes ready made from an archive.

A JVM that writes one small table takes 14 s of CPU time, with these options 4 s. They reach every JVM below the tests through
JDK_JAVA_OPTIONS, which the `java` launcher reads. What is tested is the same; how fast Spark works is for bench/.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pyspark

from rocketcrew.spark.session import SessionSettings, open_session

LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
ARCHIVE_TIMEOUT_S = 300.0


def light_environment() -> dict[str, str]:
    """What to add to the environment; nothing where there is no Java."""
    if shutil.which("java") is None:
        return {}
    return {"JDK_JAVA_OPTIONS": f"{LIGHT} -XX:SharedArchiveFile={class_archive()}"}


def class_archive() -> Path:
    """What a JVM of Spark had loaded at its end, in a file of the user's cache; made once for each Spark and JVM.

    A JVM whose classes lie elsewhere than in pyspark's jars does not use it, and starts as usual.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rocketcrew" / "spark"
    base.mkdir(parents=True, exist_ok=True)
    place = hashlib.sha256(f"{pyspark.__file__} {jvm_id()}".encode()).hexdigest()[:12]
    archive = base / f"classes-{pyspark.__version__}-{place}.jsa"
    with (base / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            part = archive.with_suffix(".part")
            part.unlink(missing_ok=True)
            write_archive(part)
            part.replace(archive)
    return archive


def write_archive(file: Path) -> None:
    with tempfile.TemporaryDirectory() as home:
        conf = {"spark.driver.extraJavaOptions": f"{LIGHT} -XX:ArchiveClassesAtExit={file}"}
        session = open_session(SessionSettings(Path(home, "spark"), driver_memory="600m", conf=conf, env=os.environ))
        rows = Path(home, "rows").absolute().as_uri()
        session.spark.range(10).write.parquet(rows)
        session.spark.read.parquet(rows).write.json(rows + "-again")
        session.close(ARCHIVE_TIMEOUT_S)


def jvm_id() -> str:
    """Of another JVM no archive is read."""
    told = subprocess.run(["java", "-version"], capture_output=True, check=True, timeout=ARCHIVE_TIMEOUT_S)
    return hashlib.sha256(told.stderr).hexdigest()[:12]
