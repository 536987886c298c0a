"""QUERY_SUBSCRIPTION_BY_CONSUMER 345 (BR/processor/AdminBrokerProcessor.querySubscriptionByConsumer): what a group that is
connected subscribes of a topic; without a subscription in the answer when it does not."""

from __future__ import annotations

from ...remoting.admin_bodies import GroupSubscription
from ...remoting.admin_headers import GroupAndTopic
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ..state import BrokerState, Call

CODES = (RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,)


def handle(state: BrokerState, call: Call) -> Command:
    request = GroupAndTopic.from_fields(call.command.fields)
    members = state.clients.consumer_group(request.group)
    found = members.subscriptions.get(request.topic) if members else None
    body = GroupSubscription(request.group, request.topic, found).encode()
    return call.command.response(ResponseCode.SUCCESS, body=body)
