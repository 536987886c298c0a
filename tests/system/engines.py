"""`run --engine spark` in system tests: the driver's process, its state, its table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from ports import free_ports

sys.path.insert(0, str(Path(__file__).parent))

from harness import HANDLERS, Broker, duplicate_keys, rows_in, wait_until

from rocketcrew.cli.children import Child, listens
from rocketcrew.cli.watch import Watch
from rocketcrew.spark.java import find_java, make_shim

WAIT_S = 420.0


class Engine:
    """A driver process; `kill` and `start` keep its state folder."""

    def __init__(self, folder: Path, broker: Broker, handler: str, topic: str, group: str, **settings: object) -> None:
        self.folder, self.broker, self.handler, self.topic, self.group = folder, broker, handler, topic, group
        self.home = folder / "state" / group / "engine"
        self.table = folder / "the table"
        self.log = folder / "engine.log"
        self.settings: dict[str, object] = {
            "consumer.consume_from_where": "CONSUME_FROM_FIRST_OFFSET",
            "supervisor.data_dir": folder / "state",
            "spark.target": self.table,
            "spark.driver_memory": "600m",
            "engine.trigger_interval_ms": 0,
            "log.format": "json",
            **settings,
        }

    def words(self) -> list[str]:
        """Of its command."""
        words = ["run", self.handler, "--engine", "spark", "-t", self.topic, "-g", self.group]
        words += ["-n", self.broker.name_server]
        for key, value in self.settings.items():
            words += ["--set", f"{key}={value}"]
        return words

    def start(self) -> None:
        self.child = Child("engine", self.words(), log=self.log, cwd=HANDLERS)

    def said(self, event: str) -> int:
        """How often the log has the event."""
        return self.log.read_text().count(f'"{event}"') if self.log.exists() else 0

    def wait_for(self, event: str, times: int = 1) -> None:
        def came() -> bool:
            assert self.child.poll() is None, f"the engine has ended:\n{self.log.read_text()[-4000:]}"
            return self.said(event) >= times

        wait_until(came, WAIT_S, event)

    def jvm(self) -> psutil.Process:
        return next(one for one in psutil.Process(self.child.pid).children() if "java" in one.name())

    def kill(self) -> None:
        os.kill(self.child.pid, signal.SIGKILL)
        self.child.stop(WAIT_S)

    def stop(self) -> int:
        code = self.child.stop(WAIT_S)
        if code < 0:
            print(f"the engine {self.child.how_it_ended()}:\n{self.log.read_text()[-8000:]}")  # noqa: T201
        return code

    def rows(self) -> pa.Table:
        return rows_in(self.table)

    def numbers(self) -> list[int]:
        return sorted(self.rows().column("number").to_pylist())

    def wait_for_rows(self, count: int) -> None:
        def came() -> bool:
            assert self.child.poll() is None, f"the engine has ended:\n{self.log.read_text()[-4000:]}"
            return self.rows().num_rows >= count

        wait_until(came, WAIT_S, f"{count} rows")

    def dead_letters(self) -> int:
        with Watch(self.broker.name_server) as watch:
            return watch.stored(self.group, f"%DLQ%{self.group}")

    def check_exact(self, numbers: list[int]) -> None:
        """Every number once, and no key twice."""
        assert self.numbers() == sorted(numbers)
        assert duplicate_keys(self.rows()) == 0


def processes_below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def replay(engine: Engine, handler: str, *words: str) -> tuple[int, dict[str, Any]]:
    """`replay --diff` over all that the topic has; exit code and what it prints."""
    command = [
        sys.executable, "-m", "rocketcrew", "replay", handler, "--from", "1d", "-t", engine.topic, "-g", engine.group,
        "-n", engine.broker.name_server, "--diff", str(engine.table), "--json",
        "--set", f"supervisor.data_dir={engine.folder / 'state'}", "--set", "spark.driver_memory=600m", *words,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=HANDLERS, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def lags(broker: Broker, group: str, topic: str) -> list[tuple[int, int]]:
    """Committed offset and lag of each queue."""
    with Watch(broker.name_server) as watch:
        return [(row.committed, row.lag) for row in watch.lag(group, [topic])]


class Standalone:
    """A master and two workers with one core each, from pip's pyspark, on loopback."""

    def __init__(self, folder: Path) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        java = make_shim(find_java("", os.environ), folder / "java", folder / "jvm.log")
        env = {
            **os.environ, "SPARK_HOME": str(home), "JAVA_HOME": str(java), "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "128m", "SPARK_NO_DAEMONIZE": "1",
        }  # fmt: skip
        (port,) = free_ports(1)
        self.url = f"spark://127.0.0.1:{port}"
        self._started: list[subprocess.Popen[bytes]] = []

        def start(name: str, *words: str) -> None:
            command = [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{name}", "--webui-port", "0", *words]
            with (folder / f"{name}.log").open("ab") as log:
                self._started.append(subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log))

        start("master.Master", "--host", "127.0.0.1", "--port", str(port))
        wait_until(lambda: listens(port), WAIT_S, "the master")
        for number in range(2):
            start("worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "700m",
                  "--work-dir", str(folder / f"work-{number}"), self.url)  # fmt: skip

    def conf(self) -> str:
        """`spark.conf` of a driver on this host."""
        told = {
            "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
            "spark.pyspark.python": sys.executable, "spark.executor.memory": "512m",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        }  # fmt: skip
        return json.dumps(told)

    def stop(self) -> None:
        for process in reversed(self._started):
            process.terminate()
        for process in self._started:
            process.wait(WAIT_S)
