"""JVMs that start fast: a light compiler, a light collector, and Spark's classes ready made from an archive.

A JVM that writes one small table takes 14 s of CPU time, with these options 4 s. The archive has the classes of all that
tests have Spark do, not only of tables: with SQL, a stream and a Python task 14 s of CPU instead of 19, on a busy machine.
They reach every JVM below the tests through JDK_JAVA_OPTIONS, which the `java` launcher reads. What is tested is the same;
how fast Spark works is for bench/.

So do settings of Spark's for tables of a few rows, which a session's own win over: Spark's and Delta's defaults cut each
shuffle into 200 parts and each snapshot into 50, and compile a program for each query. The first story of test_demo.py
has Spark as it comes.

The Python processes that Spark starts take pyspark as it is installed: quick_python/sitecustomize.py.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from rocketcrew.spark.session import SessionSettings, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
ARCHIVE_TIMEOUT_S = 300.0
FOR_FEW_ROWS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
QUICK_PYTHON = Path(__file__).parent / "quick_python"
KEPT_S = 7 * 24 * 3600
"""An archive (160 to 180 MB) that no test has used for so long is taken for one of a checkout that is gone."""


def light_environment() -> dict[str, str]:
    """What to add to the environment; nothing where there is no Java."""
    if shutil.which("java") is None:
        return {}
    path = os.pathsep.join(filter(None, [str(QUICK_PYTHON), os.environ.get("PYTHONPATH")]))
    settings = " ".join(f"-D{name}={value}" for name, value in FOR_FEW_ROWS.items())
    return {"JDK_JAVA_OPTIONS": f"{light_options()} {settings}", "PYTHONPATH": path}


def light_options() -> str:
    """For a JVM whose Spark has its own settings."""
    return f"{LIGHT} -XX:SharedArchiveFile={class_archive()}"


@functools.cache
def class_archive() -> Path:
    """What a JVM of Spark had loaded at its end, in a file of the user's cache; made once for each Spark and JVM.

    A JVM whose classes lie elsewhere than in pyspark's jars does not use it, and starts as usual. It is good for one place of
    pyspark only, and large: those of checkouts that are gone go when a new one is made.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rocketcrew" / "spark"
    base.mkdir(parents=True, exist_ok=True)
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    place = hashlib.sha256(f"{pyspark.__file__} {jvm_id()} {recipe}".encode()).hexdigest()[:12]
    archive = base / f"classes-{pyspark.__version__}-{place}.jsa"
    with (base / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.exists():
            os.utime(archive)
        else:
            for unused in base.glob("classes-*.jsa"):
                if time.time() - unused.stat().st_mtime > KEPT_S:
                    unused.unlink()
            part = archive.with_suffix(".part")
            part.unlink(missing_ok=True)
            write_archive(part)
            part.replace(archive)
    return archive


def write_archive(file: Path) -> None:
    with tempfile.TemporaryDirectory() as home:
        conf = FOR_FEW_ROWS | {"spark.driver.extraJavaOptions": f"{LIGHT} -XX:ArchiveClassesAtExit={file}"}
        session = open_session(SessionSettings(Path(home, "spark"), driver_memory="600m", conf=conf, env=os.environ))
        use_all(session.spark, Path(home))
        session.close(ARCHIVE_TIMEOUT_S)


def use_all(spark: SparkSession, home: Path) -> None:
    """A little of each thing that tests have Spark do, so that its classes are loaded."""
    rows = (home / "rows").absolute().as_uri()
    spark.range(10).write.parquet(rows)
    spark.read.parquet(rows).write.json(rows + "-again")
    spark.read.parquet(rows).createOrReplaceTempView("numbers")
    spark.sql("SELECT id % 3 AS k, count(*), max(CAST(id AS STRING)) FROM numbers GROUP BY id % 3 ORDER BY k").collect()
    spark.sql("SELECT * FROM numbers JOIN numbers AS others USING (id)").toArrow()

    def each(batch: DataFrame, _: int) -> None:
        batch.write.mode("append").parquet(rows + "-streamed")

    stream = spark.readStream.schema("id long").parquet(rows).writeStream.foreachBatch(each)
    stream.option("checkpointLocation", rows + "-checkpoint").trigger(availableNow=True).start().awaitTermination()
    spark.range(4).mapInArrow(lambda batches: batches, "id long").collect()


def jvm_id() -> str:
    """Of another JVM no archive is read."""
    told = subprocess.run(["java", "-version"], capture_output=True, check=True, timeout=ARCHIVE_TIMEOUT_S)
    return hashlib.sha256(told.stderr).hexdigest()[:12]
