"""What of Spark Connect is decided here: addresses, what is shown of them, rows that travel over the connection."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, DecimalType, LongType, StringType, StructType, TimestampType

from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.config import PLAN_TRIGGERS, LoaderConfig
from rocketcrew.spark.connect import ConnectSession, as_told, endpoint, is_remote, open_connect, refused, shown
from rocketcrew.spark.errors import LoaderError, SparkDiedError, SparkStartError
from rocketcrew.spark.guest import GuestWriter
from rocketcrew.spark.session import SessionSettings
from rocketcrew.spark.spark_writer import SparkWriter

pytest.importorskip("grpc")


@pytest.mark.parametrize(
    ("master", "address"),
    [
        ("sc://h", ("h", 15002)),
        ("sc://10.0.0.1:1/;token=abc", ("10.0.0.1", 1)),
        ("sc://h:5/;use_ssl=true", ("h", 5)),
    ],
)
def test_addresses(master: str, address: tuple[str, int]) -> None:
    assert is_remote(master)
    assert endpoint(master) == address


@pytest.mark.parametrize("master", ["sc://", "sc://h:x", "sc://h:99999999", "sc://h:1/path", "sc://h:1;token=secret"])
def test_what_is_no_address_is_said_and_no_secret_with_it(master: str) -> None:
    with pytest.raises(UsageError, match="write it as sc://host:15002") as refused:
        endpoint(master)
    assert "secret" not in str(refused.value)


def test_of_a_master_with_a_token_only_the_address_is_shown() -> None:
    assert shown("sc://h:1/;use_ssl=true;token=secret") == "sc://h:1"
    assert shown("spark://h:7077") == "spark://h:7077"
    assert shown("sc://user:secret@h:1") == "sc://user:********@h:1"


@pytest.mark.parametrize(
    ("status", "details", "hint"),
    [
        ("UNAUTHENTICATED", "Invalid authentication token", "Give its token: SPARK_CONNECT_AUTHENTICATE_TOKEN"),
        ("UNAVAILABLE", "Tls handshake failed: error:100000f7:WRONG_VERSION_NUMBER: OK", "It speaks no TLS"),
        ("UNAVAILABLE", "Stream removed", "Results stay safe"),
        ("INTERNAL", "no room\nand more of it", "Results stay safe"),
    ],
)
def test_what_grpc_says_is_passed_on(status: str, details: str, hint: str) -> None:
    text = (
        f'<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.{status}\n\tdetails = "{details}"\n>'
    )
    said = str(refused("sc://h:1/;token=secret", RuntimeError(text), 0))
    assert said.startswith(f"the Spark Connect server sc://h:1 gives no session: {details.splitlines()[0]}. {hint}")


def test_nobody_is_there() -> None:
    with pytest.raises(SparkStartError, match=r"no Spark Connect server at 127\.0\.0\.1:1 .*correct spark\.master"):
        open_connect("sc://127.0.0.1:1/;token=secret", {})


def test_somebody_is_there_and_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        port = hanging.getsockname()[1]
        with pytest.raises(
            SparkStartError, match=rf"server sc://127\.0\.0\.1:{port} gives no session: no answer within 0.5 s"
        ):
            open_connect(f"sc://127.0.0.1:{port}", {}, start_timeout_s=0.5)


class Server:
    """In place of a session at a server: it takes settings and tags, and answers questions."""

    def __init__(self) -> None:
        self.conf = self

    def set(self, name: str, value: str) -> None:
        del name, value

    def get(self, name: str) -> str:
        return name

    def getTags(self) -> set[str]:  # noqa: N802 - Spark's name
        return {"rocketcrew"}

    def addTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        del tag


def test_a_job_that_fails_there_names_no_log_of_ours(tmp_path: Path) -> None:
    server: Any = Server()
    settings = SessionSettings(tmp_path, "sc://h:1/;token=secret")
    writer = SparkWriter(settings, 0, opening=lambda _: ConnectSession(server, settings.master))
    writer.start()

    def job(*_: object) -> None:
        raise RuntimeError("no room")

    with pytest.raises(LoaderError) as failed:
        writer.job("a job", job)
    assert str(failed.value) == (
        "the Spark job failed: no room. The log of the Spark Connect server sc://h:1 says more; the segments stay"
    )


class Notebook(Server):
    """In place of somebody's session: itself, its context, and both in its JVM."""

    master, stopped = "yarn", False

    def __init__(self) -> None:
        super().__init__()
        self.sparkContext = self._jsc = self

    def __getattr__(self, name: str) -> Any:
        told: dict[str, Any] = {
            "sc": self,
            "newSession": self,
            "isStopped": self.stopped,
            "getConf": self,
            "getAll": (),
        }

        def answer(*_: object) -> Any:
            return told.get(name)

        return answer


def test_a_job_whose_session_was_stopped_by_its_owner(tmp_path: Path) -> None:
    session: Any = Notebook()
    writer = GuestWriter(session, tmp_path)
    writer.start()

    def job(*_: object) -> None:
        session.stopped = True
        raise RuntimeError("SparkContext was shut down")

    with pytest.raises(SparkDiedError) as failed:
        writer.job("a job", job)
    assert str(failed.value) == "the Spark session was stopped: the segments stay"


@pytest.mark.parametrize(("format_", "target"), [("iceberg-spark", "table"), ("parquet", "hdfs://name:8020/table")])
def test_what_needs_spark_s_jvm_is_refused_without_the_token(format_: str, target: str) -> None:
    with pytest.raises(UsageError, match=r"Spark Connect server \(sc://h:1/;\*+\) there is none here"):
        LoaderConfig(Path("s"), target, format=format_, master="sc://h:1/;token=S3CRET")


def test_plans_are_smaller_where_rows_may_be_in_memory() -> None:
    here = LoaderConfig(Path("s"), Path("t"))
    there = LoaderConfig(Path("s"), Path("t"), master="sc://h")
    assert (here.bounds.rows_max, there.bounds.rows_max) == (here.max_rows, there.max_rows), "what the setting says"
    assert (here.bounds.bytes_max, there.bounds.bytes_max) == (here.max_bytes * PLAN_TRIGGERS, there.max_bytes)


def test_rows_have_the_columns_that_spark_is_told() -> None:
    schema = StructType().add("a", LongType()).add("b", BinaryType()).add("t", TimestampType())
    schema = schema.add("d", DecimalType(20, 0)).add("later", StringType())
    when = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    rows = pa.table({
        "d": pa.array([2**64 - 1], pa.uint64()), "t": pa.array([when], pa.timestamp("us", tz="UTC")),
        "a": pa.array([7], pa.int32()), "b": pa.array([b"x"], pa.large_binary()),
    })  # fmt: skip
    told = as_told(rows, schema)
    assert told.column_names == ["a", "b", "t", "d", "later"]
    assert [str(told.column(at).type) for at in range(4)] == [
        "int64",
        "binary",
        "timestamp[us, tz=UTC]",
        "decimal128(20, 0)",
    ]
    (row,) = told.to_pylist()
    assert (row["a"], row["b"], row["t"], int(row["d"]), row["later"]) == (7, b"x", when, 2**64 - 1, None)
