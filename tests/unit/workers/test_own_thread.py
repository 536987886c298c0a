"""A thread that cannot be had, that dies before it runs, or that comes too late: nobody waits for it for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from rocketcrew.workers.own_thread import NoThreadError, OwnThread

DEADLINE_S = 20.0
Run = Callable[[], None]


def test_it_runs_beside_its_maker_and_ends() -> None:
    go, idents = threading.Event(), list[int]()

    def run() -> None:
        idents.append(threading.get_ident())
        assert go.wait(DEADLINE_S)

    thread = OwnThread(run)
    thread.join(0)
    assert thread.alive
    go.set()
    thread.join(DEADLINE_S)
    thread.join(DEADLINE_S)
    assert not thread.alive
    assert idents != [threading.get_ident()]


@pytest.mark.parametrize(
    ("error", "text"),
    [(RuntimeError("can't start new thread"), "can't start new thread"), (MemoryError(), "MemoryError")],
)
def test_a_system_that_gives_none_is_an_error_that_can_be_caught(error: Exception, text: str) -> None:
    def refuses(_run: Run, _arguments: tuple[()]) -> int:
        raise error

    with pytest.raises(NoThreadError, match=text):
        OwnThread(lambda: None, refuses)


def test_one_that_has_not_run_in_time_is_not_waited_for_and_does_nothing_later() -> None:
    """As one that died of a MemoryError before its first step; a thread that was only slow must not work beside its maker."""
    late, ran = list[Run](), list[str]()

    def is_slow(run: Run, _arguments: tuple[()]) -> int:
        late.append(run)
        return 1

    with pytest.raises(NoThreadError, match="did not run for 0 s"):
        OwnThread(lambda: ran.append("run"), is_slow, wait_s=0)
    late[0]()
    assert ran == []


def test_one_that_ends_by_an_error_has_ended() -> None:
    def runs_here(run: Run, _arguments: tuple[()]) -> int:
        with pytest.raises(ZeroDivisionError):
            run()
        return 1

    def fails() -> None:
        raise ZeroDivisionError

    assert not OwnThread(fails, runs_here).alive
