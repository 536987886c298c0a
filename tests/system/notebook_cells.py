"""What a Spark engineer runs in a notebook: his own session, our `load` and `read`. Prints what he sees as one JSON object.

`notebook_cells.py STAGING TABLE`, and `STAGING-2`, whose columns become folders of `TABLE-2`; each line of stdin lets it go
on with the next cell.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parent))

from documented import blocks_of

from rocketcrew import load, read
from rocketcrew.remoting.errors import UsageError


def tell(what: object) -> None:
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


def documented(spark: Any, table: str) -> list[Any]:
    """What the documents' lines for Spark show of a column that came later, and of `latest`."""
    blocks = blocks_of("how-to/table.md")
    exec(blocks["by_spark.py"].replace(".rocketcrew/billing/table", table), {"spark": spark})
    rows = [list(row) for row in spark.sql("SELECT _offset, more FROM results ORDER BY 1, 2").collect()]
    return [rows, spark.sql(blocks["latest.sql"]).count()]


def in_folders(spark: Any, staging: str, table: str) -> list[list[Any]]:
    """What the documents' lines and `read` show of values that name folders, with their types."""
    load(staging, table, format="pyarrow", partition_by=("zip", "paid"))
    code = blocks_of("how-to/table.md")["by_spark.py"].replace(".rocketcrew/billing/table", table)
    names = {"spark": spark}
    exec(re.sub(r"\}  # and more, such as: (.*)", r", \1}", code), names)
    columns = ["_offset", "zip", "paid", "batch_id"]
    seen = (frame.select(columns) for frame in (names["results"], read(table, spark=spark)))
    return [[frame.dtypes, sorted(list(row) for row in frame.collect())] for frame in seen]


def main(staging: str, table: str) -> None:
    told: dict[str, Any] = {}
    try:
        load(staging, table)
    except UsageError as error:
        told["without"] = str(error)
    spark: Any = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "600m")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "Asia/Tokyo")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    spark.range(3).createOrReplaceTempView("theirs")
    first = load(staging, table)
    again = load(staging, table, spark=spark)
    told["loaded"] = [[first.batches, first.rows], [again.batches, again.rows]]
    tell("first")
    sys.stdin.readline()
    told["later"] = load([staging], table).rows
    told["rows"] = sorted(
        list(row) for row in read(table, spark=spark).select("_offset", "_seq", "value", "more").collect()
    )
    told["latest"] = read(table, form="spark", latest=True).count()
    told["columns"] = "more" in spark.read.option("mergeSchema", "true").parquet(table).columns
    told["documented"] = documented(spark, table)
    theirs, ours = in_folders(spark, f"{staging}-2", f"{table}-2")
    told["in_folders"] = [theirs == ours, ours[1]]
    told["zone"] = spark.conf.get("spark.sql.session.timeZone")
    told["theirs"] = spark.table("theirs").count()
    told["group"] = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
    told["active"] = SparkSession.getActiveSession() is not None
    spark.stop()
    try:
        load(staging, table, spark=spark)
    except Exception as error:  # noqa: BLE001  what he sees
        told["stopped"] = f"{type(error).__name__}: {error}"
    tell(told)


if __name__ == "__main__":
    main(*sys.argv[1:])
