"""In which form a table can be read, and what a script may load into it."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

sys.path.insert(0, str(Path(__file__).parent.parent / "spark"))

from segment_helpers import Record, write_segment

from rocketcrew.crew.loading import Loaded, load
from rocketcrew.crew.reading import check_form, read
from rocketcrew.remoting.errors import UsageError


@pytest.mark.parametrize(
    ("form", "latest", "spark", "pandas", "said"),
    [
        ("csv", False, False, True, "none of arrow, dataset, pandas, spark"),
        ("pandas", False, True, True, "read without Spark"),
        ("dataset", True, False, True, "has every row"),
        ("pandas", True, False, False, "pip install pandas"),
    ],
)
def test_a_form_that_cannot_be_had_is_refused(form: str, latest: bool, spark: bool, pandas: bool, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_form(form, latest=latest, spark=spark, pandas=pandas)


@pytest.mark.parametrize("form", ["arrow", "dataset"])
def test_without_pandas_and_spark_there_are_arrow_s_forms(form: str) -> None:
    check_form(form, latest=False, spark=False, pandas=False)
    check_form("arrow", latest=True, spark=True, pandas=False)


def test_ids_beside_nulls_are_the_same_in_pandas(tmp_path: Path) -> None:
    """pandas' integers know no null: Arrow makes floats of such a column, where ids above 2^53 become each other."""
    ids = [1234567890123456701, None, 1234567890123456703]
    columns = {
        "id": ids, "many": [[ids[0], None], None, [ids[2]]], "named": [{"id": ids[0]}, {"id": None}, None],
        "small": pa.array([1, None, 2], pa.int8()), "all": [1, 2, 3],
    }  # fmt: skip
    write_deltalake(tmp_path / "table", pa.table(columns))
    frame = read(tmp_path / "table", form="pandas")
    assert [str(frame[name].dtype) for name in ("id", "small", "all")] == ["Int64", "Int8", "int64"]
    assert frame["id"].to_list() == [ids[0], frame["id"].dtype.na_value, ids[2]]
    assert int(frame["id"].sum()) == ids[0] + ids[2]
    assert [None if each is None else list(each) for each in frame["many"]] == columns["many"]
    assert list(frame["named"]) == columns["named"]


def test_without_a_session_spark_s_form_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no active Spark session: give one"):
        read(tmp_path, form="spark")
    with pytest.raises(UsageError, match="no active Spark session: give one"):
        read("hdfs://namenode:1/table", form="spark")


def test_somebody_else_s_table_has_no_latest_rows(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "table", pa.table({"a": [1]}))
    assert read(tmp_path / "table").num_rows == 1
    with pytest.raises(UsageError, match="it has no column _group"):
        read(tmp_path / "table", latest=True)


def test_what_is_to_be_loaded_must_be_folders_of_segments(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder of segments"):
        load(tmp_path, tmp_path / "table", format="pyarrow")
    with pytest.raises(UsageError, match="at least one folder"):
        load([], tmp_path / "table", format="pyarrow")


def test_segments_are_loaded_without_spark_and_once(tmp_path: Path) -> None:
    staging, table = tmp_path / "segments", tmp_path / "table"
    write_segment(staging, "w", 1, [[Record(1, ["a", "b"]), Record(2)]])
    assert load(staging, table, format="pyarrow") == Loaded(1, 3)
    write_segment(staging, "w", 2, [[Record(2, ["again"]), Record(3)]])
    assert load([staging], str(table), format="pyarrow") == Loaded(1, 1)
    assert load(staging, table, format="pyarrow") == Loaded(0, 0)
    assert read(table).num_rows == 4
    with pytest.raises(UsageError, match="holds 'batch_id=1', which is of no Delta table of rocketcrew"):
        load(staging, table, format="deltalake")
