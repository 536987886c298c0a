from __future__ import annotations

import itertools

from rocketcrew.conf.units import NS_PER_MS
from rocketcrew.supervisor.core.time_limits import ABORT_GRACE_NS, Look, Progress, Step

SOFT, HARD, STALL = 100 * NS_PER_MS, 300 * NS_PER_MS, 5_000 * NS_PER_MS
START = 1_000 * NS_PER_MS


def call(
    state: int = 8, started_ns: int = START, *, soft: int = SOFT, hard: int = HARD, beats: int = 1, raised: bool = False
) -> Progress:  # fmt: skip
    return Progress(state, started_ns, beats, soft, hard, busy=True, soft_raised_ns=started_ns if raised else 0)


def look_at(look: Look, seen: Progress, after_ms: int) -> tuple[Step, int]:
    """Step, and milliseconds after START of the next look."""
    step, due_ns = look.next(seen, START + after_ms * NS_PER_MS, STALL)
    return step, (due_ns - START) // NS_PER_MS


def test_soft_then_hard_then_kill() -> None:
    look = Look()
    assert look_at(look, call(), 10) == (Step.NOTHING, 100)
    assert look_at(look, call(), 99) == (Step.NOTHING, 100)
    assert look_at(look, call(), 100) == (Step.SOFT, 120)
    assert look_at(look, call(raised=True), 101) == (Step.NOTHING, 300)
    assert look_at(look, call(raised=True), 150) == (Step.NOTHING, 300), "once a call"
    assert look_at(look, call(), 300) == (Step.ABORT, 1300)
    assert look_at(look, call(), 310) == (Step.NOTHING, 1300)
    assert look_at(look, call(), 300 + ABORT_GRACE_NS // NS_PER_MS)[0] is Step.KILL
    assert look_at(look, call(), 2_000) == (Step.NOTHING, 2300)
    assert look_at(look, call(), 2_300) == (Step.KILL, 3300), "a kill that failed is repeated"
    assert look.timed_out(8, START)


def test_a_soft_signal_that_raised_nothing_is_sent_again_ever_more_rarely() -> None:
    look, sent = Look(), list[int]()
    for at in range(90, 100_000, 10):
        step, due = look_at(look, call(hard=0), at)
        if step is Step.SOFT:
            sent.append(at)
            assert due > at
    assert sent[:5] == [100, 120, 160, 240, 400]
    assert [later - sooner for sooner, later in itertools.pairwise(sent[9:])] == [5_000] * (len(sent) - 10)


def test_a_call_that_followed_the_one_over_its_limit_has_not_timed_out() -> None:
    look = Look()
    look_at(look, call(), 300)
    assert not look.timed_out(9, START + 301 * NS_PER_MS)
    assert not look.timed_out(8, START + 301 * NS_PER_MS)


def test_after_a_rest_the_time_begins_anew() -> None:
    look = Look()
    assert look_at(look, call(0), 10)[0] is Step.NOTHING
    look.rest()
    assert look_at(look, call(0), 10 + 6_000)[0] is Step.NOTHING, "it had nothing to do meanwhile"
    assert look_at(look, call(0), 10 + 6_000 + 5_000)[0] is Step.ABORT


def test_each_call_has_its_own_soft_limit() -> None:
    look = Look()
    assert look_at(look, call(), 100)[0] is Step.SOFT
    later = call(9, START + 120 * NS_PER_MS)
    assert look_at(look, later, 130) == (Step.NOTHING, 220)
    assert look_at(look, later, 220)[0] is Step.SOFT


def test_without_limits_nothing_happens() -> None:
    look = Look()
    assert look_at(look, call(soft=0, hard=0), 10**9) == (Step.NOTHING, 10**9 + 5_000)


def test_a_worker_with_messages_whose_loop_stands_still_is_ended() -> None:
    look = Look()
    still = call(0)
    assert look_at(look, still, 0) == (Step.NOTHING, 100), "a call may begin right behind the look"
    assert look_at(look, still, 4_999)[0] is Step.NOTHING
    assert look_at(look, still, 5_000)[0] is Step.ABORT
    assert not look.timed_out(0, START)


def test_a_supervisor_that_stood_still_itself_blames_nobody() -> None:
    look = Look()
    look_at(look, call(0), 0)
    assert look_at(look, call(0), 3_600_000)[0] is Step.NOTHING
    assert look_at(look, call(0), 3_604_000)[0] is Step.NOTHING
    assert look_at(look, call(0), 3_605_000)[0] is Step.ABORT


def test_progress_and_idleness_are_no_standstill() -> None:
    look = Look()
    for beat in range(5):
        assert look_at(look, call(0, beats=beat), beat * 4_000)[0] is Step.NOTHING
    idle = Progress(0, START, 4, SOFT, HARD, busy=False)
    assert look_at(look, idle, 60_000)[0] is Step.NOTHING
    assert look_at(look, call(0, beats=4), 61_000)[0] is Step.NOTHING, "counted from when it got something"
    assert look_at(look, call(), 62_000)[0] is Step.ABORT, "a call has its own limit"
