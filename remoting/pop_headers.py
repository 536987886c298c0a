"""Typed header fields and bodies of POP (5.x); see `headers.py` for the rules. Their codes do not fit a binary header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from .body import Body
from .fields import Header, Int32, Int64
from .headers import BNAME as _BNAME
from .light_dataclass import dataclass
from .queues import MessageQueue

INIT_MIN, INIT_MAX = 0, 1
MODE_PULL, MODE_POP = "PULL", "POP"


@dataclass(frozen=True, slots=True)
class PopRequest(Header):
    """200050. `queue_id` -1: any queue; times in milliseconds; `init_mode` 0: a new group begins at the oldest message."""

    WIRE: ClassVar[Mapping[str, str]] = _BNAME
    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class PopResponse(Header):
    """The answer; the texts are those of ExtraInfoUtil.java (check_points.py)."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@dataclass(frozen=True, slots=True)
class AckRequest(Header):
    """200051: the message is done. `topic` is the one it was popped from, a retry topic too."""

    WIRE: ClassVar[Mapping[str, str]] = _BNAME
    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeInvisibleRequest(Header):
    """200053: show it again after so many milliseconds from now."""

    WIRE: ClassVar[Mapping[str, str]] = _BNAME
    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeInvisibleResponse(Header):
    """What the message's new check point is made of."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


@dataclass(frozen=True, slots=True)
class QueryAssignment(Body):
    """400: which queues are ours, by the broker's word."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str
    message_model: str


@dataclass(frozen=True, slots=True)
class SetMessageRequestMode(Body):
    """401: whether a group pops or pulls a topic."""

    topic: str
    consumer_group: str
    mode: str = MODE_PULL
    pop_share_queue_num: int = 0


@dataclass(frozen=True, slots=True)
class QueueAssignment(Body):
    """One queue (id -1: all of its broker) and how it is read."""

    message_queue: MessageQueue
    mode: str = MODE_PULL


@dataclass(frozen=True, slots=True)
class QueryAssignmentResponse(Body):
    """Without a list nothing is known."""

    message_queue_assignments: tuple[QueueAssignment, ...] | None = None


@dataclass(frozen=True, slots=True)
class BatchAck(Body):
    """Messages of one pop from one queue; `bits` (base64, least significant bit first) are offsets from `start_offset` on."""

    WIRE: ClassVar[Mapping[str, str]] = {
        "consumer_group": "c", "topic": "t", "retry_mark": "r", "start_offset": "so", "queue_id": "q",
        "revive_queue_id": "rq", "pop_time": "pt", "invisible_time": "it", "bits": "b",
    }  # fmt: skip
    consumer_group: str
    topic: str
    start_offset: int
    queue_id: int
    pop_time: int
    bits: str
    retry_mark: str = "0"
    revive_queue_id: int = 0
    invisible_time: int = 0


@dataclass(frozen=True, slots=True)
class BatchAckBody(Body):
    """200151."""

    acks: tuple[BatchAck, ...] = ()
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class NotificationRequest(Header):
    """200054: answer when there is something to pop. Queue -1: any."""

    WIRE: ClassVar[Mapping[str, str]] = _BNAME
    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    order: bool | None = None
    attempt_id: str | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class NotificationResponse(Header):
    """Whether there is something to pop."""

    has_msg: bool
    polling_full: bool = False


@dataclass(frozen=True, slots=True)
class PollingInfo(Header):
    """200055: how many pops wait for that queue (-1: for any)."""

    WIRE: ClassVar[Mapping[str, str]] = _BNAME
    consumer_group: str
    topic: str
    queue_id: Int32
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class PollingInfoResponse(Header):
    """Their number."""

    polling_num: Int32
