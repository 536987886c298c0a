"""POP at the edge: what becomes of a message that failed, by what its broker says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from rocketcrew.conf.settings import load
from rocketcrew.remoting.check_points import CheckPoint
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import BrokerError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage
from rocketcrew.supervisor.core.actions import SendBack
from rocketcrew.supervisor.member.pops import Pops
from rocketcrew.workers.failures import Mode

if TYPE_CHECKING:
    from .conftest import Bench

MQ = MessageQueue("orders", "b", 0)
CHECK = CheckPoint(0, 1, 60_000, 0, "0", "b", 0, 7)
ACKED, LATER = RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME


@dataclass
class Brokers:
    """A cluster, its connections and the way to the dead letters in one."""

    takes_dead_letters: bool
    reconsume_times_max: int = 3
    asked: list[int] = field(default_factory=list[int])
    dead: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])

    @property
    def remoting(self) -> Brokers:
        return self

    def broker_address(self, _name: str) -> str:
        return "127.0.0.1:10911"

    async def request(self, _address: str, command: Command, **_: Any) -> Command:
        self.asked.append(command.code)
        fields = {"popTime": "5", "invisibleTime": "1000", "reviveQid": "0"}
        return command.response(0, fields)

    async def to_dead_letters(self, facts: Mapping[str, str], _message: StoredMessage) -> None:
        if not self.takes_dead_letters:
            raise BrokerError(1, "system busy", "SEND_MESSAGE_V2")
        self.dead.append(facts)


@pytest.mark.parametrize(
    ("takes", "level", "facts", "times", "accepted", "asked"),
    [
        (True, 0, None, 0, True, [LATER]), (True, 0, {"deaths": "3"}, 0, True, [ACKED]), (True, -1, None, 0, True, [ACKED]),
        (True, 0, None, 3, True, [ACKED]),
        (False, 0, {"deaths": "3"}, 0, False, []), (False, -1, None, 0, False, []),
        # Java acknowledges it at its limit and nobody sees it again; here it is shown again, and tried again then.
        (False, 0, None, 3, True, [LATER]),
    ],
)  # fmt: skip
def test_a_dead_letter_that_is_refused_stays_with_us(
    takes: bool, level: int, facts: dict[str, str] | None, times: int, accepted: bool, asked: list[int], bench: Bench
) -> None:
    brokers: Any = Brokers(takes)
    settings = load({"consumer.group": "g", "consumer.topics": "orders"}, {}, None).consumer
    pops = Pops(brokers, bench.core, memoryview(bench.view), settings, {}, brokers, lambda: 0.0)
    mode = Mode.DEAD_LETTER if level < 0 or facts else Mode.POP
    action = SendBack(1, 1, 0, MQ, 0, 0, mode, max(level, 0), check=CHECK, facts=facts)
    message = StoredMessage("orders", b"x", queue_offset=7, reconsume_times=times)
    assert asyncio.run(pops.later(action, message)) is accepted
    assert brokers.asked == asked
    assert len(brokers.dead) == (asked == [ACKED])
