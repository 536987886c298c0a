"""Name servers and routes: choice, failover, cache, brokers that come and go. Name servers here are peers with a table."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from rocketcrew.client.cluster import REFUSED_POLLS_MAX, Cluster
from rocketcrew.client.name_servers import LOG_AGAIN_S
from rocketcrew.client.remoting_client import Remoting
from rocketcrew.client.route_cache import KnownRoutes
from rocketcrew.remoting.bodies import BrokerData, QueueData, TopicRouteData
from rocketcrew.remoting.errors import BrokerError, ProtocolError, UnreachableError, UsageError
from rocketcrew.remoting.queues import MessageQueue

from .clusters import Clock, Routes, asked_beside, at, cluster_of, route_of


async def test_a_miss_asks_at_once_and_the_answer_is_kept(make_peer):
    clock, known = Clock(), Routes(t=route_of("a"))
    async with make_peer(known) as server, cluster_of(server.address, clock=clock) as cluster:
        assert cluster.broker_address("a") is None
        assert await cluster.route("t") == route_of("a")
        assert cluster.broker_address("a") == "a:10911"
        assert await cluster.queues_to_read("t") == [MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)]
        assert known.asked == ["t"]
        assert server.requests[0].fields["acceptStandardJsonOnly"] == "true"
        clock.now_s += 29.9
        await cluster.route("t")
        assert known.asked == ["t"]
        clock.now_s += 0.2
        await cluster.route("t")
        await cluster.route("t", refresh=True)  # it is the same question
        await cluster.route("t", refresh=True)
        assert known.asked == ["t"] * 3


async def test_many_who_miss_ask_once_and_one_who_gives_up_spoils_nothing(make_peer):
    async with make_peer() as server, cluster_of(server.address) as cluster:
        tasks = [asyncio.create_task(cluster.route("t")) for _ in range(20)]
        wire = await server.accept()
        command = await wire.next()
        tasks[0].cancel()
        wire.answer(command, 0, body=route_of("a").encode())
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1:] == [route_of("a")] * 19


async def test_an_unknown_topic_is_the_brokers_no(make_peer):
    async with make_peer(Routes()) as server, cluster_of(server.address) as cluster:
        with pytest.raises(
            BrokerError, match=r"GET_ROUTEINFO_BY_TOPIC .105. at .* for topic t was refused: 17 TOPIC_NOT"
        ):
            await cluster.route("t")


async def test_failover_goes_in_a_circle_and_sticks(make_peer, closed_port):
    first, second = Routes(t=route_of("a")), Routes(t=route_of("a"))
    async with (
        make_peer(first) as one,
        make_peer(second) as two,
        cluster_of(closed_port, one.address, two.address) as cluster,
    ):
        for _ in range(3):
            await cluster.route("t", refresh=True)
        used, other = (one, two) if first.asked else (two, one)
        assert (len(used.requests), len(other.requests)) == (3, 0)
        assert cluster.name_servers.addresses[0] == used.address
        await used.stop()
        await cluster.route("t", refresh=True)
        await cluster.route("t", refresh=True)
        assert (len(used.requests), len(other.requests)) == (3, 2)
        assert cluster.name_servers.addresses[0] == other.address


async def test_one_that_is_not_ready_is_passed_over_unless_all_are(make_peer):
    lame, good = Routes(), Routes(t=route_of("a"))
    lame.not_ready = True
    async with make_peer(lame) as one, make_peer(good) as two, cluster_of(one.address, two.address) as cluster:
        assert await cluster.route("t") == route_of("a")
        good.not_ready = True
        with pytest.raises(BrokerError, match="1 SYSTEM_ERROR: name server not ready"):
            await cluster.route("t", refresh=True)


async def test_the_order_is_shuffled_by_the_random_given(closed_port):
    addresses = [f"127.0.0.1:{port}" for port in range(2, 12)]
    orders = []
    for seed in (1, 1, 2):
        async with cluster_of(*addresses, seed=seed) as cluster:
            orders.append(cluster.name_servers.addresses)
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == sorted(addresses)


async def test_nobody_answers(closed_port):
    async with cluster_of(closed_port) as cluster:
        with pytest.raises(UnreachableError) as caught:
            await cluster.route("t")
        assert caught.value.address == closed_port
        assert "no name server answered GET_ROUTEINFO_BY_TOPIC (105)" in str(caught.value)
        assert "cannot connect" in str(caught.value)


@pytest.mark.parametrize("text", ["", " ; ", ","])
async def test_no_name_server_is_our_users_fault(text):
    with pytest.raises(UsageError, match="no name server is configured"):
        Cluster(text, client_id="c", remoting=Remoting())


async def test_name_server_texts():
    cluster = Cluster("a:1;b:2,http://c:3 ;a:1", client_id="c", remoting=Remoting())
    assert sorted(cluster.name_servers.addresses) == ["a:1", "b:2", "c:3"]
    with pytest.raises(UsageError, match="'nonsense' is not host:port"):
        Cluster("nonsense", client_id="c", remoting=Remoting())


async def test_an_old_route_is_used_while_no_newer_one_can_be_had(make_peer):
    clock, known = Clock(), Routes(t=route_of("a"))
    async with make_peer(known) as server, cluster_of(server.address, clock=clock) as cluster:
        await cluster.route("t")
        del known.routes["t"]
        clock.now_s += 31
        for _ in range(2):
            assert await cluster.route("t") == route_of("a")
            await asked_beside(cluster)
        assert known.asked == ["t", "t"]  # and not once per call
        with pytest.raises(BrokerError):
            await cluster.route("t", refresh=True)
        await server.stop()
        clock.now_s += 31
        assert await cluster.route("t") == route_of("a")
        with pytest.raises(UnreachableError):
            await cluster.route("t", refresh=True)


async def test_refresh_renews_routes_and_cleans_up_brokers_that_vanished(make_peer):
    known = Routes(t=route_of("a", "b"), u=route_of("a"))
    async with make_peer(known) as server, cluster_of(server.address) as cluster:
        await cluster.route("t")
        await cluster.route("u")
        await cluster.refresh()
        assert cluster.all_broker_addresses() == ["a:10911", "b:10911"]
        known.routes["t"] = route_of("c")
        await cluster.refresh()
        assert cluster.broker_names() == ["a", "c"]
        assert cluster.broker_address("b") is None
        cluster.forget("t")
        assert cluster.all_broker_addresses() == ["a:10911"]
        await server.stop()
        await cluster.refresh()
        assert cluster.all_broker_addresses() == ["a:10911"]


@pytest.mark.parametrize("deleted", ["first", "second"])
async def test_a_topic_that_was_deleted_does_not_lead_others_to_where_their_broker_was(make_peer, deleted):
    known = Routes(first=at(1, slave=2), second=at(1, slave=2))
    async with make_peer(known) as server, cluster_of(server.address) as cluster:
        for topic in ("first", "second"):
            await cluster.route(topic)
        del known.routes[deleted]
        await cluster.refresh()
        assert cluster.all_broker_addresses() == ["a:1", "a:2"]
        known.routes = {topic: at(3) for topic in known.routes}
        for _ in range(2):
            await cluster.refresh()
            assert cluster.broker_address("a") == "a:3"
            assert cluster.all_broker_addresses() == ["a:3"], "the slave left with the move"
        known.routes[deleted] = at(3)
        await cluster.refresh()
        assert (cluster.without_route, cluster.broker_address("a")) == (set(), "a:3")


@pytest.mark.parametrize("asked", ["first", "second"])
async def test_where_a_broker_is_says_the_route_that_was_learnt_last(make_peer, asked):
    """The other one could not be renewed, and says so of no deletion."""
    clock, known = Clock(), Routes(first=at(1), second=at(1))
    async with make_peer(known) as server, cluster_of(server.address, clock=clock) as cluster:
        for topic in ("first", "second"):
            await cluster.route(topic)
        known.routes = dict.fromkeys(known.routes, b"no route") | {asked: at(3)}
        await cluster.refresh()
        assert cluster.broker_address("a") == "a:3"
        clock.now_s += 31
        for topic in ("first", "second"):
            await cluster.route(topic)
            await asked_beside(cluster, topic)
        assert cluster.broker_address("a") == "a:3", "asking in vain makes nothing newer"
        known.routes = dict.fromkeys(known.routes, at(3)) | {asked: b"no route"}
        await cluster.refresh()
        known.routes = dict.fromkeys(known.routes, b"no route") | {asked: at(3)}
        await cluster.refresh()
        assert cluster.broker_address("a") == "a:3"


async def test_a_route_that_says_again_what_it_said_is_the_newest_too(make_peer):
    """Two name servers may not agree: whoever answers last is right."""
    known = Routes(t=at(1), u=at(3))
    async with make_peer(known) as server, cluster_of(server.address) as cluster:
        for topic in ("t", "u", "t", "u"):
            await cluster.route(topic, refresh=True)
            assert cluster.broker_address("a") == f"a:{1 if topic == 't' else 3}"


async def test_a_name_server_that_has_lost_every_topic_changes_nothing(make_peer):
    known = Routes(t=at(1), u=at(3), v=at(5, name="b"))
    async with make_peer(known) as server, cluster_of(server.address) as cluster:
        for topic in ("t", "u", "v"):
            await cluster.route(topic)
        before, known.routes = known.routes, {}
        routes = cluster.known_routes().routes
        await cluster.refresh()
        assert cluster.known_routes().routes == routes
        assert cluster.without_route == {"t", "u", "v"}
        assert cluster.all_broker_addresses() == ["a:3", "b:5"]
        known.routes = before | {"t": at(7)}  # this broker is back already, and elsewhere
        del known.routes["u"], known.routes["v"]
        await cluster.refresh()
        assert cluster.all_broker_addresses() == ["a:7", "b:5"]


async def test_what_the_last_run_knew_is_older_than_any_answer(make_peer):
    known = Routes(t=at(3))
    async with make_peer(known) as server, cluster_of(server.address) as cluster:
        await cluster.route("t")
        known.not_ready = True
        cluster.offer(KnownRoutes((server.address,), {"u": at(1)}))
        assert await cluster.route("u") == at(1)
        assert cluster.broker_address("a") == "a:3"


async def test_a_borrowed_route_grows_old_too(make_peer):
    known = Routes(t=at(1), TBW102=at(1, queues=8))
    async with make_peer(known) as server, cluster_of(server.address) as cluster:
        await cluster.publish_route("new")
        await cluster.route("t")
        known.routes["t"] = at(3)
        await cluster.refresh()
        assert cluster.broker_address("a") == "a:3"


async def test_a_topic_that_stays_refused_is_forgotten_unless_it_is_in_use(make_peer):
    clock, topics = Clock(), ("dead", "held", "used")
    known = Routes(t=at(1), **{topic: at(1, name=topic) for topic in topics})
    async with make_peer(known) as server, cluster_of(server.address, clock=clock) as cluster:
        for topic in ("t", *topics):
            await cluster.route(topic)
        known.routes = {"t": at(1)}
        for _ in range(REFUSED_POLLS_MAX):
            await cluster.refresh(held={"held"})
            assert cluster.without_route == set(topics)
            clock.now_s += 30
            await cluster.route("used")
        await cluster.refresh(held={"held"})
        assert cluster.without_route == {"held", "used"}
        assert cluster.broker_names() == ["a", "held", "used"]
        known.asked.clear()
        await cluster.refresh()
        assert sorted(known.asked) == ["held", "t", "used"]


async def test_the_order_in_an_answer_is_no_change(make_peer):
    known = Routes(t=route_of("a", "b"))
    async with make_peer(known) as server, cluster_of(server.address) as cluster:
        before = await cluster.route("t")
        known.routes["t"] = route_of("b", "a")
        await cluster.refresh()
        assert cluster.known_routes().routes == {"t": before}


async def test_a_new_topic_borrows_the_default_topics_route_until_it_exists(make_peer):
    clock, known = Clock(), Routes(TBW102=route_of("a", queues=8, perm=7))
    async with make_peer(known) as server, cluster_of(server.address, clock=clock) as cluster:
        route = await cluster.publish_route("new")
        assert route.queue_datas[0].write_queue_nums == 4
        assert cluster.broker_address("a") == "a:10911"
        await cluster.publish_route("new")
        assert known.asked == ["new", "TBW102"]
        with pytest.raises(BrokerError):
            await cluster.route("new")  # readers do not borrow
        known.routes["new"] = route_of("a")
        clock.now_s += 31
        assert (await cluster.publish_route("new")) == route
        await asked_beside(cluster, "new")
        assert (await cluster.publish_route("new")) == route_of("a")
        assert (await cluster.route("new")) == route_of("a")
        assert known.asked == ["new", "TBW102", "new", "new"]


async def test_many_who_borrow_ask_once_and_go_on_in_the_order_in_which_they_came(make_peer):
    """Or one that borrowed before overtakes those that still ask."""
    async with make_peer() as server, cluster_of(server.address) as cluster:
        order = []

        async def send(number):
            assert await cluster.publish_route("new") == route_of("a", queues=4, perm=7)
            order.append(number)

        tasks = [asyncio.create_task(send(number)) for number in range(20)]
        wire = await server.accept()
        wire.answer(await wire.next(), 17)
        question = await wire.next()
        tasks[7].cancel()
        tasks.append(asyncio.create_task(send(20)))
        assert question.fields["topic"] == "TBW102"
        wire.answer(question, 0, body=route_of("a", queues=4, perm=7).encode())
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [at for at, result in enumerate(results) if result is not None] == [7]
        assert order == [number for number in range(21) if number != 7]
        cluster.forget("new")
        task = asyncio.create_task(cluster.publish_route("new"))
        assert (await wire.next()).fields["topic"] == "new", "nothing was asked in between"
        task.cancel()


async def test_without_a_default_topic_the_error_names_the_users_topic(make_peer):
    async with make_peer(Routes()) as server, cluster_of(server.address) as cluster:
        with pytest.raises(BrokerError, match="for topic new was refused: 17"):
            await cluster.publish_route("new")


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"queueDatas":[{}]}', route_of("a", queues=1 << 20).encode(),
     route_of(*(f"b{number}" for number in range(60)), queues=65_536).encode()],
)  # fmt: skip
async def test_an_answer_that_is_no_route(make_peer, body):
    async with make_peer(Routes(t=body)) as server, cluster_of(server.address) as cluster:
        with pytest.raises(ProtocolError):
            await cluster.route("t")


async def test_addresses_that_are_none_are_left_out_and_brokers_without_another(make_peer):
    told = TopicRouteData(
        queue_datas=tuple(QueueData(name, 2, 2, 6) for name in "abcd"),
        broker_datas=(
            BrokerData("a", {0: "127.0.0.1:99999", 1: "127.0.0.1:10911"}), BrokerData("b", {}),
            BrokerData("c", {0: ""}), BrokerData("d", {0: "\0:1"}),
        ),
    )  # fmt: skip
    async with make_peer(Routes(t=told)) as server, cluster_of(server.address) as cluster:
        route = await cluster.route("t")
        assert route.broker_datas == (BrokerData("a", {1: "127.0.0.1:10911"}),)
        with pytest.raises(UnreachableError, match="b: the route of topic t names no address of a master"):
            await cluster.address_of(MessageQueue("t", "b", 0))


@pytest.mark.parametrize(("brokers", "final"), [({0: "a:10911", 1: "a:10912"}, True), ({1: "a:10912"}, False)])
async def test_only_what_a_master_says_is_final(make_peer, brokers, final):
    told = TopicRouteData(queue_datas=(QueueData("a", 2, 2, 6),), broker_datas=(BrokerData("a", brokers),))
    async with make_peer(Routes(t=told)) as server, cluster_of(server.address) as cluster:
        assert not cluster.is_final(MessageQueue("t", "a", 0)), "nobody is known"
        await cluster.route("t")
        assert cluster.is_final(MessageQueue("t", "a", 0)) is final
        assert cluster.is_final(MessageQueue("another", "a", 0)) is final


async def test_the_address_of_a_queue_is_looked_up_on_a_miss(make_peer):
    known = Routes(t=route_of("a"))
    async with make_peer(known) as server, cluster_of(server.address) as cluster:
        assert await cluster.address_of(MessageQueue("t", "a", 0)) == "a:10911"
        with pytest.raises(UnreachableError, match="b: the route of topic t names no address of a master"):
            await cluster.address_of(MessageQueue("t", "b", 0))
        assert known.asked == ["t", "t"]
        with pytest.raises(UnreachableError, match=r"c: .*TOPIC_NOT_EXIST"):  # only c can say that the topic is gone
            await cluster.address_of(MessageQueue("u", "c", 0))


async def test_a_name_server_that_is_away_is_logged_once_in_a_while(make_peer, closed_port):
    clock, known = Clock(), Routes(t=route_of("a"))
    async with make_peer(known) as server, cluster_of(closed_port, clock=clock) as cluster:
        with structlog.testing.capture_logs() as lines:
            for _ in range(3):
                with pytest.raises(UnreachableError):
                    await cluster.route("t")
            assert [line["event"] for line in lines] == ["name_server_failed"]
            clock.now_s += LOG_AGAIN_S
            with pytest.raises(UnreachableError):
                await cluster.route("t")
            assert len(lines) == 2
            cluster.name_servers.update(server.address)
            await cluster.route("t")
            await server.stop()
            with pytest.raises(UnreachableError):
                await cluster.route("t", refresh=True)
        failed = [line["address"] for line in lines if line["event"] == "name_server_failed"]
        assert failed == [closed_port, closed_port, server.address]
