"""Values that fit a type of Arrow and nobody can use: times beyond Python's years, infinite numbers, names of folders."""

from __future__ import annotations

import datetime
import decimal
import fractions
import math
from typing import Any

import pyarrow
import pytest

from rocketcrew.conf.folders import FOLDER_BYTES_MAX, NO_FOLDERS, FolderNames, folder_names
from rocketcrew.testing import message, run
from rocketcrew.workers.api import handler
from rocketcrew.workers.boot import TableSpec
from rocketcrew.workers.copying import refused
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.fitting import Columns, RowError
from rocketcrew.workers.message import Message
from rocketcrew.workers.misfits import reason
from rocketcrew.workers.rows import RowBuffer

from .test_rows_cost import calls_in

pa: Any = pyarrow

WEST = datetime.timezone(datetime.timedelta(hours=-5))
EAST = datetime.timezone(datetime.timedelta(hours=5))
LATE = datetime.datetime.max.replace(tzinfo=WEST)
TIME = pa.timestamp("us", "UTC")
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
EARLY = datetime.datetime.min.replace(tzinfo=EAST)
LATE_US = pa.array([253402300800000000], pa.int64()).cast(pa.timestamp("us", "UTC"))


def fitted(ddl: str, *values: object, folders: FolderNames = NO_FOLDERS) -> list[Any]:
    """The values in a column `c`, by both ways, which must agree; from an Arrow array where there is just that."""
    columns = Columns(parse_ddl(f"c {ddl}"), folders)
    if len(values) == 1 and isinstance(values[0], pa.Array):
        batch = pa.record_batch({"c": values[0]})
        found = [columns.checked(columns.fit_arrow(batch)).column(0).to_pylist() for _ in range(2)]
    else:
        rows = [(value,) for value in values]
        found = [ways(rows)[0].to_pylist() for ways in (columns.arrays, columns._by_column)]  # pyright: ignore[reportPrivateUsage]
    assert repr(found[0]) == repr(found[1])
    return list(found[0])


NUMBERS = [1795778569.5, decimal.Decimal("1.5"), fractions.Fraction(7, 2), math.nan, 5, True]


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "date"])
def test_a_number_is_no_time(kind: str, number: object) -> None:
    shapes: list[tuple[str, object]] = [
        (kind, number), (f"array<{kind}>", [number]), (f"map<string, {kind}>", {"k": number}),
        (f"struct<x: {kind}>", {"x": number}), (f"struct<x: {kind}>", (number,)),
    ]  # fmt: skip
    why = "nan: return None" if repr(number) == "nan" else "whose unit nobody knows"
    for ddl, value in shapes:
        with pytest.raises(RowError, match=rf"expected a datetime or a date, got .*{why}"):
            fitted(ddl, value)


def test_what_is_a_time_goes_in() -> None:
    now = datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC)
    assert fitted("timestamp", now, None) == [now, None]
    assert fitted("date", now, now.date(), None) == [now.date(), now.date(), None]
    assert fitted("timestamp", pa.scalar(now)) == [now]
    numpy: Any = pytest.importorskip("numpy")
    assert fitted("timestamp_ntz", numpy.datetime64("2026-01-02T03", "us")) == [now.replace(tzinfo=None)]
    with pytest.raises(RowError, match=r"got date: return datetime.combine\(value, time\(\)\)"):
        fitted("timestamp", now.date())
    with pytest.raises(RowError, match="expected a datetime or a date, got time: return one"):
        fitted("timestamp", datetime.time(3))


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("timestamp", LATE),
        ("timestamp_ntz", EARLY),
        ("array<timestamp>", [LATE]),
        ("struct<x: map<string, timestamp>>", {"x": {"k": EARLY}}),
        ("timestamp", LATE_US),
        ("timestamp", LATE_US.cast(pa.timestamp("us"))),
        ("array<timestamp>", pa.ListArray.from_arrays([0, 1], LATE_US)),
        ("date", pa.array([1795778569], pa.int32()).cast(pa.date32())),
    ],
)
def test_a_time_that_nobody_can_show(ddl: str, value: object) -> None:
    with pytest.raises(RowError, match=r"column c .*: a time outside of the years 1 to 9999"):
        fitted(ddl, value)


def test_the_first_and_the_last_time_go_in() -> None:
    ends = [LATE.replace(tzinfo=datetime.UTC), EARLY.replace(tzinfo=datetime.UTC)]
    assert fitted("timestamp", *ends) == ends
    assert fitted("date", datetime.date.min, datetime.date.max) == [datetime.date.min, datetime.date.max]


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("float", 1e39),
        ("float", -1e300),
        ("array<float>", [1.0, 1e39]),
        ("map<string, float>", {"k": 1e39}),
        ("struct<x: double, y: float>", {"x": math.inf, "y": 1e39}),
        ("float", pa.array([1.0, 1e39])),
        ("float", pa.array([1.0, 1e39]).dictionary_encode()),
        ("struct<y: float>", pa.array([{"y": 1e39}])),
    ],
)
def test_a_number_that_becomes_infinite(ddl: str, value: object) -> None:
    with pytest.raises(RowError, match=r"column c .*infinite in 32 bits: declare the column double"):
        fitted(ddl, value)


def test_what_is_infinite_or_small_goes_in() -> None:
    assert fitted("float", math.inf, -math.inf, None, 1e-50) == [math.inf, -math.inf, None, 0.0]
    assert fitted("float", pa.array([math.inf, None])) == [math.inf, None]
    assert fitted("float", pa.array([math.inf, None], pa.float32())) == [math.inf, None]
    assert fitted("array<float>", [math.inf, None], None) == [[math.inf, None], None]
    assert repr(fitted("float", math.nan)) == "[nan]"


@pytest.mark.parametrize(
    ("ddl", "array", "words"),
    [
        ("decimal(5,2)", pa.array([1.239]), "expected a decimal, got double"),
        ("array<decimal(5,2)>", pa.array([[1.0]]), "expected a decimal, got double"),
        ("bigint", pa.array([datetime.datetime(2026, 1, 1)]), "expected an integer, got timestamp"),  # noqa: DTZ001
        ("int", pa.array([datetime.date(2026, 1, 1)]), "expected an integer, got date32"),
        ("bigint", pa.array([datetime.timedelta(1)]), "expected an integer, got duration"),
        ("timestamp", pa.array([5]).dictionary_encode(), "whose unit nobody knows"),
    ],
)
def test_casts_that_only_arrow_would_make(ddl: str, array: Any, words: str) -> None:
    with pytest.raises(RowError, match=words):
        fitted(ddl, array)


def test_one_call_a_block_and_column_says_whether_all_is_in_bounds() -> None:
    columns = Columns(parse_ddl("a timestamp, b float, c bigint"))
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    def calls(rows: int) -> list[str]:
        return calls_in(lambda: columns.arrays([(now, 1.5, 7)] * rows))

    assert calls(2) == calls(20) == calls(200) == calls(500)


# --- once for a block -----------------------------------------------------------------------------------------------


def kept(rows: RowBuffer[int], owner: int, table: Any) -> None:
    prepared = rows.prepare(message("b", topic="o"), table)
    assert prepared is not None
    rows.keep(owner, prepared)


@pytest.mark.parametrize(
    ("bad", "words"),
    [({"at": 2**62}, "column at timestamp: a time"), ({"n": None}, "column n int not null: is null"),
     ({"city": "x" * 300}, "column city string: its value names a folder")],
)  # fmt: skip
def test_the_message_whose_batch_does_not_fit_fails_alone(bad: dict[str, Any], words: str) -> None:
    folders = folder_names("pyarrow", "/data/t", ["city"])
    rows: RowBuffer[int] = RowBuffer(parse_ddl("n int not null, at timestamp, city string"), "g", folders=folders)
    kind = pa.schema([("n", pa.int32()), ("at", TIME), ("city", pa.string())])

    def one(owner: int, **values: Any) -> Any:
        row = {"n": owner, "at": 0, "city": "x"} | values
        return pa.record_batch({name: pa.array([row[name]], kind.field(name).type) for name in kind.names}, schema=kind)

    for owner in range(4):
        kept(rows, owner, one(owner, **bad) if owner == 2 else one(owner))
    kept(rows, 4, pa.Table.from_batches([one(4, **bad)]))
    batch, refused = rows.take()
    assert batch is not None
    assert batch.column("n").to_pylist() == [0, 1, 3]
    assert [owner for owner, _ in refused] == [2, 4]
    assert all(str(error).startswith(words) for _, error in refused)
    prepared = rows.prepare(message("b", topic="o"), one(5, **bad))
    assert prepared is not None
    with pytest.raises(RowError, match=words):
        rows.check(prepared)
    with pytest.raises(RowError, match=words):
        rows.prepare(message("b", topic="o"), one(6, **bad), at_once=True)


def test_a_batch_like_the_one_before_is_only_copied_and_looked_at_with_its_block() -> None:
    names = ["a", "b", "c"]
    rows: RowBuffer[int] = RowBuffer(parse_ddl("a timestamp not null, b float, c date"), "g")
    batch = pa.record_batch(
        [pa.array([NOON], TIME), pa.array([math.inf], pa.float32()), pa.array([5], pa.date32())], names
    )
    kept(rows, 0, batch)
    assert not {"Columns._judge", "became_infinite", "Columns._cast"}.intersection(
        calls_in(lambda: kept(rows, 1, batch))
    )
    for owner in range(2, 50):
        kept(rows, owner, batch)
    calls = calls_in(rows.take)
    assert calls.count("Columns._judge") == len(names)
    assert "became_infinite" not in calls, "nothing was converted"


def test_an_infinite_number_has_its_own_column_converted_again_and_no_other() -> None:
    columns = Columns(parse_ddl("a timestamp, b float, c float, d string"))

    def calls(number: float) -> list[str]:
        return calls_in(lambda: columns.arrays([(NOON, number, 1.0, "x"), (NOON, 1.0, 1.0, "y")]))

    assert calls(math.inf).count("_column") == calls(1.0).count("_column") + 1
    assert "Columns._by_column" not in calls(math.inf)
    with pytest.raises(RowError, match=r"column b float: .* infinite in 32 bits"):
        columns.arrays([(NOON, 1e300, math.inf, "x")])


# --- folders --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format_", "fits", "too_long"),
    [
        ("pyarrow", "日" * 84, "日" * 85),
        ("parquet", "x" * 253, "x" * 254),
        ("pyarrow", "=" * 84, "=" * 85),
        ("deltalake", "日" * 28, "日" * 29),
        ("iceberg", "日" * 28, "日" * 29),
    ],
)
def test_a_value_that_is_too_long_for_the_name_of_a_folder(format_: str, fits: str, too_long: str) -> None:
    folders = TableSpec("/data/t", partition_by=("c",), format=format_).folders
    assert fitted("string", fits, None, "", folders=folders) == [fits, None, ""]
    for value in (too_long, pa.array([too_long])):
        with pytest.raises(RowError, match=f"names a folder .* bytes, at most {FOLDER_BYTES_MAX} are possible"):
            fitted("string", value, folders=folders)
    assert fitted("string", too_long) == [too_long], "where it names no folder"


def test_what_a_bucket_and_its_keys_take() -> None:
    folders = folder_names("deltalake", "s3://bucket/table", ["c"])
    assert fitted("string", "日" * 90, folders=folders) == ["日" * 90]
    with pytest.raises(RowError, match="names a folder"):
        fitted("string", "日" * 110, folders=folders)


def test_a_nul_character_in_the_name_of_a_folder() -> None:
    with pytest.raises(RowError, match="no NUL character"):
        fitted("string", "a\0b", folders=folder_names("pyarrow", "/data/t", ["c"]))
    assert fitted("string", "a\0b", folders=folder_names("deltalake", "/data/t", ["c"])) == ["a\0b"]
    assert fitted("int", 7, folders=folder_names("pyarrow", "/data/t", ["c"])) == [7]


def test_the_message_with_such_a_value_fails_alone() -> None:
    @handler(schema="c string")
    def handle(given: Any) -> dict[str, str]:
        return {"c": given.keys * 100}

    settings = {"spark.partition_by": ["c"], "spark.format": "pyarrow", "consumer.max_reconsume_times": 0}
    done = run(handle, [message("b", topic="o", keys=key) for key in ("x", "日日日", "y")], settings=settings)
    assert sorted(row["c"][:1] for row in done.rows) == ["x", "y"]
    assert [letter.message.keys for letter in done.dead_letters] == ["日日日"]


def test_a_late_time_is_a_failed_message_and_no_failed_test() -> None:
    @handler(schema="at timestamp")
    def handle(_: Any) -> dict[str, Any]:
        return {"at": LATE}

    done = run(handle, [message("b", topic="o")], settings={"consumer.max_reconsume_times": 0})
    assert (done.rows, len(done.dead_letters)) == ([], 1)


class LargeText(str):
    __slots__ = ()

    def __len__(self) -> int:
        return 1 << 31


class LargeBytes(bytes):
    def __len__(self) -> int:
        return 1 << 31


@pytest.mark.parametrize("value", [LargeText("a"), LargeBytes(b"a")])
@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_a_value_that_arrow_cannot_count_is_told_as_that(value: object, kind: Any) -> None:
    def refuse(_values: Any) -> None:
        raise ValueError("array cannot contain more than 2147483646 bytes")

    assert reason([None, value], kind, lambda _kind: refuse) == "2147483648 bytes: a value has at most 2 GiB"


class Hungry:
    """Its conversion takes more memory than there is."""

    def __index__(self) -> int:
        raise MemoryError


@pytest.mark.parametrize(("ddl", "value"), [("c bigint", Hungry()), ("c array<bigint>", [1, Hungry()])])
def test_of_a_want_of_memory_no_column_is_told(ddl: str, value: object) -> None:
    @handler(schema=ddl)
    def count(_message: Message) -> dict[str, object]:
        return {"c": value}

    result = run(count, [message("x")], settings={"consumer.max_reconsume_times": 0})
    assert [letter.error for letter in result.dead_letters] == ["RowError: not enough memory to convert its rows"]


def test_of_a_want_of_memory_of_arrow_s_own_none_is_told_either() -> None:
    words = "not enough memory to convert its rows"
    assert str(refused("a broken Arrow batch: malloc of size 9 failed", pa.ArrowMemoryError("malloc"))) == words
    assert str(refused("a broken Arrow batch: no offsets", pa.ArrowInvalid("no"))) == "a broken Arrow batch: no offsets"
