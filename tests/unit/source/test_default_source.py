from __future__ import annotations

import pickle
import pkgutil
from pathlib import Path

import pytest
import structlog.testing
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

import pyspark_rocketmq
import rocketcrew
from rocketcrew.remoting.errors import UsageError
from rocketcrew.source.batch_reader import BatchReader
from rocketcrew.source.stream_reader import StreamReader
from rocketcrew.source.writers import BatchWriter, StreamWriter

READ = {"nameServer": "127.0.0.1:9876", "subscribe": "t"}
WRITE = {"nameServer": "127.0.0.1:9876", "topic": "t"}
SCHEMA = StructType([StructField("queueOffset", LongType()), StructField("body", BinaryType())])
ROWS = StructType([StructField("body", StringType())])


def source(options: dict[str, str]) -> DataSource:
    return pyspark_rocketmq.DefaultSource(options)


def test_spark_finds_it_beside_the_package() -> None:
    there = [module.name for module in pkgutil.iter_modules([str(Path(rocketcrew.__file__).parent.parent)])]
    assert {"rocketcrew", "pyspark_rocketmq"} <= set(there)
    assert issubclass(pyspark_rocketmq.DefaultSource, DataSource)
    assert pyspark_rocketmq.DefaultSource.name() == "rocketmq"
    assert pickle.loads(pickle.dumps(source(READ))).options == READ


def test_the_schema_has_what_the_options_leave() -> None:
    whole = str(source(READ).schema())
    assert whole.startswith("topic string, brokerName string, queueId int, queueOffset bigint, body binary")
    some = str(source(READ | {"includeBody": "false", "includeproperties": "false"}).schema())
    assert "body" not in some
    assert "properties" not in some
    with pytest.raises(UsageError, match="did you mean includeBody"):
        source(READ | {"includeBodies": "true"}).schema()


def test_readers_and_writers_travel() -> None:
    assert isinstance(pickle.loads(pickle.dumps(source(READ).reader(SCHEMA))), BatchReader)
    assert isinstance(pickle.loads(pickle.dumps(source(READ).streamReader(SCHEMA))), StreamReader)
    assert isinstance(pickle.loads(pickle.dumps(source(WRITE).writer(ROWS, False))), BatchWriter)
    assert isinstance(pickle.loads(pickle.dumps(source(WRITE).streamWriter(ROWS, False))), StreamWriter)


@pytest.mark.parametrize("tag", ["a,b", "a|b", "a | b", "a OR b"])
def test_a_tag_that_looks_like_several_is_warned_of(tag: str) -> None:
    with structlog.testing.capture_logs() as lines:
        source(READ | {"tags": "a || or"}).reader(SCHEMA)
        source(READ | {"tags": f"c || {tag}"}).reader(SCHEMA)
    assert [(line["event"], line["tags"]) for line in lines] == [("tag_looks_like_several", [tag])]


def test_what_cannot_be_read_or_written_is_said_at_once() -> None:
    with pytest.raises(UsageError, match="append"):
        source(WRITE).writer(ROWS, True)
    with pytest.raises(UsageError, match="append"):
        source(WRITE).streamWriter(ROWS, True)
    with pytest.raises(UsageError, match="nameServer is missing"):
        source({"subscribe": "t"}).reader(SCHEMA)
    with pytest.raises(UsageError, match="queueId bigint, and it is queueId int"):
        source(READ).reader(StructType([StructField("queueId", LongType())]))
    with pytest.raises(UsageError, match="column body is int"):
        source(WRITE).writer(StructType([StructField("body", IntegerType())]), False)
