"""What waits for messages is bounded by the memory that it takes, not by its number alone; so are filters by tags."""

from __future__ import annotations

import pytest

from rocketcrew.broker.held_bytes import ALL_MAX_BYTES, CONNECTION_MAX_BYTES
from rocketcrew.broker.sql92 import EXPRESSION_CHARACTERS_MAX
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig
from rocketcrew.remoting.bodies import CheckClientConfig, SubscriptionData
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.pop_headers import PopRequest

BODY = bytes(1_000_000)
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
