"""HEART_BEAT 34 (BR/processor/ClientManageProcessor.heartBeat).

For each consumer group: its settings (made when unknown), its retry topic, its membership. A group whose settings may not
be made is skipped without a word, the answer is still 0. When the broker has no room for a group, it says so, and takes the
others. Members are told of changes before the answer goes out. What a connection has from heartbeats before, and is not named
now, counts as if it were.
"""

from __future__ import annotations

from ...remoting.bodies import HeartbeatData
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.errors import UsageError
from ...remoting.headers import HeartbeatResponse
from ...remoting.names import RETRY_PREFIX
from ..client_table import ClientChannel, check_client_id, text_chars
from ..state import BrokerState, Call
from ..topic_table import illegal_topic

CODES = (RequestCode.HEART_BEAT,)
GROUPS_MAX = 1_024
SUBSCRIPTIONS_MAX = 16_384
TEXT_MAX_CHARS = 2 << 20  # twice what one heartbeat has, as its groups may all change


def handle(state: BrokerState, call: Call) -> Command:
    heartbeat = HeartbeatData.decode(call.command.body)
    check_client_id(heartbeat.client_id)
    refuse_too_much(state, call.channel, heartbeat)
    full: UsageError | None = None
    for consumer in heartbeat.consumer_data_set:
        name = consumer.group_name
        if full is not None and state.groups.known(name) is None:
            continue  # each would look through all groups for room
        try:
            group = state.groups.heard(name, state.room.is_used)
        except UsageError as error:
            full = error
            continue
        if group is None:
            continue
        if illegal_topic(RETRY_PREFIX + name) is None:  # else it is too long: its send-backs are told so
            state.retry_topic(call.now_ms, name, max(1, group.retry_queue_nums))
        changed = state.clients.register_consumer(
            name,
            member_of(call, heartbeat.client_id),
            consumer.consume_type,
            consumer.message_model,
            consumer.consume_from_where,
            consumer.subscription_data_set,
        )
        if changed:
            state.notify_group(name)
    for producer in heartbeat.producer_data_set:
        state.clients.register_producer(producer.group_name, member_of(call, heartbeat.client_id))
    if full is not None:
        raise full
    return call.command.response(ResponseCode.SUCCESS, HeartbeatResponse(True, True).to_fields())


def refuse_too_much(state: BrokerState, channel: int, heartbeat: HeartbeatData) -> None:
    """Raises UsageError for more than one connection may have."""
    fresh = heartbeat.consumer_data_set
    named = {consumer.group_name for consumer in fresh}
    consumers, producers = state.clients.groups_of(channel)
    others = [group for group in consumers if group.name not in named]
    producers |= {producer.group_name for producer in heartbeat.producer_data_set}
    groups = len(fresh) + len(others) + len(producers)
    subscriptions = sum(len(each.subscription_data_set) for each in fresh)
    subscriptions += sum(len(group.subscriptions) for group in others)
    chars = sum(map(len, producers))
    for each in fresh:
        settings = each.group_name, each.consume_type, each.message_model, each.consume_from_where
        chars += text_chars(settings, each.subscription_data_set)
    for group in others:
        settings = group.name, group.consume_type, group.message_model, group.consume_from_where
        chars += text_chars(settings, group.subscriptions.values())
    if groups > GROUPS_MAX or subscriptions > SUBSCRIPTIONS_MAX or chars > TEXT_MAX_CHARS:
        raise UsageError(
            f"{groups} groups with {subscriptions} subscriptions of {chars} characters: at most {GROUPS_MAX} groups with "
            f"{SUBSCRIPTIONS_MAX} of {TEXT_MAX_CHARS} are possible on one connection"
        )


def member_of(call: Call, client_id: str) -> ClientChannel:
    command = call.command
    return ClientChannel(call.channel, client_id, call.address, command.language, command.version, call.now_ms)
