"""INVOKE_BROKER_TO_RESET_OFFSET 222, kept at the server (BR/processor/AdminBrokerProcessor.resetOffset, 5.2 and later).

The new offset waits in the offset table: the group's pulls of the queue are answered 21 with it until one begins there, and
until then commits of members that still run are ignored. It waits over a restart of the broker too: members that run commit
where they are, and that would take the reset back. That it is over is on the disk before the first message is delivered.
`isForce` false keeps a queue whose committed offset is lower already. Offsets of very many queues are looked up in rounds,
and set all at once.
"""

from __future__ import annotations

from ...remoting.bodies import ResetOffsetBody
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.headers import ResetOffset
from ...remoting.queues import MessageQueue
from ..group_table import illegal_group
from ..long_answers import Steps
from ..pop_table import Key
from ..refusal import Refused
from ..state import BrokerState, Call, no_offset_room
from ..storage import StorageError

CODES = (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,)


def handle(state: BrokerState, call: Call) -> Command | None:
    steps = _steps(state, call.command)
    if not call.command.is_oneway:
        return state.long_answers.begin(call.channel, call.command, steps)
    for _ in steps:  # nobody waits, but it is to be done
        pass
    return None


def _steps(state: BrokerState, command: Command) -> Steps:
    request = ResetOffset.from_fields(command.fields)
    topic = state.topics.get(request.topic)
    if topic is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {request.topic} does not exist")
    wanted = -1 if request.queue_id is None else request.queue_id
    if wanted >= topic.read_queue_nums:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"queueId[{wanted}] is illegal")
    if illegal_group(request.group):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the group name {request.group!r} is illegal")
    if not state.has_offset_room(request.topic, request.group):
        raise no_offset_room()
    targets: dict[int, int] = {}
    for queue_id in range(topic.read_queue_nums) if wanted < 0 else (wanted,):
        yield
        targets[queue_id] = target(state, request, queue_id)
    if request.topic not in state.topics:  # it was deleted between two rounds
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {request.topic} does not exist")
    table: dict[MessageQueue, int] = {}
    for queue_id, offset in targets.items():
        committed = state.offsets.query(request.topic, request.group, queue_id)
        if request.is_force or committed is None or offset <= committed:
            table[MessageQueue(request.topic, state.config.name, queue_id)] = offset
    _reset(state, request, table)
    return command.response(ResponseCode.SUCCESS, body=ResetOffsetBody(table).encode())


def _reset(state: BrokerState, request: ResetOffset, table: dict[MessageQueue, int]) -> None:
    """Raises StorageError, and then the offsets are as before."""
    before = state.offsets.kept([(request.topic, request.group)])
    try:
        for queue, offset in table.items():
            state.offsets.reset(request.topic, request.group, queue.queue_id, offset)
        state.save_offsets(sync=True)  # else a kill or a power cut takes back what was answered
        for queue, offset in table.items():
            state.pops.begin_at(Key(request.topic, request.group, queue.queue_id), offset)
    except StorageError:
        state.offsets.put_back(before)
        raise


def target(state: BrokerState, request: ResetOffset, queue_id: int) -> int:
    """The offset asked for, else the one at the time asked for, kept within the queue."""
    low, high = state.store.min_offset(request.topic, queue_id), state.store.max_offset(request.topic, queue_id)
    if request.offset is not None and request.offset >= 0 and request.queue_id is not None and request.queue_id >= 0:
        return min(max(request.offset, low), high)
    if request.timestamp < 0:
        return high
    return state.store.search(request.topic, queue_id, request.timestamp)
