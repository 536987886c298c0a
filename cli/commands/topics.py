"""`rocketcrew topics`: what the cluster has."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass

import click

from ...client.admin import Admin
from ...client.asking import is_missing_topic
from ...client.clock import wall_ms
from ...client.cluster import Cluster
from ...conf.exit_codes import EXIT_FAILURE
from ...conf.settings import Settings, require
from ...remoting.errors import RocketcrewError, UnreachableError
from ...supervisor.member.access import access_of
from ..asking import ask_cluster, known_topics
from ..exit_codes import tell
from ..json_text import json_text
from ..live_line import duration
from ..options import with_settings
from ..tables import lines
from ..wording import not_known


@dataclass(frozen=True, slots=True)
class Topic:
    """`messages` that brokers still keep; `last_stored_ms` since 1970, None for an empty topic."""

    name: str
    queues: int
    messages: int
    last_stored_ms: int | None


@click.command()
@click.option("--all", "everything", is_flag=True, help="Retry and dead-letter topics of groups too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all of them.")
@with_settings()
def topics(settings: Settings, everything: bool, as_json: bool) -> None:
    """Show the cluster's topics: queues, messages that are kept, and when the last one came.

    The cluster's own topics are left out. MESSAGES is the distance from each queue's first offset to its end. Topics of which
    a broker does not answer, or refuses to say anything, are named, and then it exits with 1.

    \b
    Examples:
      rocketcrew topics
      rocketcrew topics --all -n 10.0.0.5:9876 --json
    """
    require(settings, ["cluster.name_servers"], flag_names={"cluster.name_servers": "-n HOST:PORT"})
    access = access_of(settings)
    failed: list[tuple[str, RocketcrewError]] = []

    async def look(cluster: Cluster) -> list[Topic]:
        names = [name for name in await known_topics(cluster, access) if everything or not name.startswith("%")]
        admin = Admin(cluster)
        found = await asyncio.gather(*(_one(admin, access.wrap(name), name, failed) for name in names))
        return [one for one in found if one is not None]

    found = ask_cluster(access, look)
    if failed and not found:
        raise failed[0][1]
    if as_json:
        click.echo(json_text({"topics": [asdict(one) for one in found]}))
    elif found:
        click.echo("\n".join(lines([row(one, wall_ms()) for one in found])))
    else:
        click.echo("the cluster has no topics; `rocketcrew send -t NAME` makes one")
    for line in sorted(not_known(failed)):
        tell(line)
    if failed:
        raise click.exceptions.Exit(EXIT_FAILURE)


async def _one(admin: Admin, topic: str, name: str, failed: list[tuple[str, RocketcrewError]]) -> Topic | None:
    """None for a topic that was deleted meanwhile, or is none (clusters have entries of their own in the list), and for one
    of which nothing is known. What is not known is put into `failed`."""
    silent: dict[str, UnreachableError] = {}
    try:
        table = (await admin.topic_stats(topic, silent)).offset_table
    except RocketcrewError as error:
        if not is_missing_topic(error):
            failed.append((name, error))
        return None
    failed += [(name, error) for error in silent.values()]
    last = max((one.last_update_timestamp for one in table.values()), default=0)
    messages = sum(one.max_offset - one.min_offset for one in table.values())
    return Topic(name, len(table), messages, last or None)


def row(topic: Topic, now_ms: int) -> dict[str, object]:
    """The topic for people."""
    last = "-" if topic.last_stored_ms is None else f"{duration(max(0, now_ms - topic.last_stored_ms) / 1000)} ago"
    return {"TOPIC": topic.name, "QUEUES": topic.queues, "MESSAGES": topic.messages, "LAST": last}
