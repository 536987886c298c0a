"""What brokers ask of us, and the bytes of our answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from rocketcrew.conf.settings import Settings, load
from rocketcrew.remoting.bodies import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    ConsumerStatus,
    ResetOffsetBody,
    SubscriptionData,
)
from rocketcrew.remoting.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.member.requests import Asked, Requests
from rocketcrew.supervisor.member.running_info import Clocks, offsets_of, running_info
from rocketcrew.workers.packets import QueueInfo, Refused

from .conftest import TOPIC, Bench

GROUP = "g"
MQ = MessageQueue(TOPIC, "b", 1)


class Member:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.rebalanced = 0
        self.busy = False
        self.consumed: tuple[QueueInfo, bytes] | None = None
        self.reset: Mapping[MessageQueue, int] = {}
        self.requests = Requests(
            GROUP,
            Asked(
                rebalance=self._rebalance,
                reset_offsets=self._reset,
                offsets=lambda topic: {MQ: 5} if topic == TOPIC else {},
                info=lambda stacks: ConsumerRunningInfo(jstack=stacks),
                stacks=self._stacks,
                consume=self._consume,
            ),
        )

    def _rebalance(self) -> None:
        self.rebalanced += 1

    def _reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        self.reset = offsets

    async def _stacks(self) -> str:
        return "stacks"

    async def _consume(self, queue: QueueInfo, record: bytes) -> ConsumeDirectlyResult:
        if self.busy:
            raise Refused("no worker is ready")
        self.consumed = (queue, record)
        return ConsumeDirectlyResult("CR_LATER", remark="why", spent_time_mills=3)

    def ask(self, code: int, fields: Mapping[str, str], body: bytes = b"", flag: int = 0) -> Command | None:
        command = Command(code, dict(fields), body, opaque=7, flag=flag)
        return asyncio.run(self.requests.serve("10.0.0.2:10911", command))

    def answer(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> Command:
        answer = self.ask(code, fields, body)
        assert answer is not None and answer.is_response and answer.opaque == 7
        return answer


@pytest.mark.parametrize(("group", "times"), [(GROUP, 1), ("another", 0)])
def test_ids_changed_rebalances_our_group(group: str, times: int) -> None:
    member = Member()
    assert member.ask(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}, flag=FLAG_ONEWAY) is None
    assert member.rebalanced == times


RESET = {"topic": TOPIC, "group": GROUP, "timestamp": "-1", "isForce": "true"}


@pytest.mark.parametrize(
    "body",
    [
        ResetOffsetBody({MQ: 40, MessageQueue("other", "b", 0): 9}).encode(),
        b'{"offsetTable":[{"topic":"orders","brokerName":"b","queueId":1,"offset":40}]}',
    ],
    ids=["java", "cpp"],
)
def test_offsets_of_the_topic_are_reset(body: bytes) -> None:
    member = Member()
    assert member.ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, RESET, body, FLAG_ONEWAY) is None
    assert member.reset == {MQ: 40}


def test_a_reset_of_another_group_is_left_alone() -> None:
    member = Member()
    body = ResetOffsetBody({MQ: 40}).encode()
    member.ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {**RESET, "group": "another"}, body, FLAG_ONEWAY)
    assert member.reset == {}


@pytest.mark.parametrize("body", [b"{", b'{"offsetTable":{"x":"y"}}'])
def test_a_reset_that_cannot_be_read_changes_nothing(body: bytes) -> None:
    member = Member()
    assert member.ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, RESET, body, FLAG_ONEWAY) is None
    assert member.reset == {}


def test_the_offsets_of_a_topic_have_queues_as_keys() -> None:
    answer = Member().answer(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": TOPIC, "group": GROUP})
    assert answer.code == ResponseCode.SUCCESS
    key = b'{"brokerName":"b","queueId":1,"topic":"orders"}'
    assert bytes(answer.body) == b'{"consumerTable":{},"messageQueueTable":{' + key + b":5}}"
    assert ConsumerStatus.decode(answer.body).message_queue_table == {MQ: 5}


@pytest.mark.parametrize(("enable", "stacks"), [("true", "stacks"), ("false", None)])
def test_stacks_are_made_when_they_are_asked_for(enable: str, stacks: str | None) -> None:
    fields = {"consumerGroup": GROUP, "clientId": "me", "jstackEnable": enable}
    answer = Member().answer(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    assert ConsumerRunningInfo.decode(answer.body).jstack == stacks


def test_another_group_is_not_ours_to_tell_of() -> None:
    fields = {"consumerGroup": "another", "clientId": "me"}
    answer = Member().answer(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "The Consumer Group <another> not exist in this consumer"


def test_a_question_that_lacks_a_field_is_answered_with_why() -> None:
    answer = Member().answer(RequestCode.GET_CONSUMER_RUNNING_INFO, {})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "consumerGroup" in (answer.remark or "")


DIRECTLY = {"consumerGroup": GROUP, "clientId": "me", "brokerName": "b", "msgId": "x"}


def test_a_message_is_consumed_directly() -> None:
    member = Member()
    record = encode_message(StoredMessage(TOPIC, b"body", queue_id=3, queue_offset=9))
    answer = member.answer(RequestCode.CONSUME_MESSAGE_DIRECTLY, DIRECTLY, record)
    assert member.consumed == (QueueInfo(GROUP, TOPIC, "b", 3), record)
    wanted = b'{"autoCommit":true,"consumeResult":"CR_LATER","order":false,"remark":"why","spentTimeMills":3}'
    assert bytes(answer.body) == wanted


def test_what_cannot_be_consumed_directly_is_refused() -> None:
    member = Member()
    assert member.answer(RequestCode.CONSUME_MESSAGE_DIRECTLY, DIRECTLY, b"junk").code == ResponseCode.SYSTEM_ERROR
    another = {**DIRECTLY, "consumerGroup": "another"}
    assert member.answer(RequestCode.CONSUME_MESSAGE_DIRECTLY, another, b"junk").code == ResponseCode.SYSTEM_ERROR
    member.busy = True
    record = encode_message(StoredMessage(TOPIC, b"body"))
    answer = member.answer(RequestCode.CONSUME_MESSAGE_DIRECTLY, DIRECTLY, record)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_BUSY, "no worker is ready")


def test_an_unknown_code_is_not_supported() -> None:
    assert Member().answer(9999, {}).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


# --- running info -----------------------------------------------------------------------------------------------


def settings() -> Settings:
    return load({"consumer.group": GROUP, "consumer.topics": TOPIC, "cluster.unit_name": "u"}, {}, None)


def test_running_info_shows_queues_offsets_and_settings_as_java_does(bench: Bench) -> None:
    (handle,) = bench.open(1, offset=100)
    bench.worker("w1", "w2")
    bench.pass_ms(5_000)
    bench.found(handle, range(100, 110))
    bench.pass_ms(1_000)
    bench.done(bench.dispatched()[0])
    subscriptions = {name: SubscriptionData.of(name, "*", 1) for name in (TOPIC, "%RETRY%g")}
    info = running_info(
        bench.core.state, settings(), subscriptions, name_servers=["a:1", "b:2"], started_ms=77,
        clocks=Clocks(bench.now, 1_000_000),
    )  # fmt: skip
    queue = info.mq_table[MQ]
    assert (queue.commit_offset, queue.cached_msg_min_offset, queue.cached_msg_max_offset) == (101, 101, 109)
    assert (queue.cached_msg_count, queue.locked, queue.droped) == (9, True, False)
    assert (queue.last_pull_timestamp, queue.last_consume_timestamp) == (999_000, 1_000_000)
    assert list(info.status_table) == ["%RETRY%g", TOPIC]
    wanted = {
        "PROP_NAMESERVER_ADDR": "a:1;b:2;",
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CONSUMEORDERLY": "false",
        "PROP_THREADPOOL_CORE_SIZE": "2",
        "PROP_CONSUMER_START_TIMESTAMP": "77",
        "consumerGroup": GROUP,
        "pullThresholdForQueue": "1000",
        "messageModel": "CLUSTERING",
        "unitName": "u",
    }
    assert {name: info.properties[name] for name in wanted} == wanted
    assert info == ConsumerRunningInfo.decode(info.encode())
    assert b'"mqTable":{{"brokerName":"b","queueId":1,"topic":"orders"}:{' in info.encode()


def test_offsets_told_are_those_of_open_queues(bench: Bench) -> None:
    bench.open(0, 1, offset=3)
    bench.members([0, 1, 2])
    assert bench.take(act.FetchOffset)
    assert offsets_of(bench.core.state, TOPIC) == {bench.queue(0): 3, bench.queue(1): 3}
    assert offsets_of(bench.core.state, "other") == {}


def test_a_moment_that_never_was_is_zero() -> None:
    assert Clocks(5.0, 1000).wall_of(0.0) == 0
