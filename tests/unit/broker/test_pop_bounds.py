"""POP at its bounds: large properties and messages, clients that take turns, what cannot be shown again, forged requests."""

from __future__ import annotations

import sys

import pytest
from refusing_disk import RefusingDisk

from rocketcrew.broker.core import WOKEN_MAX
from rocketcrew.broker.message_store import QueueRebuilding
from rocketcrew.broker.pops import POPS_JOURNAL
from rocketcrew.broker.state import POP_CK_MAX_BYTES
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.remoting.batch import encode_batch
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.frame import encode_head
from rocketcrew.remoting.pop_headers import BatchAck, BatchAckBody, NotificationRequest
from rocketcrew.remoting.properties import PROPERTIES_MAX_BYTES
from rocketcrew.remoting.stored import StoredMessage, decode_messages, walk

from .test_pop import INVISIBLE_MS, SHOWN_AGAIN, ack, bodies, in_flight, messages_of, pop, pop_header, send

pytestmark = pytest.mark.usefixtures("no_collection")


def events_of(broker):
    return [event for event, _ in broker.core.state.store.events]


def test_properties_of_any_length_stop_no_pop_and_lose_no_message(make):
    for length in (*range(32_591, 32_663, 9), 32_663):
        broker = make()
        assert broker.send("T", b"big", properties={"K": "x" * (length - 3)}).code == 0
        assert bodies(pop(broker)) == [b"big"]
        broker.later(INVISIBLE_MS)
        assert in_flight(broker) == 0
        assert events_of(broker) == ["store.popped_message_dead_letter"]
        (dead,) = decode_messages(broker.pull(topic="%DLQ%g").body)
        assert (dead.body, dead.reconsume_times) == (b"big", 1)
        assert pop(broker) == []


def test_without_room_for_the_time_of_its_first_pop_it_is_shown_again_as_often_as_others(make):
    room = PROPERTIES_MAX_BYTES - POP_CK_MAX_BYTES - len("broker-a")
    for free, is_dead in ((40, False), (20, False), (0, False), (-1, True)):
        broker = make()
        broker.send("T", b"first", properties={"K": "x"})
        (first,) = pop(broker)
        broker_adds = len(first.message.raw_properties) - 1
        broker.send("T", b"big", properties={"K": "x" * (room - free - broker_adds)})
        (big,) = pop(broker)
        assert len(big.message.raw_properties) == room - free
        ack(broker, first)
        for _ in range(3):
            broker.later(INVISIBLE_MS)
            assert bodies(pop(broker)) == ([] if is_dead else [b"big"]), free
        assert ("%DLQ%g" in broker.core.state.topics) is is_dead


def test_a_retry_that_has_no_room_for_its_check_point_is_passed_over_and_a_dead_letter_in_the_end(broker):
    send(broker, 1)
    pop(broker)
    broker.later(INVISIBLE_MS)
    broker.send(SHOWN_AGAIN, b"big", properties={"K": "x" * 32_650})
    broker.send(SHOWN_AGAIN, b"next")
    popped = pop(broker)
    assert bodies(popped) == [b"0", b"next"]
    for each in popped:
        assert ack(broker, each) == 0
    assert in_flight(broker) == 1
    broker.later(INVISIBLE_MS)
    assert [each.body for each in decode_messages(broker.pull(topic="%DLQ%g").body)] == [b"big"]
    assert in_flight(broker) == 0


def test_clients_that_take_turns_are_given_messages_of_all_queues(broker):
    found = set()
    for _ in range(60):
        for topic in "AB":
            send(broker, 2, topic=topic, queues=2)
        for topic in "AB":
            for each in pop(broker, most=1, topic=topic):
                found.add((topic, each.check_point.queue_id))
                ack(broker, each)
    assert found == {("A", 0), ("A", 1), ("B", 0), ("B", 1)}


def test_retries_of_groups_that_take_turns_are_given_out_while_there_is_a_backlog(broker):
    groups = [f"g{number}" for number in range(5)]
    send(broker, 400)
    for group in groups:
        assert len(pop(broker, most=1, group=group)) == 1
    broker.later(INVISIBLE_MS)
    retried = set()
    for _ in range(60):
        for group in groups:
            for each in pop(broker, most=1, group=group):
                if each.message.reconsume_times:
                    retried.add(group)
                ack(broker, each)
    assert retried == set(groups)


def test_a_pop_of_large_messages_takes_what_one_answer_can_carry_and_leaves_the_rest(broker):
    for queue_id in range(8):
        assert broker.send("T", b"%d" % queue_id * (3 << 20), queue_id=queue_id, default_topic_queue_nums=8).code == 0
    found = []
    while True:
        answer = broker.call(RequestCode.POP_MESSAGE, pop_header(broker))
        popped = messages_of(answer)
        if not popped:
            break
        encode_head(answer, len(answer.body))
        found += popped
        assert in_flight(broker) == len(found)
        assert int(answer.fields["restNum"]) == 8 - len(found)
    assert sorted(each.body[:1] for each in found) == [b"%d" % number for number in range(8)]
    assert {each.message.reconsume_times for each in found} == {0}


def test_what_could_not_be_shown_again_is_not_popped(make):
    broker = make()
    long = "T" * 60
    broker.send(long, b"x")
    answer = broker.call(RequestCode.POP_MESSAGE, pop_header(broker, topic=long, group="g" * 200))
    assert (answer.code, in_flight(broker)) == (ResponseCode.INVALID_PARAMETER, 0)
    assert "longer than topic max length 255" in answer.remark
    assert bodies(pop(broker, topic=long, group="g" * 100)) == [b"x"]
    broker = make()
    broker.send(long, b"x")
    broker.core.state.room._topics_max = 0
    answer = broker.call(RequestCode.POP_MESSAGE, pop_header(broker, topic=long))
    assert (answer.code, in_flight(broker)) == (ResponseCode.SYSTEM_BUSY, 0)
    assert "cannot be made" in answer.remark


def test_a_group_of_the_table_pops_beyond_half_of_the_room(make):
    """Groups that pull took the half that was left to POP."""
    broker = make(topics_max=40)
    send(broker, 1)
    for number in range(25):
        broker.heartbeat(f"g{number}", channel=number)
    assert bodies(pop(broker, group="g0")) == [b"0"]


def test_what_was_popped_is_shown_again_whatever_room_there_is(make):
    broker = make()
    send(broker, 1)
    send(broker, 1, topic="U")
    assert bodies(pop(broker) + pop(broker, topic="U")) == [b"0", b"0"]
    broker.core.state.room._topics_max = 1
    broker.later(INVISIBLE_MS)
    assert bodies(pop(broker) + pop(broker, topic="U")) == [b"0", b"0"]
    assert events_of(broker) == []


def test_what_cannot_be_shown_again_stays_in_flight_and_holds_up_nobody_else(make):
    """A dead letter for the lack of room for a check point, of a group whose name is too long for a dead-letter topic."""
    broker = make()
    group = "g" * 251
    broker.send("%RETRY%x", b"big", properties={"K": "x" * 32_660})
    assert bodies(pop(broker, topic="%RETRY%x", group=group, invisible_time=INVISIBLE_MS - 1)) == [b"big"]
    broker.later(1)
    send(broker, 1)
    assert bodies(pop(broker)) == [b"0"]
    broker.later(INVISIBLE_MS)
    assert bodies(pop(broker)) == [b"0"], "the other one is due before it"
    assert broker.core.trouble is None
    for _ in range(8):
        broker.later(1_000)
    assert events_of(broker) == ["store.popped_message_not_shown_again"], "it is not tried again each second"
    broker.later(60_000)
    assert events_of(broker)[1:] == ["store.popped_message_not_shown_again"]
    assert in_flight(broker) == 1


@pytest.mark.parametrize(
    ("bits", "code", "reason"),
    [
        ("é", ResponseCode.SYSTEM_ERROR, "no base64"),
        ("////" * 16_385, ResponseCode.INVALID_PARAMETER, "65540 characters"),
    ],
)
def test_a_forged_batch_of_acknowledgements_is_refused(broker, bits, code, reason):
    send(broker, 3, queues=1)
    pop(broker)
    batch = BatchAckBody((BatchAck("g", "T", 0, 0, broker.now_ms, bits),), "broker-a")
    answer = broker.call(RequestCode.BATCH_ACK_MESSAGE, body=batch.encode())
    assert answer.code == code
    assert reason in answer.remark
    assert in_flight(broker) == 3


def test_many_that_are_due_together_are_answered_without_a_look_into_each_queue(broker, tools):
    queues, requests, calls = 1_024, 20, 0
    broker.core.state.put_topic(broker.now_ms, TopicConfig("T", queues, queues))
    send(broker, queues, queues=queues)
    while popped := pop(broker):
        for each in popped:
            ack(broker, each)
    for channel in range(2, 2 + requests):
        assert broker.request(RequestCode.POP_MESSAGE, pop_header(broker, poll_ms=3_000), channel=channel) == []

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        effects = broker.later(3_000)
    finally:
        sys.setprofile(before)
    assert [answer.code for _, answer in tools.replies(effects)] == requests * [ResponseCode.POLLING_TIMEOUT]
    assert calls < requests * queues


def test_of_a_retry_topic_each_message_is_given_out_once(broker):
    broker.heartbeat()
    send(broker, 1)
    (message,) = decode_messages(broker.pull().body)
    broker.send_back(message)
    broker.later(INVISIBLE_MS)
    for _ in range(10):
        (popped,) = pop(broker, topic="%RETRY%g")
        assert pop(broker, topic="%RETRY%g") == []
        broker.later(INVISIBLE_MS)
    (popped,) = pop(broker, topic="%RETRY%g")
    assert ack(broker, popped) == 0
    assert in_flight(broker) == 0


@pytest.mark.parametrize("shown_again", [False, True])
def test_a_notification_takes_no_wake_up_from_a_pop(broker, tools, shown_again):
    send(broker, 1)
    popped = pop(broker)
    notification = NotificationRequest("g", "T", -1, 15_000, broker.now_ms)
    for channel in (5, 6):
        assert broker.request(RequestCode.NOTIFICATION, notification, channel=channel) == []
    for channel in (7, 8):
        assert broker.request(RequestCode.POP_MESSAGE, pop_header(broker, poll_ms=15_000), channel=channel) == []
    if shown_again:
        broker.later(INVISIBLE_MS)
    else:
        ack(broker, popped[0])
        broker.send("T", b"1")
    answers = {channel: answer for channel, answer in tools.replies(broker.effects) if channel != 1}
    assert list(answers) == [5, 7]
    assert answers[5].fields["hasMsg"] == "true"
    assert len(messages_of(answers[7])) == 1


def test_properties_that_are_no_utf8_are_shown_again_as_by_a_genuine_broker(broker):
    send(broker, 1)
    store = broker.core.state.store
    store.put(broker.now_ms, StoredMessage("T", b"odd", b"K\x01\xff\x02", queue_id=1), 0)
    assert len(walk(broker.call(RequestCode.POP_MESSAGE, pop_header(broker)).body)[1]) == 2
    broker.later(INVISIBLE_MS)
    shown = pop(broker)
    assert sorted(bodies(shown)) == [b"0", b"odd"]
    assert {each.message.properties.get("K") for each in shown} == {None, "\ufffd"}
    assert events_of(broker) == []
    assert [ack(broker, each) for each in shown] == [0, 0]
    assert in_flight(broker) == 0


def test_a_clock_that_was_set_back_before_a_start_delays_nothing_that_is_in_flight(broker):
    send(broker, 2, queues=1)
    first, second = pop(broker)
    day_ms = 86_400_000
    for _ in range(2):  # the second start must not bring it nearer again
        broker.now_ms -= day_ms
        broker.crash()
        day_ms = 0
        broker.later(INVISIBLE_MS // 2 - 1)
        assert in_flight(broker) == 2
    assert ack(broker, first) == 0
    assert in_flight(broker) == 1
    broker.later(2)
    (again,) = pop(broker)
    assert (again.body, ack(broker, second), in_flight(broker)) == (second.body, 0, 1)


def test_a_clock_that_is_set_back_twice_delays_nothing_that_is_in_flight(broker):
    send(broker, 1, queues=1)
    pop(broker)
    for back_ms in (86_400_000, 3_600_000):
        broker.now_ms -= back_ms
        broker.crash()
        broker.later(INVISIBLE_MS // 2)
        assert in_flight(broker) == 1
    broker.crash()  # the clock goes on: nothing is put off
    broker.later(INVISIBLE_MS // 2)
    assert [message.body for message in pop(broker)] == [b"0"]


def woken_by_revivals(broker, tools, queues, pops, most):
    """Look-ups in queues that it costs to show so many messages again, each of which wakes a pop that waits."""
    looks = 0
    broker.core.state.put_topic(broker.now_ms, TopicConfig("T", queues, queues))
    send(broker, pops, queues=queues)
    while pop(broker):
        pass
    for channel in range(2, 2 + pops):
        header = pop_header(broker, most, poll_ms=INVISIBLE_MS + 30_000)
        assert broker.request(RequestCode.POP_MESSAGE, header, channel=channel) == []
    max_offset = broker.core.state.store.max_offset

    def counted(*arguments):
        nonlocal looks
        looks += 1
        return max_offset(*arguments)

    broker.core.state.store.max_offset = counted
    answers = tools.replies(broker.later(INVISIBLE_MS))
    while broker.core.next_deadline_ms() <= broker.now_ms:
        answers += tools.replies(broker.later(0))
    assert sum(len(walk(answer.body)[1]) for _, answer in answers) == pops
    return looks


@pytest.mark.parametrize("most", [1, 32])
def test_whom_an_arrival_wakes_looks_where_something_arrived_and_not_into_each_queue(broker, tools, most):
    """1,000 messages that were shown again together, with 1,024 queues, held everybody up for 6.8 s."""
    assert woken_by_revivals(broker, tools, 256, 256, most) < 20 * 256


def test_what_arrives_together_wakes_in_rounds(broker, tools):
    """A round of a thousand sends or revivals leaves the others their turn."""
    send(broker, 1)
    ack(broker, pop(broker)[0])
    for channel in range(2, 2 + 2 * WOKEN_MAX):
        header = pop_header(broker, 1, poll_ms=30_000)
        assert broker.request(RequestCode.POP_MESSAGE, header, channel=channel) == []
    batch = encode_batch([(0, b"%d" % number, "") for number in range(2 * WOKEN_MAX)])
    answer = broker.send("T", batch, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
    assert answer.code == 0
    answered = [len(tools.replies(broker.effects)) - 1]
    while broker.core.next_deadline_ms() == 0:
        answered.append(len(tools.replies(broker.later(0))))
    assert sum(answered) == 2 * WOKEN_MAX
    assert max(answered) <= WOKEN_MAX + 1


def test_what_one_that_waited_leaves_in_a_queue_is_for_the_next_of_that_queue(broker, tools):
    """Of two messages that arrive together, one goes to who waits for any queue, one to who waits for theirs."""
    send(broker, 4)
    while popped := pop(broker):
        for each in popped:
            ack(broker, each)
    for channel, queue_id in ((5, -1), (6, 3), (7, 2)):
        header = pop_header(broker, 1, queue_id=queue_id, poll_ms=30_000)
        assert broker.request(RequestCode.POP_MESSAGE, header, channel=channel) == []
    batch = encode_batch([(0, b"a", ""), (0, b"b", "")])
    broker.send("T", batch, queue_id=3, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
    answers = {channel: messages_of(answer) for channel, answer in tools.replies(broker.effects) if channel > 4}
    assert {channel: bodies(found) for channel, found in answers.items()} == {5: [b"a"], 6: [b"b"]}


def answers_soon(broker, tools):
    """What is answered without a wait, by channel: until nothing is due at once."""
    answers = dict(tools.replies(broker.effects))
    for _ in range(100):
        if broker.core.next_deadline_ms() > 0:
            return answers
        answers |= dict(tools.replies(broker.later(0)))
    raise AssertionError("something is due at once for ever")


@pytest.mark.parametrize("queue_ids", [(-1, -1, -1), (0, -1, -1), (-1, 0, -1)])
@pytest.mark.parametrize("refuses", [1, 2])
def test_a_pop_that_the_disk_refused_leaves_its_message_to_the_others_that_wait(make, tools, queue_ids, refuses):
    """The first of them is woken by the arrival, the next one because of what became of the first."""
    broker = make(RefusingDisk())
    send(broker, 1)
    ack(broker, pop(broker)[0])
    for channel, queue_id in enumerate(queue_ids, 2):
        header = pop_header(broker, queue_id=queue_id, poll_ms=15_000)
        assert broker.request(RequestCode.POP_MESSAGE, header, channel=channel) == []
    broker.storage.refuses[POPS_JOURNAL] = refuses
    send(broker, 1, queues=1)
    answers = answers_soon(broker, tools)
    del answers[1]  # the sender's
    codes = [answer.code for answer in answers.values()]
    assert sorted(codes) == [0] + [ResponseCode.SERVICE_NOT_AVAILABLE] * refuses
    assert (in_flight(broker), len(broker.core.state.pops.held)) == (1, 3 - 1 - refuses)


def test_a_pop_that_fails_at_once_wakes_nobody(make, tools):
    broker = make(RefusingDisk())
    send(broker, 1)
    ack(broker, pop(broker)[0])
    header = pop_header(broker, tags="red", poll_ms=15_000)
    assert broker.request(RequestCode.POP_MESSAGE, header, channel=2) == []
    send(broker, 1, queues=1, tag="blue")
    broker.storage.refuses[POPS_JOURNAL] = 1
    assert broker.call(RequestCode.POP_MESSAGE, pop_header(broker)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert broker.core.next_deadline_ms() > 0
    assert bodies(pop(broker)) == [b"0"]
    assert len(broker.core.state.pops.held) == 1


def test_a_pop_that_came_while_the_index_of_its_queue_was_made_anew_is_answered_when_that_is_done(broker, tools):
    send(broker, 1)
    ack(broker, pop(broker)[0])
    send(broker, 3, queues=1)
    store = broker.core.state.store
    with pytest.raises(QueueRebuilding):
        store.begin_rebuild(store.queue("T", 0))
    assert broker.request(RequestCode.POP_MESSAGE, pop_header(broker, poll_ms=15_000), channel=2) == []
    answers = answers_soon(broker, tools)
    assert bodies(messages_of(answers[2])) == [b"0", b"1", b"2"]
