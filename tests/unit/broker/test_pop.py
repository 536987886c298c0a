"""POP: what is popped is in flight until it is acknowledged, or shown again when its time is over; over kills too."""

from __future__ import annotations

import base64
from random import Random

import pytest

from rocketcrew.broker.group_table import illegal_group
from rocketcrew.broker.pop_table import Key
from rocketcrew.broker.pops import POPS_JOURNAL, POPS_TABLE
from rocketcrew.broker.storage import MemoryStorage
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig
from rocketcrew.remoting.admin_headers import TopicName
from rocketcrew.remoting.check_points import check_point_of, start_offsets
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.headers import ResetOffset
from rocketcrew.remoting.pop_headers import (
    INIT_MAX,
    INIT_MIN,
    AckRequest,
    BatchAck,
    BatchAckBody,
    ChangeInvisibleRequest,
    ChangeInvisibleResponse,
    NotificationRequest,
    PollingInfo,
    PopRequest,
    PopResponse,
)
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import decode_messages, walk

INVISIBLE_MS = 10_000
SHOWN_AGAIN = "%RETRY%g_T"


def pop_header(broker, most=32, queue_id=-1, poll_ms=0, tags="*", group="g", topic="T", **more):
    """What a member of the group sends; another one's heartbeat has made the group."""
    if not illegal_group(group):
        broker.core.state.groups.put(SubscriptionGroupConfig(group))
    fields = {"init_mode": INIT_MIN, "exp_type": "TAG", "exp": tags, "order": False, "broker_name": "broker-a", **more}
    fields.setdefault("invisible_time", INVISIBLE_MS)
    return PopRequest(group, topic, queue_id, most, poll_time=poll_ms, born_time=broker.now_ms, **fields)


class Popped:
    """A message as a client has it."""

    def __init__(self, message, check_point, group, topic):
        self.body = message.body
        self.message = message
        self.check_point = check_point
        self.group = group
        self.queue = check_point.queue(topic, group)


def messages_of(answer, group="g", topic="T"):
    if answer.code != 0:
        assert answer.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL), answer.remark
        assert answer.body == b""
        return []
    header, mq = PopResponse.from_fields(answer.fields), MessageQueue(topic, "broker-a", -1)
    starts, found = start_offsets(header.start_offset_info), []
    for position, message in zip(walk(answer.body)[0], decode_messages(answer.body), strict=False):
        assert message.topic == topic
        check = check_point_of(answer.body, position, header, starts, mq, group)
        found.append(Popped(message, check, group, topic))
    return found


def pop(broker, most=32, **more):
    header = pop_header(broker, most, **more)
    return messages_of(broker.call(RequestCode.POP_MESSAGE, header), header.consumer_group, header.topic)


def bodies(popped):
    return [each.body for each in popped]


def ack_header(popped):
    check = popped.check_point
    return AckRequest(popped.group, popped.queue.topic, check.queue_id, check.encode(), check.offset, "broker-a")


def ack(broker, popped):
    return broker.call(RequestCode.ACK_MESSAGE, ack_header(popped)).code


def change(broker, popped, invisible_ms):
    """The message with its new check point."""
    check = popped.check_point
    header = ChangeInvisibleRequest(
        popped.group, popped.queue.topic, check.queue_id, check.encode(), check.offset, invisible_ms, "broker-a"
    )
    answer = broker.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
    assert answer.code == 0, answer.remark
    said = ChangeInvisibleResponse.from_fields(answer.fields)
    renewed = check.renewed(said.pop_time, said.invisible_time, said.revive_qid)
    return Popped(popped.message, renewed, popped.group, "T")


def send(broker, count, topic="T", queues=4, **more):
    for number in range(count):
        assert broker.send(topic, b"%d" % number, queue_id=number % queues, **more).code == 0


def in_flight(broker):
    return len(broker.core.state.pops.table)


def test_what_is_popped_is_hidden_until_its_time_is_over_then_shown_again_once_more(broker):
    send(broker, 10)
    first = pop(broker)
    assert sorted(bodies(first)) == [b"%d" % number for number in range(10)]
    assert {each.check_point.invisible_ms for each in first} == {INVISIBLE_MS}
    assert pop(broker) == []
    broker.later(INVISIBLE_MS - 1)
    assert pop(broker) == []
    broker.later(1)
    again = pop(broker)
    assert sorted(bodies(again)) == sorted(bodies(first))
    assert {(each.message.reconsume_times, each.queue.topic) for each in again} == {(1, SHOWN_AGAIN)}
    assert {each.message.properties["1ST_POP_TIME"] for each in again} == {str(broker.now_ms - INVISIBLE_MS)}
    broker.later(INVISIBLE_MS)
    third = pop(broker)
    assert {(each.message.reconsume_times, each.queue.topic) for each in third} == {(2, SHOWN_AGAIN)}
    assert {each.message.properties["1ST_POP_TIME"] for each in third} == {str(broker.now_ms - 2 * INVISIBLE_MS)}
    for each in third:
        assert ack(broker, each) == 0
    broker.later(10 * INVISIBLE_MS)
    assert pop(broker) == []
    assert in_flight(broker) == 0


def test_what_is_acknowledged_is_done_and_a_second_or_a_late_acknowledgement_changes_nothing(broker):
    send(broker, 3, queues=1)
    popped = pop(broker)
    assert [ack(broker, popped[0]), ack(broker, popped[0])] == [0, 0]
    broker.later(INVISIBLE_MS)
    assert ack(broker, popped[1]) == 0, "too late: it is shown again"
    again = pop(broker)
    assert bodies(again) == [b"1", b"2"]
    assert ack(broker, popped[1]) == 0
    broker.later(INVISIBLE_MS)
    assert bodies(pop(broker)) == [b"1", b"2"], "an old check point is worth nothing"


def test_a_changed_time_counts_from_now_and_only_the_newest_check_point_counts(broker):
    send(broker, 2, queues=1)
    one, two = pop(broker)
    broker.later(4_000)
    renewed = change(broker, one, INVISIBLE_MS)
    later = change(broker, two, 30_000)
    assert renewed.check_point.pop_time_ms == broker.now_ms
    assert ack(broker, one) == 0, "answered, but it is the check point from before"
    broker.later(INVISIBLE_MS - 1)
    assert pop(broker) == []
    broker.later(1)
    assert bodies(pop(broker)) == [b"0"]
    assert ack(broker, later) == 0
    broker.later(60_000)
    assert bodies(pop(broker)) == [b"0"]


def test_a_batch_of_acknowledgements(broker):
    send(broker, 12, queues=1)
    popped = pop(broker)
    broker.later(INVISIBLE_MS)
    again = pop(broker, most=4)
    first = again[0].check_point
    bits = base64.b64encode(bytes([0b1011])).decode()
    acks = BatchAckBody((BatchAck("g", "T", first.start_offset, 0, first.pop_time_ms, bits, "1"),), "broker-a")
    assert broker.call(RequestCode.BATCH_ACK_MESSAGE, body=acks.encode()).code == 0
    assert in_flight(broker) == 1
    broker.later(INVISIBLE_MS)
    assert sorted(bodies(pop(broker))) == sorted([*bodies(popped)[4:], again[2].body])
    assert broker.call(RequestCode.BATCH_ACK_MESSAGE).code == ResponseCode.NO_MESSAGE
    bad = BatchAckBody((BatchAck("g", "T", 0, 0, 0, "!", "0"),)).encode()
    assert "base64" in broker.call(RequestCode.BATCH_ACK_MESSAGE, body=bad).remark


def test_members_share_and_groups_do_not(broker):
    send(broker, 8)
    assert len(pop(broker, most=5)) == 5
    assert len(pop(broker, most=5)) == 3
    assert len(pop(broker, group="other")) == 8


def test_of_one_queue_and_with_a_filter(broker):
    send(broker, 8)
    assert bodies(pop(broker, queue_id=2)) == [b"2", b"6"]
    broker.send("U", b"red", tag="red")
    broker.send("U", b"blue", tag="blue")
    assert bodies(pop(broker, topic="U", tags="blue")) == [b"blue"]
    assert pop(broker, topic="U") == [], "what was filtered out is passed over"
    broker.later(INVISIBLE_MS)
    assert bodies(pop(broker, topic="U", tags="blue")) == [b"blue"]
    broker.send("V", b"3", properties={"size": "3"})
    broker.send("V", b"9", properties={"size": "9"})
    assert bodies(pop(broker, topic="V", exp_type="SQL92", tags="size > 5")) == [b"9"]
    answer = broker.call(RequestCode.POP_MESSAGE, pop_header(broker, topic="V", exp_type="SQL92", tags="size >"))
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queue_id": 64}, ResponseCode.INVALID_PARAMETER),
        ({"most": 33}, ResponseCode.INVALID_PARAMETER),
        ({"order": True}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        ({"group": "no group"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
def test_what_cannot_be_popped_is_refused(broker, more, code):
    send(broker, 1)
    answer = broker.call(RequestCode.POP_MESSAGE, pop_header(broker, **more))
    assert answer.code == code
    assert answer.remark


def test_what_cannot_be_acknowledged_is_refused(broker):
    send(broker, 1)
    (popped,) = pop(broker)
    check = popped.check_point.encode()
    for header, code in [
        (AckRequest("g", "none", 0, check, 0), ResponseCode.TOPIC_NOT_EXIST),
        (AckRequest("g", "T", 64, check, 0), ResponseCode.MESSAGE_ILLEGAL),
        (AckRequest("g", "T", 0, check, 1), ResponseCode.NO_MESSAGE),
        (AckRequest("g", "T", 0, "nonsense", 0), ResponseCode.SYSTEM_ERROR),
    ]:
        assert broker.call(RequestCode.ACK_MESSAGE, header).code == code
    assert in_flight(broker) == 1


def test_a_pop_waits_for_a_message_and_is_woken_by_one(broker, tools):
    send(broker, 1)
    (popped,) = pop(broker)
    waiting = []
    for channel in (1, 2):
        assert broker.request(RequestCode.POP_MESSAGE, pop_header(broker, poll_ms=15_000), channel=channel) == []
        waiting.append(broker.opaque)
    info = broker.call(RequestCode.POLLING_INFO, PollingInfo("g", "T", -1))
    assert info.fields["pollingNum"] == "2"
    broker.send("T", b"new", queue_id=3)
    ((channel, answer),) = [reply for reply in tools.replies(broker.effects) if reply[1].opaque != broker.opaque]
    assert (channel, answer.opaque) == (1, waiting[0])
    assert bodies(messages_of(answer)) == [b"new"]
    broker.later(INVISIBLE_MS - 1)
    assert tools.replies(broker.effects) == []
    effects = broker.later(1)
    ((channel, answer),) = tools.replies(effects)
    assert (channel, answer.opaque) == (2, waiting[1])
    assert sorted(bodies(messages_of(answer))) == [b"0", b"new"], "what is shown again wakes too"
    assert ack(broker, popped) == 0


def test_one_that_waits_is_answered_at_its_deadline(broker, tools):
    send(broker, 1)
    pop(broker)
    assert broker.request(RequestCode.POP_MESSAGE, pop_header(broker, poll_ms=3_000)) == []
    assert broker.core.next_deadline_ms() <= broker.now_ms + 3_000
    assert tools.replies(broker.later(2_999)) == []
    ((_, answer),) = tools.replies(broker.later(1))
    assert answer.code == ResponseCode.POLLING_TIMEOUT
    assert broker.request(RequestCode.POP_MESSAGE, pop_header(broker, poll_ms=3_000), channel=5) == []
    broker.core.channel_closed(broker.now_ms, 5)
    assert tools.replies(broker.later(3_000)) == []
    assert len(broker.core.state.pops.held) == 0


def test_what_one_leaves_wakes_the_next_and_what_nobody_wants_is_passed_over(make, tools):
    broker = make(pull_scan_entries_max=40)
    send(broker, 1)
    pop(broker)
    answers = {}
    for channel in range(1, 5):
        broker.request(RequestCode.POP_MESSAGE, pop_header(broker, most=2, poll_ms=15_000), channel=channel)
    broker.core.channel_full(1, is_full=True)
    for channel in (2, 3, 4):
        broker.core.channel_full(channel, is_full=True)
    send(broker, 8, queues=2)
    assert len(broker.core.state.pops.held) == 4, "nobody reads, so nobody is woken"
    broker.core.channel_full(3, is_full=False)
    for _ in range(4):
        answers |= dict(tools.replies(broker.later(1)))
    assert list(answers) == [3]
    for channel in (1, 2, 4):
        broker.core.channel_full(channel, is_full=False)
    for _ in range(6):
        answers |= dict(tools.replies(broker.later(1)))
    assert sorted(answers) == [1, 2, 3, 4]
    found = [body for answer in answers.values() for body in bodies(messages_of(answer))]
    assert sorted(found) == [b"%d" % number for number in range(8)]
    for number in range(200):
        broker.send("U", b"%d" % number, tag="blue" if number < 199 else "red")
    assert broker.request(RequestCode.POP_MESSAGE, pop_header(broker, topic="U", tags="red", poll_ms=15_000)) == []
    for _ in range(10):
        effects = tools.replies(broker.later(1))
        if effects:
            break
    assert bodies(messages_of(effects[0][1], topic="U")) == [b"199"]


def test_what_waits_has_a_bound_and_what_is_in_flight_too(make):
    broker = make(held_pulls_max=1, pops_in_flight_max=3)
    send(broker, 1)
    pop(broker)
    assert broker.request(RequestCode.POP_MESSAGE, pop_header(broker, poll_ms=15_000)) == []
    assert broker.call(RequestCode.POP_MESSAGE, pop_header(broker, poll_ms=15_000)).code == ResponseCode.POLLING_FULL
    broker.core.channel_closed(broker.now_ms, 1)
    send(broker, 8)
    assert len(pop(broker, most=2)) == 2
    assert broker.call(RequestCode.POP_MESSAGE, pop_header(broker, poll_ms=15_000)).code == ResponseCode.POLLING_FULL


def test_a_notification_says_that_there_is_something(broker, tools):
    send(broker, 1)
    broker.heartbeat()
    asked = NotificationRequest("g", "T", -1, 15_000, broker.now_ms)
    assert broker.call(RequestCode.NOTIFICATION, asked).fields["hasMsg"] == "true"
    pop(broker)
    assert broker.request(RequestCode.NOTIFICATION, asked) == []
    opaque = broker.opaque
    broker.send("T", b"new")
    (answer,) = [command for _, command in tools.replies(broker.effects) if command.opaque == opaque]
    assert answer.fields["hasMsg"] == "true"
    pop(broker)
    broker.request(RequestCode.NOTIFICATION, NotificationRequest("g", "T", -1, 1_000, broker.now_ms))
    ((_, answer),) = tools.replies(broker.later(1_000))
    assert answer.fields["hasMsg"] == "false"


@pytest.mark.parametrize(("mode", "first"), [(INIT_MIN, 0), (INIT_MAX, 0)])
def test_a_new_group_on_a_young_topic_begins_at_its_first_message(broker, mode, first):
    send(broker, 5, queues=1)
    assert bodies(pop(broker, init_mode=mode, queue_id=0))[0] == b"%d" % first


def test_who_pulled_before_goes_on_where_it_was_and_lag_is_what_is_not_done(broker):
    send(broker, 6, queues=1)
    state = broker.core.state
    state.offsets.commit("T", "g", 0, 2)
    popped = pop(broker, most=3)
    assert bodies(popped) == [b"2", b"3", b"4"]
    ack(broker, popped[1])
    broker.later(1_000)
    assert state.offsets.query("T", "g", 0) == 2
    ack(broker, popped[0])
    broker.later(1_000)
    assert state.offsets.query("T", "g", 0) == 4
    ack(broker, popped[2])
    broker.later(1_000)
    assert state.offsets.query("T", "g", 0) == 5


def test_what_pulls_committed_is_not_set_back_unless_there_is_no_such_offset(broker):
    send(broker, 6, queues=1)
    state = broker.core.state
    popped = pop(broker, most=3)
    for committed, kept in ((5, 5), (100, 2)):
        state.offsets.commit("T", "g", 0, committed)
        ack(broker, popped.pop(0))
        broker.later(1_000)
        assert state.offsets.query("T", "g", 0) == kept


@pytest.mark.parametrize("killed", [False, True])
def test_a_reset_begins_anew_there(broker, killed):
    send(broker, 6, queues=1)
    pop(broker, most=5)
    reset = ResetOffset("T", "g", -1, is_force=True, queue_id=0, offset=2)
    assert broker.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == 0
    if killed:
        broker.crash()
    assert bodies(pop(broker)) == [b"2", b"3", b"4", b"5"]
    assert in_flight(broker) == 4


def test_a_reset_that_was_popped_from_is_not_repeated_after_a_kill(broker):
    send(broker, 6, queues=1)
    reset = ResetOffset("T", "g", -1, is_force=True, queue_id=0, offset=2)
    assert broker.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == 0
    assert bodies(pop(broker, most=2)) == [b"2", b"3"]
    broker.crash()
    assert bodies(pop(broker)) == [b"4", b"5"]


def test_a_reset_that_was_answered_holds_over_a_kill(broker):
    send(broker, 6, queues=1)
    for each in pop(broker):
        ack(broker, each)
    broker.later(1_000)
    reset(broker)
    broker.crash()
    assert len(pop(broker)) == 6


def test_a_topic_that_is_made_again_begins_anew(broker):
    send(broker, 6, queues=1)
    pop(broker)
    broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("T"))
    assert in_flight(broker) == 0
    broker.crash()
    send(broker, 2, queues=1)
    assert bodies(pop(broker)) == [b"0", b"1"]
    broker.later(INVISIBLE_MS)


def test_what_a_deleted_topic_was_to_show_again_goes_with_it(broker):
    send(broker, 3, queues=1)
    pop(broker)
    broker.later(INVISIBLE_MS)
    assert SHOWN_AGAIN in broker.core.state.topics
    broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("T"))
    assert SHOWN_AGAIN not in broker.core.state.topics
    broker.send("T", b"new")
    assert bodies(pop(broker)) == [b"new"]


class UnflushedStorage(MemoryStorage):
    """Its disk has nothing until `is_flushed`."""

    has_disk = True
    is_flushed = False

    def is_synced(self, ticket):
        return self.is_flushed


def delete(broker):
    broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("T"))
    broker.send("T", b"new")


def reset(broker):
    header = ResetOffset("T", "g", -1, is_force=True, queue_id=0, offset=0)
    assert broker.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header).code == 0


@pytest.mark.parametrize("begin_anew", [delete, reset])
def test_what_is_popped_anew_is_not_taken_for_what_was_stored_again_before(make, begin_anew):
    broker = make(UnflushedStorage(), flush="async")
    send(broker, 1)
    pop(broker)
    broker.later(INVISIBLE_MS)
    begin_anew(broker)
    assert len(pop(broker, queue_id=0, most=1)) == 1
    flying = in_flight(broker)
    assert flying
    broker.storage.is_flushed = True
    for _ in range(2):
        broker.core.begin_flush()
        broker.later(1_000)
    assert in_flight(broker) == flying


def test_over_a_kill_what_is_done_is_done_and_times_go_on(broker):
    send(broker, 6, queues=1)
    popped = pop(broker)
    for each in popped[:2]:
        ack(broker, each)
    change(broker, popped[2], 60_000)
    broker.crash()
    assert pop(broker) == []
    assert ack(broker, popped[3]) == 0, "a check point outlives the broker's process"
    broker.later(INVISIBLE_MS)
    assert bodies(pop(broker)) == [b"4", b"5"]
    broker.crash()
    broker.later(60_000)
    assert sorted(bodies(pop(broker))) == [b"2", b"4", b"5"]


def test_a_message_that_is_gone_is_not_shown_again(broker):
    send(broker, 1)
    pop(broker)
    broker.core.state.pops.write([b"t T@g@1 0 3 1 1 2"])
    broker.later(1_000)
    assert in_flight(broker) == 1
    assert [event for event, _ in broker.core.state.store.events] == ["store.popped_message_gone"]


def test_above_the_end_of_a_log_that_a_crash_of_the_machine_cut_nothing_is_passed_over(broker):
    send(broker, 6, queues=1)
    popped = pop(broker)
    for each in popped[:3]:
        ack(broker, each)
    state = broker.core.state
    state.pops.write([b"t T@g@0 6 9 1 100000 6 7 8"])
    broker.crash()
    send(broker, 4, queues=1)
    assert bodies(pop(broker)) == [b"3", b"4", b"5", b"0", b"1", b"2", b"3"]
    broker.crash()
    assert pop(broker) == []


def test_the_journal_begins_anew_when_the_table_has_all_of_it(broker):
    broker.core.state.pops.journal.whole_after_min = 10
    journal = broker.storage.open(POPS_JOURNAL, 1, buffered=False)
    lengths = []
    for _ in range(6):
        send(broker, 4)
        ack(broker, pop(broker)[0])
        broker.later(1_000)
        lengths.append(journal.end - journal.start)
    assert 0 in lengths
    assert broker.storage.load(POPS_TABLE)
    count = in_flight(broker)
    broker.crash()
    assert in_flight(broker) == count == 18
    state = broker.core.state
    table = state.pops.table.dump()
    broker.crash()
    assert broker.core.state.pops.table.dump() == table


class LateTables(MemoryStorage):
    """The disk has a table at the third look."""

    looks = 0

    def is_saved(self, *tables):
        self.looks += tables == (POPS_TABLE,)
        return self.looks % 3 == 0


def test_the_journal_stays_short_where_something_is_popped_before_the_disk_has_the_table(make):
    broker = make(LateTables())
    broker.core.state.pops.journal.whole_after_min = 40
    journal = broker.storage.open(POPS_JOURNAL, 1, buffered=False)
    for _ in range(60):
        send(broker, 4)
        for each in pop(broker):
            ack(broker, each)
        broker.later(1_000)
    lines = journal.read(journal.start, journal.end - journal.start).count(b"\n")
    assert lines < 100
    table = broker.core.state.pops.table.dump()
    broker.crash()
    assert "store.pops_journal_damaged" not in [event for event, _ in broker.core.state.events]
    assert broker.core.state.pops.table.dump() == table


# Damage


def seen_later(broker):
    """What is shown in the next minute, and then done."""
    seen = set()
    for _ in range(60):
        broker.later(1_000)
        while popped := pop(broker):
            seen |= set(bodies(popped))
            for each in popped:
                ack(broker, each)
    return seen


@pytest.mark.parametrize("with_end", [False, True])
@pytest.mark.parametrize("damaged", range(9))
def test_a_journal_without_one_of_its_lines_loses_no_message(broker, damaged, with_end):
    """Its copy is kept; what the line had, and what was popped after it, is shown again."""
    send(broker, 40, queues=1)
    held = pop(broker, 10)
    for _ in range(2):
        for each in pop(broker, 10)[::2]:
            ack(broker, each)
    broker.later(1_000)
    file = broker.storage.open(POPS_JOURNAL, 1, buffered=False)
    lines = file.read(file.start, file.end - file.start).split(b"\n")
    at = file.start + sum(len(line) + 1 for line in lines[:damaged])
    file.overwrite(at, bytes(len(lines[damaged]) + with_end))
    before = file.read(file.start, file.end - file.start)
    broker.crash()
    (name,) = broker.storage.aside()
    assert name == f"{POPS_JOURNAL}/0-{len(before)}"
    assert ("store.pops_journal_damaged", {"lines": 1}) in broker.core.state.events
    assert set(bodies(held)) <= seen_later(broker)
    assert broker.core.state.offsets.query("T", "g", 0) == 40


def test_a_page_of_the_journal_that_is_gone_loses_no_message(broker):
    send(broker, 600, queues=1)
    while pop(broker, 4):
        pass
    file = broker.storage.open(POPS_JOURNAL, 1, buffered=False)
    assert file.end - file.start > 2 * 4_096
    file.overwrite(file.start + 4_096, bytes(4_096))
    broker.crash()
    assert len(seen_later(broker)) == 600


def test_with_the_generation_before_of_the_table_no_message_is_lost(broker):
    broker.core.state.pops.journal.whole_after_min = 10
    send(broker, 60, queues=1)
    for each in pop(broker, 20):
        ack(broker, each)
    broker.later(1_000)
    held = pop(broker, 20)
    for _ in range(2):
        broker.later(1_000)
    held += pop(broker, 5)
    table = broker.storage.load(POPS_TABLE)
    previous = broker.storage.load_previous(POPS_TABLE)
    assert previous
    broker.storage.replace(POPS_TABLE, previous)
    broker.storage.replace(POPS_TABLE, table[:-5])
    broker.crash()
    assert "store.previous_table_used" in [event for event, _ in broker.core.state.events]
    assert set(bodies(held)) <= seen_later(broker)


# Kills at any moment


class Life:
    """One client, a broker that is killed, and what must hold."""

    def __init__(self, make, seed):
        self.random = Random(seed)
        self.seed = seed
        self.broker = make(MemoryStorage())
        send(self.broker, 1)
        self.sent = 1
        self.held = {}
        self.done = set()
        self.perhaps_twice = set()
        """A kill came when they were stored again: the line that says so may be missing."""

    def take(self, popped):
        for each in popped:
            assert each.body not in self.done - self.perhaps_twice, f"seed {self.seed}: {each.body} was done"
            self.held[each.body] = each

    def end(self, each):
        check = each.check_point
        key = Key(each.queue.topic, "g", each.queue.queue_id)
        known = self.broker.core.state.pops.table.in_flight(key, check.offset)
        assert ack(self.broker, each) == 0
        if known is not None and known.pop_time_ms == check.pop_time_ms:
            self.done.add(each.body)
            self.held.pop(each.body, None)

    def act(self):
        """One step; whether it was one of time."""
        random, broker = self.random, self.broker
        chance = random.random()
        if chance < 0.25:
            broker.send("T", b"%d" % self.sent, queue_id=self.sent % 4)
            self.sent += 1
        elif chance < 0.5:
            self.take(pop(broker, most=random.choice([1, 3, 32]), queue_id=random.choice([-1, -1, 1])))
        elif chance < 0.75 and self.held:
            self.end(self.held[random.choice(list(self.held))])
        elif chance < 0.85 and self.held:
            each = self.held[random.choice(list(self.held))]
            self.held[each.body] = change(broker, each, random.choice([500, 5_000, 30_000]))
        else:
            broker.later(random.choice([1, 300, 4_000]))
            return True
        return False

    def journal(self):
        return self.broker.storage.open(POPS_JOURNAL, 1, buffered=False)

    def step(self):
        """One step, and perhaps a kill after it, or within its write of the journal."""
        before, held, done = self.journal().end, dict(self.held), set(self.done)
        was_time = self.act()
        if self.random.random() >= 0.15:
            return
        begin, end = max(before, self.journal().start), self.journal().end
        if end > begin and self.random.random() < 0.7:
            self.journal().truncate(self.random.randrange(begin, end))
            self.held, self.done = held, done  # nobody was answered
            if was_time:
                self.perhaps_twice |= {b"%d" % number for number in range(self.sent)} - done
        self.broker.crash()
        self.broker.core.state.pops.journal.whole_after_min = self.random.choice([5, 40, 10_000])


@pytest.mark.parametrize("seed", range(40))
def test_through_kills_at_any_byte_each_message_is_done_in_the_end_and_never_shown_after_that(make, seed):
    life = Life(make, seed)
    for _ in range(250):
        life.step()
    all_sent = {b"%d" % number for number in range(life.sent)}
    for _ in range(200):
        popped = pop(life.broker)
        life.take(popped)
        for each in popped:
            life.end(each)
        life.broker.later(5_000)
        if life.done == all_sent and not in_flight(life.broker):
            break
    assert life.done == all_sent, f"seed {seed}"
    assert in_flight(life.broker) == 0
    assert set(bodies(pop(life.broker))) <= life.perhaps_twice
