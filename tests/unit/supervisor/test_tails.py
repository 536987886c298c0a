"""Which of a queue's records another broker has replaced: a failover to a replica that lagged."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, cast

import pytest
from structlog.testing import capture_logs

from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import BrokerError, RocketcrewError, TimedOutError, UnreachableError
from rocketcrew.remoting.headers import PullRequest, PullResponse
from rocketcrew.remoting.names import TOOLS_GROUP
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.source.searching import WasResetError
from rocketcrew.supervisor.member.tails import LOOKS_AT_ONCE, LOOKS_MAX, PULLS_A_LOOK, TRUSTED_S, Tails

from .conftest import TOPIC, record

if TYPE_CHECKING:
    from rocketcrew.client.operations import Operations

MQ = MessageQueue(TOPIC, "b", 0)
OLD, NEW = "old:1", "new:1"
PULL = 32


class Replicas:
    """Brokers of one queue, by address: when their records were stored, from offset 0 on."""

    def __init__(self, old: Sequence[int], new: Sequence[int], deleted_to: int = 0) -> None:
        self.logs: Mapping[str, Sequence[int]] = {OLD: old, NEW: new}
        self.deleted_to = deleted_to
        self.refused: set[str] = set()
        self.pulls = self.now = self.at_once = 0
        self.steps = 0
        self.fails: Mapping[int, Exception] = {}
        """What comes in place of an answer, by step: pulls and searches, from 0 on."""
        self.damaged: set[int] = set()
        self.reset_to: int | None = None

    async def step(self) -> None:
        self.now += 1
        self.at_once = max(self.now, self.at_once)
        await asyncio.sleep(0)
        self.now -= 1
        self.steps += 1
        if (error := self.fails.get(self.steps - 1)) is not None:
            raise error

    async def pull(self, address: str, header: PullRequest, **_: object) -> Command:
        self.pulls += 1
        try:
            await self.step()
        except BrokerError as error:
            return Command(error.code, remark=error.remark)
        if header.consumer_group in self.refused:
            return Command(ResponseCode.NO_PERMISSION, remark="no")
        if header.consumer_group != TOOLS_GROUP and self.reset_to is not None:
            reset, self.reset_to = PullResponse(0, self.reset_to, 0, len(self.logs[address])), None
            return Command(ResponseCode.PULL_OFFSET_MOVED, reset.to_fields(), remark="OFFSET_RESET")
        log, start = self.logs[address], header.queue_offset
        if not self.deleted_to <= start < len(log):
            position = PullResponse(0, max(self.deleted_to, min(start, len(log))), self.deleted_to, len(log))
            return Command(ResponseCode.PULL_OFFSET_MOVED, position.to_fields())
        stop = min(start + header.max_msg_nums, len(log))
        body = b"".join(record(offset, stored_ms=log[offset]) for offset in range(start, stop))
        if start in self.damaged:
            body = b"\0\0\0\x10" + body[4:]
        return Command(ResponseCode.SUCCESS, PullResponse(0, stop, 0, len(log)).to_fields(), body=body)

    async def search_offset(self, _mq: MessageQueue, time_ms: int, *, address: str) -> int:
        """The closest message, as 4.9 has it."""
        await self.step()
        log = self.logs[address]
        return min(range(len(log)), key=lambda offset: abs(log[offset] - time_ms))


def tails(replicas: Replicas, read_to: int, body: int = PULL) -> Tails:
    """After the old broker's queue was pulled up to there."""
    found, log = Tails(cast("Operations", replicas), "g"), replicas.logs[OLD]
    assert not in_doubt(found, OLD)
    for start in range(0, read_to, body):
        last = min(start + body, read_to) - 1
        found.note(MQ, start, (last, log[last]))
    assert not in_doubt(found, OLD)
    return found


def in_doubt(found: Tails, address: str = NEW, now: float = 0.0) -> bool:
    return found.in_doubt(MQ, address, now)


def replaced_from(found: Tails, asked: int, address: str = NEW) -> int | None:
    assert in_doubt(found, address)
    return asyncio.run(found.replaced_from(MQ, address, asked, 0.0))


def went_back_to(replicas: Replicas, error: Exception, step: int, *, lasts: bool) -> int | None:
    """After as many looks as that takes, when this step of the first one fails, or of each; None: it is pulled in doubt."""
    found = tails(replicas, 400)
    replicas.fails = {step: error}
    for _ in range(LOOKS_MAX):
        if lasts:
            replicas.steps = 0
        try:
            return replaced_from(found, 400)
        except RocketcrewError:
            continue
    raise AssertionError("it was never pulled again")


def times(count: int, begin_ms: int = 0) -> list[int]:
    return [begin_ms + 10 * n for n in range(1, count + 1)]


def test_a_queue_that_is_the_same_at_another_address_is_asked_for_once() -> None:
    replicas = Replicas(times(400), times(700))
    found = tails(replicas, 400)
    assert replaced_from(found, 400) is None
    assert not in_doubt(found)
    assert replicas.pulls == 1


@pytest.mark.parametrize("cut", [0, 1, 31, 32, 33, 200, 398, 399])
def test_the_first_record_that_was_replaced_is_found_to_the_offset(cut: int) -> None:
    replicas = Replicas(times(400), times(cut) + times(700, 20_000))
    found = tails(replicas, 400)
    assert replaced_from(found, 400) == cut
    assert in_doubt(found), "until it is read from there"
    assert replaced_from(found, cut) is None
    found.note(MQ, cut, (cut + 31, 20_320))
    assert not in_doubt(found)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_the_clock_of_the_new_broker_nothing_is_passed_and_little_comes_again(seed: int) -> None:
    dice = Random(seed)
    read_to, body = dice.randrange(1, 2_000), dice.choice((1, 7, 32))
    cut = dice.randrange(read_to)
    replicas = Replicas(times(read_to), times(cut) + times(2_000, dice.choice((-50_000, 20_000))))
    back_to = replaced_from(tails(replicas, read_to, body), read_to)
    assert back_to is not None
    assert read_to - 4 * (read_to - cut + body) <= back_to <= cut
    assert replicas.pulls < 20


def test_a_slave_that_lags_proves_nothing_and_is_asked_again() -> None:
    replicas = Replicas(times(400), times(300))
    found = tails(replicas, 400)
    assert replaced_from(found, 400) is None
    found.note(MQ, 400, (431, 1))  # nobody knows whose records these are
    replicas.logs = {NEW: times(300) + times(200, 20_000)}
    assert replaced_from(found, 432) == 300


def test_a_broker_that_was_away_may_have_lost_its_end_too() -> None:
    replicas = Replicas(times(400), ())
    found = tails(replicas, 400)
    found.connection_lost(NEW)
    assert not in_doubt(found, OLD)
    found.connection_lost(OLD)
    replicas.logs = {OLD: times(390) + times(50, 20_000)}
    assert replaced_from(found, 400, OLD) == 390


@pytest.mark.parametrize("told", ["reset", "corrected", "left"])
def test_what_was_passed_is_not_looked_for(told: str) -> None:
    replicas = Replicas(times(400), times(700, 20_000))
    found = tails(replicas, 400)
    if told == "reset":
        found.passed(MQ)
    elif told == "corrected":
        found.corrected(MQ, 0)
    else:
        found.keep([])
    assert not in_doubt(found)


def test_what_is_deleted_says_nothing() -> None:
    replicas = Replicas(times(400), times(700, 20_000), deleted_to=500)
    found = tails(replicas, 400)
    assert replaced_from(found, 400) is None
    assert not in_doubt(found)


def test_who_may_not_read_as_a_tool_reads_as_the_group_and_else_goes_on() -> None:
    replicas = Replicas(times(400), times(390) + times(100, 20_000))
    found = tails(replicas, 400)
    replicas.refused = {TOOLS_GROUP}
    assert replaced_from(found, 400) == 390
    replicas.refused.add("g")
    with capture_logs() as logs:
        assert replaced_from(found, 400) is None
        assert replaced_from(found, 400) is None
    assert [log["event"] for log in logs] == ["tail_not_known"]
    assert in_doubt(found), "what may not be read now may be read later"


def filled() -> Replicas:
    return Replicas(times(400), times(300) + times(700, 20_000))


def failures() -> list[Exception]:
    """Every refusal, and an answer that is late."""
    answers = {ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY}
    answers.add(ResponseCode.PULL_OFFSET_MOVED)
    return [TimedOutError(NEW, "late"), *(BrokerError(code, "no", NEW) for code in ResponseCode if code not in answers)]


def steps_of_a_look() -> int:
    replicas = filled()
    assert replaced_from(tails(replicas, 400), 400) == 300
    return replicas.steps


@pytest.mark.parametrize("error", failures(), ids=str)
def test_what_is_refused_or_late_at_any_step_passes_nothing(error: Exception) -> None:
    steps = steps_of_a_look()
    assert steps > 5
    for step in range(steps):
        back_to = went_back_to(filled(), error, step, lasts=False)
        assert back_to is not None
        assert 256 <= back_to <= 300, step
    for step in range(1, steps):
        back_to = went_back_to(filled(), error, step, lasts=True)
        assert back_to is not None
        assert back_to <= 300, step
    of_tools = {ResponseCode.NO_PERMISSION, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}
    refused = isinstance(error, BrokerError) and error.code in of_tools
    assert went_back_to(filled(), error, 0, lasts=True) == (300 if refused else None), "refused as a tool alone"


def test_where_looks_are_not_answered_but_pulls_are_it_goes_on_in_doubt_and_looks_now_and_then() -> None:
    replicas = filled()
    found = tails(replicas, 400)
    replicas.fails = dict.fromkeys(range(LOOKS_MAX), TimedOutError(NEW, "late"))
    for _ in range(LOOKS_MAX - 1):
        with pytest.raises(TimedOutError):
            replaced_from(found, 400)
    with capture_logs() as logs:
        pulled = [replaced_from(found, 400) for _ in range(PULLS_A_LOOK - LOOKS_MAX + 1)]
    assert ([log["event"] for log in logs], {*pulled}) == (["tail_not_known"], {None})
    assert replicas.steps == LOOKS_MAX
    assert replaced_from(found, 400 + 32 * len(pulled)) == 300


def test_a_broker_that_answers_no_pulls_either_is_looked_at_before_the_next() -> None:
    replicas = filled()
    found = tails(replicas, 400)
    replicas.refused = {TOOLS_GROUP, "g"}
    assert [replaced_from(found, 400), replaced_from(found, 400)] == [None, None]
    replicas.refused.clear()
    found.pull_failed(MQ)
    assert replaced_from(found, 400) == 300


def test_a_broker_that_cannot_be_reached_is_not_pulled_in_doubt() -> None:
    replicas = filled()
    found = tails(replicas, 400)
    for _ in range(3 * LOOKS_MAX):
        replicas.steps, replicas.fails = 0, {0: UnreachableError(NEW, "gone")}
        with pytest.raises(UnreachableError):
            replaced_from(found, 400)


def test_a_damaged_record_says_nothing_and_stops_nothing() -> None:
    replicas = filled()
    found = tails(replicas, 400)
    replicas.damaged = {399}
    with capture_logs() as logs:
        assert replaced_from(found, 400) is None
    assert [log["event"] for log in logs] == ["tail_not_known"]
    assert not in_doubt(found)


def test_where_a_record_on_the_way_is_damaged_it_goes_on_before_it() -> None:
    replicas = filled()
    replicas.damaged = set(range(290, 320))
    back_to = replaced_from(tails(replicas, 400), 400)
    assert back_to is not None
    assert back_to <= 300


def test_an_operators_reset_that_a_look_is_told_is_not_lost() -> None:
    """Only one pull in the group's name is told it."""
    replicas = Replicas(times(400), times(700))
    found = tails(replicas, 400)
    replicas.reset_to = 7
    replicas.fails = {0: BrokerError(ResponseCode.SYSTEM_BUSY, "busy", NEW)}
    with pytest.raises(BrokerError):
        replaced_from(found, 400)
    assert replicas.reset_to == 7, "a busy broker is not asked in the group's name"
    replicas.refused = {TOOLS_GROUP}
    with pytest.raises(WasResetError) as told:
        replaced_from(found, 400)
    assert (told.value.header.next_begin_offset, told.value.header.max_offset) == (7, 700)


def test_of_many_queues_a_few_are_looked_at_together() -> None:
    replicas = Replicas(times(40), times(40))
    found = Tails(cast("Operations", replicas), "g")
    queues = [MessageQueue(TOPIC, "b", number) for number in range(200)]
    for mq in queues:
        assert not found.in_doubt(mq, OLD, 0.0)
        found.note(mq, 0, (31, 320))
    found.connection_lost(OLD)

    async def look_at_all() -> list[int | None]:
        assert all(found.in_doubt(mq, OLD, 0.0) for mq in queues)
        return await asyncio.gather(*(found.replaced_from(mq, OLD, 32, 0.0) for mq in queues))

    assert {*asyncio.run(look_at_all())} == {None}
    assert (replicas.at_once, replicas.pulls) == (LOOKS_AT_ONCE, len(queues))


def test_what_is_passed_while_it_is_not_its_turn_is_not_looked_for() -> None:
    replicas = filled()
    found = tails(replicas, 400)
    found.connection_lost(OLD)
    assert in_doubt(found)
    found.passed(MQ)
    assert asyncio.run(found.replaced_from(MQ, NEW, 400, 0.0)) is None
    assert replicas.pulls == 0


def test_replicas_that_suggest_each_other_in_turn_are_looked_at_once_a_second() -> None:
    replicas = Replicas(times(4_000), times(4_000))
    found = tails(replicas, 32)
    for at in range(1, 100):
        address = (OLD, NEW)[at % 2]
        if in_doubt(found, address, 0.5):
            assert asyncio.run(found.replaced_from(MQ, address, at * 32, 0.5)) is None
        found.note(MQ, at * 32, (at * 32 + 31, 10 * (at * 32 + 32)))
    assert replicas.pulls == 2
    assert in_doubt(found, OLD, 0.5 + TRUSTED_S)


def test_when_a_connection_is_lost_a_replica_that_was_the_same_is_looked_at_again() -> None:
    """It may be the master now, and end before what we have from the other."""
    replicas = Replicas(times(400), times(390))
    found = tails(replicas, 300)
    assert replaced_from(found, 300) is None
    assert not in_doubt(found, NEW)
    assert replaced_from(found, 300, OLD) is None
    found.note(MQ, 300, (399, 4_000))
    found.connection_lost(OLD)
    replicas.logs = {NEW: times(390) + times(100, 20_000)}
    assert replaced_from(found, 400) == 390
