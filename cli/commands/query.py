"""`rocketcrew query`: Spark SQL on the table that the loader fills."""

from __future__ import annotations

import json
from typing import Any

import click

from ...conf.settings import Settings, require
from ..options import table_folder, with_settings
from ..surroundings import surroundings
from ..tables import lines


@click.command()
@click.argument("sql", nargs=-1, required=True)
@click.option("--target", metavar="PATH", help="The table's folder.")
@click.option("--master", metavar="URL", help="Spark's master, such as local[4].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array of rows for each statement.")
@with_settings(target="spark.target", master="spark.master")
def query(settings: Settings, sql: tuple[str, ...], as_json: bool) -> None:
    """Run SQL statements on the views `results` and `latest` of a table.

    `results` has every row; `latest` keeps one set of rows for each message, that of its last attempt.

    \b
    Example:
      rocketcrew query --target .rocketcrew/billing/table 'SELECT count(*) FROM latest'
    """
    # pyspark takes its time to import, and --help does not need it.
    from ...spark.connect import is_remote
    from ...spark.session import SessionSettings, delta_conf, open_any
    from ...spark.views import is_delta, register_views

    require(settings, ["spark.target"], flag_names={"spark.target": "--target PATH"})
    spark, target = settings.spark, table_folder(settings)
    env = surroundings(click.get_current_context()).env
    folder = target.absolute().with_name(f"{target.name}.query")
    conf = {**(delta_conf(spark.delta_jars) if is_delta(target) and not is_remote(spark.master) else {}), **spark.conf}
    session = open_any(
        SessionSettings(
            folder, spark.master, spark.driver_memory, spark.java_home, conf, env, app_name="rocketcrew-query"
        )
    )
    try:
        context: Any = session.spark  # pyspark's types are partial
        register_views(context, target)
        for statement in sql:
            rows = [row.asDict(recursive=True) for row in context.sql(statement).collect()]
            click.echo(json.dumps(rows, default=str) if as_json else "\n".join(lines(rows)))
    finally:
        session.close()
