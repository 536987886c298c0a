"""HEART_BEAT 34 (BR/processor/ClientManageProcessor.heartBeat).

For each consumer group: its settings (made when unknown), its retry topic, its membership. A group whose settings may not
be made is skipped without a word, the answer is still 0. Members are told of changes before the answer goes out.
"""

from __future__ import annotations

from ...remoting.bodies import HeartbeatData
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.headers import HeartbeatResponse
from ..client_table import ClientChannel
from ..state import BrokerState, Call

CODES = (RequestCode.HEART_BEAT,)


def handle(state: BrokerState, call: Call) -> Command:
    heartbeat = HeartbeatData.decode(call.command.body)
    for consumer in heartbeat.consumer_data_set:
        group = state.groups.get(consumer.group_name)
        if group is None:
            continue
        state.retry_topic(call.now_ms, consumer.group_name, max(1, group.retry_queue_nums))
        changed = state.clients.register_consumer(
            consumer.group_name,
            member_of(call, heartbeat.client_id),
            consumer.consume_type,
            consumer.message_model,
            consumer.consume_from_where,
            consumer.subscription_data_set,
        )
        if changed:
            state.notify_group(consumer.group_name)
    for producer in heartbeat.producer_data_set:
        state.clients.register_producer(producer.group_name, member_of(call, heartbeat.client_id))
    return call.command.response(ResponseCode.SUCCESS, HeartbeatResponse(True, True).to_fields())


def member_of(call: Call, client_id: str) -> ClientChannel:
    command = call.command
    return ClientChannel(call.channel, client_id, call.address, command.language, command.version, call.now_ms)
