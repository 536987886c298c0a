"""Pulls at the edge: which replica is asked, what the header says, what the answers become."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from rocketcrew.client.cluster import Cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.pending import Waiter
from rocketcrew.conf.settings import load
from rocketcrew.durable.outcomes import FILTERED, LOST, SETTLED, SKIPPED, UNDELIVERED
from rocketcrew.remoting.bodies import SubscriptionData
from rocketcrew.remoting.codes import PULL_COMMIT_OFFSET, PULL_SUSPEND, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import BrokerError, ProtocolError, RocketcrewError, TimedOutError, UnreachableError
from rocketcrew.remoting.headers import PullRequest, PullResponse
from rocketcrew.remoting.names import MASTER_ID, TOOLS_GROUP
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.process_queue import Move
from rocketcrew.supervisor.core.states import QueueState
from rocketcrew.supervisor.member.pulls import BodySink, Pulls
from rocketcrew.supervisor.member.recreated import CLOCKS_APART_MS, LastBodies
from rocketcrew.supervisor.member.tails import Tails

from .conftest import TOPIC, record

if TYPE_CHECKING:
    from .conftest import Bench


SceneWith = Callable[..., "Scene"]


class Brokers:
    """A cluster and its connections in one: replicas by id, and the answers to come."""

    def __init__(self, addresses: Mapping[int, str]) -> None:
        self.addresses = addresses
        self.remoting = self
        self.connected = True
        self.sent_at_once = 0
        self.looked_for: list[str] = []
        self.asked: list[tuple[str, PullRequest]] = []
        self.answers: list[Command | Exception] = []

    def broker_address(self, _name: str, broker_id: int = MASTER_ID, *, only_this: bool = True) -> str | None:
        found = self.addresses.get(broker_id)
        if found is None and not only_this and self.addresses:
            found = next(iter(self.addresses.values()))
        return found

    async def address_of(self, _mq: object, broker_id: int = MASTER_ID, *, only_this: bool = True) -> str:
        found = self.broker_address("b", broker_id, only_this=only_this)
        if found is None:
            raise UnreachableError("b", "gone")
        return found

    def look_again(self, topic: str) -> None:
        self.looked_for.append(topic)

    def ask(self, address: str, command: Command, waiter: Waiter, *, body_sink: BodySink, **_: Any) -> bool:
        if not self.connected:
            return False
        self.sent_at_once += 1
        self.asked.append((address, PullRequest.from_fields(command.fields)))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            waiter.set_exception(answer)
        else:
            receive(answer, body_sink)
            waiter.set_result(answer)
        return True

    async def request(self, address: str, command: Command, *, body_sink: BodySink, **_: Any) -> Command:
        self.asked.append((address, PullRequest.from_fields(command.fields)))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        receive(answer, body_sink)
        return answer


def receive(answer: Command, sink: BodySink) -> None:
    view = sink(answer, len(answer.body)) if answer.body else None
    if view is not None:
        view[:] = answer.body


class Looks:
    """Of a queue that was made again: whatever time is looked for, it begins at 0."""

    def __init__(self) -> None:
        self.times_ms: list[int] = []
        self.refuses: RocketcrewError | None = None
        self.reset: PullResponse | None = None
        """An operator's, and TOOLS_CONSUMER may not read."""

    async def search_offset(self, _mq: MessageQueue, stored_ms: int, **_: object) -> int:
        self.times_ms.append(stored_ms)
        if self.refuses is not None:
            raise self.refuses
        return 0

    async def pull(self, _address: str, header: PullRequest, **_: object) -> Command:
        """Every message is of a moment ago."""
        if self.refuses is not None:
            raise self.refuses
        if self.reset is not None and header.consumer_group == TOOLS_GROUP:
            return Command(ResponseCode.NO_PERMISSION, remark="no")
        if self.reset is not None:
            reset, self.reset = self.reset, None
            return Command(ResponseCode.PULL_OFFSET_MOVED, reset.to_fields(), remark="OFFSET_RESET")
        return found([header.queue_offset], int(time.time() * 1000))


class Scene:
    def __init__(
        self, bench: Bench, addresses: Mapping[int, str], known: bool = True, connected: bool = True
    ) -> None:  # fmt: skip
        self.subscriptions = {TOPIC: SubscriptionData.of(TOPIC, "*", 77)}
        self.bench = bench
        self.failures: list[BaseException] = []
        self.cannot_fail: Exception | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self.answered = asyncio.Event()
        self.brokers = Brokers(addresses)
        self.brokers.connected = connected
        cluster = cast("Cluster", self.brokers)
        settings = load({"consumer.group": "g", "consumer.topics": TOPIC}, {}, None).consumer
        self.acts = 0
        self.looks = Looks()
        looks = cast("Operations", self.looks)
        self.pulls = Pulls(
            cluster, LastBodies(looks), Tails(looks, "g"), bench.core, memoryview(bench.view), settings,
            self.subscriptions, lambda _: known, lambda: bench.now, lambda _code: None,
            self.run, self.failed, self.acted,
        )  # fmt: skip
        bench.open(0, offset=5)

    def pull(self, answer: Command | Exception) -> tuple[str, PullRequest]:
        """The next pull, answered so; where it went, and its header."""
        self.brokers.answers.append(answer)
        asyncio.run(self.play())
        return self.brokers.asked[-1]

    def pull_nothing(self) -> None:
        """The next pull, which is not sent."""
        asyncio.run(self.play())

    async def play(self) -> None:
        """Until the pull is answered."""
        self.answered = asyncio.Event()
        self.pulls.pull(self.bench.one(act.Pull))
        await self.answered.wait()
        await asyncio.gather(*(task for task in self.tasks if not task.done()))

    def acted(self) -> None:
        self.acts += 1
        self.answered.set()

    def run(self, work: Coroutine[Any, Any, None], _action: act.Pull) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def failed(self, error: BaseException, _action: act.Pull) -> None:
        self.failures.append(error)
        self.answered.set()
        if self.cannot_fail is not None:
            raise self.cannot_fail


@pytest.fixture(params=[True, False], ids=["connected", "not connected"])
def scene_with(bench: Bench, request: pytest.FixtureRequest) -> SceneWith:
    """A scene with brokers at these addresses, whose connections are open or have to be made."""

    def make(addresses: Mapping[int, str], known: bool = True) -> Scene:
        return Scene(bench, addresses, known, request.param)

    return make


def found(offsets: Sequence[int], stored_ms: int) -> Command:
    """An answer with these records."""
    body = b"".join(record(offset, stored_ms=stored_ms) for offset in offsets)
    header = PullResponse(0, offsets[-1] + 1, 0, offsets[-1] + 100)
    return Command(ResponseCode.SUCCESS, header.to_fields(), body=body)


def nothing_new(suggest: int = 0, next_offset: int = 5) -> Command:
    return Command(ResponseCode.PULL_NOT_FOUND, PullResponse(suggest, next_offset, 0, next_offset).to_fields())


def test_the_header_is_javas(bench: Bench, scene_with: SceneWith) -> None:
    address, header = scene_with({0: "master"}).pull(nothing_new())
    assert address == "master"
    assert (header.consumer_group, header.topic, header.queue_id, header.queue_offset) == ("g", TOPIC, 0, 5)
    assert (header.max_msg_nums, header.sys_flag, header.suspend_timeout_millis) == (32, PULL_SUSPEND, 15_000)
    assert (header.sub_version, header.expression_type, header.subscription) == (77, "TAG", None)


def test_the_next_pull_goes_where_the_last_answer_said(bench: Bench, scene_with: SceneWith) -> None:
    scene = scene_with({0: "master", 1: "slave"})
    assert scene.pull(nothing_new(suggest=1))[0] == "master"
    assert scene.pull(nothing_new(suggest=0))[0] == "slave"
    assert scene.pull(nothing_new())[0] == "master"


@pytest.mark.parametrize(("addresses", "pulls"), [({0: "master", 1: "slave"}, 3), ({1: "slave"}, 2)])
def test_a_slave_that_lags_is_left_for_its_master_at_once_if_there_is_one(
    bench: Bench, scene_with: SceneWith, addresses: Mapping[int, str], pulls: int
) -> None:
    scene = scene_with(addresses)
    scene.pull(nothing_new(suggest=1))
    lags = Command(ResponseCode.PULL_RETRY_IMMEDIATELY, PullResponse(MASTER_ID, 5, 0, 3).to_fields())
    assert scene.pull(lags)[0] == "slave"
    assert bench.counters.pulls == pulls


@pytest.mark.parametrize(
    ("expression", "kind", "outcome"),
    [("*", "TAG", UNDELIVERED), ("a || b", "TAG", FILTERED), ("a || *", "TAG", FILTERED), ("x > 1", "SQL92", FILTERED)],
)
def test_what_an_answer_passes_over_is_judged_by_the_subscription_of_the_pull(
    bench: Bench, scene_with: SceneWith, expression: str, kind: str, outcome: str
) -> None:
    scene = scene_with({0: "master"})
    for other in ("z", expression):  # an earlier pull was for another one
        scene.subscriptions[TOPIC] = SubscriptionData.of(TOPIC, other, 78, kind)
        bench.core.state.outcomes.take("g")
        scene.pull(nothing_new(next_offset=bench.pq(1).next_offset + 3))
    assert list(bench.core.state.outcomes.take("g").without(SETTLED).kinds) == [outcome]


def test_what_is_known_of_a_queue_goes_with_it(bench: Bench, scene_with: SceneWith) -> None:
    scene = scene_with({0: "master", 1: "slave"})
    scene.pull(nothing_new(suggest=1))
    scene.pulls.keep(bench.core.state.by_mq.keys())
    assert scene.pull(nothing_new(suggest=1))[0] == "slave"
    bench.revoke()
    bench.commits()
    bench.take(act.Pull)
    scene.pulls.keep(bench.core.state.by_mq.keys())
    bench.open(0, offset=5)
    assert scene.pull(nothing_new())[0] == "master"


def test_a_suggested_replica_that_is_gone_is_replaced_by_another(bench: Bench, scene_with: SceneWith) -> None:
    scene = scene_with({0: "master"})
    scene.pull(nothing_new(suggest=3))
    assert scene.pull(nothing_new())[0] == "master"


def test_a_slave_serves_while_the_master_is_gone(bench: Bench, scene_with: SceneWith) -> None:
    assert scene_with({1: "slave"}).pull(nothing_new())[0] == "slave"


@pytest.mark.parametrize(
    ("known", "suggest", "flag"),
    [(True, 0, PULL_SUSPEND | PULL_COMMIT_OFFSET), (False, 0, PULL_SUSPEND), (True, 1, PULL_SUSPEND)],
    ids=["told", "not before the first commit is in", "not to a slave"],
)
def test_news_of_the_offset_go_along_to_the_master(
    bench: Bench, scene_with: SceneWith, known: bool, suggest: int, flag: int
) -> None:
    scene = scene_with({0: "master", 1: "slave"}, known)
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
def test_no_answer_is_asked_again_later(bench: Bench, scene_with: SceneWith, error: Exception) -> None:
    scene = scene_with({0: "master"})
    scene.pull(error)
    bench.none(act.Pull)
    bench.pass_ms(1_000)
    scene.pull(nothing_new())
    assert bench.counters.pull_errors == 1
    assert scene.brokers.looked_for == ["orders"], "the broker may be elsewhere now"


def test_a_refusal_needs_no_offsets_and_keeps_its_words(bench: Bench, scene_with: SceneWith) -> None:
    scene = scene_with({0: "master"})
    scene.pull(Command(ResponseCode.NO_PERMISSION, remark="forbidden"))
    (log,) = [log for log in bench.take(act.Log) if log.event == "pull_refused"]
    assert (log.keys["code"], log.keys["remark"]) == (ResponseCode.NO_PERMISSION, "forbidden")


@pytest.mark.parametrize(
    ("code", "remark", "deleted"),
    [
        (ResponseCode.PULL_NOT_FOUND, "OFFSET_FOUND_NULL", True),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING", True),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", False),
        (ResponseCode.PULL_NOT_FOUND, None, False),
    ],
)
def test_a_broker_says_by_its_remark_that_it_has_deleted_what_it_passes_over(
    bench: Bench, scene_with: SceneWith, code: int, remark: str | None, deleted: bool
) -> None:
    """The code is that of an empty queue, or of a filter."""
    scene = scene_with({0: "master"})
    scene.pull(Command(code, PullResponse(0, 1000, 0, 2000).to_fields(), remark=remark))
    (log,) = [log for log in bench.take(act.Log) if log.event == "pull_gap"]
    assert log.keys["deleted"] is deleted


def test_an_answer_that_makes_no_sense_is_asked_again(bench: Bench, scene_with: SceneWith) -> None:
    scene = scene_with({0: "master"})
    scene.pull(Command(ResponseCode.PULL_NOT_FOUND, {"nextBeginOffset": "x"}))
    assert bench.counters.pull_errors == 1


def test_an_answer_whose_records_bear_other_offsets_than_the_queue_is_not_taken(
    bench: Bench, scene_with: SceneWith
) -> None:
    """That of a static topic after a remapping: its records would count as passed."""
    scene = scene_with({0: "master"})
    with capture_logs() as logs:
        scene.pull(Command(ResponseCode.SUCCESS, PullResponse(0, 1010, 0, 1010, offset_delta=1000).to_fields()))
    assert [log["event"] for log in logs] == ["pull_failed"]
    assert "not read: take an ordinary topic" in logs[0]["error"]
    bench.pass_ms(1_000)
    assert scene.pull(nothing_new())[1].queue_offset == 5
    assert bench.counters.pull_errors == 1


def test_on_an_open_connection_a_pull_is_sent_at_once_and_makes_no_task(bench: Bench) -> None:
    scene = Scene(bench, {0: "master"})
    scene.pull(nothing_new())
    assert (scene.brokers.sent_at_once, scene.tasks) == (1, [])


def test_answers_that_come_together_are_acted_on_once(bench: Bench) -> None:
    scene = Scene(bench, {0: "master"})
    pulls = [bench.one(act.Pull)]
    bench.open(0, 1, offset=7)
    pulls.append(bench.one(act.Pull))

    async def both() -> None:
        scene.brokers.answers += [nothing_new(next_offset=6), nothing_new(next_offset=8)]
        for action in pulls:
            scene.pulls.pull(action)
        bench.none(act.Pull)
        await asyncio.sleep(0)

    asyncio.run(both())
    assert scene.acts == 1
    assert [pull.offset for pull in bench.take(act.Pull)] == [6, 8]


def test_of_answers_that_come_together_one_that_fails_keeps_no_other_back(bench: Bench) -> None:
    scene = Scene(bench, {0: "master"})
    pulls = [bench.one(act.Pull)]
    bench.open(0, 1, offset=7)
    pulls.append(bench.one(act.Pull))
    error = RuntimeError("a bug")

    async def both() -> None:
        scene.brokers.answers += [error, nothing_new(next_offset=8)]
        for action in pulls:
            scene.pulls.pull(action)
        await asyncio.sleep(0)

    asyncio.run(both())
    assert scene.failures == [error]
    assert [pull.offset for pull in bench.take(act.Pull)] == [8]


def test_a_failure_that_the_core_cannot_be_told_keeps_no_other_answer_back(bench: Bench) -> None:
    scene = Scene(bench, {0: "master"})
    pulls = [bench.one(act.Pull)]
    bench.open(0, 1, offset=7)
    pulls.append(bench.one(act.Pull))
    scene.cannot_fail = KeyError("the same bug")
    seen: list[object] = []

    async def both() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context.get("exception")))
        scene.brokers.answers += [RuntimeError("a bug"), nothing_new(next_offset=8)]
        for action in pulls:
            scene.pulls.pull(action)
        await asyncio.sleep(0)

    asyncio.run(both())
    assert [pull.offset for pull in bench.take(act.Pull)] == [8]
    assert scene.acts == 1
    (group,) = seen
    assert isinstance(group, ExceptionGroup)
    assert group.exceptions == (scene.cannot_fail,)


def test_an_offset_that_was_moved_comes_with_what_the_broker_still_has(bench: Bench, scene_with: SceneWith) -> None:
    answer = Command(ResponseCode.PULL_OFFSET_MOVED, PullResponse(0, 300, 120, 400).to_fields())
    scene_with({0: "master"}).pull(answer)
    notes = bench.core.state.outcomes.take("g").kinds
    found = {kind: [*one.pieces] for kind, records in notes.items() for one in records.queues.values()}
    assert found == {LOST: [(5, 120)], SKIPPED: [(120, 300)]}


def test_an_offset_that_was_moved_back_before_anything_came_is_looked_up(bench: Bench, scene_with: SceneWith) -> None:
    """The topic was made again while the member was idle: what it has by now is all new."""
    scene = scene_with({0: "master"})
    before_ms = time.time_ns() // 1_000_000
    scene.pulls.opening(bench.queue(0))
    scene.pull(Command(ResponseCode.PULL_OFFSET_MOVED, PullResponse(0, 3, 0, 3).to_fields()))
    (looked_ms,) = scene.looks.times_ms
    assert looked_ms >= before_ms - CLOCKS_APART_MS
    assert bench.one(act.Commit).offset == 0


def test_where_that_look_up_fails_the_broker_is_asked_again(bench: Bench, scene_with: SceneWith) -> None:
    """At its own word alone all that is new would be passed over; it comes from the queue's state, and so again."""
    scene = scene_with({0: "master"})
    scene.pulls.opening(bench.queue(0))
    moved = Command(ResponseCode.PULL_OFFSET_MOVED, PullResponse(0, 3, 0, 3).to_fields())
    scene.looks.refuses = TimedOutError("b", "late")
    scene.pull(moved)
    bench.none(act.Commit)
    scene.looks.refuses = None
    bench.pass_ms(1_000)
    scene.pull(moved)
    assert bench.one(act.Commit).offset == 0


def test_a_queue_whose_end_another_broker_has_replaced_goes_on_before_it(
    bench: Bench, scene_with: SceneWith
) -> None:  # fmt: skip
    """A failover to a replica that lagged, filled past our offset since: nothing in its answer to our pull would say so."""
    scene = scene_with({0: "master"})
    scene.pull(found([5, 6, 7], 1000))
    scene.brokers.addresses = {0: "another"}
    scene.looks.refuses = UnreachableError("another", "just starting")
    scene.pull_nothing()
    bench.pass_ms(1_000)
    scene.looks.refuses = None
    scene.pull_nothing()
    assert bench.pq(1).state is QueueState.DRAINING
    assert bench.core.state.pulled[1].move == Move(0, lost_to=0)
    assert [address for address, _ in scene.brokers.asked] == ["master"]


def test_a_queue_is_not_pulled_before_a_busy_broker_has_said_whether_its_end_was_replaced(
    bench: Bench, scene_with: SceneWith
) -> None:  # fmt: skip
    scene = scene_with({0: "master"})
    scene.pull(found([5, 6, 7], 1000))
    scene.pulls.connection_lost("master")
    scene.looks.refuses = BrokerError(ResponseCode.SYSTEM_BUSY, "flow control", "master")
    scene.pull_nothing()
    scene.looks.refuses = None
    bench.none(act.Pull)
    bench.pass_ms(1_000)
    scene.pull_nothing()
    assert bench.core.state.pulled[1].move == Move(0, lost_to=0)
    assert len(scene.brokers.asked) == 1


@pytest.mark.parametrize(
    "error", [ProtocolError("size", "record"), TimedOutError("b", "late"), BrokerError(1, "no", "b")], ids=str
)
def test_a_look_that_never_succeeds_does_not_stop_a_queue(
    bench: Bench, scene_with: SceneWith, error: RocketcrewError
) -> None:
    scene = scene_with({0: "master"})
    scene.pull(found([5, 6, 7], 1000))
    scene.pulls.connection_lost("master")
    scene.looks.refuses = error
    while len(scene.brokers.asked) == 1:
        scene.brokers.answers = [nothing_new(next_offset=8)]
        scene.pull_nothing()
        bench.pass_ms(1_000)
        assert bench.now < 5


def test_while_pulls_fail_as_looks_do_none_is_sent_before_a_look(bench: Bench, scene_with: SceneWith) -> None:
    scene = scene_with({0: "master"})
    scene.pull(found([5, 6, 7], 1000))
    scene.pulls.connection_lost("master")
    scene.looks.refuses = BrokerError(ResponseCode.NO_PERMISSION, "no", "master")
    scene.pull(TimedOutError("master", "late"))
    scene.looks.refuses = None
    bench.pass_ms(1_000)
    scene.brokers.answers = [nothing_new(next_offset=8)]
    scene.pull_nothing()
    assert bench.core.state.pulled[1].move == Move(0, lost_to=0)
    assert len(scene.brokers.asked) == 2


def test_an_operators_reset_that_a_look_was_told_is_where_the_queue_goes_on(
    bench: Bench, scene_with: SceneWith
) -> None:
    """It is told once. In whose name looks are made: test_tails.py."""
    scene = scene_with({0: "master"})
    scene.pull(found([5, 6, 7], 1000))
    scene.pulls.connection_lost("master")
    scene.looks.reset = PullResponse(0, 3, 0, 100)
    scene.pull_nothing()
    assert (scene.looks.reset, scene.looks.times_ms) == (None, [])
    assert bench.core.state.pulled[1].move == Move(3, skips_from=0, lost_to=0)


def test_the_marks_of_a_queue_that_is_opened_again_are_kept(bench: Bench, scene_with: SceneWith) -> None:
    """The way back of a queue in doubt is a guarded commit. The group is still where we are, so it is not taken, and the
    queue is opened there; meanwhile what is remembered of other queues is forgotten."""
    scene = scene_with({0: "master"})
    scene.pull(nothing_new(next_offset=8))
    scene.pull(found([8], 1000))
    bench.worker("w1")
    bench.done(bench.dispatched()[0])
    bench.persist()
    bench.take(act.Pull)
    bench.core.handle(ev.BrokerLost("b"), bench.now)
    bench.core.handle(ev.NoAnswer(1, None), bench.now)
    scene.pulls.connection_lost("master")
    bench.pass_ms(1_000)
    scene.pull_nothing()
    commit = bench.one(act.Commit)
    assert commit.guarded
    bench.core.handle(ev.Committed(commit.handle, commit.offset, True, 9), bench.now)
    assert bench.core.state.by_mq == {}
    scene.pulls.keep(bench.core.queues_held())
    bench.open(0, offset=9)
    scene.pull_nothing()
    bench.pass_ms(1_000)
    commit = bench.one(act.Commit)
    assert (commit.offset, commit.guarded) == (0, False)


def test_the_broker_s_own_word_ends_the_search_for_what_was_replaced(bench: Bench, scene_with: SceneWith) -> None:
    scene = scene_with({0: "master"})
    scene.pull(found([5, 6, 7], 1000))
    scene.pulls.reset([bench.queue(0)])
    scene.brokers.addresses = {0: "another"}
    assert scene.pull(nothing_new(next_offset=8))[0] == "another"


def test_an_operators_reset_backwards_is_where_he_said(bench: Bench, scene_with: SceneWith) -> None:
    """Brokers since 5.2 tell it as they correct an offset, but of a queue that goes on behind it."""
    scene = scene_with({0: "master"})
    scene.pulls.opening(bench.queue(0))
    scene.pull(Command(ResponseCode.PULL_OFFSET_MOVED, PullResponse(0, 3, 0, 5).to_fields()))
    assert scene.looks.times_ms == []
    assert bench.one(act.Commit).offset == 3


def test_a_server_that_sends_us_away_is_asked_again_as_if_nothing_were_connected(bench: Bench) -> None:
    scene = Scene(bench, {0: "master"})
    scene.brokers.answers.append(Command(ResponseCode.GO_AWAY))
    scene.pull(nothing_new(next_offset=7))
    assert [len(scene.brokers.asked), len(scene.tasks), bench.counters.pull_errors] == [2, 1, 0]
    assert bench.one(act.Pull).offset == 7


def test_an_error_that_nobody_expected_fails_the_action(bench: Bench) -> None:
    scene = Scene(bench, {0: "master"})
    error = RuntimeError("a bug")
    scene.pull(error)
    assert scene.failures == [error]


def test_answers_that_are_not_waited_for_any_more_change_nothing(bench: Bench) -> None:
    scene = Scene(bench, {0: "master"})
    scene.brokers.answers.append(nothing_new())

    async def leave() -> None:
        scene.pulls.pull(bench.one(act.Pull))
        scene.pulls.cancel()
        await asyncio.sleep(0)

    asyncio.run(leave())
    assert (scene.acts, bench.counters.pull_errors) == (0, 0)
    bench.none(act.Pull)
