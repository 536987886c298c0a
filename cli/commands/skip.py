"""`rocketcrew skip`: a group goes on after a message, or at an offset, of one queue."""

from __future__ import annotations

from dataclasses import dataclass

import click

from ...client.access import Access
from ...client.cluster import Cluster
from ...client.operations import Operations
from ...conf.settings import Settings, require
from ...remoting.errors import UsageError
from ..asking import committed_offsets
from ..changing import changes
from ..moving import Move, carry_out, some_of
from ..options import with_settings


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue of the topic: offsets [begin, end) are kept, and `committed` is where the group is (None: nowhere yet)."""

    topic: str
    broker: str
    queue_id: int
    begin: int
    end: int
    committed: int | None

    def __str__(self) -> str:
        return f"--broker {self.broker} --queue {self.queue_id}"

    @property
    def next(self) -> int:
        """The next message that the group gets; the first that is kept where the committed one is gone."""
        return max(self.begin, self.committed or 0)


@click.command()
@click.option("-g", "--group", metavar="GROUP", help="The consumer group.")
@click.option(
    "-t", "--topic", metavar="TOPIC", required=True, help="The topic; the group's retry topic is %RETRY%GROUP."
)
@click.option("--broker", metavar="NAME", help="The queue's broker, where several have one of the number.")
@click.option("--queue", "queue_id", type=click.IntRange(0), metavar="N", help="The queue, where several have a lag.")
@click.option("--to", "to", type=click.IntRange(0), metavar="OFFSET",
              help="Go on at this offset. Otherwise one message is skipped: the next that the group would get.")  # fmt: skip
@changes(asks=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the queue with old and new offset.")
@with_settings(group="consumer.group")
def skip(
    settings: Settings, topic: str, broker: str | None, queue_id: int | None, to: int | None, dry_run: bool, yes: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Skip one message of a queue for a group, or all up to an offset; the offset is read back afterwards.

    For a group at rest: members that run commit their own offsets over it. What is skipped is never consumed by the group;
    `rocketcrew peek` shows it first, and `reset` goes back. A message that only fails needs no skipping: it goes to the retry
    topic and, in the end, to the dead letters.

    \b
    Examples:
      rocketcrew skip -g billing -t orders --queue 2
      rocketcrew skip -g billing -t orders --broker broker-a --queue 2 \\
          --to 1500 --dry-run
    """
    flags = {"cluster.name_servers": "-n HOST:PORT", "consumer.group": "-g GROUP"}
    require(settings, flags, flag_names=flags)
    group = settings.consumer.group

    async def plan(cluster: Cluster, access: Access) -> list[Move]:
        operations = Operations(cluster)
        queues = await cluster.queues_to_read(access.wrap(topic), refresh=True)
        committed = await committed_offsets(operations, access.wrap(group), queues)
        states: list[QueueState] = []
        for mq, at in zip(queues, committed, strict=True):
            begin, end = await operations.min_offset(mq), await operations.max_offset(mq)
            states.append(QueueState(topic, mq.broker_name, mq.queue_id, begin, end, at))
        return [move_of(chosen(states, broker, queue_id), to)]

    carry_out(settings, group, plan, command="skip", dry_run=dry_run, yes=yes, as_json=as_json)


def chosen(queues: list[QueueState], broker: str | None, queue_id: int | None) -> QueueState:
    """The one queue that is meant: that of the options, else the only one with a lag. Raises UsageError."""
    named = [one for one in queues if broker in (None, one.broker) and queue_id in (None, one.queue_id)]
    if not named:
        raise UsageError(f"the topic has no such queue; it has {some_of(queues)}")
    if len(named) == 1:
        return named[0]
    late = [one for one in named if one.next < one.end]
    if len(late) == 1:
        return late[0]
    if not late:
        raise UsageError("no queue has a message that the group has not finished: there is nothing to skip")
    raise UsageError(f"several queues have messages that the group has not finished: say which, {some_of(late)}")


def move_of(queue: QueueState, to: int | None) -> Move:
    """One message further, or to that offset. Raises UsageError for one that is no skip."""
    if queue.next >= queue.end:
        raise UsageError(f"{queue} has nothing that the group has not finished (its end is {queue.end})")
    new = queue.next + 1 if to is None else to
    if not queue.next < new <= queue.end:
        raise UsageError(
            f"offset {new} is no skip: the group's next message there is {queue.next}, and the queue ends at {queue.end}"
            " (`rocketcrew reset` goes back)"
        )
    return Move(queue.topic, queue.broker, queue.queue_id, queue.next, new)
