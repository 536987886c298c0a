"""POP at the edge: what becomes of a message that failed, by what its broker says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from rocketcrew.conf.settings import load
from rocketcrew.remoting.bodies import SubscriptionData
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

    async def to_dead_letters(self, facts: Mapping[str, str], message: StoredMessage) -> None:
        assert message.topic == "orders", "its topic, whatever one it was shown under"
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


@pytest.mark.parametrize("topic", ["%RETRY%g_orders", "%RETRY%g+orders"])
def test_a_dead_letter_of_a_retry_is_one_of_its_topic(topic: str, bench: Bench) -> None:
    brokers: Any = Brokers(takes_dead_letters=True)
    action = SendBack(1, 1, 0, MessageQueue(topic, "b", 0), 0, 0, Mode.DEAD_LETTER, check=CHECK, error="no", last=True)
    message = StoredMessage(topic, b"x", queue_offset=7)
    assert asyncio.run(pops_of(brokers, bench).later(action, encode_message(message), message))
    assert brokers.dead == [{"error": "no"}]


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
    timeouts_ms: list[float] = field(default_factory=list[float])

    async def request(self, address: str, command: Command, **options: Any) -> Command:
        self.timeouts_ms.append(options["timeout_ms"])
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


@dataclass
class Edge:
    """The edge between brokers and a core that is the test's; subscribed to the topic of `MQ`."""

    bench: Bench
    answers: list[int | Exception]
    invisible_ms: int = 60_000

    def do(self, work: Callable[[Pops], Awaitable[None]]) -> list[Any]:
        self.brokers, core = Answers(True, answers=self.answers), Heard()
        given = {
            "consumer.group": "g",
            "consumer.topics": "orders",
            "consumer.pop_invisible_time_ms": self.invisible_ms,
        }
        settings, brokers = load(given, {}, None).consumer, cast("Any", self.brokers)
        subscribed = {MQ.topic: SubscriptionData(MQ.topic, "*")}
        pops = Pops(brokers, cast("Any", core), memoryview(self.bench.view), settings, subscribed, brokers, float)

        async def run() -> None:
            await work(pops)

        asyncio.run(run())
        return core.events


def heard_of(bench: Bench, answers: list[int | Exception], do: Callable[[Pops], Awaitable[None]]) -> list[Any]:
    return Edge(bench, answers).do(do)


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


@pytest.mark.parametrize("mark", ["0", "1", "2"])
@pytest.mark.parametrize(("answer", "looks"), [(LOST[0], True), (LOST[1], True), (20, False)])
def test_who_has_no_answer_looks_where_the_broker_is_by_the_topic_that_was_subscribed(
    mark: str, answer: int | Exception, looks: bool, bench: Bench
) -> None:
    check = replace(CHECK, retry_mark=mark)
    mq = check.queue(MQ.topic, "g")
    later = SendBack(1, 1, 0, mq, 0, 0, Mode.POP, check=check)
    message = StoredMessage("orders", b"x", queue_offset=7)

    async def send_back(pops: Pops) -> None:
        await pops.later(later, encode_message(message), message)

    works: list[Callable[[Pops], Awaitable[None]]] = [
        lambda pops: pops.ack(Ack(5, mq, [check, check])),
        lambda pops: pops.renew(Renew(5, mq, 7, check)),
        send_back,
    ]
    for work in works:
        edge = Edge(bench, [answer, answer])
        edge.do(work)
        assert edge.brokers.looked_for == ["orders"] * looks


def test_what_was_deleted_with_its_topic_is_not_shown_again(bench: Bench) -> None:
    [event] = heard_of(bench, [17, 20], lambda pops: pops.ack(Ack(5, MQ, [CHECK, CHECK])))
    assert (event.count, event.refused, event.unanswered) == (2, 1, [])


@pytest.mark.parametrize(("invisible_ms", "timeout_ms"), [(5_000, 1_250), (60_000, 3_000)])
def test_a_renewal_without_an_answer_leaves_time_for_another(invisible_ms: int, timeout_ms: int, bench: Bench) -> None:
    edge = Edge(bench, [0], invisible_ms)
    edge.do(lambda pops: pops.renew(Renew(5, MQ, 7, CHECK)))
    assert edge.brokers.timeouts_ms == [timeout_ms]
