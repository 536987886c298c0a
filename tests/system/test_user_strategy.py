"""A user's own allocation strategy in its process: what it answers, and that nothing it does gets further than an error."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.machine_rooms import AllocationError
from rocketcrew.supervisor.member.user_strategy import UserStrategy, strategy_process

MEMBERS = ["b", "a"]
AS_JSON = {"format": "json", "level": "info", "file": "", "group": "g"}


@pytest.fixture(autouse=True)
def in_this_folder() -> Iterator[None]:
    before = os.getcwd()
    os.chdir(Path(__file__).parent)
    yield
    os.chdir(before)


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("t", "b", number) for number in range(count)]


def strategy_of(path: str, client_id: str, **more: float) -> UserStrategy:
    return UserStrategy(path, "g", client_id, strategy_process(path, AS_JSON), **more)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 240))


def test_it_is_asked_with_sorted_lists_and_answers_with_its_queues() -> None:
    async def ask() -> None:
        strategy = strategy_of("strategies:backwards", "b")
        await strategy.start()
        try:
            assert await strategy.allocate(queues(4)[::-1], MEMBERS) == [queues(4)[2], queues(4)[0]]
            assert await strategy.allocate(queues(4), ["a"]) == []
        finally:
            await strategy.kill()

    run(ask())


def test_whatever_it_does_is_an_error_of_that_round() -> None:
    async def ask() -> None:
        strategy = strategy_of("strategies:moody", "a")
        await strategy.start()
        try:
            for count, text in ((1, "no mood"), (2, "SystemExit"), (3, "none of the queues"), (4, "returned int")):
                with pytest.raises(AllocationError, match=text):
                    await strategy.allocate(queues(count), MEMBERS)
            assert await strategy.allocate(queues(6), MEMBERS) == queues(6)
            process = strategy.process.child
            assert process is not None
            process.kill()
            await process.wait()
            assert await strategy.allocate(queues(6), MEMBERS) == queues(6), "a new process"
        finally:
            await strategy.kill()

    run(ask())


def test_one_that_hangs_is_killed_and_asked_anew() -> None:
    async def ask() -> None:
        # Time enough for the new process, which only has to answer, on a machine that does other things.
        strategy = strategy_of("strategies:moody", "a", answer_timeout_s=3.0)
        await strategy.start()
        try:
            with pytest.raises(AllocationError, match="no answer within"):
                await strategy.allocate(queues(5), MEMBERS)
            assert await strategy.allocate(queues(6), MEMBERS) == queues(6)
        finally:
            await strategy.kill()

    run(ask())


@pytest.mark.parametrize(
    ("path", "text"),
    [("strategies:nothing", 'has no function "nothing"'), ("not_there:function", 'cannot find module "not_there"')],
)
def test_one_that_cannot_be_had_is_a_clear_error_at_the_start(path: str, text: str) -> None:
    async def ask() -> None:
        with pytest.raises(UsageError, match=text):
            await strategy_of(path, "a").start()

    run(ask())
