"""Allocation against Java's own algorithm (transcribed), and what every strategy must keep: no overlap, no gap."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.conf.settings import load
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.allocation import (
    STRATEGIES,
    Strategy,
    allocate,
    average,
    average_by_circle,
    everything,
    parse_queue,
    ring_hash,
    strategy_named,
    strategy_of,
)
from rocketcrew.supervisor.core.machine_rooms import AllocationError, room_finder

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
def test_every_queue_has_one_owner_and_blocks_differ_by_one(
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
    assert max(sizes) - min(sizes) <= 1 or name == "CONSISTENT_HASH"


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


VECTORS = json.loads((Path(__file__).parent / "allocation_vectors.json").read_text())
"""What the Java classes of 4.9.7 and 5.5.0 gave (tests/interop/java/Allocation.java; test_rebalance.py asks them again)."""
ROOMS = {f"{room}-*": room for room in ("north", "south", "west", "east")}


def configured(vector: dict[str, Any]) -> Strategy:
    """The strategy of a vector, by way of the settings."""
    name, argument = vector["strategy"], vector["argument"]
    flags: dict[str, object] = {"consumer.allocate_strategy": name, "consumer.machine_rooms": ROOMS}
    if name == "CONFIG":
        flags["consumer.allocate_queues"] = argument.split()
    elif name == "MACHINE_ROOM":
        flags["consumer.machine_room_ids"] = argument.split()
    elif argument:
        flags["consumer.consistent_hash_virtual_nodes"] = int(argument)
    return strategy_of(load(flags, {}, None).consumer)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["strategy"])
def test_every_strategy_gives_what_the_java_class_gives(vector: dict[str, Any]) -> None:
    strategy = configured(vector)
    queues = [parse_queue(text) for text in vector["queues"].split()]
    members = vector["members"].split()
    for client_id, text in vector["mine"].items():
        found, mine = allocate(strategy, client_id, queues, members), [parse_queue(word) for word in text.split()]
        assert found is not None
        # Who stands there twice takes the second share as well, which Java leaves to nobody.
        assert found == mine if members.count(client_id) < 2 else set(found) >= set(mine), client_id


@given(QUEUES, MEMBERS, st.sampled_from(["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"]), st.data())
def test_no_queue_is_left_out_when_a_broker_names_members_twice(
    queues: list[MessageQueue], members: list[str], name: str, data: st.DataObject
) -> None:
    strategy = strategy_of(load({"consumer.allocate_strategy": name}, {}, None).consumer)
    told = members + data.draw(st.lists(st.sampled_from(members), max_size=4))
    owned = [mq for cid in members for mq in allocate(strategy, cid, queues, told) or ()]
    assert sorted(owned) == sorted(queues)


def test_no_queue_is_left_out_in_any_room_when_a_broker_names_members_twice() -> None:
    told = ["north-1", "north-1", "south-1", "south-2", "south-2"]
    queues = [MessageQueue("t", f"{room}-broker", number) for room in ("north", "south", "west") for number in range(7)]
    rooms: dict[str, object] = {"consumer.machine_rooms": ROOMS}
    for name in ("MACHINE_ROOM_NEARBY-AVG", "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE"):
        strategy = strategy_of(load({**rooms, "consumer.allocate_strategy": name}, {}, None).consumer)
        owned = [mq for cid in sorted(set(told)) for mq in allocate(strategy, cid, queues, told) or ()]
        assert sorted(owned) == sorted(queues)


def test_the_hash_is_the_head_of_md5() -> None:
    assert ring_hash("") == 0xD41D8CD9
    assert ring_hash("a") == 0x0CC175B9


def test_on_the_ring_only_the_queues_of_the_one_who_left_move() -> None:
    queues = [MessageQueue("t", "b", i) for i in range(64)]
    members = [f"10.0.0.{i}@1" for i in range(5)]
    before = {mq: cid for cid in members for mq in allocate(STRATEGIES["CONSISTENT_HASH"], cid, queues, members) or ()}
    left = members[1:]
    after = {mq: cid for cid in left for mq in allocate(STRATEGIES["CONSISTENT_HASH"], cid, queues, left) or ()}
    assert len(after) == len(queues)
    assert all(after[mq] == cid for mq, cid in before.items() if cid != members[0])


def test_a_queue_that_the_route_has_not_is_left_out_of_a_fixed_list() -> None:
    flags = {"consumer.allocate_strategy": "config", "consumer.allocate_queues": ["t@b:1", "t@b:9", "u@b:0"]}
    strategy = strategy_of(load(flags, {}, None).consumer)
    assert strategy("a", [MessageQueue("t", "b", i) for i in range(4)], ["a"]) == [MessageQueue("t", "b", 1)]


def test_a_name_without_a_room_is_an_error_that_names_it() -> None:
    assert room_finder({"10.1.*": "north", "*": "south"})("10.1.2.3@7") == "north"
    assert room_finder({"10.1.*": "north", "*": "south"})("10.2.2.3@7") == "south"
    with pytest.raises(AllocationError, match=r"machine_rooms matches 'broker-a'"):
        room_finder({"x": "y"})("broker-a")


def test_broadcasting_reads_everything_whatever_the_strategy() -> None:
    flags = {"consumer.message_model": "BROADCASTING", "consumer.allocate_strategy": "CONSISTENT_HASH"}
    assert strategy_of(load(flags, {}, None).consumer) is everything
