"""Workers whose process is still being made, or cannot be made: their records end, and others are started."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.conf.segment_format import segment_name
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.staffing import Policy
from rocketcrew.supervisor.core.states import WorkerState
from rocketcrew.supervisor.pool.child import HandlerError
from rocketcrew.supervisor.pool.launching import Launcher
from rocketcrew.supervisor.pool.worker_pool import Pool
from rocketcrew.workers.cells import CellFile
from rocketcrew.workers.link import Transport
from rocketcrew.workers.packets import BootFailed, Ready, encode_boot_failed, encode_ready, encode_salvaged
from rocketcrew.workers.salvage import nothing_of
from rocketcrew.workers.spawn import WorkerStartError

from .conftest import Bench

WAIT_S = 60.0


class Process:
    """A process that is dead as soon as it is killed."""

    pid, unattended = 7, False

    def __init__(self, exitcode: int = -9) -> None:
        self.exitcode = exitcode
        self.sentinel, self._alive = os.pipe()
        self.killed = False

    def kill(self) -> None:
        if not self.killed:
            self.killed = True
            os.close(self._alive)

    def signal_group(self, number: int) -> bool:
        """Nobody is in it."""
        del number
        return False

    def close(self) -> None:
        os.close(self.sentinel)


class Forkserver:
    """One whose first worker waits until the test lets it go on."""

    warm, pid, spare_pid = False, None, None

    def __init__(self) -> None:
        self.asked: list[str] = []

    def start(self) -> None:
        pass

    def start_worker(self, boot: str) -> Any:
        self.asked.append(boot)
        return Process()


class Waiting:
    """A launcher that keeps what is to be launched; the first `errors` are raised instead, one for each launch."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.launches: list[tuple[Any, Callable[[Any], None], Callable[[], bool]]] = []
        self.launched = asyncio.Event()

    def launch(
        self, generation: int, new: Any, launched: Callable[[Any], None], wanted: Callable[[], bool] = lambda: True
    ) -> None:
        del generation
        if self.errors:
            raise self.errors.pop(0)
        self.launches.append((new, launched, wanted))
        self.launched.set()

    def interrupt(self, generation: int) -> None:
        pass


def nothing(*_: object) -> Any:
    """Whatever the pool calls that does not matter here."""


def with_pool(
    folder: Path, count: int, launcher: Any, use: Callable[[Pool, Bench], Awaitable[None]], cell_slots: int = 4,
    left_behind: Sequence[Path] = (), acted: Callable[[Pool, Bench], object] = nothing,
) -> None:  # fmt: skip
    """`acted` does what the core wants, after each event of the pool."""

    async def main() -> None:
        bench = Bench(chunk_messages_max=8)
        (folder / "open").mkdir()
        pool = Pool(
            bench.core, Policy(count), run_id="r", transport=Transport.SLAB, segments=folder, left_behind=list(left_behind),
            cells=CellFile(folder / "cells", cell_slots), queue_info=nothing, slab=memoryview(bench.view),
            acted=lambda: acted(pool, bench), gave_up=nothing, reload_ended=nothing, check=nothing, traced=nothing,
            direct_timeout_s=1,
        )  # fmt: skip
        pool.launcher = launcher
        await use(pool, bench)

    asyncio.run(main())


async def until(true: Callable[[], bool]) -> None:
    """Let the loop run on until it is so."""
    async with asyncio.timeout(WAIT_S):
        while not true():  # noqa: ASYNC110  turns of the loop
            await asyncio.sleep(0)


def test_a_worker_that_was_given_up_while_its_process_was_made_is_killed(tmp_path: Path) -> None:
    launcher = Waiting()

    async def use(pool: Pool, bench: Bench) -> None:
        pool.run_staffing()
        ((new, launched, _),) = launcher.launches
        bench.core.handle(ev.WorkerKilled(new.worker_id), 0.0)
        process = Process()
        launched(process)
        assert process.killed
        worker = bench.core.state.workers[new.worker_id]
        await until(lambda: worker.state is WorkerState.GONE)
        assert not pool.children

    with_pool(tmp_path, 1, launcher, use)


def test_one_that_is_booting_is_left_alive(tmp_path: Path) -> None:
    launcher = Waiting()

    async def use(pool: Pool, bench: Bench) -> None:
        del bench
        pool.run_staffing()
        ((_, launched, wanted),) = launcher.launches
        assert wanted()
        process = Process()
        launched(process)
        assert not process.killed
        assert len(pool.children) == 1
        process.kill()
        await until(lambda: not pool.children)

    with_pool(tmp_path, 1, launcher, use)


def test_what_earlier_runs_left_is_asked_of_the_next_worker_too_though_it_lies_in_ready_by_now(tmp_path: Path) -> None:
    """The first one ended between the rename and its word, if it came so far: what the segment holds is not known yet."""
    launcher, left = Waiting(OSError(24, "Too many open files")), [tmp_path / "open" / "w1.1-00000001.arrows"]

    async def use(pool: Pool, bench: Bench) -> None:
        del bench
        pool.run_staffing()
        pool.staffing.set_policy(Policy(3))
        pool.run_staffing()
        assert [new.salvage for new, _, _ in launcher.launches] == [(), tuple(left)]

    with_pool(tmp_path, 2, launcher, use, left_behind=left)


def test_one_that_is_not_wanted_any_more_when_its_turn_comes_is_reported_and_not_started() -> None:
    class New:
        worker_id = "r.1"

    async def main() -> None:
        launcher, forkserver, answers = Launcher(), Forkserver(), list[Any]()
        of: Any = forkserver
        launcher.add(0, of, lambda new: new.worker_id)  # type: ignore[arg-type,return-value]
        new: Any = New()
        launcher.launch(0, new, answers.append, lambda: False)
        await until(lambda: bool(answers))
        assert isinstance(answers[0], WorkerStartError)
        assert forkserver.asked == []

    asyncio.run(main())


def test_a_forkserver_that_fails_to_end_keeps_no_other_and_no_stop_from_going_on() -> None:
    class Stubborn(Forkserver):
        def stop(self) -> None:
            self.asked.append("stop")
            raise FileNotFoundError(2, "No such file or directory")

    async def main() -> None:
        launcher, forkservers = Launcher(), (Stubborn(), Stubborn())
        for number, of in enumerate[Any](forkservers):
            launcher.add(number, of, nothing)
        await launcher.stop()
        assert [of.asked for of in forkservers] == [["stop"], ["stop"]]
        assert launcher.helpers() == []

    asyncio.run(main())


def test_a_start_that_got_no_process_is_no_fault_of_the_handler(tmp_path: Path) -> None:
    """One may be got at the next start: whoever starts members again must go on with that."""
    refused = WorkerStartError("worker r.1 could not be started: the forkserver is gone")

    async def use(pool: Pool, bench: Bench) -> None:
        del bench
        with pytest.raises(WorkerStartError, match="the forkserver is gone"):
            await pool.start()

    with_pool(tmp_path, 1, Waiting(refused), use)


def test_a_handler_whose_worker_ended_in_its_boot_is_named_as_such_unless_one_was_ready_since(tmp_path: Path) -> None:
    launcher = Waiting()

    async def use(pool: Pool, bench: Bench) -> None:
        del bench
        pool.run_staffing()
        (_, launched, _), _ = launcher.launches
        launched(Process(3))
        (child,) = pool.children.values()
        child.process.kill()
        await until(lambda: not pool.children)
        assert type(pool.why_none()) is HandlerError
        assert "(exit code 3)" in pool.staffing.last_boot_error
        launcher.launches[1][1](Process())
        (child,) = pool.children.values()
        pool.hearing.packet(child, encode_ready(Ready(7, "h", None, batch=False)))
        assert type(pool.why_none()) is WorkerStartError
        child.process.kill()
        await until(lambda: not pool.children)

    with_pool(tmp_path, 2, launcher, use)


def test_who_was_killed_by_somebody_while_it_booted_is_no_fault_of_the_handler(tmp_path: Path) -> None:
    """As a system that gives no process: the next start may be spared."""
    launcher = Waiting()

    async def use(pool: Pool, bench: Bench) -> None:
        pool.run_staffing()
        ((new, launched, _),) = launcher.launches
        launched(Process())
        pool.children[new.worker_id].process.kill()
        await until(lambda: bool(pool.failure))
        assert type(pool.why_none()) is WorkerStartError
        assert "SIGKILL" in pool.failure
        assert bench.core.state.workers == {}

    with_pool(tmp_path, 1, launcher, use)


def test_what_a_worker_said_of_its_boot_counts_also_if_it_was_killed_then(tmp_path: Path) -> None:
    launcher = Waiting()

    async def use(pool: Pool, bench: Bench) -> None:
        del bench
        pool.run_staffing()
        ((new, launched, _),) = launcher.launches
        launched(Process())
        child = pool.children[new.worker_id]
        pool.hearing.packet(child, encode_boot_failed(BootFailed("ImportError: no such thing", "")))
        child.process.kill()
        await until(lambda: bool(pool.failure))
        assert type(pool.why_none()) is HandlerError
        assert pool.failure == "ImportError: no such thing"

    with_pool(tmp_path, 1, launcher, use)


@pytest.mark.usefixtures("no_collection")
def test_an_error_before_the_process_is_made_is_that_workers_alone_and_loses_nothing(tmp_path: Path) -> None:
    launcher = Waiting(OSError(24, "Too many open files"))

    async def use(pool: Pool, bench: Bench) -> None:
        descriptors = len(os.listdir("/proc/self/fd"))
        pool.run_staffing()
        assert pool.staffing.last_boot_error.startswith("[Errno 24] Too many open files (no file descriptor is left of")
        ((new, _, _),) = launcher.launches  # the one after it
        assert [worker.index for worker in bench.core.state.workers.values()] == [new.index] == [1]
        assert new.cell_slot == 0, "the first worker gave its cell back"
        after_two = len(os.listdir("/proc/self/fd"))
        pool.staffing.set_policy(Policy(3))
        pool.run_staffing()
        assert len(os.listdir("/proc/self/fd")) - after_two == after_two - descriptors, "nothing stayed open"

    with_pool(tmp_path, 2, launcher, use)


def test_one_for_whom_no_cell_is_left_is_reported(tmp_path: Path) -> None:
    launcher = Waiting()

    async def use(pool: Pool, bench: Bench) -> None:
        pool.run_staffing()
        assert [new.index for new, _, _ in launcher.launches] == [0]
        assert [worker.index for worker in bench.core.state.workers.values()] == [0]

        assert pool.staffing.last_boot_error == (
            f"all 1 cells of {tmp_path / 'cells'} are taken, by workers that live or leave: start fewer (workers.count), or"
            " wait until those that leave have ended"
        )

    with_pool(tmp_path, 2, launcher, use, cell_slots=1)


def test_a_failing_step_of_the_staffing_takes_no_other_along(tmp_path: Path) -> None:
    class Broken(Waiting):
        def interrupt(self, generation: int) -> None:
            raise OSError(5, "Input/output error")

    launcher = Broken()

    async def use(pool: Pool, bench: Bench) -> None:
        pool.staffing.set_policy(Policy(2, boot_timeout_s=0.0))
        pool.run_staffing()
        pool.run_staffing()  # both take longer to boot than they may
        assert bench.counters.unexpected_errors == 2
        pool.staffing.set_policy(Policy(3))
        pool.run_staffing()
        assert len(launcher.launches) == 3

    with_pool(tmp_path, 2, launcher, use)


def test_a_death_of_which_nothing_can_be_found_out_is_a_death(tmp_path: Path) -> None:
    class Unreadable(Process):
        @property
        def exitcode(self) -> int:  # type: ignore[override]
            raise OSError(5, "Input/output error")

        @exitcode.setter
        def exitcode(self, code: int) -> None:
            pass

    launcher = Waiting()

    async def use(pool: Pool, bench: Bench) -> None:
        pool.run_staffing()
        ((new, launched, _),) = launcher.launches
        process: Any = Unreadable()
        launched(process)
        worker = bench.core.state.workers[new.worker_id]
        process.kill()
        await until(lambda: worker.state is WorkerState.GONE)
        assert (bench.counters.unexpected_errors, pool.children) == (1, {})

    with_pool(tmp_path, 1, launcher, use)


def test_after_one_that_did_not_get_ready_the_salvage_goes_on_behind_what_it_has_done(tmp_path: Path) -> None:
    launcher = Waiting()
    left = [tmp_path / "open" / segment_name("w0.1", seq) for seq in range(3)]

    async def use(pool: Pool, bench: Bench) -> None:
        del bench
        pool.run_staffing()
        (new, launched, _), (other, *_) = launcher.launches
        assert (new.salvage, other.salvage) == (tuple(left), ())
        launched(Process())
        child = pool.children[new.worker_id]
        for packet in encode_salvaged(nothing_of(left[0])):
            pool.hearing.packet(child, packet)
        launcher.launched.clear()
        child.process.kill()
        async with asyncio.timeout(WAIT_S):
            await launcher.launched.wait()
        assert launcher.launches[2][0].salvage == tuple(left[1:])

    with_pool(tmp_path, 2, launcher, use, left_behind=left)
