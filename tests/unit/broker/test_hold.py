"""Held pulls: woken by what they want, swept past what they do not, timed out, dropped with their connection."""

from __future__ import annotations

from functools import partial

import pytest

from rocketcrew.broker.storage import MemoryStorage, StorageError
from rocketcrew.remoting.admin_headers import CreateTopic
from rocketcrew.remoting.batch import encode_batch
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.stored import decode_messages

pytestmark = pytest.mark.usefixtures("no_collection")


def test_an_arrival_wakes_and_the_send_is_answered_first(broker, tools):
    broker.send()
    held = broker.hold(1)
    broker.send(body=b"new")
    (sent, answer) = [command for _, command in tools.replies(broker.effects)]
    assert sent.fields["queueOffset"] == "1"
    assert (answer.opaque, answer.code) == (held, 0)
    assert decode_messages(answer.body)[0].body == b"new"
    broker.send(body=b"later")
    assert len(broker.effects) == 1, "a woken pull is over"


def test_only_the_queue_and_tag_that_are_wanted(broker, tools):
    broker.send()
    held = broker.hold(1, tags="a")
    broker.send(queue_id=1, tag="a")
    assert len(broker.effects) == 1
    broker.send(tag="b")
    assert len(broker.effects) == 1
    broker.send(tag="a")
    answer = tools.replies(broker.effects)[1][1]
    assert (answer.opaque, answer.code, answer.fields["nextBeginOffset"]) == (held, 0, "3")
    assert len(decode_messages(answer.body)) == 1


def test_others_messages_move_the_offset_at_the_next_sweep(broker, tools):
    broker.send()
    held = broker.hold(1, tags="a")
    broker.send(tag="b")
    assert broker.later(4_000) == []
    ((_, answer),) = tools.replies(broker.later(1_000))
    assert (answer.opaque, answer.code) == (held, ResponseCode.PULL_RETRY_IMMEDIATELY)
    assert answer.fields["nextBeginOffset"] == "2"


def test_the_deadline_answers_nothing_new(broker, tools):
    broker.send()
    held = broker.hold(1, channel=3)
    assert broker.later(14_999) == []
    ((channel, answer),) = tools.replies(broker.later(1))
    assert (channel, answer.opaque, answer.code) == (3, held, ResponseCode.PULL_NOT_FOUND)
    assert answer.remark == "OFFSET_OVERFLOW_ONE"
    assert broker.later(60_000) == []


def test_the_deadline_is_bounded_and_known(make, tools):
    broker = make(hold_timeout_max_ms=500)
    broker.send()
    broker.hold(1)
    assert broker.core.next_deadline_ms() <= broker.now_ms + 500
    assert tools.replies(broker.later(500))


def test_an_empty_queue_holds_too(broker, tools):
    broker.send(queue_id=1)
    held = broker.hold(0)
    broker.send(body=b"first")
    assert tools.replies(broker.effects)[1][1].opaque == held


def test_a_closed_channel_is_not_answered(broker, tools):
    broker.send()
    broker.hold(1, channel=1)
    stays = broker.hold(1, channel=2)
    broker.core.channel_closed(broker.now_ms, 1)
    broker.send()
    assert [command.opaque for _, command in tools.replies(broker.effects)] == [broker.opaque, stays]
    assert broker.later(60_000) == []


def test_without_the_suspend_flag_the_answer_is_at_once(broker):
    broker.send()
    assert broker.pull(1).code == ResponseCode.PULL_NOT_FOUND


def test_too_many_held_pulls_are_answered(make):
    broker = make(held_pulls_max=2)
    broker.send()
    broker.hold(1)
    broker.hold(1)
    assert broker.call(RequestCode.PULL_MESSAGE, broker.pull_header(1, hold_ms=1)).code == ResponseCode.PULL_NOT_FOUND


def test_a_held_pull_of_a_group_that_vanished_is_refused(broker, tools):
    broker.send()
    broker.heartbeat(channel=5)
    header = broker.pull_header(1, sys_flag=2)
    assert broker.request(RequestCode.PULL_MESSAGE, header, channel=6) == []
    broker.core.channel_closed(broker.now_ms, 5)
    broker.send()
    assert tools.replies(broker.effects)[1][1].code == ResponseCode.SUBSCRIPTION_NOT_EXIST


def test_a_batch_wakes_once(broker, tools):
    broker.send()
    broker.hold(1)
    broker.send(body=batch(3), code=RequestCode.SEND_BATCH_MESSAGE)
    answers = tools.replies(broker.effects)
    assert len(answers) == 2
    assert len(decode_messages(answers[1][1].body)) == 3


def batch(count):
    return encode_batch((0, b"%d" % number, b"") for number in range(count))


def test_many_holds_leave_no_garbage(broker):
    """Pulls that are woken again and again do not pile up in the deadline heap."""
    broker.send()
    for offset in range(1, 1_000):
        broker.hold(offset)
        broker.send()
    held = broker.core.state.held
    assert len(held) == 0
    assert len(held._deadlines) <= 65
    assert held.next_deadline_ms() is None


def test_the_failure_of_a_held_pull_is_its_own(broker, tools):
    """Whoever sends a message, and everybody after him, has nothing to do with it."""

    def fails(properties):
        raise RecursionError("maximum recursion depth exceeded")

    broker.send()
    broker.heartbeat()
    broken, whole = broker.hold(1, channel=5), broker.hold(1, channel=6)
    for pull in broker.core.state.held._all.values():
        if pull.channel == 5:
            pull.wanted = pull.wanted._replace(sql=fails)
    assert broker.send(body=b"new").code == 0
    answers = {(channel, command.opaque): command.code for channel, command in tools.replies(broker.effects)}
    assert answers[6, whole] == 0
    assert answers[5, broken] == 0, "repeated: what it asks for now says what it is"
    assert broker.send().code == 0
    assert len(tools.replies(broker.effects)) == 1


def test_a_store_that_fails_a_held_pull_does_not_fail_the_sender(make, tools):
    class Failing(MemoryStorage):
        failing = False

        def open(self, name, segment_bytes, buffered):
            made = super().open(name, segment_bytes, buffered)
            return File(self, made) if name == "commitlog" else made

    class File:
        def __init__(self, storage, file):
            self._storage = storage
            self._file = file

        def read(self, position, length_bytes):
            if self._storage.failing:
                raise StorageError("cannot read commitlog: Input/output error")
            return self._file.read(position, length_bytes)

        def __getattr__(self, name):
            return getattr(self._file, name)

    storage = Failing()
    broker = make(storage)
    broker.send()
    broker.heartbeat()
    held = broker.hold(1, channel=5)
    storage.failing = True
    assert broker.send(body=b"new").code == 0
    (answer,) = [command for channel, command in tools.replies(broker.effects) if channel == 5]
    assert (answer.opaque, answer.code) == (held, ResponseCode.SYSTEM_ERROR)
    assert "Input/output error" in broker.core.state.faults[0]
    storage.failing = False
    assert not broker.core.state.arrivals
    assert broker.send().code == 0


def test_held_pulls_of_a_peer_that_does_not_read_wait_until_it_does(broker, tools):
    broker.send()
    broker.heartbeat()
    opaques = [broker.hold(1, channel=5) for _ in range(20)]
    assert broker.core.channel_full(5, is_full=True) == []
    broker.send(body=b"x" * 100_000)
    assert [channel for channel, _ in tools.replies(broker.effects)] == [1]
    assert len(broker.core.state.held) == 20
    first = tools.replies(broker.core.channel_full(5, is_full=False))
    assert 10 <= len(first) < 20, "a megabyte, then it has to read"
    rest = tools.replies(broker.give_room(5))
    assert [command.opaque for _, command in first + rest] == opaques
    assert all(command.code == 0 for _, command in first + rest)
    broker.hold(2, channel=5)
    broker.core.channel_full(5, is_full=True)
    broker.send()
    broker.core.channel_closed(broker.now_ms, 5)
    assert (len(broker.core.state.held), broker.core.state.full) == (0, set())


QUEUES, CONNECTIONS = 1_000, 100


def crowded(make, held_each):
    """A broker with a topic of QUEUES queues and `held_each` pulls on each, over CONNECTIONS connections."""
    broker = make()
    broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopic("T", "TBW102", QUEUES, QUEUES, 6, "SINGLE_TAG"))
    for channel in range(CONNECTIONS):
        broker.heartbeat(f"g{channel % 10}", client_id=f"c{channel}", channel=channel)
    for number in range(QUEUES * held_each):
        broker.hold(0, queue_id=number % QUEUES, channel=number % CONNECTIONS, group=f"g{number // QUEUES}")
    broker.later(6_000)  # what the making left is saved
    return broker


def idle_seconds(broker, seconds):
    for _ in range(10 * seconds):
        broker.later(100)


def test_ten_thousand_held_pulls_cost_an_idle_tick_what_none_cost(make, tools, calls_of):
    """Over five seconds, with sweep, saving and checkpoint in them; and an arrival costs its own queue's pulls."""
    idle, arrivals = [], []
    for held_each in (0, 1, 10):
        broker = crowded(make, held_each)
        assert len(broker.core.state.held) == held_each * QUEUES
        idle.append(calls_of(partial(idle_seconds, broker, 5)))
        arrivals.append(calls_of(partial(broker.send, queue_id=7)))
        woken = [answer for _, answer in tools.replies(broker.effects) if answer.opaque != broker.opaque]
        assert len(woken) == held_each
        assert len(broker.core.state.held) == held_each * (QUEUES - 1)
    assert max(idle) - min(idle) <= 100, "looks at the next deadline alone, some calls a tick"
    none, one, ten = arrivals
    assert ten - none < 12 * (one - none), "ten pulls of a queue cost ten times one, and no others anything"
