"""What waits for messages is bounded by the memory that it takes, not by its number alone; so are filters by tags."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rocketcrew.broker.held_bytes import ALL_MAX_BYTES, CODE_BYTES, CONNECTION_MAX_BYTES
from rocketcrew.broker.sql92 import EXPRESSION_CHARACTERS_MAX
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig, TopicConfig
from rocketcrew.remoting.bodies import CheckClientConfig, SubscriptionData
from rocketcrew.remoting.codes import PULL_SUSPEND, RequestCode, ResponseCode
from rocketcrew.remoting.pop_headers import PopRequest

BODY = bytes(1_000_000)
QUEUES = 400
TAGS = "||".join(f"t{number:06}" for number in range(1_600))
LONG = "||".join(f"tag-{number:05}" for number in range(EXPRESSION_CHARACTERS_MAX // 10))


def pull(broker, channel, hold_ms=15_000):
    header = broker.pull_header(1, hold_ms=hold_ms)
    return broker.request(RequestCode.PULL_MESSAGE, header, BODY, channel=channel)


def pop(broker, channel):
    header = PopRequest("g", "T", -1, 32, 10_000, 15_000, broker.now_ms, 1, "TAG", "*")
    return broker.request(RequestCode.POP_MESSAGE, header, BODY, channel=channel)


@pytest.fixture
def broker(make):
    driver = make()
    driver.core.state.groups.put(SubscriptionGroupConfig("g"))
    driver.send()
    assert driver.call(RequestCode.POP_MESSAGE, PopRequest("g", "T", -1, 32, 60_000_000, 0, driver.now_ms, 0)).code == 0
    return driver


@pytest.mark.parametrize(
    ("ask", "held_of", "refusal"),
    [
        (pull, lambda state: state.held, ResponseCode.PULL_NOT_FOUND),
        (pop, lambda state: state.pops.held, ResponseCode.POLLING_FULL),
    ],
)
def test_what_waits_is_bounded_by_its_bytes(broker, tools, ask, held_of, refusal):
    held = held_of(broker.core.state)
    channel = 1
    while held.bytes.all + len(BODY) + 1_000 <= ALL_MAX_BYTES:
        while ask(broker, channel) == []:
            assert held.bytes.all <= channel * CONNECTION_MAX_BYTES
        ((_, answer),) = tools.replies(broker.effects)
        assert answer.code == refusal
        channel += 1
    assert channel > ALL_MAX_BYTES // CONNECTION_MAX_BYTES
    ((_, answer),) = tools.replies(ask(broker, 99))
    assert answer.code == refusal
    broker.core.channel_closed(broker.now_ms, 1)
    assert ask(broker, 99) == [], "there is room again"
    for _ in range(9):
        broker.later(15_000)
    assert (len(held), held.bytes.all) == (0, 0)


def test_what_waits_for_a_peer_that_does_not_read_counts_until_it_goes(broker):
    held = broker.core.state.held
    for _ in range(3):
        pull(broker, 1)
    broker.core.channel_full(1, is_full=True)
    broker.later(15_000)
    assert (len(held.parked[1]), held.bytes.all > 3 * len(BODY)) == (3, True)
    broker.core.channel_closed(broker.now_ms, 1)
    assert held.bytes.all == 0


def test_pulls_that_share_a_filter_take_its_memory_once(broker):
    """A member whose filter came by heartbeat waits in as many queues as it has, however long that is."""
    state = broker.core.state
    state.topics.put(broker.now_ms, TopicConfig("T", QUEUES, QUEUES))
    broker.heartbeat(subscriptions={"T": TAGS})
    for queue_id in range(QUEUES):
        header = broker.pull_header(1 if queue_id == 0 else 0, queue_id=queue_id, sys_flag=PULL_SUSPEND, tags="")
        assert broker.request(RequestCode.PULL_MESSAGE, header) == []
    set_bytes = CODE_BYTES * len(TAGS.split("||"))
    assert QUEUES * set_bytes > CONNECTION_MAX_BYTES
    assert set_bytes < state.held.bytes.all < 2 * set_bytes
    broker.heartbeat(subscriptions={"T": TAGS}, sub_version=2)
    assert broker.request(RequestCode.PULL_MESSAGE, replace(header, sub_version=2)) == []
    assert 2 * set_bytes < state.held.bytes.all < 3 * set_bytes, "the set of the old subscription is there still"
    broker.core.channel_closed(broker.now_ms, 1)
    assert (len(state.held), state.held.bytes.all) == (0, 0)


def test_pulls_with_a_filter_of_their_own_take_memory_each(broker, tools):
    held = broker.core.state.held
    header = broker.pull_header(1, hold_ms=15_000, tags=TAGS)
    while broker.request(RequestCode.PULL_MESSAGE, header) == []:
        assert held.bytes.all <= CONNECTION_MAX_BYTES
    ((_, answer),) = tools.replies(broker.effects)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert held.bytes.all > len(held) * CODE_BYTES * len(TAGS.split("||"))


def test_a_group_that_changes_its_filter_is_served_by_the_new_one(broker):
    header = broker.pull_header(0, sys_flag=0, tags="")
    answers = []
    for version, tags in ((1, "a"), (2, "*"), (3, "b")):
        broker.heartbeat(subscriptions={"T": tags}, sub_version=version)
        answers.append(broker.call(RequestCode.PULL_MESSAGE, header).code)
    assert answers == [ResponseCode.PULL_RETRY_IMMEDIATELY, 0, ResponseCode.PULL_RETRY_IMMEDIATELY]


def test_a_long_filter_by_tags_is_refused_as_one_by_sql(broker):
    refused = ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert len(LONG) > EXPRESSION_CHARACTERS_MAX
    answer = broker.pull(tags=LONG)
    assert (answer.code, f"{EXPRESSION_CHARACTERS_MAX} are possible" in answer.remark) == (refused, True)
    header = PopRequest("g", "T", -1, 32, 10_000, 0, broker.now_ms, 0, "TAG", LONG)
    assert broker.call(RequestCode.POP_MESSAGE, header).code == refused
    broker.heartbeat(subscriptions={"T": LONG})
    assert broker.pull(sys_flag=0).code == refused
    body = CheckClientConfig("c1", "g", SubscriptionData.of("T", LONG, 1)).encode()
    assert broker.call(RequestCode.CHECK_CLIENT_CONFIG, body=body).code == refused
    many = SubscriptionData("T", "a", (), tuple(range(EXPRESSION_CHARACTERS_MAX + 1)), 1)
    assert (
        broker.call(RequestCode.CHECK_CLIENT_CONFIG, body=CheckClientConfig("c1", "g", many).encode()).code == refused
    )
    assert broker.pull(tags=LONG[:EXPRESSION_CHARACTERS_MAX]).code == ResponseCode.PULL_RETRY_IMMEDIATELY
