"""`rocketcrew unsubscribe`: one topic less in a running supervisor."""

from __future__ import annotations

from typing import Any

import click

from ...remoting.arguments import near
from ...remoting.errors import RocketcrewError
from ..controlling import Target, subscribed, to_change_supervisor
from ..wording import UnknownNameError


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

    def unknown(found: dict[str, Any]) -> UnknownNameError:
        return UnknownNameError(f"{topic} is not subscribed{near(topic, subscribed(found))}")

    def what(found: dict[str, Any]) -> str:
        topics = subscribed(found).keys()
        if topic not in topics:
            raise unknown(found)
        if topics == {topic}:
            raise RocketcrewError(f"{topic} is the only topic: subscribe another one first, or stop the member")
        return f"unsubscribe {topic}"

    answer = target.change("unsubscribe", what, topic=topic)
    if answer is None:
        return
    if not answer["changed"]:
        raise unknown(target.ask("status"))
    target.tell(answer, f"unsubscribed {topic}")
