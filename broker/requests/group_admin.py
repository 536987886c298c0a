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
from ..storage import StorageError

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
        if illegal_group(group.group_name):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the group name {group.group_name!r} is illegal")
        before = state.groups.known(group.group_name)
        if before is None and not state.groups.has_room:
            raise Refused(ResponseCode.INVALID_PARAMETER, state.groups.full(group.group_name))
        state.groups.put(group)
        try:
            state.save_groups(sync=True)  # else a kill or a power cut takes back what was answered
        except StorageError:
            _put_back(state, group.group_name, before)
            raise
        return command.response(ResponseCode.SUCCESS)
    if command.code == RequestCode.DELETE_SUBSCRIPTIONGROUP:
        _delete(state, DeleteGroup.from_fields(command.fields))
        return command.response(ResponseCode.SUCCESS)
    if command.code == RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
        return command.response(ResponseCode.SUCCESS, body=state.groups.dump())
    name = GroupName.from_fields(command.fields).group
    known = state.groups.known(name)
    if known is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name}")
    return command.response(ResponseCode.SUCCESS, body=known.encode())


def _delete(state: BrokerState, request: DeleteGroup) -> None:
    """Raises StorageError, and then the group and its offsets are as before."""
    name = request.group_name
    group = state.groups.known(name)
    offsets = state.offsets.kept([(topic, name) for topic in state.offsets.topics_of(name)])
    try:
        state.groups.remove(name)
        state.save_groups(sync=True)
        if request.clean_offset or request.remove_offset:
            state.offsets.forget_group(name)
            state.save_offsets(sync=True)
            state.pops.forget(group=name)
    except StorageError:
        _put_back(state, name, group)
        state.offsets.put_back(offsets)
        raise


def _put_back(state: BrokerState, name: str, group: SubscriptionGroupConfig | None) -> None:
    if group is None:
        state.groups.remove(name)
    else:
        state.groups.put(group)
