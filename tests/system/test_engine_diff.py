"""What a replay's rows and a table differ in: retries count by their origin, maps compare, other groups do not."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rocketcrew.conf.columns import columns_of
from rocketcrew.conf.segment_format import key_fields
from rocketcrew.durable.intervals import OffsetSet
from rocketcrew.engine.diff import compare, shared_columns
from rocketcrew.spark.accounts import Accounts
from rocketcrew.spark.plan import Plan
from rocketcrew.spark.session import SessionSettings, open_session
from rocketcrew.spark.table_state import write_state

pa: Any = pyarrow
pq: Any = pyarrow.parquet

pytestmark = pytest.mark.slow

TAGS = pa.map_(pa.string(), pa.string())
SCHEMA = pa.schema([*key_fields(), pa.field("number", pa.int64()), pa.field("tags", TAGS)])
STORED = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def rows(values: dict[int, int], topic: str = "t", group: str = "g") -> Any:
    """One row a message; its offset names it."""
    told = [
        {
            "_group": group, "_topic": topic, "_broker": "a", "_queue_id": 0, "_offset": at, "_seq": 0, "_origin_topic": "t",
            "_message_id": f"m{at}", "_origin_message_id": f"o{at}", "_reconsume_times": int(topic != "t"),
            "_store_time": STORED, "number": value, "tags": [("k", str(value))],
        }
        for at, value in values.items()
    ]  # fmt: skip
    return pa.Table.from_pylist(told, schema=SCHEMA)


def test_rows_that_stand_in_one_of_both_only(tmp_path: Path) -> None:
    folder = tmp_path / "a folder%20"
    table, batch = folder / "table", folder / "table" / "batch_id=1"
    batch.mkdir(parents=True)
    there = [rows({1: 1, 2: 2, 9: 9}), rows({3: 3}, "%RETRY%g"), rows({1: 7}, group="other")]
    pq.write_table(pa.concat_tables(there), batch / "part.parquet", coerce_timestamps="us")
    columns = columns_of(SCHEMA)
    write_state(batch / "_loaded.json", Plan("p", 1, (), OffsetSet(), columns), Accounts(OffsetSet()), 5, durable=False)
    pq.write_table(rows({1: 1, 2: 5, 3: 3, 4: 4}), folder / "rows.parquet", coerce_timestamps="us")
    pq.write_table(pa.table({"origin": ["o1", "o2", "o3", "o4"]}), folder / "seen.parquet")
    conf = {"spark.sql.shuffle.partitions": "4"}
    session = open_session(SessionSettings(folder / "spark", driver_memory="600m", conf=conf))
    try:
        found = compare(
            session.spark,
            table,
            "g",
            columns,
            shared_columns(table, columns, columns),
            [folder / "rows.parquet"],
            [folder / "seen.parquet"],
        )
    finally:
        session.close()
    assert [(row["_origin"], row["number"]) for row in found.replay_samples] == [("o4", 4)]
    assert found.table_samples == ()
    assert [(here["number"], there["number"]) for here, there in found.changed_samples] == [(5, 2)]
    assert (found.changed, found.only_replay, found.only_table, found.same) == (1, 1, 0, False)
