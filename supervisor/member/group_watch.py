"""Does the whole group subscribe the same? A broker takes the newest subscription that any member sends for the truth of all
(ConsumerGroupInfo.updateSubscription), so where members differ, messages vanish: filtered for one by what another wants.

Nothing in RocketMQ reports it to a running member. So, every second heartbeat, just before our own goes out (which would
cover up what another one has changed), one broker is asked what it holds for the group (GET_CONSUMER_CONNECTION_LIST, as
`mqadmin consumerConnection` does); and when the members have changed, the others themselves (GET_CONSUMER_RUNNING_INFO, as
`mqadmin consumerStatus` does), because the broker shows only the newest. A difference is one warning, and is in the
status until it is gone. It is reported when a second look at the same broker, a moment later, finds one too: while somebody
changes his subscriptions, brokers and members know them at different times. A broker that refuses to answer is not asked
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from itertools import count
from typing import Any

import structlog

from ...client.cluster import Cluster
from ...client.operations import Operations
from ...remoting.bodies import SubscriptionData
from ...remoting.codes import ResponseCode
from ...remoting.errors import BrokerError, RocketcrewError
from ..core.subscriptions import differences

MEMBERS_ASKED_MAX = 16
BEFORE_HEARTBEAT = 0.9
"""Of the interval: when the broker is asked, so that it is shortly before a heartbeat."""
SECOND_LOOK = 0.05
"""Of the interval: how long after the first; still before the heartbeat."""
LOOK_AGAIN_S = 5.0
"""At least between two looks that refused pulls ask for."""
UNKNOWN_TO_BROKER = frozenset({ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST})
REFUSALS = frozenset({ResponseCode.NO_PERMISSION, ResponseCode.REQUEST_CODE_NOT_SUPPORTED})

log = structlog.get_logger("rocketcrew.member")


class GroupWatch:
    """`subscriptions` are ours, looked at anew each time; `interval_ms` is that of heartbeats; `run` starts a task."""

    def __init__(
        self, cluster: Cluster, operations: Operations, subscriptions: Mapping[str, SubscriptionData], group: str,
        interval_ms: int, run: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._operations = operations
        self._subscriptions = subscriptions
        self._group = group
        self._interval_s = interval_ms / 1000
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._second_look: asyncio.TimerHandle | None = None
        self._turn = 0
        self._questions = count()
        self._looked_at = float("-inf")
        self._members: frozenset[str] = frozenset()
        self._theirs: dict[str, list[str]] = {}
        """Client id -> how it differs from us."""
        self._asked: dict[str, int] = {}
        """Client id -> when it was last asked, in questions."""
        self.mismatches: list[str] = []
        """What differs now, in words."""

    @property
    def second_look_due(self) -> bool:
        """Whether something differed at the last look, and is looked at once more."""
        return self._second_look is not None

    def arm(self) -> None:
        """Look from now on; called together with the heartbeats' own `arm`."""
        self._timer = self._loop.call_later(self._interval_s * BEFORE_HEARTBEAT, self._due)

    def disarm(self) -> None:
        """No more."""
        for timer in (self._timer, self._second_look):
            if timer is not None:
                timer.cancel()

    def _due(self) -> None:
        self._timer = self._loop.call_later(self._interval_s * 2, self._due)
        self._run_look()

    def changed(self) -> None:
        """Our own subscriptions have changed: the broker will show ours as the newest, so the members are asked anew."""
        self._members = frozenset()

    def pull_refused(self, code: int) -> None:
        """A broker may refuse a pull because it does not know our subscription: somebody sent it another."""
        if code in UNKNOWN_TO_BROKER and self._loop.time() - self._looked_at >= LOOK_AGAIN_S:
            self._looked_at = self._loop.time()
            self._run_look()

    async def look(self) -> None:
        """Ask one broker, and the members that are new."""
        addresses = self._cluster.all_broker_addresses(masters_only=True)
        if not addresses:
            return
        found = await self._found(addresses)
        if found and not self.mismatches and not self.second_look_due:
            self._second_look = self._loop.call_later(self._interval_s * SECOND_LOOK, self._run_look)
            return
        self._second_look = None
        self._turn += 1
        if found is not None:
            self._tell(found)

    async def _found(self, addresses: list[str]) -> list[str] | None:
        """What differs; None when the broker does not say."""
        try:
            there = await self._operations.group_on(addresses[self._turn % len(addresses)], self._group)
        except RocketcrewError as error:
            if isinstance(error, BrokerError) and error.code in REFUSALS:
                log.info("subscriptions_not_compared", error=str(error))
                self.disarm()
            return None
        if there is None:
            return None
        reported = [
            f"a broker holds for the group: {text}"
            for text in differences(self._subscriptions, there.subscription_table)
        ]
        members = frozenset(entry.client_id for entry in there.connection_set) - {self._cluster.client_id}
        await self._ask_members(addresses, members, again=bool(reported))
        theirs = [
            f"member {client_id}: {text}" for client_id in sorted(self._theirs) for text in self._theirs[client_id]
        ]
        return theirs or reported

    def _run_look(self) -> None:
        self._run(self.look())

    async def _ask_members(self, addresses: list[str], members: frozenset[str], *, again: bool) -> None:
        """Those who came since the last look; all of them while something differs. Of many some at a time: first those that
        differ, which may have been mended, and then those that were asked longest ago."""
        for gone in self._theirs.keys() - members:
            del self._theirs[gone]
        for gone in self._asked.keys() - members:
            del self._asked[gone]
        new = members if again or self._theirs else members - self._members
        known = set(members - new)
        turns = sorted(new, key=lambda each: (each not in self._theirs, self._asked.get(each, -1), each))
        for client_id in turns[:MEMBERS_ASKED_MAX]:
            self._asked[client_id] = next(self._questions)
            try:
                info = await self._operations.running_info(addresses[0], self._group, client_id)
            except RocketcrewError as error:
                log.debug("member_not_compared", client_id=client_id, error=str(error))
                continue
            known.add(client_id)
            wanted = {data.topic: data for data in info.subscription_set}
            found = differences(self._subscriptions, wanted)
            if found:
                self._theirs[client_id] = found
            else:
                self._theirs.pop(client_id, None)
        self._members = frozenset(known)

    def _tell(self, found: list[str]) -> None:
        if found == self.mismatches:
            return
        self.mismatches = found
        if found:
            log.warning("subscription_mismatch", group=self._group, found=found,
                        reason="the broker filters by the newest subscription for the whole group: messages get lost",
                        hint="give all members of the group the same topics and filters")  # fmt: skip
        else:
            log.info("subscriptions_agree", group=self._group)
