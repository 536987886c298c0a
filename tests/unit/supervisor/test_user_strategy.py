"""The line of questions to a user's allocation strategy, whose process answers when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.machine_rooms import AllocationError
from rocketcrew.supervisor.member.user_process import UserProcess
from rocketcrew.supervisor.member.user_strategy import UserStrategy

TOPICS = [f"t{number}" for number in range(10)]


class Slow(UserProcess):
    """Has all queues for the member that asks, when it is let go on."""

    def __init__(self) -> None:
        super().__init__("slow", "", [], log={})
        self.questions: list[Any] = []
        self.error = ""
        self._go_on = asyncio.Semaphore(0)

    async def ask(self, question: Any, timeout_s: float) -> dict[str, Any]:
        del timeout_s
        self.questions.append(question)
        await self._go_on.acquire()
        return {"error": self.error} if self.error else {"queues": list(range(len(question["queues"])))}

    async def answer(self, count: int) -> None:
        """So many questions."""
        for _ in range(count):
            self._go_on.release()
            await settle()


async def settle() -> None:
    """All that can go on has done so."""
    for _ in range(20):
        await asyncio.sleep(0)


def queues(topic: str, count: int) -> list[MessageQueue]:
    return [MessageQueue(topic, "b", number) for number in range(count)]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def test_what_is_asked_while_it_is_busy_is_one_question_a_topic_of_what_is_known_last() -> None:
    async def ask() -> None:
        slow = Slow()
        strategy = UserStrategy("slow:one", "g", "a", slow)
        asked: list[asyncio.Task[list[MessageQueue]]] = []
        for count in range(1, 31):
            asked += [asyncio.create_task(strategy.allocate(queues(topic, count), ["a"])) for topic in TOPICS]
            await settle()
        assert len(slow.questions) == 1
        await slow.answer(1 + len(TOPICS))
        first, *others = await asyncio.gather(*asked)
        assert len(slow.questions) == 1 + len(TOPICS), "the one under way, and one for each topic"
        assert first == queues("t0", 1), "what was known when it was asked"
        assert all(found == queues(found[0].topic, 30) for found in others)
        later = asyncio.create_task(strategy.allocate(queues("t3", 30), ["a"]))
        await settle()
        assert len(slow.questions) == 2 + len(TOPICS), "what is asked after the answer is another question"
        await slow.answer(1)
        assert await later == queues("t3", 30)

    run(ask())


def test_a_failure_is_one_of_all_that_it_answers() -> None:
    async def ask() -> None:
        slow = Slow()
        strategy = UserStrategy("slow:one", "g", "a", slow)
        slow.error = "no mood"
        asked = [asyncio.create_task(strategy.allocate(queues("t", count), ["a"])) for count in (1, 2, 3)]
        await settle()
        await slow.answer(2)
        assert len(slow.questions) == 2
        for task in asked:
            with pytest.raises(AllocationError, match="slow:one: no mood"):
                await task

    run(ask())


def test_one_that_was_given_up_leaves_the_line_to_the_others() -> None:
    async def ask() -> None:
        slow = Slow()
        strategy = UserStrategy("slow:one", "g", "a", slow)
        asked = [asyncio.create_task(strategy.allocate(queues("t", count), ["a"])) for count in (1, 2)]
        await settle()
        asked[0].cancel()
        await settle()
        await slow.answer(1)
        assert await asked[1] == queues("t", 2)

    run(ask())
