"""POP in the core at its edges: bad check points, deadlines, and failures while a renewal is under way."""

from __future__ import annotations

import pytest

from rocketcrew.remoting.check_points import CheckPoint
from rocketcrew.remoting.pop_headers import PopResponse
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.popping import PopResult
from rocketcrew.workers.failures import Mode

from .test_popping import INVISIBLE_S, Member, PopBroker


def test_what_a_new_filter_left_unfinished_is_not_counted_at_a_later_stop():
    member = Member(PopBroker(1), workers=1, drain_deadline_ms=1000)
    member.pop()
    member.core.handle(ev.Subscribe("T"), member.now)
    member.act()
    member.later(1.1)
    assert not member.core.state.queues
    member.run()
    member.core.handle(ev.Stop(), member.now)
    member.act()
    assert (member.finished.unfinished, member.finished.unsealed) == (0, 0)


def pop_of(member, *properties):
    """Answer the pop that is out with one record for each of these properties, at offsets 0, 1, ..."""
    own = [encode_properties(each).encode() for each in properties]
    answer_pop(member, [StoredMessage("T", b"x", raw, queue_offset=offset) for offset, raw in enumerate(own)])


def answer_pop(member, messages, starts="0 0 0"):
    """Answer the pop that is out with these."""
    action = member.waiting_pops.pop(0)
    body = b"".join(map(encode_message, messages))
    slot = member.core.room_for(action.handle, len(body))
    member.view[slot.start : slot.start + len(body)] = body
    header = PopResponse(1, int(INVISIBLE_S * 1000), 0, 0, starts, None)
    member.core.handle(ev.Popped(action.handle, PopResult(0, header, len(body), slot)), member.now)
    member.act()


@pytest.mark.parametrize("invisible_ms", [0, -5, 1])
def test_a_check_point_without_an_invisible_time_does_not_keep_the_loop_busy(invisible_ms):
    member = Member(PopBroker(1), workers=1)
    pop_of(member, {"POP_CK": CheckPoint(0, 1, invisible_ms, 0, "0", "broker-a", 0, 0).encode()})
    for _ in range(1010):
        member.later(0.001)
    assert member.counter("pop_renewals_refused") <= 20


def test_a_record_whose_check_point_cannot_be_read_does_not_take_the_others_along():
    member = Member(PopBroker(4), workers=1)
    pop_of(member, {"KEYS": "a"}, {"POP_CK": "garbage"}, {"KEYS": "b"}, {"KEYS": "c"})
    while member.chunks:
        member.run()
    assert sorted(member.runs) == [0, 2, 3]
    member.seal("w0")
    assert member.core.state.slab.used_units == 0
    assert member.counter("pop_acks") + member.counter("pop_acks_refused") == 3


class Held(Member):
    """Renewals and send-backs stay unanswered."""

    def __init__(self, *args, **config):
        self.renews, self.backs, self.acks = [], [], []
        super().__init__(*args, **config)

    def perform(self, action):
        if isinstance(action, act.Renew):
            self.renews.append(action)
        elif isinstance(action, act.SendBack):
            self.backs.append(action)
        elif isinstance(action, act.Ack) and action.checks[0].offset not in self.durable:
            self.acks.append(action)  # of a dead letter
        else:
            super().perform(action)

    def sent_back(self, back, accepted):
        self.core.handle(ev.SentBack(back.handle, back.chunk_id, back.index, accepted), self.now)
        self.act()


@pytest.mark.parametrize("retry_topic", ["%RETRY%g_T", "%RETRY%g+T"])
def test_a_new_message_and_a_retry_at_the_same_offset_are_acknowledged_apart(retry_topic):
    """Some brokers give out both in one answer, of one pop time, under their own topics. What is said of the one must name
    its own topic: the broker takes it for the other message, which may be lost then."""

    class Unanswered(Held):
        def perform(self, action):
            if isinstance(action, act.Ack):
                self.acks.append(action)
            else:
                super().perform(action)

    member = Unanswered(PopBroker(1), workers=1)
    records = [StoredMessage(topic, b"x", queue_offset=0) for topic in (retry_topic, "T")]
    answer_pop(member, records, "0 0 0;1 0 0;2 0 0")
    retry, new = MessageQueue(retry_topic, "broker-a", 0), MessageQueue("T", "broker-a", 0)
    member.later(INVISIBLE_S / 2)
    assert [renew.mq for renew in member.renews] == [retry, new]
    popping = member.core.popping
    assert all(popping.is_popped(action.info_handle, action.mq) for action in member.chunks), (
        "workers show the topic `T`"
    )
    assert not popping.is_popped(member.chunks[0].info_handle, member.chunks[1].mq)
    for renew in member.renews:
        member.core.handle(ev.Renewed(renew.handle, renew.offset, renew.check.renewed(2, 60_000, 0)), member.now)
    (first,) = [action for action in member.chunks if action.mq == retry]
    member.chunks.sort(key=lambda action: action is not first)
    member.run(rows=False)
    assert [(ack.mq, [check.queue("T", "g") for check in ack.checks]) for ack in member.acks] == [(retry, [retry])]
    member.run(fails=lambda offset: True)
    assert [(back.mq, back.check.queue("T", "g")) for back in member.backs] == [(new, new)]
    assert len(member.acks) == 1


@pytest.mark.parametrize("refused", [False, True])
def test_a_message_that_fails_while_it_is_renewed_goes_back_with_the_new_check_point(refused):
    broker = PopBroker(1)
    member = Held(broker, workers=1)
    member.pop()
    member.later(INVISIBLE_S / 2)
    (renew,) = member.renews
    new = None if refused else broker.change(renew.check, member.now, INVISIBLE_S)
    member.run(fails=lambda offset: True)
    assert member.backs == []
    member.core.handle(ev.Renewed(renew.handle, renew.offset, new), member.now)
    member.act()
    (back,) = member.backs
    assert back.check == (renew.check if refused else new)
    assert broker.change(back.check, member.now, 10.0) is not None
    member.sent_back(back, True)
    assert not member.core.state.queues


def test_what_waits_for_a_renewal_is_over_at_the_deadline():
    class Unanswered(Member):
        def perform(self, action):
            if not isinstance(action, act.Renew):
                assert not isinstance(action, act.SendBack)
                super().perform(action)

    member = Unanswered(PopBroker(1), workers=1, stop_deadline_ms=1000)
    member.pop()
    member.later(INVISIBLE_S / 2)
    member.run(fails=lambda offset: True)
    member.core.handle(ev.Stop(), member.now)
    member.later(1.1)
    assert member.finished.unfinished == 1
    assert not member.core.state.queues
    assert member.core.state.slab.used_units == 0


@pytest.mark.parametrize("accepted", [True, False])
def test_nothing_is_renewed_while_its_send_back_is_on_its_way(accepted):
    """The renewal would replace the check point, and the broker refuse the one that the send-back names."""
    broker = PopBroker(1)
    member = Held(broker, workers=1)
    member.pop()
    member.run(fails=lambda offset: True)
    (back,) = member.backs
    member.later(INVISIBLE_S / 2)
    assert member.renews == []
    assert broker.change(back.check, member.now, INVISIBLE_S if not accepted else 10.0) is not None
    member.sent_back(back, accepted)
    assert len(member.renews) == (not accepted), "what stays with us is renewed at once: its time may be nearly over"
    assert bool(member.core.state.queues) is not accepted


@pytest.mark.parametrize("accepted", [True, False])
def test_a_popped_message_at_its_limit_is_a_dead_letter_by_the_core_s_word(accepted):
    broker = PopBroker(1)
    broker.messages[0].check = CheckPoint(0, 1, 60_000, 0, "1", "broker-a", 0, 0)
    broker.messages[0].retries = 2
    member = Held(broker, workers=1, max_reconsume_times=3)
    member.pop()
    member.run(fails=lambda offset: True)
    (back,) = member.backs
    assert (back.mode, back.last) == (Mode.DEAD_LETTER, True)
    member.sent_back(back, accepted)
    assert (member.counter("dead_letter_messages"), member.counter("send_back_refused")) == (accepted, not accepted)
    assert [ack.checks for ack in member.acks] == ([[back.check]] if accepted else [])
    for renew in member.renews:
        renewed = broker.change(renew.check, member.now, INVISIBLE_S)
        member.core.handle(ev.Renewed(renew.handle, renew.offset, renewed), member.now)
    member.later(10.0)
    assert len(member.backs) == 1 + (not accepted), "it is no other message because no broker took it"
    assert len(member.runs) == 1
