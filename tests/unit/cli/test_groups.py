"""Which groups there are, asked of an embedded broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli import main
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.loop_thread import LoopThread
from rocketcrew.client.operations import Operations
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.queues import MessageQueue

TOPICS = ("orders", "tags", "%RETRY%billing", "%RETRY%billing_orders", "%RETRY%billing_tags")


async def fill(cluster: Cluster) -> None:
    """The retry topic of a popped topic, and a group of its own that is called as another would be."""
    for topic in TOPICS:
        await Admin(cluster).create_topic_everywhere(TopicConfig(topic, read_queue_nums=1, write_queue_nums=1))
    await Operations(cluster).update_consumer_offset("billing_tags", MessageQueue("tags", "embedded", 0), 0)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    thread, broker = LoopThread("broker"), EmbeddedBroker()
    thread.run(broker.start())
    run_with_cluster(broker.name_server, fill)
    yield broker
    thread.run(broker.stop())
    thread.close()


class Refusing:
    """An intercept: this account may not ask that of billing."""

    def __init__(self, *codes: RequestCode, field: str = "consumerGroup") -> None:
        self._codes, self._field = codes, field

    def __call__(self, command: Command) -> Command | None:
        if command.code in self._codes and command.fields[self._field] == "billing":
            return command.response(ResponseCode.NO_PERMISSION, remark="not you")
        return None


def test_the_retry_topics_of_popped_topics_are_no_groups(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main.run(["groups", "-n", broker.name_server, "--json"], {}, tmp_path) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["groups"]] == ["billing", "billing_tags"]


def test_a_group_that_the_account_may_not_see_is_named_beside_the_others(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["groups", "-n", broker.name_server, "--json"]
    broker.intercepts.append(Refusing(RequestCode.GET_CONSUMER_CONNECTION_LIST))
    assert main.run(words, {}, tmp_path) == 1
    out, err = capsys.readouterr()
    assert [one["name"] for one in json.loads(out)["groups"]] == ["billing_tags"]
    assert err.startswith("rocketcrew: not all is known of billing: ")
    assert err.count("\n") == 1
    broker.intercepts[:] = [Refusing(RequestCode.GET_CONSUME_STATS)]
    assert main.run(words, {}, tmp_path) == 1
    out, err = capsys.readouterr()
    assert {one["name"]: one["lag"] for one in json.loads(out)["groups"]} == {"billing": None, "billing_tags": 0}
    assert "not all is known of billing: " in err


def test_an_account_that_may_see_no_group_is_not_told_that_there_are_none(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    broker.intercepts.append(
        lambda one: one.response(ResponseCode.NO_PERMISSION, remark="not you") if one.code == code else None
    )
    assert main.run(["groups", "-n", broker.name_server], {}, tmp_path) == 1
    out, err = capsys.readouterr()
    assert (out, "not you" in err) == ("", True)
