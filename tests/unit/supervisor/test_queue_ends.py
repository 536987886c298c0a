"""The ends of queues that are not pulled: a lag that nobody pulls is a lag."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.remoting.errors import BrokerError, RocketcrewError, UnreachableError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.holding import holding
from rocketcrew.supervisor.core.pulling import PullResult
from rocketcrew.supervisor.core.state import OPERATOR
from rocketcrew.supervisor.member.queue_ends import LOOK_S, TOGETHER_MAX, QueueEnds

from .conftest import Bench

TURNS = 1_000
"""Of the loop: more than all questions of a look need."""


class Asked:
    """Brokers that say 50; `says` has errors by broker and queue number, or None for one that never answers."""

    def __init__(
        self, bench: Bench, says: Mapping[tuple[str, int], RocketcrewError | None] = MappingProxyType({})
    ) -> None:
        self._says = says
        self.mqs: list[MessageQueue] = []
        self.together_max = self._together = 0
        self._bench = bench

    async def max_offset(self, mq: MessageQueue) -> int:
        self.mqs.append(mq)
        self._together += 1
        self.together_max = max(self.together_max, self._together)
        await asyncio.sleep(0)
        self._together -= 1
        error = self._says.get((mq.broker_name, mq.queue_id), ...)
        if error is None:
            await asyncio.Event().wait()
        if isinstance(error, RocketcrewError):
            raise error
        return 50

    def look(self, looks: int = 2) -> None:
        """As the timer does, more than once."""
        bench = self._bench

        async def run() -> None:
            tasks: list[asyncio.Task[None]] = []
            ends = QueueEnds(
                bench.core, self.max_offset, lambda: bench.now,
                lambda work: tasks.append(asyncio.get_running_loop().create_task(work)),
            )  # fmt: skip
            for _ in range(looks):
                ends._look()
            ends.disarm()
            for _ in range(TURNS):
                await asyncio.sleep(0)
            for task in tasks:
                task.result() if task.done() else task.cancel()

        asyncio.run(run())

    def numbers(self) -> list[int]:
        return sorted(mq.queue_id for mq in self.mqs)


def pulled_at_its_end(bench: Bench, handle: int, end: int = 0) -> None:
    result = PullResult(ResponseCode.PULL_NOT_FOUND, end, end_offset=end)
    bench.core.handle(ev.Pulled(handle, result), bench.now)


def test_a_queue_that_a_pause_keeps_from_being_pulled_is_asked_for_its_end(bench: Bench) -> None:
    asked = Asked(bench)
    (handle,) = bench.open(0)
    bench.take(act.Pull)
    bench.pass_ms(60_000)
    asked.look()
    assert asked.mqs == [], "a pull is out: its answer will say it"
    bench.core.pulling.pause(OPERATOR)
    pulled_at_its_end(bench, handle)
    bench.pass_ms(LOOK_S * 1000 + 1)
    asked.look()
    assert len(asked.mqs) == 1
    (found,) = holding(bench.core.state)
    assert (found["lag"], found["holds"]) == (50, "pull")


def test_a_queue_whose_end_was_said_just_now_is_not_asked_for(bench: Bench) -> None:
    asked = Asked(bench)
    (handle,) = bench.open(0)
    bench.take(act.Pull)
    bench.core.pulling.pause(OPERATOR)
    pulled_at_its_end(bench, handle)
    for looks in (0, 1, 1):
        asked.look()
        assert len(asked.mqs) == looks
        if not looks:
            bench.pass_ms(LOOK_S * 1000 + 1)


def test_a_queue_whose_pulls_are_refused_every_second_is_asked_for(bench: Bench) -> None:
    asked = Asked(bench)
    (handle,) = bench.open(0)
    for _ in range(8):
        bench.one(act.Pull)
        bench.answer(handle, ResponseCode.NO_PERMISSION, 0)
        bench.pass_ms(bench.config.pull_delay_on_error_ms - 1)
        asked.look()
        bench.pass_ms(1)
    assert len(asked.mqs) == 2, "every five seconds, as others"


def test_an_end_never_goes_back_and_one_of_a_queue_that_has_left_is_dropped(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.take(act.Pull)
    pulled_at_its_end(bench, handle, 70)
    bench.core.pulling.end_seen(handle, 60, bench.now)
    bench.core.pulling.end_seen(handle + 1, 90, bench.now)
    assert holding(bench.core.state)[0]["lag"] == 70


def paused(bench: Bench, queues: int, *brokers: str) -> None:
    bench.core.pulling.pause(OPERATOR)
    mqs = [MessageQueue(bench.queue().topic, broker, number) for broker in brokers for number in range(queues)]
    bench.core.handle(ev.Members(bench.queue().topic, mqs, (bench.core.state.config.client_id,)), bench.now)
    for fetch in bench.take(act.FetchOffset):
        bench.core.handle(ev.Opened(fetch.handle, 0), bench.now)
    bench.pass_ms(60_000)


def test_few_questions_are_out_together(bench: Bench) -> None:
    asked = Asked(bench)
    paused(bench, 3 * TOGETHER_MAX, "b")
    asked.look()
    assert asked.numbers() == list(range(3 * TOGETHER_MAX))
    assert asked.together_max == TOGETHER_MAX


def test_a_broker_that_does_not_answer_is_asked_no_more_and_holds_up_no_other(bench: Bench) -> None:
    dead: dict[tuple[str, int], RocketcrewError | None] = {
        ("away", 3): UnreachableError("127.0.0.1:1", "nobody answers"), ("hung", 0): None,
    }  # fmt: skip
    asked = Asked(bench, dead)
    paused(bench, 3 * TOGETHER_MAX, "away", "hung", "lives")
    asked.look(looks=3)
    assert Counter(mq.broker_name for mq in asked.mqs) == {
        "away": TOGETHER_MAX, "hung": TOGETHER_MAX, "lives": 3 * TOGETHER_MAX,
    }  # fmt: skip


def test_a_queue_that_its_broker_refuses_hides_no_other(bench: Bench) -> None:
    asked = Asked(bench, {("b", 0): BrokerError(ResponseCode.NO_PERMISSION, "no", "GET_MAX_OFFSET")})
    paused(bench, 3 * TOGETHER_MAX, "b")
    asked.look()
    assert asked.numbers() == list(range(3 * TOGETHER_MAX))
    assert Counter(found["lag"] for found in holding(bench.core.state))[50] == 3 * TOGETHER_MAX - 1
