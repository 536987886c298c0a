"""`rocketcrew groups`: which groups the cluster knows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import click

from ...client.admin import Admin
from ...client.asking import is_refusal
from ...client.cluster import Cluster
from ...conf.exit_codes import EXIT_FAILURE
from ...conf.settings import Settings, require
from ...remoting.admin_bodies import OffsetWrapper
from ...remoting.errors import BrokerError, RocketcrewError
from ...remoting.names import DLQ_PREFIX
from ...remoting.queues import MessageQueue
from ...supervisor.member.access import access_of
from ..asking import OWN_OFFSETS, ask_cluster, broadcasts, known_topics
from ..exit_codes import tell
from ..json_text import json_text
from ..options import with_settings
from ..tables import lines
from ..wording import group_names, is_popped_retry, not_known


@dataclass(frozen=True, slots=True)
class Group:
    """`lag` over all of its queues, its retry topic too; None where no broker says, as of one whose members broadcast."""

    name: str
    members: int
    lag: int | None
    dead_letters: int
    broadcasting: bool


@dataclass(frozen=True, slots=True)
class Found:
    """`consumes`: it has members, or has committed something."""

    group: Group
    consumes: bool


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all of them.")
@with_settings()
def groups(settings: Settings, as_json: bool) -> None:
    """Show the consumer groups of the cluster: members that run, lag, and dead letters.

    A group is known once it has consumed: brokers make its retry topic then. "?" stands for a lag that no broker says, "-"
    for that of a broadcasting group, whose members keep their own offsets. Groups of which a broker does not answer, or
    refuses to say anything, are named, and then it exits with 1.

    \b
    Examples:
      rocketcrew groups
      rocketcrew groups -n 10.0.0.5:9876 --json
    """
    require(settings, ["cluster.name_servers"], flag_names={"cluster.name_servers": "-n HOST:PORT"})
    access = access_of(settings)
    failed: list[tuple[str, RocketcrewError]] = []

    async def look(cluster: Cluster) -> list[Group]:
        known = dict.fromkeys(await known_topics(cluster, access))
        admin = Admin(cluster)
        found = await asyncio.gather(
            *(
                _one(admin, access.wrap(name), name, failed, has_dead=DLQ_PREFIX + name in known)
                for name in group_names(known)
            )
        )
        there = [one for one in found if one is not None]
        return [one.group for one in there if one.consumes or not is_popped_retry(one.group.name, known.keys())]

    found = ask_cluster(access, look)
    if failed and not found:
        raise failed[0][1]
    if as_json:
        click.echo(json_text({"groups": [asdict(one) for one in found]}))
    elif found:
        click.echo("\n".join(lines([row(one) for one in found])))
        if own := [one.name for one in found if one.broadcasting]:
            click.echo(f"{', '.join(own)}: {OWN_OFFSETS}")
    else:
        click.echo("the cluster knows no groups: none has consumed yet")
    for line in sorted(not_known(failed)):
        tell(line)
    if failed:
        raise click.exceptions.Exit(EXIT_FAILURE)


async def _one(
    admin: Admin, group: str, name: str, failed: list[tuple[str, RocketcrewError]], *, has_dead: bool
) -> Found | None:
    """None for a group of which not even its members are known. What this account may not see, and what a broker that is
    away does not say, is put into `failed`."""
    try:
        connections = await admin.consumer_connections(group)
    except RocketcrewError as error:
        failed.append((name, error))
        return None
    broadcasting = broadcasts(connections)
    members = 0 if connections is None else len(connections.connection_set)
    lag: int | None = None
    dead = 0
    table: Mapping[MessageQueue, OffsetWrapper] = {}
    try:
        table = (await admin.consume_stats(group)).offset_table
        if not broadcasting:
            lag = sum(max(0, one.broker_offset - max(0, one.consumer_offset)) for one in table.values())
        if has_dead:
            stats = await admin.topic_stats(DLQ_PREFIX + group)
            dead = sum(one.max_offset - one.min_offset for one in stats.offset_table.values())
    except BrokerError as error:  # it has consumed nothing, or has no dead letters any more
        if is_refusal(error.code, error.remark):
            failed.append((name, error))
    except RocketcrewError as error:
        failed.append((name, error))
    return Found(Group(name, members, lag, dead, broadcasting), consumes=bool(members or table))


def row(group: Group) -> dict[str, object]:
    """The group for people."""
    lag = "-" if group.broadcasting else "?" if group.lag is None else group.lag
    return {"GROUP": group.name, "MEMBERS": group.members, "LAG": lag, "DEAD LETTERS": group.dead_letters}
