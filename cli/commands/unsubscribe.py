"""`rocketcrew unsubscribe`: one topic less in a running supervisor."""

from __future__ import annotations

from typing import Any

import click

from ...remoting.errors import RocketcrewError
from ..controlling import Target, subscribed, to_change_supervisor


@click.command()
@click.argument("topic")
@to_change_supervisor
def unsubscribe(target: Target, topic: str) -> None:
    """Stop consuming a topic in a running supervisor: what runs is finished, and its queues are given up.

    Brokers are told at once. The last topic stays (use `rocketcrew stop`). It holds until the supervisor ends, also over
    reloads; consumer.topics in the configuration is for the next start.

    \b
    Examples:
      rocketcrew unsubscribe refunds -g billing
    """

    def what(found: dict[str, Any]) -> str:
        topics = subscribed(found).keys()
        if topics == {topic}:
            raise RocketcrewError(f"{topic} is the only topic: subscribe another one first, or stop the member")
        return f"unsubscribe {topic}" + ("" if topic in topics else ", which is not subscribed")

    answer = target.change("unsubscribe", what, topic=topic)
    if answer is not None:
        target.tell(answer, f"unsubscribed {topic}" if answer["changed"] else f"{topic} is not subscribed")
