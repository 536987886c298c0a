"""Connections to brokers that are lost, and brokers that are elsewhere by now: their queues are in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from rocketcrew.remoting.errors import UnreachableError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.actions import UnlockQueues
from rocketcrew.supervisor.core.events import BrokerLost, Event
from rocketcrew.supervisor.member.queue_locks import QueueLocks


class World:
    """The routes, and the core's ears."""

    def __init__(self) -> None:
        self.at = {"a": "one:1", "b": "two:1"}
        self.lost: list[str] = []
        nobody = cast("Any", None)
        self.locks = QueueLocks(cast("Any", self), nobody, cast("Any", self), "g", lambda: 0.0, lambda: None, nobody)
        for address in self.at.values():
            self.locks.connected(address)

    def broker_names(self) -> list[str]:
        return list(self.at)

    def broker_address(self, name: str) -> str | None:
        return self.at.get(name)

    def handle(self, event: Event, _now: float) -> None:
        assert isinstance(event, BrokerLost)
        self.lost.append(event.broker_name)


def test_a_lost_connection_concerns_the_broker_that_it_led_to() -> None:
    world = World()
    assert world.lost == []
    world.locks.connection_lost("one:1")
    world.locks.connection_lost("slave:1")
    assert world.lost == ["a"]
    world.locks.connected("one:1")
    assert world.lost == ["a"]


def test_a_connection_that_ends_after_the_route_names_another_address_counts() -> None:
    """It was compared with the new address alone: nobody doubted, and our offset went over another member's."""
    world = World()
    world.at["a"] = "one:2"
    world.locks.connection_lost("one:1")
    assert world.lost == ["a"]


def test_a_broker_that_is_elsewhere_knows_us_no_more_though_the_old_connection_stays() -> None:
    world = World()
    world.at["a"] = "one:2"
    world.locks.connected("one:2")
    assert world.lost == ["a"]
    world.locks.connection_lost("one:1")
    assert world.lost == ["a"], "nothing of ours was there any more"
    world.locks.connection_lost("one:2")
    assert world.lost == ["a", "a"]


def test_a_route_that_changes_to_and_fro_between_two_connections_is_no_loss() -> None:
    world = World()
    for address in ("one:2", "one:1"):
        world.at["a"] = address
        if address == "one:2":
            world.locks.connected(address)
    assert world.lost == ["a"], "the first time"
    world.locks.connection_lost("one:2")
    assert world.lost == ["a"]
    world.at["a"] = "one:2"
    world.locks.connected("one:2")
    assert world.lost == ["a", "a"], "a new connection: it may have restarted"


def test_a_slave_that_became_master_knows_us_once_the_loss_is_told() -> None:
    world = World()
    world.locks.connected("slave:1")
    world.at["a"] = "slave:1"
    world.locks.connection_lost("one:1")
    assert world.lost == ["a"]
    world.locks.connected("one:1")  # it is a slave by now
    world.locks.connection_lost("one:1")
    assert world.lost == ["a"]
    world.locks.connection_lost("slave:1")
    assert world.lost == ["a", "a"]


def test_a_planned_switch_of_roles_puts_the_locks_in_doubt() -> None:
    """Heartbeats go to slaves, too: no connection was lost or made, and the new master had none of our locks."""
    world = World()
    world.locks.connected("slave:1")
    world.locks.routes_changed()
    assert world.lost == []
    world.at["a"] = "slave:1"
    world.locks.routes_changed()
    assert world.lost == ["a"]
    world.locks.routes_changed()
    del world.at["a"]
    world.locks.routes_changed()
    assert world.lost == ["a"]
    world.at["a"] = "one:2"  # not connected yet: `connected` will tell
    world.locks.routes_changed()
    assert world.lost == ["a"]


def test_a_master_that_we_were_connected_to_as_a_slave_counts_when_it_is_lost() -> None:
    world = World()
    world.locks.connected("slave:1")
    world.at["a"] = "slave:1"
    world.locks.connection_lost("slave:1")
    assert world.lost == ["a"]


def test_a_broker_that_no_route_names_is_lost_as_well() -> None:
    world = World()
    del world.at["a"]
    world.locks.connection_lost("one:1")
    assert world.lost == ["a"]


class Brokers:
    """The first is away, and is not given up before another has heard."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()
        self.unlocked: list[tuple[str, Sequence[MessageQueue]]] = []
        self.tries: list[str] = []

    async def address_of(self, mq: MessageQueue) -> str:
        return mq.broker_name

    async def unlock_batch(self, address: str, _group: str, mqs: Sequence[MessageQueue], *, oneway: bool) -> None:
        assert oneway
        self.tries.append(address)
        if address == "a":
            await self.heard.wait()
            raise UnreachableError(address, "gone")
        self.unlocked.append((address, mqs))
        self.heard.set()


def test_a_broker_does_not_hear_late_what_is_given_up_as_another_is_away() -> None:
    """It heard it behind the question for the lock that it gave again, and another member could lock the queue beside us."""

    async def give_up() -> None:
        brokers, nobody = Brokers(), cast("Any", None)
        locks = QueueLocks(cast("Any", brokers), cast("Any", brokers), nobody, "g", lambda: 0.0, lambda: None, nobody)
        a, b = (tuple(MessageQueue("orders", name, number) for number in range(2)) for name in "ab")
        await asyncio.wait_for(locks.unlock(UnlockQueues((*a, *b))), 10)
        assert (brokers.tries, brokers.unlocked) == (["a", "b"], [("b", list(b))])

    asyncio.run(give_up())
