"""Check points of popped messages: what an acknowledgement names instead of an offset (PR/header/ExtraInfoUtil.java).

A check point is one text of eight fields, separated by blanks:

    ckQueueOffset popTime invisibleTime reviveQid retryMark brokerName queueId msgQueueOffset

The first is where the pop began in its queue. The retry mark says from which topic the message came: 0 the topic itself, 1
`%RETRY%group_topic` (V1), 2 `%RETRY%group+topic` (V2). By their settings (docs/protocol.md), brokers give out a retry under
the topic that was asked for, with the text in its properties (POP_CK), or as it is stored: under its retry topic, without
the text. Where there is none, the client puts it together from the record's topic and the answer's header. Whatever changes
the invisible time gives the message a new one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .errors import ProtocolError
from .names import RETRY_PREFIX
from .pop_headers import PopResponse
from .properties import PROPERTY_POP_CK, find_property
from .queues import MessageQueue
from .stored import Buffer, record_info

NORMAL, RETRY_V1, RETRY_V2 = _MARKS = "0", "1", "2"
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
    buf: Buffer, position: int, header: PopResponse, starts: dict[tuple[str, int], int], mq: MessageQueue, group: str
) -> CheckPoint:
    """The check point of the record at `position`, popped for the group from `mq`. Raises ProtocolError.

    `starts` are those of its answer. A record of a queue that they do not name is refused: acknowledged by a guess, it would
    come again for ever, or another message at the same offset would be taken for finished. An answer that names none at all
    begins at the first record of each queue, as Java takes it: that is noted in `starts`.
    """
    info = record_info(buf, position)
    written = find_property(bytes(buf[info.properties_start : info.end]), _POP_CK)
    if written is not None:
        return CheckPoint.decode(written.decode("utf-8", "replace"))
    topic = bytes(buf[info.topic_start : info.topic_start + info.topic_len]).decode("utf-8", "replace")
    mark = next((mark for mark in _MARKS if topic == real_topic(mq.topic, group, mark)), "")
    if mark and not header.start_offset_info:
        starts.setdefault((mark, info.queue_id), info.queue_offset)
    start = starts.get((mark, info.queue_id))
    if start is None:
        wrong = f"no pop of {mq.topic} began in queue {info.queue_id} of {topic}: {header.start_offset_info!r:.80}"
        raise ProtocolError(wrong, f"popped record at offset {info.queue_offset}")
    return CheckPoint(
        start,
        header.pop_time,
        header.invisible_time,
        header.revive_qid,
        mark,
        mq.broker_name,
        info.queue_id,
        info.queue_offset,
    )
