"""Consumer groups by an administrator: create or change 200, all 201, delete 207, one 352
(BR/processor/AdminBrokerProcessor.java)."""

from __future__ import annotations

from ...remoting.admin_bodies import SubscriptionGroupConfig
from ...remoting.admin_headers import DeleteGroup, GroupName
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ..group_table import illegal_group
from ..refusal import Refused
from ..state import BrokerState, Call

CODES = (
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
)


def handle(state: BrokerState, call: Call) -> Command:
    command = call.command
    if command.code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
        group = SubscriptionGroupConfig.decode(command.body)
        if illegal_group(group.group_name) or not (state.groups.has_room or state.groups.known(group.group_name)):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the group name {group.group_name!r} is illegal")
        state.groups.put(group)
        state.save_groups(sync=True)  # else a kill or a power cut takes back what was answered
        return command.response(ResponseCode.SUCCESS)
    if command.code == RequestCode.DELETE_SUBSCRIPTIONGROUP:
        request = DeleteGroup.from_fields(command.fields)
        state.groups.remove(request.group_name)
        if request.clean_offset:
            state.pops.forget(group=request.group_name)
            state.offsets.forget_group(request.group_name)
            state.save_offsets(sync=True)
        state.save_groups(sync=True)
        return command.response(ResponseCode.SUCCESS)
    if command.code == RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
        return command.response(ResponseCode.SUCCESS, body=state.groups.dump())
    name = GroupName.from_fields(command.fields).group
    known = state.groups.known(name)
    if known is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name}")
    return command.response(ResponseCode.SUCCESS, body=known.encode())
