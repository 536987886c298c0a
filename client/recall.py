"""Taking back a delayed message before it is delivered: RECALL_MESSAGE 370, brokers since 5.3.

The handle comes with the send's answer: base64 of `v1 topic brokerName deliveryTime messageId`
(common/producer/RecallMessageHandle.java). The broker that delivers it is the one that must be asked.
"""

from __future__ import annotations

import base64
import binascii
import time
from typing import NamedTuple

from ..remoting.arguments import TEXT, check
from ..remoting.codes import RequestCode
from ..remoting.errors import UsageError
from ..remoting.headers import RecallMessage, RecallMessageResponse
from ..remoting.names import is_of_group
from ..remoting.queues import MessageQueue
from .asking import ask
from .cluster import Cluster
from .validation import check_topic

VERSION = "v1"


class RecallHandle(NamedTuple):
    """What a handle says; the time is that of delivery, ms since 1970, as text."""

    topic: str
    broker_name: str
    deliver_at_ms: str
    message_id: str


def decode_handle(text: str) -> RecallHandle:
    """Raises UsageError when it is no handle."""
    check("recall", {"recall_handle": text}, {"recall_handle": TEXT})
    try:
        version, *parts = base64.b64decode(text, altchars=b"-_", validate=True).decode().split(" ")
    except (binascii.Error, ValueError):
        version, parts = "", []
    if version != VERSION or len(parts) < len(RecallHandle._fields):
        raise UsageError(f"{text!r:.80} is no recall handle: take SendResult.recall_handle as it is")
    return RecallHandle(*parts[: len(RecallHandle._fields)])


async def recall(cluster: Cluster, group: str, topic: str, handle: str, *, timeout_ms: float) -> str:
    """Returns the id of the message that will not be delivered. Raises UsageError, BrokerError, UnreachableError."""
    check_topic(topic)
    if is_of_group(topic):
        raise UsageError(f"messages of {topic} cannot be recalled: retry and dead letter topics are the broker's")
    broker_name = decode_handle(handle).broker_name
    deadline_s = time.monotonic() + timeout_ms / 1000
    await cluster.route(topic, wait_s=timeout_ms / 2000)
    patience_s = (deadline_s - time.monotonic()) / 2
    address = await cluster.address_of(MessageQueue(topic, broker_name, 0), wait_s=patience_s)
    header, left_ms = RecallMessage(topic, handle, group, broker_name), (deadline_s - time.monotonic()) * 1000
    answer = await ask(cluster.remoting, address, RequestCode.RECALL_MESSAGE, header, timeout_ms=left_ms)
    return RecallMessageResponse.from_fields(answer.fields).msg_id
