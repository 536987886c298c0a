"""What operators look at and clean: entries of a queue 321, expired queues 306, expired segments of the log 329, topics that
are gone 316, statistics 315, the progress of all groups 317, system topics 305 (BR/processor/AdminBrokerProcessor.java)."""

from __future__ import annotations

from itertools import islice

from ...conf.units import DAY_MS, HOUR_MS, MINUTE_MS
from ...remoting.admin_bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeQueueData,
    ConsumeQueueEntries,
    TopicList,
)
from ...remoting.admin_headers import BrokerStatsRequest, ConsumeStatsInBroker, QueryConsumeQueue
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.fastjson import dumps
from ..long_answers import Steps, refuse_too_large
from ..refusal import Refused
from ..state import BrokerState, Call
from .consume_stats import stats_text

CODES = (
    RequestCode.QUERY_CONSUME_QUEUE,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.VIEW_BROKER_STATS_DATA,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
)
ENTRIES_MAX = 1_000


def handle(state: BrokerState, call: Call) -> Command | None:
    command = call.command
    if command.code == RequestCode.QUERY_CONSUME_QUEUE:
        return entries(state, command)
    if command.code == RequestCode.VIEW_BROKER_STATS_DATA:
        return statistics(state, call)
    if command.code == RequestCode.GET_BROKER_CONSUME_STATS:
        return state.long_answers.begin(call.channel, command, progress_of_all(state, command))
    if command.code == RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER:
        names = tuple(name for name in state.topics.names() if state.topics.is_system(name))
        return command.response(ResponseCode.SUCCESS, body=TopicList(names).encode())
    if command.code == RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE:
        state.store.drop_expired_entries()
    elif command.code == RequestCode.DELETE_EXPIRED_COMMITLOG:  # as the timer does every few seconds
        if hold_ms := state.expire_by_age(call.now_ms):
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"nothing expires for {(hold_ms + 999) // 1_000} s more: the clock has jumped ahead, or nobody knows whether "
                "it has. Put it right if it is wrong; else ask again then",
            )
        state.store.drop_beyond(state.config.disk_max_used_space_ratio / 100)
    else:
        for topic in sorted({topic for topic, _ in state.store.queue_keys() if topic not in state.topics}):
            state.store.remove_topic(topic)
    return command.response(ResponseCode.SUCCESS)


def entries(state: BrokerState, command: Command) -> Command:
    """What the consume queue has from `index` on: at most ENTRIES_MAX, so that others do not wait."""
    request = QueryConsumeQueue.from_fields(command.fields)
    queue = state.store.queue(request.topic, request.queue_id)
    if queue is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"{request.queue_id}@{request.topic} is not exist!")
    first = max(request.index, queue.min_offset)
    count = min(request.count, ENTRIES_MAX, queue.max_offset - first)
    found = tuple(
        ConsumeQueueData(position, size, tags_code)
        for position, size, tags_code in (islice(queue.entries(first, count), count) if count > 0 else ())
    )
    members = state.clients.consumer_group(request.consumer_group) if request.consumer_group else None
    subscription = members.subscriptions.get(request.topic) if members else None
    offline = f"{request.consumer_group}@{request.topic} is not online!"
    body = ConsumeQueueEntries(
        subscription, offline if request.consumer_group and not subscription else None, found,
        queue.max_offset, queue.min_offset,
    )  # fmt: skip
    return command.response(ResponseCode.SUCCESS, body=body.encode())


def statistics(state: BrokerState, call: Call) -> Command:
    request = BrokerStatsRequest.from_fields(call.command.fields)
    sums = state.stats.sums(call.now_ms, request.stats_name, request.stats_key)
    if sums is None:
        remark = f"The stats <{request.stats_name}> <{request.stats_key}> not exist"
        raise Refused(ResponseCode.SYSTEM_ERROR, remark)
    items = [BrokerStatsItem(sums[span_ms], sums[span_ms] * 1000 / span_ms) for span_ms in (MINUTE_MS, HOUR_MS, DAY_MS)]
    return call.command.response(ResponseCode.SUCCESS, body=BrokerStatsData(*items).encode())


def progress_of_all(state: BrokerState, command: Command) -> Steps:
    """For each group and each topic in which it has offsets and, when it is online, which it still subscribes."""
    only_ordered = ConsumeStatsInBroker.from_fields(command.fields).is_order
    found: list[bytes] = []
    total = length_bytes = 0
    for group in state.groups.names():
        members = state.clients.consumer_group(group)
        parts: list[bytes] = []
        for name in state.offsets.topics_of(group):
            yield
            topic = state.topics.get(name)
            if topic is None or (only_ordered and not topic.order):
                continue
            if members is not None and members.subscriptions and name not in members.subscriptions:
                continue
            text, behind = yield from stats_text(state, group, name, topic.write_queue_nums)
            parts.append(b'{"consumeTps":0.0,"offsetTable":{%s}}' % text)
            total += behind
            length_bytes += len(text)
            refuse_too_large(length_bytes, "ask for the groups one by one (208)")
        found.append(b"{%s:[%s]}" % (dumps(group), b",".join(parts)))
        yield
    body = b'{"brokerAddr":%s,"consumeStatsList":[%s],"totalDiff":%d,"totalInflightDiff":0}'
    return command.response(ResponseCode.SUCCESS, body=body % (dumps(state.config.address), b",".join(found), total))
