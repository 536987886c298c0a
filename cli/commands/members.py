"""`rocketcrew members`: who is in a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click

from ...conf.settings import Settings, require
from ...supervisor.member.access import access_of
from ..asking import ask_cluster
from ..group_members import GroupMember, members_of
from ..json_text import json_text
from ..options import with_settings
from ..tables import lines, seen


@click.command()
@click.option("-g", "--group", metavar="GROUP", help="The consumer group.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: members with their queues, subscriptions."
)
@with_settings(group="consumer.group")
def members(settings: Settings, as_json: bool) -> None:
    """Show who is in a group: client ids, addresses, and the queues that each member has.

    Members of any language are shown; what queues they have they say themselves, and "?" stands for one that does not answer.
    Exits with 1 for a group that the cluster does not know.

    \b
    Examples:
      rocketcrew members -g billing
      rocketcrew members -g billing -n 10.0.0.5:9876 --json
    """
    flags = {"cluster.name_servers": "-n HOST:PORT", "consumer.group": "-g GROUP"}
    require(settings, flags, flag_names=flags)
    access, group = access_of(settings), settings.consumer.group
    found, connections = ask_cluster(access, lambda cluster: members_of(cluster, access.wrap(group)))
    wanted = {} if connections is None else connections.subscription_table
    subscriptions = {access.unwrap(topic): data.sub_string for topic, data in sorted(wanted.items())}
    if as_json:
        told = [_as_json(member) for member in found]
        click.echo(json_text({"group": group, "members": told, "subscriptions": subscriptions}))
        return
    if not found:
        click.echo(f"group {group} has no members that run")
        return
    click.echo("\n".join(lines([_row(member) for member in found])))
    for line in shared_ids(found):
        click.echo(seen(line))
    click.echo(seen("subscribed " + ", ".join(topic for topic in subscriptions if not topic.startswith("%"))))


def shared_ids(found: Sequence[GroupMember]) -> list[str]:
    """A line for each client id that more than one member has. It may be a connection that a reconnect left behind."""
    return [
        f"{count} have the id {client_id}: for longer than two minutes these are processes that consume everything twice"
        for client_id, count in Counter(member.client_id for member in found).items()
        if count > 1
    ]


def _as_json(member: GroupMember) -> dict[str, object]:
    queues = None if member.queues is None else [list(mq) for mq in member.queues]
    return {
        "client_id": member.client_id,
        "address": member.address,
        "language": member.language,
        "version": member.version,
        "queues": queues,
    }


def _row(member: GroupMember) -> dict[str, object]:
    return {
        "CLIENT": member.client_id,
        "ADDRESS": member.address,
        "LANGUAGE": member.language,
        "QUEUES": "?" if member.queues is None else len([mq for mq in member.queues if not mq.topic.startswith("%")]),
    }
