"""A genuine HDFS in one JVM: NameNode and one DataNode of Hadoop's own mini cluster, of the version that pyspark brings."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import pyspark
from servers import Java, ServerError, free_ports, resolved

MAIN = "org.apache.hadoop.test.MiniDFSClusterManager"
OPTIONS = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
_CLIENT = re.compile(r"hadoop-client-api-(.+)\.jar")


def hadoop_version() -> str:
    """The version of Hadoop's client in pyspark."""
    names = (entry.name for entry in (Path(pyspark.__file__).parent / "jars").iterdir())
    return next(match[1] for match in map(_CLIENT.fullmatch, names) if match)


def cluster_jars() -> str:
    """The class path; resolved on first use. Raises ServerError."""
    version = hadoop_version()
    return resolved(f"hadoop-{version}", [f"org.apache.hadoop:hadoop-client-minicluster:{version}"])


class HdfsCluster:
    """An HDFS with its data in `folder`; it can be stopped, and started again on the same port with what it had."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jars = cluster_jars()
        self._port = free_ports(1)[0]
        self._java: Java | None = None
        self.start("-format")

    def url(self, table: str) -> str:
        return f"hdfs://127.0.0.1:{self._port}/{table}"

    def start(self, *words: str) -> None:
        """Returns when it has left its safe mode."""
        details = self._folder / "details"
        details.unlink(missing_ok=True)
        self._java = Java(
            "hdfs", self._folder, self._jars,
            [MAIN, *words, "-nnport", str(self._port), "-datanodes", "1", f"-Dhdfs.minidfs.basedir={self._folder / 'data'}",
             "-writeDetails", str(details)],
            OPTIONS,
        )  # fmt: skip
        try:
            self._java.wait_for(lambda: details.exists() and details.stat().st_size > 0, "start")
        except ServerError:
            self.stop()
            raise

    def stop(self) -> None:
        """At once, as a power failure of its process."""
        if self._java is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._java.pid, 9)
            self._java.stop()
        self._java = None
