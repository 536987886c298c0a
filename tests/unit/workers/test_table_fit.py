"""Whether a handler's columns go into the table: asked when a worker starts, of the table and of what waits for it."""

from __future__ import annotations

import dataclasses
import os
import shlex
import socket
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import structlog
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from rocketcrew.conf.columns import Column
from rocketcrew.conf.delta_names import COLUMN_MAPPING, NEW_TABLES_MAPPING
from rocketcrew.conf.segment_format import END_OF_STREAM, FORMAT_VERSION, META_GROUP, META_VERSION, key_fields
from rocketcrew.conf.settings import load
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.errors import BadSegmentError
from rocketcrew.spark.segments import read_facts
from rocketcrew.supervisor.wiring import table_at
from rocketcrew.testing import message
from rocketcrew.workers.api import handler
from rocketcrew.workers.boot import COLUMNS_FILE, NEW_TABLE, TableSpec, WorkerBoot
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.fitting import RowError
from rocketcrew.workers.inferring import Inferring
from rocketcrew.workers.link import Transport
from rocketcrew.workers.loading import describe
from rocketcrew.workers.main import prepare_handler
from rocketcrew.workers.rows import RowBuffer
from rocketcrew.workers.segment import SegmentWriter
from rocketcrew.workers.table_fit import check_fits, waiting_columns

TABLE = TableSpec("/data/billing", (("_group", "string"), ("a", "int"), ("b", "string"), ("c", "struct<`x`:int>")))


def seal(folder: Path, name: str, at: int, *columns: tuple[str, pa.DataType]) -> None:
    (folder / "ready").mkdir(parents=True, exist_ok=True)
    schema: Any = pa.schema([*key_fields(), *(pa.field(name, kind) for name, kind in columns)])
    schema = schema.with_metadata({META_VERSION: str(FORMAT_VERSION).encode(), META_GROUP: b"g"})
    path = folder / "ready" / name
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema):
        pass
    os.utime(path, (at, at))


@pytest.mark.parametrize(
    "ddl", ["a int, b string", "b string", "a smallint", "new bigint, a tinyint", "c struct<x: int>, a int"]
)
def test_the_same_columns_fewer_more_and_narrower_ones_fit(ddl: str) -> None:
    check_fits(parse_ddl(ddl), TABLE, None)
    check_fits(parse_ddl(ddl), NEW_TABLE, None)


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("a bigint", ["'a' is bigint here", "and int there"]),
        ("a string, b int", ["'a' is string here", "'b' is int here"]),
        ("A int", ["'A' is called 'a' there"]),
        ("c struct<x: bigint>", ["'c' is struct<`x`:bigint> here"]),
        ("a double", ["'a' is double here"]),
    ],
)
def test_what_does_not_fit_is_named_with_both_types_and_the_ways_out(ddl: str, said: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        check_fits(parse_ddl(ddl), TABLE, None)
    for words in ["/data/billing", *said, "another name", "spark.target"]:
        assert words in str(refused.value)


def test_columns_that_are_one_to_spark_are_a_users_mistake() -> None:
    schema = pa.schema([("s", pa.struct([("x", pa.int32()), ("X", pa.int32())]))])
    with pytest.raises(UsageError, match=r"none that Spark has: column 's\.X'"):
        check_fits(schema, NEW_TABLE, None)


@pytest.mark.parametrize("ddl", ["`c d` string, a int", "`x=` int", "s struct<ok: array<struct<`a(b`: int>>>"])
def test_names_that_spark_refuses_in_a_delta_table_are_refused_at_the_start(ddl: str) -> None:
    for table in (NEW_TABLE, TABLE):
        with pytest.raises(UsageError, match=r"named '(c d|x=|a\(b)', .*set spark\.format = deltalake"):
            check_fits(parse_ddl(ddl), table._replace(format="delta"), None)
        check_fits(parse_ddl(ddl), table._replace(format="deltalake"), None)
        check_fits(parse_ddl("`é.-'` string, b string"), table._replace(format="delta"), None)


def test_names_that_the_delta_table_has_count_where_a_column_is_new() -> None:
    table = TableSpec("/data/billing", (("c d", "string"), ("a", "int")), (), "delta")
    check_fits(parse_ddl("`c d` string"), table, None)
    with pytest.raises(UsageError, match="named 'c d', "):
        check_fits(parse_ddl("a int, new int"), table, None)


def test_a_delta_table_that_maps_names_of_columns_takes_any(tmp_path: Path) -> None:
    fields = pa.schema([("a", pa.int32())])
    for name, conf in (("plain", {}), ("mapped", {COLUMN_MAPPING: "name"})):
        try:
            DeltaTable.create(str(tmp_path / name), fields, configuration=conf)
        except DeltaError as error:
            pytest.skip(f"this deltalake makes no such table: {error}")
    table = TableSpec(str(tmp_path / "mapped"), (("a", "int"),), (), "delta")
    check_fits(parse_ddl("`c d` string"), table, None)
    with pytest.raises(UsageError, match="named 'c d', "):
        check_fits(parse_ddl("`c d` string"), table._replace(target=str(tmp_path / "plain")), None)


def test_a_new_delta_table_takes_any_name_where_spark_maps_those_of_new_ones(tmp_path: Path) -> None:
    ddl = parse_ddl("`c d` string, s struct<`a(b`: int>")
    for conf, takes in (({NEW_TABLES_MAPPING: "name"}, True), ({NEW_TABLES_MAPPING: "ID"}, True), ({}, False)):
        settings = load({"consumer.group": "g", "spark.format": "delta", "spark.conf": conf}, {}, None)
        table = table_at(settings, tmp_path / "table")
        with nullcontext() if takes else pytest.raises(UsageError, match=r"named 'c d', 'a\(b', "):
            check_fits(ddl, table, None)
    of_others = TableSpec(str(tmp_path / "plain"), (("a", "int"),), (), "delta", new_maps_names=True)
    with pytest.raises(UsageError, match="named 'c d', "):
        check_fits(ddl, of_others, None)


def test_what_waits_for_the_loader_has_a_word_too(tmp_path: Path) -> None:
    """The table gets what was sealed first; what does not fit that is set aside, and is no reason to refuse more."""
    seal(tmp_path, "w-00000003.arrows", 3, ("a", pa.string()))
    seal(tmp_path, "v-00000004.arrows", 4, ("a", pa.int32()), ("aside", pa.int32()))
    seal(tmp_path, "v2-00000005.arrows", 5, ("a", pa.string()), ("later", pa.int32()))
    check_fits(parse_ddl("a string, aside string, later smallint"), NEW_TABLE, tmp_path)
    with pytest.raises(UsageError, match=rf"load --staging {tmp_path} --target.*'a' is int here and str") as refused:
        check_fits(parse_ddl("a int, later bigint"), NEW_TABLE, tmp_path)
    assert "'later' is bigint here and int there" in str(refused.value)
    check_fits(parse_ddl("new int"), TABLE, tmp_path)
    damaged = tmp_path / "ready" / "w-00000001.arrows"
    damaged.write_bytes(b"damaged")
    os.utime(damaged, (1, 1))
    check_fits(parse_ddl("a string"), NEW_TABLE, tmp_path)


def test_the_command_that_loads_what_waits_begins_the_table_as_the_loader_would(tmp_path: Path) -> None:
    seal(tmp_path, "w-00000001.arrows", 1, ("a", pa.string()))
    with pytest.raises(UsageError) as refused:
        check_fits(parse_ddl("a int"), TableSpec("/data/t", (), ("a",), "pyarrow"), tmp_path)
    command = shlex.split(str(refused.value).split("`")[1])
    shape = ["--set", "spark.format=pyarrow", "--set", "spark.partition_by=a"]
    assert command == ["rocketcrew", "load", "--staging", str(tmp_path), "--target", "/data/t", *shape]


def test_a_handler_is_rolled_back_while_rows_of_the_narrower_one_wait(tmp_path: Path) -> None:
    """Nothing but a handler that runs would load them, so a refusal would last."""
    seal(tmp_path, "v1.1-00000001.arrows", 1, ("n", pa.int64()))
    seal(tmp_path, "v2.1-00000001.arrows", 2, ("n", pa.int32()), ("more", pa.float64()))
    for ddl in ("n bigint", "n int", "n bigint, more double", "N2 bigint"):
        check_fits(parse_ddl(ddl), NEW_TABLE, tmp_path)


def test_one_segment_of_each_worker_is_read(tmp_path: Path) -> None:
    for number in range(3):
        seal(tmp_path, f"w-{number:08d}.arrows", number, ("a", pa.int32()))
    (tmp_path / "ready" / "w-00000002.arrows").write_bytes(b"damaged")
    assert waiting_columns(tmp_path / "ready", [], {"a", "new"}) == [Column("a", "int")]
    assert waiting_columns(tmp_path / "none", [], {"a"}) == []


def test_what_does_not_fit_the_table_brings_it_no_column(tmp_path: Path) -> None:
    """The loader sets it aside, whole."""
    seal(tmp_path, "w-00000001.arrows", 1, ("a", pa.string()), ("new", pa.int32()))
    check_fits(parse_ddl("new string"), TABLE, tmp_path)
    seal(tmp_path, "v-00000002.arrows", 2, ("a", pa.int32()), ("new", pa.int32()))
    with pytest.raises(UsageError, match="'new' is string here and int there"):
        check_fits(parse_ddl("new string"), TABLE, tmp_path)


def write(folder: Path) -> Path:
    """A segment of two batches as a worker writes it."""
    rows = RowBuffer[int](parse_ddl("value string"), "g")
    (folder / "ready").mkdir()
    writer = SegmentWriter(folder, "w", rows.schema, seal_rows=9, seal_bytes=10**6, seal_idle_ms=10**6, pause=refuse)
    for number in range(2):
        prepared = rows.prepare(message("b", queue_offset=number), {"value": f"value-{number:04d}"})
        assert prepared is not None
        rows.keep(number, prepared)
        batch, _ = rows.take()
        assert batch is not None
        writer.append(batch, b"[]", 0)
    ended = writer.detach()
    assert ended is not None
    return ended[0].rename(folder / "ready" / ended[0].name)


def refuse(what: str, error: OSError) -> None:
    raise AssertionError(what) from error


def spoilt(whole: bytes, place: int) -> bytes:
    return whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "junk for an end": lambda whole: whole.removesuffix(END_OF_STREAM) + b"\x10\0\0\0junk",
    "bytes behind its end": lambda whole: whole + bytes(8),
    "cut off in a batch": lambda whole: whole.removesuffix(END_OF_STREAM)[:-8],
    "zeros in a batch": lambda whole: whole[:-600] + bytes(600),
    "a bit of a row": lambda whole: spoilt(whole, whole.index(b"value-0001")),
    "of another version": lambda whole: whole.replace(META_VERSION, META_VERSION[:-1] + b"N", 1),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_is_damaged_brings_no_column(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = write(tmp_path)
    check_fits(parse_ddl("value string"), NEW_TABLE, tmp_path)
    whole = path.read_bytes()
    for sound in (whole, whole.removesuffix(END_OF_STREAM)):  # also a segment that was salvaged
        path.write_bytes(sound)
        with pytest.raises(UsageError, match="'value' is int here and string there"):
            check_fits(parse_ddl("value int"), NEW_TABLE, tmp_path)
    path.write_bytes(damage(whole))
    with pytest.raises(BadSegmentError):
        read_facts(path)
    check_fits(parse_ddl("value int"), NEW_TABLE, tmp_path)


def test_narrower_columns_that_wait_do_not_refuse_those_of_the_table(tmp_path: Path) -> None:
    """They are widened when they are loaded, and nothing but a handler that runs would load them."""
    seal(tmp_path, "w-00000001.arrows", 1, ("a", pa.int16()), ("new", pa.int16()))
    check_fits(parse_ddl("a int, new smallint"), TABLE, tmp_path)
    with pytest.raises(UsageError, match="'new' is int here and smallint there"):
        check_fits(parse_ddl("a int, new int"), TABLE, tmp_path)


@pytest.mark.parametrize("by", ["day", "Region"])
def test_columns_to_cut_the_table_by_are_looked_for_at_the_start(by: str) -> None:
    with pytest.raises(UsageError, match=f"spark.partition_by names '{by}'"):
        check_fits(parse_ddl("region string"), NEW_TABLE._replace(partition_by=(by,)), None)


@handler(schema="a bigint")
def widened(_message: object) -> None:
    raise AssertionError("no message is handled")


@pytest.fixture
def link() -> Iterator[socket.socket]:
    one, two = socket.socketpair()
    with one, two:
        yield one


def test_a_worker_whose_rows_do_not_fit_does_not_boot(tmp_path: Path, link: socket.socket) -> None:
    """At a start nobody else is there; at a reload the others go on."""
    boot = WorkerBoot(
        worker_id="w", index=0, handler=describe(widened), link=link, transport=Transport.STREAM, slab=None, group="g",
        segments_dir=tmp_path, table=TABLE,
    )  # fmt: skip
    with pytest.raises(UsageError, match="'a' is bigint here and int there"):
        prepare_handler(boot)
    begun: list[str] = []
    _, schema, _ = prepare_handler(dataclasses.replace(boot, schema="a int"), lambda: begun.append("set-up"))
    assert begun == ["set-up"]
    assert schema == parse_ddl("a int")
    _, schema, _ = prepare_handler(dataclasses.replace(boot, segments_dir=None))
    assert schema is None, "results are off"


def test_columns_that_are_inferred_are_compared_before_they_are_frozen(tmp_path: Path) -> None:
    infer = Inferring(tmp_path / COLUMNS_FILE, structlog.get_logger(), lambda schema: check_fits(schema, TABLE, None))
    with pytest.raises(RowError, match="'a' is string here"):
        infer([{"a": "x"}])
    assert not (tmp_path / COLUMNS_FILE).exists()
    assert infer([{"b": "x"}]) == parse_ddl("b string")
