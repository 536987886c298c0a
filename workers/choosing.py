"""Which messages of a chunk the handler gets: the second look at tags, and the user's own filter.

Brokers compare tags by their Java hash, so that "Aa" and "BB" are one to them (PullAPIWrapper.processPullResult looks again).
A user's filter comes behind that, like Java's FilterMessageHook: what it does not want counts as filtered, and is done. One
that raises wants the message, as in Java: an error of a filter must not lose anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .loading import describe_error, user_traceback
from .message import Message
from .packets import QueueInfo

Wants = Callable[[Message], bool]


def chooser(queue: QueueInfo, own: Callable[[Message], object] | None, log: Any) -> Wants | None:
    """Whether the handler gets a message of this queue; None = it gets all, and nothing is asked."""
    tags = None if queue.tags is None else frozenset(queue.tags)
    if own is None:
        return None if tags is None else lambda message: message.tags in tags

    def wants(message: Message) -> bool:
        if tags is not None and message.tags not in tags:
            return False
        try:
            return bool(own(message))
        except Exception as error:  # noqa: BLE001  it is the user's
            log.warning("filter_failed", topic=queue.topic, queue_id=queue.queue_id, offset=message.queue_offset,
                        error=describe_error(error), exception=user_traceback(error))  # fmt: skip
            return True

    return wants
