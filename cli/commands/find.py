"""`rocketcrew find`: where a message is, by whatever is known of it."""

from __future__ import annotations

import click

from ...client.cluster import Cluster
from ...conf.exit_codes import EXIT_FAILURE
from ...conf.settings import Settings, require
from ...supervisor.member.access import access_of
from ..asking import ask_cluster
from ..finding import Found, Search
from ..json_text import json_text
from ..messages import BODY_FORMATS, facts_of, text_of
from ..options import with_settings
from ..tables import seen


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC",
              help="Only in this topic; may be repeated. Otherwise in all, retry and dead-letter topics too.")  # fmt: skip
@click.option("--body", "how", type=click.Choice(BODY_FORMATS), default="auto", show_default=True,
              help="How bodies are shown.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a message, on a line of its own.")
@with_settings()
@click.pass_context
def find(
    context: click.Context, settings: Settings, names: tuple[str, ...], topics: tuple[str, ...], how: str, as_json: bool
) -> None:
    """Find messages by message id, unique key, key, or place.

    Whatever NAME may be is tried: the id that `send` or a consumer's log shows, an offset message id, a key, or
    [TOPIC/]BROKER/QUEUE/OFFSET. A message that failed is found in each topic that it went through. Brokers find keys by
    their index, which holds the newest 64 messages of a key. Exits with 1 when a NAME names nothing.

    \b
    Examples:
      rocketcrew find order-17
      rocketcrew find 0A00000500002A9F0000000000000000 --body hex
      rocketcrew find orders/broker-a/0/17 -n 10.0.0.5:9876 --json
    """
    require(settings, ["cluster.name_servers"], flag_names={"cluster.name_servers": "-n HOST:PORT"})
    access = access_of(settings)

    async def look(cluster: Cluster) -> tuple[list[list[Found]], Search]:
        search = Search(cluster, access, topics)
        return [await search.all_of(name) for name in names], search

    found, search = ask_cluster(access, look)
    silent = search.silent
    for name, listed in zip(names, found, strict=True):
        for number, one in enumerate(listed):
            facts = {"found_by": one.by, **facts_of(one.message, one.broker, how)}
            text = json_text(facts) if as_json else seen(text_of(facts))
            click.echo(("\n" if number and not as_json else "") + text)
        if not listed:
            where = f" in {', '.join(topics)}" if topics else ""
            away = search.away.get(name, "")
            hint = f" (as an offset message id it is of the broker at {away}, where none answers)" if away else ""
            click.echo(f"rocketcrew: nothing is named {name}{where}{hint}", err=True)
    for broker in sorted(set(silent)):
        click.echo(seen(f"rocketcrew: not asked: {broker}", err=True), err=True)
    context.exit(0 if all(found) and not silent else EXIT_FAILURE)
