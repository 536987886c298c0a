"""A genuine HDFS in one JVM: NameNode and one DataNode of Hadoop's own mini cluster, of the version that pyspark brings."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import pyspark
from ports import free_ports
from servers import START_TIMEOUT_S, Java, ServerError, resolved, stored, with_archive

MAIN = "org.apache.hadoop.test.MiniDFSClusterManager"
OPTIONS = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
PORT_WAIT_S = 180.0
"""For a process that has the NameNode's port since it was stopped."""
_CLIENT = re.compile(r"hadoop-client-api-(.+)\.jar")


def hadoop_version() -> str:
    """The version of Hadoop's client in pyspark."""
    names = (entry.name for entry in (Path(pyspark.__file__).parent / "jars").iterdir())
    return next(match[1] for match in map(_CLIENT.fullmatch, names) if match)


def cluster_jars() -> str:
    """The class path; resolved on first use. Raises ServerError."""
    version = hadoop_version()
    name = f"hadoop-{version}"
    jars = resolved(name, [f"org.apache.hadoop:hadoop-client-minicluster:{version}"])
    return with_archive(name, quick_jars(jars), run_to_its_end)


def quick_jars(jars: str) -> str:
    """The same jars: a NameNode's web server reads the whole of these two in search of its pages, at each start, and most of
    the CPU of a start would go into their unpacking."""
    return stored(jars, "hadoop-client-minicluster", "hadoop-client-api")


def mini_cluster(folder: Path, jars: str, port: int, words: Sequence[str], options: Sequence[str] = OPTIONS) -> Java:
    """An HDFS that has left its safe mode. Raises ServerError."""
    details = folder / "details"
    details.unlink(missing_ok=True)
    words = [MAIN, *words, "-nnport", str(port), "-datanodes", "1", f"-Dhdfs.minidfs.basedir={folder / 'data'}",
             "-writeDetails", str(details)]  # fmt: skip
    java = Java("hdfs", folder, jars, words, options)
    try:
        java.wait_for(lambda: details.exists() and details.stat().st_size > 0, "start")
    except BaseException:
        java.stop(0)
        raise
    return java


def run_to_its_end(home: Path, jars: str, option: str) -> None:
    mini_cluster(home, jars, free_ports(1)[0], ["-format"], (*OPTIONS, option)).stop(START_TIMEOUT_S)


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
        """Returns when it has left its safe mode. Raises ServerError; it can be called again then."""
        self._wait_for_the_port()
        self._java = mini_cluster(self._folder, self._jars, self._port, words)

    @property
    def runs(self) -> bool:
        return self._java is not None

    def _wait_for_the_port(self) -> None:
        """Until it can be bound, as Java's servers bind it: connections of the last one that linger are no hindrance."""
        deadline = time.monotonic() + PORT_WAIT_S
        while True:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", self._port))
                except OSError as error:
                    if time.monotonic() > deadline:
                        raise ServerError(f"port {self._port} of the NameNode is not free: {error}") from error
                else:
                    return
            time.sleep(0.2)

    def stop(self) -> None:
        """At once, as a power failure of its process."""
        if self._java is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._java.pid, 9)
            self._java.stop()
        self._java = None
