"""`rocketcrew doctor`: is everything there that `run` needs?"""

from __future__ import annotations

import click

from ...conf.exit_codes import EXIT_FAILURE
from ...conf.settings import Settings, require
from ..checkups import Level, findings, summary, worst
from ..json_text import json_text
from ..options import with_settings
from ..surroundings import surroundings
from ..tables import seen


@click.command()
@click.argument("handler", metavar="[HANDLER]", required=False)
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC[:TAGS]", help="As of `run`; may be repeated.")
@click.option("-g", "--group", metavar="GROUP", help="The consumer group.")
@click.option("--engine", type=click.Choice(["workers", "spark"]), default="workers", help="As of `run`.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: every check with level, what was found and"
              " what to do.")  # fmt: skip
@with_settings(topics="consumer.topics", group="consumer.group")
@click.pass_context
def doctor(context: click.Context, settings: Settings, handler: str | None, engine: str, as_json: bool) -> None:
    """Look at everything that `run` needs, and change nothing of it: one line a check, fine, warning or fault, and what
    to do.

    Name servers, routes, permissions of topics, retry topic and dead letters, the group's members (client ids, subscriptions,
    queues), versions and clocks of brokers; the handler and its columns against the table; hooks, an allocation strategy of
    your own, the log file; Spark and Java, Sentry's SDK, disk, metrics port, open files, memory. Without HANDLER nothing is
    said of that. Where the table is in a bucket, one object is put beside it and deleted: so its server proves that it keeps
    conditional puts. `rocketcrew run --check` does the same before it starts. With --engine spark the folder of the state may
    be shared by hosts, as executors need it.

    Exits with 1 when there is a fault, with 0 otherwise.

    \b
    Examples:
      rocketcrew doctor shop.orders:handle -t orders -g billing -n 10.0.0.5:9876
      rocketcrew doctor -c billing.toml --json
    """
    from ..checkup_facts import gather  # what it asks takes its time to import

    flags = {"cluster.name_servers": "-n HOST:PORT"}
    require(settings, flags, flag_names=flags)
    found = findings(gather(settings, handler, surroundings(context).env, on_spark=engine == "spark"))
    if as_json:
        checks = [{"level": one.level.value, "check": one.check, "found": one.found, "todo": one.todo} for one in found]
        click.echo(json_text({"ok": worst(found) is not Level.FAULT, "checks": checks}))
    else:
        click.echo(seen("\n".join(map(str, found))))
        click.echo(summary(found))
    if worst(found) is Level.FAULT:
        raise click.exceptions.Exit(EXIT_FAILURE)
