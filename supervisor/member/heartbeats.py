"""Heartbeats: every broker is sent who we are and what we subscribe, at an interval and when something changed.

They go to every address known, masters and slaves, as Java's do (MQClientInstance.sendHeartbeatToAllBroker). A wish for a
heartbeat that comes while a round runs makes one more round after it, not many. Remembered is which brokers have had one on
the open connection: a broker that does not know us yet leaves us out of the group's list.

A new connection gets one at once (as Java's enableHeartbeatChannelEventListener), because a broker forgets us with the old
connection and refuses our pulls until it hears from us.

Subscriptions that brokers must be able to filter by (SQL) are checked with them before the first heartbeat, and again when
they change (MQClientInstance.checkClientInBroker): a broker that cannot would drop them without a word.

The second version of heartbeats, which leaves subscriptions out, is off in Java by default, and not built.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from ...client.cluster import Cluster
from ...client.operations import Operations
from ...remoting.bodies import CheckClientConfig, HeartbeatData, SubscriptionData
from ...remoting.errors import BrokerError, RocketcrewError, UnreachableError
from ...remoting.subscription import EXPRESSION_TAG

UNREGISTER_TIMEOUT_MS = 3_000
SQL_HINT = "enablePropertyFilter=true in broker.conf switches SQL filters on"

log = structlog.get_logger("rocketcrew.member")


class Heartbeats:
    """`data` makes what is sent, anew for each round; `run` starts a task; the interval is in milliseconds."""

    def __init__(
        self, cluster: Cluster, operations: Operations, data: Callable[[], HeartbeatData], interval_ms: int,
        run: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._operations = operations
        self._data = data
        self._interval_s = interval_ms / 1000
        self._timeout_ms = cluster.access.heartbeat_timeout_ms(interval_ms)
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._greeted: set[str] = set()
        """Brokers that have had our heartbeat on the connection that is open."""
        self._greeting: set[str] = set()
        """Brokers that one is on its way to."""
        self.away: frozenset[str] = frozenset()
        """Brokers that the last one could not be sent to, and that nothing has been connected with since."""
        self._timer: asyncio.TimerHandle | None = None
        self._armed = False
        self._running = False
        self._again = False
        self._signed_off = False

    def arm(self) -> None:
        """Send them at the interval from now on, and to every new connection."""
        self._armed = True
        self._timer = self._loop.call_later(self._interval_s, self._due)

    def disarm(self) -> None:
        """No more by themselves."""
        self._armed = False
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self.now()
        self.arm()

    def now(self) -> None:
        """Send a round soon: at once, or after the one that runs."""
        if self._running:
            self._again = True
        else:
            self._running = True
            self._run(self._rounds())

    def subscriptions_changed(self) -> None:
        """Send to every broker soon; a filter that brokers do not know is an error in the log, as we run already."""
        self.now()
        self._run(self._check_logged())

    async def _check_logged(self) -> None:
        try:
            await self.check_filters()
        except RocketcrewError as error:
            log.error("filter_refused", error=str(error))

    async def _rounds(self) -> None:
        try:
            again = True
            while again:
                self._again = False
                with contextlib.suppress(UnreachableError, BrokerError):  # `send` has logged them
                    await self.send()
                again = self._again
        except RocketcrewError as error:
            log.warning("heartbeat_failed", error=str(error))
        finally:
            self._running = False

    async def send(self) -> None:
        """One round, to every address known; one that fails is logged. Raises UnreachableError or BrokerError when all do.

        So a member that no broker lets in (a wrong key) does not start, where Java would log it for ever.
        """
        addresses = self._cluster.all_broker_addresses()
        self.away &= set(addresses)
        data = self._data()
        answers = await asyncio.gather(*(self._greet(address, data) for address in addresses), return_exceptions=True)
        failures = {address: answer for address, answer in zip(addresses, answers, strict=True)
                    if isinstance(answer, BaseException)}  # fmt: skip
        for address, failure in failures.items():
            self._log_failure(address, failure)
        if failures and len(failures) == len(addresses):
            raise next(iter(failures.values()))

    async def _greet(self, address: str, data: HeartbeatData) -> None:
        """Nobody is greeted after the sign-off, also by a look-up that was under way: it would join the group again."""
        if self._signed_off:
            return
        self._greeting.add(address)
        try:
            await self._operations.heartbeat(address, data, timeout_ms=self._timeout_ms)
            self._greeted.add(address)
        except UnreachableError:
            if self._cluster.remoting.connection_of(address) is None:
                self.away |= {address}
            raise
        finally:
            self._greeting.discard(address)

    def connected(self, address: str) -> None:
        """A connection is new: if it leads to a broker, and not made for a heartbeat anyway, it gets one."""
        self.away -= {address}
        if self._armed and address not in self._greeting and address in self._cluster.all_broker_addresses():
            self._run(self._greet_logged(address))

    async def _greet_logged(self, address: str) -> None:
        try:
            await self._greet(address, self._data())
        except RocketcrewError as error:
            self._log_failure(address, error)

    def _log_failure(self, address: str, error: BaseException) -> None:
        log.warning("heartbeat_failed", broker=self._cluster.broker_at(address), address=address, error=str(error))

    def forget(self, address: str) -> None:
        """The connection is gone, and with it what the broker knew of us."""
        self._greeted.discard(address)

    def known_to_any(self) -> bool:
        """Some broker has us in the group."""
        return bool(self._greeted)

    def known_to_all(self) -> bool:
        """Every broker has had one on the connection that is open. Those that are away do not count: it would be tried, and
        waited for, again and again, and they answer no question either."""
        return (self._greeted | self.away).issuperset(self._cluster.all_broker_addresses())

    async def check_filters(self) -> None:
        """All that are subscribed; see check_filter."""
        data = self._data()
        for consumer in data.consumer_data_set:
            for subscription in consumer.subscription_data_set:
                await self.check_filter(data.client_id, consumer.group_name, subscription)

    async def check_filter(self, client_id: str, group: str, subscription: SubscriptionData) -> None:
        """Ask a broker of the topic whether it can filter by the subscription's expression, where that is not by tags.

        Raises RocketcrewError naming topic and expression when it says no; an UnreachableError passes through.
        """
        if subscription.expression_type == EXPRESSION_TAG:
            return
        address = await self._a_broker_of(subscription.topic)
        if address is None:
            return  # as in Java: a topic that does not exist yet is no reason not to start
        try:
            await self._operations.check_client_config(address, CheckClientConfig(client_id, group, subscription))
        except BrokerError as error:
            raise RocketcrewError(
                f"the broker refuses the {subscription.expression_type} filter of topic {subscription.topic}"
                f" ({subscription.sub_string}): {error.remark or error} ({SQL_HINT})"
            ) from error

    async def _a_broker_of(self, topic: str) -> str | None:
        """A random broker of the topic's route, its master where it has one (findBrokerAddrByTopic)."""
        try:
            route = await self._cluster.route(topic)
        except BrokerError:
            return None
        if not route.broker_datas:
            return None
        name = self._cluster.random.choice(route.broker_datas).broker_name
        return self._cluster.broker_address(name, only_this=False)

    async def sign_off(self, client_id: str, group: str, producer_group: str | None = None) -> None:
        """Sign off at every broker, so that the group rebalances at once. Brokers that are away find out alone."""
        self._signed_off = True
        await asyncio.gather(
            *(
                self._operations.unregister(
                    address, client_id, group, producer_group=producer_group, timeout_ms=UNREGISTER_TIMEOUT_MS
                )
                for address in self._cluster.all_broker_addresses()
            ),
            return_exceptions=True,
        )
