"""Brokers that come and go are told of once each, by whichever question their route was learnt."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from structlog.testing import capture_logs

from rocketcrew.supervisor.member.route_keeper import RouteKeeper

A, B = "10.0.0.1:10911", "10.0.0.2:10911"


class Routes:
    """What a keeper asks of a cluster; `known` are the brokers of the routes in use, `later` those of the next renewal."""

    def __init__(self) -> None:
        self.access = SimpleNamespace(poll_interval_ms=3_600_000)
        self.known = [A, B]
        self.later: list[str] | None = None

    def all_broker_addresses(self) -> list[str]:
        return self.known

    def known_routes(self) -> Any:
        return SimpleNamespace(routes={})

    async def refresh(self) -> set[str]:
        if self.later is not None:
            self.known, self.later = self.later, None
        return set()


async def nothing() -> None:
    """Nobody wants to know."""


def test_a_broker_that_came_by_another_question_is_told_of_too() -> None:
    routes, told = Routes(), list[str]()

    async def scene() -> None:
        keeper = RouteKeeper(
            cast("Any", routes), list, None, changed=lambda: told.append("changed"),
            new_brokers=lambda: told.append("new"), renewed=nothing, run=lambda _: None,
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
