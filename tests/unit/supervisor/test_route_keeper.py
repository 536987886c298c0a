"""Each broker that comes or goes is reported once, whichever request brought its route."""

from __future__ import annotations

import asyncio
import selectors
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from rocketcrew.client.route_cache import KnownRoutes, RouteCache
from rocketcrew.remoting.bodies import QueueData, TopicQueueMappingInfo, TopicRouteData
from rocketcrew.remoting.errors import BrokerError, UsageError
from rocketcrew.supervisor.member.route_keeper import RouteKeeper

A, B = "10.0.0.1:10911", "10.0.0.2:10911"


class Hasty(selectors.DefaultSelector):
    """Sleeps in no time, and adds up how long that would have been."""

    slept_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.slept_s += timeout or 0.0
        return super().select(None if timeout is None else 0)


class Leaping(asyncio.SelectorEventLoop):
    """Its clock leaps to the next timer."""

    def __init__(self) -> None:
        self._hasty = Hasty()
        super().__init__(self._hasty)

    def time(self) -> float:
        return super().time() + self._hasty.slept_s


class Routes:
    """What a keeper asks of a cluster; `known` are the brokers of the routes in use, `later` those of the next renewal."""

    def __init__(self) -> None:
        self.access = SimpleNamespace(poll_interval_ms=3_600_000)
        self.known = [A, B]
        self.later: list[str] | None = None
        self.renewals = 0
        self.held: set[str] | None = None
        """What was in use at the last renewal."""
        self.forgotten: list[str] = []
        self.routes: dict[str, TopicRouteData] = {}

    def all_broker_addresses(self) -> list[str]:
        return self.known

    def forget(self, topic: str) -> None:
        self.forgotten.append(topic)

    def offer(self, _known: KnownRoutes) -> None:
        """What the last run left is not asked for here."""

    def known_routes(self) -> Any:
        return SimpleNamespace(routes=dict(self.routes))

    async def refresh(self, held: set[str]) -> set[str]:
        self.held = held
        self.renewals += 1
        if self.later is not None:
            self.known, self.later = self.later, None
        return set()


async def nothing() -> None:
    """Nobody wants to know."""


def test_a_broker_that_came_by_another_question_is_told_of_too() -> None:
    routes, told = Routes(), list[str]()

    async def scene() -> None:
        keeper = RouteKeeper(
            cast("Any", routes), list, None, held=set, changed=lambda: told.append("changed"),
            new_brokers=lambda: told.append("new"), renewed=nothing, retry_topic="%RETRY%g", run=lambda _: None,
        )  # fmt: skip
        keeper.arm()
        routes.later = [A]
        await keeper.refresh()
        assert told == []  # nobody came
        routes.known = [A, B]  # by a look-up of its own, between two renewals
        await keeper.refresh()
        assert told == ["new"]
        await keeper.refresh()
        keeper.disarm()

    with capture_logs() as logs:
        asyncio.run(scene())
    assert [(log["new"], log["gone"]) for log in logs] == [([], [B]), ([B], [])]
    assert told == ["new"]


def test_a_route_that_another_question_has_learned_is_rebalanced_too() -> None:
    """Else the queues that this member is to have now stand still until the next timer of the rebalance."""
    routes, told = Routes(), list[str]()
    few, many = (TopicRouteData((QueueData("a", number, number, 6, 0),)) for number in (4, 8))

    async def scene() -> None:
        keeper = RouteKeeper(
            cast("Any", routes), lambda: ["t"], None, held=set, changed=lambda: told.append("changed"),
            new_brokers=lambda: None, renewed=nothing, retry_topic="%RETRY%g", run=lambda _: None,
        )  # fmt: skip
        keeper.has_route("t")
        routes.routes["t"] = few
        keeper.arm()
        await keeper.refresh()
        assert told == []
        routes.routes["t"] = many  # by a question between two renewals: the renewal finds nothing new
        await keeper.refresh()
        assert told == ["changed"]
        await keeper.refresh()
        keeper.disarm()

    asyncio.run(scene())
    assert told == ["changed"]


class Growing(Routes):
    """A topic that exists when it is asked for the third time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def route(self, topic: str) -> TopicRouteData:
        self.asked += 1
        if self.asked < 3:
            raise BrokerError(17, "", f"GET_ROUTE for topic {topic}")
        return TopicRouteData()


def test_a_topic_that_is_missing_at_the_start_is_looked_for_soon() -> None:
    routes = Growing()

    async def scene() -> None:
        changed = asyncio.Event()
        work: set[asyncio.Task[None]] = set()
        keeper = RouteKeeper(
            cast("Any", routes), lambda: ["orders"], None, held=set, changed=changed.set, new_brokers=lambda: None,
            renewed=nothing, retry_topic="%RETRY%g", run=lambda coroutine: work.add(asyncio.ensure_future(coroutine)),
        )  # fmt: skip
        await keeper.start()
        keeper.arm()
        await changed.wait()
        keeper.disarm()
        await asyncio.gather(*work)

    with capture_logs() as logs, asyncio.Runner(loop_factory=Leaping) as runner:
        runner.run(scene())
    assert [log["event"] for log in logs] == ["topic_not_found"]
    assert (routes.asked, routes.renewals) == (3, 0), "before the routes are renewed, an hour later"


class NewGroup(Routes):
    """The retry topic exists when it is asked for the second time, as brokers make it after the first heartbeat."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def route(self, topic: str) -> TopicRouteData:
        self.asked.append(topic)
        if topic.startswith("%RETRY%") and self.asked.count(topic) < 2:
            raise BrokerError(17, "", f"GET_ROUTE for topic {topic}")
        return TopicRouteData()


def test_the_retry_topic_of_a_new_group_is_looked_for_soon() -> None:
    """A first failed message would otherwise wait for the next rebalance."""
    routes = NewGroup()

    async def scene() -> None:
        changed = asyncio.Event()
        work: set[asyncio.Task[None]] = set()
        keeper = RouteKeeper(
            cast("Any", routes), lambda: ["orders", "%RETRY%g"], None, held=set, changed=changed.set,
            new_brokers=lambda: None, renewed=nothing, retry_topic="%RETRY%g",
            run=lambda coroutine: work.add(asyncio.ensure_future(coroutine)),
        )  # fmt: skip
        await keeper.start()
        assert routes.asked == ["orders"], "before the first heartbeat nobody has made it"
        keeper.arm()
        await changed.wait()
        keeper.disarm()
        await asyncio.gather(*work)

    with capture_logs() as logs, asyncio.Runner(loop_factory=Leaping) as runner:
        runner.run(scene())
    assert logs == []
    assert (routes.asked.count("%RETRY%g"), routes.renewals) == (2, 0), "before the routes are renewed, an hour later"


class Silent(Routes):
    """Name servers that are silent: each question takes three seconds, and the last run knew the answer."""

    async def route(self, topic: str) -> TopicRouteData:
        del topic
        loop = asyncio.get_running_loop()
        answered = loop.create_future()
        loop.call_later(3, answered.set_result, TopicRouteData())
        return await answered


def test_a_start_by_the_routes_of_the_last_run_waits_as_long_for_many_topics_as_for_one() -> None:
    async def scene() -> float:
        keeper = RouteKeeper(
            cast("Any", Silent()), lambda: [f"t{number}" for number in range(50)], None, held=set, changed=lambda: None,
            new_brokers=lambda: None, renewed=nothing, retry_topic="%RETRY%g", run=lambda _: None,
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await keeper.start()
        await keeper.refresh()
        assert keeper.missing() == []
        return loop.time() - begun

    with asyncio.Runner(loop_factory=Leaping) as runner:
        assert runner.run(scene()) < 7


class Known(Routes):
    """All routes that were looked up, by whomever, are known."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, TopicRouteData] = {}

    def known_routes(self) -> Any:
        return KnownRoutes(routes=dict(self.found))

    async def route(self, topic: str) -> TopicRouteData:
        return self.found.setdefault(topic, TopicRouteData((QueueData("b", 1, 1, 6),)))


def test_a_route_that_the_assignment_found_is_kept_for_the_next_start(tmp_path: Path) -> None:
    """The retry topic of a new group; a start without name servers would never see it."""
    file = tmp_path / "0" / "routes.json"
    file.parent.mkdir()
    routes = Known()

    async def scene() -> None:
        keeper = RouteKeeper(
            cast("Any", routes), lambda: ["orders", "%RETRY%g"], RouteCache(file), held=set, changed=lambda: None,
            new_brokers=lambda: None, renewed=nothing, retry_topic="%RETRY%g", run=lambda _: None,
        )  # fmt: skip
        await keeper.start()
        assert RouteCache(file).load().routes.keys() == {"orders"}
        await routes.route("%RETRY%g")
        keeper.has_route("%RETRY%g")

    asyncio.run(scene())
    assert RouteCache(file).load().routes.keys() == {"orders", "%RETRY%g"}


def test_the_route_of_an_unsubscribed_topic_is_forgotten_when_nothing_of_it_is_held() -> None:
    """Or it is asked for every 30 s for ever, and its brokers get heartbeats."""
    routes, subscribed, held = Known(), ["orders", "old"], {"old"}

    async def scene() -> None:
        keeper = RouteKeeper(
            cast("Any", routes), lambda: subscribed, None, held=lambda: held, changed=lambda: None,
            new_brokers=lambda: None, renewed=nothing, retry_topic="%RETRY%g", run=lambda _: None,
        )  # fmt: skip
        await keeper.start()
        subscribed.remove("old")
        await keeper.refresh()
        assert (routes.held, routes.forgotten) == ({"orders", "old"}, []), "its queues are still to be committed"
        held.clear()
        await keeper.refresh()
        await keeper.refresh()
        assert (routes.held, routes.forgotten) == ({"orders"}, ["old"])
        subscribed.append("old")
        assert keeper.missing() == ["old"], "until it is found"
        await keeper.refresh()
        assert keeper.missing() == []
        keeper.has_route("late")  # of a look-up that was on its way
        await keeper.refresh()
        assert routes.forgotten == ["old", "late"]

    asyncio.run(scene())


class Static(Routes):
    """A topic of logical queues."""

    async def route(self, topic: str) -> TopicRouteData:
        return TopicRouteData((QueueData("b", 2, 2, 6),), topic_queue_mapping_by_broker={"b": TopicQueueMappingInfo(4)})


def test_a_static_topic_is_refused_at_the_start() -> None:
    async def scene() -> None:
        keeper = RouteKeeper(
            cast("Any", Static()), lambda: ["orders"], None, held=set, changed=lambda: None, new_brokers=lambda: None,
            renewed=nothing, retry_topic="%RETRY%g", run=lambda _: None,
        )  # fmt: skip
        with pytest.raises(UsageError, match="topic orders is a static topic"):
            await keeper.start()

    asyncio.run(scene())


def test_the_groups_own_retry_topic_alone_is_not_waited_for() -> None:
    async def scene() -> None:
        topics = ["t", "%RETRY%g", "%RETRY%other"]
        keeper = RouteKeeper(
            cast("Any", Routes()), lambda: topics, None, held=set, changed=lambda: None, new_brokers=lambda: None,
            renewed=nothing, retry_topic="%RETRY%g", run=lambda _: None,
        )  # fmt: skip
        assert keeper.missing() == ["t", "%RETRY%other"]

    asyncio.run(scene())
