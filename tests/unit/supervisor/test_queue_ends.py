"""The ends of queues that are not pulled: a lag that nobody pulls is a lag."""

from __future__ import annotations

import asyncio

from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.remoting.errors import UnreachableError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core.holding import holding
from rocketcrew.supervisor.core.pulling import PullResult
from rocketcrew.supervisor.core.state import OPERATOR
from rocketcrew.supervisor.member.queue_ends import LOOK_S, TOGETHER_MAX, QueueEnds

from .conftest import Bench


class Asked:
    """A broker that says 50, or does not answer."""

    def __init__(self, bench: Bench, *, answers: bool = True) -> None:
        self._answers = answers
        self.mqs: list[MessageQueue] = []
        self.together_max = self._together = 0
        self._bench = bench

    async def max_offset(self, mq: MessageQueue) -> int:
        self.mqs.append(mq)
        self._together += 1
        self.together_max = max(self.together_max, self._together)
        await asyncio.sleep(0)
        self._together -= 1
        if not self._answers:
            raise UnreachableError("127.0.0.1:1", "nobody answers")
        return 50

    def look(self) -> None:
        """As the timer does."""
        bench = self._bench

        async def run() -> None:
            tasks: list[asyncio.Task[None]] = []
            ends = QueueEnds(
                bench.core, self.max_offset, lambda: bench.now,
                lambda work: tasks.append(asyncio.get_running_loop().create_task(work)),
            )  # fmt: skip
            ends._look()
            ends._look()
            ends.disarm()
            assert len(tasks) <= 1, "a second question waits for the first"
            await asyncio.gather(*tasks)

        asyncio.run(run())


def test_a_queue_that_a_pause_keeps_from_being_pulled_is_asked_for_its_end(bench: Bench) -> None:
    asked = Asked(bench)
    (handle,) = bench.open(0)
    bench.take(act.Pull)
    bench.pass_ms(60_000)
    asked.look()
    assert asked.mqs == [], "a pull is out: its answer will say it"
    bench.core.pulling.pause(OPERATOR)
    bench.answer(handle, ResponseCode.PULL_NOT_FOUND, 0)
    asked.look()
    assert len(asked.mqs) == 1
    (found,) = holding(bench.core.state)
    assert (found["lag"], found["holds"]) == (50, "pull")


def test_a_queue_that_was_pulled_just_now_is_not_asked_for(bench: Bench) -> None:
    asked = Asked(bench)
    (handle,) = bench.open(0)
    bench.take(act.Pull)
    bench.core.pulling.pause(OPERATOR)
    bench.answer(handle, ResponseCode.PULL_NOT_FOUND, 0)
    asked.look()
    assert asked.mqs == []
    bench.pass_ms(LOOK_S * 1000 + 1)
    asked.look()
    assert len(asked.mqs) == 1


def test_an_end_never_goes_back_and_one_of_a_queue_that_has_left_is_dropped(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.take(act.Pull)
    bench.core.pulling.pulled(handle, PullResult(ResponseCode.PULL_NOT_FOUND, 0, end_offset=70), bench.now)
    bench.core.pulling.end_seen(handle, 60)
    bench.core.pulling.end_seen(handle + 1, 90)
    assert holding(bench.core.state)[0]["lag"] == 70


def test_few_questions_are_out_together(bench: Bench) -> None:
    asked = Asked(bench)
    bench.core.pulling.pause(OPERATOR)
    bench.open(*range(3 * TOGETHER_MAX))
    bench.pass_ms(60_000)
    asked.look()
    assert len(asked.mqs) == 3 * TOGETHER_MAX
    assert asked.together_max == TOGETHER_MAX


def test_of_a_broker_that_does_not_answer_no_more_is_asked(bench: Bench) -> None:
    asked = Asked(bench, answers=False)
    bench.core.pulling.pause(OPERATOR)
    bench.open(*range(3 * TOGETHER_MAX))
    bench.pass_ms(60_000)
    asked.look()
    assert len(asked.mqs) == TOGETHER_MAX
