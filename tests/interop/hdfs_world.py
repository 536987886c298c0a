"""Loaders of this host whose table is on HDFS, all by one session of Spark."""

from __future__ import annotations

import os
import sys
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Final

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "system"))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

from loader_world import World
from loaders import COLUMNS
from segment_helpers import Helpers

from rocketcrew import read
from rocketcrew.spark.hdfs import hdfs_table
from rocketcrew.spark.loader import POINTS
from rocketcrew.spark.session import Session, SessionSettings
from rocketcrew.spark.spark_writer import SparkWriter
from rocketcrew.spark.targets.hdfs_folder import HdfsFolder
from rocketcrew.spark.targets.parquet import ParquetTarget

CLOSES_SOON: Final = {
    "spark.hadoop.dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "5",
    "spark.hadoop.dfs.client.block.write.locateFollowingBlock.max.delay.ms": "500",
    "spark.hadoop.dfs.client.block.write.locateFollowingBlock.retries": "60",
}
"""A file that is closed before the DataNode has told of its last block is asked for again: by default first after 400 ms, for
nearly each of the files of a commit, and five times, which take 12 s; here as soon as it is told, and for half a minute."""
HDFS_CONF: Final = {
    **CLOSES_SOON,
    "spark.hadoop.ipc.client.connect.max.retries": "1",  # a NameNode that is stopped is to be missed soon
    "spark.hadoop.dfs.replication": "1",
    "spark.sql.shuffle.partitions": "1",
}


def small_at(*small: str) -> list[Any]:
    """These points in each run, all in `make soak`."""
    return [point if point in small else pytest.param(point, marks=pytest.mark.soak) for point in POINTS]


class HdfsWorld(World):
    """Two staging folders of this host, and a table on HDFS; all loaders share one JVM."""

    def __init__(self, root: Path, threads: Executor, session: Session, url: str, folder: type[HdfsFolder]) -> None:
        super().__init__(root, Helpers(), threads)
        self.url = url
        self.spark = session.spark
        self._session = session
        self._folder = folder
        self.place = hdfs_table(url, session.spark)
        self.table: Any = self.place

    def target(self) -> ParquetTarget:
        settings = SessionSettings(self.roots[0].parent / "spark", env=os.environ)
        writer = SparkWriter(settings, opening=lambda _: self._session)
        return ParquetTarget(self._folder(hdfs_table(self.url, self._session.spark)), writer)

    def rows(self, *columns: str) -> list[Any]:
        rows = read(self.url, spark=self._session.spark).select(*(columns or COLUMNS)).collect()
        return sorted(tuple(row) for row in rows)
