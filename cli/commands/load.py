"""`rocketcrew load`: the loader process by itself, over one folder of sealed segments."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...conf.printed import counted
from ...conf.segment_format import FOLDER_FORMATS, LOADER_STATUS_FILE, READY_DIR
from ...conf.settings import Settings, require
from ...spark.needs import check_writer
from ...spark.status import read_status
from ..changing import changes, would
from ..json_text import json_text
from ..options import FOLDER_THERE, with_settings
from ..program_lines import own_stdout
from ..stagings import check_staging
from ..surroundings import import_from_here, surroundings

if TYPE_CHECKING:
    from ...spark.config import LoaderConfig


def _pairs(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in value:
        name, equals, rest = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", context, parameter)
        found[name.strip()] = rest
    return found


@click.command()
@click.option("--staging", "stagings", metavar="DIR", type=FOLDER_THERE, required=True,
              multiple=True, help="The folder that workers seal segments into: <data_dir>/<group>/<slot>/segments. May be"
                                  " repeated: one loader for several supervisors.")  # fmt: skip
@click.option(
    "--target",
    metavar="PATH",
    help="The table's folder, made when it is not there; for other formats what Spark saves to.",
)
@click.option("--once/--follow", "once", default=True,
              help="Load what is sealed and end (default), or go on as more is sealed.")  # fmt: skip
@click.option(
    "--master", metavar="URL", help="Spark's master, such as local[4] or spark://host:7077 or sc://host:15002."
)
@click.option(
    "--quarantine",
    is_flag=True,
    help="Set aside segments whose columns do not fit the table, in bad/. Otherwise they end the command at its start.",
)
@click.option(
    "--table-replaced",
    is_flag=True,
    help="The table was removed, replaced or taken back: note how many batches it has lost, for reconcile, and fill it on.",
)
@click.option("--conf", "extra", metavar="NAME=VALUE", multiple=True, callback=_pairs,
              help="Further Spark configuration. May be repeated.")  # fmt: skip
@changes(asks=False)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the final status (as in loader.json) on stdout; a list of several folders' ones.",
)
@click.option("--stacks-fd", type=int, hidden=True, help="Where a supervisor wants our stacks written, when it asks.")
@with_settings(asks_cluster=False, target="spark.target", master="spark.master")
@click.pass_context
def load(
    context: click.Context, settings: Settings, stagings: tuple[Path, ...], once: bool, quarantine: bool,
    table_replaced: bool, extra: dict[str, str], dry_run: bool, as_json: bool, stacks_fd: int | None,
) -> None:  # fmt: skip
    """Load sealed result segments into a Spark table, each record once.

    `rocketcrew run` does this beside the consumer. By itself it is for segments that were left (--no-load), for another
    machine, or to try again where Spark could not start. Loading what is loaded already adds nothing; it may be stopped
    or killed at any moment and started again. One loader at a time works on a folder, any number on a table.

    A function (foreach) and other formats can't tell what they hold: supervisors that fill one such target run with
    --no-load, and one loader has the folders of all of them.

    What it loads into is spark.format: parquet (default), pyarrow (the same table without Spark), delta and deltalake (the
    same table, the second without Spark), and iceberg and iceberg-spark (the first without Spark) hold each record exactly
    once. foreach calls your function (spark.function), which may get a batch a second time, with the same number, after a
    crash. Any other format that df.write knows, such as jdbc with spark.options, or a table of a catalog as --target
    table:NAME, is at least once: after a crash rows of one batch may stand twice, with the same batch_id.

    Exits with 6 when there is no Java (17 to 25) or Spark cannot start.

    \b
    Examples:
      rocketcrew load --staging .rocketcrew/billing/0/segments --target table
      rocketcrew load --staging segments --target table --follow
      rocketcrew load --staging a/g/0/segments --staging b/g/0/segments \\
          --follow --set spark.format=foreach
    """
    if stacks_fd is not None:
        from ...workers.stack_dump import answer_into

        answer_into(stacks_fd)  # a supervisor started us, and wants to know what we do when it asks
    spark = settings.spark
    if spark.format in FOLDER_FORMATS:
        require(settings, ["spark.target"], flag_names={"spark.target": "--target PATH"})
    told = config_of(settings, stagings[0], surroundings(context).env)
    config = replace(told, follow=not once, conf={**spark.conf, **extra}, more_stagings=stagings[1:],
                     quarantine=quarantine, table_replaced=table_replaced)  # fmt: skip
    check_writer(spark)
    for staging in stagings:
        check_staging(staging)
    if dry_run:
        sizes = [size for staging in stagings for size in _sealed_bytes(staging)]
        what = f"load {counted(len(sizes), 'sealed file')} of {sum(sizes)} bytes into {config.target}"
        would(what, as_json=as_json, files=len(sizes), bytes=sum(sizes), target=str(config.target))
        return
    import_from_here()
    from ...spark.front import run_loader

    with own_stdout(as_json=as_json) as answers:
        code = run_loader(config)
        if as_json:
            told_ends = [_end(staging, code) for staging in stagings]
            click.echo(json_text(told_ends if len(stagings) > 1 else told_ends[0]), file=answers)
    context.exit(code)


def _sealed_bytes(staging: Path) -> list[int]:
    """The size of each file that waits to be loaded."""
    found: list[int] = []
    for path in (staging / READY_DIR).glob("[!.]*"):
        with contextlib.suppress(FileNotFoundError):  # a loader that runs takes them meanwhile
            found.append(path.stat().st_size)
    return found


def config_of(settings: Settings, staging: Path, env: Mapping[str, str]) -> LoaderConfig:
    """What the settings say of the loader. Raises UsageError."""
    from ...spark.config import loader_config

    return loader_config(settings.spark, staging, settings.spark.target, env, settings.results.high_water_mib)


def _end(staging: Path, code: int) -> dict[str, object]:
    status = read_status(staging / LOADER_STATUS_FILE)
    ours = status is not None and status.pid == os.getpid()
    return asdict(status) if status is not None and ours else {"exit_code": code}
