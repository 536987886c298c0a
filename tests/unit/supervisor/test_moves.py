"""A queue that was moved goes on there, whatever it does at that moment; what is remembered of queues does not outlive it.

Brokers before 5.2 push a reset to the members once: what a member does not make of it then is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rocketcrew.durable.intervals import Intervals
from rocketcrew.durable.outcomes import LOST, SKIPPED
from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.acting import Acting
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.journal import MAGIC, JournalEncoder, JournalState, replay
from rocketcrew.supervisor.core.pulling import PullResult
from rocketcrew.supervisor.core.states import QueueState

from .conftest import ME, TOPIC, Bench, noted

DRAIN_MS = 10_000


def reset(bench: Bench, offset: int) -> None:
    bench.core.handle(ev.ResetOffsets({bench.queue(0): offset}), bench.now)


def with_one_in_hand(bench: Bench, offset: int = 500) -> tuple[int, act.Chunk]:
    """Queue 0, of which a worker has one message."""
    bench.worker("w1")
    (handle,) = bench.open(0, offset=offset)
    bench.found(handle, [offset])
    (chunk,) = bench.dispatched()
    return handle, chunk


def leaves_with_finished(bench: Bench) -> int:
    """Queue 0 goes to another member while 500 is in hand, and 501 finished."""
    bench.worker("w1", "w2")
    (handle,) = bench.open(0, offset=500)
    bench.found(handle, [500, 501])
    _, second = bench.dispatched()
    bench.done(second)
    bench.revoke()
    return handle


def subscribe_anew(bench: Bench) -> None:
    bench.core.handle(ev.Subscribe(TOPIC), bench.now)


def stop(bench: Bench) -> None:
    bench.core.handle(ev.Stop(), bench.now)


def goes_and_comes(bench: Bench) -> None:
    """Another member takes the queue, and leaves before ours has drained."""
    bench.revoke()
    bench.commits()
    bench.members([0])


# --- a reset of a queue that drains -------------------------------------------------------------------------------


@pytest.mark.parametrize("drains", [subscribe_anew, stop, goes_and_comes])
@pytest.mark.parametrize("offset", [100, 900])
def test_a_reset_holds_where_the_queue_drains_and_no_other_member_has_it(
    bench: Bench, drains: Callable[[Bench], None], offset: int
) -> None:
    handle, chunk = with_one_in_hand(bench)
    drains(bench)
    assert bench.pq(handle).state is QueueState.DRAINING
    reset(bench, offset)
    bench.done(chunk)
    commit = bench.take(act.Commit)[-1]
    assert (commit.offset, commit.guarded) == (offset, False)
    assert noted(bench).get(SKIPPED, []) == ([(501, 900)] if offset == 900 else [])


def test_a_queue_that_leaves_after_all_is_its_new_owners_to_reset(bench: Bench) -> None:
    _, chunk = with_one_in_hand(bench)
    subscribe_anew(bench)
    bench.revoke()
    reset(bench, 100)
    bench.done(chunk)
    commit = bench.take(act.Commit)[-1]
    assert (commit.offset, commit.guarded) == (501, True)


def test_what_a_queue_finished_that_was_reset_while_it_left_is_not_remembered(bench: Bench) -> None:
    handle = leaves_with_finished(bench)
    reset(bench, 100)
    bench.take(act.JournalCommitted)
    bench.pass_ms(DRAIN_MS)
    assert handle not in bench.core.state.queues
    assert bench.core.state.recovered == {}
    assert [entry.offset for entry in bench.take(act.JournalCommitted)] == [-1]


# --- until a broker has confirmed it ------------------------------------------------------------------------------


def ended_at_its_deadline(bench: Bench, offset: int) -> None:
    """A reset; a handler that is too slow; and a broker that refuses the commit."""
    _, _ = with_one_in_hand(bench)
    reset(bench, offset)
    bench.pass_ms(DRAIN_MS)
    assert not bench.core.state.queues
    assert bench.commits(ok=False) == [offset]
    bench.take(act.Pull)
    noted(bench)


@pytest.mark.parametrize("offset", [100, 900])
def test_a_move_whose_commit_was_refused_at_the_deadline_is_committed_before_the_queue_is_opened(
    bench: Bench, offset: int
) -> None:
    ended_at_its_deadline(bench, offset)
    for _ in range(3):
        bench.members([0])
        bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, 500), bench.now)
        bench.none(act.Pull)
        assert bench.commits(ok=False) == [offset]
        assert not bench.core.state.queues
        bench.pass_ms(1_000)
    bench.members([0])
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, 500), bench.now)
    bench.take(act.JournalCommitted)
    assert bench.commits() == [offset]
    assert bench.one(act.Pull).offset == offset
    assert [entry.offset for entry in bench.take(act.JournalCommitted)] == [-1, offset, offset]
    assert noted(bench) == ({SKIPPED: [(500, 900)]} if offset == 900 else {})


def test_what_is_finished_after_a_move_that_was_committed_before_the_opening_is_journalled(bench: Bench) -> None:
    """It is over then, and a restart need not run it again."""
    ended_at_its_deadline(bench, 100)
    (handle,) = bench.open(0, offset=500)
    bench.found(handle, [100])
    bench.worker("w2")
    dispatch = bench.one(act.Dispatch)
    bench.done(dispatch.chunk)
    assert dispatch.journalled
    assert [(entry.start, entry.end) for entry in bench.take(act.JournalDone)] == [(100, 101)]


def test_a_move_that_ended_at_its_deadline_is_not_passed_over_by_what_the_journal_knows(bench: Bench) -> None:
    bench.worker("w1", "w2")
    (handle,) = bench.open(0, offset=50)
    bench.found(handle, [50, 120])
    entries: list[act.JournalDone | act.JournalCommitted] = [*bench.take(act.JournalCommitted)]
    _, second = bench.dispatched()
    bench.done(second)
    entries += bench.take(act.JournalDone)
    reset(bench, 100)
    bench.pass_ms(DRAIN_MS)
    entries += bench.take(act.JournalCommitted)
    state, _ = replay(MAGIC + JournalEncoder().blocks(entries), "journal")
    assert state.recovered() == {}


def test_a_move_of_a_queue_that_another_member_has_now_is_forgotten(bench: Bench) -> None:
    ended_at_its_deadline(bench, 100)
    bench.revoke()
    (handle,) = bench.open(0, offset=700)
    assert bench.one(act.Pull).offset == 700
    assert bench.pq(handle).state is QueueState.ASSIGNED


def test_a_move_of_a_topic_that_is_not_subscribed_any_more_is_forgotten(bench: Bench) -> None:
    ended_at_its_deadline(bench, 100)
    bench.core.handle(ev.Unsubscribe(TOPIC), bench.now)
    subscribe_anew(bench)
    bench.open(0, offset=700)
    assert bench.one(act.Pull).offset == 700


def test_a_later_reset_replaces_one_that_is_being_committed_before_the_opening(bench: Bench) -> None:
    ended_at_its_deadline(bench, 100)
    bench.members([0])
    fetch = bench.one(act.FetchOffset)
    bench.core.handle(ev.Opened(fetch.handle, 500), bench.now)
    reset(bench, 200)
    assert bench.commits() == [100]
    assert bench.commits() == [200]
    assert bench.one(act.Pull).offset == 200


def test_a_second_word_of_where_it_begins_comes_too_late_for_a_queue_that_was_moved(bench: Bench) -> None:
    ended_at_its_deadline(bench, 100)
    bench.members([0])
    fetch = bench.one(act.FetchOffset)
    for _ in range(2):
        bench.core.handle(ev.Opened(fetch.handle, 500), bench.now)
    assert bench.counters.late_answers == 2  # the refusal at the deadline, and this
    assert bench.commits() == [100]


def test_a_reset_between_the_end_of_a_queue_and_its_opening_holds(bench: Bench) -> None:
    _, chunk = with_one_in_hand(bench)
    subscribe_anew(bench)
    bench.done(chunk)
    bench.commits()
    assert not bench.core.state.queues
    reset(bench, 100)
    bench.members([0])
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, 501), bench.now)
    assert bench.commits() == [100]


def test_a_reset_holds_too_where_the_look_up_after_the_end_was_not_answered(bench: Bench) -> None:
    bench.core.handle(ev.Members(TOPIC, [bench.queue(0)], (ME,), asked_at=bench.now), bench.now)
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, 500), bench.now)
    subscribe_anew(bench)
    bench.commits()
    assert not bench.core.state.queues
    bench.core.handle(ev.Members(TOPIC, None, None), bench.now)
    bench.core.handle(ev.Members(TOPIC, None, None), bench.now)  # one more had been asked for meanwhile
    reset(bench, 100)
    bench.members([0])
    bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, 500), bench.now)
    assert bench.commits() == [100]


def test_a_reset_that_comes_with_a_look_up_is_not_ours_where_the_queue_is_not(bench: Bench) -> None:
    subscribe_anew(bench)
    reset(bench, 100)
    bench.revoke()
    bench.open(0, offset=700)
    assert bench.one(act.Pull).offset == 700


def test_a_restart_after_a_reset_runs_what_the_reset_asks_for(bench: Bench) -> None:
    """Also where nothing was committed above it: for the journal it is then no step back."""
    bench.worker("w1", "w2")
    (handle,) = bench.open(0, offset=300)
    bench.found(handle, [300, 301, 302])
    first, *_ = bench.dispatched()
    for chunk in bench.dispatched():
        bench.done(chunk)
    entries: list[act.JournalDone | act.JournalCommitted] = [*bench.take(act.JournalCommitted)]
    others = [chunk for chunk in bench.core.state.chunks.values() if chunk is not first]
    for chunk in others:
        bench.done(chunk)
    entries += bench.take(act.JournalDone)
    reset(bench, 301)
    bench.done(first)
    entries += bench.take(act.JournalDone)
    assert bench.commits() == [301]
    entries += bench.take(act.JournalCommitted)
    state, _ = replay(MAGIC + JournalEncoder().blocks(entries), "journal")
    assert state.recovered() == {}


# --- what a reset skips -------------------------------------------------------------------------------------------


def test_of_two_resets_of_a_queue_that_drains_the_last_is_noted(bench: Bench) -> None:
    _, chunk = with_one_in_hand(bench, offset=0)
    reset(bench, 100)
    reset(bench, 300)
    bench.done(chunk)
    assert bench.commits() == [300]
    assert noted(bench)[SKIPPED] == [(1, 300)]


def test_a_reset_forwards_that_is_taken_back_has_skipped_nothing(bench: Bench) -> None:
    _, chunk = with_one_in_hand(bench, offset=0)
    reset(bench, 300)
    reset(bench, 1)
    bench.done(chunk)
    assert bench.commits() == [1]
    assert SKIPPED not in noted(bench)


def test_what_is_skipped_while_the_queue_opens_is_noted(bench: Bench) -> None:
    bench.members([0])
    fetch = bench.one(act.FetchOffset)
    reset(bench, 300)
    bench.core.handle(ev.Opened(fetch.handle, 10), bench.now)
    bench.commits()
    assert noted(bench) == {SKIPPED: [(10, 300)]}


@pytest.mark.parametrize(
    ("min_offset", "expected"),
    [
        (0, {SKIPPED: [(10, 300)]}),
        (10, {SKIPPED: [(10, 300)]}),
        (300, {LOST: [(10, 300)]}),
        (120, {LOST: [(10, 120)], SKIPPED: [(120, 300)]}),
        (-1, {LOST: [(10, 300)]}),
    ],
)
def test_what_a_broker_still_has_was_reset_and_what_it_has_not_is_lost(
    bench: Bench, min_offset: int, expected: dict[str, list[tuple[int, int]]]
) -> None:
    (handle,) = bench.open(0, offset=10)
    moved = PullResult(ResponseCode.PULL_OFFSET_MOVED, 300, min_offset=min_offset)
    bench.core.handle(ev.Pulled(handle, moved), bench.now)
    assert bench.commits() == [300]
    assert noted(bench) == expected


# --- what is remembered -------------------------------------------------------------------------------------------


def left_with_finished(bench: Bench) -> None:
    """Queue 0 went to another member at the deadline: 500 is in hand, 501 finished."""
    leaves_with_finished(bench)
    bench.pass_ms(DRAIN_MS)
    bench.commits()
    assert bench.core.state.recovered == {bench.queue(): (500, Intervals([(501, 502)]))}
    bench.take(act.JournalCommitted)


def test_what_was_finished_is_forgotten_when_another_member_had_the_queue_for_long(bench: Bench) -> None:
    left_with_finished(bench)
    bench.pass_ms(2 * DRAIN_MS)
    bench.revoke()
    assert bench.core.state.recovered
    bench.pass_ms(DRAIN_MS)
    bench.revoke()
    assert bench.core.state.recovered == {}
    assert [(entry.start, entry.offset) for entry in bench.take(act.JournalCommitted)] == [(-1, -1)]


def test_it_is_forgotten_too_where_the_next_look_up_says_that_the_queue_is_ours_again(bench: Bench) -> None:
    left_with_finished(bench)
    bench.pass_ms(3 * DRAIN_MS)
    (handle,) = bench.open(0, offset=500)
    assert not bench.pq(handle).ledger.done


def test_it_is_remembered_where_the_queue_comes_back_soon(bench: Bench) -> None:
    left_with_finished(bench)
    bench.pass_ms(2 * DRAIN_MS)
    (handle,) = bench.open(0, offset=500)
    assert bench.pq(handle).ledger.done == Intervals([(501, 502)])


def test_it_is_remembered_while_a_queue_of_ours_cannot_be_opened(bench: Bench) -> None:
    bench.core.recover({bench.queue(): (500, Intervals([(501, 502)]))})
    for _ in range(10):
        bench.members([0])
        bench.core.handle(ev.Opened(bench.one(act.FetchOffset).handle, None), bench.now)
        bench.pass_ms(DRAIN_MS)
    assert bench.core.state.recovered


def test_what_a_dead_run_left_is_forgotten_as_well_where_the_queue_is_another_members(bench: Bench) -> None:
    bench.core.recover({bench.queue(): (500, Intervals([(501, 502)]))})
    bench.members([0], ["0", ME])
    bench.pass_ms(3 * DRAIN_MS)
    bench.members([0], ["0", ME])
    assert bench.core.state.recovered == {}


@pytest.mark.parametrize("drains_at", ["unsubscribe", "before"])
@pytest.mark.parametrize(("drains", "remembered"), [(2, True), (3, False)])
def test_it_is_forgotten_where_the_topic_was_not_subscribed_for_long(
    bench: Bench, drains_at: str, drains: int, remembered: bool
) -> None:
    bench.worker("w1", "w2")
    (handle,) = bench.open(0, offset=500)
    bench.found(handle, [500, 501])
    _, second = bench.dispatched()
    bench.done(second)
    if drains_at == "before":
        subscribe_anew(bench)
        bench.pass_ms(DRAIN_MS)
    bench.core.handle(ev.Unsubscribe(TOPIC), bench.now)
    if drains_at == "unsubscribe":
        bench.pass_ms(DRAIN_MS)
    bench.commits()
    assert bench.core.state.recovered == {bench.queue(): (500, Intervals([(501, 502)]))}
    bench.pass_ms(drains * DRAIN_MS)
    subscribe_anew(bench)
    (handle,) = bench.open(0, offset=500)
    assert bool(bench.pq(handle).ledger.done) is remembered


def test_a_reset_of_a_queue_that_is_not_ours_forgets_what_was_finished(bench: Bench) -> None:
    left_with_finished(bench)
    reset(bench, 400)
    assert bench.core.state.recovered == {}
    assert [(entry.start, entry.offset) for entry in bench.take(act.JournalCommitted)] == [(-1, -1)]
    (handle,) = bench.open(0, offset=506)
    assert not bench.pq(handle).ledger.done


def test_what_the_journal_forgets_stays_forgotten_when_it_is_read() -> None:
    mq = Bench().queue()
    entries = (
        act.JournalCommitted(mq, 500, 500),
        act.JournalDone(mq, 501, 521, "", 0),
        act.JournalDone(mq, 530, 540, "w1", 3),
        act.forgotten(mq),
        act.JournalSealed("w1", 3),
    )
    state = JournalState()
    assert [state.apply(entry) for entry in entries] == [False, False, False, True, False]
    read, _ = replay(MAGIC + JournalEncoder().blocks(entries), "journal")
    assert state.recovered() == read.recovered() == {}


# --- a broker that moves the offset ---------------------------------------------------------------------------------


def test_a_broker_that_moves_a_queue_at_every_pull_is_not_asked_as_fast_as_it_answers(bench: Bench) -> None:
    """Its first word counts at once, each later one after the delay: it may be an operator's reset, which is said once."""
    moved: list[int] = []
    for offset in range(1, 5):
        (handle,) = bench.open(0, offset=100)
        bench.take(act.Pull)
        bench.answer(handle, ResponseCode.PULL_OFFSET_MOVED, offset)
        if offset > 1:
            bench.none(act.Commit, act.Pull)
            bench.pass_ms(bench.config.pull_delay_on_error_ms)
        moved += bench.commits()
    assert moved == [1, 2, 3, 4]


def test_a_queue_that_left_meanwhile_is_not_moved_later(bench: Bench) -> None:
    for offset in (7, 8):
        (handle,) = bench.open(0, offset=100)
        bench.answer(handle, ResponseCode.PULL_OFFSET_MOVED, offset)
        if offset == 7:
            bench.commits()
    bench.revoke()
    bench.take(act.Commit)
    bench.pass_ms(bench.config.pull_delay_on_error_ms)
    bench.none(act.Commit)


def test_an_offset_that_cannot_be_is_a_refusal(bench: Bench) -> None:
    (handle,) = bench.open(0, offset=100)
    bench.take(act.Pull)
    bench.answer(handle, ResponseCode.PULL_OFFSET_MOVED, -1)
    bench.none(act.Commit, act.Pull)
    bench.pass_ms(bench.config.pull_delay_on_error_ms)
    assert bench.one(act.Pull).offset == 100


# --- the keys of a queue that leaves ------------------------------------------------------------------------------


def test_a_worker_that_has_said_the_keys_of_a_queue_that_leaves_waits_for_nothing(make: type[Bench]) -> None:
    bench = make(order="key", order_key="")
    bench.worker("w1")
    (handle,) = bench.open(0)
    bench.found(handle, [0, 1])
    bench.core.handle(ev.Classified("w1", handle, [b"k", b"l"]), bench.now)
    bench.found(handle, [2, 3])
    ours = [one for dispatch in bench.take(act.DispatchOrdered) for one in dispatch.chunks]
    bench.revoke()
    bench.core.handle(ev.Classified("w1", handle, [b"k", b"l"]), bench.now)
    for one in ours:
        chunk = one.chunk
        bench.core.handle(ev.Reported("w1", chunk.chunk_id, 0, chunk.count, 0, 1, 1, 0, []), bench.now)
    assert bench.pq(handle).state is QueueState.DRAINING  # its last commit is not answered
    assert bench.core.busy_workers() == set()


def test_what_was_pulled_and_not_run_is_read_again_where_the_broker_has_it(make: Callable[..., Bench]) -> None:
    """It has lost its end, and answers with that; or with the begin of the newest body (recreated.py)."""
    bench = make()
    (handle,) = bench.open(0, offset=0)
    bench.worker("w1")
    bench.found(handle, range(40))
    first, second = bench.dispatched()
    moved = PullResult(ResponseCode.PULL_OFFSET_MOVED, 30, min_offset=1)
    bench.core.handle(ev.Pulled(handle, moved), bench.now)
    bench.done(first)
    bench.done(second)
    assert bench.one(act.Commit).offset == 2
    assert LOST not in noted(bench)


@pytest.mark.parametrize("to", [30, 40])
def test_an_operators_reset_to_what_is_pulled_and_has_not_run_skips_that(make: Callable[..., Bench], to: int) -> None:
    """The broker has all that was asked for, so its answer is no correction: brokers from 5.2 on tell of a reset so."""
    bench = make()
    (handle,) = bench.open(0, offset=0)
    bench.worker("w1")
    bench.found(handle, range(40))
    first, second = bench.dispatched()
    moved = PullResult(ResponseCode.PULL_OFFSET_MOVED, to, min_offset=0, end_offset=40)
    bench.core.handle(ev.Pulled(handle, moved), bench.now)
    bench.done(first)
    bench.done(second)
    assert bench.one(act.Commit).offset == to
    found = noted(bench)
    assert found[SKIPPED] == [(2, to)]
    assert LOST not in found


def test_what_a_worker_had_when_it_died_is_lost_where_the_queue_goes_on_behind_it(make: Callable[..., Bench]) -> None:
    bench = make()
    (handle,) = bench.open(0, offset=0)
    bench.worker("w1")
    bench.found(handle, range(4))
    first, _second = bench.dispatched()
    moved = PullResult(ResponseCode.PULL_OFFSET_MOVED, 300, min_offset=20)
    bench.core.handle(ev.Pulled(handle, moved), bench.now)
    bench.done(first)
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    bench.core.handle(ev.SalvageComplete("w1"), bench.now)
    assert bench.one(act.Commit).offset == 300
    found = noted(bench)
    assert (found[LOST], found[SKIPPED]) == ([(1, 20)], [(20, 300)])


# --- what others have passed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "kept"), [(10, [(12, 14), (20, 22)]), (13, [(13, 14), (20, 22)]), (14, [])])
def test_what_was_finished_before_a_restart_is_forgotten_where_others_went_on(
    bench: Bench, offset: int, kept: list[tuple[int, int]]
) -> None:
    """13 is what this member had sent last, and no answer was noted. An offset above is of others, and of a reset before they
    began nobody has told us: what was finished may be from before that."""
    bench.core.recover({bench.queue(): (10, Intervals([(12, 14), (20, 22)]))}, {bench.queue(): 13})
    (handle,) = bench.open(0, offset=offset)
    assert bench.pq(handle).ledger.done == Intervals(kept)
    assert ("others_went_on" in bench.logged()) is (not kept)
    assert bench.core.state.recovered == {}


@pytest.mark.parametrize(("offset", "waits", "forgotten"), [(50, 0, 0), (65, 1, 5), (100, 0, 0)])
@pytest.mark.parametrize("queues", [2, 200])
def test_a_start_waits_for_the_disk_no_more_often_for_many_queues(
    bench: Bench, tmp_path: Path, queues: int, offset: int, waits: int, forgotten: int
) -> None:
    """Of each queue 50 was sent and 60 to 70 is finished, and where their groups are comes with one read."""
    mqs = [bench.queue(number) for number in range(queues)]
    journal = JournalState()
    for mq in mqs:
        for entry in (act.JournalCommitted(mq, 50, 50), act.JournalDone(mq, 60, 70, "", 0)):
            journal.apply(entry)
    journal.begin_run("w")
    waited: list[bool] = []

    async def read() -> None:
        acting = Acting(bench.core, lambda todo: waited.append(sum(map(journal.apply, todo)) > 0), tmp_path)
        acting.perform(dict.fromkeys((act.Pull, act.CountCellsAnew), lambda _: None))
        for fetch in fetches:
            bench.core.handle(ev.Opened(fetch.handle, offset, 1_000), bench.now)
            acting.soon()
        await asyncio.sleep(0)

    bench.core.recover(journal.recovered(), journal.sent())
    bench.members(range(queues))
    fetches = bench.take(act.FetchOffset)
    with capture_logs() as logs:
        asyncio.run(read())
    assert (sum(waited), [journal.queues[mq].committed for mq in mqs]) == (waits, [offset] * queues)
    told = [(line["queues"], line["forgotten"]) for line in logs if line["event"] == "others_went_on"]
    assert told == [(queues, queues * forgotten)] * bool(forgotten)


def test_what_was_forgotten_because_others_went_on_is_not_known_to_the_start_after_the_next_either() -> None:
    """Killed at 50 with 60 to 70 finished, and reset to 0. Others come to 55, and this member, which begins there, is killed
    before it has come to 60, however often. What the reset asks for is not skipped then."""
    journal, mq = JournalState(), MessageQueue("orders", "b", 0)
    for entry in (act.JournalCommitted(mq, 0, 50), act.JournalDone(mq, 60, 70, "", 0)):
        journal.apply(entry)
    for killed in (1, 2):
        bench = Bench()
        bench.core.recover(journal.recovered(), journal.sent())
        bench.members([0])
        fetch = bench.one(act.FetchOffset)
        bench.core.handle(ev.Opened(fetch.handle, 55, 1_000), bench.now)
        went_back = [journal.apply(entry) for entry in bench.take(act.JournalCommitted)]
        assert bench.pq(fetch.handle).ledger.done == Intervals()
        assert (journal.queues[mq].committed, journal.recovered(), any(went_back)) == (55, {}, killed == 1)


def test_what_was_finished_in_this_run_is_kept_where_others_went_on(bench: Bench) -> None:
    """Of a reset in this run we would have heard."""
    bench.core.recover({bench.queue(): (10, Intervals([(12, 14)]))}, {bench.queue(): 10})
    bench.open(0, offset=10)
    bench.revoke()
    bench.commits()
    assert bench.core.state.recovered == {bench.queue(): (10, Intervals([(12, 14)]))}
    (again,) = bench.open(0, offset=11)
    assert bench.pq(again).ledger.done == Intervals([(12, 14)])
