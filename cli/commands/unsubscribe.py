"""`rocketcrew unsubscribe`: one topic less in a running supervisor."""

from __future__ import annotations

import click

from ..controlling import Target, to_supervisor


@click.command()
@click.argument("topic")
@to_supervisor
def unsubscribe(target: Target, topic: str) -> None:
    """Stop consuming a topic in a running supervisor: what runs is finished, and its queues are given up.

    Brokers are told at once. The last topic stays (use `rocketcrew stop`). It holds until the supervisor ends, also over
    reloads; consumer.topics in the configuration is for the next start.

    \b
    Examples:
      rocketcrew unsubscribe refunds -g billing
    """
    answer = target.ask("unsubscribe", topic=topic)
    target.tell(answer, f"unsubscribed {topic}" if answer["changed"] else f"{topic} is not subscribed")
