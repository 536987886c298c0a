"""What a notebook does with `load(table=…)` and a metastore: Hive's in a Derby of its own, or the session's. Prints one JSON.

Arguments: a folder, "hive" or "in-memory", and Delta's jars or nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

import pyarrow as pa
from pyspark.sql import SparkSession
from segment_helpers import Record, write_segment

from rocketcrew import load
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.compaction import compact

ODD = ["plain", "a/b=c :", "it's \\ ü", None]
MIB = 1024 * 1024


def session(folder: Path, catalog: str, jars: str) -> SparkSession:
    derby = f"-Dderby.system.home={folder}/derby -Dderby.stream.error.file={folder}/derby.log"
    conf = {
        "spark.ui.enabled": "false", "spark.driver.memory": "700m", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1", "spark.sql.catalogImplementation": catalog,
        "spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.driver.extraJavaOptions": derby,
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
    }  # fmt: skip
    if jars:
        conf |= {
            "spark.jars": jars, "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }  # fmt: skip
    builder: Any = SparkSession.builder.master("local[2]")
    for name, value in conf.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    return made


class Cells:
    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder = folder
        self.spark = spark
        self.sealed = 0

    def load(
        self,
        offset: int,
        name: str,
        table: str,
        values: Sequence[Any] = ("row",),
        more: int | None = None,
        **given: Any,
    ) -> None:
        """One batch of one record into the folder `name`, which is to be known as `table`."""
        self.sealed += 1
        staging = self.folder / f"{name}-segments"
        record = Record(offset, values, extra={} if more is None else {"more": more})
        columns = [("value", pa.string()), *([("more", pa.int64())] if more is not None else [])]
        write_segment(staging, "w", self.sealed, [[record]], columns)
        load(staging, self.folder / name, spark=self.spark, table=table, **given)

    def refusal(self, *words: Any, **given: Any) -> str:
        try:
            self.load(*words, **given)
        except UsageError as error:
            return str(error)
        return "taken"

    def rows(self, statement: str) -> list[list[Any]]:
        return [list(row) for row in self.spark.sql(statement).collect()]

    def partitions(self, table: str) -> list[str]:
        return [row[0] for row in self.spark.sql(f"SHOW PARTITIONS {table}").collect()]


def folder_of_batches(cells: Cells) -> dict[str, Any]:
    told: dict[str, Any] = {}
    cells.load(1, "it's a table", "shop.rows")
    cells.load(2, "it's a table", "shop.rows", more=7)
    cells.load(3, "it's a table", "shop.rows")
    told["three"] = cells.rows("SELECT _offset, more, batch_id FROM shop.rows ORDER BY 1")
    compact(cells.folder / "it's a table", 128 * MIB)
    cells.spark.sql("REFRESH TABLE shop.rows")  # as for any reader that has listed the files before
    told["compacted"] = cells.rows("SELECT count(*) FROM shop.rows")
    cells.load(4, "it's a table", "shop.rows")
    told["synced"] = cells.partitions("shop.rows")
    told["four"] = cells.rows("SELECT _offset, more FROM shop.rows ORDER BY 1")
    cells.spark.sql("DROP TABLE shop.rows")
    cells.load(5, "it's a table", "shop.rows")
    told["dropped"] = cells.rows("SELECT count(*) FROM shop.rows")
    told["elsewhere"] = cells.refusal(1, "other", "shop.rows")
    return told


def folders_of_values(cells: Cells) -> dict[str, Any]:
    statement = "SELECT _seq, value FROM shop.parts ORDER BY 1"
    for offset in (1, 2):
        cells.load(offset, "parts", "shop.parts", ODD, partition_by=["value"])
    found = {"before": cells.rows(statement), "partitions": len(cells.partitions("shop.parts"))}
    compact(cells.folder / "parts", 128 * MIB)
    cells.load(3, "parts", "shop.parts", ["plain"], partition_by=["value"])
    return {**found, "after": cells.rows(statement), "left": len(cells.partitions("shop.parts"))}


def main() -> None:
    folder, catalog, jars = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    cells = Cells(folder, session(folder, catalog, jars))
    told: dict[str, Any] = {"no database": cells.refusal(1, "none", "shop.none")}
    cells.spark.sql("CREATE DATABASE shop")
    told |= folder_of_batches(cells)
    told["by value"] = folders_of_values(cells)
    cells.spark.sql("CREATE VIEW shop.seen AS SELECT 1 AS one")
    cells.spark.sql("CREATE TABLE shop.owned (one int) USING parquet")
    told["view"] = cells.refusal(1, "views", "shop.seen")
    told["managed"] = cells.refusal(1, "views", "shop.owned")
    if jars:
        cells.load(1, "deltas", "shop.deltas", format="delta")
        cells.load(2, "deltas", "shop.deltas", more=7, format="delta")
        told["delta"] = cells.rows("SELECT _offset, more FROM shop.deltas ORDER BY 1")
        told["delta elsewhere"] = cells.refusal(1, "more deltas", "shop.deltas", format="delta")
    cells.spark.stop()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
