"""`rocketcrew subscribe`: one topic more in a running supervisor, or another filter for one that it has."""

from __future__ import annotations

from typing import Any

import click

from ...client.validation import check_topic
from ...remoting.subscription import split_subscription
from ..controlling import Target, subscribed, to_change_supervisor


@click.command()
@click.argument("subscription", metavar="TOPIC[:FILTER]")
@to_change_supervisor
def subscribe(target: Target, subscription: str) -> None:
    """Add a topic to a running supervisor, or change the filter of one that it consumes.

    TOPIC[:FILTER] as for `run --topic`: 'orders', 'orders:paid || shipped', 'orders:SQL92:price > 3'. Brokers are told at
    once. A topic that is subscribed already gets the new filter: what was pulled is finished, then its queues are opened
    anew. It holds until the supervisor ends, also over reloads; consumer.topics in the configuration is for the next start.
    All members of the group must subscribe the same, or messages get lost.

    \b
    Examples:
      rocketcrew subscribe refunds
      rocketcrew subscribe 'orders:paid || shipped' -g billing
    """
    topic, _, expression = subscription.partition(":")
    name, _ = split_subscription(subscription)
    check_topic(name)

    def what(found: dict[str, Any]) -> str:
        now = subscribed(found).get(name)
        return f"subscribe {subscription}" + (f", now with the filter {now['filter']!r}" if now else "")

    answer = target.change("subscribe", what, topic=topic, filter=expression or "*")
    if answer is None:
        return
    line = f"subscribed {subscription}" if answer["changed"] else f"{subscription} is subscribed already"
    target.tell(answer, line)
