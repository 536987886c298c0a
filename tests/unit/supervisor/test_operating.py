"""What an operator asks for by a signal."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rocketcrew.cli.options import LIVE_LEVEL
from rocketcrew.conf.settings import load
from rocketcrew.remoting.errors import RocketcrewError
from rocketcrew.supervisor.core.order import Order
from rocketcrew.supervisor.core.reloading import Reload
from rocketcrew.supervisor.notify import Notify
from rocketcrew.supervisor.operating import Operator, report_stacks
from rocketcrew.supervisor.pool.stacks import ProcessStack
from rocketcrew.supervisor.pool.worker_pool import Pool
from rocketcrew.supervisor.slot import take_slot
from rocketcrew.supervisor.status import staffing_picture
from rocketcrew.supervisor.terminal import Terminal
from rocketcrew.supervisor.wiring import Boots
from rocketcrew.workers.link import Transport
from rocketcrew.workers.loading import describe
from rocketcrew.workers.spawn import WorkerStartError

from .conftest import Bench
from .test_starting import Waiting, nothing, until, with_pool


def test_stacks_are_shown_beside_the_live_line() -> None:
    with capture_logs() as logs:
        report_stacks([ProcessStack("loader", "/table", 7, None, "", "did not answer")])
    (line,) = logs
    levels = logging.getLevelNamesMapping()
    assert levels[line["log_level"].upper()] >= levels[LIVE_LEVEL.upper()]
    assert (line["of"], line["of_pid"], line["note"]) == ("loader", 7, "did not answer")


class NoProcesses(Waiting):
    def add(self, generation: int, forkserver: Any, make_boot: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/tmp/gone")


def test_a_reload_for_which_no_forkserver_can_be_started_is_refused_and_the_next_one_is_asked_anew(
    tmp_path: Path,
) -> None:
    slot = take_slot(tmp_path / "data", "billing")
    boots = Boots(load({"results.enabled": False}, {}, None), describe(nothing), slot, Transport.STREAM, None, "me@1")

    async def use(pool: Pool, bench: Bench) -> None:
        operator = Operator(
            bench.core, pool, boots, order=Order(), acted=nothing, reread=None, stacks=nothing,
            stop=nothing, quick=nothing, notify=Notify({}, 0), terminal=Terminal(),
        )  # fmt: skip
        for _ in range(2):
            with pytest.raises(RocketcrewError, match=r"new workers cannot be started: .*No such file.*'/tmp/gone'"):
                operator.reload()
        with capture_logs() as logs:
            operator.signals()[signal.SIGHUP]()
        assert [line["event"] for line in logs] == ["reload_refused"]
        assert pool.staffing.reload is Reload.IDLE

    try:
        with_pool(tmp_path, 2, NoProcesses(), use)
    finally:
        slot.release()


class OneGeneration(Waiting):
    """No worker of it starts, and there is no forkserver for another one."""

    def __init__(self) -> None:
        super().__init__()
        self.free = 1

    def add(self, generation: int, forkserver: Any, make_boot: Any) -> None:
        self.free -= 1
        if self.free < 0:
            raise FileNotFoundError(2, "No such file or directory", "/tmp/gone")

    def drop(self, generation: int) -> None:
        pass


def test_a_reload_that_waited_for_another_and_was_refused_is_over_and_says_why(tmp_path: Path) -> None:
    slot = take_slot(tmp_path / "data", "billing")
    boots = Boots(load({"results.enabled": False}, {}, None), describe(nothing), slot, Transport.STREAM, None, "me@1")
    launcher = OneGeneration()

    async def use(pool: Pool, bench: Bench) -> None:
        operator = Operator(
            bench.core, pool, boots, order=Order(), acted=nothing, reread=None, stacks=nothing,
            stop=nothing, quick=nothing, notify=Notify({}, 0), terminal=Terminal(),
        )  # fmt: skip
        first = operator.reload()
        second = operator.reload()
        assert (first["ends"], second["ends"]) == (1, 2)
        _, launched, _ = launcher.launches[-1]
        launched(WorkerStartError("no room"))
        assert (pool.staffing.reloads_ended, pool.staffing.last_reload) == (1, "rolled back: no room")
        assert operator.reload()["ends"] == 2, "it is the one that waits"
        operator.reload_ended(0)
        await until(lambda: pool.staffing.reloads_ended == 2)
        assert pool.staffing.last_reload.startswith("refused: new workers cannot be started")
        told = staffing_picture(pool.staffing)
        assert told["reloads_ended"] == 2
        assert told["reload_results"] == {"1": "rolled back: no room", "2": pool.staffing.last_reload}

    try:
        with_pool(tmp_path, 0, launcher, use)
    finally:
        slot.release()
