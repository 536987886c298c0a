"""What came of a send (client/producer/{SendResult,SendStatus}.java, client/impl/MQClientAPIImpl.java processSendResponse).

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..remoting.codes import ResponseCode
from ..remoting.command import Command
from ..remoting.headers import SendResponse
from ..remoting.names import REGION_DEFAULT
from ..remoting.queues import MessageQueue


class SendStatus(Enum):
    """The message is stored in all cases; the others tell what a synchronous broker could not do in time."""

    SEND_OK = "send_ok"
    FLUSH_DISK_TIMEOUT = "flush_disk_timeout"
    FLUSH_SLAVE_TIMEOUT = "flush_slave_timeout"
    SLAVE_NOT_AVAILABLE = "slave_not_available"


_STATUS = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
STORED_CODES = frozenset(_STATUS)
"""Of answers to sends that say that the message is stored."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where a message (or batch) is. Of a batch both ids are comma lists and the offset is the first message's.

    `transaction_id` is set for a half message, `recall_handle` by a 5.x broker for a message that it delivers later
    (`Producer.recall`). `region_id` and `trace_on` are the broker's word on message traces.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    mq: MessageQueue
    queue_offset: int
    attempts: int
    transaction_id: str | None = None
    recall_handle: str | None = None
    region_id: str = REGION_DEFAULT
    trace_on: bool = True


def result_of(answer: Command, message_id: str, topic: str, broker_name: str, attempts: int) -> SendResult | None:
    """The result in an answer; None when it is a refusal. Raises ProtocolError when it makes no sense."""
    status = _STATUS.get(answer.code)
    if status is None:
        return None
    header = SendResponse.from_fields(answer.fields)
    return SendResult(
        status,
        message_id,
        header.msg_id,
        MessageQueue(topic, broker_name, header.queue_id),
        header.queue_offset,
        attempts,
        header.transaction_id,
        header.recall_handle,
        header.region_id or REGION_DEFAULT,
        header.trace_on is not False,
    )
