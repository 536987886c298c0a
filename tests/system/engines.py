"""`run --engine spark` in system tests: the driver's process, its state, its table."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.dataset as ds

sys.path.insert(0, str(Path(__file__).parent))

from harness import HANDLERS, KEY, Broker, duplicate_keys, wait_until

from rocketcrew.cli.children import Child
from rocketcrew.cli.watch import Watch

WAIT_S = 240.0


class Engine:
    """A driver process; `kill` and `start` keep its state folder."""

    def __init__(self, folder: Path, broker: Broker, handler: str, topic: str, group: str, **settings: object) -> None:
        self.folder, self.broker, self.handler, self.topic, self.group = folder, broker, handler, topic, group
        self.home = folder / "state" / group / "engine"
        self.table = folder / "table"
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

    def start(self) -> None:
        words = ["run", self.handler, "--engine", "spark", "-t", self.topic, "-g", self.group]
        words += ["-n", self.broker.name_server]
        for key, value in self.settings.items():
            words += ["--set", f"{key}={value}"]
        self.child = Child("engine", words, log=self.log, cwd=HANDLERS)

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
        return self.child.stop(WAIT_S)

    def rows(self) -> pa.Table:
        files = [str(path) for path in self.table.glob("batch_id=*/*.parquet")]
        return ds.dataset(files).to_table() if files else pa.table({name: [] for name in [*KEY, "number"]})

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


def processes_below(pid: int) -> list[int]:
    return [one.pid for one in psutil.Process(pid).children(recursive=True)]
