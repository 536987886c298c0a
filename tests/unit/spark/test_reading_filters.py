"""What a filter finds is what the rows say, whatever the table notes of its files: Arrow leaves out files by it."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
import pytest
from deltalake import DeltaTable
from loader_world import World
from test_compaction import flip_a_value
from test_delta_vacuum import with_deletion_vector
from test_partitions import loaded

from rocketcrew.cli.reading import DuckViews, dataset
from rocketcrew.spark.delta_log import LOG_DIR
from rocketcrew.spark.delta_snapshot import mapped_columns
from rocketcrew.spark.errors import LoaderError

FORMATS = ("pyarrow", "deltalake", "iceberg")
INNER: Any = pa.struct([("x", pa.int64()), ("f", pa.float64()), ("d", pa.decimal128(38, 18))])
NOON = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
KINDS: dict[str, tuple[Any, list[Any]]] = {
    "b": (pa.bool_(), [True, False, True]),
    "i": (pa.int64(), [2**53 + 1, -(2**63), 2**63 - 1]),
    "f": (pa.float64(), [9.5, -0.0, float("nan")]),
    "g": (pa.float32(), [0.5, float("-inf"), 1.5]),
    "d9": (pa.decimal128(9, 2), [Decimal("1234567.89"), Decimal("-0.01"), Decimal("0.10")]),
    "d18": (pa.decimal128(18, 2), [Decimal("1234567890123456.78"), Decimal("1234567890123456.79"), Decimal("0.10")]),
    "d38": (pa.decimal128(38, 18), [Decimal("12345678901234567890.123456789012345678"), Decimal(-1), Decimal(1)]),
    "t": (pa.timestamp("us", "UTC"), [NOON + timedelta(microseconds=n) for n in range(3)]),
    "n": (pa.timestamp("us"), [NOON.replace(year=1950, tzinfo=None) + timedelta(microseconds=n) for n in range(3)]),
    "day": (pa.date32(), [date(1, 1, 1), date(2026, 1, 1), date(9999, 12, 31)]),
    "s": (pa.string(), ["y" * 70 + "1", "y" * 70 + "2", "\U0010ffff" * 40]),
    "bin": (pa.binary(), [b"\xff" * 70, b"\xff" * 70 + b"\x01", b""]),
    "st": (
        INNER,
        [{"x": 2**60, "f": 1.5, "d": Decimal(10**19) + Decimal("0.1")}, {"x": None, "f": -0.0, "d": None}, None],
    ),
}
LATE: dict[str, tuple[Any, list[Any]]] = {f"late_{name}": of for name, of in KINDS.items()}
COMPARED = [
    *(name for name in (*KINDS, *LATE) if not name.endswith("st")),
    *(f"{name}.{part}" for name in ("st", "late_st") for part in ("x", "f", "d")),
]
SIGNS = ("=", "<", ">")


def values() -> list[dict[str, object]]:
    """Rows of two batches: three with every kind, and then three that have the late columns too; the last one is all null."""
    first: list[dict[str, object]] = [{name: of[n] for name, (_, of) in KINDS.items()} for n in range(3)]
    later: list[dict[str, object]] = [{name: of[n] for name, (_, of) in (KINDS | LATE).items()} for n in (0, 1)]
    return [*first, *later, {}]


@pytest.fixture(params=FORMATS)
def table(request: pytest.FixtureRequest, world: World, segments: Any) -> Path:
    columns = [(name, kind) for name, (kind, _) in KINDS.items()]
    rows = [segments.Record(offset, extra=extra) for offset, extra in enumerate(values())]
    for batch, more in ((rows[:3], []), (rows[3:], [(name, kind) for name, (kind, _) in LATE.items()])):
        world.seal(batch, columns=[*columns, *more])
        loaded(world, request.param)
    return world.table


def questions(connection: Any, name: str) -> list[str]:
    """Every comparison of a column with each of its values."""
    ((kind,), *_) = connection.sql(f"SELECT typeof({name}) FROM results").fetchall()
    texts = connection.sql(
        f"SELECT DISTINCT {name}::VARCHAR FROM results WHERE {name} IS NOT NULL ORDER BY 1"
    ).fetchall()
    literals = [f"'{text}'::{kind}" for (text,) in texts]
    compared = [f"{name} {sign} {literal}" for literal in literals for sign in SIGNS]
    return [*compared, f"{name} IN ({', '.join(literals)})", f"{name} IS NULL", f"{name} IS NOT NULL"]


def test_every_filter_finds_the_rows_that_were_loaded(table: Path) -> None:
    kinds = {name: kind for name, (kind, _) in (KINDS | LATE).items()}
    columns: dict[str, Any] = {
        name: pa.array([row.get(name) for row in values()], kind) for name, kind in kinds.items()
    }
    with contextlib.closing(duckdb.connect()) as plain, contextlib.closing(DuckViews(table)) as views:
        for run in (plain.execute, views.answer):
            run("SET TimeZone = 'UTC'")
        plain.register("arrow", pa.table({"_offset": list(range(len(values()))), **columns}))
        plain.execute("CREATE TABLE results AS SELECT * FROM arrow")
        wrong: list[str] = []
        for condition in (one for name in COMPARED for one in questions(plain, name)):
            asked = f"SELECT _offset FROM results WHERE {condition} ORDER BY 1"
            wanted, found = plain.sql(asked).fetchall(), [(row["_offset"],) for row in views.answer(asked)]
            wrong += [f"{condition}: {found}, not {wanted}"] if found != wanted else []
    assert wrong == []


def test_folders_are_left_out_by_their_values(world: World, segments: Any) -> None:
    """Those without a value, too; and what is in the files of the others counts, whatever the log says of it."""
    columns = [("value", pa.string()), ("n", pa.int32()), ("x", pa.float64())]
    places: list[dict[str, object]] = [{"value": "a/b", "n": 1}, {"value": "a/b", "n": None}, {"value": None, "n": 1}]
    world.seal([segments.Record(at, extra={**one, "x": 9.5}) for at, one in enumerate(places)], columns=columns)
    loaded(world, "deltalake", "value", "n")
    rows, field = dataset(world.table), pyarrow.compute.field
    for of, offsets in (
        (field("value") == "a/b", [0, 1]), (field("n").is_null(), [1]), (field("n") == 1, [0, 2]),
        (field("value").is_null(), [2]), ((field("value") == "a/b") & (field("n") == 1), [0]), (field("n") > 1, []),
    ):  # fmt: skip
        assert len(list(rows.get_fragments(filter=of))) == len(offsets)
        found = rows.to_table(columns=["_offset", "value", "n"], filter=of & (field("x") == 9.5)).sort_by("_offset")
        assert found.to_pylist() == [{"_offset": at, **places[at]} for at in offsets]


def updated(log: Any) -> None:
    log.update(predicate="_offset = 9", updates={"s": "'t'"})


def deleted(log: Any) -> None:
    log.delete("_offset = 9")


def merged(log: Any) -> None:
    gone: Any = pa.table({"_offset": pa.array([9], pa.int64())})
    merging = log.merge(gone, predicate="t._offset = s._offset", source_alias="s", target_alias="t")
    merging.when_matched_delete().execute()


@pytest.mark.parametrize("partition_by", [(), ("p",)])
@pytest.mark.parametrize("how", [updated, deleted, merged])
def test_texts_are_found_where_files_call_them_views(
    world: World, segments: Any, how: Any, partition_by: tuple[str, ...]
) -> None:
    """delta-rs writes such files when it changes rows, beside those that it leaves alone."""
    inner: Any = pa.struct([("x", pa.string()), ("b", pa.binary())])
    columns: list[tuple[str, Any]] = [("s", pa.string()), ("b", pa.binary()), ("p", pa.string()), ("st", inner)]
    columns.append(("l", pa.list_(pa.string())))
    wanted: dict[int, dict[str, object]] = {
        at: {"s": f"s{at}", "b": b"s%d" % at, "p": "q", "st": {"x": f"s{at}", "b": None}, "l": [f"s{at}", None]}
        for at in (1, 2, 3, 4)
    }
    for offsets in ((1, 2, 9), (3, 4)):
        records = [segments.Record(at, extra=wanted.get(at, {"s": "t", "p": "q"})) for at in offsets]
        world.seal(records, columns=columns)
        loaded(world, "deltalake", *partition_by)
    how(DeltaTable(str(world.table)))
    arrow: Any = pa
    rows, field, like = dataset(world.table), arrow.compute.field, arrow.compute.match_like
    kinds = [str(arrow.parquet.read_schema(world.table / file).field("s").type) for file in rows.files]
    assert sorted(kinds) == ["string", "string_view"]
    assert rows.schema.field("s").type == pa.string()
    found = rows.to_table(columns=["_offset", *wanted[1]], filter=field("_offset") < 9).sort_by("_offset")
    assert found.to_pylist() == [{"_offset": at, **row} for at, row in wanted.items()]
    for of, asked, offsets in (
        (field("s") == "s1", "s = 's1'", [1]), (field("s").isin(["s1", "s3"]), "s IN ('s1', 's3')", [1, 3]),
        (field("s") < "s3", "s < 's3'", [1, 2]), (like(field("s"), "s%"), "s LIKE 's%'", [1, 2, 3, 4]),
        (field("b") == b"s2", "b = 's2'::BLOB", [2]), (field("b") > b"s2", "b > 's2'::BLOB", [3, 4]),
        (field("st", "x") == "s2", "st.x = 's2'", [2]), (field("s") == "none", "s = 'none'", []),
        ((field("p") == "q") & (field("s") >= "s4") & (field("s") < "t"), "p = 'q' AND s >= 's4' AND s < 't'", [4]),
    ):  # fmt: skip
        assert sorted(rows.to_table(filter=of).column("_offset").to_pylist()) == offsets
        for view in ("results", "latest"):
            with contextlib.closing(DuckViews(world.table)) as views:
                answer = views.answer(f"SELECT _offset FROM {view} WHERE {asked} AND _group = 'g' ORDER BY 1")
            assert [row["_offset"] for row in answer] == offsets


def renamed(table: Path, mode: str, physical: str) -> None:
    """A version in which Delta's columns are mapped, and those of the files for `value` have this name, as Spark notes it."""
    log = DeltaTable(str(table))
    fields: list[dict[str, Any]] = json.loads(log.schema().to_json())["fields"]
    for number, field in enumerate(fields, 1):
        own = physical if field["name"] == "value" else field["name"]
        field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": own}
    metadata = next(
        action["metaData"]
        for action in map(json.loads, (table / LOG_DIR / f"{0:020d}.json").read_text().splitlines())
        if "metaData" in action
    )
    mapping = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": str(len(fields))}
    schema = json.dumps({"type": "struct", "fields": fields})
    commit = (
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        {"metaData": {**metadata, "schemaString": schema, "configuration": mapping}},
    )
    entry = table / LOG_DIR / f"{log.version() + 1:020d}.json"
    entry.write_text("".join(json.dumps(action) + "\n" for action in commit))


@pytest.mark.parametrize(
    ("mode", "physical", "said"), [("name", "col-1", "for value"), ("id", "value", "for _group, ")]
)
def test_mapped_columns_are_refused(world: World, segments: Any, mode: str, physical: str, said: str) -> None:
    """The files are read by name: such a column would be null in every row."""
    world.seal([segments.Record(1)])
    loaded(world, "deltalake")
    renamed(world.table, mode, physical)
    with pytest.raises(LoaderError, match=f"other names {said}.*--engine spark asks Spark"):
        dataset(world.table)


def test_columns_that_are_mapped_to_their_own_names_are_read(world: World, segments: Any) -> None:
    world.seal([segments.Record(1)])
    loaded(world, "deltalake")
    renamed(world.table, "name", "value")
    assert dataset(world.table).to_table().column("value").to_pylist() == ["row"]


@pytest.mark.parametrize("partition_by", [(), ("day",)])
def test_a_date_that_python_does_not_have_leaves_the_table_readable(
    world: World, segments: Any, partition_by: tuple[str, ...]
) -> None:
    """delta-rs makes no dataset of a log that has one among its bounds."""
    kind: Any = pa.date32()
    for offset, days in enumerate((20_000_000, 0)):
        day: Any = pa.scalar(days, pa.int32()).cast(kind)
        world.seal([segments.Record(offset, extra={"day": day})], columns=[("value", pa.string()), ("day", kind)])
    loaded(world, "deltalake", *partition_by)
    rows, field = dataset(world.table), pyarrow.compute.field
    assert rows.schema.field("day").type == kind
    assert rows.to_table(filter=field("day") == date(1970, 1, 1)).column("_offset").to_pylist() == [1]
    assert rows.to_table(filter=field("day") > date(9999, 1, 1)).column("_offset").to_pylist() == [0]


def data_file(table: Path) -> tuple[Path, Path]:
    """The only one of a Delta table, and the newest entry of its log."""
    (file,) = table.glob("*.parquet")
    return file, max((table / LOG_DIR).glob("*.json"))


def test_times_as_sparks_optimize_writes_them(world: World, segments: Any) -> None:
    """In 96 bits: as nanoseconds in 64 they would end in 2262."""
    kind: Any = pa.timestamp("us", "UTC")
    times = [datetime(9999, 12, 31, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC), NOON, None]
    rows = [segments.Record(at, extra={"t": time, "l": [time]}) for at, time in enumerate(times)]
    world.seal(rows, columns=[("value", pa.string()), ("t", kind), ("l", pa.list_(kind))])
    loaded(world, "deltalake")
    file, entry = data_file(world.table)
    old, parquet = file.stat().st_size, pyarrow.parquet
    of: Any = parquet.ParquetFile(file).read()
    parquet.write_table(of, file, use_deprecated_int96_timestamps=True)
    entry.write_text(entry.read_text().replace(f'"size":{old}', f'"size":{file.stat().st_size}'))
    found = dataset(world.table).to_table(columns=["_offset", "t", "l"])
    assert found.to_pylist() == [{"_offset": at, "t": time, "l": [time]} for at, time in enumerate(times)]
    assert found.schema.types == [pa.int64(), kind, pa.list_(kind)]


def test_a_flipped_byte_of_a_delta_table_is_no_wrong_row(world: World, segments: Any) -> None:
    """Where pages have checksums: what merges and Spark have written."""
    world.seal([segments.Record(offset) for offset in range(100)])
    loaded(world, "deltalake")
    file, entry = data_file(world.table)
    old, parquet = file.stat().st_size, pyarrow.parquet
    of: Any = parquet.ParquetFile(file).read()
    parquet.write_table(of, file, write_page_checksum=True, use_dictionary=False, compression="none")
    entry.write_text(entry.read_text().replace(f'"size":{old}', f'"size":{file.stat().st_size}'))
    assert dataset(world.table).count_rows() == 100
    flip_a_value(file)
    with pytest.raises(OSError, match=r"CRC|corrupt"):
        dataset(world.table).to_table()


def test_deletion_vectors_are_refused_where_a_file_has_one(world: World, segments: Any) -> None:
    """After REORG TABLE ... APPLY (PURGE) none has, and the feature stays."""
    world.seal([segments.Record(1)])
    loaded(world, "deltalake")
    with_deletion_vector(world.table)
    with pytest.raises(LoaderError, match=r"has deletion vectors.*--engine spark asks Spark") as refused:
        dataset(world.table)
    assert "damaged" not in str(refused.value)
    _, entry = data_file(world.table)
    kept = [line for line in entry.read_text().splitlines() if 'deletionVector"' not in line]
    entry.write_text("\n".join(kept) + "\n")
    world.seal([segments.Record(2)])
    loaded(world, "deltalake")
    assert dataset(world.table).to_table().column("_offset").to_pylist() == [2]


def with_feature(table: Path, *names: str) -> None:
    features = {"readerFeatures": names, "writerFeatures": names}
    commit = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    entry = table / LOG_DIR / f"{DeltaTable(str(table)).version() + 1:020d}.json"
    entry.write_text(json.dumps(commit) + "\n")


def test_a_feature_that_is_not_known_is_refused(world: World, segments: Any) -> None:
    world.seal([segments.Record(1)])
    loaded(world, "deltalake")
    with_feature(world.table, "typeWidening", "v2Checkpoint")
    with pytest.raises(LoaderError, match=r"not known here \(typeWidening\)\. --engine spark asks Spark"):
        dataset(world.table)


def test_features_of_the_log_alone_refuse_nothing(world: World, segments: Any) -> None:
    world.seal([segments.Record(1)])
    loaded(world, "deltalake")
    with_feature(world.table, "v2Checkpoint", "vacuumProtocolCheck")
    assert dataset(world.table).to_table().column("_offset").to_pylist() == [1]


def test_mapped_columns_within_others_are_found() -> None:
    def field(name: str, kind: object, physical: str) -> dict[str, object]:
        return {"name": name, "type": kind, "metadata": {"delta.columnMapping.physicalName": physical}}

    inner = {"type": "struct", "fields": [field("x", "long", "x"), field("y", "long", "col-2")]}
    kind = {"type": "array", "elementType": {"type": "map", "keyType": "string", "valueType": inner}}
    schema = {"type": "struct", "fields": [field("a", "long", "a"), field("l", kind, "l")]}
    log = SimpleNamespace(
        schema=lambda: SimpleNamespace(to_json=lambda: json.dumps(schema)),
        metadata=lambda: SimpleNamespace(configuration={"delta.columnMapping.mode": "name"}),
    )
    assert mapped_columns(log) == ["l.y"]
