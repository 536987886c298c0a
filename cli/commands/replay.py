"""`rocketcrew replay`: a handler over a past stretch of time, on Spark, and what is different from a table."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...client.clock import wall_ms
from ...conf.exit_codes import EXIT_FAILURE
from ...conf.printed import counted
from ...conf.settings import Settings
from ...workers.loading import describe
from ..json_text import json_text
from ..options import FOLDER, with_settings
from ..program_lines import own_stdout
from ..surroundings import import_from_here, surroundings
from ..tables import seen
from ..times import parse_time

if TYPE_CHECKING:
    from ...engine.replay import Replayed


@click.command()
@click.argument("handler", metavar="HANDLER")
@click.option("--from", "from_", metavar="TIME", required=True,
              help="Messages stored from here on: 2026-01-31T08:00 or 20260131080000 (local time unless it names a"
                   " zone), milliseconds since 1970, or how long ago, as 2h.")  # fmt: skip
@click.option("--to", metavar="TIME", help="Until before this time. Otherwise now.")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC[:TAGS]", help="A topic. May be repeated.")
@click.option("-g", "--group", metavar="GROUP", help="The group whose handler this is; its offsets stay as they are.")
@click.option("--output", metavar="DIR", type=FOLDER,
              help="Keep the rows there, as Parquet files; a folder that is new or empty.")  # fmt: skip
@click.option("--diff", metavar="TABLE", type=FOLDER,
              help="Compare with the rows that the group has in this table.")  # fmt: skip
@click.option("--schema", metavar="DDL", help="Columns of the rows, where the handler does not declare them.")
@click.option("--master", metavar="URL", help="Spark's master, such as local[4] or spark://host:7077.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_settings(topics="consumer.topics", group="consumer.group", schema="results.schema", master="spark.master")
@click.pass_context
def replay(
    context: click.Context,
    settings: Settings,
    handler: str,
    from_: str,
    to: str | None,
    output: Path | None,
    diff: Path | None,
    as_json: bool,
) -> None:
    """Run HANDLER over a past stretch of time, as one Spark job.

    Nothing of the group is touched: no offsets, no retries, no table. Messages run once each, those that fail are counted and
    shown. What retention has deleted is not there any more.

    With --diff the rows are compared with a table's: by message, by the row's place in it, and by the columns that both
    have; other columns are named. So a new version of a handler can be tried on yesterday's messages.

    Exits with 1 when rows differ; without --diff, when messages failed.

    \b
    Examples:
      rocketcrew replay app:handle --from 2h -t orders -g billing -n 10.0.0.5:9876
      rocketcrew replay app:new --from 2026-01-30 --to 2026-01-31 \\
          -t orders -g billing --diff /data/billing
    """
    from ...spark.needs import check_pyspark

    check_pyspark("rocketcrew replay")
    # pyspark takes its time to import, and --help does not need it.
    from ...engine.replay import Window, run_replay

    now_ms = wall_ms()
    to_ms = now_ms if to is None else parse_time("--to", to, now_ms)
    window = Window(parse_time("--from", from_, now_ms), to_ms, output, diff)
    import_from_here()
    with own_stdout(as_json=as_json):
        result = run_replay(settings, describe(handler), surroundings(context).env, window)
    if as_json:
        told = asdict(result) | {"fine": result.fine}
        click.echo(json_text(told))
    else:
        click.echo(seen("\n".join(as_lines(result))))
    context.exit(0 if result.fine else EXIT_FAILURE)


def as_lines(result: Replayed) -> list[str]:
    """The result for people."""
    lines = [f"{counted(result.handled, 'message')} handled, {result.failed} failed, {counted(result.rows, 'row')}"]
    lines += [
        f"failed: {one.topic} {one.broker} {one.queue_id} offset {one.offset}: {one.error}" for one in result.failures
    ]
    found = result.difference
    if found is None:
        return lines
    lines += [f"not compared: {column}" for column in found.not_compared]
    lines += [
        f"changed: {json_text(there)} in the table, {json_text(here)} in the replay"
        for here, there in found.changed_samples
    ]
    lines += [f"only in the replay: {json_text(row)}" for row in found.replay_samples]
    lines += [f"only in the table:  {json_text(row)}" for row in found.table_samples]
    verdict = "the rows are the same" if found.same else "the rows differ"
    lines.append(
        f"{verdict}: {found.changed} changed, {found.only_replay} only in the replay, {found.only_table} only in the table"
    )
    return lines
