"""A Spark Connect server for tests, from pip's pyspark, on loopback; a folder can be hidden from it, as another host's is."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pyspark
from loaders import WAIT_S, wait_until
from ports import free_ports

from rocketcrew.cli.children import listens
from rocketcrew.spark.java import find_java, make_shim

HIDING = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class ConnectServer:
    """One server process and its JVM; `kill` and `start` keep its port."""

    def __init__(self, folder: Path, hidden: Path, unshared: list[str]) -> None:
        """`unshared`: the command in front of what may mount; see test_disk_full.new_disks."""
        home = Path(pyspark.__file__).parent
        java = make_shim(find_java("", os.environ), folder / "java", folder / "jvm.log")
        (self.port,) = free_ports(1)
        self.url = f"sc://127.0.0.1:{self.port}"
        self.log = folder / "connect.log"
        self._env = {
            **os.environ, "SPARK_HOME": str(home), "JAVA_HOME": str(java), "SPARK_LOCAL_IP": "127.0.0.1",
        }  # fmt: skip
        conf = {
            "spark.connect.grpc.binding.port": str(self.port), "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.driver.extraJavaOptions": LIGHT, "spark.ui.enabled": "false", "spark.local.dir": str(folder / "tmp"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        }  # fmt: skip
        self._words = [*unshared, "sh", "-c", HIDING, str(hidden), str(home / "bin" / "spark-submit")]
        self._words += ["--master", "local[2]", "--driver-memory", "600m", "--driver-class-path", str(folder)]
        for name, value in conf.items():
            self._words += ["--conf", f"{name}={value}"]
        self._words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = process = subprocess.Popen(
                self._words, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

        def came() -> bool:
            assert process.poll() is None, self.log.read_text()[-4000:]
            return listens(self.port)

        wait_until(came, what="the Connect server")

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(WAIT_S)
        self._process = None
