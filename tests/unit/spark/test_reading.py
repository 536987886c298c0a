"""Tables read without Spark: by Arrow, and by DuckDB through the views `results` and `latest`."""

from __future__ import annotations

import contextlib
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from loader_world import World
from test_compaction import flip_a_value
from test_partitions import loaded

from rocketcrew import load, read
from rocketcrew.cli.reading import DuckViews, dataset, rows_of
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.compaction import compact
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.table_keys import table_facts
from rocketcrew.spark.views import as_data_frame, latest_of, register_views


def answers(table: Path, *statements: str) -> list[list[tuple[object, ...]]]:
    views = DuckViews(table)
    try:
        return [[tuple(row.values()) for row in views.answer(statement)] for statement in statements]
    finally:
        views.close()


@pytest.mark.parametrize("format_", ["pyarrow", "deltalake"])
@pytest.mark.parametrize("partition_by", [(), ("value",)])
def test_every_row_with_its_batch(world: World, segments: Any, format_: str, partition_by: tuple[str, ...]) -> None:
    for first in (1, 3):
        world.seal([segments.Record(first, ["01", "b/c"]), segments.Record(first + 1, ["01"])])
        loaded(world, format_, *partition_by)
    rows = [(1, 0, "01", 1), (1, 1, "b/c", 1), (2, 0, "01", 1), (3, 0, "01", 2), (3, 1, "b/c", 2), (4, 0, "01", 2)]
    (found,) = answers(world.table, "SELECT _offset, _seq, value, batch_id FROM results ORDER BY _offset, _seq")
    assert found == rows
    arrow = dataset(world.table).to_table(columns=["_offset", "_seq", "value", "batch_id"])
    assert sorted(tuple(row.values()) for row in arrow.to_pylist()) == rows


def test_latest_has_the_rows_of_the_last_attempt(world: World, segments: Any) -> None:
    record = segments.Record
    retry = {"topic": "%RETRY%g", "origin": "first", "reconsume_times": 1}
    world.seal([record(1, ["a", "b"], origin="first"), record(2, ["other"]), record(0, ["again"], **retry)])
    loaded(world, "pyarrow")
    found = answers(world.table, "SELECT value FROM latest ORDER BY value", "SELECT count(*) FROM results")
    assert found == [[("again",), ("other",)], [(4,)]]


@pytest.mark.parametrize("host", ["7F000001", "FD00" + "0" * 27 + "1"])
def test_latest_has_the_messages_of_each_store_that_a_broker_began(world: World, segments: Any, host: str) -> None:
    """Their places in the log are the same, and so are the ids made of those; the producers' ids are not, be they of the
    broker's own host. A record that was given no id has that of its place, and its retry, maybe elsewhere, has another."""
    record, retry = segments.Record, {"topic": "%RETRY%g", "reconsume_times": 1}

    def place(offset: int, port: int = 10911) -> str:
        return f"{host}{port:08X}{offset:016X}"

    old, new = (f"{host}1F90{'18B4AAC2' * 2}{number:04X}" for number in (1, 2))
    assert len(new) == len(place(0))
    world.seal([record(1, ["old"], origin=place(0), unique=old), record(2, ["new"], origin=place(0), unique=new)])
    world.seal([record(3, ["again"], origin=place(0), unique=new, **retry)])
    world.seal([record(4, ["first"], origin=place(999), unique=place(999))])
    world.seal([record(5, ["second"], origin=place(999), unique=place(5000, 10999), **retry)])
    loaded(world, "pyarrow")
    (found,) = answers(world.table, "SELECT value FROM latest ORDER BY value")
    assert found == [("again",), ("old",), ("second",)]
    assert sorted(read(world.table, latest=True)["value"].to_pylist()) == ["again", "old", "second"]


def test_a_column_that_came_later_is_null_in_older_rows(world: World, segments: Any) -> None:
    world.seal([segments.Record(1)])
    loaded(world, "pyarrow")
    columns = [("value", pa.string()), ("late", pa.int64())]
    world.seal([segments.Record(2, extra={"late": 7})], columns=columns)
    loaded(world, "pyarrow")
    assert answers(world.table, "SELECT _offset, late FROM results ORDER BY 1") == [[(1, None), (2, 7)]]


@pytest.mark.parametrize("statement", ["SELECT nothing FROM results", "SELEKT 1", "SELECT * FROM results_of_another"])
def test_a_wrong_statement_is_a_users_mistake(world: World, segments: Any, statement: str) -> None:
    world.seal([segments.Record(1)])
    loaded(world, "pyarrow")
    with pytest.raises(UsageError, match="--engine spark"):
        answers(world.table, statement)


def test_a_table_of_somebody_else_is_a_users_mistake(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"x": [1]}))
    rows = SimpleNamespace(columns=["x"])
    spark = SimpleNamespace(read=SimpleNamespace(format=lambda _: SimpleNamespace(load=lambda _: rows)))
    with pytest.raises(UsageError, match="no table that rocketcrew has filled: it has no column _group"):
        DuckViews(tmp_path)
    with pytest.raises(UsageError, match="no column _group"):
        register_views(spark, tmp_path)
    with pytest.raises(UsageError, match="no column _group"):
        as_data_frame(spark, tmp_path, latest=True)
    assert as_data_frame(spark, tmp_path, latest=False) is rows


def test_an_empty_table_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no batch yet: nothing was loaded$"):
        DuckViews(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match=r"nothing was loaded, or it is no table of rocketcrew$"):
        DuckViews(tmp_path)


def test_a_mistyped_table_is_no_folder(tmp_path: Path) -> None:
    for asked in (DuckViews, read, partial(compact, file_bytes=1), partial(table_facts, stagings=())):
        with pytest.raises(UsageError, match=r"tabel holds no batch yet: there is no such folder"):
            asked(tmp_path / "tabel")


def test_what_waits_for_an_empty_table_is_said_too(tmp_path: Path) -> None:
    for slot, name in ((0, "w.1-00000001.arrows"), (0, "w.2-00000001.arrows"), (1, "v.1-00000001.arrows")):
        ready = tmp_path / f"g/{slot}/segments/ready"
        ready.mkdir(parents=True, exist_ok=True)
        (ready / name).touch()
    (tmp_path / "g/0/segments/ready/.draft.arrows").touch()
    with pytest.raises(
        UsageError, match=r"and 3 sealed segments wait\..*load --staging .*0/segments --staging .*1/seg"
    ):
        DuckViews(tmp_path / "g" / "table")


def test_a_flipped_byte_is_an_error_with_its_remedy_and_no_wrong_row(world: World, segments: Any) -> None:
    world.seal([segments.Record(offset) for offset in range(100)])
    loaded(world, "pyarrow")
    flip_a_value(next(world.table.rglob("*.parquet")))
    with pytest.raises(LoaderError, match="rocketcrew reconcile"):
        answers(world.table, "SELECT * FROM results")


def test_a_damaged_log_of_a_delta_table_is_an_error_in_words(world: World, segments: Any) -> None:
    world.seal([segments.Record(1)])
    loaded(world, "deltalake")
    for entry in (world.table / "_delta_log").glob("*.json"):
        entry.write_text("{bad")
    with pytest.raises(LoaderError, match=r"the Delta table .*table can't be read: .*_delta_log"):
        DuckViews(world.table)


def test_read_gives_every_row_or_those_of_the_last_attempt_as_the_views_do(world: World, segments: Any) -> None:
    record = segments.Record
    for attempt, offset in ((1, 0), (2, 1)):
        retry = {"topic": "%RETRY%g", "origin": "first", "reconsume_times": attempt}
        world.seal([record(offset, [f"again {attempt}", "b"], **retry)])
        loaded(world, "pyarrow")
    world.seal([record(1, ["a", "b", "c"], origin="first"), record(2, ["other"]), record(3, ["other"])])
    loaded(world, "pyarrow")
    names = ["_topic", "_offset", "_seq", "_reconsume_times", "value", "batch_id"]
    views = answers(world.table, *(f"SELECT {', '.join(names)} FROM {view}" for view in ("results", "latest")))
    for found, rows in zip(views, (read(world.table), read(world.table, latest=True)), strict=True):
        assert sorted(found) == sorted(tuple(row.values()) for row in rows.select(names).to_pylist())
    assert sorted(read(world.table, latest=True)["value"].to_pylist()) == ["again 2", "b", "other", "other"]
    assert list(read(world.table, form="pandas", latest=True)["value"].sort_values()) == [
        "again 2",
        "b",
        "other",
        "other",
    ]
    assert read(world.table, form="dataset").count_rows() == 9


def test_what_read_cannot_do_is_said(world: World, segments: Any, tmp_path: Path) -> None:
    for wrong, says in (
        ({"form": "polars"}, "none of arrow, dataset, pandas, spark"),
        ({"form": "spark"}, "no active Spark session"),
        ({"form": "pandas", "spark": SimpleNamespace(createDataFrame=None)}, "leave one of form= and spark= out"),
        ({}, "holds no batch yet"),
    ):
        with pytest.raises(UsageError, match=says):
            read(tmp_path / "nothing", **wrong)
    world.seal([segments.Record(offset) for offset in range(100)])
    loaded(world, "pyarrow")
    with pytest.raises(UsageError, match="has every row"):
        read(world.table, form="dataset", latest=True)
    flip_a_value(next(world.table.rglob("*.parquet")))
    with pytest.raises(LoaderError, match="rocketcrew reconcile"):
        read(world.table)


def documented() -> dict[str, str]:
    """The lines of the page for other programs."""
    page = (Path(__file__).parents[3] / "docs/how-to/table.md").read_text()
    return dict(re.findall(r'^```\w+ title="((?:by_|latest)[\w.]+)"\n(.*?)^```', page, re.MULTILINE | re.DOTALL))


def test_other_programs_read_a_later_column_by_the_documents_lines(world: World, segments: Any, tmp_path: Path) -> None:
    """And `latest` there is ours; Spark's lines are run by tests/system/test_in_a_session.py."""
    blocks = documented()
    world.table = tmp_path / ".rocketcrew/billing/table"
    world.seal([segments.Record(1, ["a", "b"]), segments.Record(2)])
    load(world.roots[0], world.table, format="pyarrow")
    more = [("value", pa.string()), ("more", pa.int64())]
    world.seal(
        [segments.Record(3, ["c"], origin="orders-broker-a-0-2", reconsume_times=1, extra={"more": 7})], columns=more
    )
    load(world.roots[0], world.table, format="pyarrow")
    (world.table / "_tmp" / "unfinished").mkdir(parents=True)
    (world.table / "_tmp" / "unfinished" / "part-0.parquet").write_bytes(b"half of it")
    with contextlib.chdir(tmp_path):
        names: dict[str, Any] = {}
        exec(blocks["by_pandas.py"], names)
        frame = names["results"]
        assert sorted(zip(frame["_offset"], frame["more"].fillna(0), strict=True)) == [(1, 0), (1, 0), (2, 0), (3, 7)]
        connection = duckdb.connect()
        connection.execute(blocks["by_duckdb.sql"])
        rows = connection.sql("SELECT more FROM results ORDER BY _offset DESC, _seq").fetchall()
        assert rows == [(7,), (None,), (None,), (None,)]
        connection.execute(f"CREATE VIEW latest AS {blocks['latest.sql']}")
        assert " ".join(blocks["latest.sql"].split()) == " ".join(
            latest_of(has_epochs=True, without="WITHOUT").replace(" WITHOUT (_rank)", "").split()
        )
        found = connection.sql("SELECT _offset, _seq FROM latest ORDER BY 1, 2").fetchall()
        assert found == [(1, 0), (1, 1), (3, 0)]


@pytest.mark.parametrize("name", ["by_pandas.py", "by_duckdb.sql"])
def test_other_programs_read_values_of_folders_with_their_types(
    world: World, segments: Any, tmp_path: Path, name: str
) -> None:
    code, added = re.subn(r"(\}\)?;?) +(#|--) and more, such as: (.*)", r", \3\1", documented()[name])
    assert added == 1
    world.table = tmp_path / ".rocketcrew/billing/table"
    rows = [("007", True), ("7", False), ("true", None), (None, True), ("2026-01-01", False), ("a/b", True)]
    records = [segments.Record(at, extra={"zip": zip_, "paid": paid}) for at, (zip_, paid) in enumerate(rows)]
    world.seal(records, columns=[("zip", pa.string()), ("paid", pa.bool_())])
    load(world.roots[0], world.table, format="pyarrow", partition_by=("zip", "paid"))
    with contextlib.chdir(tmp_path):
        if name == "by_pandas.py":
            names: dict[str, Any] = {}
            exec(code, names)
            found: Any = pa.Table.from_pandas(names["results"], preserve_index=False)
        else:
            connection = duckdb.connect()
            connection.execute(code)
            found = connection.sql("FROM results").to_arrow_table()
    ours: Any = read(world.table)
    in_folders = ["_offset", "zip", "paid", "batch_id"]
    assert found.select(in_folders).sort_by("_offset").equals(ours.select(in_folders).sort_by("_offset"))
    assert [(row["zip"], row["paid"]) for row in ours.sort_by("_offset").to_pylist()] == rows


def test_a_time_that_python_has_none_for_is_a_text_in_an_answer(world: World, segments: Any) -> None:
    late: Any = pa.scalar(253402300800000000, pa.int64()).cast(pa.timestamp("us", "UTC"))
    day: Any = pa.scalar(1795778569, pa.int32()).cast(pa.date32())
    rows: Any = pa.table({
        "at": pa.array([late], late.type), "day": pa.array([day], day.type),
        "s": pa.StructArray.from_arrays([pa.array([[late]], pa.list_(late.type))], ["l"]),
        "m": pa.MapArray.from_arrays([0, 1], pa.array(["k"]), pa.array([late], late.type)), "n": [7],
    })  # fmt: skip
    (row,) = rows_of(rows)
    assert row["at"] == row["s"]["l"][0] == row["m"][0][1] == "10000-01-01 00:00:00.000000Z"
    assert isinstance(row["day"], str)
    assert row["n"] == 7
    world.seal([segments.Record(1)])
    loaded(world, "pyarrow")
    late_one = "TIMESTAMP '10000-01-01 00:00:00'"
    ((found,),) = answers(world.table, f"SELECT {late_one}, [{late_one}]::TIMESTAMP[1], _offset FROM results")
    assert found == ("10000-01-01 00:00:00.000000", ["10000-01-01 00:00:00.000000"], 1)
