"""A cluster of which one broker does not answer, or refuses: what the others have is shown, and what is missing is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketcrew import OutgoingMessage, SyncProducer
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli import main
from rocketcrew.cli.wording import not_known
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.loop_thread import LoopThread
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.remoting.bodies import BrokerData, QueueData, TopicRouteData
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import UnreachableError

NOBODY = "127.0.0.1:1"
READ_AND_WRITE = 6


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    thread, broker = LoopThread("broker"), EmbeddedBroker()
    thread.run(broker.start())

    async def fill(cluster: Cluster) -> None:
        for topic in ("orders", "refunds"):
            await Admin(cluster).create_topic(broker.address, TopicConfig(topic, 2, 2))

    run_with_cluster(broker.name_server, fill)
    with SyncProducer(broker.name_server) as producer:
        for number in range(3):
            producer.send(OutgoingMessage("orders", b"%d" % number))
    yield broker
    thread.run(broker.stop())
    thread.close()


class OtherBroker:
    """As the name server's intercept: these topics are at a broker as well that is away, or only there."""

    def __init__(self, broker: EmbeddedBroker, *topics: str, alone: bool = False) -> None:
        self.topics = topics
        names = {"broker-b": NOBODY} if alone else {"broker-a": broker.address, "broker-b": NOBODY}
        self.route = TopicRouteData(
            tuple(QueueData(name, 2, 2, READ_AND_WRITE) for name in names),
            tuple(BrokerData(name, {0: address}) for name, address in names.items()),
        )

    def __call__(self, command: Command) -> Command | None:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and command.fields["topic"] in self.topics:
            return command.response(ResponseCode.SUCCESS, body=self.route.encode())
        return None


def refused(command: Command) -> Command | None:
    codes = RequestCode.GET_TOPIC_STATS_INFO, RequestCode.GET_MIN_OFFSET
    return command.response(ResponseCode.NO_PERMISSION, remark="not you") if command.code in codes else None


def said(broker: EmbeddedBroker, folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main.run([*words, "-n", broker.name_server], {}, folder)
    out, err = capsys.readouterr()
    return code, out, err


def test_topics_of_brokers_that_answer_are_shown(
    broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.name_server_intercepts.append(OtherBroker(broker, "orders"))
    broker.name_server_intercepts.append(OtherBroker(broker, "refunds", alone=True))
    code, out, err = said(broker, tmp_path, capsys, "topics", "--json")
    assert [(one["name"], one["queues"], one["messages"]) for one in json.loads(out)["topics"]] == [("orders", 2, 3)]
    assert code == 1
    assert err.startswith(f"rocketcrew: not all is known of orders, refunds: {NOBODY}: ")
    assert err.count("\n") == 1


def test_topics_of_a_cluster_of_which_no_broker_answers_are_not_taken_for_none(
    broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.name_server_intercepts.append(OtherBroker(broker, "orders", "refunds", alone=True))
    code, out, err = said(broker, tmp_path, capsys, "topics")
    assert (code, out, NOBODY in err) == (3, "", True)


def test_an_account_that_is_refused_is_not_told_that_there_are_no_topics(
    broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.intercepts.append(refused)
    code, out, err = said(broker, tmp_path, capsys, "topics")
    assert (code, out, "refused: not you" in err) == (1, "", True)


def test_topics_that_were_deleted_meanwhile_are_none(
    broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = ResponseCode.TOPIC_NOT_EXIST
    broker.intercepts.append(lambda one: one.response(gone) if one.code == RequestCode.GET_TOPIC_STATS_INFO else None)
    code, out, err = said(broker, tmp_path, capsys, "topics")
    assert (code, "has no topics" in out, err) == (0, True, "")


def test_each_reason_is_one_line() -> None:
    away, other = UnreachableError("b:1", "no answer"), UnreachableError("c:1", "no answer")
    assert not_known([("t2", away), ("t1", away), ("t1", other)]) == [
        "not all is known of t1, t2: b:1: no answer",
        "not all is known of t1: c:1: no answer",
    ]


@pytest.mark.parametrize("since", [(), ("--from", "earliest")])
def test_peek_shows_what_brokers_have_that_answer(
    since: tuple[str, ...], broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.name_server_intercepts.append(OtherBroker(broker, "orders"))
    code, out, err = said(broker, tmp_path, capsys, "peek", "-t", "orders", "--json", *since)
    assert sorted(json.loads(line)["body"] for line in out.splitlines()) == [0, 1, 2]
    assert code == 1
    assert err.startswith(f"rocketcrew: not asked: broker-b ({NOBODY}: ")
    assert err.count("\n") == 1


def test_peek_at_brokers_that_do_not_answer_or_refuse_fails(
    broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.intercepts.append(refused)
    code, out, err = said(broker, tmp_path, capsys, "peek", "-t", "orders")
    assert (code, out, "refused: not you" in err) == (1, "", True)
    broker.name_server_intercepts.append(OtherBroker(broker, "orders", alone=True))
    code, out, err = said(broker, tmp_path, capsys, "peek", "-t", "orders")
    assert (code, out, NOBODY in err) == (3, "", True)
