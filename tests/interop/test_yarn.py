"""On a genuine YARN, whose containers run as another user than we do: the loader with a table on HDFS."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pyspark
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

from engines import Engine, processes_below
from harness import Broker, send_numbers, wait_for_end
from hdfs_world import CLOSES_SOON, HdfsWorld
from light_jvm import LIGHT, light_environment
from needs import need
from segment_helpers import Record
from yarn_cluster import YarnCluster, yarn_jars

from rocketcrew.spark.session import SessionSettings, open_session
from rocketcrew.spark.targets.hdfs_folder import HdfsFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

CONF: Final = {
    **CLOSES_SOON,
    "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
    "spark.executor.instances": "1",
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "200m",
    "spark.yarn.am.memory": "512m",
    "spark.executor.extraJavaOptions": LIGHT,
    "spark.yarn.am.extraJavaOptions": LIGHT,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[YarnCluster]:
    need("Hadoop's mini cluster of YARN", yarn_jars)
    made = YarnCluster()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(made.conf))
        for name, value in light_environment().items():  # the driver's; containers have their own
            patch.setenv(name, value)
        yield made
    made.stop()


def conf(cluster: YarnCluster) -> dict[str, str]:
    return {**CONF, "spark.pyspark.python": str(cluster.python)}


def test_the_loader_with_staging_that_nobody_else_may_read(cluster: YarnCluster, tmp_path: Path) -> None:
    """Its folder is closed to the user of the containers, so the rows go through the driver."""
    settings = SessionSettings(
        tmp_path / "spark", master="yarn", driver_memory="600m", conf=conf(cluster), env=os.environ
    )
    session = open_session(settings)
    try:
        with ThreadPoolExecutor(4) as threads:
            world = HdfsWorld(tmp_path, threads, session, cluster.url("loaded"), HdfsFolder)
            tmp_path.chmod(0o700)
            world.seal([Record(1, ["a", "b"]), Record(2)])
            world.drain_with_crash("job_done")
            world.seal([Record(2, ["again"]), Record(3)])
            world.drain(world.loader())
            world.assert_exact()
            world.assert_clean()
        assert session._by_path is (cluster.other is None)
    finally:
        session.close()


def test_the_engine_whose_driver_is_killed_between_two_batches(cluster: YarnCluster, tmp_path: Path) -> None:
    """Its tasks write into the driver's folder, which a group of both users may write, and the driver the table."""
    folder = cluster.folder / "engine"
    folder.mkdir()
    cluster.share(folder / "state")
    broker = Broker(tmp_path)
    try:
        send_numbers(broker, "yarn", range(200))
        engine = Engine(folder, broker, "numbers_handler:number", "yarn", "spark-yarn",
                        **{"spark.master": "yarn", "spark.format": "pyarrow", "spark.conf": json.dumps(conf(cluster)),
                           "engine.max_offsets_per_trigger": 100})  # fmt: skip
        engine.table = engine.settings["spark.target"] = engine.home.parent / "table"
        engine.start()
        engine.wait_for("batch_done")
        below = processes_below(engine.child.pid)
        engine.kill()
        wait_for_end(below, "the end of the driver's JVM")
        send_numbers(broker, "yarn", range(200, 300))
        engine.start()
        engine.wait_for_rows(300)
        assert engine.stop() == 0
        engine.check_exact(list(range(300)))
    finally:
        broker.stop()
