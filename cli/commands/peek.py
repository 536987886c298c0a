"""`rocketcrew peek`: a few messages of a topic, decoded; nobody's offset moves."""

from __future__ import annotations

import click

from ...client.clock import wall_ms
from ...client.cluster import Cluster
from ...conf.exit_codes import EXIT_FAILURE
from ...conf.settings import Settings, require
from ...supervisor.member.access import access_of
from ..asking import ask_cluster
from ..exit_codes import tell
from ..messages import Filter, Silent, Stored, newest, oldest_since, picking, printer
from ..options import with_settings
from ..times import parse_time


@click.command()
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="The topic; %RETRY%GROUP and %DLQ%GROUP too.")
@click.option("--count", type=click.IntRange(1, 10_000), default=10, show_default=True, metavar="N",
              help="How many messages.")  # fmt: skip
@click.option("--from", "since", default="", metavar="TIME",
              help="The first messages since then (2h, ISO 8601, 20260131080000 or `earliest`), not the newest.")  # fmt: skip
@picking
@with_settings()
def peek(settings: Settings, topic: str, count: int, since: str, wanted: Filter, how: str, as_json: bool) -> None:
    """Show the newest messages of a topic, or the first since a time.

    No group is joined and no offset moves. With filters, the newest messages that pass are looked for, back to the first
    that brokers keep. A broker that does not answer is named, and then it exits with 1.

    \b
    Examples:
      rocketcrew peek -t orders
      rocketcrew peek -t orders --key order-17 --count 1 --body hex
      rocketcrew peek -t orders --from 2h --grep refund --json
    """
    require(settings, ["cluster.name_servers"], flag_names={"cluster.name_servers": "-n HOST:PORT"})
    access = access_of(settings)
    from_ms = 0 if since == "earliest" else parse_time("--from", since, wall_ms()) if since else None

    silent: Silent = {}

    async def look(cluster: Cluster) -> list[Stored]:
        if from_ms is None:
            return await newest(cluster, access.wrap(topic), count, wanted, silent)
        return await oldest_since(cluster, access.wrap(topic), count, wanted, silent, from_ms)

    show = printer(how, as_json=as_json)
    for broker, message in ask_cluster(access, look):
        show(broker, message)
    for broker, error in silent.items():
        tell(f"not asked: {broker} ({error})")
    if silent:
        raise click.exceptions.Exit(EXIT_FAILURE)
