"""Allocation against Java's own algorithm (transcribed), and what every strategy must keep: no overlap, no gap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.allocation import STRATEGIES, allocate, average, average_by_circle, strategy_named

QUEUES = st.lists(
    st.builds(MessageQueue, st.just("t"), st.sampled_from(["a", "b", "broker-10", "broker-9"]), st.integers(0, 15)),
    min_size=1, max_size=40, unique=True,
)  # fmt: skip
MEMBERS = st.lists(st.text("0123456789.@#", min_size=1, max_size=12), min_size=1, max_size=12, unique=True)


def java_averagely(cid: str, mq_all: list[MessageQueue], cid_all: list[str]) -> list[MessageQueue]:
    """AllocateMessageQueueAveragely.java, line by line."""
    result = []
    index = cid_all.index(cid)
    mod = len(mq_all) % len(cid_all)
    if len(mq_all) <= len(cid_all):
        average_size = 1
    else:
        average_size = len(mq_all) // len(cid_all) + 1 if mod > 0 and index < mod else len(mq_all) // len(cid_all)
    start_index = index * average_size if mod > 0 and index < mod else index * average_size + mod
    reach = min(average_size, len(mq_all) - start_index)
    result.extend(mq_all[(start_index + i) % len(mq_all)] for i in range(reach))
    return result


def java_by_circle(cid: str, mq_all: list[MessageQueue], cid_all: list[str]) -> list[MessageQueue]:
    """AllocateMessageQueueAveragelyByCircle.java."""
    index = cid_all.index(cid)
    return [mq_all[i] for i in range(index, len(mq_all)) if i % len(cid_all) == index]


@given(QUEUES, MEMBERS)
def test_both_strategies_are_javas(queues: list[MessageQueue], members: list[str]) -> None:
    for cid in members:
        args = (cid, sorted(queues), sorted(members))
        assert average(*args) == java_averagely(*args)
        assert average_by_circle(*args) == java_by_circle(*args)


@given(QUEUES, MEMBERS, st.sampled_from(sorted(STRATEGIES)), st.randoms())
def test_every_queue_has_one_owner_and_loads_differ_by_one(
    queues: list[MessageQueue], members: list[str], name: str, shuffle: object
) -> None:
    owned: list[MessageQueue] = []
    sizes = []
    for cid in list(members):
        shuffle.shuffle(queues)  # type: ignore[attr-defined]
        shuffle.shuffle(members)  # type: ignore[attr-defined]
        mine = allocate(STRATEGIES[name], cid, queues, list(members))
        assert mine is not None
        owned += mine
        sizes.append(len(mine))
    assert sorted(owned) == sorted(queues)
    assert max(sizes) - min(sizes) <= 1


def test_the_examples_of_the_java_documentation() -> None:
    queues = [MessageQueue("t", "b", i) for i in range(8)]
    blocks = [[mq.queue_id for mq in average(c, queues, ["a", "b", "c"])] for c in "abc"]
    assert blocks == [[0, 1, 2], [3, 4, 5], [6, 7]]
    circle = [[mq.queue_id for mq in average_by_circle(c, queues, ["a", "b", "c"])] for c in "abc"]
    assert circle == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_failed_look_ups_change_nothing_and_a_stranger_owns_nothing() -> None:
    queues = [MessageQueue("t", "b", 0)]
    assert allocate(average, "a", [], ["a"]) is None
    assert allocate(average, "a", queues, []) is None
    assert allocate(average, "a", queues, ["b"]) == []


def test_an_unknown_strategy_is_named_with_the_known_ones() -> None:
    assert strategy_named("AVG") is average
    with pytest.raises(UsageError, match=r"'avg'.*AVG, AVG_BY_CIRCLE"):
        strategy_named("avg")
