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
from rocketcrew.remoting.stored import StoredMessage, encode_message
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
    asked: list[int] = field(default_factory=list[int])
    dead: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])
    sent_back: list[tuple[Mode, bytes]] = field(default_factory=list[tuple[Mode, bytes]])

    @property
    def remoting(self) -> Brokers:
        return self

    def broker_address(self, _name: str) -> str:
        return "127.0.0.1:10911"

    async def request(self, _address: str, command: Command, **_: Any) -> Command:
        self.asked.append(command.code)
        fields = {"popTime": "5", "invisibleTime": "1000", "reviveQid": "0"}
        return command.response(0, fields)

    def dead_letter_facts(self, action: SendBack) -> Mapping[str, str] | None:
        return action.facts or ({"error": action.error} if action.error else None)

    async def to_dead_letters(self, facts: Mapping[str, str], _message: StoredMessage) -> None:
        if not self.takes_dead_letters:
            raise BrokerError(1, "system busy", "SEND_MESSAGE_V2")
        self.dead.append(facts)

    async def send(self, action: SendBack, record: bytes, message: StoredMessage | None) -> bool:
        assert message is None, "what can be decoded is sent with its facts"
        self.sent_back.append((action.mode, record))
        return self.takes_dead_letters


def pops_of(brokers: Any, bench: Bench) -> Pops:
    settings = load({"consumer.group": "g", "consumer.topics": "orders"}, {}, None).consumer
    return Pops(brokers, bench.core, memoryview(bench.view), settings, {}, brokers, lambda: 0.0)


@pytest.mark.parametrize(
    ("takes", "mode", "facts", "accepted", "asked"),
    [
        (True, Mode.POP, None, True, [LATER]),
        (True, Mode.DEAD_LETTER, {"deaths": "3"}, True, [ACKED]), (True, Mode.DEAD_LETTER, None, True, [ACKED]),
        (False, Mode.POP, None, True, [LATER]),
        (False, Mode.DEAD_LETTER, {"deaths": "3"}, False, []), (False, Mode.DEAD_LETTER, None, False, []),
    ],
)  # fmt: skip
def test_a_dead_letter_that_is_refused_stays_with_us(
    takes: bool, mode: Mode, facts: dict[str, str] | None, accepted: bool, asked: list[int], bench: Bench
) -> None:
    brokers: Any = Brokers(takes)
    pops = pops_of(brokers, bench)
    last = mode is Mode.DEAD_LETTER
    action = SendBack(1, 1, 0, MQ, 0, 0, mode, check=CHECK, facts=facts, error="no price", last=last)
    message = StoredMessage("orders", b"x", queue_offset=7)
    assert asyncio.run(pops.later(action, encode_message(message), message)) is accepted
    assert brokers.asked == asked
    assert brokers.dead == ([facts or {"error": "no price"}] if asked == [ACKED] else []), "it says why it failed"


@pytest.mark.parametrize(
    ("takes", "mode", "accepted", "asked"),
    [(True, Mode.DEAD_LETTER, True, [ACKED]), (False, Mode.DEAD_LETTER, False, []), (True, Mode.POP, True, [LATER])],
)
def test_a_record_that_cannot_be_decoded_is_a_dead_letter_when_its_broker_has_made_one(
    takes: bool, mode: Mode, accepted: bool, asked: list[int], bench: Bench
) -> None:
    brokers: Any = Brokers(takes)
    last = mode is Mode.DEAD_LETTER
    action = SendBack(1, 1, 0, MQ, 0, 0, mode, check=CHECK, error="body checksum", last=last)
    record = encode_message(StoredMessage("orders", b"x", queue_offset=7)).replace(b"x", b"y")
    assert asyncio.run(pops_of(brokers, bench).later(action, record, None)) is accepted
    assert brokers.asked == asked
    assert brokers.sent_back == ([(mode, record)] if last else [])
