"""Loader processes for tests: a staging folder, its table, and the processes that a test starts; none is left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from segment_helpers import Record, expected, read_table, write_segment
from waiting import came_true

from rocketcrew.spark.iceberg_catalog import is_iceberg
from rocketcrew.spark.targets.iceberg import opened

WAIT_S = 240.0
COLUMNS = ["_topic", "_broker", "_queue_id", "_offset", "_seq", "value"]


def wait_until(condition: Callable[[], bool], timeout_s: float = WAIT_S, what: str = "it") -> None:
    assert came_true(condition, timeout_s), f"{what} did not come true within {timeout_s} s"


class Loaders:
    """A staging folder, its table, and the loader processes that a test starts; none is left behind."""

    def __init__(self, folder: Path, writer: str) -> None:
        self.staging = folder / "segments"
        self.table = folder / "table"
        self.log = folder / "loader.log"
        self.records: dict[tuple[object, ...], Record] = {}
        self._writer = writer
        self._started: list[subprocess.Popen[bytes]] = []
        self._sealed = 0

    def seal(self, *records: Record) -> None:
        """A worker seals a segment; of a record that was handled before, the first run counts."""
        self._sealed += 1
        write_segment(self.staging, "w", self._sealed, [records], sealed_s=self._sealed)
        for record in records:
            self.records.setdefault((record.topic, record.queue_id, record.offset), record)

    def start(self, env: dict[str, str] | None = None, **settings: object) -> subprocess.Popen[bytes]:
        """Start a loader; its stdin is a pipe that this test holds, as a supervisor would."""
        told = {"staging": str(self.staging), "target": str(self.table), "writer": self._writer, "max_wait_ms": 0}
        told |= {"driver_memory": "600m"} | settings
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / "loader_process.py"), json.dumps(told)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=env,
            )
        self._started.append(process)
        return process

    def run(self, code: int = 0, **settings: object) -> None:
        """A loader from start to end, which must be with `code`."""
        process = self.start(**settings)
        assert process.wait(WAIT_S) == code, self.log.read_text()

    def status(self) -> dict[str, Any]:
        try:
            status: dict[str, Any] = json.loads((self.staging / "loader.json").read_text())
        except FileNotFoundError:
            return {}
        return status

    def wait_for_batch(self, batch: int, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        wait_until(lambda: self.status().get("batch_id") == batch or process.poll() is not None, what=f"batch {batch}")
        assert process.poll() is None, self.log.read_text()
        return self.status()

    def rows(self) -> list[tuple[object, ...]]:
        """The table's rows as other programs read them."""
        if is_iceberg(self.table):
            found: Any = opened(self.table).table().scan(selected_fields=tuple(COLUMNS)).to_arrow().select(COLUMNS)
            return sorted(tuple(row.values()) for row in found.to_pylist())
        if not (self.table / "_delta_log").exists():
            rows: list[tuple[object, ...]] = read_table(self.table)
            return rows
        table: Any = DeltaTable(str(self.table)).to_pyarrow_table(columns=COLUMNS)
        return sorted(tuple(row.values()) for row in table.to_pylist())

    def assert_exact(self) -> None:
        found, wanted = self.rows(), expected(self.records.values())
        assert found == wanted, f"{found} in the table, not {wanted}; {self.log.read_text()}"

    def assert_clean(self) -> None:
        assert list((self.staging / "ready").iterdir()) == []
        assert [path.name for path in (self.staging / "plan").iterdir()] == ["lock"]
        assert not (self.table / "_tmp").exists()

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


def say(process: subprocess.Popen[bytes], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line.encode() + b"\n")
    process.stdin.flush()
