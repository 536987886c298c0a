"""Failed messages back to a broker: its own send-back, an ordinary send when that is refused, dead letters at the limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig, TopicConfig
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.headers import PullRequest
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, decode_messages, encode_message
from rocketcrew.supervisor.core.actions import SendBack
from rocketcrew.supervisor.member.send_back import (
    PROPERTIES_BYTES_MAX,
    SendBacks,
    cut_to_fit,
    decoded,
    has_room_for_retry,
    properties_bytes,
)
from rocketcrew.workers.failures import Mode, is_last, is_used_up

GROUP, TOPIC = "g", "orders"
MQ = MessageQueue(TOPIC, "embedded", 0)
SEND_BACK, SEND = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2
LEVELS = " ".join(["1ms"] * 18)


class Scene:
    """An embedded broker with one message of the topic, and a member's send-backs."""

    def __init__(self, broker: EmbeddedBroker, cluster: Cluster, limit: int) -> None:
        self.broker = broker
        self.cluster = cluster
        self.limit = limit
        self.back = SendBacks(cluster, Operations(cluster), GROUP, limit, errors=True)
        self.asked: list[Command] = []
        self.refused: dict[int, int] = {}
        self.cut: set[int] = set()
        """What is not answered: the connection is lost."""
        broker.intercepts.append(self._intercept)

    def _intercept(self, command: Command) -> Command | None:
        if command.code in (SEND_BACK, SEND):
            self.asked.append(command)
        if command.code in self.cut:
            connection = self.cluster.remoting.connection_of(self.broker.address)
            assert connection is not None
            connection.abort("cut by the test")
        code = self.refused.get(command.code)
        return None if code is None else command.response(code, remark="refused by the test")

    async def send(self, **properties: str) -> StoredMessage:
        """One message into the queue; as it is pulled."""
        admin = Admin(self.cluster)
        await admin.create_topic(self.broker.address, TopicConfig(TOPIC, read_queue_nums=1, write_queue_nums=1))
        await admin.create_group(self.broker.address, SubscriptionGroupConfig(GROUP))
        retry = TopicConfig(f"%RETRY%{GROUP}", read_queue_nums=1, write_queue_nums=1)
        await admin.create_topic(self.broker.address, retry)
        producer = Producer(self.cluster, "senders")
        await producer.send(OutgoingMessage(TOPIC, b"body", tags="A", keys="k", properties=properties))
        self.asked.clear()
        return (await self.stored(TOPIC))[0]

    async def stored(self, topic: str, wanted: int = 1) -> list[StoredMessage]:
        """The topic's message number `wanted`, which the broker waits for."""
        header = PullRequest(GROUP, topic, 0, wanted - 1, 1, 6, 0, 15_000, 0, subscription="*", expression_type="TAG")
        command = Command(RequestCode.PULL_MESSAGE, header.to_fields())
        answer = await self.cluster.remoting.request(self.broker.address, command, timeout_ms=20_000)
        assert answer.code == ResponseCode.SUCCESS, (topic, answer.code, answer.remark)
        return decode_messages(answer.body)

    async def close_retries(self) -> None:
        """As `mqadmin wipeWritePerm` does for all topics."""
        wipe = Command(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": MQ.broker_name})
        answer = await self.cluster.remoting.request(self.broker.name_server, wipe, timeout_ms=20_000)
        assert answer.code == ResponseCode.SUCCESS
        await self.cluster.route(f"%RETRY%{GROUP}", refresh=True)

    async def give(self, message: StoredMessage, level: int = 0, **more: object) -> bool:
        """Send it back, as the core asks."""
        mode = Mode.DEAD_LETTER if level < 0 else Mode.SEND_BACK
        action = SendBack(1, 1, 0, MQ, 0, 0, mode, max(level, 0))
        action.last = is_last(mode, used_up=is_used_up(message.reconsume_times, self.limit))
        for name, value in more.items():
            setattr(action, name, value)
        return await self.back.send(action, encode_message(message), message)


def play(scene: Callable[[Scene], Awaitable[None]], limit: int = -1) -> None:
    async def run() -> None:
        async with EmbeddedBroker(delay_levels=LEVELS) as broker, open_cluster(broker.name_server) as cluster:
            await scene(Scene(broker, cluster, limit))

    asyncio.run(run())


@pytest.mark.parametrize("what", [{}, {"level": -1, "facts": {"error": "killed"}}])
def test_where_a_master_of_before_takes_nothing_it_is_looked_for(what: dict[str, Any]) -> None:
    """It was made a slave, and is read from as before: until the next poll each failed message was refused."""

    async def scene(s: Scene) -> None:
        message = await s.send()
        s.refused = {SEND_BACK: ResponseCode.SYSTEM_ERROR, SEND: ResponseCode.SYSTEM_BUSY}
        s.broker.name_server_intercepts.append(lambda command: questions.append(command.code))
        assert not await s.give(message, **what)  # which makes the retry topic's route known
        later_s = s.cluster.clock() + 2.0
        s.cluster.clock = lambda: later_s
        questions.clear()
        assert not await s.give(message, **what)
        await s.cluster.settled()
        assert questions.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == 1

    questions: list[int] = []
    play(scene)


@pytest.mark.parametrize(("limit", "told"), [(-1, "16"), (3, "3")])
@pytest.mark.parametrize("level", [0, 2])
def test_level_and_limit_are_in_the_request(level: int, limit: int, told: str) -> None:
    async def scene(s: Scene) -> None:
        message = await s.send()
        assert await s.give(message, level)
        (asked,) = s.asked
        assert (asked.code, asked.fields["delayLevel"], asked.fields["maxReconsumeTimes"]) == (
            SEND_BACK, str(level), told,
        )  # fmt: skip
        assert asked.fields["offset"] == str(message.physical_offset)
        assert (asked.fields["originTopic"], asked.fields["originMsgId"]) == (TOPIC, message.message_id)
        (again,) = await s.stored(f"%RETRY%{GROUP}")
        assert (again.reconsume_times, again.properties["RETRY_TOPIC"]) == (1, TOPIC)
        assert again.properties["ORIGIN_MESSAGE_ID"] == message.offset_message_id

    play(scene, limit)


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_BUSY])
def test_a_refused_one_goes_out_as_an_ordinary_send_with_javas_properties(code: int) -> None:
    async def scene(s: Scene) -> None:
        sent = await s.send(mine="x")
        prepared = encode_properties({**sent.properties, "TRAN_MSG": "true"}).encode()
        message = replace(sent, reconsume_times=2, raw_properties=prepared)
        s.refused[SEND_BACK] = code
        assert await s.give(message)
        resent = s.asked[-1]
        assert resent.code == SEND
        assert (resent.fields["a"], resent.fields["b"]) == (GROUP, f"%RETRY%{GROUP}"), "an ACL judges by the first"
        assert (resent.fields["j"], resent.fields["l"]) == ("3", "16")
        (again,) = await s.stored(f"%RETRY%{GROUP}")
        wanted = {
            "RETRY_TOPIC": TOPIC, "RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "16", "DELAY": "5", "TAGS": "A",
            "KEYS": "k", "mine": "x", "ORIGIN_MESSAGE_ID": message.offset_message_id,
        }  # fmt: skip
        assert {name: again.properties.get(name) for name in wanted} == wanted
        assert "TRAN_MSG" not in again.properties
        assert (again.body, again.reconsume_times) == (b"body", 3)

    play(scene)


def test_the_levels_that_the_handler_asks_for_are_kept_in_an_ordinary_send() -> None:
    async def scene(s: Scene) -> None:
        message = await s.send()
        s.refused[SEND_BACK] = ResponseCode.SYSTEM_ERROR
        assert await s.give(message, 7)
        assert (await s.stored(f"%RETRY%{GROUP}"))[0].properties["DELAY"] == "7"

    play(scene)


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize(("times", "level"), [(3, 0), (0, -1)], ids=["at the limit", "asked for"])
def test_dead_letters(refused: bool, times: int, level: int) -> None:
    async def scene(s: Scene) -> None:
        message = await s.send()
        for _ in range(times):
            assert await s.give(message, 1)
            message = (await s.stored(f"%RETRY%{GROUP}", message.reconsume_times + 1))[-1]
        if refused:
            s.refused[SEND_BACK] = ResponseCode.SYSTEM_ERROR
        assert await s.give(message, level)
        (dead,) = await s.stored(f"%DLQ%{GROUP}")
        assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"body", TOPIC)

    play(scene, limit=3)


@pytest.mark.parametrize(("limit", "times", "told"), [(1, 0, "2"), (3, 1, "3"), (3, 2, "4"), (-1, 15, "17")])
def test_an_ordinary_send_is_a_retry_for_brokers_of_either_count(limit: int, times: int, told: str) -> None:
    """Of what has as many attempts as the header's limit 4.9 makes a dead letter, 5.x of what has more."""

    async def scene(s: Scene) -> None:
        message = replace(await s.send(), reconsume_times=times)
        s.refused[SEND_BACK] = ResponseCode.SYSTEM_ERROR
        assert await s.give(message)
        assert (s.asked[-1].fields["j"], s.asked[-1].fields["l"]) == (str(times + 1), told)

    play(scene, limit)


def test_what_was_tried_here_to_its_limit_is_a_dead_letter_though_its_broker_knows_of_no_attempt() -> None:
    async def scene(s: Scene) -> None:
        message = replace(await s.send(), reconsume_times=3)
        assert await s.give(message)
        (dead,) = await s.stored(f"%DLQ%{GROUP}")
        assert (s.asked[-1].code, dead.reconsume_times) == (SEND_BACK, 1)

    play(scene, limit=3)


@pytest.mark.parametrize("topic", [TOPIC, f"%RETRY%{GROUP}", "%RETRY%another", "%DLQ%another"])
def test_a_group_that_locks_its_queues_sends_back_what_is_to_come_again(topic: str) -> None:
    async def scene(s: Scene) -> None:
        s.back = SendBacks(s.cluster, Operations(s.cluster), GROUP, s.limit, locks=True)
        noted = encode_properties({"RETRY_TOPIC": "first"}).encode()
        assert await s.give(replace(await s.send(), topic=topic, raw_properties=noted))
        assert [asked.code for asked in s.asked] == [SEND_BACK]

    play(scene, limit=3)


@pytest.mark.parametrize("topic", ["%RETRY%another", "%DLQ%another", f"%DLQ%{GROUP}"])
def test_the_topic_that_a_message_of_another_groups_came_by_is_noted_to_its_end(topic: str) -> None:
    async def scene(s: Scene) -> None:
        sent = await s.send()
        noted = encode_properties({**sent.properties, "RETRY_TOPIC": "first"}).encode()
        message = replace(sent, topic=topic, raw_properties=noted)
        for times in (1, 2, 3):
            assert await s.give(message)
            message = (await s.stored(f"%RETRY%{GROUP}", times))[-1]
            assert (message.reconsume_times, message.properties["RETRY_TOPIC"]) == (times, topic)
        assert await s.give(message)
        (dead,) = await s.stored(f"%DLQ%{GROUP}")
        assert dead.properties["RETRY_TOPIC"] == topic
        assert [asked.code for asked in s.asked] == [SEND] + [SEND_BACK] * 3, "brokers keep what is noted"

    play(scene, limit=3)


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR])
def test_refused_both_ways_it_is_not_accepted(code: int) -> None:
    async def scene(s: Scene) -> None:
        message = await s.send()
        s.refused |= {SEND_BACK: code, SEND: code}
        assert not await s.give(message)
        assert [asked.code for asked in s.asked] == [SEND_BACK, SEND]

    play(scene)


def test_a_broker_that_is_away_is_not_accepted() -> None:
    async def run() -> None:
        async with open_cluster("127.0.0.1:1") as cluster:
            back = SendBacks(cluster, Operations(cluster), GROUP, -1)
            message = StoredMessage(TOPIC, b"body")
            action = SendBack(1, 1, 0, MQ, 0, 0, Mode.SEND_BACK)
            assert not await back.send(action, encode_message(message), message)

    asyncio.run(run())


def test_one_that_cannot_be_decoded_is_sent_back_by_its_offset_only() -> None:
    async def scene(s: Scene) -> None:
        message = await s.send()
        action = SendBack(1, 1, 0, MQ, 0, 0, Mode.SEND_BACK)
        assert await s.back.send(action, encode_message(message), None)
        s.refused[SEND_BACK] = ResponseCode.SYSTEM_ERROR
        assert not await s.back.send(action, encode_message(message), None)
        assert [asked.code for asked in s.asked] == [SEND_BACK, SEND_BACK]

    play(scene)


def test_properties_that_are_no_utf8_are_left_to_the_broker() -> None:
    good = StoredMessage(TOPIC, b"x", b"KEYS\x01k\x02")
    assert decoded(encode_message(good), MQ) is not None
    assert decoded(encode_message(StoredMessage(TOPIC, b"x", b"KEYS\x01\xff\x02")), MQ) is None
    assert decoded(encode_message(good).replace(b"x", b"y"), MQ) is None


@pytest.mark.parametrize("refused", [False, True], ids=["send taken", "send refused"])
@pytest.mark.parametrize(("times", "level"), [(3, 0), (0, -1)], ids=["at the limit", "asked for"])
def test_a_dead_letter_says_why_it_failed_where_a_send_is_taken(refused: bool, times: int, level: int) -> None:
    async def scene(s: Scene) -> None:
        message = await s.send()
        for _ in range(times):
            assert await s.give(message, 1, error="not yet")
            message = (await s.stored(f"%RETRY%{GROUP}", message.reconsume_times + 1))[-1]
            assert "ROCKETCREW_ERROR" not in message.properties
        if refused:
            s.refused[SEND] = ResponseCode.NO_PERMISSION
        assert await s.give(message, level, error="KeyError: 'price' (shop.py:7)")
        (dead,) = await s.stored(f"%DLQ%{GROUP}")
        assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"body", TOPIC)
        assert dead.properties.get("ROCKETCREW_ERROR") == (None if refused else "KeyError: 'price' (shop.py:7)")

    play(scene, limit=3)


def test_the_last_attempt_of_an_ordered_message_says_why_it_failed() -> None:
    async def scene(s: Scene) -> None:
        message = await s.send()
        assert await s.give(message, mode=Mode.LAST_ATTEMPT, last=True, tried=3, error="KeyError: 'price' (shop.py:7)")
        (dead,) = await s.stored(f"%DLQ%{GROUP}")
        assert dead.properties["ROCKETCREW_ERROR"] == "KeyError: 'price' (shop.py:7)"

    play(scene, limit=3)


@pytest.mark.parametrize("closed", [False, True], ids=["the send is refused", "no queue may be written"])
def test_the_last_attempt_of_an_ordered_message_is_a_dead_letter_of_its_broker_s_where_a_send_is_refused(
    closed: bool,
) -> None:
    async def scene(s: Scene) -> None:
        message = await s.send()
        if closed:
            await s.close_retries()
        else:
            s.refused[SEND] = ResponseCode.NO_PERMISSION
            assert not await s.give(message, mode=Mode.LAST_ATTEMPT, last=True, tried=3), "that may pass"
        assert await s.give(message, mode=Mode.LAST_ATTEMPT, last=True, tried=3, attempt=1)
        assert [asked.code for asked in s.asked] == [SEND, SEND] * (not closed) + [SEND_BACK]
        (dead,) = await s.stored(f"%DLQ%{GROUP}")
        assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"body", TOPIC)

    play(scene, limit=3)


def test_a_group_without_retry_queues_keeps_the_last_attempt_that_a_broker_would_drop_with_a_yes() -> None:
    async def scene(s: Scene) -> None:
        message = await s.send()
        await s.close_retries()
        for each in (await s.cluster.route(f"%RETRY%{GROUP}")).queue_datas:
            object.__setattr__(each, "write_queue_nums", 0)  # as of genuine brokers; the embedded one makes a queue
        assert not await s.give(message, mode=Mode.LAST_ATTEMPT, last=True, tried=3, attempt=1)
        assert s.asked == []

    play(scene, limit=3)


def test_a_last_attempt_of_another_group_s_dead_letter_is_not_sent_back_as_a_message_of_its_first_topic() -> None:
    async def scene(s: Scene) -> None:
        sent = await s.send()
        noted = encode_properties({**sent.properties, "RETRY_TOPIC": TOPIC}).encode()
        message = replace(sent, topic="%DLQ%other", raw_properties=noted)
        s.refused[SEND] = ResponseCode.SYSTEM_BUSY
        assert not await s.give(message, mode=Mode.LAST_ATTEMPT, last=True, tried=3, attempt=1)
        assert [asked.code for asked in s.asked] == [SEND]

    play(scene, limit=3)


@pytest.mark.parametrize("code", [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, None])
def test_a_last_attempt_that_is_stored_or_may_be_is_not_made_a_second_time(code: int | None) -> None:
    async def scene(s: Scene) -> None:
        message = await s.send()
        if code is None:
            s.cut.add(SEND)
        else:
            s.refused[SEND] = code
        assert await s.give(message, mode=Mode.LAST_ATTEMPT, last=True, tried=3) is (code is not None)
        assert [asked.code for asked in s.asked] == [SEND]

    play(scene, limit=3)


def test_a_replayed_dead_letter_comes_to_the_group_as_on_its_first_attempt() -> None:
    async def scene(s: Scene) -> None:
        message = await s.send(mine="x")
        assert await s.give(message, -1, error="KeyError: 'price' (shop.py:7)")
        (dead,) = await s.stored(f"%DLQ%{GROUP}")
        await s.back.replay(dead)
        (again,) = await s.stored(f"%RETRY%{GROUP}")
        assert (again.reconsume_times, again.body) == (0, b"body")
        assert again.properties["ORIGIN_MESSAGE_ID"] == message.offset_message_id
        assert again.properties["RETRY_TOPIC"] == TOPIC
        assert again.properties["mine"] == "x"
        used_up = {"RECONSUME_TIME", "MAX_RECONSUME_TIMES", "DELAY", "ROCKETCREW_ERROR"}
        assert not used_up & again.properties.keys()

    play(scene)


@pytest.mark.parametrize("locks", [False, True])
@pytest.mark.parametrize("errors", [False, True])
def test_properties_without_room_for_a_retry_end_in_a_dead_letter_that_names_what_it_lacks(
    errors: bool, locks: bool
) -> None:
    async def scene(s: Scene) -> None:
        message = await s.send(long="a" * 30_000, middle="b" * 2_570, short="kept")
        s.back = SendBacks(s.cluster, Operations(s.cluster), GROUP, s.limit, locks=locks, errors=errors)
        assert not has_room_for_retry(message, GROUP)
        assert not await s.give(message, 1), "no broker can take the retry; the handler gets it again"
        for _ in range(3):
            message = replace(message, reconsume_times=message.reconsume_times + 1)  # as the handler's own attempts do
        assert await s.give(message, 1, error="ValueError: it fails")
        (dead,) = await s.stored(f"%DLQ%{GROUP}")
        assert dead.body == b"body"
        assert dead.properties["ROCKETCREW_CUT"] == f"long ({30_000 + 6} bytes)"
        assert "long" not in dead.properties
        assert (dead.properties["short"], dead.properties["middle"]) == ("kept", "b" * 2_570)
        assert dead.properties["ORIGIN_MESSAGE_ID"] == message.offset_message_id

    play(scene, limit=3)


def test_what_fits_into_a_retry_has_room_and_is_not_cut() -> None:
    async def scene(s: Scene) -> None:
        message = await s.send(long="a" * 31_500)
        assert has_room_for_retry(message, GROUP)
        s.refused[SEND_BACK] = ResponseCode.SYSTEM_ERROR
        assert await s.give(message, -1)
        (dead,) = await s.stored(f"%DLQ%{GROUP}")
        assert dead.properties["long"] == "a" * 31_500
        assert "ROCKETCREW_CUT" not in dead.properties

    play(scene)


def test_of_many_small_properties_some_are_cut_and_rocketmqs_own_stay() -> None:
    own = {"RETRY_TOPIC": "t", "ORIGIN_MESSAGE_ID": "0" * 32, "DELAY": "3"}
    cut = cut_to_fit(own | {f"p{number:05}": "v" * 12 for number in range(1_600)})
    assert own.items() <= cut.items()
    assert len(cut["ROCKETCREW_CUT"]) < 400
    assert cut["ROCKETCREW_CUT"].endswith(" more")
    assert 29_900 < properties_bytes(cut) - len(cut["ROCKETCREW_CUT"]) <= PROPERTIES_BYTES_MAX + 20
