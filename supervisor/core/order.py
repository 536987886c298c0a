"""Which order holds: what the configuration says and what the handler's decorator says, made one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...conf.settings import ConsumerSettings
from ...remoting.errors import UsageError
from ...remoting.properties import PROPERTY_KEYS

CONCURRENT, QUEUE, KEY = "concurrent", "queue", "key"
AUTO = "auto"
BY_FUNCTION = ""
"""The key is what a function of the handler's makes of the message."""

STAYS = (
    "The order of a running member cannot change, so the old code goes on: change it back and reload again, or stop the"
    " member and start it anew"
)


@dataclass(frozen=True, slots=True)
class Order:
    """Fields of CoreConfig."""

    order: str = CONCURRENT
    locks: bool = False
    order_key: str = PROPERTY_KEYS
    """The property that holds the key, BY_FUNCTION = workers are asked."""
    auto_commit: bool = True


@dataclass(frozen=True, slots=True)
class HandlerOrder:
    """What the handler's decorator says, as its workers report it."""

    order: str = ""
    """Empty: nothing."""
    key: str = ""
    """Name of a property, empty = not said."""
    key_function: bool = False
    auto_commit: bool = True


def check_same(running: Order, consumer: ConsumerSettings, handler: HandlerOrder) -> None:
    """Raise UsageError where a reload would bring another order than the one that runs: the member's locks, and what is held
    and dispatched in its lanes, rest on it."""
    try:
        order = resolve(consumer, handler)
    except UsageError as error:
        raise UsageError(f"{error}. {STAYS}") from error
    if order != running:
        raise UsageError(
            f"the running member has {_shown(running)}; the settings (consumer.order, order_key) and the handler as they are"
            f" now would make that {_shown(order)}. {STAYS}"
        )


def _shown(order: Order) -> str:
    key = "" if order.order != KEY else f", key {order.order_key or 'by a function'}"
    return f'order = "{order.order}"{key}' + ("" if order.auto_commit else ", auto_commit=False")


def check_topic_limits(order: Order, limits: Sequence[str]) -> None:
    """Raise UsageError for limits of topics with an order."""
    if limits and order.order != CONCURRENT:
        raise UsageError(
            f'workers.topic_concurrency = {list(limits)}, but the order is "{order.order}": limits of topics have a meaning'
            " without an order only; leave one of them out"
        )


def resolve(consumer: ConsumerSettings, handler: HandlerOrder) -> Order:
    """The order that holds. Raises UsageError where settings and handler contradict each other."""
    configured = "" if consumer.order == AUTO else consumer.order
    if configured and handler.order and configured != handler.order:
        raise UsageError(
            f'consumer.order = "{configured}", but the handler is declared with order="{handler.order}": leave one of them'
            ' out (consumer.order = "auto" takes the handler\'s)'
        )
    order = configured or handler.order or CONCURRENT
    if order != CONCURRENT and not consumer.client_rebalance:
        raise UsageError(
            f'the order is "{order}", but consumer.client_rebalance = false: brokers that share out the queues themselves'
            " lock none of them; an order needs client_rebalance = true"
        )
    if order != KEY and (consumer.order_key or handler.key or handler.key_function):
        raise UsageError(
            f'a key is named (consumer.order_key, or key= of the handler), but the order is "{order}": keys have a meaning'
            ' with order = "key" only'
        )
    if order != QUEUE and not handler.auto_commit:
        raise UsageError(
            f'the handler is declared with auto_commit=False, but the order is "{order}": only order = "queue" lets a'
            " handler commit by itself"
        )
    if consumer.order_key and handler.key_function:
        raise UsageError(
            f'consumer.order_key = "{consumer.order_key}", but the handler has a function for its key: leave one of them out'
        )
    key = BY_FUNCTION if handler.key_function else consumer.order_key or handler.key or PROPERTY_KEYS
    locks = order != CONCURRENT and consumer.message_model == "CLUSTERING"
    return Order(order, locks, key, handler.auto_commit)
