"""Held pulls: woken by what they want, swept past what they do not, timed out, dropped with their connection."""

from __future__ import annotations

from rocketcrew.remoting.batch import encode_batch
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.stored import decode_messages


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
