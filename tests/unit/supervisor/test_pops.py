"""POP at the edge: what becomes of a message that failed, by what its broker says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from rocketcrew.conf.settings import load
from rocketcrew.remoting.check_points import CheckPoint
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import BrokerError, TimedOutError, UnreachableError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.supervisor.core.actions import Ack, Renew, SendBack
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
        (True, Mode.DEAD_LETTER, {"deaths": "3"}, True, []), (True, Mode.DEAD_LETTER, None, True, []),
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
    assert brokers.dead == ([facts or {"error": "no price"}] if last and takes else []), "it says why it failed"


@pytest.mark.parametrize(
    ("takes", "mode", "accepted", "asked"),
    [(True, Mode.DEAD_LETTER, True, []), (False, Mode.DEAD_LETTER, False, []), (True, Mode.POP, True, [LATER])],
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


@dataclass
class Answers(Brokers):
    """Answers requests one after the other: by a code, or by an error."""

    answers: list[int | Exception] = field(default_factory=list[int | Exception])
    looked_for: list[str] = field(default_factory=list[str])

    async def request(self, address: str, command: Command, **options: Any) -> Command:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return (await super().request(address, command, **options)).response(answer)

    def look_again(self, topic: str) -> None:
        self.looked_for.append(topic)


@dataclass
class Heard:
    """A core that notes what it hears."""

    events: list[Any] = field(default_factory=list[Any])

    def handle(self, event: Any, _now: float) -> None:
        self.events.append(event)


def heard_of(bench: Bench, answers: list[int | Exception], do: Callable[[Pops], Awaitable[None]]) -> list[Any]:
    brokers, core = Answers(True, answers=answers), Heard()
    settings = load({"consumer.group": "g", "consumer.topics": "orders"}, {}, None).consumer
    pops = Pops(
        cast("Any", brokers), cast("Any", core), memoryview(bench.view), settings, {}, cast("Any", brokers), float
    )

    async def run() -> None:
        await do(pops)

    asyncio.run(run())
    return core.events


LOST = [UnreachableError("b", "cut"), TimedOutError("b", "no answer")]


def test_acknowledgements_that_were_refused_are_told_from_those_without_an_answer(bench: Bench) -> None:
    checks = [replace(CHECK, offset=offset) for offset in range(4)]
    [event] = heard_of(bench, [0, *LOST, 20], lambda pops: pops.ack(Ack(5, MQ, checks, 2)))
    assert (event.handle, event.count, event.refused, event.tries) == (5, 4, 1, 2)
    assert event.unanswered == checks[1:3]


@pytest.mark.parametrize(("answer", "unanswered"), [(LOST[0], True), (LOST[1], True), (20, False)])
def test_a_renewal_that_was_refused_is_told_from_one_without_an_answer(
    answer: int | Exception, unanswered: bool, bench: Bench
) -> None:
    [event] = heard_of(bench, [answer], lambda pops: pops.renew(Renew(5, MQ, 7, CHECK)))
    assert (event.check, event.unanswered) == (None, unanswered)
