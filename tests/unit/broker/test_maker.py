"""A data folder is served under the name of the broker that made it: members and tables know queues by that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.broker.disk import DiskStorage
from rocketcrew.broker.topic_table import MAKER_TABLE, TOPICS_TABLE, TopicTable, maker_text, system_topics
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.remoting.errors import UsageError

USERS = TopicConfig("orders", 1, 1, 7)
"""As an administrator's console makes a topic, which looks like a broker's own."""


def genuine(folder: Path, *more: TopicConfig, users: bool = True) -> None:
    """A store of broker-b, as far as its name goes."""
    table = TopicTable(system_topics("broker-b", "DefaultCluster", 18, auto_create=True))
    for topic in (*([USERS] if users else []), *more):
        table.put(1, topic)
    (folder / TOPICS_TABLE).parent.mkdir(parents=True)
    (folder / TOPICS_TABLE).write_bytes(table.dump())


def refusal(folder: Path, name: str = "embedded") -> str:
    before = sorted(folder.rglob("*"))
    with pytest.raises(UsageError) as refused:
        DiskStorage(folder, name=name)
    assert sorted(folder.rglob("*")) == before, "nothing is made in what is refused"
    return str(refused.value)


def test_a_folder_keeps_the_name_of_the_broker_that_made_it(tmp_path: Path, make: Callable[..., Any]) -> None:
    """Whatever topics look like a broker's. The default was another name once."""
    made = make(DiskStorage(tmp_path, name="broker-a"), name="broker-a", flush="async")
    made.core.state.topics.put(made.now_ms, USERS)
    made.send()
    made.core.stop()
    made.storage.close()
    for name in ("embedded", "orders", "TBW102"):
        said = refusal(tmp_path, name)
        assert f"is of the broker broker-a, and this one is {name}: " in said
        assert '(--set broker.name=broker-a, in Python settings={"broker.name": "broker-a"})' in said
    again = make(DiskStorage(tmp_path, name="broker-a"), name="broker-a", flush="async")
    assert [message.body for message in again.read()] == [b"x"]
    again.storage.close()


def test_of_a_genuine_brokers_folder_no_topic_is_named_as_the_broker(tmp_path: Path) -> None:
    genuine(tmp_path)
    said = refusal(tmp_path)
    assert "is of another broker, by its topics one of broker-b, orders, and this one is embedded" in said
    assert "--set broker.name=NAME" in said
    assert "TBW102" in refusal(tmp_path, "TBW102"), "the template of topics is no broker"


def test_a_genuine_broker_of_version_4_with_a_topic_that_nobody_may_use(tmp_path: Path) -> None:
    """brokerTopicEnable=false."""
    genuine(tmp_path, TopicConfig("broker-b", 1, 1, 1))
    assert "by its topics one of broker-b, orders, and" in refusal(tmp_path)
    DiskStorage(tmp_path, name="broker-b").close()


def test_a_name_that_topics_only_hint_at_is_not_given_as_certain(tmp_path: Path) -> None:
    genuine(tmp_path, users=False)
    said = refusal(tmp_path)
    assert "is of another broker, by its topics one of broker-b, and" in said
    assert "--set broker.name=NAME" in said


def test_a_genuine_broker_of_version_5_says_its_name(tmp_path: Path) -> None:
    genuine(tmp_path, TopicConfig("rmq_sys_SYNC_BROKER_MEMBER_broker-b", 1, 1, 1))
    for name in ("embedded", "orders"):
        assert "--set broker.name=broker-b" in refusal(tmp_path, name)


def test_a_folder_that_was_served_is_certainly_of_that_broker(tmp_path: Path, make: Callable[..., Any]) -> None:
    genuine(tmp_path)
    served = make(DiskStorage(tmp_path, name="broker-b"), name="broker-b")
    served.core.stop()
    served.storage.close()
    assert (tmp_path / MAKER_TABLE).read_bytes() == maker_text("broker-b")
    assert "is of the broker broker-b" in refusal(tmp_path, "orders")


def test_the_table_before_counts_where_the_last_one_cannot_be_read(tmp_path: Path) -> None:
    genuine(tmp_path)
    (tmp_path / TOPICS_TABLE).rename(tmp_path / f"{TOPICS_TABLE}.bak")
    (tmp_path / TOPICS_TABLE).write_bytes(b"{")
    (tmp_path / MAKER_TABLE).write_bytes(b"")
    assert "one of broker-b, orders" in refusal(tmp_path)
