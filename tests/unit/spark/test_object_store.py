"""Tables in a bucket without a server: what is a target, which options there are, and objects used like files."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest
from obstore.exceptions import BaseError, GenericError, PermissionDeniedError
from obstore.store import MemoryStore

from rocketcrew.conf.formats import not_a_table, on_s3
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import NO_ROWS, BatchOutcomes, Outcomes
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.arrow_writer import ArrowWriter
from rocketcrew.spark.config import LoaderConfig
from rocketcrew.spark.hdfs import hdfs_table
from rocketcrew.spark.object_store import (
    BOUNDS,
    Bucket,
    ObjectPath,
    check_conditional_puts,
    in_spark,
    not_asked,
    place_of,
    refuse_other_endpoint,
    short,
    write_whole,
)
from rocketcrew.spark.rerun import only_rerun
from rocketcrew.spark.table_state import ledger_outcomes
from rocketcrew.spark.targets.making import make_target

KEY = QueueKey("g", "orders", "broker-a", 0)


@pytest.fixture
def table() -> ObjectPath:
    return ObjectPath(Bucket("s3://bucket/warehouse/table", {}, MemoryStore()))


@pytest.mark.parametrize("target", ["s3://bucket/table", "s3a://my.bucket-1/a/b c/table/", "S3://bucket/t"])
def test_what_is_on_s3(target: str) -> None:
    assert on_s3(target)
    assert not on_s3(f"/data/{target}")


@pytest.mark.parametrize(
    ("target", "format_", "said"),
    [
        ("s3://bucket/table", "deltalake", ""),
        ("s3a://bucket/a/table/", "deltalake", ""),
        ("s3://bucket/table", "parquet", "S3 has no rename: set spark.format = deltalake"),
        ("s3a://bucket/table", "pyarrow", "S3 has no rename: set spark.format = deltalake"),
        ("s3://bucket/table", "delta", "makes no conditional puts"),
        ("s3://bucket/table", "orc", "what Spark writes there"),
        ("s3://bucket", "deltalake", "not s3://bucket/table"),
        ("s3://bucket/", "deltalake", "not s3://bucket/table"),
        ("s3://key:secret@bucket/table", "deltalake", "not s3://bucket/table"),
        ("s3://bucket/table?versionId=1", "deltalake", "not s3://bucket/table"),
        ("gs://bucket/table", "deltalake", "with spark.format = deltalake, s3://bucket/table"),
        ("hdfs://name/table", "parquet", ""),
        ("hdfs://name:8020/a/day=1/table/", "parquet", ""),
        ("hdfs://name/table", "pyarrow", "without Spark's JVM nothing is written there"),
        ("hdfs://name/table", "deltalake", "its log is read without Spark's JVM"),
        ("hdfs://name/table", "delta", "set spark.format = parquet"),
        ("hdfs://name", "parquet", "is not hdfs://namenode:port/path"),
        ("hdfs:///table", "parquet", "is not hdfs://namenode:port/path"),
        ("hdfs://name/ta*ble", "parquet", "is not hdfs://namenode:port/path"),
        ("HDFS://name/table", "parquet", "is not hdfs://namenode:port/path"),
        ("webhdfs://name/table", "parquet", "is a URL (webhdfs:)"),
        ("table", "parquet", ""),
        ("ta%20ble", "parquet", ""),
        ("ta#ble", "", ""),
        ("100%/a%zz/é ü:+", "deltalake", ""),
        ("ta%20ble/t", "deltalake", "has '%20' in it"),
        ("ta#ble", "deltalake", "has '#' in it"),
        ("ta?ble", "delta", "has '?' in it"),
        ("ta[b]le", "deltalake", "choose another folder"),
    ],
)
def test_what_can_be_the_place_of_a_table(target: str, format_: str, said: str) -> None:
    wrong = not_a_table(target, format_)
    assert said in wrong
    assert bool(said) == bool(wrong)


def test_a_table_on_hdfs_is_written_by_a_spark_of_ours(tmp_path: Path) -> None:
    config = LoaderConfig(tmp_path, "hdfs://name:8020/table/")
    assert config.identity == "hdfs://name:8020/table"
    with ThreadPoolExecutor(1) as threads, pytest.raises(UsageError, match="where only Spark writes"):
        make_target(config, ArrowWriter(), threads)
    with pytest.raises(UsageError, match="with a Spark Connect server"):
        LoaderConfig(tmp_path, "hdfs://name:8020/table", master="sc://host:15002")
    with pytest.raises(UsageError, match="through the JVM of a Spark session only"):
        place_of("hdfs://name:8020/table", {})


def test_a_path_on_hdfs_is_put_together_without_asking() -> None:
    table = hdfs_table("hdfs://name:8020/warehouse/table/", None)
    state = table / "batch_id=7" / "_loaded.json"
    assert str(state) == "hdfs://name:8020/warehouse/table/batch_id=7/_loaded.json"
    assert (state.name, str(state.parent), table.name) == ("_loaded.json", f"{table}/batch_id=7", "table")
    assert (table == hdfs_table(str(table), None), in_spark(state)) == (True, str(state))
    with pytest.raises(UsageError, match="has none here: use another master"):
        state.exists()


@pytest.mark.parametrize("target", ["s3://bucket/table", "s3a://bucket/table/"])
def test_a_loader_knows_a_table_by_one_name_whatever_the_scheme(target: str, tmp_path: Path) -> None:
    config = LoaderConfig(tmp_path, target, format="deltalake", options={"region": "eu-central-1"})
    assert config.identity == "s3://bucket/table"
    assert isinstance(config.place, ObjectPath)
    wanted = {"AWS_REGION": "eu-central-1", "AWS_CONDITIONAL_PUT": "etag", **BOUNDS}
    assert config.place.storage_options == wanted, "delta-rs tries no longer than we do"


@pytest.mark.parametrize("name", ["aws_secret_access_key", "access_key_id", "session_token", "password"])
def test_keys_do_not_go_into_settings(name: str) -> None:
    with pytest.raises(UsageError, match="AWS_SECRET_ACCESS_KEY") as refused:
        place_of("s3://bucket/table", {name: "hidden"})
    assert "hidden" not in str(refused.value)


def test_options_that_a_bucket_does_not_take_are_named() -> None:
    with pytest.raises(UsageError, match=r"'conditional_put'.*region, endpoint, allow_http"):
        place_of("s3://bucket/table", {"conditional_put": "disabled"})
    assert place_of("table", {"url": "jdbc:x"}) == Path("table")


def test_a_variable_that_names_another_server_than_the_option_is_refused() -> None:
    option, variable = {"endpoint": "http://one:9000"}, "AWS_ENDPOINT_URL_S3"
    with pytest.raises(UsageError, match=f"http://one:9000, and {variable} .* is http://two:9000"):
        refuse_other_endpoint(option, {variable: "http://two:9000"})
    refuse_other_endpoint(option, {variable: "http://one:9000/"})
    refuse_other_endpoint(option, {"AWS_ENDPOINT_URL": "http://two:9000"})
    refuse_other_endpoint({}, {variable: "http://two:9000"})


def test_an_object_is_used_like_a_file(table: ObjectPath) -> None:
    file = table / "_rocketcrew" / "1-p.json"
    assert (str(file), file.name, str(file.parent)) == (
        f"{table}/_rocketcrew/1-p.json",
        "1-p.json",
        f"{table}/_rocketcrew",
    )
    assert not table.exists()
    with pytest.raises(FileNotFoundError):
        file.read_bytes()
    with pytest.raises(FileNotFoundError):
        file.stat()
    write_whole(file, b"one")
    write_whole(file, b"two")
    write_whole(table / "_rocketcrew" / "outcomes" / "1.gz", b"")
    assert (file.read_bytes(), file.stat().st_size, file.exists(), file.is_dir()) == (b"two", 3, True, False)
    assert table.exists()
    assert file.parent.is_dir()
    assert {path.name for path in file.parent.iterdir()} == {"1-p.json", "outcomes"}
    assert list(file.parent.glob("1-*.json")) == [file]
    assert [path.name for path in table.iterdir()] == ["_rocketcrew"]
    file.unlink()
    assert not file.exists()


def test_two_writers_of_one_file_in_one_moment_do_not_share_a_draft(tmp_path: Path) -> None:
    """They may have the same process id, in containers on two hosts with one file system; here it is one process."""
    file = tmp_path / "state" / "iceberg.json"
    both = [bytes([number]) * 100_000 for number in (1, 2)]

    def write(data: bytes) -> None:
        for _ in range(30):
            write_whole(file, data)
            assert file.read_bytes() in both

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, both))
    assert [path.name for path in file.parent.iterdir()] == ["iceberg.json"]


def test_an_object_that_is_there_is_not_created(table: ObjectPath) -> None:
    (table / "a").create(b"one")
    with pytest.raises(FileExistsError):
        (table / "a").create(b"two")
    assert (table / "a").read_bytes() == b"one"


def test_the_proof_leaves_nothing(table: ObjectPath, tmp_path: Path) -> None:
    check_conditional_puts(table)
    assert not table.exists()
    check_conditional_puts(tmp_path)
    assert list(tmp_path.iterdir()) == []


class Careless(ObjectPath):
    """A server that answers a put with a condition in its own way."""

    answers: ClassVar[list[type[Exception] | None]] = []

    def __truediv__(self, name: str) -> ObjectPath:
        return Careless(self.root, f"{self._key}/{name}".strip("/"))

    def create(self, data: bytes) -> None:
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer
        self.write_bytes(data)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([FileExistsError, None, FileExistsError], ""),
        ([FileExistsError] * 3, "refused 3 puts of new objects"),
        ([None, None], "ignores If-None-Match"),
        ([FileNotFoundError], "there is no such bucket"),
    ],
)
def test_what_proves_that_a_server_keeps_conditions(
    table: ObjectPath, answers: list[type[Exception] | None], said: str
) -> None:
    Careless.answers = answers.copy()
    with pytest.raises(UsageError, match=said) if said else contextlib.nullcontext():
        check_conditional_puts(Careless(table.root))
    assert not Careless.answers
    assert not table.exists()


def told(batch: int) -> BatchOutcomes:
    return BatchOutcomes(1, Outcomes.of([(NO_ROWS, OffsetSet.of([(KEY, IntervalSet.of([(batch, batch + 1)]))]))]))


def test_outcomes_are_merged_in_a_bucket_as_on_a_disk(table: ObjectPath, tmp_path: Path) -> None:
    for place in (table, tmp_path):
        for batch in range(1, 6):
            write_whole(place / "outcomes" / f"{batch}-{batch:08d}-p.json.gz", told(batch).pack())
        levels = ledger_outcomes(place, 5, fan=2)
        whole = [BatchOutcomes(1, told(batch).outcomes) for batch in range(1, 6)]
        assert levels.read() == whole
        levels.tidy(0.0, 1.0)
        assert {path.name for path in (place / "outcomes").iterdir()} == {"1-4.2.json.gz", "5-00000005-p.json.gz"}
        assert sum(one.rows or 0 for one in levels.read()) == 5


def test_a_rerun_is_refused_with_the_way_out() -> None:
    remedy = "reset -g GROUP -t TOPIC --to TIME --reprocess --target s3://bucket/table"
    with pytest.raises(UsageError, match=remedy), only_rerun(place_of("s3://bucket/table", {})):
        pass


def test_what_a_server_said_is_one_line_without_colours_and_xml() -> None:
    said = "Kernel error -> x\n  \x1b[31m↳\x1b[0m request forbidden:\n <?xml version='1.0'?><Error/>\nDebug source: y"
    assert short(OSError(said)) == "Kernel error -> x: request forbidden"


@pytest.mark.parametrize(
    ("error", "about_keys"),
    [
        (GenericError("Error performing PUT http://169.254.169.254/latest/api/token in 1.2s - HTTP error"), True),
        (GenericError("Error performing GET http://169.254.170.2/v2/credentials in 1.2s - HTTP error"), True),
        (PermissionDeniedError("403 Forbidden"), True),
        (GenericError("Error performing PUT http://minio:9000/warehouse/x in 1.2s - HTTP error"), False),
    ],
)
def test_an_error_about_keys_says_where_they_come_from(table: ObjectPath, error: BaseError, about_keys: bool) -> None:
    """Without keys the machine is asked for those of its role: what came back named only that address."""
    said = str(not_asked(table, error))
    assert said.startswith(f"{table}: the S3 server can't be asked: ")
    assert ("Keys come from AWS_ACCESS_KEY_ID" in said) is about_keys
