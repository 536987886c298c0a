"""Questions to name servers that nobody waits for: routes that are renewed beside their use, brokers that are looked for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest
import structlog

from rocketcrew.client.cluster import Cluster
from rocketcrew.remoting.bodies import BrokerData, TopicRouteData
from rocketcrew.remoting.errors import BrokerError, TimedOutError, UnreachableError
from rocketcrew.remoting.queues import MessageQueue

from .clusters import LONG_S, Clock, Routes, asked_beside, at, cluster_of, route_of


async def test_a_known_route_is_used_while_it_is_renewed_beside():
    async with standing_still() as (cluster, remoting, clock):
        clock.now_s += 30
        for _ in range(3):
            assert await cluster.route("t") == await cluster.publish_route("t") == route_of("a")
        await remoting.asked(2)
        clock.now_s += 29.9
        assert await cluster.route("t") == route_of("a")
        remoting.answers[1].set_result(route_of("b"))
        await asked_beside(cluster)
        assert await cluster.route("t") == route_of("b")
        assert len(remoting.answers) == 2, "one question at a time"


@pytest.mark.parametrize("failure", [UnreachableError("ns:9876", "no answer"), None])
async def test_a_renewal_that_fails_is_logged_once_and_tried_again_at_the_next_poll(failure):
    async with standing_still() as (cluster, remoting, clock):
        clock.now_s += 30
        with structlog.testing.capture_logs() as lines:
            for _ in range(2):
                await cluster.route("t")
            await remoting.asked(2)
            if failure is not None:
                remoting.answers[1].set_exception(failure)
            else:
                remoting.answers[1].set_result(None)
            await asked_beside(cluster)
            await cluster.route("t")
        assert [line["topic"] for line in lines if line["event"] == "route_not_renewed"] == ["t"]
        assert len(remoting.answers) == 2
        clock.now_s += 30
        assert await cluster.route("t") == route_of("a")
        await remoting.asked(3)


@pytest.mark.parametrize("refused", [True, False])
async def test_renewals_that_fail_are_a_warning_once_until_one_does_not(make_peer, refused):
    clock, known = Clock(), Routes(t=route_of("a"))
    async with make_peer(known) as server, cluster_of(server.address, clock=clock) as cluster:
        await cluster.route("t")
        with structlog.testing.capture_logs() as lines:
            for fails in (True, True, False, True):
                known.not_ready = fails and not refused
                known.routes = {} if fails and refused else {"t": route_of("a")}
                clock.now_s += 30
                await cluster.refresh()
        levels = [line["log_level"] for line in lines if line["event"] == "route_not_renewed"]
        assert levels == ["warning", "debug", "warning"]


async def test_a_renewal_ends_with_the_cluster():
    async with standing_still() as (cluster, remoting, clock):
        clock.now_s += 30
        await cluster.route("t")
        await remoting.asked(2)
        await cluster.close()
        assert remoting.answers[1].cancelled()


async def test_a_route_that_nobody_has_renewed_for_long_is_waited_for_by_those_who_say_how_long():
    async with standing_still() as (cluster, remoting, clock):
        clock.now_s += 59
        for _ in range(2):
            assert await cluster.publish_route("t", wait_s=0) == route_of("a")
            clock.now_s += 0.5
        await remoting.asked(2)
        waiting = [asyncio.create_task(cluster.publish_route("t", wait_s=LONG_S)) for _ in range(2)]
        assert await cluster.publish_route("t", wait_s=1e-3) == route_of("a"), "for no longer than they say"
        assert await cluster.publish_route("t", wait_s=LONG_S) == route_of("a"), "and not once more"
        remoting.answers[1].set_result(route_of("b"))
        assert await asyncio.gather(*waiting) == [route_of("b")] * 2


async def test_a_question_that_has_had_no_time_is_waited_for_by_the_next():
    async with standing_still() as (cluster, remoting, clock):
        clock.now_s += 59
        assert await cluster.publish_route("t", wait_s=1e-3) == route_of("a")
        waiting = asyncio.create_task(cluster.publish_route("t", wait_s=LONG_S))
        await remoting.asked(2)
        remoting.answers[1].set_result(route_of("b"))
        assert await waiting == route_of("b")


@pytest.mark.parametrize("ask", [Cluster.route, Cluster.look_again])
async def test_before_a_loop_stands_still_it_waits_for_each_question_once(ask):
    async with standing_still() as (cluster, remoting, clock):
        assert cluster.is_settled
        clock.now_s += 59
        for answer in (route_of("b"), None):
            if (asking := ask(cluster, "t")) is not None:
                await asking
            assert not cluster.is_settled
            settling = asyncio.create_task(cluster.settled(LONG_S if answer is not None else 1e-3))
            await remoting.asked(len(remoting.answers) + 1)
            if answer is not None:
                remoting.answers[-1].set_result(answer)
            await settling
            assert cluster.is_settled
            assert cluster.broker_names() == ["b"]
            clock.now_s += 60
        assert await cluster.publish_route("t", wait_s=0) == route_of("b")
        assert not cluster.is_settled, "of the question of long ago, nobody joins that"


async def test_a_question_that_had_its_time_before_the_loop_stood_still_is_not_waited_for_again():
    async with standing_still() as (cluster, remoting, clock):
        clock.now_s += 59
        await cluster.route("t")
        await cluster.settled(1e-3)
        await remoting.asked(2)
        assert await cluster.publish_route("t", wait_s=LONG_S) == route_of("a")
        await cluster.settled(LONG_S)


async def test_a_silent_name_server_is_waited_for_once_and_not_for_each_topic():
    async with standing_still() as (cluster, remoting, clock):
        asking = asyncio.create_task(cluster.route("u"))
        await remoting.asked(2)
        remoting.answers[1].set_result(route_of("a"))
        await asking
        clock.now_s += 59
        await cluster.route("t")
        await cluster.settled(1e-3)
        await remoting.asked(3)
        assert await cluster.publish_route("u", wait_s=LONG_S) == route_of("a")
        assert cluster.is_settled
        await remoting.asked(4)


@pytest.mark.parametrize(("old_s", "ask"), [(30, Cluster.route), (0, Cluster.look_again)])
async def test_a_question_that_a_refresh_joins_is_logged_once(old_s, ask):
    async with standing_still() as (cluster, remoting, clock):
        clock.now_s += old_s
        with structlog.testing.capture_logs() as lines:
            if (asking := ask(cluster, "t")) is not None:
                await asking
            refreshing = asyncio.create_task(cluster.refresh())
            await remoting.asked(2)
            remoting.answers[1].set_exception(UnreachableError("ns:9876", "no answer"))
            await refreshing
        assert [line["topic"] for line in lines if line["event"] == "route_not_renewed"] == ["t"]


async def test_an_address_is_asked_for_no_longer_than_its_caller_says():
    async with standing_still() as (cluster, remoting, _):
        with pytest.raises(TimedOutError, match="b: no name server has said in time where it is"):
            await cluster.address_of(MessageQueue("t", "b", 0), wait_s=1e-3)
        asking = asyncio.create_task(cluster.address_of(MessageQueue("t", "b", 0)))
        await remoting.asked(2)
        remoting.answers[1].set_result(route_of("b"))
        assert await asking == "b:10911", "it is the same question"


async def test_a_borrowed_route_is_used_while_it_is_renewed_beside(make_peer):
    clock, known = Clock(), Routes(TBW102=route_of("a"))
    async with make_peer(known) as server, make_peer() as deaf, cluster_of(server.address, clock=clock) as cluster:
        await cluster.publish_route("new")
        known.routes["TBW102"] = route_of("b")
        clock.now_s += 30
        assert await cluster.publish_route("new") == route_of("a")
        await asked_beside(cluster, "new")
        assert await cluster.publish_route("new") == route_of("b")
        cluster.name_servers.update(deaf.address)
        clock.now_s += 30
        for _ in range(2):
            assert await cluster.publish_route("new") == route_of("b")
        wire = await deaf.accept()
        assert (await wire.next()).fields["topic"] == "new"
        asyncio.get_running_loop().call_soon(wire.cut)
        await asked_beside(cluster, "new")
        assert await cluster.publish_route("new") == route_of("b")
        assert len(deaf.wires) == 1


async def test_who_cannot_reach_a_broker_has_its_route_asked_for_once_a_second_and_waits_for_nothing(make_peer):
    clock, known = Clock(), Routes(t=route_of("a"))
    async with make_peer(known) as server, cluster_of(server.address, clock=clock) as cluster:
        cluster.look_again("t")  # of a topic that nobody uses
        await cluster.route("t")
        cluster.look_again("t")  # it has just been asked for
        known.routes["t"] = route_of("b")
        clock.now_s += 1
        for _ in range(3):
            cluster.look_again("t")
        assert await cluster.route("t") == route_of("a"), "those that use it go on"
        assert await cluster.route("t", refresh=True) == route_of("b"), "it is the same question"
        assert known.asked == ["t", "t"]


async def test_where_no_name_server_answers_looking_again_changes_nothing(make_peer):
    clock, known = Clock(), Routes(t=route_of("a"))
    async with make_peer(known) as server, cluster_of(server.address, clock=clock) as cluster:
        await cluster.route("t")
        await server.stop()
        clock.now_s += 1
        cluster.look_again("t")
        with pytest.raises(UnreachableError):
            await cluster.route("t", refresh=True)
        assert await cluster.route("t") == route_of("a")


async def test_whoever_cannot_reach_a_broker_asks_for_all_topics_that_have_it(make_peer):
    clock, known = Clock(), Routes(t=route_of("a"), u=route_of("a"), v=route_of("a", "b"))
    async with make_peer(known) as server, cluster_of(server.address, clock=clock) as cluster:
        for topic in "tuv":
            await cluster.route(topic)
        moved = TopicRouteData(queue_datas=route_of("a").queue_datas, broker_datas=(BrokerData("a", {0: "new:10911"}),))
        known.routes["t"] = moved
        clock.now_s += 1
        for topic in "tutu":
            cluster.look_again(topic)
        await asked_beside(cluster)
        assert cluster.broker_address("a") == "new:10911"
        cluster.look_again("u")  # its broker was looked for in this second
        cluster.look_again("v")  # one of its brokers was not
        await asked_beside(cluster, "v")
        clock.now_s += 1
        cluster.look_again("u")
        await asked_beside(cluster, "u")
        assert known.asked[3:] == ["t", "v", "u"]


async def test_a_topic_without_a_route_takes_no_others_question(make_peer):
    clock, known = Clock(), Routes(t=route_of("a"), u=route_of("a"))
    async with make_peer(known) as server, cluster_of(server.address, clock=clock) as cluster:
        for topic in "tu":
            await cluster.route(topic)
        del known.routes["t"]
        with pytest.raises(BrokerError):
            await cluster.route("t", refresh=True)
        clock.now_s += 1
        for topic in "tut":
            cluster.look_again(topic)
        await asked_beside(cluster, "u")
        assert known.asked[3:] == ["t", "u"]


async def test_while_a_broker_is_looked_for_no_other_topic_asks_for_it(make_peer):
    clock, known = Clock(), Routes(t=route_of("a"), u=route_of("a"))
    async with make_peer(known) as first, make_peer() as deaf, cluster_of(first.address, clock=clock) as cluster:
        for topic in "tu":
            await cluster.route(topic)
        cluster.name_servers.update(deaf.address)
        clock.now_s += 1
        cluster.look_again("t")
        wire = await deaf.accept()
        assert (await wire.next()).fields["topic"] == "t"
        clock.now_s += 20
        cluster.look_again("u")
        await cluster.looked("t", "a", "a:10911", 0.0, 0)  # it waits for no longer than it may
        await cluster.looked("nobody knows it", "b", None, 0.0, LONG_S)
        asyncio.get_running_loop().call_soon(wire.cut)
        await asked_beside(cluster)
        assert len(deaf.wires) == 1


class Ticking(Clock):
    """A millisecond passes between any two looks at it."""

    def __call__(self):
        self.now_s += 1e-3
        return self.now_s


async def test_who_lost_a_broker_after_the_last_question_waits_for_the_next_one(make_peer):
    clock, known = Ticking(), Routes(t=at(1))
    async with make_peer(known) as server, cluster_of(server.address, clock=clock) as cluster:
        await cluster.route("t")
        known.routes["t"] = at(2)
        lost_s = clock()
        cluster.look_again("t")
        clock.now_s += 0.98
        await cluster.looked("t", "a", "a:1", lost_s, LONG_S)
        assert cluster.broker_address("a") == "a:2"
        await cluster.looked("t", "a", "a:2", lost_s, LONG_S)
        assert known.asked == ["t", "t"], "once after it was lost"


async def test_who_lost_a_broker_that_is_known_to_be_elsewhere_by_now_does_not_wait_for_the_next_question():
    async with standing_still() as (cluster, remoting, clock):
        clock.now_s += 30
        await cluster.route("t")
        clock.now_s += 0.5
        lost = asyncio.create_task(cluster.looked("t", "a", "a:10911", clock(), LONG_S))
        await remoting.asked(2)
        remoting.answers[1].set_result(at(3))
        await lost
        assert (cluster.broker_address("a"), len(remoting.answers)) == ("a:3", 2)


async def test_a_broker_that_the_topics_route_does_not_name_is_waited_for_and_not_spun_for():
    looks = itertools.count()

    def clock():
        assert next(looks) < 100
        return now.now_s

    now = Clock()
    async with standing_still(clock) as (cluster, remoting, _):
        other = asyncio.create_task(cluster.route("u"))
        await remoting.asked(2)
        remoting.answers[1].set_result(route_of("a"))
        await other
        now.now_s += 10
        cluster.look_again("u")  # the broker of both
        await remoting.asked(3)
        now.now_s += 10
        lost = asyncio.create_task(cluster.looked("t", "ordered by it", None, clock(), LONG_S))
        await asyncio.wait((lost, asyncio.create_task(remoting.asked(4))), return_when=asyncio.FIRST_COMPLETED)
        remoting.answers[3].set_result(route_of("a"))
        await lost
        cluster.look_again("u")
        assert len(remoting.answers) == 4, "its broker is looked for, still"


async def test_a_broker_of_a_borrowed_route_is_looked_for_too(make_peer):
    clock, known = Clock(), Routes(TBW102=at(1))
    async with make_peer(known) as server, cluster_of(server.address, clock=clock) as cluster:
        await cluster.publish_route("new")
        known.routes["TBW102"] = at(3)
        clock.now_s += 1
        cluster.look_again("new")
        await asked_beside(cluster, "new")
        assert cluster.broker_address("a") == "a:3"


class StandingStill:
    """Connections to a name server whose answers wait for the test: as in a loop that stands still between two calls."""

    def __init__(self):
        self.answers, self._came = [], asyncio.Queue()

    async def request(self, _address, command, **_):
        self.answers.append(asyncio.get_running_loop().create_future())
        self._came.put_nowait(command)
        route = await self.answers[-1]
        if route is None:
            return command.response(17, remark="No topic route info")
        return command.response(0, body=route.encode())

    def retire_all_but(self, addresses):
        pass

    async def asked(self, count):
        while len(self.answers) < count:
            await self._came.get()


@contextlib.asynccontextmanager
async def standing_still(given=None):
    remoting, clock = StandingStill(), Clock()
    cluster = Cluster("ns:9876", client_id="c", remoting=remoting, clock=given or clock)
    first = asyncio.create_task(cluster.route("t"))
    await remoting.asked(1)
    remoting.answers[0].set_result(route_of("a"))
    await first
    clock.now_s += 1
    try:
        yield cluster, remoting, clock
    finally:
        await cluster.close()


async def test_an_answer_is_as_old_as_its_question():
    async with standing_still() as (cluster, remoting, clock):
        cluster.look_again("t")
        await remoting.asked(2)
        clock.now_s += 29
        remoting.answers[1].set_result(route_of("a"))
        await asked_beside(cluster)
        clock.now_s += 1
        await cluster.route("t")
        await remoting.asked(3)
        remoting.answers[2].set_result(route_of("b"))
        await asked_beside(cluster)
        assert await cluster.route("t") == route_of("b")


async def asked_once_more(cluster, remoting, clock):
    """A question of long ago is out, and one of now, whose task this is."""
    cluster.look_again("t")
    await remoting.asked(2)
    clock.now_s += 30
    route = asyncio.create_task(cluster.route("t", refresh=True))
    await remoting.asked(3)
    return route


@pytest.mark.parametrize("late", [route_of("a"), None])
async def test_nobody_joins_a_question_of_long_ago_and_its_answer_replaces_no_newer_one(late):
    async with standing_still() as (cluster, remoting, clock):
        route = await asked_once_more(cluster, remoting, clock)
        remoting.answers[2].set_result(route_of("b"))
        assert await route == route_of("b")
        remoting.answers[1].set_result(late)
        await asked_beside(cluster)
        assert await cluster.route("t") == route_of("b")
        assert (cluster.broker_names(), cluster.without_route) == (["b"], set())


async def test_a_question_of_long_ago_ends_with_the_cluster():
    async with standing_still() as (cluster, remoting, clock):
        route = await asked_once_more(cluster, remoting, clock)
        await cluster.close()
        with pytest.raises(UnreachableError, match="closed by this client"):
            await route
        assert [answer.cancelled() for answer in remoting.answers[1:]] == [True, True]


async def test_a_topic_that_was_forgotten_does_not_come_back_by_what_was_asked_before():
    async with standing_still() as (cluster, remoting, _):
        cluster.look_again("t")
        await remoting.asked(2)
        cluster.forget("t")
        remoting.answers[1].set_result(route_of("a"))
        await asked_beside(cluster)
        assert (cluster.broker_names(), cluster.known_routes().routes) == ([], {})
        again = asyncio.create_task(cluster.route("t"))
        await remoting.asked(3)
        remoting.answers[2].set_result(route_of("a"))
        assert await again == cluster.known_routes().routes["t"] == route_of("a")
