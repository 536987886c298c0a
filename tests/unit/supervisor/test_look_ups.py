"""When topics are looked up, and what a rebalance is answered for one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import pytest
from structlog.testing import capture_logs

from rocketcrew.client.cluster import Cluster
from rocketcrew.client.operations import Operations
from rocketcrew.conf.settings import load
from rocketcrew.remoting.bodies import QueueData, TopicQueueMappingInfo, TopicRouteData
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.assigning import LOOK_UP_MAX_S
from rocketcrew.supervisor.core.decisions import NOTICES_S
from rocketcrew.supervisor.core.states import QueueState
from rocketcrew.supervisor.member.heartbeats import Heartbeats
from rocketcrew.supervisor.member.look_ups import Assignment, LookUps

from .conftest import TOPIC

if TYPE_CHECKING:
    from .conftest import Bench

ORDINARY = TopicRouteData((QueueData("b", 2, 2, 6),))
STATIC = TopicRouteData(ORDINARY.queue_datas, topic_queue_mapping_by_broker={"b": TopicQueueMappingInfo(4)})


class Routes:
    """A cluster that has one route for all topics."""

    def __init__(self) -> None:
        self.known = ORDINARY

    async def route(self, _topic: str) -> TopicRouteData:
        return self.known


def test_a_topic_that_becomes_static_is_given_up_and_reported_once(bench: Bench) -> None:
    settings = load(
        {"consumer.group": "g", "consumer.topics": TOPIC, "consumer.message_model": "BROADCASTING"}, {}, None
    )
    routes = Routes()
    cluster = cast("Cluster", routes)
    look_ups = LookUps(cluster, cast("Operations", None), cast("Heartbeats", None), settings, "me")

    def rebalance() -> Assignment:
        found = asyncio.run(look_ups.assignment(TOPIC))
        bench.core.handle(ev.Members(TOPIC, found.queues, found.members, found.mine), bench.now)
        return found

    assert rebalance() == Assignment([MessageQueue(TOPIC, "b", 0), MessageQueue(TOPIC, "b", 1)], ["me"])
    bench.open(0)
    bench.one(act.Pull)
    routes.known = STATIC
    with capture_logs() as logs:
        rebalance()
        rebalance()
    assert [(log["event"], log["log_level"]) for log in logs] == [("static_topic_refused", "error")]
    assert not {pq.state for pq in bench.core.state.queues.values()} & {QueueState.OPENING, QueueState.ASSIGNED}
    bench.none(act.Pull)


class Away:
    """Heartbeats while a broker is away, and the brokers' list; the `back`th question finds it back, without us."""

    def __init__(self, back: int) -> None:
        self.away = frozenset({"b"})
        self.asked = self.sent = 0
        self._back = back

    def known_to_all(self) -> bool:
        return True

    async def send(self) -> None:
        self.sent += 1

    async def consumer_ids(self, _group: str, _topic: str) -> list[str]:
        self.asked += 1
        if self.asked == self._back:
            self.away = frozenset[str]()
        return ["other"] if self.asked == self._back else ["me", "other"]


@pytest.mark.parametrize(("back", "asked", "sent"), [(9, 1, 0), (1, 2, 1)])
def test_a_broker_that_comes_back_with_the_question_is_asked_again(back: int, asked: int, sent: int) -> None:
    """It answered before it knew us, and our queues would be given up."""
    one = Away(back)
    settings = load({"consumer.group": "g", "consumer.topics": TOPIC}, {}, None)
    cluster, operations = cast("Cluster", Routes()), cast("Operations", one)
    look_ups = LookUps(cluster, operations, cast("Heartbeats", one), settings, "me")
    assert asyncio.run(look_ups.assignment(TOPIC)).members == ["me", "other"]
    assert (one.asked, one.sent) == (asked, sent)


class Silent(Away):
    """Brokers that answer heartbeats, all of them or not, and list these members."""

    def __init__(self, members: list[str], *, known: bool) -> None:
        super().__init__(9)
        self._members, self._known = members, known

    def known_to_all(self) -> bool:
        return self._known

    async def consumer_ids(self, _group: str, _topic: str) -> list[str]:
        return self._members


@pytest.mark.parametrize(
    ("members", "known", "unlisted"),
    [([], True, True), (["other"], True, True), (["me", "other"], True, False), ([], False, False)],
)
def test_a_broker_that_has_our_heartbeat_and_does_not_list_us_is_told_of(
    members: list[str], *, known: bool, unlisted: bool
) -> None:
    one = Silent(members, known=known)
    settings = load({"consumer.group": "g", "consumer.topics": TOPIC}, {}, None)
    look_ups = LookUps(cast("Cluster", Routes()), cast("Operations", one), cast("Heartbeats", one), settings, "me")
    found = asyncio.run(look_ups.assignment(TOPIC))
    assert (found.members, found.unlisted) == (members, unlisted)


@pytest.mark.parametrize("notices", [10, 1_000])
def test_notices_that_come_together_are_one_look_up_a_topic(make: Callable[..., Bench], notices: int) -> None:
    """50 members join, and each of 20 brokers says so each time: the look-up comes after the last of them, and after the one
    that is under way."""
    topics = tuple(f"t{number}" for number in range(10))
    bench = make(topics=topics)
    bench.core.handle(ev.Start(), bench.now)
    for _ in range(notices):
        bench.core.handle(ev.Rebalance(), bench.now)
    assert [look_up.topic for look_up in bench.take(act.FetchAssignment)] == list(topics), "that of the start"
    bench.pass_ms(1000 * NOTICES_S)
    bench.none(act.FetchAssignment)
    for topic in topics:
        bench.core.handle(ev.Members(topic, None, None), bench.now)
    assert [look_up.topic for look_up in bench.take(act.FetchAssignment)] == list(topics)
    for topic in topics:
        bench.core.handle(ev.Members(topic, None, None), bench.now)
    bench.none(act.FetchAssignment)
    bench.core.handle(ev.Rebalance(), bench.now)
    bench.pass_ms(1000 * NOTICES_S)
    assert len(bench.take(act.FetchAssignment)) == len(topics)


def test_what_is_finished_is_committed_as_soon_as_members_change(bench: Bench) -> None:
    """Whoever joins asks for the group's offset while we still ask who the members are."""
    (handle,) = bench.open(0)
    bench.core.handle(ev.Start(), bench.now)
    bench.worker("w1")
    bench.found(handle, range(2))
    for chunk in bench.dispatched():
        bench.done(chunk)
    bench.none(act.Commit)
    bench.core.handle(ev.Rebalance(), bench.now)
    bench.core.handle(ev.Rebalance(), bench.now)  # of another broker
    assert bench.commits() == [2]


def test_a_look_up_that_is_never_answered_is_given_up(bench: Bench) -> None:
    bench.core.handle(ev.Start(), bench.now)
    bench.one(act.FetchAssignment)
    bench.pass_ms(1_000)
    bench.core.handle(ev.Rebalance(), bench.now)
    bench.pass_ms(1000 * NOTICES_S)
    bench.none(act.FetchAssignment)
    bench.pass_ms(1_000 * LOOK_UP_MAX_S)
    bench.one(act.FetchAssignment)


def test_the_answer_to_a_look_up_that_was_given_up_is_not_taken_for_that_of_the_next(bench: Bench) -> None:
    """A machine that slept finds both: the older one says who were members before."""

    def answered(asked: act.FetchAssignment, *members: str) -> None:
        queues = [bench.queue(0), bench.queue(1)]
        bench.core.handle(ev.Members("orders", queues, members, asked_at=asked.asked_at), bench.now)

    def look_up() -> None:
        bench.core.handle(ev.Rebalance(), bench.now)
        bench.pass_ms(1000 * NOTICES_S)

    me, other = "10.0.0.1@1#1", "10.0.0.1@2#2"
    bench.core.handle(ev.Start(), bench.now)
    given_up = bench.one(act.FetchAssignment)
    bench.pass_ms(1_000 * LOOK_UP_MAX_S)
    look_up()
    asked = bench.one(act.FetchAssignment)
    answered(given_up, me, other)
    assert [fetch.mq.queue_id for fetch in bench.take(act.FetchOffset)] == [0], (
        "it counts as long as there is no newer one"
    )
    look_up()
    bench.none(act.FetchAssignment)  # the newer one is not answered yet
    answered(asked, me)
    assert [fetch.mq.queue_id for fetch in bench.take(act.FetchOffset)] == [1]
    bench.one(act.FetchAssignment)
    assert [bench.core.assigning.is_late("orders", each.asked_at) for each in (given_up, asked)] == [True, False]
    answered(given_up, me, other)
    assert len(bench.core.state.queues) == 2, "nothing is taken away any more"


def test_a_newer_look_up_that_finds_nothing_out_does_not_make_an_older_answer_late(bench: Bench) -> None:
    bench.core.handle(ev.Start(), bench.now)
    slow = bench.one(act.FetchAssignment)
    bench.pass_ms(1_000 * LOOK_UP_MAX_S)
    bench.core.handle(ev.Rebalance(), bench.now)
    bench.pass_ms(1000 * NOTICES_S)
    fails = bench.one(act.FetchAssignment)
    bench.core.handle(ev.Members("orders", None, None, asked_at=fails.asked_at), bench.now)
    bench.core.handle(ev.Members("orders", [bench.queue(0)], ["10.0.0.1@1#1"], asked_at=slow.asked_at), bench.now)
    assert bench.take(act.FetchOffset)


@pytest.mark.parametrize("seconds", [5, 21, 39, 61])
def test_look_ups_that_always_take_long_are_believed(bench: Bench, seconds: int) -> None:
    """As with a strategy of the user's that is slow, for many topics: each is given up before it is answered."""
    bench.core.handle(ev.Start(), bench.now)
    open_questions: list[tuple[float, act.FetchAssignment]] = []
    answers = 0
    for second in range(300):
        open_questions += [(bench.now + seconds, asked) for asked in bench.take(act.FetchAssignment)]
        while open_questions and open_questions[0][0] <= bench.now:
            _, asked = open_questions.pop(0)
            bench.core.handle(
                ev.Members("orders", [bench.queue(answers)], ["10.0.0.1@1#1"], asked_at=asked.asked_at), bench.now
            )
            answers += 1
            assert bench.take(act.FetchOffset), "another queue each time"
        if second % 20 == 0:
            bench.core.handle(ev.Rebalance(), bench.now)
        bench.pass_ms(1000)
    assert answers >= (300 - seconds) // (20 + NOTICES_S) - 1
