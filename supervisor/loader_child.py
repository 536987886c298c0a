"""Care of the loader process: started, restarted with back-off, asked to stop. It talks through the staging folder only.

The loader is a program of its own (never a fork of this process), in a session of its own, so that the terminal's signals
go through the supervisor. A loader that is dead, slow or cannot start loses nothing: sealed segments stay where they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from ..conf.exit_codes import EXIT_INTERRUPTED, EXIT_SPARK
from ..conf.limits import INTERRUPTED_ITSELF, check_start, used_up, with_remedy
from ..conf.own_command import own_command
from ..conf.segment_format import FOLDER_FORMATS, LOADER_STATUS_FILE, READY_DIR, ready_files
from ..conf.settings import Settings, SparkSettings
from ..conf.sources import environment_name, without_settings
from ..spark.object_store import absolute
from ..spark.status import FAILED, STARTING, STOPPED
from ..workers.parent_death import die_with_parent
from ..workers.stack_dump import StackFile
from .core.pauses import LoaderPauses
from .pool.post_mortem import cause_of
from .pool.stacks import Helper
from .slot import Slot

NOT_STARTED = -1
"""In place of an exit code: there was no process."""
DRAIN_TIMEOUT_S = 20.0
"""At a stop it loads what is sealed, for so long; the next start loads what is left."""
STOP_TIMEOUT_S = 40.0
"""After that a batch under way is finished first. A kill loses nothing: the batch is loaded by the next start, too."""
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""The environment's names of OpenBLAS' number of threads, in the order in which it reads them."""

_PASSED = (
    "format", "function", "delta_jars", "iceberg_jars", "driver_memory", "max_wait_ms", "max_rows", "max_bytes_mib",
    "java_home", "target_file_mib", "jvm_timeout_ms", "on_recreated", "on_gap", "keep_outcomes_days", "vacuum",
    "table",
    "merge_files",
)  # fmt: skip

_PASSED_OF_RESULTS = ("seal_rows", "seal_bytes_mib", "high_water_mib")
"""Settings of the supervisor that the loader's are checked against, or go by."""

log = structlog.get_logger("rocketcrew.loader")


def where(spark: SparkSettings, table: Path) -> str:
    """What the loader loads into: a folder (`table` when none is named), a table in a bucket, or what Spark saves to."""
    if spark.format in FOLDER_FORMATS:
        return absolute(spark.target or str(table))
    return spark.target


class LoaderChild:
    """The loader process of this supervisor's slot."""

    def __init__(
        self,
        settings: Settings,
        slot: Slot,
        *,
        oom_kills: Callable[[], int] = lambda: 0,
        run: Callable[[], Awaitable[int]] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        drain_timeout_s: float = DRAIN_TIMEOUT_S,
    ) -> None:
        """`oom_kills()`: how many kills for want of memory its death by KILL may have been (post_mortem.py). `run` is one
        life of the process, and gives its exit code; another one, `sleep` and `clock` (s) are for tests."""
        self._oom_kills = oom_kills
        self._run = run or self._run_once
        self._drain_timeout_s = drain_timeout_s
        self._sleep = sleep
        self._clock = clock
        self._settings = settings
        self._segments = slot.segments
        self.target = where(settings.spark, slot.table)
        self._process: asyncio.subprocess.Process | None = None
        self._care: asyncio.Task[None] | None = None
        self._stopping = False
        self.restarts = -1
        self.start_failures = 0
        self.failures_in_a_row = 0
        """Ends and failed starts since it has last loaded a batch."""
        self._batches_total: int | None = None
        self._ended = ""
        """Why it has last ended, or was not started."""
        self._told: int | None = None
        """Our end of its stdin, while it runs."""
        self._refused = ""
        """Why it was last not started."""
        self._before_ms: object = None
        """When the one began that had written the status file before it was last started."""
        self._stack_file = StackFile()

    def start(self) -> None:
        """Start it and keep it running."""
        self._care = asyncio.get_running_loop().create_task(self.keep_running())

    def arguments(self) -> list[str]:
        """The loader's command line."""
        spark = self._settings.spark
        words = [
            *own_command("rocketcrew", "load", "--follow", "--quarantine"),
            "--staging", str(self._segments), "--target", self.target,
            "--set", f"log.level={self._settings.log.level}", "--set", f"log.format={self._settings.log.format}",
            "--set", f"log.file={self._settings.log.file}",
            "--set", f"consumer.group={self._settings.consumer.group}",
        ]  # fmt: skip
        for key in _PASSED:
            words += ["--set", f"spark.{key}={getattr(spark, key)}"]
        for key in _PASSED_OF_RESULTS:
            words += ["--set", f"results.{key}={getattr(self._settings.results, key)}"]
        return words

    def environment(self, ours: Mapping[str, str]) -> dict[str, str]:
        """`ours` without its settings, and with those that may hold passwords or commas: other users do not see them in the
        list of processes. Nor do they see the loader give them to its JVM (spark/session.py)."""
        spark = self._settings.spark
        tables = {"conf": dict(spark.conf), "options": dict(spark.options)}
        tables_set = {environment_name(f"spark.{key}"): json.dumps(table) for key, table in tables.items()}
        return {
            **({} if spark.function else _without_blas_threads(ours)),  # a function of the user's may calculate
            **without_settings(ours),
            **tables_set,
            environment_name("spark.partition_by"): ",".join(spark.partition_by),
            environment_name("spark.master"): spark.master,
        }  # that of a Connect server may have a token in it

    async def keep_running(self) -> None:
        """Start it again whenever it ends, after the pauses of core/pauses.py; until `stop` or `kill`."""
        pauses = LoaderPauses()
        while not self._stopping:
            begun = self._clock()
            code: int | None = None
            self._before_ms = self._said().get("started_ms")
            try:
                code = await self._run()
            except Exception as error:  # no process, no memory, too many files: later there may be
                self.start_failures += 1
                self._refused = with_remedy(error)
                log.error("loader_not_started", error=self._refused, exc_info=not used_up(error))
            if self._is_stopping():
                return
            self._count_failure()
            self._ended = self._why_ended(code)
            delay_s = pauses.after(self._clock() - begun)
            ended = NOT_STARTED if code is None else code
            log.error("loader_ended", exit_code=ended, restart_in_s=delay_s, **self._why(code))
            await self._sleep(delay_s)

    def _why_ended(self, code: int | None) -> str:
        if code is None:
            return f"it cannot be started: {self._refused}"
        said = self._said()
        if self._is_of_ours(said) and said.get("state") == FAILED and said.get("error"):
            return str(said["error"])
        return f"it ended without a word ({cause_of(code)}): see what stands before `loader_ended` in the log"

    def _why(self, code: int | None) -> dict[str, object]:
        """What it cannot say itself, for the log."""
        if code == EXIT_SPARK:
            return {"hint": "Spark cannot start here, see its message above; results stay on disk"}
        if code == EXIT_INTERRUPTED:  # we send it none, and the terminal's do not reach its session
            return {"hint": INTERRUPTED_ITSELF}
        if code is None or code >= 0:
            return {}
        told: dict[str, object] = {"cause": cause_of(code)}
        if code == -signal.SIGKILL:
            if kills := self._oom_kills():
                return told | {"oom_kills": kills, "hint": self._wants_memory()}
            told["hint"] = "killed by signal 9: by somebody, or for want of memory, then the kernel's log names it"
        return told

    def _wants_memory(self) -> str:
        sizes: list[int] = []
        with contextlib.suppress(OSError):
            sizes = [state.st_size for _, state in ready_files(self._segments / READY_DIR)]
        largest = max(sizes, default=0) >> 20
        waiting = f" (segments that wait: {len(sizes)} with {sum(sizes) >> 20} MiB, the largest {largest} MiB)"
        return (
            f"the kernel killed it for want of memory{waiting if sizes else ''}: give this member (its container or control"
            " group) more, or lower spark.max_bytes_mib; a batch has one segment at least, and that all rows of a message"
        )

    def _count_failure(self) -> None:
        batches_total = self.status().get("batches_total", 0)
        self.failures_in_a_row = self.failures_in_a_row + 1 if batches_total == self._batches_total else 1
        self._batches_total = batches_total

    def _is_stopping(self) -> bool:
        """Read anew: it may have changed while something was awaited."""
        return self._stopping

    async def _run_once(self) -> int:
        parent = os.getpid()
        self.restarts += 1
        check_start()
        # Not a pipe of uvloop's, which stays open where no process is to be had: one more each time.
        heard, told = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(told, False)
        try:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self.arguments(), "--stacks-fd", str(self._stack_file.shared.fd),
                    pass_fds=(self._stack_file.shared.fd,),
                    stdin=heard,  # its end shows the loader that we are gone
                    env=self.environment(os.environ),
                    start_new_session=True,
                    preexec_fn=lambda: die_with_parent(parent),
                )  # fmt: skip
            finally:
                os.close(heard)
            self._told = told
            log.info("loader_started", pid=self._process.pid, target=self.target)
            return await self._process.wait()
        finally:
            self._told = None
            os.close(told)

    def load_now(self) -> None:
        """Do not wait for more: somebody waits for what is sealed."""
        self._tell(b"load\n")

    def _tell(self, line: bytes) -> None:
        if self._told is not None:
            # It has ended, or stands still and reads nothing.
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(self._told, line)

    def helpers(self) -> list[Helper]:
        """The process, for whoever wants its stacks; nothing while none runs."""
        if self._process is None or self._process.returncode is not None:
            return []
        return [Helper("loader", self.target, self._process.pid, self._stack_file)]

    def status(self) -> dict[str, Any]:
        """Its own status file with the process's facts.

        The file is of the process that has last written one. What has ended without a word, or has just begun, says nothing
        there: how it is, is known here.
        """
        facts: dict[str, Any] = {
            "pid": self._process.pid if self._process is not None else 0,
            "restarts": max(self.restarts, 0),
            "start_failures": self.start_failures,
            "failures_in_a_row": self.failures_in_a_row,
            "target": self.target,
        }
        said = self._said()
        present = {} if self._process is None and not self._ended else {key: facts[key] for key in ("pid", "restarts")}
        return facts | said | present | self._state(said)

    def _said(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((self._segments / LOADER_STATUS_FILE).read_bytes()))
        return {}

    def _is_of_ours(self, said: Mapping[str, Any]) -> bool:
        if self._process is None or said.get("pid") != self._process.pid:
            return False
        return said.get("started_ms") != self._before_ms  # in a container the same number may come again

    def _state(self, said: Mapping[str, Any]) -> dict[str, str]:
        if self._process is not None and self._process.returncode is None:
            return {} if self._is_of_ours(said) else {"state": STARTING, "error": self._ended}
        if not self._ended or self._stopping or (self._is_of_ours(said) and said.get("state") in (STOPPED, FAILED)):
            return {}
        return {"state": FAILED, "error": self._ended}

    async def stop(self, waiting: int, forced: asyncio.Event, loaded_for_s: float = 0.0) -> None:
        """Let it load what waits (so many sealed segments), or else finish its batch. A second signal (`forced`), or the end
        of both times, kills it. `loaded_for_s`: so much of its time to load is over, as offsets have waited for it."""
        self._stopping = True
        process, drain_s = self._process, max(0.0, self._drain_timeout_s - loaded_for_s)
        if (
            process is not None
            and process.returncode is None
            and not await self._ends(process, waiting, drain_s, forced)
        ):
            log.warning("loader_killed", pid=process.pid)
        await self.kill()

    async def _ends(
        self, process: asyncio.subprocess.Process, waiting: int, drain_s: float, forced: asyncio.Event
    ) -> bool:
        if waiting and drain_s:
            log.info("loader_drains", segments=waiting, at_most_s=round(drain_s, 1),
                     hint="a second Ctrl-C, or TERM, leaves them to the next start")  # fmt: skip
            self._tell(b"drain\n")
            if await _ended(process, forced, drain_s):
                return True
        if forced.is_set():
            return False
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        return await _ended(process, forced, STOP_TIMEOUT_S)

    async def kill(self) -> None:
        """End it now."""
        self._stopping = True
        if self._care is not None:
            self._care.cancel()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


def _without_blas_threads(ours: Mapping[str, str]) -> dict[str, str]:
    """What keeps OpenBLAS, which pyarrow brings with numpy, from a thread a core at its import: no load calculates with it,
    and where it cannot have a thread it interrupts the process. What somebody has set stays."""
    return {} if any(name in ours for name in BLAS_THREADS) else {BLAS_THREADS[0]: "1"}


async def _ended(process: asyncio.subprocess.Process, forced: asyncio.Event, timeout_s: float) -> bool:
    """Wait for its end, for the event, or for so long; whether it has ended."""
    waits = {asyncio.ensure_future(process.wait()), asyncio.ensure_future(forced.wait())}
    await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for each in waits:
        each.cancel()
    return process.returncode is not None
