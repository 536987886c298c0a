"""A lasting difference in subscriptions is reported once, and withdrawn when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from rocketcrew.client.cluster import Cluster
from rocketcrew.client.operations import Operations
from rocketcrew.remoting.admin_bodies import ClientConnection, ConsumerConnections
from rocketcrew.remoting.bodies import SubscriptionData
from rocketcrew.remoting.errors import UnreachableError
from rocketcrew.supervisor.member.group_watch import MEMBERS_ASKED_MAX, GroupWatch

INTERVAL_MS = 20
OURS = {"orders": SubscriptionData.of("orders", "a", 1)}
OTHER = {"orders": SubscriptionData.of("orders", "b", 2)}
DIFFERS = ["a broker holds for the group: topic orders is filtered there by 'b', by us by 'a'"]


class Brokers:
    """Two brokers: what each says at every look, the last for ever; None: it does not answer."""

    client_id = "us"

    def __init__(self, *says: list[dict[str, SubscriptionData] | None]) -> None:
        self.says = dict(zip("AB", says, strict=False))
        self.asked: list[str] = []

    def all_broker_addresses(self, *, masters_only: bool) -> list[str]:
        assert masters_only
        return list(self.says)

    async def group_on(self, address: str, group: str) -> ConsumerConnections:
        assert group == "g"
        self.asked.append(address)
        answers = self.says[address]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            raise UnreachableError(address, "away")
        return ConsumerConnections(subscription_table=answer)


def told(brokers: Brokers, looks: int) -> list[list[str]]:
    """What is in the status after each of so many looks in a row, with the second looks that they ask for."""

    async def look() -> list[list[str]]:
        later: asyncio.Queue[Coroutine[Any, Any, None]] = asyncio.Queue()
        cluster, operations = cast("Cluster", brokers), cast("Operations", brokers)
        watch = GroupWatch(cluster, operations, OURS, "g", INTERVAL_MS, later.put_nowait)
        found: list[list[str]] = []
        for _ in range(looks):
            await watch.look()
            if watch.second_look_due:
                await (await later.get())
            found.append(watch.mismatches)
        return found

    return asyncio.run(look())


def test_what_is_gone_at_the_second_look_was_never_told() -> None:
    brokers = Brokers([OTHER, OURS])
    assert told(brokers, 2) == [[], []]
    assert brokers.asked == ["A", "A", "A"]


def test_what_lasts_is_told_and_taken_back() -> None:
    brokers = Brokers([OTHER, OTHER, OTHER, OURS])
    assert told(brokers, 3) == [DIFFERS, DIFFERS, []]
    assert brokers.asked == ["A"] * 4


def test_brokers_take_turns_and_the_second_look_is_at_the_same() -> None:
    brokers = Brokers([OURS], [OTHER])
    assert told(brokers, 2) == [[], DIFFERS]
    assert brokers.asked == ["A", "B", "B"]


def test_one_that_does_not_answer_says_nothing() -> None:
    brokers = Brokers([None], [OTHER, None, OTHER])
    assert told(brokers, 3) == [[], [], []]
    assert told(Brokers([None], [OTHER]), 4) == [[], DIFFERS, DIFFERS, DIFFERS]


class ManyMembers(Brokers):
    """So many others; the broker shows our own subscriptions, as the newest, and `differing` members have others."""

    def __init__(self, count: int) -> None:
        super().__init__([OURS])
        self.members = [f"m{number:02}" for number in range(count)]
        self.differing: set[str] = set()

    async def group_on(self, address: str, group: str) -> ConsumerConnections:
        found = await super().group_on(address, group)
        return replace(found, connection_set=tuple(map(ClientConnection, (*self.members, "us"))))

    async def running_info(self, _address: str, _group: str, client_id: str) -> Any:
        wanted = OTHER if client_id in self.differing else OURS
        return SimpleNamespace(subscription_set=tuple(wanted.values()))


def test_a_difference_that_is_mended_is_taken_back_however_many_members_there_are() -> None:
    """Only the first sixteen were asked again, and the twentieth was reported for ever."""
    brokers = ManyMembers(3 * MEMBERS_ASKED_MAX)
    last = brokers.members[-1]
    brokers.differing.add(last)

    async def scene() -> None:
        later: asyncio.Queue[Coroutine[Any, Any, None]] = asyncio.Queue()
        watch = GroupWatch(
            cast("Cluster", brokers), cast("Operations", brokers), OURS, "g", INTERVAL_MS, later.put_nowait
        )

        async def look() -> None:
            await watch.look()
            if watch.second_look_due:
                await (await later.get())

        for _ in range(3):
            await look()
        assert watch.mismatches == [f"member {last}: topic orders is filtered there by 'b', by us by 'a'"]
        brokers.differing.clear()
        await look()
        assert watch.mismatches == []

    asyncio.run(scene())
