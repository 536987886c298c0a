"""`rocketcrew query`: SQL on the table that the loader fills, by DuckDB or by Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click

from ...conf.formats import on_hdfs
from ...conf.settings import Settings, require
from ...remoting.errors import UsageError
from ..json_text import json_text
from ..options import table_place, with_settings
from ..surroundings import surroundings
from ..tables import lines

BY_DUCKDB: Final = "--engine duckdb, which answers in a moment and needs no Java: pip install 'rocketcrew[duckdb]'"
VERIFY: Final = {"spark.hadoop.parquet.page.verify-checksum.enabled": "true"}


@click.command()
@click.argument("sql", nargs=-1, required=True)
@click.option("--target", metavar="PATH", help="The table's folder.")
@click.option(
    "--engine",
    type=click.Choice(["auto", "duckdb", "spark"]),
    default="auto",
    help="Who answers: DuckDB, Spark, or DuckDB where it is installed, no --master is given and the table is not on HDFS"
    " (auto, the default).",
)
@click.option("--master", metavar="URL", help="Spark's master, such as local[4].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array of rows for each statement.")
@with_settings(asks_cluster=False, target="spark.target", master="spark.master")
def query(settings: Settings, sql: tuple[str, ...], engine: str, as_json: bool) -> None:
    """Run SQL statements on the views `results` and `latest` of a table.

    `results` has every row; `latest` keeps one set of rows for each message, that of its last attempt. DuckDB answers in a
    moment (pip install 'rocketcrew[duckdb]'); Spark takes longer to start, and its dialect is that of Spark SQL.

    \b
    Example:
      rocketcrew query --target .rocketcrew/billing/table \\
          'SELECT count(*) FROM latest'
    """
    require(settings, ["spark.target"], flag_names={"spark.target": "--target PATH"})
    given = click.get_current_context().get_parameter_source("master") is not click.core.ParameterSource.DEFAULT
    if given and engine == "duckdb":
        raise UsageError("--master is Spark's, and --engine duckdb asks no Spark: leave one of the two out")
    by_spark = given or on_hdfs(settings.spark.target)
    answers = _by_duckdb if _wants_duckdb(engine, by_spark) else _by_spark
    for rows in answers(settings, sql):
        click.echo(json_text(rows) if as_json else "\n".join(lines(rows)))


def _wants_duckdb(engine: str, by_spark: bool) -> bool:
    installed = find_spec("duckdb") is not None
    if engine == "duckdb" and not installed:
        raise UsageError("--engine duckdb needs DuckDB: pip install 'rocketcrew[duckdb]'")
    return engine == "duckdb" or (engine == "auto" and installed and not by_spark)


def _by_duckdb(settings: Settings, sql: tuple[str, ...]) -> Iterator[Sequence[Mapping[str, Any]]]:
    from ..reading import DuckViews

    views = DuckViews(table_place(settings, not_on_hdfs="DuckDB does not reach it. Ask it by Spark: --engine spark"))
    try:
        yield from map(views.answer, sql)
    finally:
        views.close()


def _by_spark(settings: Settings, sql: tuple[str, ...]) -> Iterator[Sequence[Mapping[str, Any]]]:
    # pyspark takes its time to import, and --help does not need it.
    from ...spark.delta_log import is_delta
    from ...spark.hdfs import hdfs_table
    from ...spark.needs import check_pyspark
    from ...spark.session import SessionSettings, format_conf, open_any
    from ...spark.views import answer, refuse_iceberg, register_views

    spark = settings.spark
    target = None if on_hdfs(spark.target) else table_place(settings, not_on_hdfs="")  # HDFS is asked by the session
    if target is not None and not isinstance(target, Path):
        raise UsageError(
            f"{target} is in a bucket: ask it by DuckDB (--engine duckdb; pip install 'rocketcrew[duckdb]'). Your own Spark"
            " reads it as format delta, with hadoop-aws"
        )
    if target is not None:
        refuse_iceberg(target)
    check_pyspark("rocketcrew query", instead="" if target is None else BY_DUCKDB)
    env = surroundings(click.get_current_context()).env
    kind = spark.format if target is None else "delta" if is_delta(target) else "parquet"
    conf = {**VERIFY, **format_conf(kind, spark.delta_jars, spark.iceberg_jars, spark.master), **spark.conf}
    with tempfile.TemporaryDirectory(prefix="rocketcrew-query-") as folder:
        session = open_any(
            SessionSettings(
                Path(folder), spark.master, spark.driver_memory, spark.java_home, conf, env, app_name="rocketcrew-query"
            )
        )
        try:
            context: Any = session.spark  # pyspark's types are partial
            register_views(context, target or hdfs_table(spark.target, context))
            for statement in sql:
                yield answer(context, statement)
        finally:
            session.close()
