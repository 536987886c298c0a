"""The topics' routes while a member lives: found at the start, renewed at an interval, kept on disk for the next start.

A topic that does not exist yet is no reason not to start: it is consumed as soon as it exists. The retry topic of a new
group is one of these: brokers make it after the first heartbeat, and name servers hear of it a moment later. A start while
every name server is away goes by the routes of the last run (client/route_cache.py). A changed route is rebalanced at once,
and brokers that came or went are named in the log, by whichever question their route was learnt. The route of a topic that
is not subscribed any more is forgotten when nothing of the topic is held here.
A start on what another cluster has left is refused, and a run ends where a route shows it later (client/same_cluster.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

import structlog

from ...client.cluster import Cluster
from ...client.route_cache import RouteCache
from ...client.routes import refuse_static
from ...client.same_cluster import Suspects
from ...remoting.bodies import TopicRouteData
from ...remoting.codes import ResponseCode
from ...remoting.errors import BrokerError, RocketcrewError, UsageError
from ..core.pauses import MissingTopics

ASKED_MAX = 256
"""Questions at a time; hardly any member has so many topics."""

log = structlog.get_logger("rocketcrew.member")


class RouteKeeper:
    """`topics` says which are subscribed now, `held` of which queues or messages are here, subscribed or not.

    `changed` is called after a route changed, `new_brokers` after brokers came, `renewed` after every renewal. `refused`
    hears after the start of a route of another cluster than that of what is here: it is nowhere used. `retry_topic`: the
    group's own, which brokers make.
    """

    def __init__(
        self, cluster: Cluster, topics: Callable[[], Collection[str]], cache: RouteCache | None, *,
        held: Callable[[], set[str]], changed: Callable[[], None], new_brokers: Callable[[], None],
        renewed: Callable[[], Awaitable[None]], run: Callable[[Coroutine[Any, Any, None]], None],
        retry_topic: str, refused: Callable[[UsageError], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._topics = topics
        self._cache = cache
        self._held = held
        self._changed = changed
        self._new_brokers = new_brokers
        self._renewed = renewed
        self._run = run
        self._refused = refused
        self._retry_topic = retry_topic
        self._suspects: Suspects | None = None
        self._interval_s = cluster.access.poll_interval_ms / 1000
        self._looks = MissingTopics(self._interval_s)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._found: set[str] = set()
        """Topics that have a route."""
        self._brokers: set[str] = set()
        """Addresses of the brokers that were reported."""
        self._routes: Mapping[str, TopicRouteData] = {}
        """Those that were reported, by topic."""

    async def start(self) -> None:
        """Find the topics. Raises UnreachableError when no name server answers and the last run left no routes, UsageError
        for a static topic, and where the last run was on another cluster."""
        if self._cache is not None:
            self._cluster.offer(self._cache.load())
            self._suspects = Suspects(self._cluster, self._cache)
            self._cluster.compare = self._suspects.compare
        topics = [topic for topic in self._topics() if topic != self._retry_topic]  # made by the first heartbeat
        for topic, answer in zip(topics, await self._ask(topics), strict=True):
            if not isinstance(answer, RocketcrewError):
                refuse_static(topic, answer)
                self._found.add(topic)
                continue
            if not isinstance(answer, BrokerError) or answer.code != ResponseCode.TOPIC_NOT_EXIST:
                raise answer
            hint = (
                f"consumed as soon as it exists: looked up each second for a minute, then every"
                f" {self._interval_s * 1000:.0f} ms"
            )
            log.warning("topic_not_found", topic=topic, hint=hint)
        if self._suspects is not None:
            await self._suspects.ask()
            self._cluster.compare = self._compare
        self._save()

    async def _compare(self, route: TopicRouteData) -> None:
        assert self._suspects is not None
        try:
            await self._suspects.compare(route)
        except UsageError as error:
            self._refused(error)
            raise

    async def _ask(self, topics: Sequence[str]) -> list[TopicRouteData | RocketcrewError]:
        """Their routes, together: name servers that are silent cost seconds a question."""
        turns = asyncio.Semaphore(ASKED_MAX)

        async def ask(topic: str) -> TopicRouteData | RocketcrewError:
            async with turns:
                try:
                    return await self._cluster.route(topic)
                except RocketcrewError as error:
                    return error

        return await asyncio.gather(*map(ask, topics))

    def arm(self) -> None:
        """Renew at the interval from now on, and report brokers that are not known now."""
        self._brokers, self._routes = set(self._cluster.all_broker_addresses()), self._cluster.known_routes().routes
        self._rearm()
        self._look_soon()

    def _rearm(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._due)

    def disarm(self) -> None:
        """No more."""
        for timer in (self._timer, self._soon):
            if timer is not None:
                timer.cancel()

    def _missing(self) -> list[str]:
        return [topic for topic in self._topics() if topic not in self._found]

    def _look_soon(self) -> None:
        due_s = self._looks.next_s(missing=bool(self._missing()))
        self._soon = None if due_s is None else self._loop.call_later(due_s, self._soon_due)

    def _soon_due(self) -> None:
        self._run(self._look_for_missing())
        self._look_soon()

    async def _look_for_missing(self) -> None:
        found = await self._find(self._missing())
        if found:
            await self._tell(found)

    async def _find(self, topics: Collection[str]) -> set[str]:
        """Those of the topics that exist now."""
        asked = list(topics)
        answers = zip(asked, await self._ask(asked), strict=True)
        found = {topic for topic, answer in answers if not isinstance(answer, RocketcrewError)}
        self._found |= found
        return found

    def missing(self) -> list[str]:
        """Topics that do not exist, as far as is known: the group's own are made by its brokers."""
        return [topic for topic in self._missing() if topic != self._retry_topic]

    def has_route(self, topic: str) -> None:
        """Somebody else has found it. It is kept at once: the next start may find no name server, and would never see the
        retry topic of a group that was stopped within the interval."""
        if topic not in self._found:
            self._found.add(topic)
            self._save()

    def _due(self) -> None:
        self._run(self.refresh())
        self._rearm()

    async def refresh(self) -> None:
        """Renew the routes of what is in use; topics that were not found before are asked for again."""
        in_use = self._held().union(self._topics())
        for topic in self._found - in_use:
            self._found.remove(topic)
            self._cluster.forget(topic)
        await self._cluster.refresh(in_use)
        await self._tell(await self._find(self._missing()))

    async def _tell(self, changed: Collection[str]) -> None:
        # Against what was reported, not against what was known a moment ago: a broker, or a topic's new route, may come by
        # another question too.
        before, now = self._brokers, set(self._cluster.all_broker_addresses())
        routes_before, routes = self._routes, self._cluster.known_routes().routes
        self._brokers, self._routes = now, routes
        if now != before:
            log.info("brokers_changed", new=sorted(now - before), gone=sorted(before - now))
        if now - before:
            self._new_brokers()
        if changed or any(routes.get(topic, route) != route for topic, route in routes_before.items()):
            self._changed()
        await self._renewed()
        self._save()

    def _save(self) -> None:
        known = self._cluster.known_routes()
        if self._cache is not None and known.routes:
            self._cache.save(self._suspects.noted(known) if self._suspects is not None else known)
