"""Check points of popped messages: what an acknowledgement names instead of an offset (PR/header/ExtraInfoUtil.java).

A check point is one text of eight fields, separated by blanks:

    ckQueueOffset popTime invisibleTime reviveQid retryMark brokerName queueId msgQueueOffset

The first is where the pop began in its queue. The retry mark says from which topic the message came: 0 the topic itself, 1
`%RETRY%group_topic` (V1), 2 `%RETRY%group+topic` (V2). Brokers write the text into retried messages (POP_CK), for the others
the client puts it together from the answer's header. Whatever changes the invisible time gives the message a new one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .errors import ProtocolError
from .names import RETRY_PREFIX
from .pop_headers import PopResponse
from .properties import PROPERTY_POP_CK, find_property
from .queues import MessageQueue
from .stored import Buffer, record_info

NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
_FIELDS = 8
_POP_CK = PROPERTY_POP_CK.encode()


@dataclass(frozen=True, slots=True)
class CheckPoint:
    """One popped message, as its broker knows it. Times in milliseconds."""

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue_id: int
    retry_mark: str
    broker_name: str
    queue_id: int
    offset: int

    def encode(self) -> str:
        return (
            f"{self.start_offset} {self.pop_time_ms} {self.invisible_ms} {self.revive_queue_id} {self.retry_mark} "
            f"{self.broker_name} {self.queue_id} {self.offset}"
        )

    @classmethod
    def decode(cls, text: str) -> CheckPoint:
        """Raises ProtocolError when it is no check point."""
        parts = text.split(" ")
        try:
            if len(parts) < _FIELDS:
                raise ValueError(f"{len(parts)} fields instead of {_FIELDS}")
            start, popped, invisible, revive, mark, broker, queue, offset = parts[:_FIELDS]
            return cls(int(start), int(popped), int(invisible), int(revive), mark, broker, int(queue), int(offset))
        except ValueError as error:
            raise ProtocolError(f"{text!r:.120} is no check point: {error}", "popped message") from None

    def queue(self, topic: str, group: str) -> MessageQueue:
        """The queue that the message was popped from, its retry topic where it is a retry."""
        return MessageQueue(real_topic(topic, group, self.retry_mark), self.broker_name, self.queue_id)

    def renewed(self, pop_time_ms: int, invisible_ms: int, revive_queue_id: int) -> CheckPoint:
        """The check point after its invisible time was changed: it begins at the message itself."""
        return replace(
            self,
            start_offset=self.offset,
            pop_time_ms=pop_time_ms,
            invisible_ms=invisible_ms,
            revive_queue_id=revive_queue_id,
        )


def real_topic(topic: str, group: str, mark: str) -> str:
    """The topic that a retry mark stands for."""
    if mark == RETRY_V1:
        return f"{RETRY_PREFIX}{group}_{topic}"
    if mark == RETRY_V2:
        return f"{RETRY_PREFIX}{group}+{topic}"
    return topic


def start_offsets(text: str) -> dict[tuple[str, int], int]:
    """`mark queueId startOffset;...` of an answer's header. Raises ProtocolError."""
    found: dict[tuple[str, int], int] = {}
    for part in text.split(";"):
        if not part:
            continue
        try:
            mark, queue_id, start = part.split(" ")
            found[mark, int(queue_id)] = int(start)
        except ValueError:
            raise ProtocolError(f"startOffsetInfo holds {part!r:.80}", "pop answer") from None
    return found


def check_point_of(
    buf: Buffer, position: int, header: PopResponse, starts: dict[tuple[str, int], int], broker_name: str
) -> CheckPoint:
    """The check point of the popped record at `position`. Raises ProtocolError."""
    info = record_info(buf, position)
    written = find_property(bytes(buf[info.properties_start : info.end]), _POP_CK)
    if written is not None:
        return CheckPoint.decode(written.decode("utf-8", "replace"))
    return CheckPoint(
        starts.get((NORMAL, info.queue_id), info.queue_offset),
        header.pop_time,
        header.invisible_time,
        header.revive_qid,
        NORMAL,
        broker_name,
        info.queue_id,
        info.queue_offset,
    )
