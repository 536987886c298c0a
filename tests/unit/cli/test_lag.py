from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from rocketcrew.cli.commands.lag import (
    KNOWN_AFTER_TRIES,
    Looks,
    as_json_row,
    for_people,
    lag,
    notes,
    once_known,
    table,
    waits_for,
    watched,
)
from rocketcrew.cli.commands.members import shared_ids
from rocketcrew.cli.group_members import GroupMember, delayed, in_hand, member_of
from rocketcrew.cli.surroundings import Surroundings
from rocketcrew.cli.watch import QueueLag
from rocketcrew.client.access import Access
from rocketcrew.client.cluster import Cluster
from rocketcrew.remoting.admin_bodies import ClientConnection
from rocketcrew.remoting.bodies import ConsumerRunningInfo
from rocketcrew.remoting.errors import BrokerError, RocketcrewError, UsageError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.retry_delays import RETRY_DELAYS, encode_counts

MQ = MessageQueue("orders", "a", 0)


def test_what_members_have_in_hand_is_of_pulls_and_pops() -> None:
    both = [
        GroupMember("c1", "", "", "", (MQ,), {MQ: 3}),
        GroupMember("c2", "", "", "", None),
        GroupMember("c3", "", "", "", (MQ,), {MQ: 4}),
    ]
    assert in_hand(both) == {MQ: 7}


def test_what_waits_for_a_delay_is_the_sum_of_the_members_that_count_it() -> None:
    java = member_of(ClientConnection("c1", "", "JAVA", 1), ConsumerRunningInfo())
    silent = member_of(ClientConnection("c2", "", "JAVA", 1), None)
    ours = member_of(
        ClientConnection("c3", "", "PYTHON", 1),
        ConsumerRunningInfo(user_consumer_info={RETRY_DELAYS: encode_counts({MQ: 3})}),
    )
    assert delayed([java, silent]) is None
    assert delayed([java, ours, ours]) == {MQ: 6}
    assert (silent.queues, java.queues) == (None, ())


@pytest.mark.parametrize(
    "text",
    ["[[1]]", "{", '[["orders", "broker-a", 0, 1e999]]', '[["orders", "broker-a", 0, -1]]', "[" * 100_000],
    ids=["short", "no JSON", "endless", "negative", "deep"],
)
def test_a_count_that_is_none_of_ours_is_passed_over(text: str) -> None:
    strange = ConsumerRunningInfo(user_consumer_info={RETRY_DELAYS: text})
    assert delayed([member_of(ClientConnection("c4", "", "PYTHON", 1), strange)]) == {}


def test_a_table_for_people() -> None:
    queues = [
        QueueLag(MessageQueue("orders", "broker-a", 0), 1200, 1000),
        QueueLag(MessageQueue("%RETRY%g", "broker-a", 0), 3, None),
    ]
    assert table(queues, 203).splitlines() == [
        "TOPIC     BROKER    QUEUE   MAX  COMMITTED  LAG",
        "orders    broker-a      0  1200       1000  200",
        "%RETRY%g  broker-a      0     3          -    3",
        "total                                       203",
    ]


def test_a_watched_queue_has_an_owner_a_rate_and_an_end() -> None:
    before = [QueueLag(MessageQueue("orders", "a", 0), 100, 10), QueueLag(MessageQueue("orders", "a", 1), 5, None)]
    now = [QueueLag(MessageQueue("orders", "a", 0), 120, 30), QueueLag(MessageQueue("orders", "a", 1), 5, None)]
    first, second = watched(now, (2.0, before), {MQ: "c1"}, {MQ: 32}, {MQ: 3})
    assert (first["owner"], first["in_hand"], first["per_second"], first["seconds_left"]) == ("c1", 32, 10.0, 9.0)
    assert (first["delayed"], second["delayed"], for_people(first)["DELAYED"]) == (3, 0, 3)
    assert (second["owner"], second["per_second"], second["seconds_left"]) == (None, 0.0, None)
    assert for_people(first)["LEFT"] == "9 s"
    assert for_people(second) | {"TOPIC": ""} == {
        "TOPIC": "", "BROKER": "a", "QUEUE": 1, "MAX": 5, "COMMITTED": "-", "LAG": 5, "IN HAND": "-", "DELAYED": 0,
        "PER S": 0.0, "LEFT": "-", "OWNER": "-",
    }  # fmt: skip


def test_the_first_look_has_no_rates() -> None:
    (row,) = watched([QueueLag(MessageQueue("orders", "a", 0), 100, 10)], None, {}, {}, None)
    assert row["per_second"] is None
    assert (row["delayed"], for_people(row)["DELAYED"]) == (None, "-"), "Java's members do not count them"
    assert for_people(row)["PER S"] == "-"


def test_a_queue_as_json_and_above_its_end() -> None:
    row = as_json_row(QueueLag(MessageQueue("orders", "a", 1), 5, 9))
    assert row == {"topic": "orders", "broker": "a", "queue_id": 1, "max": 5, "committed": 9, "lag": 0}
    assert QueueLag(MessageQueue("orders", "a", 1), 5, None, 3).lag == 2


def test_a_group_that_is_beyond_the_end_is_said() -> None:
    queues = [QueueLag(MessageQueue("orders", "a", n), 5, committed) for n, committed in enumerate((None, 5, 6))]
    (said,) = notes(queues)
    assert said.startswith("COMMITTED is beyond MAX: orders a 2. ")
    assert notes(queues[:2]) == []


class Group:
    """Known to the brokers after so many questions."""

    def __init__(self, known_after: int, topic: str = "%RETRY%billing") -> None:
        self.left = known_after
        self.topic = topic
        self.slept = 0

    async def ask(self) -> str:
        if self.left:
            self.left -= 1
            raise BrokerError(17, "no route", f"GET_ROUTEINFO for topic {self.topic} at ns:9876")
        return "the lag"

    async def sleep(self, _: float) -> None:
        self.slept += 1

    def result(self, *, starts: bool) -> str:
        async def starting() -> bool:
            return starts

        return asyncio.run(once_known("billing", self.ask, starting, self.sleep))


@pytest.mark.parametrize("words", [["--count", "3"], ["--interval", "2"], ["--json", "--count", "0"]])
def test_what_goes_with_watch_only_is_refused_without_it(tmp_path: Path, words: list[str]) -> None:
    around = Surroundings({}, tmp_path)
    with pytest.raises(UsageError, match=r"goes with --watch only"):
        lag.main(["-g", "billing", "-n", "127.0.0.1:1", *words], obj=around, standalone_mode=False)


def test_a_group_that_starts_here_is_waited_for() -> None:
    group = Group(3)
    assert group.result(starts=True) == "the lag"
    assert group.slept == 3


@pytest.mark.parametrize(
    ("topic", "starts", "slept"),
    [("%RETRY%billing", False, 0), ("orders", True, 0), ("%RETRY%billing", True, KNOWN_AFTER_TRIES)],
)
def test_another_that_is_not_known_is_an_error(topic: str, starts: bool, slept: int) -> None:
    group = Group(1 << 30, topic)
    with pytest.raises(BrokerError):
        group.result(starts=starts)
    assert group.slept == slept


class WithoutGroup:
    """What is asked of a cluster that knows no group."""

    remoting = None

    async def route(self, topic: str, *, refresh: bool = False) -> None:
        raise BrokerError(17, "no route", f"GET_ROUTEINFO for topic {topic} at ns:9876")


def test_a_group_that_is_watched_and_runs_without_its_topic_is_not_called_unknown() -> None:
    async def starting() -> bool:
        raise waits_for("billing", ["ordres"], ["orders"])

    async def nothing_runs() -> bool:
        return False

    looks, cluster = Looks(Access("ns:9876"), "billing", (), ()), cast("Cluster", WithoutGroup())
    with pytest.raises(RocketcrewError, match="does not know the topic ordres"):
        asyncio.run(looks.go_on(cluster, 1.0, 1, starting, as_json=True))
    with pytest.raises(BrokerError, match="no route"):
        asyncio.run(looks.go_on(cluster, 1.0, 1, nothing_runs, as_json=True))


def test_a_group_that_runs_without_its_topic_names_the_topic_and_those_that_are_near() -> None:
    known = ["orders", "payments", "%RETRY%ordres", "%DLQ%billing"]
    text = str(waits_for("billing", ["ordres"], known))
    assert text.startswith(
        "the group billing runs, and the cluster does not know the topic ordres: did you mean orders?"
    )
    assert "first message makes a topic" in text
    assert "any of the topics a, b. The first" in str(waits_for("billing", ["a", "b"], known))


def test_an_id_that_two_members_have_is_named() -> None:
    two = [GroupMember("c1", address, "", "", (MQ,)) for address in ("10.0.0.1:1", "10.0.0.2:2")]
    assert shared_ids([*two, GroupMember("c2", "", "", "", None)])[0].startswith("2 have the id c1: ")
    assert shared_ids(two[1:]) == []
