"""What one turn of the loop, or one tick, answers of what waited has a bound; the rest comes later, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from rocketcrew.broker.core import WOKEN_MAX
from rocketcrew.broker.edge import Edge
from rocketcrew.broker.held_pops import Arrival, HeldPop, HeldPops, News
from rocketcrew.broker.pop_table import Key
from rocketcrew.broker.requests.pop import has_message
from rocketcrew.broker.state import DELAYS_TABLE, OFFSETS_TABLE
from rocketcrew.broker.storage import MemoryStorage
from rocketcrew.broker.wanted import EVERYTHING
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig, TopicConfig
from rocketcrew.remoting.batch import encode_batch
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.frame import FrameReader, encode
from rocketcrew.remoting.headers import UpdateOffset
from rocketcrew.remoting.pop_headers import NotificationRequest, PopRequest
from rocketcrew.remoting.stored import decode_messages

pytestmark = pytest.mark.usefixtures("no_collection")

GROUPS = 3 * WOKEN_MAX + 1
QUEUE_ENTRY_BYTES = 20


def later_answers(broker, tools):
    """The answers of each tick, as long as one is due at once."""
    rounds = []
    while broker.core.next_deadline_ms() <= broker.now_ms:
        rounds.append(tools.replies(broker.later(0)))
        assert len(rounds) < 100, "something is due at once for ever"
    return rounds


# Pulls


def test_requests_of_one_turn_share_what_it_answers_of_what_waited(broker, tools):
    broker.core.state.put_topic(broker.now_ms, TopicConfig("T", 4, 4))
    opaques = [
        broker.hold(0, queue_id=queue_id, channel=number) for queue_id in range(4) for number in range(WOKEN_MAX)
    ]
    broker.core.begin_turn()
    broker.in_one_turn = True
    at_once = []
    for queue_id in range(4):
        broker.send(queue_id=queue_id)
        at_once += tools.replies(broker.effects)[1:]
    assert len(at_once) == WOKEN_MAX
    rounds = later_answers(broker, tools)
    assert max(map(len, rounds)) <= WOKEN_MAX
    assert sorted(answer.opaque for answers in [at_once, *rounds] for _, answer in answers) == opaques


def test_parked_pulls_share_it_too(broker, tools):
    broker.send()
    for number in range(2 * WOKEN_MAX):
        broker.hold(1, channel=5 + number % 2)
    for channel in (5, 6):
        broker.core.channel_full(channel, is_full=True)
    broker.send()
    later_answers(broker, tools)
    broker.core.begin_turn()
    given = [broker.core.channel_full(channel, is_full=False) for channel in (5, 6)]
    assert [len(answers) for answers in given] == [WOKEN_MAX, 0]
    assert broker.core.turn_is_spent
    assert len(broker.give_room(6)) == WOKEN_MAX


def test_a_turn_that_gives_one_answer_more_has_none_left(broker, tools):
    """A notification and a pop of one group are woken together. Peers that read again then got an error and no answer."""
    broker.core.state.put_topic(broker.now_ms, TopicConfig("T", 4, 4))
    broker.core.state.groups.put(SubscriptionGroupConfig("g"))
    broker.send()
    broker.hold(1, channel=7)
    broker.core.channel_full(7, is_full=True)
    broker.send()
    later_answers(broker, tools)
    pop = PopRequest("g", "T", -1, 32, 60_000, 0, broker.now_ms, 0)
    while broker.call(RequestCode.POP_MESSAGE, pop).code == ResponseCode.SUCCESS:
        pass
    for number in range(WOKEN_MAX - 1):
        broker.hold(0, queue_id=1, channel=100 + number)
    broker.request(RequestCode.NOTIFICATION, NotificationRequest("g", "T", -1, 15_000, broker.now_ms), channel=50)
    broker.request(RequestCode.POP_MESSAGE, replace(pop, poll_time=15_000), channel=51)
    broker.core.begin_turn()
    broker.in_one_turn = True
    broker.send(queue_id=1)
    assert len(tools.replies(broker.effects)[1:]) == WOKEN_MAX + 1
    assert broker.core.turn_is_spent
    assert broker.core.channel_full(7, is_full=False) == []
    assert len(broker.give_room(7)) == 1


def test_parked_pulls_count(make, tools):
    """A peer that reads nothing kept twenty times as many as there may be."""
    broker = make(held_pulls_max=10)
    broker.send()
    for _ in range(10):
        broker.hold(1, channel=5)
    broker.core.channel_full(5, is_full=True)
    broker.send()
    held = broker.core.state.held
    assert (len(held), len(held.parked[5])) == (10, 10)
    assert broker.pull(2, hold_ms=15_000).code == ResponseCode.PULL_NOT_FOUND
    broker.core.channel_full(5, is_full=False)
    assert len(held) == 0
    broker.hold(2)
    assert len(held) == 1


def test_a_pull_is_not_woken_by_what_it_has_read(broker, tools):
    """With a backlog of messages to look at, it was answered at once that there was nothing."""
    broker.send()
    for channel in range(2 * WOKEN_MAX):
        broker.hold(1, channel=100 + channel)
    batch = encode_batch((0, b"%d" % number, b"") for number in range(3))
    broker.send(body=batch, code=RequestCode.SEND_BATCH_MESSAGE)
    assert len(broker.core.state.arrivals) == 2
    broker.in_one_turn = True
    broker.request(RequestCode.PULL_MESSAGE, broker.pull_header(4, hold_ms=15_000))
    held = broker.opaque
    later_answers(broker, tools)
    assert (len(broker.core.state.arrivals), len(broker.core.state.held)) == (0, 1)
    assert broker.later(6_000) == [], "nor is it swept for that"
    broker.in_one_turn = False
    broker.send(body=b"new")
    answer = tools.replies(broker.effects)[1][1]
    assert (answer.opaque, [message.body for message in decode_messages(answer.body)]) == (held, [b"new"])


# Pops


def pops_of_groups(broker, count):
    """One pop that waits of each of so many groups, over channel 5."""
    broker.send()
    for number in range(count):
        group = f"g{number}"
        broker.core.state.groups.put(SubscriptionGroupConfig(group))
        broker.call(RequestCode.POP_MESSAGE, PopRequest(group, "T", -1, 32, 60_000_000, 0, broker.now_ms, 0))
        assert broker.request(RequestCode.POP_MESSAGE, pop_header(broker, group), channel=5) == []
    assert len(broker.core.state.pops.held) == count


def pop_header(broker, group):
    return PopRequest(group, "T", -1, 32, 60_000_000, 15_000, broker.now_ms, 1, "TAG", "*")


def bodies_of(*rounds):
    answers = [answer for answers in rounds for _, answer in answers]
    return Counter(message.body for answer in answers for message in decode_messages(answer.body))


def test_pops_of_a_peer_that_reads_again_are_looked_at_in_rounds(broker, tools):
    pops_of_groups(broker, GROUPS)
    broker.core.channel_full(5, is_full=True)
    broker.send(body=b"new")
    assert len(broker.effects) == 1
    broker.core.channel_full(5, is_full=False)
    left = [GROUPS]
    rounds = []
    while left[-1]:
        rounds.append(tools.replies(broker.later(0)))
        left.append(len(broker.core.state.pops.held.to_wake))
    assert [before - after for before, after in pairwise(left)] == [WOKEN_MAX] * 3 + [1]
    assert bodies_of(*rounds) == {b"new": GROUPS}


def test_pops_that_find_nothing_are_looked_at_in_rounds_too(broker):
    pops_of_groups(broker, GROUPS)
    held = broker.core.state.pops.held
    held.wake_channel(5)
    for _ in range(3):
        before = len(held.to_wake)
        assert broker.later(0) == []
        assert before - len(held.to_wake) == WOKEN_MAX
    broker.later(0)
    assert (len(held.to_wake), len(held)) == (0, GROUPS)


def test_one_message_that_pops_of_many_groups_wait_for_is_given_out_in_rounds(broker, tools):
    pops_of_groups(broker, GROUPS)
    broker.send(body=b"new")
    at_once = tools.replies(broker.effects)[1:]
    assert len(at_once) == WOKEN_MAX
    rounds = later_answers(broker, tools)
    assert max(map(len, rounds)) <= WOKEN_MAX
    assert bodies_of(at_once, *rounds) == {b"new": GROUPS}


def test_in_each_round_they_look_where_something_arrived_and_not_into_each_queue(make, calls_of):
    costs = []
    for queues in (4, 64):
        broker = make()
        broker.core.state.put_topic(broker.now_ms, TopicConfig("T", queues, queues))
        pops_of_groups(broker, GROUPS)
        broker.send()
        costs.append(calls_of(lambda broker=broker: [broker.later(0) for _ in range(3)]))
        assert len(broker.core.state.pops.held) == 0
    assert costs[1] < 1.2 * costs[0]


def test_pops_are_not_looked_at_while_their_queue_is_built_anew(broker, tools):
    """Each of them was, in every tick until it was done."""
    for _ in range(6):
        broker.send("U", bytes(3_000_000))  # the log is read in several ticks
    groups = WOKEN_MAX + 1
    pops_of_groups(broker, groups)
    queue = broker.storage.open("consumequeue/T/0", 1, buffered=True)
    broker.core.channel_full(5, is_full=True)
    broker.send(body=b"new")
    queue.overwrite(QUEUE_ENTRY_BYTES, (1 << 60).to_bytes(8, "big"))  # of this one: no log reaches so far
    broker.core.channel_full(5, is_full=False)
    held = broker.core.state.pops.held
    to_wake = []
    while not to_wake or held.rebuilding:
        to_wake.append(len(held.to_wake))
        assert broker.later(0) == []
    assert to_wake[:4] == [groups, 1, 0, 0]
    rounds = later_answers(broker, tools)
    assert max(map(len, rounds)) <= WOKEN_MAX
    assert bodies_of(*rounds) == {b"new": groups}


def test_a_queue_that_is_built_anew_wakes_nobody_before_that_is_done():
    held, pops = HeldPops(10), [held_pop(channel) for channel in (1, 2)]
    for pop in pops:
        held.hold(pop)
    for _ in range(2):
        held.wake_when_rebuilt(("T", 0), "T", "g")
    assert held.woken(10) == []
    held.rebuilt(("T", 0))
    assert held.woken(10) == pops[:1]
    assert held.rebuilding == {}
    held.wake_when_rebuilt(("T", 0), "T", "other")
    assert held.rebuilding == {}, "nobody of it waits"


def held_pop(channel):
    return HeldPop(channel, Command(RequestCode.POP_MESSAGE), EVERYTHING, 10_000, "T", "g", "%RETRY%g_T", -1)


def test_a_pop_that_is_held_again_has_its_place_again():
    held, (first, second, third) = HeldPops(10), (held_pop(channel) for channel in (1, 2, 3))
    for pop in (first, second, third):
        held.hold(pop)
    for _ in range(2):
        held.wake("T", "g", -1)
        (woken,) = held.woken(10)
        assert woken is first
        held.hold(woken)
    held.drop_channel(second.channel)
    arrival = Arrival("T", 0, 0, {}, 0)
    assert [held.arrived(arrival, News([arrival]), 10)[0] for _ in range(2)] == [first, third]
    assert (len(held), held.waits("T")) == (0, False)


# Both


class World:
    """Pulls and pops of many groups, peers that read and do not, turns with many requests, queues whose index is damaged."""

    QUEUES, GROUPS, CHANNELS = 3, 70, 5

    def __init__(self, broker, random):
        self.broker, self.random = broker, random
        broker.core.state.put_topic(broker.now_ms, TopicConfig("T", self.QUEUES, self.QUEUES))
        for group in range(self.GROUPS):
            broker.core.state.groups.put(SubscriptionGroupConfig(f"g{group}"))
        self.sent = [0] * self.QUEUES

    def step(self):
        broker, random = self.broker, self.random
        choice = random.choices(range(6), (60, 60, 12, 1, 5, 1))[0]
        queue_id, channel = random.randrange(self.QUEUES), 10 + random.randrange(self.CHANNELS)
        if choice == 0:
            group = f"g{random.randrange(self.GROUPS)}"
            header = replace(pop_header(broker, group), queue_id=random.choice([-1, -1, queue_id]), poll_time=60_000)
            broker.request(RequestCode.POP_MESSAGE, header, channel=channel)
        elif choice == 1:
            header = broker.pull_header(self.sent[queue_id], queue_id=queue_id, hold_ms=60_000)
            broker.request(RequestCode.PULL_MESSAGE, replace(header, suspend_timeout_millis=60_000), channel=channel)
        elif choice == 2 and broker.send(queue_id=queue_id).code == 0:
            self.sent[queue_id] += 1
        elif choice == 3:
            broker.core.channel_full(channel, is_full=channel not in broker.core.state.full)
        elif choice == 4:
            broker.later(random.choice([0, 1, 10]))
            broker.in_one_turn = random.random() < 0.7
        elif choice == 5 and self.sent[queue_id]:
            at = (self.sent[queue_id] - 1) * QUEUE_ENTRY_BYTES
            entries = broker.storage.open(f"consumequeue/T/{queue_id}", 1, buffered=True)
            entries.overwrite(at, (1 << 60).to_bytes(8, "big"))

    def settle(self, tools):
        for channel in range(10, 10 + self.CHANNELS):
            if channel in self.broker.core.state.full:
                self.broker.core.channel_full(channel, is_full=False)
            while self.broker.give_room(channel):
                pass
        later_answers(self.broker, tools)


@pytest.mark.parametrize("seed", range(6))
def test_nobody_waits_beside_a_message_whatever_happened(make, tools, seed):
    world = World(make(hold_timeout_max_ms=60_000), Random(seed))
    core = world.broker.core
    for _ in range(1_500):
        world.step()
    world.settle(tools)
    assert [held.request.queue_offset for held in core.state.held._all.values()] == [
        core.state.store.max_offset("T", held.request.queue_id) for held in core.state.held._all.values()
    ]
    for held in core.state.pops.held._all.values():
        asked = range(World.QUEUES) if held.queue_id < 0 else [held.queue_id]
        assert not [queue for queue in asked if has_message(core.state, Key("T", held.group, queue))]
    assert len(core.state.held) + len(core.state.pops.held) > 0


# Duties


class Broken(MemoryStorage):
    """A bug of ours in how something is saved."""

    def __init__(self):
        super().__init__()
        self.broken, self.saved = None, []

    def replace(self, name, *arguments, **more):
        if name == self.broken:
            raise ZeroDivisionError
        self.saved.append(name)
        super().replace(name, *arguments, **more)


@pytest.mark.parametrize(("broken", "then_saved"), [(DELAYS_TABLE, [OFFSETS_TABLE]), (OFFSETS_TABLE, [])])
def test_a_duty_that_fails_takes_no_answer_and_no_other_duty_with_it(make, tools, broken, then_saved):
    broker = make(Broken(), hold_timeout_max_ms=100)
    broker.send(properties={"DELAY": "1"}, queue_id=1)
    broker.send()
    broker.heartbeat()
    broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset("g", "T", 0, 1))
    held = broker.hold(1)
    broker.storage.broken = broken
    broker.storage.saved.clear()
    effects = []
    with pytest.raises(ZeroDivisionError):
        effects.extend(broker.core.due(broker.now_ms + 60_000))
    assert [answer.opaque for _, answer in tools.replies(effects)] == [held]
    assert [name for name in broker.storage.saved if name == OFFSETS_TABLE] == then_saved


# The edge


class Transport:
    """Takes all that is written, and counts the frames."""

    def __init__(self):
        self._reader = FrameReader()
        self.frames = 0

    def write(self, data):
        self._reader.feed(data)
        while self._reader.next() is not None:
            self.frames += 1

    def get_extra_info(self, _name):
        return "127.0.0.1", 5

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return False

    def set_write_buffer_limits(self, high):
        pass

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


def receive(connection, command):
    frame = encode(command)
    connection.get_buffer(-1)[: len(frame)] = frame
    connection.buffer_updated(len(frame))


def test_the_edge_gives_out_what_is_parked_once_a_turn_whatever_is_written(broker):
    """Each answer to another request began one more chain of turns that gave it out."""

    async def story():
        edge = Edge(broker.core, broker.name_server, lambda: broker.now_ms)
        connections = [edge.broker_connection() for _ in range(3)]
        transports = [Transport() for _ in connections]
        for connection, transport in zip(connections, transports, strict=True):
            connection.connection_made(transport)
        fields = broker.pull_header(1, hold_ms=15_000).to_fields()
        for connection in connections:
            for number in range(4 * WOKEN_MAX):
                receive(connection, Command(RequestCode.PULL_MESSAGE, fields, b"", number))
            connection.pause_writing()
        broker.send()
        later = 0
        while broker.core.state.held.has_more:
            assert broker.later(0) == []
            later += 1
        assert later <= 12
        for connection in connections:
            connection.resume_writing()
        answered = []
        while broker.core.state.held.parked:
            before = sum(transport.frames for transport in transports)
            for connection in connections:
                receive(connection, Command(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}, b"", 1))
            await asyncio.sleep(0)
            answered.append(sum(transport.frames for transport in transports) - before - len(connections))
            assert len(answered) <= 12
        assert max(answered) <= WOKEN_MAX
        assert min(answered[:-1]) == WOKEN_MAX

    broker.send()
    asyncio.run(story())
