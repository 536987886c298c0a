"""A supervisor that is stopping changes nothing: by the control socket, by a signal, from a script."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rocketcrew.remoting.errors import UsageError
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.notify import Notify
from rocketcrew.supervisor.operating import Operator
from rocketcrew.supervisor.pool.worker_pool import Pool
from rocketcrew.supervisor.terminal import Terminal

from .conftest import Bench
from .test_starting import Waiting, nothing, with_pool

NOT_USED: Any = None
CHANGES = ("pause", "resume", "scale", "reload")
SIGNALS = (signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGTSTP, signal.SIGCONT)


def operated(folder: Path, use: Callable[[Operator, Pool, Bench, list[str]], None], *, stopping: bool) -> None:
    """An operator of a supervisor with two workers, and what it did at once because it was asked to."""

    async def run(pool: Pool, bench: Bench) -> None:
        done: list[str] = []
        operator = Operator(
            bench.core, pool, NOT_USED, order=NOT_USED, acted=nothing, reread=None, stacks=lambda: done.append("stacks"),
            stop=lambda: done.append("stop"), quick=lambda: done.append("quick"), notify=Notify({}, 0), terminal=Terminal(),
        )  # fmt: skip
        if stopping:
            bench.core.handle(ev.Stop(), 0.0)
        use(operator, pool, bench, done)

    with_pool(folder, 2, Waiting(), run)


@pytest.mark.parametrize("name", CHANGES)
def test_each_command_that_changes_something_is_refused(tmp_path: Path, name: str) -> None:
    def use(operator: Operator, pool: Pool, bench: Bench, _: list[str]) -> None:
        with pytest.raises(UsageError, match="it is stopping: nothing is changed any more"):
            operator.commands()[name]({"workers": 5})
        assert pool.staffing.policy.count == 2
        assert not bench.core.state.paused

    assert {*CHANGES, "stacks"} == {*commands_of(tmp_path / "names")}
    operated(tmp_path, use, stopping=True)


def commands_of(folder: Path) -> list[str]:
    found: list[str] = []
    folder.mkdir()

    def use(operator: Operator, pool: Pool, bench: Bench, done: list[str]) -> None:
        del pool, bench, done
        found.extend(operator.commands())

    operated(folder, use, stopping=False)
    return found


def test_its_signal_is_refused_in_the_log_and_quit_is_obeyed(tmp_path: Path) -> None:
    def use(operator: Operator, pool: Pool, bench: Bench, done: list[str]) -> None:
        signals = operator.signals()
        with capture_logs() as logs:
            for number in SIGNALS:
                signals[number]()
            signals[signal.SIGQUIT]()
        assert [line["event"] for line in logs] == ["reload_refused", *["signal_refused"] * 3]
        assert {line["signal"] for line in logs[1:]} == {"SIGTTIN", "SIGTTOU", "SIGTSTP"}, "CONT comes with TERM"
        assert (pool.staffing.policy.count, bench.core.state.paused, done) == (2, set(), ["quick"])

    operated(tmp_path, use, stopping=True)


def test_one_that_runs_obeys(tmp_path: Path) -> None:
    def use(operator: Operator, pool: Pool, bench: Bench, _: list[str]) -> None:
        signals = operator.signals()
        signals[signal.SIGTTIN]()
        signals[signal.SIGTSTP]()
        assert (pool.staffing.policy.count, len(bench.core.state.paused)) == (3, 1)
        signals[signal.SIGCONT]()
        assert not bench.core.state.paused
        assert operator.commands()["scale"]({"workers": 1}) == {"workers": 1, "before": 3}

    operated(tmp_path, use, stopping=False)
