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
from rocketcrew.remoting.errors import BrokerError
from rocketcrew.remoting.headers import PullRequest, PullResponse
from rocketcrew.remoting.names import TOOLS_GROUP
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.member.tails import Tails

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
        self.pulls = 0

    async def pull(self, address: str, header: PullRequest, **_: object) -> Command:
        self.pulls += 1
        if header.consumer_group in self.refused:
            raise BrokerError(ResponseCode.NO_PERMISSION, "no", address)
        log, start = self.logs[address], header.queue_offset
        if not self.deleted_to <= start < len(log):
            position = PullResponse(0, max(self.deleted_to, min(start, len(log))), self.deleted_to, len(log))
            return Command(ResponseCode.PULL_OFFSET_MOVED, position.to_fields())
        stop = min(start + header.max_msg_nums, len(log))
        body = b"".join(record(offset, stored_ms=log[offset]) for offset in range(start, stop))
        return Command(ResponseCode.SUCCESS, PullResponse(0, stop, 0, len(log)).to_fields(), body=body)

    async def search_offset(self, _mq: MessageQueue, time_ms: int, *, address: str) -> int:
        """The closest message, as 4.9 has it."""
        log = self.logs[address]
        return min(range(len(log)), key=lambda offset: abs(log[offset] - time_ms))


def tails(replicas: Replicas, read_to: int, body: int = PULL) -> Tails:
    """After the old broker's queue was pulled up to there."""
    found, log = Tails(cast("Operations", replicas), "g"), replicas.logs[OLD]
    assert not found.in_doubt(MQ, OLD)
    for start in range(0, read_to, body):
        last = min(start + body, read_to) - 1
        found.note(MQ, start, (last, log[last]))
    assert not found.in_doubt(MQ, OLD)
    return found


def replaced_from(found: Tails, asked: int, address: str = NEW) -> int | None:
    assert found.in_doubt(MQ, address)
    return asyncio.run(found.replaced_from(MQ, address, asked))


def times(count: int, begin_ms: int = 0) -> list[int]:
    return [begin_ms + 10 * n for n in range(1, count + 1)]


def test_a_queue_that_is_the_same_at_another_address_is_asked_for_once() -> None:
    replicas = Replicas(times(400), times(700))
    found = tails(replicas, 400)
    assert replaced_from(found, 400) is None
    assert not found.in_doubt(MQ, NEW)
    assert replicas.pulls == 1


@pytest.mark.parametrize("cut", [0, 1, 31, 32, 33, 200, 398, 399])
def test_the_first_record_that_was_replaced_is_found_to_the_offset(cut: int) -> None:
    replicas = Replicas(times(400), times(cut) + times(700, 20_000))
    found = tails(replicas, 400)
    assert replaced_from(found, 400) == cut
    assert found.in_doubt(MQ, NEW), "until it is read from there"
    assert replaced_from(found, cut) is None
    found.note(MQ, cut, (cut + 31, 20_320))
    assert not found.in_doubt(MQ, NEW)


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
    assert not found.in_doubt(MQ, OLD)
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
    assert not found.in_doubt(MQ, NEW)


def test_what_is_deleted_says_nothing() -> None:
    replicas = Replicas(times(400), times(700, 20_000), deleted_to=500)
    found = tails(replicas, 400)
    assert replaced_from(found, 400) is None
    assert not found.in_doubt(MQ, NEW)


def test_who_may_not_read_as_a_tool_reads_as_the_group_and_else_goes_on() -> None:
    replicas = Replicas(times(400), times(390) + times(100, 20_000))
    found = tails(replicas, 400)
    replicas.refused = {TOOLS_GROUP}
    assert replaced_from(found, 400) == 390
    replicas.refused.add("g")
    with capture_logs() as logs:
        assert replaced_from(found, 400) is None
    assert [log["event"] for log in logs] == ["tail_not_known"]
    assert not found.in_doubt(MQ, NEW)
