"""Pulls at the edge: which replica is asked, what the header says, what the answers become."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import pytest

from rocketcrew.client.cluster import Cluster
from rocketcrew.client.operations import Operations
from rocketcrew.conf.settings import load
from rocketcrew.remoting.bodies import SubscriptionData
from rocketcrew.remoting.codes import PULL_COMMIT_OFFSET, PULL_SUSPEND, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import TimedOutError, UnreachableError
from rocketcrew.remoting.headers import PullRequest, PullResponse
from rocketcrew.remoting.names import MASTER_ID
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.member.pulls import Pulls
from rocketcrew.supervisor.member.recreated import LastBodies

from .conftest import TOPIC

if TYPE_CHECKING:
    from .conftest import Bench


class Brokers:
    """A cluster and its connections in one: replicas by id, and the answers to come."""

    def __init__(self, addresses: Mapping[int, str]) -> None:
        self.addresses = addresses
        self.remoting = self
        self.asked: list[tuple[str, PullRequest]] = []
        self.answers: list[Command | Exception] = []

    def broker_address(self, _name: str, broker_id: int = MASTER_ID, **_: object) -> str | None:
        return self.addresses.get(broker_id)

    async def address_of(self, _mq: object, broker_id: int = MASTER_ID, *, only_this: bool = True) -> str:
        found = self.addresses.get(broker_id)
        if found is None and not only_this and self.addresses:
            found = next(iter(self.addresses.values()))
        if found is None:
            raise UnreachableError("b", "gone")
        return found

    async def request(self, address: str, command: Command, **_: Any) -> Command:
        self.asked.append((address, PullRequest.from_fields(command.fields)))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Scene:
    def __init__(self, bench: Bench, addresses: Mapping[int, str], known: bool = True) -> None:
        self.bench = bench
        self.brokers = Brokers(addresses)
        cluster = cast("Cluster", self.brokers)
        settings = load({"consumer.group": "g", "consumer.topics": TOPIC}, {}, None).consumer
        self.pulls = Pulls(
            cluster, LastBodies(Operations(cluster)), bench.core, memoryview(bench.view), settings,
            {TOPIC: SubscriptionData.of(TOPIC, "*", 77)}, lambda _: known, lambda: bench.now, lambda _code: None,
        )  # fmt: skip
        bench.open(0, offset=5)

    def pull(self, answer: Command | Exception) -> tuple[str, PullRequest]:
        """The next pull, answered so; where it went, and its header."""
        self.brokers.answers.append(answer)
        asyncio.run(self.pulls.pull(self.bench.one(act.Pull)))
        return self.brokers.asked[-1]


def nothing_new(suggest: int = 0, next_offset: int = 5) -> Command:
    return Command(ResponseCode.PULL_NOT_FOUND, PullResponse(suggest, next_offset, 0, next_offset).to_fields())


def test_the_header_is_javas(bench: Bench) -> None:
    address, header = Scene(bench, {0: "master"}).pull(nothing_new())
    assert address == "master"
    assert (header.consumer_group, header.topic, header.queue_id, header.queue_offset) == ("g", TOPIC, 0, 5)
    assert (header.max_msg_nums, header.sys_flag, header.suspend_timeout_millis) == (32, PULL_SUSPEND, 15_000)
    assert (header.sub_version, header.expression_type, header.subscription) == (77, "TAG", None)


def test_the_next_pull_goes_where_the_last_answer_said(bench: Bench) -> None:
    scene = Scene(bench, {0: "master", 1: "slave"})
    assert scene.pull(nothing_new(suggest=1))[0] == "master"
    assert scene.pull(nothing_new(suggest=0))[0] == "slave"
    assert scene.pull(nothing_new())[0] == "master"


def test_what_is_known_of_a_queue_goes_with_it(bench: Bench) -> None:
    scene = Scene(bench, {0: "master", 1: "slave"})
    scene.pull(nothing_new(suggest=1))
    scene.pulls.keep(bench.core.state.by_mq.keys())
    assert scene.pull(nothing_new(suggest=1))[0] == "slave"
    bench.revoke()
    bench.commits()
    bench.take(act.Pull)
    scene.pulls.keep(bench.core.state.by_mq.keys())
    bench.open(0, offset=5)
    assert scene.pull(nothing_new())[0] == "master"


def test_a_suggested_replica_that_is_gone_is_replaced_by_another(bench: Bench) -> None:
    scene = Scene(bench, {0: "master"})
    scene.pull(nothing_new(suggest=3))
    assert scene.pull(nothing_new())[0] == "master"


def test_a_slave_serves_while_the_master_is_gone(bench: Bench) -> None:
    assert Scene(bench, {1: "slave"}).pull(nothing_new())[0] == "slave"


@pytest.mark.parametrize(
    ("known", "suggest", "flag"),
    [(True, 0, PULL_SUSPEND | PULL_COMMIT_OFFSET), (False, 0, PULL_SUSPEND), (True, 1, PULL_SUSPEND)],
    ids=["told", "not before the first commit is in", "not to a slave"],
)
def test_news_of_the_offset_go_along_to_the_master(bench: Bench, known: bool, suggest: int, flag: int) -> None:
    scene = Scene(bench, {0: "master", 1: "slave"}, known)
    bench.worker("w1")
    scene.pull(nothing_new(suggest))
    (pull,) = bench.take(act.Pull)
    bench.found(pull.handle, [5])
    (chunk,) = bench.dispatched()
    (pull,) = bench.take(act.Pull)
    bench.done(chunk)
    bench.answer(pull.handle, ResponseCode.PULL_NOT_FOUND, 6)
    _, header = scene.pull(nothing_new(next_offset=6))
    assert (header.sys_flag, header.commit_offset) == (flag, 6)


@pytest.mark.parametrize("error", [TimedOutError("b", "late"), UnreachableError("b", "gone")])
def test_no_answer_is_asked_again_later(bench: Bench, error: Exception) -> None:
    scene = Scene(bench, {0: "master"})
    scene.pull(error)
    bench.none(act.Pull)
    bench.pass_ms(1_000)
    scene.pull(nothing_new())
    assert bench.counters.pull_errors == 1


def test_a_refusal_needs_no_offsets_and_keeps_its_words(bench: Bench) -> None:
    scene = Scene(bench, {0: "master"})
    scene.pull(Command(ResponseCode.NO_PERMISSION, remark="forbidden"))
    (log,) = [log for log in bench.take(act.Log) if log.event == "pull_refused"]
    assert (log.keys["code"], log.keys["remark"]) == (ResponseCode.NO_PERMISSION, "forbidden")


def test_an_answer_that_makes_no_sense_is_asked_again(bench: Bench) -> None:
    scene = Scene(bench, {0: "master"})
    scene.pull(Command(ResponseCode.PULL_NOT_FOUND, {"nextBeginOffset": "x"}))
    assert bench.counters.pull_errors == 1
