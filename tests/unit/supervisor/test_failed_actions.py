"""What fails unexpectedly becomes an event of the core, or comes again, and takes nothing else along."""

from __future__ import annotations

import asyncio
import errno
import os
import typing
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from rocketcrew.supervisor.acting import Acting
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.failed_actions import EVENTS, UNANSWERED, action_failed
from rocketcrew.supervisor.core.journal import JOURNALLED, JournalState
from rocketcrew.supervisor.journal_file import JournalFile
from rocketcrew.supervisor.keeping import DELAY_MAX_S, keep

if TYPE_CHECKING:
    from .conftest import Bench


def test_every_kind_of_action_says_what_its_failure_is() -> None:
    kinds = set(typing.get_args(act.Action))
    assert kinds == EVENTS.keys() | UNANSWERED
    assert not EVENTS.keys() & UNANSWERED


def test_an_action_that_fails_takes_nothing_of_its_batch_along(bench: Bench, tmp_path: Path) -> None:
    """One bad commit, and the commits, pulls and answers after it in the same batch are done."""
    done: list[act.Action] = []

    def do(action: act.Action) -> None:
        done.append(action)
        if isinstance(action, act.FetchOffset) and action.mq.queue_id == 0:
            raise RuntimeError("nobody expected this")

    async def acted() -> None:
        bench.members([0, 1, 2])
        acting = Acting(bench.core, lambda _entries: None, tmp_path / "journal")
        acting.perform(dict.fromkeys((*EVENTS, act.Heartbeat), do))
        acting.acted()

    asyncio.run(acted())
    assert [a.mq.queue_id for a in done if isinstance(a, act.FetchOffset)] == [0, 1, 2]
    assert bench.counters.unexpected_errors == 1


def test_a_journal_that_cannot_be_written_is_told_once_until_it_is(bench: Bench, tmp_path: Path) -> None:
    """What says nothing new is not written, and so says nothing of the disk."""
    full = [False]

    def write(fd: int, data: memoryview) -> int:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(fd, data)

    async def acted() -> list[str]:
        mq = bench.queue()
        file = JournalFile(tmp_path / "journal", JournalState(), 1 << 20, write=write)
        acting = Acting(bench.core, file.append, tmp_path / "journal")
        acting.perform({act.Commit: lambda _: None})
        sent = act.Commit(0, mq, 10, guarded=False)
        with capture_logs() as logs:
            for full[0], action in (
                (False, act.JournalDone(mq, 0, 10, "", 0)), (True, act.JournalDone(mq, 10, 20, "", 0)), (True, sent),
                (True, act.JournalDone(mq, 20, 30, "", 0)), (True, sent), (False, sent), (False, sent),
            ):  # fmt: skip
                bench.core.state.out.append(action)
                acting.acted()
        file.close()
        return [line["event"] for line in logs]

    assert asyncio.run(acted()) == ["journal_write_failed", "journal_written_again"]


def test_a_commit_that_failed_is_asked_again(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.done(chunk)
    bench.core.handle(ev.Persist(), bench.now)
    commit = bench.one(act.Commit)
    action_failed(bench.core, commit, bench.now)
    bench.core.handle(ev.Persist(), bench.now)
    assert bench.one(act.Commit).offset == commit.offset
    assert bench.counters.commit_errors == bench.counters.unexpected_errors == 1


def test_a_send_back_that_failed_is_tried_again(bench: Bench) -> None:
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0])
    (chunk,) = bench.dispatched()
    bench.done(chunk, failures=[(0, 0, "no")])
    sent = bench.one(act.SendBack)
    action_failed(bench.core, sent, bench.now)
    bench.pass_ms(60_000)
    assert bench.take(act.SendBack) or bench.take(act.Dispatch)


def test_a_pull_that_failed_is_sent_again(bench: Bench) -> None:
    bench.open(0)
    pull = bench.one(act.Pull)
    action_failed(bench.core, pull, bench.now)
    bench.pass_ms(bench.config.pull_delay_on_error_ms)
    assert bench.one(act.Pull).offset == pull.offset


@pytest.mark.parametrize("kind", [act.Seal, act.Retired])
def test_a_worker_that_cannot_be_told_is_killed(bench: Bench, kind: Callable[[str], act.Action]) -> None:
    bench.worker("w1")
    action_failed(bench.core, kind("w1"), bench.now)
    assert bench.one(act.KillWorker).worker_id == "w1"


def test_a_task_that_fails_begins_again_with_a_growing_delay() -> None:
    lives = iter([ValueError("bad")] * 8)
    slept: list[float] = []
    counted: list[int] = []

    async def work() -> None:
        for error in lives:
            raise error

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    asyncio.run(keep("work", work, lambda: counted.append(1), sleep))
    assert slept == [1, 2, 4, 8, 16, 32, DELAY_MAX_S, DELAY_MAX_S]
    assert len(counted) == 8


def test_a_task_that_has_worked_for_long_begins_again_at_once() -> None:
    """Weeks of it between two failures made each pause a minute."""
    lives = iter([DELAY_MAX_S + 1, 1.0, 1.0, DELAY_MAX_S + 1, 1.0])
    now_s = 0.0
    slept: list[float] = []

    async def work() -> None:
        nonlocal now_s
        for lived_s in lives:
            now_s += lived_s
            raise OSError("now and then")

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    asyncio.run(keep("work", work, lambda: None, sleep, lambda: now_s))
    assert slept == [1, 2, 4, 1, 2]


def test_an_action_that_nobody_does_is_noticed_before_anything_begins(bench: Bench, tmp_path: Path) -> None:
    async def complete() -> None:
        acting = Acting(bench.core, lambda _entries: None, tmp_path / "journal")
        acting.perform({kind: print for kind in EVENTS if kind is not act.Pull})
        with pytest.raises(AssertionError, match=r"Pull.*"):
            acting.check_complete()
        with pytest.raises(AssertionError, match="two functions each"):
            acting.perform({act.Commit: print})
        acting.perform(dict.fromkeys((act.Pull, *UNANSWERED - {act.Log, *JOURNALLED}), print))
        acting.check_complete()

    asyncio.run(complete())
