"""`rocketcrew run`: the supervisor, one member of the consumer group, with its workers and the Spark loader."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...conf.settings import Settings
from ...remoting.errors import UsageError
from ..options import log_output, reread_settings, with_settings
from ..program_lines import for_program
from ..running import check, give_up_on, name_servers_of, run_here
from ..surroundings import import_from_here, surroundings

if TYPE_CHECKING:
    from ...workers.loading import HandlerSpec


@click.command()
@click.argument("handler", metavar="HANDLER")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC[:TAGS]",
              help="A topic to consume, with tags as in 'orders:paid || shipped', or 'orders:SQL92:price > 3'."
                   " May be repeated.")  # fmt: skip
@click.option("-g", "--group", metavar="GROUP", help="The consumer group.")
@click.option("-w", "--workers", "workers", type=int, metavar="N", help="Worker processes; 0 = one for each core.")
@click.option("--batch", type=int, metavar="N", help="Messages in one call of a batch handler.")
@click.option("--schema", metavar="DDL", help="Columns of the rows, where the handler does not declare them.")
@click.option("--target", metavar="PATH", help="The Spark table. Otherwise a folder beside the state.")
@click.option(
    "--load/--no-load", "load", default=True, help="Load sealed results into the table (default), or leave them."
)
@click.option("--reload", "reload_on_change", is_flag=True,
              help="For development: reload when a Python file below the current folder changes.")  # fmt: skip
@click.option("--embedded", is_flag=True, help="Start a broker of its own and consume from that.")
@click.option("--engine", type=click.Choice(["workers", "spark"]), default="workers",
              help="What runs the handler: worker processes on this host (default), or a Spark cluster.")  # fmt: skip
@click.option("--check", "check_first", is_flag=True,
              help="First look at everything, as `rocketcrew doctor` does; start nothing when there is a fault.")  # fmt: skip
@click.option("--master", metavar="URL", help="Spark's master, such as local[4] or spark://host:7077.")
@click.option("--json", "as_json", is_flag=True,
              help="Print two JSON objects, each on a line: when it runs, and when it has ended; with --engine spark only"
                   " the second. What handlers print goes to stderr.")  # fmt: skip
@with_settings(
    topics="consumer.topics",
    group="consumer.group",
    workers="workers.count",
    batch="consumer.consume_message_batch_max_size",
    schema="results.schema",
    target="spark.target",
    load="spark.load",
    master="spark.master",
)
@click.pass_context
def run(
    context: click.Context, settings: Settings, handler: str, embedded: bool, reload_on_change: bool, engine: str,
    check_first: bool, as_json: bool,
) -> None:  # fmt: skip
    """Consume with HANDLER, a function written as package.module:function, or a module that has one handler.

    A module whose handlers name their topics is run with all of them, as one group; their topics are subscribed.

    A handler gets one message at a time (or a list, see `rocketcrew.handler`) and returns rows, or nothing. Modules of
    the current folder can be named. Raising means that the message is consumed again later.

    Signals: TERM or INT (Ctrl-C) finish what was begun, commit and leave the group; a second one forces, and reports how
    many messages will come again. QUIT stops at once. HUP reloads the handler's code and the settings, worker by worker,
    and goes back when the new code does not start. TTIN and TTOU start and stop one worker. USR1 logs what every process
    is doing. TSTP and CONT pause and resume pulling. `rocketcrew status`, `top`, `stacks`, `scale`, `reload`, `pause`,
    `resume` and `stop` do the same from another terminal.

    With --engine spark the same handler runs in the tasks of a Spark job, batch after batch: the same retries, dead letters
    and table. The offsets are in Spark's checkpoint in supervisor.data_dir, which driver and executors must see at the same
    path. TERM or INT end it after the batch that runs; settings that mean nothing there are refused.

    \b
    Examples:
      rocketcrew run functions:measure -t sources -g functions --embedded
      rocketcrew run shop.orders:handle -t orders:paid -g billing -n 10.0.0.5:9876
      rocketcrew run shop -g billing -n 10.0.0.5:9876
      rocketcrew run shop.orders:handle -c billing.toml --check
      rocketcrew run shop.orders:handle -t orders -g billing \\
          -n 10.0.0.5:9876 --engine spark --master spark://10.0.0.9:7077
    """
    from ...workers.trial_import import examine_as_set

    interrupts = surroundings(context).interrupts
    import_from_here()
    spec = examine_as_set(handler, settings, interrupts.check)
    if engine == "spark":
        options = {"embedded": embedded, "reloads": reload_on_change, "check_first": check_first}
        with for_program(as_json=as_json) as tell:
            code = _run_on_spark(context, settings, spec, **options)
            if tell is not None:
                tell({"event": "ended", "exit_code": code})
        context.exit(code)
    watched = Path.cwd() if reload_on_change else None
    run_here(
        settings, spec, reread_settings(), embedded=embedded, watched=watched, check_first=check_first, as_json=as_json
    )


def _run_on_spark(
    context: click.Context, settings: Settings, spec: HandlerSpec, *, embedded: bool, reloads: bool, check_first: bool
) -> int:
    from ...spark.needs import check_pyspark, check_writer

    check_pyspark("run --engine spark")
    if settings.results.enabled:
        check_writer(settings.spark)
    from ...engine.stream import run_stream  # pyspark takes its time to import
    from ...supervisor.wiring import with_topics

    settings = with_topics(settings, spec)
    if reloads:
        raise UsageError("--reload has no meaning with --engine spark: stop it, and start it with the new code")
    interrupts = surroundings(context).interrupts
    with name_servers_of(settings, embedded, interrupts) as (settings_to_use, broker):
        if check_first:
            check(settings_to_use, spec, surroundings(context), on_spark=True)
        interrupts.raise_again()  # the stream takes the signals over itself, and gives them back
        interrupts.hold()
        if broker is not None:
            broker.watch_by_thread(lambda: os.kill(os.getpid(), signal.SIGTERM))
        output = log_output()
        try:
            with output or contextlib.nullcontext():  # a reader of the log that stops does not stop the batches
                own_broker = "" if broker is None else broker.folder
                return run_stream(settings_to_use, spec, surroundings(context).env, own_broker)
        finally:
            give_up_on(output)
