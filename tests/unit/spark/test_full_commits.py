"""A disk that is full when a batch is committed: what is not in the table gives way, what is in it is done with. Exact."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from loader_world import World
from structlog.testing import capture_logs

from rocketcrew.spark.errors import LoaderError, SparkDiedError, is_no_room
from rocketcrew.spark.iceberg_catalog import catalog_of
from rocketcrew.spark.object_store import Place
from rocketcrew.spark.plan import PlanBounds
from rocketcrew.spark.targets.delta import DeltaTarget, append_by_delta_rs
from rocketcrew.spark.targets.iceberg import IcebergTarget
from rocketcrew.spark.targets.iceberg_commits import commit_table
from rocketcrew.spark.targets.local_folder import LocalFolder
from rocketcrew.spark.targets.parquet import ParquetTarget

TABLES = ["parquet", "deltalake", "iceberg"]
SEGMENTS = 8


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullFolder(LocalFolder):
    """With room for batches of `rows`; or full as soon as one has its name."""

    def __init__(self, world: World, rows: int, *, behind: bool) -> None:
        super().__init__(world.table, world.threads)
        self._rows, self._behind = rows, behind

    def make_durable(self, output: Place) -> None:
        if self.rows(output) > self._rows:
            raise full()
        super().make_durable(output)

    def publish(self, output: Place, batch: Place) -> None:
        super().publish(output, batch)
        if self._behind:
            raise full()


class FullIceberg(IcebergTarget):
    """As above; files of rows are made with the branch."""

    def __init__(self, world: World, rows: int, *, behind: bool) -> None:
        def commit(*asked: Any) -> Any:
            answer = commit_table(*asked)
            if behind:
                raise full()
            return answer

        super().__init__(world.table, catalog_of(world.table, {}), commit=commit)
        self._rows_max = rows

    def _on_branch(self, table: Any, plan: Any, staged: Any) -> tuple[int, int]:
        if staged.rows > self._rows_max:
            raise full()
        return super()._on_branch(table, plan, staged)


def target_of(world: World, rows: int = SEGMENTS, *, behind: bool = False) -> Any:
    """One in which batches of `rows` have room. `behind`: the disk is full when a commit was made."""

    def append(path: Place, plan: Any, staged: Any, snapshot: object | None) -> None:
        if staged.rows <= rows:
            append_by_delta_rs(path, plan, staged, snapshot)
        if staged.rows > rows or behind:
            raise LoaderError(f"the commit to {path} failed: No space left on device (os error 28)")

    if world.format == "deltalake":
        return DeltaTarget(world.table, append, lambda: None)
    if world.format == "iceberg":
        return FullIceberg(world, rows, behind=behind)
    return ParquetTarget(FullFolder(world, rows, behind=behind), world.helpers.ArrowWriter())


@pytest.fixture
def backlog(world: World) -> World:
    for offset in range(SEGMENTS):
        world.seal([world.helpers.Record(offset, ["x" * 1000])])
    return world


def test_a_commit_that_meets_a_full_disk_is_made_smaller(backlog: World) -> None:
    """8 segments, 4, 2, which fit; then 4 again, which do not."""
    loader = backlog.loader(target=target_of(backlog, 2))
    assert [report.segments for report in backlog.drain(loader)] == [2] * 4
    assert loader.totals.replanned >= 2
    backlog.assert_exact()
    backlog.assert_clean()


def test_a_commit_of_one_segment_that_does_not_fit_ends_the_loader_and_loses_nothing(backlog: World) -> None:
    for _ in range(2):
        with pytest.raises((OSError, LoaderError), match="No space left"):
            backlog.drain(backlog.loader(target=target_of(backlog, 0)))
        assert len(list((backlog.roots[0] / "ready").iterdir())) == SEGMENTS
        assert not list((backlog.roots[0] / "plan").glob("*.staged"))
    backlog.drain(backlog.loader())
    backlog.assert_exact()
    backlog.assert_clean()


def test_a_commit_that_was_made_before_the_disk_was_full_is_done_with(backlog: World) -> None:
    loader = backlog.loader(target=target_of(backlog, behind=True))
    backlog.drain(loader)
    assert loader.totals.replanned == 0
    assert backlog.target().state().batch == 1
    backlog.assert_exact()
    backlog.assert_clean()


def test_a_target_that_cannot_tell_what_it_has_is_given_the_same_again(backlog: World) -> None:
    with pytest.raises((OSError, LoaderError), match="No space left"):
        backlog.drain(backlog.loader(target=target_of(backlog, 2), exact=False))
    assert len(list((backlog.roots[0] / "plan").glob("*.json"))) == 1
    (report,) = backlog.drain(backlog.loader(exact=False))
    assert report.segments == SEGMENTS
    backlog.assert_exact()


def test_a_plan_that_is_larger_than_a_lowered_limit_is_not_said_to_want_room(backlog: World) -> None:
    backlog.drain_with_crash("planned")
    size = sum(path.stat().st_size for path in Path(backlog.roots[0] / "ready").iterdir())
    with capture_logs() as logs:
        backlog.drain(backlog.loader(bounds=PlanBounds(10**6, size // 2)))
    (reason,) = (line["reason"] for line in logs if line["event"] == "plan_dropped")
    assert reason == "it has more than spark.max_bytes_mib"
    backlog.assert_exact()


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (full(), True),
        (OSError(errno.EDQUOT, "x"), True),
        (OSError(errno.EIO, "x"), False),
        (LoaderError("batch 1: Disk quota exceeded"), True),
        (LoaderError("OperationalError: database or disk is full"), True),
        (LoaderError("refused"), False),
        (SparkDiedError("No space left on device"), False),
    ],
)
def test_what_is_a_full_disk(error: OSError | LoaderError, is_one: bool) -> None:
    assert is_no_room(error) is is_one
