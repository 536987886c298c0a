"""QUERY_TOPIC_CONSUME_BY_WHO 300 and QUERY_TOPICS_BY_CONSUMER 343 (BR/processor/AdminBrokerProcessor.java).

Groups count that are connected and subscribe now, and groups that ever committed an offset.
"""

from __future__ import annotations

from ...remoting.admin_bodies import GroupList, TopicList
from ...remoting.admin_headers import GroupName, TopicName
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ..state import BrokerState, Call

CODES = (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, RequestCode.QUERY_TOPICS_BY_CONSUMER)


def handle(state: BrokerState, call: Call) -> Command:
    command = call.command
    if command.code == RequestCode.QUERY_TOPICS_BY_CONSUMER:
        name = GroupName.from_fields(command.fields).group
        topics = tuple(state.offsets.topics_of(name))
        return command.response(ResponseCode.SUCCESS, body=TopicList(topics).encode())
    topic = TopicName.from_fields(command.fields).topic
    online = {group.name for group in state.clients.consumer_groups() if topic in group.subscriptions}
    names = tuple(sorted(online | set(state.offsets.groups_of(topic))))
    return command.response(ResponseCode.SUCCESS, body=GroupList(names).encode())
