"""`rocketcrew tail`: messages of a topic as they come, decoded; nobody's offset moves."""

from __future__ import annotations

import click

from ...client.cluster import Cluster
from ...conf.settings import Settings, require
from ...supervisor.member.access import access_of
from ..asking import ask_cluster
from ..exit_codes import tell
from ..following import Following
from ..messages import Filter, picking, printer
from ..options import with_settings
from ..times import Seconds


@click.command()
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="The topic; %RETRY%GROUP and %DLQ%GROUP too.")
@click.option("--count", type=click.IntRange(0), default=0, metavar="N", help="End after N messages; 0: never.")
@click.option("--interval", type=Seconds(0.05, 3600), default=1.0, show_default=True, metavar="S",
              help="Seconds between two looks at the brokers.")  # fmt: skip
@picking
@with_settings()
def tail(settings: Settings, topic: str, count: int, interval: float, wanted: Filter, how: str, as_json: bool) -> None:
    """Show messages of a topic as they come, until Ctrl-C.

    It begins at the end of each queue. No group is joined and no offset moves; `rocketcrew peek` shows what is there already.
    A broker that does not answer is named, and what it has comes when it does.

    \b
    Examples:
      rocketcrew tail -t orders
      rocketcrew tail -t orders --tag paid --property region=eu
      rocketcrew tail -t %DLQ%billing --json
    """
    require(settings, ["cluster.name_servers"], flag_names={"cluster.name_servers": "-n HOST:PORT"})
    access = access_of(settings)
    show = printer(how, as_json=as_json)

    async def look(cluster: Cluster) -> None:
        following = Following(cluster, access.wrap(topic), wanted, tell)
        await following.begin()
        click.echo(f"{topic}: waiting for messages; Ctrl-C ends", err=True)
        await following.show(interval, count, show)

    ask_cluster(access, look)
