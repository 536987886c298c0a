"""POP in the core where a broker does not answer: what is tried again, for how long, and what a stop says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.failed_actions import action_failed

from .test_popping import INVISIBLE_S, Member, PopBroker, finish


def until(member, when, step_s=0.5):
    while member.now < when:
        member.later(step_s)


class Away(Member):
    """Its broker answers no acknowledgement and no renewal while it is `away`."""

    def __init__(self, *args, **config):
        self.away, self.acks, self.renews = False, [], []
        super().__init__(*args, **config)

    def perform(self, action):
        if isinstance(action, act.Ack):
            self.acks.append((self.now, [check.offset for check in action.checks]))
        elif isinstance(action, act.Renew):
            self.renews.append(self.now)
        if not self.away or not isinstance(action, act.Ack | act.Renew):
            super().perform(action)
        elif isinstance(action, act.Ack):
            count = len(action.checks)
            self.core.handle(ev.Acked(action.handle, count, 0, action.checks, action.tries), self.now)
        else:
            self.core.handle(ev.Renewed(action.handle, action.offset, None, unanswered=True), self.now)

    def in_hand(self):
        return sum(loop.in_hand for loop in self.core.popping.loops.values())


def finished_while_away(count=3, **config):
    """All of a pop is finished and durable; nothing is acknowledged yet."""
    member = Away(PopBroker(count), workers=1, **config)
    member.pop()
    member.away = True
    finish(member)
    return member


def test_an_acknowledgement_without_an_answer_is_tried_again_with_growing_pauses():
    member = finished_while_away(1)
    for _ in range(12):
        member.later(1.0)
    assert [at for at, _ in member.acks] == [0, 1, 3, 6, 9, 12]
    member.away = False
    member.later(3.0)
    assert [message.acked for message in member.broker.messages] == [True]
    assert (member.counter("pop_acks"), member.counter("pop_acks_refused")) == (1, 0)
    assert (member.core.state.queues, member.in_hand()) == ({}, 0)
    member.later(60.0)
    assert len(member.acks) == 7


def test_it_is_tried_until_its_invisible_time_is_over():
    member = finished_while_away()
    while member.core.state.queues:
        member.later(0.5)
        assert member.now <= INVISIBLE_S
    assert member.now > INVISIBLE_S - 4
    assert member.counter("pop_acks_refused") == 3
    assert (member.in_hand(), member.finished) == (0, None)


def test_what_was_renewed_has_so_much_longer():
    member = Away(PopBroker(1), workers=1)
    member.pop()
    member.later(INVISIBLE_S / 2)
    member.away = True
    finish(member)
    while member.core.state.queues:
        member.later(0.5)
    assert member.now > 1.5 * INVISIBLE_S - 4


def test_nothing_is_popped_while_too_many_acknowledgements_had_no_answer():
    member = finished_while_away(40, pop_threshold_for_queue=30)
    member.pop()  # asked for before it was known that there is no answer
    finish(member)
    pops = member.counter("pulls")
    member.later(10.0)
    assert (member.waiting_pops, member.counter("pulls")) == ([], pops)
    assert member.in_hand() == 40
    member.away = False
    member.later(3.0)
    assert member.in_hand() == 0
    assert member.counter("pulls") == pops + 1, "the one that waited"


def test_a_renewal_without_an_answer_is_tried_again_in_the_middle_of_the_time_that_is_left():
    member = Away(PopBroker(1), workers=1)
    member.pop()
    member.away = True
    until(member, 52)
    assert member.renews == [30, 45]
    member.away = False
    member.later(0.5)
    assert member.counter("pop_renewals") == 1
    member.later(INVISIBLE_S - 10)
    finish(member)
    assert member.broker.messages[0].acked, "its time was not over"


def test_it_is_tried_a_few_times_only_as_each_may_show_the_message_once():
    member = Away(PopBroker(1), workers=1)
    member.pop()
    member.away = True
    until(member, INVISIBLE_S - 0.5)
    assert member.renews == [30, 45, 52.5, 56.5, 58.5, 59.5]


class Brief(PopBroker):
    """Its invisible time is the shortest that may be set."""

    def pop(self, now, most):
        body, header = super().pop(now, most) or (None, None)
        return body and (body, replace(header, invisible_time=5_000))


def test_of_a_short_invisible_time_there_is_time_for_another_try_too():
    member = Away(Brief(1), workers=1)
    member.pop()
    member.away = True
    until(member, 4.75, 0.25)
    assert member.renews == [2.5, 3.75, 4.75]


class Half(Away):
    """Of odd offsets its broker answers no renewal while it is `away`, and no acknowledgement."""

    def perform(self, action):
        away = self.away
        if isinstance(action, act.Renew) and action.offset % 2 == 0:
            self.away = False
        super().perform(action)
        self.away = away


def test_a_renewal_without_an_answer_is_tried_again_by_the_time_of_its_own_message():
    member = Half(PopBroker(2), workers=1)
    member.pop()
    member.away = True
    until(member, 44)
    member.away = False
    member.later(1)
    assert member.renews == [30, 30, 45]
    member.later(INVISIBLE_S / 4 + 1)
    finish(member)
    assert [message.acked for message in member.broker.messages] == [True, True]


def test_an_acknowledgement_is_tried_until_the_time_of_its_own_message_is_over():
    member = Half(PopBroker(2), workers=1)
    member.pop()
    member.away = True
    member.later(INVISIBLE_S / 2)
    finish(member)
    until(member, INVISIBLE_S)
    assert member.acks[-1][1] == [0]
    assert (member.counter("pop_acks_refused"), member.in_hand()) == (1, 1)


def test_a_renewal_that_is_to_be_tried_again_holds_up_no_end():
    member = Away(PopBroker(1), workers=1)
    member.pop()
    member.away = True
    member.later(INVISIBLE_S / 2)
    member.away = False
    finish(member)
    assert member.core.state.queues == {}
    member.later(INVISIBLE_S / 4)
    assert member.renews == [30]


def test_an_acknowledgement_whose_second_try_fails_by_a_bug_leaves_nothing_in_hand():
    member = finished_while_away(2)
    member.core.tick(1.0)
    (action,) = [action for action in member.core.take_actions() if isinstance(action, act.Ack)]
    action_failed(member.core, action, 1.0)
    assert (member.core.state.queues, member.in_hand()) == ({}, 0)


# What a stop says


def test_a_stop_waits_for_an_acknowledgement_that_is_tried_again():
    member = finished_while_away(3, stop_deadline_ms=20_000)
    member.core.handle(ev.Stop(), member.now)
    member.act()
    assert member.finished is None
    member.away = False
    member.later(1.0)
    assert member.finished.clean
    assert all(message.acked for message in member.broker.messages)


@pytest.mark.parametrize("deadline_ms", [5_000, 600_000])
def test_acknowledgements_without_an_answer_until_the_end_are_not_committed_at_a_stop(deadline_ms):
    member = finished_while_away(3, stop_deadline_ms=deadline_ms)
    member.core.handle(ev.Stop(), member.now)
    member.act()
    while member.finished is None:
        member.later(0.5)
    assert member.now <= min(deadline_ms / 1000, INVISIBLE_S) + 0.5
    assert (member.finished.unfinished, member.finished.uncommitted, member.finished.clean) == (0, 3, False)
    assert member.in_hand() == 0


def test_a_stop_by_force_says_how_many_acknowledgements_had_no_answer():
    member = finished_while_away(3, stop_deadline_ms=20_000)
    member.core.handle(ev.Stop(), member.now)
    member.act()
    left = member.core.assigning.leaving.left()
    assert (left.unfinished, left.uncommitted, left.clean) == (0, 3, False)


def test_what_was_given_up_at_its_deadline_before_a_stop_is_none_of_it():
    member = finished_while_away(3)
    for pq in list(member.core.state.queues.values()):
        member.core.popping.deadline(pq, member.now)
    member.core.handle(ev.Stop(), member.now)
    member.act()
    assert member.finished.clean


def test_acknowledgements_that_are_refused_at_a_stop_are_not_committed():
    member = Away(PopBroker(2), workers=1)
    member.pop()
    member.core.handle(ev.Stop(), member.now)
    member.broker.messages[0].acked = True  # by whoever it was shown to again
    finish(member)
    assert (member.finished.uncommitted, member.finished.clean) == (1, False)


def test_what_was_refused_before_a_stop_is_none_of_it():
    member = Away(PopBroker(1), workers=1)
    member.pop()
    member.broker.messages[0].acked = True
    finish(member)
    member.core.handle(ev.Stop(), member.now)
    member.act()
    assert member.finished.clean
