"""The loader's care: its arguments, and how it is started again."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing
import uvloop

from rocketcrew.cli.commands.load import config_of, load
from rocketcrew.cli.options import read_sources
from rocketcrew.cli.surroundings import Surroundings
from rocketcrew.conf import settings as conf
from rocketcrew.conf.exit_codes import EXIT_INTERRUPTED, EXIT_SPARK
from rocketcrew.conf.limits import FILES_OF_A_START
from rocketcrew.conf.own_command import own_command
from rocketcrew.conf.segment_format import LOADER_STATUS_FILE, READY_DIR, SEGMENT_SUFFIX
from rocketcrew.conf.settings import SparkSettings
from rocketcrew.spark.config import LoaderConfig
from rocketcrew.supervisor.core.pauses import LOADER_HEALTHY_S, LOADER_PAUSE_MAX_S
from rocketcrew.supervisor.loader_child import DRAIN_TIMEOUT_S, LoaderChild
from rocketcrew.supervisor.slot import Slot

OTHERS: dict[str, dict[str, object]] = {
    "target": {"spark.target": "/data/an other table"},
    "format": {"spark.format": "delta"},
    "function": {"spark.function": "app:save", "spark.format": "foreach"},
    "partition_by": {"spark.partition_by": ["day", "region"]},
    "delta_jars": {"spark.delta_jars": "/jars/a.jar,/jars/b.jar"},
    "iceberg_jars": {"spark.iceberg_jars": "/jars/c.jar"},
    "master": {"spark.master": "sc://host:15002/;token=secret"},
    "driver_memory": {"spark.driver_memory": "3g"},
    "max_wait_ms": {"spark.max_wait_ms": 31_000},
    "max_rows": {"spark.max_rows": 5, "results.seal_rows": 5},
    "max_bytes_mib": {"spark.max_bytes_mib": 3, "results.seal_bytes_mib": 2},
    "target_file_mib": {"spark.target_file_mib": 7},
    "jvm_timeout_ms": {"spark.jvm_timeout_ms": 0},
    "on_recreated": {"spark.on_recreated": "epoch"},
    "on_gap": {"spark.on_gap": "leave"},
    "keep_outcomes_days": {"spark.keep_outcomes_days": 7},
    "vacuum": {"spark.vacuum": True},
    "table": {"spark.table": "sales.orders"},
    "merge_files": {"spark.merge_files": True},
    "conf": {"spark.conf": {"spark.hadoop.fs.s3a.secret.key": "a=b,c"}},
    "options": {"spark.options": {"url": "jdbc:x", "password": "p,q"}},
    "java_home": {"spark.java_home": "/opt/java 21"},
    "high_water_mib": {"results.high_water_mib": 9},
}
"""Values that are not the defaults, by setting, with those that must go with them."""


def child_of(given: dict[str, object], folder: Path) -> LoaderChild:
    return LoaderChild(conf.load({**given, "cluster.name_servers": "h:9876"}, {}, None), Slot(folder / "0", "g", -1))


def understood(child: LoaderChild, folder: Path, env: Mapping[str, str] | None = None) -> LoaderConfig:
    """What the loader's process makes of its command line and environment in that folder; `env` is the supervisor's."""
    start = own_command("rocketcrew", "load")
    own, words = child.arguments()[: len(start)], child.arguments()[len(start) :]
    (folder / "0" / "segments").mkdir(parents=True, exist_ok=True)
    assert own == start
    with load.make_context("load", words, obj=Surroundings(child.environment(env or {}), folder)) as context:
        arguments = dict(context.params)
        settings = read_sources(context, arguments, {"target": "spark.target", "master": "spark.master"}).load()
        assert arguments["once"] is False
        [staging] = arguments["stagings"]
        return config_of(settings, staging, {})


@pytest.mark.parametrize("setting", OTHERS)
def test_every_setting_reaches_the_loader(tmp_path: Path, setting: str) -> None:
    child = child_of(OTHERS[setting], tmp_path)
    settings = child._settings
    wanted = config_of(
        replace(settings, spark=replace(settings.spark, target=child.target)), tmp_path / "0" / "segments", {}
    )
    assert understood(child, tmp_path) == wanted
    assert wanted != understood(child_of({}, tmp_path), tmp_path), "the setting means something"


def test_its_lines_name_the_group(tmp_path: Path) -> None:
    words = child_of({"consumer.group": "billing"}, tmp_path).arguments()
    assert words[words.index("consumer.group=billing") - 1] == "--set"


def test_no_setting_is_forgotten_here() -> None:
    assert {one.name for one in fields(SparkSettings)} - {"load"} == OTHERS.keys() - {"high_water_mib"}


def test_settings_of_the_environment_and_of_a_file_do_not_reach_the_loader_by_half(tmp_path: Path) -> None:
    """A secret key in the environment, and its access key in a file that `run` was given by -c; or a file in the folder."""
    child = child_of({}, tmp_path)
    wanted = understood(child, tmp_path)
    env = {
        "ROCKETCREW_SECURITY_SECRET_KEY": "s",
        "ROCKETCREW_SPARK_MAX_ROWS": "1",
        "ROCKETCREW_CONFIG": "gone.toml",
        "A": "b",
    }
    assert understood(child, tmp_path, env) == wanted
    assert child.environment(env)["A"] == "b"
    (tmp_path / "rocketcrew.toml").write_text('[security]\naccess_key = "a"\n[spark]\nmax_rows = 1\n')
    assert understood(child, tmp_path, env) == wanted


def test_passwords_are_not_on_the_command_line(tmp_path: Path) -> None:
    for setting in ("master", "conf", "options"):
        words = " ".join(child_of(OTHERS[setting], tmp_path).arguments())
        assert not any(secret in words for secret in ("secret", "a=b,c", "p,q"))


CANNOT_START = -11
AFTER_A_BATCH = -12


class Lives:
    """A loader that lives for so many seconds each time; after the last one its supervisor stops."""

    def __init__(self, folder: Path, lives: list[tuple[float, int]], oom_kills: list[int] | None = None) -> None:
        kills = iter(oom_kills or [])
        self.now_s = 1000.0
        self.slept_s: list[float] = []
        self.seen: list[dict[str, Any]] = []
        self.process: Any = None
        self._lives = iter(lives)
        self._status = folder / "0" / "segments" / LOADER_STATUS_FILE
        self._status.parent.mkdir(parents=True, exist_ok=True)
        self._child = LoaderChild(
            conf.load({"cluster.name_servers": "h:9876"}, {}, None), Slot(folder / "0", "g", -1),
            oom_kills=lambda: next(kills, 0), run=self.live, sleep=self.sleep, clock=lambda: self.now_s,
        )  # fmt: skip

    async def live(self) -> int:
        lived_s, code = next(self._lives, (0.0, None))
        self.now_s += lived_s
        self._child._process = self.process
        if code == AFTER_A_BATCH:
            self._status.write_text('{"batches_total": 1}')
        if code == CANNOT_START:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        if code is None:
            await self._child.kill()
            return 0
        return code

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s.append(seconds)
        self.seen.append(self._child.status())

    def status(self, said: dict[str, Any]) -> dict[str, Any]:
        """With that in its file."""
        self._status.write_text(json.dumps(said))
        return self._child.status()

    def status_while_it_waits(self, said: dict[str, Any]) -> dict[str, Any]:
        self.status(said)
        self.run()
        return self.seen[-1]

    def failures_in_a_row(self) -> int:
        return int(self._child.status()["failures_in_a_row"])

    def start_failures(self) -> int:
        return int(self._child.status()["start_failures"])

    def run(self) -> list[float]:
        """How long it waited before each new start."""
        asyncio.run(self._child.keep_running())
        return self.slept_s


@pytest.fixture
def lives(tmp_path: Path) -> Callable[..., Lives]:
    return lambda *lives: Lives(tmp_path, list(lives))


def test_it_is_started_again_with_a_delay_that_doubles_up_to_a_minute(lives: Callable[..., Lives]) -> None:
    assert lives(*[(5.0, 1)] * 9).run() == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert LOADER_PAUSE_MAX_S == 60


def test_one_that_cannot_be_started_is_tried_again(lives: Callable[..., Lives]) -> None:
    """No process, no memory, too many open files: the machine may have room again later."""
    one = lives((0.0, CANNOT_START), (0.0, CANNOT_START), (5.0, 1))
    assert one.run() == [1, 2, 4]
    assert one.start_failures() == 2


class Harmless(LoaderChild):
    """Its process ends at once."""

    def arguments(self) -> list[str]:
        return ["true"]


def test_where_descriptors_are_used_up_its_refusals_name_that_and_leave_none_open(tmp_path: Path) -> None:
    """Which call fails depends on how many are left. Of a start of uvloop's that failed some stayed open, so that each one
    made it worse, and of one call it said `Unknown error -1`."""
    soft, hard = getrlimit(RLIMIT_NOFILE)
    Slot(tmp_path / "0", "g", -1).segments.mkdir(parents=True)

    async def more(_seconds: float) -> None:
        nonlocal limit
        assert limit < tried_max, "each refusal leaves some open"
        setrlimit(RLIMIT_NOFILE, (limit := limit + 1, hard))

    async def run() -> int:
        code = await child._run_once()
        child._stopping = True
        return code

    async def begun() -> None:  # the loop has what it needs by then
        setrlimit(RLIMIT_NOFILE, (limit, hard))
        await child.keep_running()

    settings = conf.load({"cluster.name_servers": "h:9876"}, {}, None)
    child = Harmless(settings, Slot(tmp_path / "0", "g", -1), run=run, sleep=more)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, structlog.testing.capture_logs() as logs:
        runner.run(asyncio.sleep(0))
        before = os.listdir("/proc/self/fd")
        os.close(limit := os.open(os.devnull, os.O_RDONLY))  # the lowest that is free
        tried_max = limit + 2 * FILES_OF_A_START + len(before)  # some below may be taken
        try:
            runner.run(begun())
        finally:
            setrlimit(RLIMIT_NOFILE, (soft, hard))
        left = os.listdir("/proc/self/fd")
    refused = [line["error"] for line in logs if line["event"] == "loader_not_started"]
    assert len(refused) == child.start_failures > 0
    assert all("raise `ulimit -n`" in error for error in refused), refused
    assert len(left) <= len(before)


def test_where_no_process_is_to_be_had_the_limit_is_named_and_no_traceback_is_written(
    lives: Callable[..., Lives],
) -> None:
    with structlog.testing.capture_logs() as logs:
        one = lives((0.0, CANNOT_START), (5.0, 1))
        one.run()
    [refused] = [line for line in logs if line["event"] == "loader_not_started"]
    assert "pids.max" in refused["error"]
    assert not refused["exc_info"]
    assert "pids.max" in one.seen[0]["error"]


def test_one_that_a_library_has_interrupted_is_told_with_the_limit(lives: Callable[..., Lives]) -> None:
    """OpenBLAS raises SIGINT in its own process where it cannot start its threads."""
    with structlog.testing.capture_logs() as logs:
        lives((1.0, EXIT_INTERRUPTED)).run()
    [ended] = logs
    assert "pids.max" in ended["hint"]


@pytest.mark.parametrize(
    ("given", "ours", "threads"),
    [
        ({}, {}, "1"),
        ({}, {"OPENBLAS_NUM_THREADS": "3"}, "3"),
        ({}, {"OMP_NUM_THREADS": "3"}, None),
        (OTHERS["function"], {}, None),
    ],
)
def test_it_has_no_threads_to_calculate_with_unless_somebody_wants_them(
    tmp_path: Path, given: dict[str, object], ours: dict[str, str], threads: str | None
) -> None:
    assert child_of(given, tmp_path).environment(ours).get("OPENBLAS_NUM_THREADS") == threads


def test_failures_are_counted_since_the_last_batch(lives: Callable[..., Lives]) -> None:
    one = lives((5.0, 1), (0.0, CANNOT_START), (5.0, 1))
    one.run()
    assert one.failures_in_a_row() == 3


@pytest.mark.parametrize(
    ("life", "why"), [((5.0, 1), r"without a word \(exit code 1\)"), ((0.0, CANNOT_START), "cannot be started")]
)
def test_one_that_has_ended_without_a_word_does_not_count_as_the_one_before(
    lives: Callable[..., Lives], life: tuple[float, int], why: str
) -> None:
    """It could not even be imported; its file said `waiting` for ever, with no error and no restart."""
    one = lives(life)
    before = {"pid": 4711, "state": "waiting", "error": "", "rows_total": 7, "restarts": 0}
    found = one.status_while_it_waits(before)
    assert (found["pid"], found["state"], found["rows_total"]) == (0, "failed", 7)
    assert re.search(why, found["error"])


def test_one_that_has_ended_without_a_word_is_not_the_one_before_that_had_its_number(
    lives: Callable[..., Lives],
) -> None:
    """In a container each start gives the same numbers."""
    one = lives((5.0, 1))
    one.process = SimpleNamespace(pid=4711, returncode=1)
    found = one.status_while_it_waits({"pid": 4711, "started_ms": 5, "state": "stopped", "error": ""})
    assert (found["state"], "without a word" in found["error"]) == ("failed", True)


def test_the_file_of_a_loader_that_is_not_ours_is_believed(lives: Callable[..., Lives]) -> None:
    """Of one by hand, as no loader was started here."""
    one = lives()
    assert one.status({"pid": 4711, "state": "waiting"})["pid"] == 4711


def test_a_batch_ends_the_row_of_failures(lives: Callable[..., Lives]) -> None:
    one = lives((5.0, 1), (5.0, 1), (5.0, AFTER_A_BATCH), (5.0, 1))
    one.run()
    assert one.failures_in_a_row() == 2


def test_a_life_in_health_makes_the_next_delay_short(lives: Callable[..., Lives]) -> None:
    short, healthy = (LOADER_HEALTHY_S, 1), (LOADER_HEALTHY_S + 1, 1)
    assert lives(short, short, short, healthy, short, short).run() == [1, 2, 4, 1, 2, 4]


def test_it_is_said_what_ended_and_what_can_be_done(lives: Callable[..., Lives]) -> None:
    with structlog.testing.capture_logs() as logs:
        lives((5.0, EXIT_SPARK), (5.0, 1)).run()
    told = [(log["event"], log["exit_code"], log["restart_in_s"], "hint" in log) for log in logs]
    assert told == [("loader_ended", EXIT_SPARK, 1.0, True), ("loader_ended", 1, 2.0, False)]
    assert "Spark cannot start here" in logs[0]["hint"]


def test_a_kill_for_want_of_memory_is_named_with_what_waits(tmp_path: Path) -> None:
    """It was killed for ever by one segment, and no line said why."""
    ready = tmp_path / "0" / "segments" / READY_DIR
    ready.mkdir(parents=True)
    for name, mib in (("a", 3), ("b", 40)):
        with (ready / f"{name}{SEGMENT_SUFFIX}").open("wb") as segment:
            segment.truncate(mib << 20)
    killed = (5.0, -signal.SIGKILL)
    with structlog.testing.capture_logs() as logs:
        Lives(tmp_path, [killed, killed, (5.0, -signal.SIGBUS)], oom_kills=[2, 0]).run()
    for_memory, by_somebody, by_fault = [log for log in logs if log["event"] == "loader_ended"]
    assert (for_memory["exit_code"], for_memory["cause"], for_memory["oom_kills"]) == (-9, "SIGKILL", 2)
    assert "segments that wait: 2 with 43 MiB, the largest 40 MiB" in for_memory["hint"]
    assert "spark.max_bytes_mib" in for_memory["hint"]
    assert "oom_kills" not in by_somebody
    assert "killed by signal 9" in by_somebody["hint"]
    assert (by_fault["cause"], "hint" in by_fault) == ("SIGBUS", False)


STAND_IN = """
import signal, sys
told = []
signal.signal(signal.SIGTERM, lambda *_: (told.append("TERM"), {on_term}))
print("runs", flush=True)
while line := sys.stdin.readline():
    told.append(line.strip())
    if line == "drain\\n":
        {on_drain}
"""
LEAVE = "open('told', 'w').write(' '.join(told)); sys.exit(0)"


class StoppedLoader:
    """A supervisor's loader that is stopped; its process is a stand-in."""

    def __init__(self, folder: Path, on_drain: str, on_term: str = f"exec({LEAVE!r})") -> None:
        self._folder = folder
        self._program = STAND_IN.format(on_drain=on_drain, on_term=on_term)
        self._child = LoaderChild(
            conf.load({"cluster.name_servers": "h:9876"}, {}, None), Slot(folder / "0", "g", -1), drain_timeout_s=0.2
        )

    async def stopped(self, waiting: int, *, forced: bool = False, loaded_for_s: float = 0.0) -> tuple[int | None, str]:
        """Its exit code, and what it was told."""
        heard, told_by = os.pipe()
        process = self._child._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", self._program, stdin=heard, stdout=asyncio.subprocess.PIPE, cwd=self._folder
        )
        os.close(heard)
        self._child._told = told_by
        assert process.stdout is not None
        await process.stdout.readline()
        insists = asyncio.Event()
        if forced:
            insists.set()
        await self._child.stop(waiting, insists, loaded_for_s)
        os.close(told_by)
        told = self._folder / "told"
        return process.returncode, told.read_text() if told.exists() else ""


@pytest.mark.parametrize(
    ("on_drain", "waiting", "told"),
    [(LEAVE, 0, "TERM"), (LEAVE, 3, "drain"), ("pass", 3, "drain TERM")],
    ids=["nothing waits", "all is loaded", "it takes too long"],
)
def test_what_is_sealed_is_loaded_before_the_end(tmp_path: Path, on_drain: str, waiting: int, told: str) -> None:
    loader = StoppedLoader(tmp_path, on_drain)
    with structlog.testing.capture_logs() as logs:
        assert asyncio.run(loader.stopped(waiting)) == (0, told)
    assert [line["segments"] for line in logs if line["event"] == "loader_drains"] == [waiting] * bool(waiting)


def test_what_offsets_have_waited_for_it_is_part_of_its_time(tmp_path: Path) -> None:
    loader = StoppedLoader(tmp_path, LEAVE)
    assert asyncio.run(loader.stopped(3, loaded_for_s=DRAIN_TIMEOUT_S)) == (0, "TERM")


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    loader = StoppedLoader(tmp_path, "pass", on_term="told")
    assert asyncio.run(loader.stopped(3, forced=True)) == (-9, "")
