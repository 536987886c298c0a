"""`rocketcrew dev`: a handler tried out, with all that it needs in one process tree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from ...conf.settings import Settings
from ..options import DEV_GROUP, reread_settings, with_settings
from ..running import run_here
from ..surroundings import import_from_here, surroundings

TOPIC: Final = "dev"
PAGE_PORT: Final = 8080
PAGE_PORTS: Final = 100
"""So many are tried, from PAGE_PORT on."""
POLL_MS: Final = 1000
"""A topic is often made long after the start, by its first message; the broker is asked by nobody else."""


@click.command()
@click.argument("handler", metavar="HANDLER")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC[:TAGS]",
              help=f"A topic to consume; otherwise consumer.topics, else {TOPIC}. May be repeated.")  # fmt: skip
@click.option("-g", "--group", metavar="GROUP", help=f"The consumer group; otherwise consumer.group, else {DEV_GROUP}.")
@click.option("-w", "--workers", "workers", type=int, metavar="N", help="Worker processes; 0 = one for each core.")
@click.option("--port", type=click.IntRange(1, 65535), metavar="PORT",
              help=f"The status page's. Otherwise metrics.port, else the first free one from {PAGE_PORT} on.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True,
              help="Print two JSON objects, each on a line: when it runs, and when it has ended. What handlers print goes to"
                   " stderr.")  # fmt: skip
@with_settings(
    asks_cluster=False, topics="consumer.topics", group="consumer.group", workers="workers.count", port="metrics.port"
)
def dev(settings: Settings, handler: str, as_json: bool) -> None:
    """Try HANDLER out: an embedded broker, `run --reload` and the status page in one. Ctrl-C ends all of it.

    The broker's messages and the group's offsets are kept below the current folder (.rocketcrew). Name servers that are
    configured are not used, nor TLS and the account for them: what is tried out consumes nothing of a cluster. Without a
    configuration the topic and the group are called dev, and messages sent before the first start are consumed too.

    \b
    Examples:
      rocketcrew dev shop
      rocketcrew dev shop:count -t orders --port 8081
    """
    from ...workers.trial_import import examine_as_set

    if settings.cluster.name_servers or settings.cluster.namesrv_domain:
        known = ";".join(settings.cluster.name_servers) or settings.cluster.namesrv_domain
        click.echo(f"dev has a broker of its own: {known} is not used (`rocketcrew run` would)", err=True)
    interrupts = surroundings(click.get_current_context()).interrupts
    import_from_here()
    spec = examine_as_set(handler, settings, interrupts.check)
    reread, named = reread_settings(), spec.subscriptions or ()
    run_here(
        for_trying_out(settings, named),
        spec,
        lambda: for_trying_out(reread(), named),
        embedded=True,
        watched=Path.cwd(),
        as_json=as_json,
    )


def for_trying_out(settings: Settings, named: tuple[str, ...] = ()) -> Settings:
    """The settings without a cluster and with a page; names and a first offset where none were chosen. Pure.

    `named`: topics that the handler names.
    """
    consumer, metrics = settings.consumer, replace(settings.metrics, page=True)
    if not metrics.port:
        metrics = replace(metrics, port=PAGE_PORT, port_count=PAGE_PORTS)
    if settings.origin["consumer.consume_from_where"] == "default":
        consumer = replace(consumer, consume_from_where="CONSUME_FROM_FIRST_OFFSET")
    consumer = replace(
        consumer, group=consumer.group or DEV_GROUP, topics=consumer.topics or (() if named else (TOPIC,))
    )
    cluster = replace(settings.cluster, name_servers=(), namesrv_domain="")
    if settings.origin["cluster.poll_name_server_interval_ms"] == "default":
        cluster = replace(cluster, poll_name_server_interval_ms=POLL_MS)
    return replace(settings, cluster=cluster, consumer=consumer, metrics=metrics)
