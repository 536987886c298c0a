"""HEART_BEAT 34 (BR/processor/ClientManageProcessor.heartBeat).

For each consumer group: its settings (made when unknown), its retry topic, its membership. A group whose settings may not
be made is skipped without a word, the answer is still 0. When the broker has no room for a group or its retry topic, it says
so, and takes the others: a member without that topic could not get rid of a message that fails. Members are told of changes
before the answer goes out. What a connection has from heartbeats before, and is not named now, counts as if it were.
"""

from __future__ import annotations

from ...remoting.bodies import HeartbeatData
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.errors import UsageError
from ...remoting.headers import HeartbeatResponse
from ...remoting.names import RETRY_PREFIX
from ..client_table import ClientChannel, check_client_id, text_chars
from ..refusal import Refused
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
    failure: Exception | None = None
    is_full = False  # of groups: no other one is new then, as each looks through all of them for room
    for consumer in heartbeat.consumer_data_set:
        if is_full and state.groups.known(consumer.group_name) is None:
            continue
        try:
            if not has_place(state, call.now_ms, consumer.group_name):
                continue
        except (UsageError, Refused) as error:
            failure = failure or error
            is_full = is_full or isinstance(error, UsageError)
            continue
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
    if failure is not None:
        raise failure
    return call.command.response(ResponseCode.SUCCESS, HeartbeatResponse(True, True).to_fields())


def has_place(state: BrokerState, now_ms: int, name: str) -> bool:
    """Whether the group is in the table now, with its retry topic. Raises UsageError or Refused where there is no room."""
    is_new = state.groups.known(name) is None
    group = state.groups.heard(name, state.room.is_used)
    if group is None:
        return False
    if illegal_topic(RETRY_PREFIX + name) is not None:  # too long a name: its send-backs are told so
        return True
    try:
        state.retry_topic(now_ms, name, max(1, group.retry_queue_nums))
    except BaseException:
        if is_new:
            state.groups.remove(name)
        raise
    return True


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
