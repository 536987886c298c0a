"""Where things are in a cluster: routes by topic, brokers by name.

Rules:

- A route is asked for when it is first needed (a miss never waits for a timer), and is used at once from then on; `refresh`
  renews those in use and is for a timer of the owner (the supervisor's loop, the producer's background task).
- One that is older than the poll interval is renewed beside its use, by one question at a time: a name server that is silent
  costs no caller its time-out. Only who says how long waits, and only for a route that has missed OVERDUE_POLLS polls.
- The loop of a `SyncProducer` runs only while it sends, and a question whose loop stands still gets no answer. So each call
  ends with those that it leaves, or with IN_VAIN_S (`settled`). What had so much time counts as in vain: nobody waits again.
- Several that miss the same topic at once wait for one lookup, and go on in the order in which they came. So do those that
  borrow the default topic's route.
- A route that cannot be renewed stays in use, as in Java: the name server may be away for hours while brokers work. Also when
  the name server has lost the topic, since a restarting broker looks just like that: until nobody has used it for
  REFUSED_POLLS_MAX polls that were refused. Callers that must know ask with `refresh=True`, which never answers from memory.
- Where a broker is says the route that was learnt last (as in Java: the newest replaces all of a broker's addresses). What
  the name server refused, and what the last run knew, counts only for brokers that no other route names: a topic that was
  deleted must not lead the others to where a broker was then.
- A route that nobody could be asked for comes from the last run, when one was offered (`offer`; route_cache.py): so a start
  works while every name server is away. "No such topic" is an answer, and not made up for; so is "what is a route?", by a
  broker that is taken for a name server. Nor is a route of another cluster taken, whose brokers may have the same names: the
  last run had one of our name servers, our address server, or the folder of our own broker (`is_of`).
- Whoever cannot reach a broker says so (`look_again`): it may be elsewhere now. The route of one topic that has it is asked
  for at once, but once a second at most, as any topic's answer says where it is for all. (Java's client learns of it at the
  next poll.) Only a send that has no other broker left waits for that, for a while; where the last question was asked
  before it lost the broker, for the next one (`looked`).
- An answer is as old as its question: the loop of a `SyncProducer` may stand still between the two for as long as it likes.
  So nobody joins a question older than the poll interval, and its answer replaces no newer one. What was asked before its
  topic was forgotten is not kept.
- Which brokers exist follows from the routes in use alone. A broker that no route names any more is gone from
  `broker_address` and from heartbeats at once, and its connection ends at the next refresh, when its requests are answered.
- A producer's topic that does not exist yet borrows the default topic's route (`publish_route`), only for sending and until
  it has one of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass, field
from functools import partial
from random import Random

from ..remoting.bodies import TopicRouteData
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.errors import BrokerError, RocketcrewError, TimedOutError, UnreachableError
from ..remoting.headers import GetRoute
from ..remoting.names import DEFAULT_TOPIC, MASTER_ID
from ..remoting.queues import MessageQueue
from .access import Access, NameServerList, access_to
from .asking import refusal
from .background import Shared
from .logs import get_logger
from .name_servers import NOT_READY, NameServers
from .remoting_client import Remoting
from .request_rules import vip_address
from .route_cache import KnownRoutes, is_folder
from .routes import BrokerTable, default_route, is_final, judged, queues_to_read, queues_to_write

DEFAULT_TOPIC_QUEUE_NUMS = 4
ROUTES_MAX = 4_096
REFRESH_PARALLEL_MAX = 8
OVERDUE_POLLS = 2
IN_VAIN_S = 0.5
"""Name servers answer in milliseconds, when they do. A send that waits less says nothing about them."""
LOOK_AGAIN_S = 1.0
REFUSED_POLLS_MAX = 20
"""Ten minutes: brokers register anew at a name server that restarted within one."""

Sought = tuple[str] | tuple[str, str, int]
"""A topic; or a topic, the default topic whose route it may borrow, and of that how many queues."""

_log = get_logger("rocketcrew.client")


@dataclass(slots=True, eq=False)
class _Question:
    number: int
    asked_s: float
    beside: bool
    """Of a route that is known: whoever joins it need not wait."""
    renews: bool = False
    """A route that is old: that it fails is logged. Else it only looks for a broker, or its caller hears of it."""
    answer: Shared[TopicRouteData] = field(init=False)
    forgotten: bool = False
    """Its topic was, since then."""
    in_vain: bool = False
    """The loop has run for IN_VAIN_S, and it has no answer."""


@dataclass(slots=True)
class _Entry:
    sought: Sought
    """By which it is renewed."""
    route: TopicRouteData
    learnt: int
    """By which question to the name server, by number; 0 = none, it is from the last run."""
    checked_s: float
    used_s: float
    refused_s: float | None = None
    """Since when the name server has no route of the topic."""
    not_renewed: bool = False
    """The last renewal failed, which was logged."""


class Cluster:
    """See the module's text. `clock` gives monotonic seconds; `random` decides the order of name servers."""

    def __init__(
        self,
        target: NameServerList | Access,
        *,
        client_id: str,
        remoting: Remoting,
        clock: Callable[[], float] = time.monotonic,
        random: Random | None = None,
        place: str = "",
    ) -> None:
        """Asks nothing yet. `place`: as of `KnownRoutes`. Raises UsageError for a bad or empty list of name servers."""
        self.access = access_to(target)
        self.client_id = client_id
        self.remoting = remoting
        self.random = random or Random()
        self.name_servers = NameServers(self.access, remoting=remoting, random=self.random, clock=clock)
        self.clock = clock
        self._poll_interval_s = self.access.poll_interval_ms / 1000
        self._routes: dict[str, _Entry] = {}
        self._borrowed: dict[str, _Entry] = {}
        self._questions: dict[Sought, _Question] = {}
        """Those that others join: after a topic, and after the route by which it may be published."""
        self._under_way: dict[_Question, Sought] = {}
        """Those, and older ones that nobody joins any more."""
        self._looked: dict[str, _Question] = {}
        """By broker, the last one that looks for it; those of the last second, or that are under way."""
        self._asked = 0
        """How many questions there were."""
        self._brokers: BrokerTable | None = None
        """None = to be made anew of the routes."""
        self.place = place or self.name_servers.url
        self._offered = KnownRoutes()
        self.compare: Callable[[TopicRouteData], Awaitable[None]] | None = None
        """Sees each answer before it is one, and may raise UsageError (same_cluster.py)."""
        self.is_closed = False

    # Routes.

    async def route(self, topic: str, refresh: bool = False, *, wait_s: float = 0.0) -> TopicRouteData:
        """Where the topic is, as far as is known; unless `refresh`, which asks. `wait_s`: for one that is overdue.

        Raises BrokerError (code 17: no such topic), UnreachableError when no name server answers, ProtocolError when
        the answer is no route. Without `refresh` these are raised only if no older answer is known.
        """
        entry = self._routes.get(topic)
        if entry is not None and not refresh:
            return await self._known(entry, wait_s)
        try:
            return await self._answer(self._question((topic,)), topic)
        except RocketcrewError as error:
            route = self._offered.routes.get(topic)
            if refresh or route is None or not _nobody_knew(error):
                raise
            if not self.is_of(self._offered):
                said = error.reason if isinstance(error, UnreachableError) else error
                before = ";".join(self._offered.name_servers)
                reason = f"{said}. The last run was at {before}: its routes are not used here"
                raise UnreachableError(self.name_servers.where, reason) from error
            _log.warning("route_of_the_last_run", topic=topic, error=str(error))
            self._keep(self._routes, (topic,), route, learnt=0, checked_s=self.clock())
            return route

    async def publish_route(
        self,
        topic: str,
        *,
        default_topic: str = DEFAULT_TOPIC,
        queue_nums: int = DEFAULT_TOPIC_QUEUE_NUMS,
        wait_s: float = 0.0,
        timeout_s: float | None = None,
    ) -> TopicRouteData:
        """The topic's route, or for a topic that does not exist yet the default topic's, at most `queue_nums` queues.

        Brokers create the topic with the first message where they allow it. Waits and raises as `route` does, for a route
        that is not known no longer than `timeout_s`: then TimedOutError.
        """
        sought = topic, default_topic, queue_nums
        asked = self._questions.get(sought)
        entry = self._entry(topic)
        if entry is not None and (asked is None or asked.beside):  # else others wait, who come first
            return await self._known(entry, wait_s)
        return await self._answer(self._question(sought), topic, timeout_s)

    async def _answer(self, asked: _Question, what: str, timeout_s: float | None = None) -> TopicRouteData:
        """Wait for it as one of several: whoever gives up does not end it. Where `close` ends it UnreachableError is raised:
        nobody has cancelled the caller. TimedOutError after `timeout_s`; `what` is looked for."""
        if not await asked.answer.ended(timeout_s):
            raise TimedOutError(what, "no name server has said in time where it is")
        if asked.answer.task.cancelled():
            raise UnreachableError(what, "no name server has said where it is: closed by this client")
        return asked.answer.task.result()

    async def _known(self, entry: _Entry, wait_s: float) -> TopicRouteData:
        """What is known, renewed beside where it is old. (To wait for that would cost every send some seconds while the name
        server is silent.)"""
        entry.used_s = self.clock()
        age_s = entry.used_s - entry.checked_s
        if age_s < self._poll_interval_s:
            return entry.route
        asked = self._question(entry.sought, beside=True)
        asked.renews = True
        if wait_s > 0 and age_s >= OVERDUE_POLLS * self._poll_interval_s and not self._is_silent:
            asked.in_vain = not await asked.answer.ended(wait_s) and self.clock() - asked.asked_s >= IN_VAIN_S
            entry = self._entry(entry.sought[0]) or entry
        return entry.route

    def look_again(self, topic: str, broker_name: str | None = None) -> None:
        """A broker of the topic could not be reached: ask where it is, for those that come later. None: any of its route."""
        entry, now_s = self._entry(topic), self.clock()
        if entry is None or now_s - entry.checked_s < LOOK_AGAIN_S:
            return
        self._looked = {
            name: asked
            for name, asked in self._looked.items()
            if asked in self._under_way or now_s - asked.asked_s < LOOK_AGAIN_S
        }
        brokers = {data.broker_name for data in entry.route.broker_datas}
        sought = {broker_name} if broker_name is not None else brokers
        if sought and sought <= self._looked.keys():
            return
        entry.checked_s = now_s  # also where nobody answers: nobody waits for this question as for a miss
        asked = self._question(entry.sought, beside=True)
        if (
            entry.refused_s is None
        ):  # else the answer will hardly name an address: others may ask for it in this second, too
            self._looked.update(dict.fromkeys(brokers, asked))

    async def looked(self, topic: str, broker_name: str, address: str | None, lost_s: float, timeout_s: float) -> None:
        """Wait, so long at most, until a broker of the topic that was lost at this address, at `lost_s` by the clock, is
        elsewhere, or the name server has been asked for it since."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self.is_closed and (asked_s := await self._answers(topic, broker_name)) < lost_s:
                    if self.broker_address(broker_name) != address:
                        break
                    if (early_s := LOOK_AGAIN_S - (self.clock() - asked_s)) > 0:
                        await asyncio.sleep(early_s)
                    self.look_again(topic, broker_name)

    async def _answers(self, topic: str, broker_name: str) -> float:
        """Wait for the questions by which the broker may be found; when the newest was asked."""
        entry, looked = self._entry(topic), self._looked.get(broker_name)
        renewal = self._questions.get(entry.sought) if entry is not None else None
        for asked in (renewal, looked):
            if asked is not None:
                await asked.answer.ended()
        entry = self._entry(topic)
        checked_s = entry.checked_s if entry is not None else self.clock()
        return checked_s if looked is None else max(checked_s, looked.asked_s)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way that is worth a wait."""
        return not self._under_way or self._is_silent

    @property
    def _is_silent(self) -> bool:
        """Whether a question of now has had its time: nobody waits for another one, as the same name servers are asked."""
        since_s = self.clock() - self._poll_interval_s
        return any(asked.in_vain and asked.asked_s > since_s for asked in self._under_way)

    async def settled(self, timeout_s: float = IN_VAIN_S) -> None:
        """Wait, so long at most, for the questions under way: their loop will stand still. Once for all of them."""
        if not self.is_settled:
            await asyncio.wait([asked.answer.task for asked in self._under_way], timeout=timeout_s)
        for asked in self._under_way:  # also those that one of these has asked
            asked.in_vain = True

    async def refresh(self, held: Container[str] = ()) -> None:
        """Renew every route in use (for a timer of 30 s), also of topics `held` that nobody asks for. Failures are logged."""
        await self.name_servers.refresh()
        turns = asyncio.Semaphore(REFRESH_PARALLEL_MAX)

        async def renew(topic: str) -> None:
            async with turns:
                if topic not in self._routes:
                    return  # forgotten meanwhile
                asked = self._question((topic,))
                asked.renews = True
                with contextlib.suppress(RocketcrewError):  # it is logged where it is answered, once
                    await self._answer(asked, topic)

        await asyncio.gather(*(renew(topic) for topic in list(self._routes)))
        self._forget_unused(held)
        self._leave_vanished()

    def _forget_unused(self, held: Container[str]) -> None:
        long_ago_s = self.clock() - REFUSED_POLLS_MAX * self._poll_interval_s
        for topic, entry in list(self._routes.items()):
            if entry.refused_s is not None and max(entry.refused_s, entry.used_s) <= long_ago_s and topic not in held:
                self.forget(topic)

    @property
    def without_route(self) -> set[str]:
        """Topics in use that the name server had no route of when it was asked last (code 17)."""
        return {topic for topic, entry in self._routes.items() if entry.refused_s is not None}

    def offer(self, known: KnownRoutes) -> None:
        """What the last run knew, for what nobody can be asked for now."""
        self._offered = known
        if known.place == self.place:
            self.name_servers.offer(known.name_servers)

    def is_of(self, known: KnownRoutes) -> bool:
        """Whether it was known at the same place. What an address server tells, and what a name in DNS means, may have
        changed: that the setting is the same is enough. So is one name server of several. Of an own broker only the folder
        counts, as others may have its ports at another time."""
        if is_folder(known.place) or is_folder(self.place):
            return known.place == self.place
        if known.place and known.place == self.place:
            return True
        return not set(known.name_servers).isdisjoint(self.name_servers.addresses)

    def known_routes(self) -> KnownRoutes:
        """What the next run may be offered."""
        routes = {topic: entry.route for topic, entry in self._routes.items()}
        return KnownRoutes(sorted(self.name_servers.addresses), routes, self.place)

    def _leave_vanished(self) -> None:
        """End the connections to brokers and name servers that are no more (MQClientInstance.java cleanOfflineBroker)."""
        brokers = self.all_broker_addresses()
        vip = map(vip_address, brokers) if self.access.vip_channel_enabled else ()
        self.remoting.retire_all_but({*brokers, *vip, *self.name_servers.addresses})

    def forget(self, topic: str) -> None:
        """The topic is not used any more: its route is not renewed, its brokers vanish unless others name them."""
        self._routes.pop(topic, None)
        self._borrowed.pop(topic, None)
        self._brokers = None
        for asked, sought in self._under_way.items():
            if sought[0] == topic:
                asked.forgotten = True
                self._questions.pop(sought, None)

    async def close(self) -> None:
        """Cancel lookups under way, for good. The connections are the remoting's."""
        self.is_closed = True
        tasks = [asked.answer.task for asked in self._under_way]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Queues and brokers.

    async def queues_to_read(self, topic: str, refresh: bool = False) -> list[MessageQueue]:
        """The topic's readable queues, sorted as every member of a group sorts them. Raises as `route`, and as
        routes.py does for a static topic."""
        return queues_to_read(topic, await self.route(topic, refresh))

    async def queues_to_write(self, topic: str, refresh: bool = False) -> list[MessageQueue]:
        """The topic's writable queues (brokers with a master). Raises as `queues_to_read`."""
        return queues_to_write(topic, await self.route(topic, refresh))

    def broker_address(self, broker_name: str, broker_id: int = MASTER_ID, *, only_this: bool = True) -> str | None:
        """The address of a broker's replica (0: master), None when no route in use names it."""
        return (self._brokers or self._table()).address(broker_name, broker_id, only_this=only_this)

    def is_final(self, mq: MessageQueue) -> bool:
        """Whether its broker's answers are those of a master, as far as the routes in use know (routes.py, `is_final`)."""
        address, entry = self.broker_address(mq.broker_name), self._routes.get(mq.topic)
        return address is not None and (entry is None or is_final(entry.route, mq.broker_name, address))

    def all_broker_addresses(self, *, masters_only: bool = False) -> list[str]:
        """The addresses of every broker that a route in use names, slaves too."""
        return self._table().all_addresses(masters_only=masters_only)

    def broker_at(self, address: str) -> str | None:
        """The name of the broker that has a replica at the address, None when no route in use names it."""
        table = self._table()
        return next((name for name in table.names if address in table.ids(name).values()), None)

    def broker_names(self) -> list[str]:
        """The names of every broker that a route in use names."""
        return self._table().names

    async def address_of(
        self, mq: MessageQueue, broker_id: int = MASTER_ID, *, only_this: bool = True, wait_s: float | None = None
    ) -> str:
        """The address for this queue, its topic's route asked for where it is not known. `wait_s`: for that, at most.

        Raises UnreachableError when the route does not name the broker (or no such replica), or no name server has a route:
        that the topic is gone only its broker can say. TimedOutError after `wait_s`. Else as `route`.
        """
        address = self.broker_address(mq.broker_name, broker_id, only_this=only_this)
        if address is None:
            try:
                await self._answer(self._question((mq.topic,)), mq.broker_name, wait_s)
            except BrokerError as error:
                raise UnreachableError(mq.broker_name, str(error)) from None
            address = self.broker_address(mq.broker_name, broker_id, only_this=only_this)
        if address is None:
            replica = "a master" if broker_id == MASTER_ID else f"replica {broker_id}"
            raise UnreachableError(mq.broker_name, f"the route of topic {mq.topic} names no address of {replica}")
        return address

    # Lookup.

    def _entry(self, topic: str) -> _Entry | None:
        """What is known of the topic, or what it borrows."""
        return self._routes.get(topic) or self._borrowed.get(topic)

    def _question(self, sought: Sought, *, beside: bool = False) -> _Question:
        """Ask the name server; concurrent callers share one question, and one who gives up must not end it (shield)."""
        asked, now_s = self._questions.get(sought), self.clock()
        if asked is None or now_s - asked.asked_s >= self._poll_interval_s:
            self._asked += 1
            asked = self._questions[sought] = _Question(self._asked, now_s, beside)
            self._under_way[asked] = sought
            asked.answer = Shared(self._find(sought, asked))
            asked.answer.task.add_done_callback(partial(self._answered, asked))
        return asked

    async def _find(self, sought: Sought, asked: _Question) -> TopicRouteData:
        return await (self._learn(sought[0], asked) if len(sought) == 1 else self._route_or_borrowed(sought, asked))

    def _answered(self, asked: _Question, task: asyncio.Task[TopicRouteData]) -> None:
        sought = self._under_way.pop(asked)
        if self._questions.get(sought) is asked:
            del self._questions[sought]
        error = None if task.cancelled() else task.exception()  # everybody may have given up: then nobody else takes it
        entry = self._entry(sought[0])
        if error is None or entry is None or entry.sought != sought:
            return
        entry.checked_s = max(entry.checked_s, asked.asked_s)  # not again before the next interval
        if asked.renews:
            log = _log.debug if entry.not_renewed else _log.warning
            log("route_not_renewed", topic=sought[0], error=str(error))
            entry.not_renewed = True

    async def _route_or_borrowed(self, sought: tuple[str, str, int], asked: _Question) -> TopicRouteData:
        topic, default_topic, queue_nums = sought
        try:
            return await self.route(topic)
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST or topic == default_topic:
                raise
            try:
                route = default_route(await self._ask_route(default_topic), queue_nums)
            except BrokerError:
                raise error from None  # no automatic creation here: what the user must hear is their own topic's name
        self._keep_answer(self._borrowed, sought, route, asked)
        return route

    async def _learn(self, topic: str, asked: _Question) -> TopicRouteData:
        try:
            route = await self._ask_route(topic)
        except BrokerError as error:
            entry = self._routes.get(topic)
            if error.code == ResponseCode.TOPIC_NOT_EXIST and entry is not None and entry.learnt < asked.number:
                self._refused(entry)
            raise
        if self._keep_answer(self._routes, (topic,), route, asked):
            self._borrowed.pop(topic, None)
        return route

    def _refused(self, entry: _Entry) -> None:
        if entry.refused_s is None:
            entry.refused_s = self.clock()
            self._brokers = None

    async def _ask_route(self, topic: str) -> TopicRouteData:
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        answer = await self.name_servers.request(code, GetRoute(topic, accept_standard_json_only=True).to_fields())
        where = self.name_servers.where
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, code, f"{where} for topic {topic}")
        route = judged(TopicRouteData.decode(answer.body), f"route of topic {topic} from {where}")
        if self.compare is not None:
            await self.compare(route)
        return route

    def _keep_answer(self, table: dict[str, _Entry], sought: Sought, route: TopicRouteData, asked: _Question) -> bool:
        known = table.get(sought[0])
        kept = not asked.forgotten and (known is None or known.learnt < asked.number)
        if kept:
            self._keep(table, sought, route, asked.number, asked.asked_s)
        return kept

    def _keep(
        self, table: dict[str, _Entry], sought: Sought, route: TopicRouteData, learnt: int, checked_s: float
    ) -> None:
        topic = sought[0]
        known = table.get(topic)
        table[topic] = _Entry(sought, route, learnt, checked_s, known.used_s if known is not None else self.clock())
        if len(table) > ROUTES_MAX:
            del table[min(table, key=lambda name: table[name].used_s)]
        if known is None or known.route != route:
            self._brokers = None
        elif self._brokers is not None:
            self._brokers.add(route)  # the newest that is known of its brokers

    def _table(self) -> BrokerTable:
        if self._brokers is None:
            entries = [*self._routes.values(), *self._borrowed.values()]
            entries.sort(key=lambda entry: (entry.refused_s is None, entry.learnt))
            self._brokers = BrokerTable(entry.route for entry in entries)
        return self._brokers


def _nobody_knew(error: RocketcrewError) -> bool:
    """Whether no name server could say: none answered, or those that did were not ready."""
    return isinstance(error, UnreachableError) or (isinstance(error, BrokerError) and error.code in NOT_READY)
