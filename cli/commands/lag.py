"""`rocketcrew lag`: how far a consumer group is behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import click

from ...client.admin import Admin
from ...client.cluster import Cluster
from ...client.sync import run_with_cluster
from ...conf.settings import Settings, require
from ...remoting.codes import ResponseCode
from ...remoting.errors import BrokerError, RocketcrewError
from ...remoting.queues import MessageQueue
from ...supervisor.member.access import access_of
from ..options import with_settings
from ..stagings import topics_in_keys


@dataclass(frozen=True, slots=True)
class QueueLag:
    """One queue. `committed` is None where the group has committed nothing yet; then all of it is to come."""

    topic: str
    broker: str
    queue_id: int
    max: int
    committed: int | None
    lag: int


@click.command()
@click.option("-g", "--group", metavar="GROUP", help="The consumer group.")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC",
              help="Only this topic; may be repeated. Otherwise all of the group's, its retry topic too.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: every queue, and the total.")
@with_settings(group="consumer.group")
def lag(settings: Settings, topics: tuple[str, ...], as_json: bool) -> None:
    """Show how far a group is behind, queue by queue.

    MAX is the offset that the queue's next message will get, COMMITTED the first that the group has not finished, LAG the
    difference. Finished messages whose offset is not committed yet (every 5 s by default) still count as lag. Exits with 3
    when no name server or broker can be reached.

    \b
    Examples:
      rocketcrew lag -g billing
      rocketcrew lag -g billing -t orders -n 10.0.0.5:9876 --json
    """
    flags = {"cluster.name_servers": "-n HOST:PORT", "consumer.group": "-g GROUP"}
    require(settings, flags, flag_names=flags)

    access = access_of(settings)

    async def ask(cluster: Cluster) -> list[QueueLag]:
        wanted = tuple(access.wrap(topic) for topic in topics)
        found = await queue_lags(Admin(cluster), access.wrap(settings.consumer.group), wanted, topics_in_keys(settings))
        return [replace(queue, topic=access.unwrap(queue.topic)) for queue in found]

    found = run_with_cluster(access, ask)
    total = sum(queue.lag for queue in found)
    if as_json:
        answer = {"group": settings.consumer.group, "total": total, "queues": [asdict(queue) for queue in found]}
        click.echo(json.dumps(answer, ensure_ascii=False))
    else:
        click.echo(table(found, total))


async def queue_lags(
    admin: Admin, group: str, topics: tuple[str, ...], likely_topics: Sequence[str] = ()
) -> list[QueueLag]:
    """Every queue of `topics` (none given: of all that the group consumes), sorted; `likely_topics` as `consume_stats`."""
    found: dict[MessageQueue, QueueLag] = {}
    for topic in topics or (None,):
        try:
            stats = await admin.consume_stats(group, topic, likely_topics)
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            what = f"topic {topic}" if topic else f"group {group} (a group is known once it has consumed)"
            raise RocketcrewError(f"the cluster does not know the {what}") from error
        for mq, offsets in stats.offset_table.items():
            end = offsets.broker_offset
            committed = offsets.consumer_offset if offsets.consumer_offset >= 0 else None
            # A reset may have left the group above the end of the queue; that is no lag.
            behind = max(0, end - (committed or 0))
            found[mq] = QueueLag(mq.topic, mq.broker_name, mq.queue_id, end, committed, behind)
    return [found[mq] for mq in sorted(found)]


def table(queues: list[QueueLag], total: int) -> str:
    """The queues as text in columns: names to the left, numbers to the right."""
    head = ("TOPIC", "BROKER", "QUEUE", "MAX", "COMMITTED", "LAG")
    rows = [
        (q.topic, q.broker, str(q.queue_id), str(q.max), "-" if q.committed is None else str(q.committed), str(q.lag))
        for q in queues
    ]
    rows.append(("total", "", "", "", "", str(total)))
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [head, *rows]
    )
