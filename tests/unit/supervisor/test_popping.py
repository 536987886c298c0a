"""POP in the core, against a small model of a broker that pops: invisible times, check points that are replaced, revival.

The model is strict: an acknowledgement counts only with the message's newest check point and in time. A message whose time
is over is shown again. The workers are played by the test: they report, seal, fail, die.
"""

from __future__ import annotations

from random import Random

import pytest

from rocketcrew.cli.live_line import progress_line
from rocketcrew.conf.settings import load
from rocketcrew.remoting.bodies import ConsumerRunningInfo, SubscriptionData
from rocketcrew.remoting.check_points import CheckPoint
from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.remoting.pop_headers import PopResponse
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.allocation import average
from rocketcrew.supervisor.core.blame import Death, End, InHand
from rocketcrew.supervisor.core.charges import Charges, Left
from rocketcrew.supervisor.core.decisions import Core
from rocketcrew.supervisor.core.popping import PopResult
from rocketcrew.supervisor.core.slab import SLAB_BYTES_MIN, Slab
from rocketcrew.supervisor.core.state import BACKLOG, CoreConfig, Worker
from rocketcrew.supervisor.core.states import ServiceState
from rocketcrew.supervisor.member.running_info import Clocks, offsets_of, running_info
from rocketcrew.supervisor.metrics import PictureCollector
from rocketcrew.supervisor.status import picture
from rocketcrew.workers.failures import asked, pop_delay_ms

ALL = MessageQueue("T", "broker-a", -1)
INVISIBLE_S = 60.0


class Message:
    """One message of the model broker."""

    def __init__(self, number):
        self.number = number
        self.visible_from = 0.0
        self.check = None
        self.retries = 0
        self.acked = False


class PopBroker:
    """One topic with one queue; retries keep the message's offset in a retry topic of V1."""

    def __init__(self, count):
        self.messages = [Message(number) for number in range(count)]
        self.turn = 0

    def pop(self, now, most):
        """The body and its header; None when nothing is visible."""
        found = [m for m in self.messages if not m.acked and m.visible_from <= now][:most]
        found.sort(key=lambda m: (m.retries > 0, m.number))
        records = []
        for message in found:
            self.turn += 1
            retried = message.check is not None
            if retried:
                message.retries += 1
            mark = "1" if retried else "0"
            message.visible_from = now + INVISIBLE_S
            message.check = CheckPoint(
                message.number, self.turn, int(INVISIBLE_S * 1000), 0, mark, "broker-a", 0, message.number
            )
            properties = {"UNIQ_KEY": f"U{message.number}"} | ({"POP_CK": message.check.encode()} if retried else {})
            if not retried:
                message.check = None  # the client puts it together itself
            records.append(
                encode_message(
                    StoredMessage(
                        "T", str(message.number).encode(), encode_properties(properties).encode(),
                        queue_offset=message.number, reconsume_times=message.retries,
                    )
                )
            )  # fmt: skip
        header = PopResponse(self.turn, int(INVISIBLE_S * 1000), 0, 0, "0 0 0", None)
        for message in found:
            if message.check is None:
                message.check = CheckPoint(0, self.turn, int(INVISIBLE_S * 1000), 0, "0", "broker-a", 0, message.number)
        return (b"".join(records), header) if records else None

    def holds(self, check, now):
        message = self.messages[check.offset]
        return message if not message.acked and message.check == check and message.visible_from > now else None

    def ack(self, check, now):
        message = self.holds(check, now)
        if message is not None:
            message.acked = True
        return message is not None

    def change(self, check, now, invisible_s):
        message = self.holds(check, now)
        if message is None:
            return None
        self.turn += 1
        message.visible_from = now + invisible_s
        message.check = check.renewed(self.turn, int(invisible_s * 1000), 0)
        return message.check


class Member:
    """The core with its edge and workers played by the test."""

    def __init__(self, broker, workers=2, **config):
        self.broker = broker
        self.now = 0.0
        slab = Slab(SLAB_BYTES_MIN)
        self.view = bytearray(slab.size_bytes)
        self.core = Core(CoreConfig("c1", "g", ("T",), strategy=average, **config), slab, self.view)
        self.core.begin()
        self.chunks, self.seals = [], []
        self.waiting_pops = []
        self.finished = None
        self.dead_letters = []
        self.takes_dead_letters = True
        self.runs = []
        self.seq = {}
        self.durable = set()
        self.unsealed = {}
        self.journal = []
        for number in range(workers):
            self.add_worker(f"w{number}")
        self.core.handle(ev.PopAssigned("T", [ALL]), 0.0)
        self.act()

    def add_worker(self, name):
        self.core.handle(ev.WorkerStarted(Worker(name)), self.now)
        self.core.handle(ev.WorkerReady(name), self.now)
        self.seq[name] = 0
        self.unsealed[name] = []

    def act(self):
        while actions := self.core.take_actions():
            for action in actions:
                self.perform(action)

    def perform(self, action):
        core, now = self.core, self.now
        if isinstance(action, act.Pop):
            self.waiting_pops.append(action)
        elif isinstance(action, act.Ack):
            assert {check.offset for check in action.checks} <= self.durable, "acknowledged before it was sealed"
            refused = sum(not self.broker.ack(check, now) for check in action.checks)
            core.handle(ev.Acked(action.handle, len(action.checks), refused), now)
        elif isinstance(action, act.Renew):
            core.handle(
                ev.Renewed(action.handle, action.offset, self.broker.change(action.check, now, INVISIBLE_S)), now
            )
        elif isinstance(action, act.SendBack):
            assert action.check is not None
            if action.facts is None:
                accepted = True
                self.broker.change(action.check, now, 10.0)
            else:
                self.dead_letters.append(action.facts)
                if accepted := self.takes_dead_letters:
                    self.durable.add(action.check.offset)
            core.handle(ev.SentBack(action.handle, action.chunk_id, action.index, accepted), now)
        elif isinstance(action, act.Dispatch):
            self.chunks.append(action)
        elif isinstance(action, act.Seal):
            self.seals.append(action.worker_id)
        elif isinstance(action, act.Finished):
            self.finished = action
        elif isinstance(action, act.JournalDone | act.JournalCommitted | act.Commit | act.Pull):
            self.journal.append(action)

    def pop(self):
        """Answer the pop that is out, if something is visible."""
        for action in list(self.waiting_pops):
            found = self.broker.pop(self.now, 32)
            if found is None:
                return
            self.waiting_pops.remove(action)
            body, header = found
            slot = self.core.room_for(action.handle, len(body))
            self.view[slot.start : slot.start + len(body)] = body
            self.core.handle(ev.Popped(action.handle, PopResult(0, header, len(body), slot)), self.now)
            self.act()

    def run(self, fails=lambda offset: False, rows=True):
        """The oldest chunk's worker runs it and reports."""
        action = self.chunks.pop(0)
        chunk, worker = action.chunk, action.worker_id
        failed = [fails(offset) for offset in chunk.offsets]
        failures = [(index, asked(0, "no")) for index, bad in enumerate(failed) if bad]
        done = [offset for offset, bad in zip(chunk.offsets, failed, strict=True) if not bad]
        self.runs += chunk.offsets
        seq = 0
        if rows and done:
            seq = self.seq[worker] + 1
            self.unsealed[worker] += done
        else:
            self.durable |= set(done)
        self.core.handle(ev.Reported(worker, chunk.chunk_id, 0, chunk.count, seq, 10, 10, 0, failures), self.now)
        self.act()

    def seal(self, worker):
        self.seq[worker] += 1
        self.durable |= set(self.unsealed[worker])
        self.unsealed[worker] = []
        self.core.handle(ev.Sealed(worker, self.seq[worker]), self.now)
        self.act()

    def later(self, seconds):
        self.now += seconds
        self.core.tick(self.now)
        self.act()

    def kill(self, worker):
        """It had written nothing that could be salvaged; its chunks go to others."""
        self.chunks = [action for action in self.chunks if action.worker_id != worker]
        lost = set(self.unsealed.pop(worker))
        self.core.handle(ev.WorkerDied(worker, Death(End.RETIRED)), self.now)
        if lost:
            self.durable |= lost
            self.core.handle(ev.Sealed(worker, self.seq[worker] + 1), self.now)  # the segment was salvaged
        self.core.handle(ev.SalvageComplete(worker), self.now)
        self.add_worker(f"{worker}+")
        self.act()

    def crash(self, mark):
        """The oldest chunk's worker dies with its first message in hand; the offset of that."""
        action = self.chunks[0]
        self.chunks = [other for other in self.chunks if other.worker_id != action.worker_id]
        offset = action.chunk.offsets[0]
        in_hand = InHand(action.chunk.chunk_id, offset, offset, 1, None, mark)
        self.core.handle(ev.WorkerDied(action.worker_id, Death(End.CRASHED, in_hand, "SIGSEGV", {"pid": 7})), self.now)
        self.core.handle(ev.SalvageComplete(action.worker_id), self.now)
        self.add_worker(f"{action.worker_id}+")
        self.act()
        return offset

    def counter(self, name):
        return getattr(self.core.state.counters, name)


def finish(member, fails=lambda offset: False):
    while member.chunks:
        member.run(fails)
    for worker in list(member.seq):
        if worker in member.unsealed:
            member.seal(worker)


def test_a_message_is_acknowledged_when_it_is_sealed():
    broker = PopBroker(5)
    member = Member(broker)
    member.pop()
    assert [action.journalled for action in member.chunks] == [False] * len(member.chunks)
    while member.chunks:
        member.run()
    assert not any(message.acked for message in broker.messages)
    finish(member)
    assert all(message.acked for message in broker.messages)
    assert member.counter("pop_acks") == 5
    assert member.core.state.queues == {}
    assert member.journal == [], "nothing is committed, nothing is journalled"


def test_running_info_has_what_is_popped_in_a_table_of_its_own():
    """As Java: no process queue and no offset, but how many messages wait for their acknowledgement."""
    broker = PopBroker(3)
    member = Member(broker)
    member.later(5)
    member.pop()
    settings = load({"consumer.group": "g", "consumer.topics": "T", "consumer.client_rebalance": False}, {}, None)
    clocks = Clocks(member.now + 1, 1_000_000)
    loops = member.core.popping.loops.values()
    info = running_info(
        member.core.state, settings, {"T": SubscriptionData.of("T", "*", 1)}, name_servers=["a:1"], started_ms=7,
        clocks=clocks, pop_loops=loops,
    )  # fmt: skip
    assert info.mq_table == {}
    assert offsets_of(member.core.state, "T") == {}
    (found,) = info.mq_pop_table.items()
    assert found[0] == ALL
    assert (found[1].wait_ack_count, found[1].droped) == (3, False)
    assert found[1].last_pop_timestamp == 999_000
    assert info == ConsumerRunningInfo.decode(info.encode())
    assert b'"mqPopTable":{{"brokerName":"broker-a","queueId":-1,"topic":"T"}:{' in info.encode()


def test_what_several_pops_brought_of_one_queue_is_one_entry_of_the_status():
    """A page of metrics with two series of the same labels is refused as a whole; and no lag is made up of it."""
    broker = PopBroker(6)
    for message in broker.messages[3:]:
        message.visible_from = 1.0
    member = Member(broker)
    member.pop()
    member.later(2)
    member.pop()
    assert len(member.core.state.queues) == 2
    staff = {"staff": {"workers": 1, "counts": {}}, "group": "g"}
    found = picture(member.core, ServiceState.RUNNING, {}, staff)
    assert (found["queues"], found["popped_topics"]) == ([], ["T"])
    (popped,) = found["popped"]
    assert (popped["topic"], popped["queue_id"], popped["unfinished"]) == ("T", 0, 6)
    (family,) = [family for family in PictureCollector(lambda: found).collect() if "queue_unfinished" in family.name]
    assert [sample.value for sample in family.samples] == [6]
    assert "lag 6 " in f"{progress_line(found, 0.0)} "


def test_nothing_is_popped_while_some_of_it_waits_for_a_rate():
    """It would be renewed here again and again, while other members could run it."""
    broker = PopBroker(200)
    member = Member(broker, rate_limits={"T": 10.0})
    member.pop()
    member.pop()
    assert member.counter("pulls") == 2
    while not broker.messages[63].acked:
        finish(member)
        assert member.counter("pulls") == 2 or not member.core.state.waiting_messages
        member.later(0.1)
        assert member.now < 60
    assert member.counter("pulls") == 3, "what waited is over"


def test_failures_come_again_from_the_retry_topic():
    broker = PopBroker(3)
    member = Member(broker)
    member.pop()
    finish(member, fails=lambda offset: offset == 1)
    assert [message.acked for message in broker.messages] == [True, False, True]
    member.later(10)
    member.pop()
    assert {pq.mq for pq in member.core.state.queues.values()} == {MessageQueue("%RETRY%g_T", "broker-a", 0)}
    finish(member)
    assert broker.messages[1].acked
    assert broker.messages[1].retries == 1


def test_a_killer_is_charged_and_becomes_a_dead_letter_when_its_broker_takes_it():
    broker = PopBroker(2)
    member = Member(broker, workers=1, max_worker_deaths=3)
    member.pop()
    member.takes_dead_letters = False
    charges, died = member.core.state.charges, []
    while member.chunks:
        if member.chunks[0].chunk.offsets[0] == 0:
            died.append(member.crash(f"m{len(died)}"))
        else:
            member.run()
    assert died == [0, 0, 0]
    assert [facts["deaths"] for facts in member.dead_letters] == ["3"]
    assert (member.counter("charged_deaths"), member.counter("dead_letter_messages")) == (3, 0)
    finish(member)
    assert [message.acked for message in broker.messages] == [False, True]
    for _ in range(3):  # beyond the invisible time: it stays ours, and is tried again with the check point of the day
        member.later(INVISIBLE_S / 2)
    assert len(member.dead_letters) > 1
    assert [(charge.offset, charge.deaths) for charge in charges] == [(0, 3)], "not forgotten either"
    assert broker.pop(member.now, 32) is None, "nobody else is shown it"
    member.takes_dead_letters = True
    member.later(5)
    assert member.counter("dead_letter_messages") == 1
    assert broker.messages[0].acked
    assert len(charges) == 0
    assert member.core.state.queues == {}
    assert member.chunks == []


def run_of(broker, charges, now, **config):
    """A member as a start finds it: what a dead run left is known from its file."""
    member = Member(broker, workers=3, max_worker_deaths=3, chunk_messages_max=1, **config)
    member.now = now
    member.core.state.charges.add_json(charges, "deaths")
    member.pop()
    return member


def whole_run_dies(member, number):
    """Each worker has the first message that it was handed in hand; what the next start reads."""
    first = {}
    for action in member.chunks:
        first.setdefault(action.worker_id, action)
    charges = Charges()
    charges.add_json(member.core.state.charges.to_json(), "deaths")
    charges.member_died(
        [
            Left(
                action.mq, InHand(1, action.chunk.offsets[0], action.chunk.offsets[0], 1, mark=f"{number}/{worker}"), {}
            )
            for worker, action in first.items()
        ],
        stopping=False,
    )
    return charges.to_json()


def test_a_popped_message_that_kills_its_whole_run_is_alone_in_hand_at_last_and_a_dead_letter():
    broker, charges, killer, alone, deaths = PopBroker(6), Charges().to_json(), 2, 0, 0
    while True:
        member = run_of(broker, charges, deaths * 2 * INVISIBLE_S)
        while member.chunks and not any(killer in action.chunk.offsets for action in member.chunks):
            member.run(rows=False)
        if not member.chunks:
            break
        deaths += 1
        assert deaths <= 6, "twice max_worker_deaths is enough"
        alone += len(member.chunks) == 1 and sum(not message.acked for message in broker.messages) > 1
        charges = whole_run_dies(member, deaths)
        broker.messages += [Message(len(broker.messages)), Message(len(broker.messages) + 1)]  # something else comes
    assert [facts["deaths"] for facts in member.dead_letters] == ["3"]
    assert deaths == 6
    assert alone == 3
    assert not member.core.state.charges.careful(3, lambda _: 0)
    member.pop()
    finish(member)
    assert all(message.acked for message in broker.messages)


def test_after_deaths_of_runs_what_was_shown_seldom_runs_beside_the_others():
    broker, charges = PopBroker(6), Charges().to_json()
    for kill in range(3):
        member = run_of(broker, charges, kill * 2 * INVISIBLE_S)
        charges = whole_run_dies(member, kill)
    broker.messages = [Message(number) for number in range(6)]
    member = run_of(broker, charges, 10 * INVISIBLE_S)
    assert len(member.chunks) == 6
    assert not member.core.state.charges.noted.keys() & {(ALL, n) for n in range(6)}


def test_a_popped_message_that_comes_through_lets_all_workers_work_again():
    broker, charges = PopBroker(6), Charges().to_json()
    for kill in range(4):
        member = run_of(broker, charges, kill * 2 * INVISIBLE_S)
        charges = whole_run_dies(member, kill)
    member = run_of(broker, charges, 10 * INVISIBLE_S)
    while member.core.state.charges.careful(3, lambda _: 0):
        assert len(member.chunks) == 1
        member.run(rows=False)
    assert member.runs
    broker.messages.extend(Message(number) for number in range(6, 12))
    member.pop()
    assert len(member.chunks) > 1


def test_what_is_in_hand_is_renewed_at_half_its_time():
    broker = PopBroker(1)
    member = Member(broker)
    member.pop()
    for _ in range(10):
        member.later(INVISIBLE_S / 2)
    assert member.counter("pop_renewals") == 10
    finish(member)
    assert broker.messages[0].acked
    assert member.runs == [0]


def test_what_never_began_goes_back_while_there_is_no_room_for_rows():
    """Other members may have room; what was begun goes on, and stays ours."""
    broker = PopBroker(32)
    member = Member(broker, workers=1, chunks_in_flight=1)
    member.pop()
    running = list(member.chunks[0].chunk.offsets)
    member.core.handle(ev.Pause(BACKLOG), member.now)
    member.later(INVISIBLE_S / 2)
    assert member.counter("pop_renewals") == len(running)
    (q,) = member.core.popping.queues.values()
    assert (q.pq.unfinished, q.pq.unfinished_bytes) == (len(running), member.chunks[0].chunk.length_bytes)
    assert (list(q.checks), q.loop.in_hand, member.core.state.waiting_messages) == (running, len(running), 0)
    member.later(INVISIBLE_S / 2)
    finish(member)
    assert member.runs == running
    assert [message.acked for message in broker.messages].count(True) == len(running)
    assert (member.core.state.queues, member.core.state.slab.used_units) == ({}, 0)
    other = Member(broker)
    other.now = member.now
    other.pop()
    finish(other)
    assert all(message.acked for message in broker.messages)
    assert sorted(member.runs + other.runs) == list(range(32)), "each ran once"


def test_what_waits_shortly_for_room_for_rows_runs_here():
    member = Member(PopBroker(32))
    member.core.handle(ev.Pause(BACKLOG), member.now)
    member.pop()
    member.later(INVISIBLE_S / 3)
    member.core.handle(ev.Resume(BACKLOG), member.now)
    member.act()
    finish(member)
    assert member.runs == list(range(32))


def test_pops_stop_while_too_many_wait_for_their_acknowledgement():
    broker = PopBroker(500)
    member = Member(broker, pop_threshold_for_queue=96)
    for _ in range(10):
        member.pop()
    assert member.counter("pulled_messages") == 128, "the first pop above the threshold was the last"
    finish(member)
    member.pop()
    assert member.counter("pulled_messages") > 128


def test_a_loop_that_was_taken_away_pops_no_more_and_finishes_what_it_has():
    broker = PopBroker(10)
    member = Member(broker)
    member.pop()
    late = member.waiting_pops.pop()
    member.core.handle(ev.PopAssigned("T", []), member.now)
    member.core.handle(ev.NoAnswer(late.handle), member.now)
    member.act()
    assert member.waiting_pops == []
    finish(member)
    assert all(message.acked for message in broker.messages)
    member.core.handle(ev.PopAssigned("T", [ALL]), member.now)
    member.act()
    assert len(member.waiting_pops) == 1


@pytest.mark.parametrize("code", [ResponseCode.POLLING_FULL, ResponseCode.SYSTEM_ERROR])
def test_a_refused_pop_is_sent_again_after_a_second(code):
    member = Member(PopBroker(0))
    action = member.waiting_pops.pop()
    member.core.handle(ev.Popped(action.handle, PopResult(code)), member.now)
    member.act()
    assert member.waiting_pops == []
    member.later(1.0)
    assert len(member.waiting_pops) == 1


def test_nothing_new_pops_again_at_once():
    member = Member(PopBroker(0))
    action = member.waiting_pops.pop()
    member.core.handle(ev.Popped(action.handle, PopResult(ResponseCode.POLLING_TIMEOUT)), member.now)
    member.act()
    assert len(member.waiting_pops) == 1


def test_a_clean_stop_acknowledges_what_runs_and_leaves_the_rest():
    broker = PopBroker(32)
    member = Member(broker, workers=1, chunks_in_flight=1)
    member.pop()
    running = set(member.chunks[0].chunk.offsets)
    member.core.handle(ev.Stop(), member.now)
    member.act()
    finish(member)
    assert member.finished is not None
    assert (member.finished.unfinished, member.finished.unsealed) == (0, 0)
    assert {message.number for message in broker.messages if message.acked} == running


def test_a_stop_that_runs_late_says_what_the_broker_shows_again():
    member = Member(PopBroker(3), stop_deadline_ms=1000)
    member.pop()
    member.core.handle(ev.Stop(), member.now)
    member.act()
    member.later(1.0)
    assert member.finished is not None
    assert member.finished.unfinished == 3


@pytest.mark.parametrize("seed", range(15))
def test_whatever_happens_nothing_is_lost(seed):
    """Pops, outcomes, failures, seals, deaths and time in any order; then all is quiet, and all is acknowledged."""
    random = Random(seed)
    broker = PopBroker(200)
    member = Member(broker)
    for _ in range(1500):
        step = random.random()
        if step < 0.3:
            member.pop()
        elif step < 0.7 and member.chunks:
            member.run(fails=lambda _: random.random() < 0.1, rows=random.random() < 0.7)
        elif step < 0.8:
            member.seal(random.choice(sorted(member.unsealed)))
        elif step < 0.82:
            member.kill(random.choice(sorted(member.unsealed)))
        else:
            member.later(random.choice((0.1, 1.0, 9.0, 31.0)))
    for _ in range(50):
        member.later(15.0)
        member.pop()
        finish(member)
    assert all(message.acked for message in broker.messages), "lost"
    assert member.core.state.queues == {}
    assert member.core.state.slab.used_units == 0
    assert sum(loop.in_hand for loop in member.core.popping.loops.values()) == 0
    again = len(member.runs) - len(set(member.runs))
    allowed = (
        member.counter("failed_messages")
        + member.counter("pop_acks_refused")
        + member.counter("redispatched_messages")
        + member.counter("pop_renewals_refused")
    )
    assert again <= allowed, "every repetition has a reason"


@pytest.mark.parametrize(
    ("level", "times", "seconds"), [(0, 0, 10), (0, 3, 120), (5, 0, 240), (0, 99, 7200), (99, 0, 7200)]
)
def test_the_delay_of_a_failed_message(level, times, seconds):
    assert pop_delay_ms(level, times) == seconds * 1000


def test_a_topic_that_is_not_subscribed_any_more_is_not_popped_any_more():
    """The pop that is out may still be answered: what it brings is the broker's to show again."""
    broker = PopBroker(3)
    member = Member(broker)
    (out,) = member.waiting_pops
    member.core.handle(ev.Unsubscribe("T"), member.now)
    member.act()
    member.core.handle(ev.NoAnswer(out.handle), member.now)
    member.waiting_pops.clear()
    member.act()
    member.later(60.0)
    assert member.waiting_pops == []
    assert member.core.popping.loops == {}
    assert member.core.state.slab.reserved_units == 0
    member.core.handle(ev.PopAssigned("T", [ALL]), member.now)  # an answer that comes late
    member.act()
    assert member.waiting_pops == []


def test_a_topic_that_is_subscribed_again_is_popped_again():
    broker = PopBroker(3)
    member = Member(broker)
    member.pop()
    member.core.handle(ev.Unsubscribe("T"), member.now)
    member.act()
    finish(member)
    assert all(message.acked for message in broker.messages), "what was in hand is finished"
    member.waiting_pops.clear()
    broker.messages += [Message(number) for number in range(3, 5)]
    member.core.handle(ev.Subscribe("T"), member.now)
    member.core.handle(ev.PopAssigned("T", [ALL]), member.now)
    member.act()
    member.pop()
    finish(member)
    assert [message.acked for message in broker.messages] == [True] * 5


class Unhurried(Member):
    """Its renewals are answered when the test says so."""

    def __init__(self, broker, **config):
        self.renewals = []
        super().__init__(broker, **config)

    def perform(self, action):
        if isinstance(action, act.Renew):
            self.renewals.append(action)
        else:
            super().perform(action)

    def answer_renewals(self):
        renewals, self.renewals = self.renewals, []
        for action in renewals:
            super().perform(action)
        self.act()


def test_what_is_finished_while_its_renewal_is_out_is_acknowledged_after_a_persist():
    broker = PopBroker(4)
    member = Unhurried(broker)
    member.pop()
    member.later(INVISIBLE_S / 2)
    assert len(member.renewals) == 4
    while member.chunks:
        member.run(rows=False)
    member.core.handle(ev.Persist(), member.now)
    member.act()
    member.answer_renewals()
    assert all(message.acked for message in broker.messages)
    assert member.core.state.queues == {}


class Refusing(Unhurried):
    """Its broker takes no failed message back for now."""

    def perform(self, action):
        if isinstance(action, act.SendBack):
            self.core.handle(ev.SentBack(action.handle, action.chunk_id, action.index, False), self.now)
        else:
            super().perform(action)


def test_what_is_finished_is_acknowledged_though_a_neighbour_in_its_chunk_waits_to_go_back():
    broker = PopBroker(2)
    member = Refusing(broker, workers=1, chunk_messages_max=2)
    for _ in range(2):
        member.core.state.sizer.observe(64, 64, 1)  # messages are known to be quick: two go to a worker at once
    member.pop()
    assert [list(action.chunk.offsets) for action in member.chunks] == [[0, 1]], "both are in one chunk"
    member.run(fails=lambda offset: offset == 1, rows=False)
    assert [message.acked for message in broker.messages] == [True, False]
    assert [q.checks.keys() for q in member.core.popping.queues.values()] == [{1}]
