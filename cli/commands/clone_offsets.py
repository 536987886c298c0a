"""`rocketcrew clone-offsets`: one group goes on where another is."""

from __future__ import annotations

import click

from ...client.access import Access
from ...client.admin import Admin
from ...client.cluster import Cluster
from ...client.operations import Operations
from ...conf.settings import Settings, require
from ...remoting.errors import UsageError
from ...remoting.names import RETRY_PREFIX
from ..asking import broadcasts, committed_offsets, connections_of
from ..changing import changes
from ..moving import Move, carry_out
from ..options import with_settings
from ..stagings import topics_in_keys


@click.command("clone-offsets")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC",
              help="Only this topic; may be repeated. Otherwise all that FROM consumes, not its retry topic.")  # fmt: skip
@changes(asks=True)
@click.option("--new-group", is_flag=True, help="TO has never run: it will start at these offsets.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: every queue with old and new offset.")
@with_settings()
def clone_offsets(
    settings: Settings, source: str, target: str, topics: tuple[str, ...], dry_run: bool, yes: bool, new_group: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Set the offsets of the group TO to those that the group FROM has committed, queue by queue, and read them back.

    FROM may run, and is not changed; TO must be at rest. Queues of which FROM has committed nothing are left alone. Messages
    that FROM is to retry are its own, and do not go to TO. `mqadmin cloneGroupOffset` does the same for one topic.

    \b
    Examples:
      rocketcrew clone-offsets billing billing-2 --new-group --dry-run
      rocketcrew clone-offsets billing billing-2 -t orders -n 10.0.0.5:9876
    """
    flags = {"cluster.name_servers": "-n HOST:PORT"}
    require(settings, flags, flag_names=flags)
    if source == target:
        raise UsageError(f"{source} is both groups: there is nothing to copy")

    async def plan(cluster: Cluster, access: Access) -> list[Move]:
        group = access.wrap(source)
        stats = await Admin(cluster).consume_stats(group, None, topics_in_keys(settings))
        if broadcasts(await connections_of(cluster, group)):
            raise UsageError(
                f"group {source} is BROADCASTING: each member has its own offsets, and there are none to copy"
            )
        consumed = {mq.topic for mq in stats.offset_table if not mq.topic.startswith(RETRY_PREFIX)}
        operations, moves = Operations(cluster), list[Move]()
        for topic in sorted(set(map(access.wrap, topics))) or sorted(consumed):
            queues = await cluster.queues_to_read(topic, refresh=True)
            news = await committed_offsets(operations, group, queues)
            olds = await committed_offsets(operations, access.wrap(target), queues)
            moves += [
                Move(access.unwrap(topic), mq.broker_name, mq.queue_id, old, new)
                for mq, old, new in zip(queues, olds, news, strict=True)
                if new is not None
            ]
        if not moves:
            raise UsageError(f"group {source} has committed nothing in {', '.join(topics) or 'any topic'}")
        return moves

    carry_out(
        settings, target, plan, command="clone-offsets", dry_run=dry_run, yes=yes, as_json=as_json, new_group=new_group
    )
