"""Where a queue begins, by the table of computePullFromWhere; and commits that find their master gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from rocketcrew.client.cluster import Cluster
from rocketcrew.client.operations import Operations
from rocketcrew.conf.formats import consume_timestamp_ms
from rocketcrew.conf.settings import load
from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.remoting.errors import BrokerError, TimedOutError, UnreachableError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.actions import Commit
from rocketcrew.supervisor.core.decisions import Core
from rocketcrew.supervisor.core.events import Committed, Event
from rocketcrew.supervisor.member.commits import BrokersOffsets, Commits
from rocketcrew.supervisor.member.first_offset import (
    CONSUME_TIMESTAMP_BACK_MS,
    FileOffsets,
    FirstOffset,
    timestamp_to_begin_at,
)
from rocketcrew.supervisor.member.local_offsets import LocalOffsets

MQ, RETRY = MessageQueue("orders", "broker-a", 0), MessageQueue("%RETRY%g", "broker-a", 0)
LAST, FIRST, TIMESTAMP = "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP"


class Brokers:
    """The answers of brokers: a stored offset or none, a queue that is young or not, its end, and an offset by time."""

    def __init__(self, stored: int | None = None, *, young: bool = False) -> None:
        self.stored = stored
        self.young = young
        self.updated: list[tuple[str, int]] = []
        self.master, self.after = "old:1", "new:1"
        """And that of the next route."""
        self.living = {"new:1"}
        self.deleted = self.unrouted = False
        self.remoting = self
        self.closed: list[Callable[[str], None]] = []
        self.tells_none = True
        """By `set_zero_if_not_found=False`: brokers of 4.9 say 0 then, too."""
        self.at_once = self.questions = 0
        self.beside: list[int] = []
        """Of each commit: how many others were under way when it was in."""
        self.asked_for_any: Callable[[], None] = lambda: None

    def on_close(self, callback: Callable[[str], None]) -> None:
        self.closed.append(callback)

    async def query_consumer_offset(
        self, _group: str, _mq: MessageQueue, *, set_zero_if_not_found: bool | None = None
    ) -> int | None:
        if self.stored is None and self.young and (set_zero_if_not_found is not False or not self.tells_none):
            return 0
        return self.stored

    async def has_offsets(self, _group: str, _mq: MessageQueue) -> bool:
        self.questions += 1
        await asyncio.sleep(0)
        found = self.stored is not None
        self.asked_for_any()
        return found

    async def max_offset(self, _mq: MessageQueue) -> int:
        return 100

    async def search_offset(self, _mq: MessageQueue, timestamp_ms: int) -> int:
        return timestamp_ms // 10

    async def update_consumer_offset(self, _group: str, _mq: MessageQueue, offset: int) -> None:
        if self.master not in self.living:
            raise UnreachableError(self.master, "gone")
        if self.deleted:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, "", "UPDATE_CONSUMER_OFFSET")
        self.at_once += 1
        await asyncio.sleep(0)
        self.at_once -= 1
        self.beside.append(self.at_once)
        self.updated.append((self.master, offset))

    def broker_address(self, _name: str, *, only_this: bool = True) -> str:
        del only_this
        return self.master

    def is_final(self, _mq: MessageQueue) -> bool:
        return self.master != "slave:1"

    async def route(self, _topic: str, refresh: bool = False) -> None:
        assert refresh
        if self.unrouted:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, "", "GET_ROUTEINFO_BY_TOPIC")
        self.master = self.after


def begin(brokers: Brokers, mq: MessageQueue, where: str) -> tuple[int, str]:
    operations = cast("Operations", brokers)
    return asyncio.run(FirstOffset(operations, BrokersOffsets(operations, "g"), where, 420).find(mq))


@pytest.mark.parametrize(
    ("mq", "where", "offset", "reason"),
    [
        (MQ, LAST, 100, LAST), (MQ, FIRST, 0, FIRST), (MQ, TIMESTAMP, 42, f"{TIMESTAMP} 420"),
        (RETRY, LAST, 0, "a retry topic: its beginning"), (RETRY, FIRST, 0, "a retry topic: its beginning"),
        (RETRY, TIMESTAMP, 100, "a retry topic, CONSUME_FROM_TIMESTAMP: its end"),
    ],
)  # fmt: skip
def test_a_new_group(mq: MessageQueue, where: str, offset: int, reason: str) -> None:
    assert begin(Brokers(), mq, where) == (offset, reason)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("20250101000000", consume_timestamp_ms("20250101000000")), ("", 9**14 - CONSUME_TIMESTAMP_BACK_MS)],
)
def test_without_a_timestamp_half_an_hour_ago_is_meant(text: str, ms: int) -> None:
    assert timestamp_to_begin_at(load({"consumer.consume_timestamp": text}, {}, None).consumer, 9**14) == ms


@pytest.mark.parametrize("where", [LAST, FIRST, TIMESTAMP])
def test_a_stored_offset_counts_whatever_is_configured(where: str) -> None:
    assert begin(Brokers(7), MQ, where) == (7, "the broker's stored offset")
    assert begin(Brokers(0), MQ, where) == (0, "the broker's stored offset")


@pytest.mark.parametrize("where", [LAST, FIRST, TIMESTAMP])
def test_a_young_queue_begins_at_its_beginning_and_says_why(where: str) -> None:
    offset, reason = begin(Brokers(young=True), MQ, where)
    assert offset == 0
    assert "young queue" in reason


def test_a_broadcasting_member_has_its_own_offsets(tmp_path: Path) -> None:
    local = LocalOffsets(tmp_path / "offsets.json")
    local.write({MQ: 5})
    operations = cast("Operations", Brokers(99))
    first = FirstOffset(operations, FileOffsets(local), LAST, 420)
    assert asyncio.run(first.find(MQ)) == (5, f"the offset in {local.path}")
    assert asyncio.run(first.find(MQ._replace(queue_id=1))) == (100, LAST)


@pytest.mark.parametrize(("stored", "at"), [(7, 7), (0, 0), (None, -1)])
def test_where_the_group_is_with_a_queue_in_doubt(stored: int | None, at: int) -> None:
    """What is configured says nothing of it: a broker that was killed has forgotten the offset, and nobody is at the end."""
    operations = cast("Operations", Brokers(stored))
    assert asyncio.run(FirstOffset(operations, BrokersOffsets(operations, "g"), LAST, 420).group_is_at(MQ, 7)) == at


@pytest.mark.parametrize("tells_none", [True, False], ids=["5.x", "4.9"])
def test_the_zero_that_a_broker_makes_up_is_no_offset_of_a_queue_in_doubt(tells_none: bool) -> None:
    """It was taken for a reset: after a long outage of a broker that had forgotten us all was run again."""
    brokers = Brokers(young=True)
    brokers.tells_none = tells_none
    operations = cast("Operations", brokers)
    offsets = FirstOffset(operations, BrokersOffsets(operations, "g"), LAST, 420)
    assert asyncio.run(offsets.group_is_at(MQ, 7)) == -1


def test_queues_in_doubt_at_once_ask_together_whether_the_broker_has_any_offset() -> None:
    """Its answer tells of all the group's queues: 1,000 of them asked 1,000 times, 29 s of the supervisor."""
    brokers = Brokers(young=True)
    brokers.tells_none = False
    offsets = BrokersOffsets(cast("Operations", brokers), "g")

    async def of_many() -> list[int | None]:
        return await asyncio.gather(*(offsets.stored(MQ._replace(queue_id=number), 7) for number in range(100)))

    assert set(asyncio.run(of_many())) == {None}
    assert brokers.questions == 2  # the second by those that came when the first was under way
    assert asyncio.run(offsets.stored(MQ, 7)) is None
    assert brokers.questions == 2  # nothing that it could say would count
    offsets.committed(MQ)
    brokers.stored = 0  # an operator's reset
    assert asyncio.run(offsets.stored(MQ, 7)) == 0
    assert brokers.questions == 3


class First(Brokers):
    """A broker of 4.9 that has the offset of one queue or of none."""

    has_one = False

    async def has_offsets(self, _group: str, _mq: MessageQueue) -> bool:
        return self.has_one


def test_the_first_commit_after_a_broker_forgot_all_does_not_hide_that_from_the_other_queues() -> None:
    """Of one queue 4.9 says that it has none, of others 0: these were asked about when the first one had committed, and their
    last offsets at a stop were left out as if an operator had reset them."""
    brokers = First()
    offsets = BrokersOffsets(cast("Operations", brokers), "g")
    assert asyncio.run(offsets.stored(MQ, 7)) is None
    offsets.committed(MQ)
    brokers.has_one, brokers.young, brokers.tells_none = True, True, False
    assert asyncio.run(offsets.stored(MQ._replace(queue_id=1), 7)) is None


def test_what_is_committed_while_a_question_is_under_way_counts_after_it() -> None:
    """The answer was of before, and took the commit back: forgotten once more, that queue went first without a question."""
    offsets: BrokersOffsets

    class Meanwhile(First):
        async def has_offsets(self, _group: str, _mq: MessageQueue) -> bool:
            if not self.has_one:
                offsets.committed(MQ)
            return self.has_one

    brokers = Meanwhile(young=True)
    brokers.tells_none = False
    offsets = BrokersOffsets(cast("Operations", brokers), "g")
    assert asyncio.run(offsets.stored(MQ._replace(queue_id=1), 7)) is None
    brokers.has_one = True
    assert asyncio.run(offsets.stored(MQ, 7)) == 0, "an operator's reset"


def test_queues_that_wait_for_a_question_that_fails_fail_with_it() -> None:
    """Each asked anew and waited as long: a stop with 200 queues took until its deadline."""
    brokers = Brokers(young=True)
    brokers.tells_none = False

    def fails() -> None:
        raise TimedOutError("broker-a", "GET_CONSUME_STATS")

    brokers.asked_for_any = fails
    offsets = BrokersOffsets(cast("Operations", brokers), "g")

    async def of_many() -> list[int | BaseException | None]:
        queues = [MQ._replace(queue_id=number) for number in range(100)]
        return await asyncio.gather(*(offsets.stored(mq, 7) for mq in queues), return_exceptions=True)

    assert {type(each) for each in asyncio.run(of_many())} == {TimedOutError}
    assert brokers.questions == 2  # the second by those that came when the first was under way
    brokers.asked_for_any = lambda: None
    assert asyncio.run(offsets.stored(MQ, 7)) is None, "later it may answer"


class Answers:
    """A core of which only the answers to commits are looked at."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, bool]] = []
        self.left_at, self.final = -1, True
        self.doubts = self
        self.doubted = False

    def guards(self, commit: Commit) -> bool:
        return self.doubted and not commit.moves

    def handle(self, event: Event, _now: float) -> None:
        assert isinstance(event, Committed)
        self.seen.append((event.offset, event.ok))
        self.left_at, self.final = event.left_at, event.final


def commits_to(brokers: Brokers, core: Any) -> Commits:
    return Commits(cast("Cluster", brokers), cast("Operations", brokers), cast("Core", core), "g", lambda: 0.0)


def commit(brokers: Brokers, *actions: Commit) -> list[tuple[int, bool]]:
    core: Any = Answers()
    commits = commits_to(brokers, core)

    async def one_after_the_other() -> None:
        for action in actions:
            await commits.commit(action)

    asyncio.run(one_after_the_other())
    return cast("Answers", core).seen


def test_a_commit_follows_its_master() -> None:
    brokers = Brokers()
    assert commit(brokers, Commit(1, MQ, 5, guarded=False)) == [(5, True)]
    assert brokers.updated == [("new:1", 5)]


def test_without_another_master_the_commit_is_tried_at_the_next_persist() -> None:
    brokers = Brokers()
    brokers.living = set()
    assert commit(brokers, Commit(1, MQ, 5, guarded=False)) == [(5, False)]


def test_a_topic_that_the_name_server_does_not_know_while_its_broker_is_away_is_not_gone() -> None:
    """It knows no topic whose only broker is unregistered: such a commit is not in, and a stop must not be called clean."""
    brokers = Brokers()
    brokers.living, brokers.unrouted = set(), True
    assert commit(brokers, Commit(1, MQ, 5, guarded=False)) == [(5, False)]


@pytest.mark.parametrize("moves", [False, True])
def test_where_the_master_is_another_by_now_the_commit_looks_at_the_offset(moves: bool) -> None:
    """While it waited for the old one, another member has gone on to 400. Where the queue was moved to is told as it is."""
    brokers, core = Brokers(400), Answers()
    asyncio.run(commits_to(brokers, core).commit(Commit(1, MQ, 5, guarded=False, known=3, moves=moves)))
    assert core.seen == [(5, True)]
    assert (brokers.updated, core.left_at) == (([("new:1", 5)], -1) if moves else ([], 400))


def test_a_topic_that_a_slave_does_not_know_is_not_gone() -> None:
    """It had not fetched it from its master yet: what it refused counted as committed, and a stop as clean."""
    brokers = Brokers()
    brokers.master, brokers.living, brokers.deleted = "slave:1", {"slave:1"}, True
    assert commit(brokers, Commit(1, MQ, 5, guarded=False)) == [(5, False)]


@pytest.mark.parametrize(("master", "after", "final"), [("new:1", "new:1", True), ("slave:1", "slave:1", False),
                                                        ("old:1", "slave:1", False)])  # fmt: skip
def test_a_commit_says_whether_a_master_took_it(master: str, after: str, final: bool) -> None:
    """Also where the route was another one when it was begun."""
    brokers, core = Brokers(), Answers()
    brokers.master, brokers.after, brokers.living = master, after, {"new:1", "slave:1"}
    commits = commits_to(brokers, core)
    asyncio.run(commits.commit(Commit(1, MQ, 5, guarded=False)))
    assert (core.seen, core.final) == ([(5, True)], final)


def test_a_commit_that_waited_until_its_queue_was_in_doubt_looks_at_the_offset() -> None:
    brokers, core = Brokers(400), Answers()
    brokers.master, core.doubted = "new:1", True
    asyncio.run(commits_to(brokers, core).commit(Commit(1, MQ, 5, guarded=False, known=3)))
    assert (core.seen, core.left_at, brokers.updated) == ([(5, True)], 400, [])


def test_a_commit_that_waited_for_the_first_one_of_its_topic_looks_at_the_offset() -> None:
    """The doubt begins while the first is under way."""

    async def run() -> None:
        brokers, core = Brokers(), Answers()
        brokers.master = "new:1"
        commits = commits_to(brokers, core)
        first = asyncio.ensure_future(commits.commit(Commit(1, MQ, 5, guarded=False)))
        second = asyncio.ensure_future(commits.commit(Commit(2, MQ._replace(queue_id=1), 7, guarded=False, known=3)))
        await asyncio.sleep(0)
        assert brokers.at_once == 1
        brokers.stored, core.doubted = 400, True
        await asyncio.gather(first, second)
        assert brokers.updated == [("new:1", 5)]
        assert core.left_at == 400

    asyncio.run(run())


def test_a_guarded_commit_that_waited_for_the_first_one_of_its_topic_looks_again() -> None:
    """All queues of a member that left had looked at once; while they were told one by one, the new owner went on, and was
    gone over: of 200 queues 191."""

    async def run() -> None:
        brokers, core = Brokers(4), Answers()
        brokers.master = "new:1"
        commits = commits_to(brokers, core)
        leaving = [
            asyncio.ensure_future(commits.commit(Commit(queue, MQ._replace(queue_id=queue), 5, guarded=True, known=4)))
            for queue in range(2)
        ]
        await asyncio.sleep(0)
        assert brokers.at_once == 1
        brokers.stored = 400
        await asyncio.gather(*leaving)
        assert brokers.updated == [("new:1", 5)]
        assert core.left_at == 400

    asyncio.run(run())


def test_an_offset_that_comes_while_it_is_asked_whether_there_is_any_counts() -> None:
    """A broker of 4.9 that was killed is asked twice; before the second answer the new owner has committed."""
    brokers, core = Brokers(young=True), Answers()
    brokers.master, brokers.tells_none = "new:1", False

    def goes_on() -> None:
        brokers.stored = 400

    brokers.asked_for_any = goes_on
    asyncio.run(commits_to(brokers, core).commit(Commit(1, MQ, 5, guarded=True, known=3)))
    assert (brokers.updated, core.left_at) == ([], 400)


@pytest.mark.parametrize(
    ("stored", "known", "told"),
    [(None, 3, True), (3, 3, True), (4, 3, True), (5, 3, False), (9, 3, False), (2, 3, False)],
)
def test_a_guarded_commit_neither_lowers_nor_undoes(stored: int | None, known: int, told: bool) -> None:
    """What is higher is the new owner's, and what is lower than we know was reset by an operator."""
    brokers = Brokers(stored)
    brokers.master = "new:1"
    assert commit(brokers, Commit(1, MQ, 5, guarded=True, known=known)) == [(5, True)]
    assert bool(brokers.updated) is told


@pytest.mark.parametrize("tells_none", [True, False], ids=["5.x", "4.9"])
def test_the_zero_that_a_broker_makes_up_is_no_reset_of_an_operator(tells_none: bool) -> None:
    brokers = Brokers(young=True)
    brokers.master, brokers.tells_none = "new:1", tells_none
    assert commit(brokers, Commit(1, MQ, 5, guarded=True, known=3)) == [(5, True)]
    assert brokers.updated == [("new:1", 5)]


def test_each_time_a_broker_of_4_9_forgets_a_topic_all_of_its_queues_are_committed_anew() -> None:
    async def run() -> None:
        brokers = Brokers(young=True)
        brokers.master, brokers.tells_none = "new:1", False
        commits = commits_to(brokers, Answers())
        for _ in range(2):
            brokers.stored = None
            for queue in range(2):
                await commits.commit(Commit(queue, MQ._replace(queue_id=queue), 5, guarded=True, known=5))
                brokers.stored = 0 if queue == 0 else 5  # the topic has one by now; of the other queue it still says 0
        assert len(brokers.updated) == 4

    asyncio.run(run())


def test_a_reset_to_zero_stays() -> None:
    brokers = Brokers(0, young=True)
    brokers.master = "new:1"
    assert commit(brokers, Commit(1, MQ, 5, guarded=True, known=3)) == [(5, True)]
    assert not brokers.updated


@pytest.mark.parametrize(("forgotten", "beside"), [(True, 0), (False, 3)])
def test_the_first_of_the_last_commits_of_a_stop_is_alone_where_the_broker_has_forgotten_the_group(
    forgotten: bool, beside: int
) -> None:
    """It was told to (deleteSubGroup): of several that come at once it would keep one, and answer all with success."""

    async def run() -> None:
        brokers = Brokers(4)
        brokers.master = "new:1"
        commits = commits_to(brokers, Answers())
        await commits.commit(Commit(1, MQ, 4, guarded=False))
        if forgotten:
            brokers.stored = None
        await asyncio.gather(
            *(
                commits.commit(Commit(queue, MQ._replace(queue_id=queue), 5, guarded=True, known=4))
                for queue in range(4)
            )
        )
        assert len(brokers.updated) == 5
        assert brokers.beside[1] == beside

    asyncio.run(run())


def test_the_first_commit_is_alone_again_where_the_broker_may_have_lost_the_one_before() -> None:
    """A broker that has no offset of the topic keeps one of several that come at once, and answers all with success."""

    async def run() -> None:
        brokers = Brokers()
        brokers.master, brokers.living = "old:1", {"old:1", "new:1"}
        commits = commits_to(brokers, Answers())

        async def committed() -> bool:
            await commits.commit(Commit(1, MQ, 5, guarded=False))
            return commits.known(MQ)

        assert not commits.known(MQ)
        assert await committed()
        for closed in brokers.closed:
            closed("another:1")
        assert commits.known(MQ)
        for closed in brokers.closed:
            closed("old:1")
        assert not commits.known(MQ), "the broker was started anew"
        assert await committed()
        brokers.master = "new:1"
        assert not commits.known(MQ), "another one is master"
        assert await committed()
        brokers.deleted = True
        assert not await committed(), "the topic was deleted, and may be made again"

    asyncio.run(run())
