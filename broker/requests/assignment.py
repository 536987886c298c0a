"""QUERY_ASSIGNMENT 400 and SET_MESSAGE_REQUEST_MODE 401: which queues of a topic a member has, by the broker's word
(BR/processor/QueryAssignmentProcessor.java).

A member with clientRebalance=false asks for its queues. They are those of this broker, shared out among the members of the
group as the Java strategies do it. Messages are pulled, unless an administrator said that the group pops the topic: then each
member has all queues (id -1), or its own and those of so many members after it.
"""

from __future__ import annotations

from collections.abc import Callable

from ...remoting.bodies import BROADCASTING
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.names import RETRY_PREFIX
from ...remoting.pop_headers import (
    MODE_POP,
    MODE_PULL,
    QueryAssignment,
    QueryAssignmentResponse,
    QueueAssignment,
    SetMessageRequestMode,
)
from ...remoting.queues import MessageQueue
from ..refusal import Refused
from ..request_modes import MODES_MAX, MODES_TABLE
from ..state import BrokerState, Call

CODES = (RequestCode.QUERY_ASSIGNMENT, RequestCode.SET_MESSAGE_REQUEST_MODE)


def handle(state: BrokerState, call: Call) -> Command:
    if call.command.code == RequestCode.SET_MESSAGE_REQUEST_MODE:
        return set_mode(state, call.command)
    request = QueryAssignment.decode(call.command.body)
    topic = state.topics.get(request.topic)
    queues: list[MessageQueue] | None = [
        MessageQueue(request.topic, state.config.name, queue_id)
        for queue_id in range(topic.read_queue_nums if topic else 0)
    ]
    mode = state.modes.get(request.topic, request.consumer_group)
    if request.message_model != BROADCASTING:
        queues = share(state, request, queues or [], mode)
    found = None if queues is None else tuple(QueueAssignment(queue, mode.mode) for queue in queues)
    return call.command.response(ResponseCode.SUCCESS, body=QueryAssignmentResponse(found).encode())


def set_mode(state: BrokerState, command: Command) -> Command:
    request = SetMessageRequestMode.decode(command.body)
    if request.topic.startswith(RETRY_PREFIX):
        raise Refused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    if request.topic not in state.topics:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{request.topic}] not exist")
    if state.groups.get(request.consumer_group) is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
    if request.mode not in (MODE_PULL, MODE_POP):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"mode {request.mode!r}: {MODE_PULL} and {MODE_POP} are possible")
    if not state.modes.has_room:
        raise Refused(ResponseCode.SYSTEM_BUSY, f"this broker keeps the modes of {MODES_MAX} groups already")
    state.modes.set(request)
    state.storage.replace(MODES_TABLE, state.modes.dump(), sync=True)
    return command.response(ResponseCode.SUCCESS)


def share(
    state: BrokerState, request: QueryAssignment, queues: list[MessageQueue], mode: SetMessageRequestMode
) -> list[MessageQueue] | None:
    """The member's part; None, as the genuine broker answers, when the group has no members or the strategy is not known."""
    strategy = STRATEGIES.get(request.strategy_name)
    group = state.clients.consumer_group(request.consumer_group)
    if strategy is None or group is None:
        return None
    members = sorted(group.client_ids())
    if mode.mode == MODE_POP and not 0 < mode.pop_share_queue_num < len(members) - 1:
        return [MessageQueue(request.topic, state.config.name, -1)] if queues else []
    if request.client_id not in members:
        return []
    place = members.index(request.client_id)
    if mode.mode != MODE_POP:
        return strategy(queues, place, len(members))
    if len(members) > len(queues):
        return [queues[place % len(queues)]] if queues else []
    places = {(place + after) % len(members): None for after in range(mode.pop_share_queue_num + 1)}
    return [queue for each in places for queue in strategy(queues, each, len(members))]


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
