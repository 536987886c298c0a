"""Resets of offsets by an administrator: until when they are pending, over lost answers, kills and a disk that refuses."""

from __future__ import annotations

from random import Random

import pytest
from refusing_disk import RefusingDisk

from rocketcrew.broker.offset_table import GIVEN_ALL_MAX, GIVEN_MAX, PAIRS_MAX, OffsetTable
from rocketcrew.broker.state import OFFSETS_TABLE
from rocketcrew.remoting.bodies import ResetOffsetBody
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.headers import QueryOffset, UpdateOffset
from rocketcrew.remoting.queues import MessageQueue


def test_a_reset_waits_for_the_next_pull(broker):
    for _ in range(3):
        broker.send()
    broker.heartbeat()
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 3))
    answer = broker.reset()
    assert ResetOffsetBody.decode(answer.body).offset_table[MessageQueue("T", "embedded", 0)] == 0
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 3))
    query = broker.call(RequestCode.QUERY_CONSUMER_OFFSET, QueryOffset("g", "T", 0))
    assert query.fields["offset"] == "0", "a commit of somebody still running is void"
    moved = broker.pull(3)
    assert (moved.code, moved.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert (moved.fields["nextBeginOffset"], moved.fields["maxOffset"]) == ("0", "3")
    assert broker.pull(0).code == 0
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 2))
    assert broker.core.state.offsets.query("T", "g", 0) == 2


def test_a_reset_that_the_disk_refused_is_not_done(make):
    """It was answered with an error and done all the same: the group began anew with the next pull."""
    broker = make(RefusingDisk())
    for _ in range(3):
        broker.send()
    broker.heartbeat()
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 2))
    broker.later(1_000)
    for pending in (None, 1):
        if pending is not None:
            assert broker.reset(queue_id=0, offset=pending).code == 0
        broker.storage.refuses[OFFSETS_TABLE] = 1
        assert broker.reset().code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert broker.reset(group="never-seen", topic="T").code == 0
        broker.later(1_000)
        broker.crash()
        broker.heartbeat()
        moved = broker.pull(3)
        assert (moved.code, moved.fields["nextBeginOffset"]) == (
            (ResponseCode.PULL_NOT_FOUND, "3") if pending is None else (ResponseCode.PULL_OFFSET_MOVED, "1")
        )
    broker.storage.refuses[OFFSETS_TABLE] = 1
    assert broker.reset(group="new").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert not broker.core.state.offsets.has_group("new")


def test_a_reset_waits_over_a_restart_of_the_broker(broker):
    """Members that ran went on to commit where they were, and took the reset back."""
    for _ in range(3):
        broker.send()
    broker.heartbeat()
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 3))
    broker.reset(queue_id=0, offset=1)
    broker.crash()
    broker.heartbeat()
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 3))
    moved = broker.pull(3)
    assert (moved.code, moved.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
    assert broker.pull(1).code == 0
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 2))
    broker.later(broker.config.offset_flush_interval_ms)  # what was taken waits no more, after another one either
    broker.crash()
    broker.heartbeat()
    assert broker.pull(2).code == 0
    assert broker.core.state.offsets.query("T", "g", 0) == 2


def reset_pending(make, storage=None):
    """Three messages, a group that has read them, and a reset to the first one."""
    broker = make(storage)
    for _ in range(3):
        broker.send()
    broker.heartbeat()
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 3))
    assert broker.reset(queue_id=0, offset=0).code == 0
    return broker


def moved_to(answer):
    return answer.fields["nextBeginOffset"] if answer.code == ResponseCode.PULL_OFFSET_MOVED else None


def test_a_reset_whose_answer_was_lost_is_answered_again(make):
    """The first answer took the reset with it: where the connection broke, the member went on as if there were none."""
    broker = reset_pending(make)
    assert moved_to(broker.pull(3)) == "0"
    broker.core.channel_closed(broker.now_ms, 1)
    broker.heartbeat(channel=2)
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 3), channel=2)

    def pull(offset):
        return broker.call(RequestCode.PULL_MESSAGE, broker.pull_header(offset), channel=2)

    for _ in range(2):
        assert moved_to(pull(3)) == "0", "the member's wait may have ended before the answer came"
    assert pull(0).code == 0
    assert pull(3).code == ResponseCode.PULL_NOT_FOUND
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 3), channel=2)
    assert broker.core.state.offsets.query("T", "g", 0) == 3


def test_a_reset_that_was_followed_is_not_repeated_after_a_kill(make):
    """A kill within a second of it sent the group back once more, over all that it had done since."""
    broker = reset_pending(make)
    assert moved_to(broker.pull(3)) == "0"
    assert broker.pull(0).code == 0
    broker.crash()
    broker.heartbeat()
    assert broker.pull(2).code == 0


def test_a_reset_that_was_not_followed_when_the_kill_came_is_answered_again(make):
    broker = reset_pending(make)
    assert moved_to(broker.pull(3)) == "0"
    broker.crash()
    broker.heartbeat()
    assert moved_to(broker.pull(0)) == "0", "it may be there by chance, with messages in hand from before the reset"
    assert broker.pull(0).code == 0


def test_a_client_that_follows_no_reset_is_served_as_it_asks_in_the_end(make):
    broker = reset_pending(make)
    assert [moved_to(broker.pull(2)) for _ in range(GIVEN_MAX)] == ["0"] * GIVEN_MAX
    assert broker.pull(2).code == 0
    assert broker.pull(3).code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize(("channels", "answers_max"), [(2, 2 * GIVEN_MAX), (1_000, GIVEN_ALL_MAX)])
def test_clients_that_follow_no_reset_in_turn_are_served_as_they_ask_in_the_end(make, channels, answers_max):
    """Each took the other's count away: both got the reset for ever."""
    broker = reset_pending(make)
    codes = [
        broker.call(RequestCode.PULL_MESSAGE, broker.pull_header(2), channel=1 + number % channels).code
        for number in range(50)
    ]
    assert codes == [ResponseCode.PULL_OFFSET_MOVED] * answers_max + [0] * (50 - answers_max)


def test_a_newer_reset_counts_for_itself_although_the_older_one_was_answered(make):
    broker = reset_pending(make)
    assert moved_to(broker.pull(3)) == "0"
    assert broker.reset(queue_id=0, offset=2).code == 0
    assert moved_to(broker.pull(2)) == "2"
    assert broker.pull(2).code == 0


def test_a_followed_reset_that_the_disk_does_not_forget_delivers_nothing_yet(make):
    broker = reset_pending(make, RefusingDisk())
    assert moved_to(broker.pull(3)) == "0"
    broker.storage.refuses[OFFSETS_TABLE] = 1
    assert broker.pull(0).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert moved_to(broker.pull(0)) == "0"
    assert broker.pull(0).code == 0


def test_pending_resets_go_with_their_topic_and_are_kept_below_the_end(broker):
    offsets = broker.core.state.offsets
    for topic in ("T", "U", "V"):
        offsets.reset(topic, "g", 0, 7)
    offsets.forget_topic("T")
    again = OffsetTable()
    again.load(offsets.dump())
    again.clamp(lambda topic, _queue_id: 5 if topic == "U" else None)
    assert [again.take_reset(topic, "g", 0) for topic in ("T", "U", "V")] == [None, 5, 7]
    assert b"pendingResets" not in again.dump()


def test_the_text_of_all_offsets_costs_what_changed_and_not_what_there_is():
    offsets = OffsetTable()
    for number in range(PAIRS_MAX):
        offsets.commit("T", f"g{number}", 0, 0)
    offsets.dump()
    before = offsets.text.looks
    offsets.commit("T", "g7", 0, 41)
    offsets.reset("T", "g8", 1, 42)
    text = offsets.dump()
    assert offsets.text.looks - before < 5_000, "of 200,000 members"
    assert text.count(b'"T@g7":{0:41}') == 1
    assert text.endswith(b',"pendingResets":{"T@g8":{1:42}}}')


def test_the_text_of_all_offsets_is_that_of_what_there_is_whatever_was_done_before():
    random, offsets, names = Random(11), OffsetTable(), [f"g{number}" for number in range(30)]
    for step in range(1, 401):
        topic, group, queue_id = random.choice("TUV"), random.choice(names), random.randrange(3)
        match random.randrange(4):
            case 0:
                offsets.commit(topic, group, queue_id, random.randrange(100))
            case 1:
                offsets.reset(topic, group, queue_id, random.randrange(100))
            case 2:
                offsets.take_reset(topic, group, queue_id)
            case _:
                offsets.forget_group(group)
        text = offsets.dump()
        if step % 20:
            continue
        again = OffsetTable()
        again.load(text)
        every = [(topic, group, queue_id) for topic in "TUV" for group in names for queue_id in range(3)]
        assert [again.query(*each) for each in every] == [offsets.query(*each) for each in every]
    pending = [offsets.take_reset(*each) for each in every]
    assert [again.take_reset(*each) for each in every] == pending
    assert any(offset is not None for offset in pending)
    assert b"pendingResets" not in offsets.dump()


def test_resets_by_time_by_offset_and_not_by_force(broker):
    for _ in range(3):
        broker.send()
        broker.now_ms += 100
    queue = MessageQueue("T", "embedded", 0)

    def target(**more):
        return ResetOffsetBody.decode(broker.reset(**more).body).offset_table.get(queue)

    assert target(timestamp=-1) == 3
    assert target(timestamp=broker.now_ms - 200) == 1
    assert target(queue_id=0, offset=2) == 2
    assert target(queue_id=0, offset=99) == 3
    assert target(timestamp=0) == 0
    assert target(timestamp=-1, is_force=False) is None, "only back"
    assert broker.reset(topic="no").code == ResponseCode.TOPIC_NOT_EXIST
    assert broker.reset(queue_id=9).code == ResponseCode.INVALID_PARAMETER
