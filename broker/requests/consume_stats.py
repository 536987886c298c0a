"""GET_CONSUME_STATS 208: how far a group is behind, queue by queue (BR/processor/AdminBrokerProcessor.getConsumeStats).

Without topics in the request: those the group has committed offsets in, and those it subscribes now. `lastTimestamp` is the
store time of the last message that the group has finished. Looks and text are made topic by topic, in rounds.
"""

from __future__ import annotations

from collections.abc import Generator

from ...remoting.admin_bodies import OffsetWrapper
from ...remoting.admin_headers import ConsumeStatsRequest
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.fastjson import dumps_object_keys
from ...remoting.queues import MessageQueue
from ..long_answers import Steps, refuse_too_large
from ..state import BrokerState, Call

CODES = (RequestCode.GET_CONSUME_STATS,)


def handle(state: BrokerState, call: Call) -> Command | None:
    return state.long_answers.begin(call.channel, call.command, _steps(state, call.command))


def _steps(state: BrokerState, command: Command) -> Steps:
    request = ConsumeStatsRequest.from_fields(command.fields)
    group = request.consumer_group
    topics = [name for name in (request.topic_list or request.topic or "").split(";") if name]
    if not topics:
        members = state.clients.consumer_group(group)
        subscribed = members.subscriptions if members else {}
        topics = sorted({*state.offsets.topics_of(group), *subscribed})
    texts: list[bytes] = []
    length_bytes = 0
    for name in dict.fromkeys(topics):
        topic = state.topics.get(name)
        text, _ = yield from stats_text(state, group, name, topic.read_queue_nums if topic else 0)
        if text:
            texts.append(text)
            length_bytes += len(text)
            refuse_too_large(length_bytes, "ask for the group's topics one by one")
    body = b'{"consumeTps":0.0,"offsetTable":{%s}}' % b",".join(texts)
    return command.response(ResponseCode.SUCCESS, body=body)


def stats_text(state: BrokerState, group: str, topic: str, queues: int) -> Generator[None, None, tuple[bytes, int]]:
    """The members of a ConsumeStats' table for the first `queues` of a topic, and how many messages the group is behind."""
    table: dict[MessageQueue, object] = {}
    behind = 0
    for queue_id in range(queues):
        found = progress(state, group, topic, queue_id)
        behind += found.broker_offset - found.consumer_offset
        table[MessageQueue(topic, state.config.name, queue_id)] = found.to_json()
        yield
    return dumps_object_keys(table)[1:-1], behind


def progress(state: BrokerState, group: str, topic: str, queue_id: int) -> OffsetWrapper:
    committed = max(0, state.offsets.query(topic, group, queue_id) or 0)
    finished_ms = state.store.store_time_ms(topic, queue_id, committed - 1)
    return OffsetWrapper(state.store.max_offset(topic, queue_id), committed, committed, finished_ms or 0)
