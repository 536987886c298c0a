from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import BrokerError
from rocketcrew.remoting.headers import PullRequest, PullResponse
from rocketcrew.remoting.names import OFFSET_RESET
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.source.searching import LOOK_AT, WasResetError, exact_offset, look_at

MQ = MessageQueue("orders", "b", 0)


def search(found: int, low: int, stored: Sequence[int], timestamp_ms: int, at_once: int = LOOK_AT) -> int:
    async def times(start: int, end: int) -> dict[int, int]:
        assert low <= start < end <= low + len(stored)
        return {offset: stored[offset - low] for offset in range(start, min(end, start + at_once))}

    return asyncio.run(exact_offset(found, low, low + len(stored), timestamp_ms, times))


@pytest.mark.parametrize("found", [0, 10, 11, 12, 13, 14, 99])
def test_what_a_broker_says_is_only_near(found: int) -> None:
    stored = [100, 200, 200, 300]
    assert [search(found, 10, stored, time) for time in (1, 100, 101, 200, 201, 300, 301)] == [
        10,
        10,
        11,
        11,
        13,
        13,
        14,
    ]


def test_nothing_is_stored() -> None:
    assert search(5, 7, [], 100) == 7


@given(st.lists(st.integers(0, 6), max_size=150), st.integers(0, 7), st.integers(0, 200), st.sampled_from([1, 8, 32]))
def test_it_is_the_first(stored: list[int], timestamp_ms: int, found: int, at_once: int) -> None:
    stored = sorted(stored)
    first = next((at for at, time in enumerate(stored) if time >= timestamp_ms), len(stored))
    assert search(found, 0, stored, timestamp_ms, at_once) == first


class Pulled:
    """Answers by group; `names` are those that were asked in."""

    def __init__(self, answers: Mapping[str, Command]) -> None:
        self._answers = answers
        self.names: list[str] = []

    async def pull(self, _address: str, header: PullRequest, **_: object) -> Command:
        self.names.append(header.consumer_group)
        return self._answers[header.consumer_group]


NOTHING = Command(ResponseCode.PULL_NOT_FOUND, PullResponse(0, 7, 0, 7).to_fields())
REFUSALS = [
    Command(ResponseCode.NO_PERMISSION, remark="no"),
    Command(ResponseCode.SYSTEM_ERROR, remark="org.apache.rocketmq.acl.common.AclException: no"),
    Command(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark="no"),
]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_who_may_not_look_is_not_asked_again(refusal: Command) -> None:
    broker, names = Pulled({"tool": refusal, "g": NOTHING}), ["tool", "g"]
    for _ in range(2):
        assert asyncio.run(look_at(cast("Any", broker), "b", names, MQ, 7, 1)).header.next_begin_offset == 7
    assert broker.names == ["tool", "g", "g"]
    with pytest.raises(BrokerError, match="no"):
        asyncio.run(look_at(cast("Any", Pulled({"g": refusal})), "b", ["g"], MQ, 7, 1))


def test_what_may_pass_by_itself_is_not_asked_in_another_name() -> None:
    broker = Pulled({"tool": Command(ResponseCode.SYSTEM_BUSY, remark="busy"), "g": NOTHING})
    with pytest.raises(BrokerError, match="busy"):
        asyncio.run(look_at(cast("Any", broker), "b", ["tool", "g"], MQ, 7, 1))
    assert broker.names == ["tool"]


def test_a_reset_that_was_taken_along_is_said_also_by_a_later_look() -> None:
    reset = Command(ResponseCode.PULL_OFFSET_MOVED, PullResponse(0, 3, 0, 9).to_fields(), remark=OFFSET_RESET)
    names = ["g"]  # what another look has left of them
    with pytest.raises(WasResetError, match="g was just reset to 3 in queue 0 of orders") as told:
        asyncio.run(look_at(cast("Any", Pulled({"g": reset})), "b", names, MQ, 7, 1))
    assert told.value.header.next_begin_offset == 3
