"""Many pulls that wait: what a message costs for those that want others, and that the loop answers them in rounds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from rocketcrew.broker.core import WOKEN_MAX
from rocketcrew.broker.held_pulls import HeldPull, HeldPulls
from rocketcrew.broker.wanted import Wanted
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig
from rocketcrew.remoting.codes import PULL_SUBSCRIPTION, RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.headers import PullRequest
from rocketcrew.remoting.pop_headers import PopRequest

pytestmark = pytest.mark.usefixtures("no_collection")

MANY = 10 * WOKEN_MAX + 1


def held_pull(wanted, queue_id=0, channel=1, deadline_ms=1_000):
    request = PullRequest("g", "T", queue_id, 0, 32, PULL_SUBSCRIPTION, 0, 15_000, 0, "*")
    return HeldPull(channel, Command(RequestCode.PULL_MESSAGE), wanted, deadline_ms, request)


def test_a_message_costs_nothing_for_pulls_of_its_queue_that_want_other_tags(calls_of):
    costs = []
    for others in (1, 1_000):
        held = HeldPulls(10_000)
        for number in range(others):
            assert held.hold(held_pull(Wanted(frozenset({number, -number - 1}))))
        assert held.hold(held_pull(Wanted(frozenset({5_000, 6_000}))))
        costs.append([calls_of(partial(held.arrived, "T", 0, code, {}, held.last_number)) for code in (7_000, 5_000)])
        assert [pull.number for pull in held.take(10)] == [others + 1]
    assert costs[0] == costs[1]


@pytest.mark.parametrize("seed", range(5))
def test_who_is_woken_is_who_wants_the_message_and_the_sweep_has_the_others(seed):
    """Compared with the rule itself: each pull that waits is looked at."""
    random = Random(seed)
    held, waiting, skipped = HeldPulls(10_000), {}, set()
    for _ in range(2_000):
        step = random.random()
        if step < 0.5:
            codes = random.choice([None, frozenset(random.choices(range(20), k=random.randint(0, 4)))])
            size = random.choice(["", "big"])
            sql = None if size == "" else (lambda properties: properties["size"] == "big")
            pull = held_pull(Wanted(codes, sql), random.randrange(3), random.randrange(9))
            assert held.hold(pull)
            waiting[pull.number] = pull
        elif step < 0.9:
            queue_id, code, properties = (
                random.randrange(3),
                random.randrange(20),
                {"size": random.choice(["big", "s"])},
            )
            here = [pull for pull in waiting.values() if pull.request.queue_id == queue_id]
            held.arrived("T", queue_id, code, properties, held.last_number)
            woken = [pull.number for pull in here if pull.wanted.takes(code, properties)]
            assert [pull.number for pull in held.take(10_000)] == woken
            skipped |= {pull.number for pull in here}
            for number in woken:
                del waiting[number]
        elif step < 0.98:
            channel = random.randrange(9)
            gone = {number for number, pull in waiting.items() if pull.channel == channel}
            assert held.drop_channel(channel) == len(gone)
            waiting = {number: pull for number, pull in waiting.items() if number not in gone}
        else:
            held.begin_sweep()
            swept = {pull.number for pull in held.ready(0, 10_000)}
            assert swept == skipped & waiting.keys()
            waiting = {number: pull for number, pull in waiting.items() if number not in swept}
            skipped = set()
        assert len(held) == len(waiting)
    for channel in range(9):
        held.drop_channel(channel)
    assert (held.bytes.all, held._by_queue, held._tag_sets._by_code, held._ready) == (0, {}, {}, {})


def rounds_of(broker, first):
    """Answers of each tick until all are given; each tick after the first is due at once, and no time passes."""
    rounds = [first]
    while broker.core.next_deadline_ms() <= broker.now_ms:
        rounds.append(broker.later(0))
    return rounds


def expired(broker):
    return broker.later(15_000)


def woken(broker):
    broker.send(tag="a")
    return broker.effects[1:]


def swept(broker):
    broker.send(tag="b")
    assert len(broker.effects) == 1
    return broker.later(5_000)


@pytest.mark.parametrize("make_ready", [expired, woken, swept])
def test_pulls_that_are_ready_together_are_answered_in_rounds_the_oldest_first(broker, tools, make_ready):
    broker.send()
    opaques = [broker.hold(1, channel=number, tags="a") for number in range(MANY)]
    rounds = rounds_of(broker, make_ready(broker))
    assert max(map(len, rounds)) <= WOKEN_MAX
    assert [answer.opaque for answers in rounds for _, answer in tools.replies(answers)] == opaques
    assert len(broker.core.state.held) == 0


def test_who_leaves_between_two_rounds_gets_no_answer(broker, tools):
    broker.send()
    for number in range(MANY):
        broker.hold(1, channel=number)
    first = expired(broker)
    broker.core.channel_closed(broker.now_ms, MANY - 1)
    rounds = rounds_of(broker, first)
    assert [channel for answers in rounds for channel, _ in tools.replies(answers)] == list(range(MANY - 1))


def test_pops_that_end_together_are_answered_in_rounds(broker, tools):
    broker.core.state.groups.put(SubscriptionGroupConfig("g"))
    broker.send()
    broker.call(RequestCode.POP_MESSAGE, PopRequest("g", "T", -1, 32, 60_000_000, 0, broker.now_ms, 0))
    header = PopRequest("g", "T", -1, 32, 10_000, 15_000, broker.now_ms, 1, "TAG", "*")
    for number in range(MANY):
        assert broker.request(RequestCode.POP_MESSAGE, header, channel=number) == []
    rounds = rounds_of(broker, expired(broker))
    assert max(map(len, rounds)) <= WOKEN_MAX
    answers = [answer for effects in rounds for _, answer in tools.replies(effects)]
    assert [answer.code for answer in answers] == [ResponseCode.POLLING_TIMEOUT] * MANY


def test_what_was_parked_for_a_peer_that_reads_again_is_answered_in_rounds(broker, tools):
    broker.send()
    opaques = [broker.hold(1, channel=5) for _ in range(MANY)]
    broker.core.channel_full(5, is_full=True)
    rounds_of(broker, expired(broker))
    assert len(broker.core.state.held.parked[5]) == MANY
    rounds = [broker.core.channel_full(5, is_full=False)]
    while answers := broker.give_room(5):
        rounds.append(answers)
    assert max(map(len, rounds)) <= WOKEN_MAX
    assert [answer.opaque for answers in rounds for _, answer in tools.replies(answers)] == opaques


def test_what_did_not_fit_keeps_its_place_before_what_was_parked_later(make, tools):
    broker = make(pull_bytes_max=200_000)
    broker.send()
    opaques = [broker.hold(1, channel=5) for _ in range(3 * WOKEN_MAX)]
    broker.core.channel_full(5, is_full=True)
    for _ in range(2):
        broker.send(body=bytes(100_000))
    rounds_of(broker, [])
    rounds = [broker.core.channel_full(5, is_full=False)]
    broker.send()
    opaques.append(broker.hold(4, channel=5))
    broker.send()
    assert len(broker.effects) == 1, "whoever comes now waits behind them"
    while answers := broker.give_room(5):
        rounds.append(answers)
    assert max(map(len, rounds)) < WOKEN_MAX
    assert [answer.opaque for answers in rounds for _, answer in tools.replies(answers)] == opaques


class Crowd:
    """A broker, and peers that ask again and again with pulls that are due at once."""

    def __init__(self, broker, tools):
        self.broker, self.tools = broker, tools
        self.answered = []

    def see(self, effects):
        self.answered += [answer.opaque for _, answer in self.tools.replies(effects)]

    def ask(self, count):
        header = replace(self.broker.pull_header(1, queue_id=1, hold_ms=1), suspend_timeout_millis=1)
        for _ in range(count):
            self.see(self.broker.request(RequestCode.PULL_MESSAGE, header, channel=3))


@pytest.mark.parametrize("each_tick", [WOKEN_MAX, 5 * WOKEN_MAX])
@pytest.mark.parametrize("tag", ["a", "b"])
def test_no_pull_is_kept_waiting_by_others_that_are_always_due(broker, tools, each_tick, tag):
    broker.send()
    broker.send(queue_id=1)
    honest = {broker.hold(1, channel=2, tags="a") for _ in range(3 * WOKEN_MAX)}
    crowd = Crowd(broker, tools)
    crowd.ask(each_tick)
    broker.send(tag=tag)
    crowd.see(broker.effects)
    crowd.see(broker.later(5_000))  # the sweep is due
    ticks = 0
    while not honest <= set(crowd.answered):
        crowd.ask(each_tick)
        crowd.see(broker.later(10))
        ticks += 1
        assert ticks <= 20
        assert len(broker.core.state.held) <= len(honest) + 3 * each_tick


@pytest.mark.parametrize("ask_pops", [False, True])
def test_what_is_due_soon_does_not_fill_the_table(broker, tools, ask_pops):
    broker.core.state.groups.put(SubscriptionGroupConfig("g"))
    broker.send()
    broker.send(queue_id=1)
    broker.call(RequestCode.POP_MESSAGE, PopRequest("g", "T", -1, 32, 60_000_000, 0, broker.now_ms, 0))
    header = PopRequest("g", "T", -1, 32, 10_000, 1, broker.now_ms, 1, "TAG", "*")
    crowd, most = Crowd(broker, tools), 0
    for _ in range(30):
        if ask_pops:
            header = replace(header, born_time=broker.now_ms)
            for _ in range(4 * WOKEN_MAX):
                broker.request(RequestCode.POP_MESSAGE, header, channel=3)
        else:
            crowd.ask(4 * WOKEN_MAX)
        assert len(broker.later(100)) <= WOKEN_MAX
        most = max(most, len(broker.core.state.held), len(broker.core.state.pops.held))
    assert most <= 4 * WOKEN_MAX


def test_a_sweep_looks_at_each_set_of_tags_once(calls_of):
    """Not in each of its rounds at all those whose pulls came later."""
    costs = []
    for sets in (5 * WOKEN_MAX, 20 * WOKEN_MAX):
        held = HeldPulls(100_000)
        for _ in range(2):  # before and after the message that nobody wants
            for number in range(sets):
                held.hold(held_pull(Wanted(frozenset({number, -number - 1}))))
            if len(held) == sets:
                held.arrived("T", 0, 1_000_000, {}, held.last_number)
        held.begin_sweep()
        found = []

        def sweep(held=held, found=found):
            while held.has_more:
                found.append(len(held.ready(0, WOKEN_MAX)))

        costs.append(calls_of(sweep))
        assert (sum(found), max(found), len(held)) == (sets, WOKEN_MAX, sets)
    assert costs[1] < 5 * costs[0]
