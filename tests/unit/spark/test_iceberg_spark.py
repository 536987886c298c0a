"""Iceberg by Spark: which catalog a table is in, and what Spark is told of it. What it writes genuine servers say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
from structlog.testing import capture_logs

from rocketcrew.conf.formats import not_a_table
from rocketcrew.durable.files import CALLS, FileCalls
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.config import LoaderConfig
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.hdfs import HdfsPath
from rocketcrew.spark.iceberg_catalog import CatalogSpec, catalog_of, hadoop_catalog_of
from rocketcrew.spark.iceberg_spark import CATALOG_CLASS, SparkRows, delete_old_versions, jdbc_properties, session_conf
from rocketcrew.spark.needs import check_installed
from rocketcrew.spark.session import format_conf
from rocketcrew.spark.targets.iceberg import IcebergTarget
from rocketcrew.spark.targets.iceberg_commits import BATCH

HDFS = "hdfs://namenode:8020/data/warehouse/shop/orders"


def test_a_table_on_hdfs_is_in_the_catalog_that_the_folders_above_it_are() -> None:
    spec = hadoop_catalog_of(f"{HDFS}/", {})
    assert spec == CatalogSpec(
        "shop.orders", "rocketcrew", {"type": "hadoop", "warehouse": "hdfs://namenode:8020/data/warehouse"}
    )
    deep = hadoop_catalog_of(HDFS, {"table": "warehouse.shop.orders", "catalog": "prod", "type": "hadoop"})
    assert (deep.table, deep.name, deep.properties["warehouse"]) == (
        "warehouse.shop.orders", "prod", "hdfs://namenode:8020/data",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("hdfs://namenode/orders", {}, "hdfs://namenode/warehouse/namespace/table"),
        (HDFS, {"table": "shop.other"}, "is not the folder of the Iceberg table 'shop.other'"),
        (HDFS, {"warehouse": "hdfs://namenode:8020/other"}, "is in hdfs://namenode:8020/data/warehouse: leave it out"),
        (HDFS, {"type": "rest"}, "Iceberg's Hadoop catalog"),
        (HDFS, {"uri": "http://host"}, "Iceberg's Hadoop catalog"),
        (HDFS, {"token": "hidden"}, "PYICEBERG_CATALOG__ROCKETCREW__TOKEN"),
    ],
)
def test_what_is_no_table_of_a_hadoop_catalog_is_refused(target: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        hadoop_catalog_of(target, options)
    assert said in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_a_hadoop_catalog_on_a_disk_is_refused_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two loaders could have the same commit"):
        catalog_of(tmp_path / "t", {"type": "hadoop"})


def test_spark_is_told_the_catalog_by_its_own_names() -> None:
    spec = CatalogSpec("shop.orders", "prod", {})
    rest = session_conf(
        spec, "rest", {"type": "rest", "uri": "http://host:8181", "token": "t", "py-io-impl": "x"}, "/w"
    )
    assert rest["spark.sql.catalog.prod"] == CATALOG_CLASS
    assert rest["spark.sql.catalog.prod.type"] == "rest"
    assert (rest["spark.sql.catalog.prod.uri"], rest["spark.sql.catalog.prod.token"]) == ("http://host:8181", "t")
    assert rest["spark.sql.catalog.prod.cache-enabled"] == "false"
    assert "spark.sql.catalog.prod.py-io-impl" not in rest
    sql = session_conf(spec, "sql", {"type": "sql", "uri": "sqlite:////w/catalog.db"}, "/w")
    assert (sql["spark.sql.catalog.prod.type"], sql["spark.sql.catalog.prod.warehouse"]) == ("jdbc", "file:///w")


@pytest.mark.parametrize(
    ("uri", "found", "keys"),
    [
        ("sqlite:////data/catalog.db?timeout=9", "jdbc:sqlite:/data/catalog.db?busy_timeout=60000", {}),
        ("sqlite:////data/my%20cat.db", "jdbc:sqlite:/data/my cat.db?busy_timeout=60000", {}),
        ("postgresql+psycopg2://host:5432/db?sslmode=require", "jdbc:postgresql://host:5432/db?sslmode=require", {}),
        (
            "postgresql+psycopg2://me:s%40cret@host:5432/a%20b?sslmode=require",
            "jdbc:postgresql://host:5432/a%20b?sslmode=require",
            {"jdbc.user": "me", "jdbc.password": "s@cret"},
        ),
        (
            "postgresql://[::1]/db?user=me&password=s&x=1",
            "jdbc:postgresql://[::1]/db?x=1",
            {"jdbc.user": "me", "jdbc.password": "s"},
        ),
        ("mysql://host/db", "jdbc:mysql://host/db", {}),
    ],
)
def test_a_database_as_java_names_it(uri: str, found: str, keys: dict[str, str]) -> None:
    assert jdbc_properties(uri) == {"uri": found, **keys}
    conf = session_conf(CatalogSpec("a.b", "prod", {}), "sql", {"type": "sql", "uri": uri}, "/w")
    assert conf["spark.sql.catalog.prod.uri"] == found
    assert {name for name in conf if ".jdbc." in name} == {f"spark.sql.catalog.prod.{name}" for name in keys}


@pytest.mark.parametrize("uri", ["me:hidden@host", "sqlite:////data/a%3Fb.db"])
def test_what_java_cannot_open_is_refused_without_its_keys(uri: str) -> None:
    with pytest.raises(UsageError) as refused:
        jdbc_properties(uri)
    assert "spark.options.uri" in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_java_and_pyiceberg_open_one_file(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/my%20cat.db"
    spec = CatalogSpec("a.b", "prod", {"type": "sql", "uri": uri})
    catalog = load_catalog("prod", type="sql", uri=uri)
    catalog.close()
    (made,) = tmp_path.iterdir()
    assert spec.sqlite == made
    assert jdbc_properties(uri)["uri"].startswith(f"jdbc:sqlite:{made}?")


@pytest.mark.parametrize(
    ("name", "kind", "said"), [("prod", "glue", "spark.format = iceberg"), ("my prod", "rest", "spark.options.catalog")]
)
def test_catalogs_that_spark_is_not_told_of_are_refused(name: str, kind: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        session_conf(CatalogSpec("a.b", name, {}), kind, {}, "/w")


def test_what_is_not_installed_is_said_with_the_ways_out() -> None:
    there = {"pyspark": "4.1.4", "pyiceberg": "0.12.0"}
    check_installed("iceberg-spark", installed=lambda package: there.get(package, ""))
    with pytest.raises(UsageError, match=r"rocketcrew\[iceberg-spark\].*spark.format = iceberg"):
        check_installed("iceberg-spark", installed={"pyiceberg": "0.12.0", "pyspark": ""}.__getitem__)
    with pytest.raises(UsageError, match=r"no build for Spark 4\.3\.0.*spark\.iceberg_jars"):
        check_installed("iceberg-spark", installed={**there, "pyspark": "4.3.0"}.__getitem__)
    check_installed("iceberg-spark", installed={**there, "pyspark": "4.3.0"}.__getitem__, iceberg_jars="/jars")


def test_a_session_gets_the_jars_of_its_format(tmp_path: Path) -> None:
    (tmp_path / "iceberg-spark-runtime-4.1_2.13-1.11.0.jar").touch()
    assert format_conf("parquet", "", "") == {}
    assert format_conf("iceberg-spark", "", str(tmp_path))["spark.jars"].endswith("1.11.0.jar")
    with pytest.raises(UsageError, match=r"spark\.iceberg_jars .* holds no iceberg-spark-runtime jar"):
        format_conf("iceberg-spark", "", "/other.jar")


def test_where_such_a_table_can_be() -> None:
    assert not_a_table(HDFS, "iceberg-spark") == ""
    assert "set spark.format = iceberg-spark" in not_a_table(HDFS, "iceberg")
    assert "is on S3" in not_a_table("s3://bucket/table", "iceberg-spark")
    with pytest.raises(UsageError, match="Spark Connect"):
        LoaderConfig(Path("staging"), "table", format="iceberg-spark", master="sc://host:15002")


class AppendedByPyiceberg:
    """In place of Spark: the job appends a row to the branch `b`."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def run(self, *_of: object) -> None:
        self.table.refresh().append(pa.table({"a": [1]}), branch="b")


class Counted(FileCalls):
    """Remembers which files were opened to be fsynced."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, path: str, flags: int) -> int:
        self.opened.append(path)
        return super().open(path, flags)


@pytest.fixture
def table(tmp_path: Path) -> Any:
    catalog = load_catalog("c", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("n")
    merging = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    made = catalog.create_table("n.t", pa.schema([("a", pa.int64())]), properties=merging)
    made.append(pa.table({"a": [0]}))
    yield made
    catalog.close()


def rows_of(table: Any, calls: FileCalls = CALLS) -> SparkRows:
    writer: Any = AppendedByPyiceberg(table)
    return SparkRows(CatalogSpec("n.t", "c", {}), "", writer, calls)


def test_a_commit_syncs_its_own_files_though_it_merges_the_manifests_of_others(table: Any) -> None:
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "b").commit()
    plan: Any = SimpleNamespace(columns=(), batch=1)
    staged: Any = SimpleNamespace(files=())
    synced: list[int] = []
    for _ in range(4):
        calls = Counted()
        rows_of(table, calls).append(table.refresh, plan, staged, "b", {})
        synced.append(sum(name.endswith(".parquet") for name in calls.opened))
    assert len(table.refresh().snapshot_by_name("b").manifests(table.io)) < 4, "they were merged"
    assert synced == [1, 1, 1, 1]


def test_a_branch_that_was_swept_before_the_rows_came_is_a_lost_race(table: Any) -> None:
    plan: Any = SimpleNamespace(columns=(), batch=1)
    staged: Any = SimpleNamespace(files=())
    with pytest.raises(CommitFailedException, match="the branch b is gone"):
        rows_of(table).append(table.refresh, plan, staged, "b", {})


@pytest.mark.parametrize("word", ["true", "TRUE", "True"])
def test_a_table_on_hdfs_whose_commits_delete_versions_is_refused_however_java_is_told_so(
    word: str, tmp_path: Path
) -> None:
    properties = {"write.metadata.delete-after-commit.enabled": word, BATCH: "1"}
    java: Any = SimpleNamespace(load_table=lambda _name: SimpleNamespace(properties=properties), close=lambda: None)
    target = IcebergTarget(tmp_path, CatalogSpec("n.t", "c", {}), java=java)
    with pytest.raises(LoaderError, match="take back what others have committed"):
        target.table()


def test_old_versions_that_cannot_be_deleted_fail_no_batch() -> None:
    class Refusing:
        def util(self) -> object:
            raise LoaderError("HDFS refuses it: Permission denied")

    root: Any = SimpleNamespace(url="hdfs://n/t", files=Refusing(), path=str)
    with capture_logs() as logs:
        delete_old_versions(HdfsPath(root), 0.0)
    assert [(one["event"], one["error"]) for one in logs] == [
        ("iceberg_versions_not_deleted", "HDFS refuses it: Permission denied")
    ]
