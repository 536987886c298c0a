"""Latency fault tolerance: durations as Java's, and which queues are preferred."""

from __future__ import annotations

import pytest

from rocketcrew.client.faults import LatencyFaults, unavailable_ms
from rocketcrew.client.selection import RoundRobin
from rocketcrew.remoting.queues import MessageQueue

QUEUES = [MessageQueue("t", broker, queue_id) for broker in "abc" for queue_id in range(2)]


@pytest.mark.parametrize(
    ("latency_ms", "pause_ms"),
    [(0, 0), (99, 0), (549, 0), (550, 2000), (1799, 2000), (1800, 5000), (3000, 6000), (5000, 10000), (20000, 30000)],
)
def test_durations(latency_ms, pause_ms):
    assert unavailable_ms(latency_ms) == pause_ms


def test_a_slow_broker_is_unavailable_for_a_while():
    faults = LatencyFaults()
    faults.answered(1000, "a", 600)
    assert not faults.is_available(2999, "a")
    assert faults.is_available(3000, "a")
    assert faults.is_reachable("a")
    assert faults.is_available(0, "b")


def test_a_failure_counts_as_ten_seconds_and_a_refusal_as_unreachable():
    faults = LatencyFaults()
    faults.failed(0, "a", reachable=True)
    faults.failed(0, "b", reachable=False)
    assert [faults.is_available(9_999, name) for name in "ab"] == [False, False]
    assert [faults.is_reachable(name) for name in "ab"] == [True, False]
    assert faults.unreachable() == ["b"]
    faults.probed("b")
    assert faults.is_reachable("b")
    assert faults.unreachable() == []


def test_a_shorter_pause_does_not_end_a_longer_one():
    faults = LatencyFaults()
    faults.failed(0, "a", reachable=True)
    faults.answered(1, "a", 600)
    assert not faults.is_available(9_000, "a")


def chosen(faults, now_ms, avoid=None):
    turns = RoundRobin(lambda n: 0)
    preferences = (
        lambda mq: faults.is_available(now_ms, mq.broker_name),
        lambda mq: faults.is_reachable(mq.broker_name),
    )
    return {turns.select("t", QUEUES, avoid, preferences).broker_name for _ in range(6)}


def test_available_is_preferred_then_reachable_then_any():
    faults = LatencyFaults()
    assert chosen(faults, 0) == {"a", "b", "c"}
    faults.failed(0, "a", reachable=True)
    assert chosen(faults, 1) == {"b", "c"}
    faults.failed(0, "b", reachable=False)
    faults.failed(0, "c", reachable=False)
    assert chosen(faults, 1) == {"a"}
    assert chosen(faults, 1, avoid="a") == {"a", "b", "c"}, "nothing else is left: the turn decides"
    assert chosen(faults, 10_001) == {"a", "b", "c"}
