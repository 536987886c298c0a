"""Which order holds: what the configuration says and what the handler's decorator says, made one."""

from __future__ import annotations

from dataclasses import dataclass

from ..conf.settings import ConsumerSettings
from ..remoting.errors import UsageError
from ..remoting.properties import PROPERTY_KEYS

CONCURRENT, QUEUE, KEY = "concurrent", "queue", "key"
AUTO = "auto"
BY_FUNCTION = ""
"""The key is what a function of the handler's makes of the message."""


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
