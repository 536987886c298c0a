"""QUERY_ASSIGNMENT 400 and SET_MESSAGE_REQUEST_MODE 401: which queues of a topic a member has, by the broker's word
(BR/processor/QueryAssignmentProcessor.java).

A member with clientRebalance=false asks for its queues. They are those of this broker, shared out among the members of the
group as the Java strategies do it. Messages are pulled: a group that wants to pop is refused when an operator says so, not
left to wait for messages that never come.
"""

from __future__ import annotations

from collections.abc import Callable

from ...remoting.bodies import BROADCASTING
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.names import RETRY_PREFIX
from ...remoting.pop_headers import (
    MODE_PULL,
    QueryAssignment,
    QueryAssignmentResponse,
    QueueAssignment,
    SetMessageRequestMode,
)
from ...remoting.queues import MessageQueue
from ..refusal import Refused
from ..state import BrokerState, Call

CODES = (RequestCode.QUERY_ASSIGNMENT, RequestCode.SET_MESSAGE_REQUEST_MODE)


def handle(state: BrokerState, call: Call) -> Command:
    if call.command.code == RequestCode.SET_MESSAGE_REQUEST_MODE:
        return set_mode(call.command)
    request = QueryAssignment.decode(call.command.body)
    topic = state.topics.get(request.topic)
    queues: list[MessageQueue] | None = [
        MessageQueue(request.topic, state.config.name, queue_id)
        for queue_id in range(topic.read_queue_nums if topic else 0)
    ]
    if request.message_model != BROADCASTING:
        queues = share(state, request, queues or [])
    found = None if queues is None else tuple(QueueAssignment(queue, MODE_PULL) for queue in queues)
    return call.command.response(ResponseCode.SUCCESS, body=QueryAssignmentResponse(found).encode())


def set_mode(command: Command) -> Command:
    request = SetMessageRequestMode.decode(command.body)
    if request.topic.startswith(RETRY_PREFIX):
        raise Refused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    if request.mode != MODE_PULL:
        raise Refused(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f"this broker serves no {request.mode}: {request.consumer_group} goes on pulling {request.topic}",
        )
    return command.response(ResponseCode.SUCCESS)


def share(state: BrokerState, request: QueryAssignment, queues: list[MessageQueue]) -> list[MessageQueue] | None:
    """The member's part; None, as the genuine broker answers, when the group has no members or the strategy is not known."""
    strategy = STRATEGIES.get(request.strategy_name)
    group = state.clients.consumer_group(request.consumer_group)
    if strategy is None or group is None:
        return None
    members = sorted(group.client_ids())
    return strategy(queues, members.index(request.client_id), len(members)) if request.client_id in members else []


def average(queues: list[MessageQueue], place: int, members: int) -> list[MessageQueue]:
    """Contiguous blocks, the first ones a queue longer (AllocateMessageQueueAveragely.java)."""
    size, rest = divmod(len(queues), members)
    start = place * size + min(place, rest)
    return queues[start : start + size + (place < rest)]


def by_circle(queues: list[MessageQueue], place: int, members: int) -> list[MessageQueue]:
    """Every n-th queue of n members (AllocateMessageQueueAveragelyByCircle.java)."""
    return queues[place::members]


STRATEGIES: dict[str, Callable[[list[MessageQueue], int, int], list[MessageQueue]]] = {
    "AVG": average,
    "AVG_BY_CIRCLE": by_circle,
}
