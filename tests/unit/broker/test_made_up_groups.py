"""Groups that no member and no administrator has made leave no offsets, by no way, and take no room from those that were."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rocketcrew.broker.offset_table import PAIRS_MAX, ROOM_STEP_PAIRS
from rocketcrew.remoting.codes import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, RequestCode, ResponseCode
from rocketcrew.remoting.headers import ResetOffset, UpdateOffset
from rocketcrew.remoting.pop_headers import PopRequest


def pull_with_commit(broker, group):
    header = broker.pull_header(0, group=group)
    header = replace(header, sys_flag=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET, commit_offset=1)
    return broker.call(RequestCode.PULL_MESSAGE, header)


def pop(broker, group):
    return broker.call(RequestCode.POP_MESSAGE, PopRequest(group, "T", -1, 1, 10_000, 0, broker.now_ms, 0, "TAG", "*"))


def commit(broker, group):
    return broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset(group, "T", 0, 1))


@pytest.mark.parametrize("way", [pull_with_commit, pop, commit])
def test_only_groups_that_were_made_leave_offsets(broker, way):
    broker.send()
    answer = way(broker, "made-up")
    assert answer.code == (0 if way is pull_with_commit else ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
    broker.later(1_500)
    state = broker.core.state
    assert not state.offsets.has_group("made-up")
    assert not state.pops.table.keys_of("", "made-up")
    broker.heartbeat("g")
    assert way(broker, "g").code == 0
    broker.later(1_500)
    assert state.offsets.has_group("g")


def test_offsets_of_made_up_groups_make_room_for_groups_that_were_made(broker):
    """Genuine brokers keep what pulls of any name bring along."""
    broker.send()
    broker.heartbeat("g")
    broker.heartbeat("gone", channel=2)
    commit(broker, "gone")
    broker.core.channel_closed(broker.now_ms, 2)
    offsets = broker.core.state.offsets
    broker.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffset("T", "reset", 0, is_force=True))
    offsets.commit("RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS", 0, 5)
    for number in range(PAIRS_MAX):
        offsets.commit("T", f"made-up-{number}", 0, 1)
    assert commit(broker, "g").code == 0
    groups = offsets.groups_of("T")
    assert len(groups) == PAIRS_MAX - ROOM_STEP_PAIRS + 3, "no more at once than the others can wait for"
    assert groups[:2] == ["g", "gone"]
    assert groups[-1] == "reset"
    assert offsets.query("RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS", 0) == 5


def test_made_up_groups_make_room_again_and_again_until_none_is_left(broker):
    broker.send()
    broker.heartbeat("g")
    offsets = broker.core.state.offsets
    for number in range(2 * ROOM_STEP_PAIRS):
        offsets.commit("T", f"made-up-{number}", 0, 1)
    for number in range(PAIRS_MAX - 2 * ROOM_STEP_PAIRS):
        offsets.commit(f"T{number}", "g", 0, 1)
    assert commit(broker, "g").code == 0
    for number in range(ROOM_STEP_PAIRS - 1):
        offsets.commit(f"U{number}", "g", 0, 1)
    assert not offsets.has_room("V", "g")
    assert broker.core.state.has_offset_room("V", "g")
    assert len(offsets.groups_of("T")) == 1


def test_where_all_groups_are_needed_they_are_looked_through_once_in_a_while(broker):
    broker.send()
    broker.heartbeat("g")
    offsets = broker.core.state.offsets
    for number in range(PAIRS_MAX):
        offsets.commit(f"T{number}", "g", 0, 1)
    assert commit(broker, "g").code == ResponseCode.SYSTEM_BUSY
    offsets.forget_topic("T7")
    offsets.commit("T", "made-up", 0, 1)
    assert commit(broker, "g").code == ResponseCode.SYSTEM_BUSY
    broker.later(60_000)
    assert commit(broker, "g").code == 0
    assert not offsets.has_group("made-up")
