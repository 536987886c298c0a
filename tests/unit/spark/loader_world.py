"""A staging folder, a table, and loaders that come and go: what the tests of the loader's steps play in."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from rocketcrew.durable.intervals import OffsetSet, QueueKey
from rocketcrew.spark.accounts import PIECES_MAX
from rocketcrew.spark.convert import COPY_DISK, CopyDisk
from rocketcrew.spark.iceberg_catalog import catalog_of
from rocketcrew.spark.loader import Loader
from rocketcrew.spark.outcome_levels import FAN, OutcomeLevels
from rocketcrew.spark.plan import PlanBounds, Top, Trigger
from rocketcrew.spark.reports import BatchReport
from rocketcrew.spark.staging import Staging
from rocketcrew.spark.table_state import ledger_outcomes
from rocketcrew.spark.targets.delta import STATE_DIR, DeltaTarget, append_by_delta_rs
from rocketcrew.spark.targets.iceberg import IcebergTarget
from rocketcrew.spark.targets.local_folder import LocalFolder
from rocketcrew.spark.targets.parquet import ParquetTarget, folder_outcomes

WIDE = PlanBounds(10**6, 10**9)
EARLY = Trigger(rows=100, bytes=10**6, wait_ms=1000)


def in_order(table: Any) -> list[Any]:
    """The rows as tuples, sorted; null before all else."""
    rows = [tuple(row.values()) for row in table.to_pylist()]
    return sorted(rows, key=lambda row: [(value is not None, value) for value in row])


class Crash(BaseException):
    """Stands for kill -9: nothing in the loader catches it, so nothing is cleaned up."""


def crash_at(point: str) -> Callable[[str], None]:
    """What a loader, a merge or a compaction calls at its points: it ends at this one."""

    def crash(here: str) -> None:
        if here == point:
            raise Crash

    return crash


class World:
    """A staging folder and a table, and loaders that come and go."""

    def __init__(self, root: Path, helpers: Any, threads: Executor, format_: str = "parquet") -> None:
        self.helpers = helpers
        self.threads = threads
        self.format = format_
        self.table = root / "table"
        self.roots = [root / "stage-0", root / "stage-1"]
        self.loaders_made = 0
        self._targets: dict[Loader, Any] = {}
        self.segments_made = 0
        self.written: list[Any] = []

    def loader(
        self,
        at: int = 0,
        on_point: Callable[[str], None] = lambda _: None,
        known_batch: int = 0,
        bounds: PlanBounds = WIDE,
        target: Any = None,
        trigger: Trigger = EARLY,
        epoch_on_recreated: bool = False,
        pieces_max: int = PIECES_MAX,
        leave_gaps: bool = False,
        exact: bool = True,
        disk: CopyDisk = COPY_DISK,
    ) -> Loader:
        self.loaders_made += 1
        number = self.loaders_made
        target = target or self.target()
        loader = Loader(
            Staging(self.roots[at]),
            target,
            trigger,
            bounds,
            threads=self.threads,
            cores=2,
            new_id=lambda batch: f"{batch:08d}-{number}",
            on_point=on_point,
            epoch_on_recreated=epoch_on_recreated,
            pieces_max=pieces_max,
            leave_gaps=leave_gaps,
            exact=exact,
            disk=disk,
        )
        self._targets[loader] = target
        loader.recover(known_batch)
        return loader

    def target(self) -> Any:
        if self.format == "deltalake":
            return DeltaTarget(self.table, append_by_delta_rs, lambda: None)
        if self.format == "iceberg":
            return IcebergTarget(self.table, catalog_of(self.table, {}))
        return ParquetTarget(LocalFolder(self.table, self.threads), self.helpers.ArrowWriter())

    def outcomes(self, fan: int = FAN) -> OutcomeLevels:
        """The table's outcomes."""
        batch = self.target().state().batch
        if self.format in ("deltalake", "iceberg"):
            return ledger_outcomes(self.table / STATE_DIR, batch, fan)
        return folder_outcomes(self.table, batch, fan)

    def seal(self, *flushes: list[Any], at: int = 0, columns: Any = ()) -> Path:
        self.segments_made += 1
        path: Path = self.helpers.write_segment(self.roots[at], "w", self.segments_made, flushes, columns)
        os.utime(path, (self.segments_made, self.segments_made))
        self.written += [record for flush in flushes for record in flush]
        return path

    def load(self, *offsets: int) -> None:
        """One batch of one row for each of these records."""
        self.seal([self.helpers.Record(offset) for offset in offsets])
        self.drain(self.loader())

    def drain(self, loader: Loader) -> list[BatchReport]:
        try:
            return list(loader.drain(lambda: 10**13, lambda: False))
        except Crash:
            self._targets[loader].close()  # as the kernel does it
            raise

    def drain_with_crash(self, point: str, **options: Any) -> None:
        with pytest.raises(Crash):
            self.drain(self.loader(on_point=crash_at(point), **options))

    def take_over(self) -> None:
        """The first folder's files go to the second, as a slot's do when its host's other member takes it over."""
        for part in ("ready", "plan"):
            (self.roots[1] / part).mkdir(parents=True, exist_ok=True)
            for path in (self.roots[0] / part).glob("0*.json" if part == "plan" else "*"):
                path.rename(self.roots[1] / part / path.name)
        self.roots.reverse()

    def assert_exact(self) -> None:
        """Each record ever written is in the table once, and nothing else is; the staging folder is empty again."""
        first: dict[tuple[object, ...], Any] = {}
        for record in self.written:
            first.setdefault((record.group, record.topic, record.broker, record.queue_id, record.offset), record)
        assert self.rows() == self.helpers.expected(first.values())

    def assert_clean(self, at: int = 0) -> None:
        assert list((self.roots[at] / "ready").iterdir()) == []
        assert [path.name for path in (self.roots[at] / "plan").iterdir() if path.name != "lock"] == []
        assert not (self.table / "_tmp").exists()

    def rows(self, *columns: str) -> list[Any]:
        """The table's rows as any other program would read them."""
        if self.format not in ("deltalake", "iceberg"):
            if columns:
                tables = [pq.read_table(file) for file in sorted(self.table.glob("batch_id=*/*.parquet"))]
                merged: Any = pa.concat_tables(tables, promote_options="default").select(list(columns))
                return in_order(merged)
            rows: list[Any] = self.helpers.read_table(self.table)
            return rows
        wanted = list(columns or ("_topic", "_broker", "_queue_id", "_offset", "_seq", "value"))
        if self.format == "iceberg":
            return in_order(self.target().table().scan(selected_fields=tuple(wanted)).to_arrow().select(wanted))
        table: Any = DeltaTable(str(self.table)).to_pyarrow_table(columns=wanted)
        return in_order(table)

    def state(self) -> dict[str, Any]:
        """The newest state file, with the loaded set and the tops as lists that are easy to compare."""
        known = self.target().state()
        batch = known.batch
        folder = self.table / f"batch_id={batch}"
        (path,) = folder.glob("_loaded.json") if folder.exists() else self.table.glob(f"_rocketcrew/{batch}-*.json")
        state: dict[str, Any] = json.loads(path.read_text())
        return {**state, "loaded": known.loaded.to_json(), "tops": tops_to_json(known.tops)}

    def piece_count(self) -> int:
        """How many intervals the loaded set has: what it costs in memory and in its file."""
        return pieces_of(self.target().state().loaded)


def pieces_of(loaded: OffsetSet) -> int:
    """How many intervals a set has."""
    return sum(len(offsets.pieces) for offsets in loaded.queues.values())


def tops_to_json(tops: Mapping[QueueKey, Top]) -> list[list[object]]:
    """`[[[group, topic, …], offset, stored_us, since_us], …]`."""
    return [[key.to_json(), *top[:3]] for key, top in sorted(tops.items())]


def calls_of(name: str, act: Callable[[], object]) -> int:
    """How often functions of that name are called in this thread while `act` runs."""
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_name == name

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(before)
    return calls
