"""Every check and test, in the order in which a failure is cheapest to hear of; what `make test` runs.

    check.py all       static checks and the wheel's build, then all tests, then those of packaging on the installed wheel
    check.py static    format, lint, both type checkers, the documents' build
    check.py tests     the same as all, without the static checks
    check.py interop   tests against genuine RocketMQ

Stages of one phase run side by side with their output kept apart; phases follow each other, because tests that start
processes and watch the clock do not share the machine with a type checker. A static check or a build that failed ends the
run. Tests that failed do not: one run tells of all phases, and its end names what failed. The last thing printed by a good
run is the closing line of pytest; just before the last tests a line says what became of those against genuine RocketMQ, which
only `interop` runs. Programs are named by the folder of this Python, so no environment needs to be activated.

This process adopts what its tests lose (a "subreaper"): a process that outlives the test that started it is found here,
named, killed, and fails the run.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn

import psutil

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
WHEEL_PYTHON = ROOT / ".venv-wheel/bin/python"
CORES = max(1, min(8, len(os.sched_getaffinity(0))))
FILES_AT_ONCE = max(1, min(2 * CORES, psutil.virtual_memory().total // (4 << 30)))
"""Where there is more than one core. Tests with processes wait for nearly half of their time (a delay of a broker, a lock
that expires, a process that boots): twice as many as cores keep these busy. Each may have four pairs of genuine servers, or
two JVMs of Spark."""
TOTAL_MAX_S = 80 * 60
CLEAR_MAX_S = 20
GRACE_S = 3
PR_SET_CHILD_SUBREAPER = 36
WHEEL_ROOMS = ("cli", "conf", "docs", "engine", "examples", "testing", "workers")
"""The unit tests that can come out otherwise with the package installed than in the checkout, where all of them run.

The wheel's environment has the same Python and, through one path line, the same dependencies. That the installed files are
the checkout's byte for byte, none more and none fewer, that each module imports, and where the entry points lead, is what
tests/unit/docs/test_package.py finds there. Equal bytes on equal dependencies do the same, except for what asks where it
lies, reads a file of the package or starts a process of it: the command, settings, documents, what is shipped to
executors, examples, the plug-in of pytest, and workers.
"""
BENCH_PATH = {"MYPYPATH": "bench:tests/system:tests/interop"}
"""Benchmarks import each other and the harnesses of the tests by their bare names."""


@dataclass(frozen=True)
class Stage:
    """One command. `live`: its output goes straight to ours, and it runs alone."""

    name: str
    command: Sequence[str | Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    live: bool = False


def pytest(name: str, *arguments: str | Path, python: Path | None = None) -> Stage:
    # -I keeps the current folder off sys.path, where the rooms would be importable bare.
    color = "yes" if sys.stdout.isatty() else "no"
    return Stage(name, [python or sys.executable, "-Im", "pytest", "-q", f"--color={color}", *arguments], live=True)


def has_tests(folder: str) -> bool:
    return any((ROOT / folder).glob("**/test_*.py"))


def static() -> list[Stage]:
    benchmarks = sorted((ROOT / "bench").glob("*.py"))
    return [
        Stage("ruff format", [BIN / "ruff", "format", "--check", "."]),
        Stage("ruff check", [BIN / "ruff", "check", "."]),
        Stage("mypy", [BIN / "mypy"]),
        Stage("mypy, benchmarks", [BIN / "mypy", "--follow-imports=silent", *benchmarks], BENCH_PATH),
        Stage("pyright", [BIN / "pyright", "--warnings"]),
        Stage("documents", [BIN / "mkdocs", "build", "--quiet"]),
    ]


def byte_code(package: Path = ROOT / "src/rocketcrew") -> Stage:
    """Our modules, compiled once. Where PYTHONDONTWRITEBYTECODE is set, each of the thousands of processes that tests start
    would else compile all that it imports, which takes as long as the rest of its start."""
    # They are links, which compileall follows when they are named.
    rooms = sorted(room for room in package.iterdir() if room.is_dir())
    return Stage("byte code", [sys.executable, "-Pm", "compileall", "-q", package, *rooms])


def phases(what: str) -> list[list[Stage]]:
    spread = ["-n", str(CORES), "--dist", "worksteal"] if CORES > 1 else []
    # Tests with processes share what a file has started, so files are spread; in the order of tests/longest_first.txt, not of
    # the number of their tests.
    by_file = ["-n", str(FILES_AT_ONCE), "--dist", "loadfile", "--no-loadscope-reorder"] if CORES > 1 else []
    if what == "static":
        return [static()]
    if what == "interop":
        live = pytest("interop", "tests/interop", "--durations=15", *by_file)
        return [[byte_code()], [live]] if has_tests("tests/interop") else []
    fast = [folder for folder in ("tests/unit", "tests/simulation") if has_tests(folder)]
    plan = [
        [
            byte_code(),
            *(static() if what == "all" else []),
            Stage("build wheel", [sys.executable, ROOT / "tools/wheel.py"]),
        ],
        [pytest("unit and simulation", "tests/test_tidy.py", *fast, *spread)],
    ]
    if has_tests("tests/system"):
        plan.append([pytest("system", "tests/system", "--durations=10", *by_file)])
    expect = f"--expect-package-in={ROOT / '.venv-wheel'}"
    on_the_wheel = [f"tests/unit/{room}" for room in WHEEL_ROOMS]
    plan.append([pytest("on the built wheel", *on_the_wheel, expect, *spread, python=WHEEL_PYTHON)])
    return plan


def about_interop() -> str:
    """Why nothing of this run met a genuine server."""
    missing = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if missing:
        return f"skipped: no tests against genuine RocketMQ, {' and '.join(missing)} missing on the PATH"
    return "not in this run: `make interop` runs the tests against genuine RocketMQ"


class Runner:
    """Starts stages, waits for all children in one place, and tells what happened."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[Stage, float, IO[bytes] | None]] = {}
        self.failed: list[str] = []

    def run(self, stages: Sequence[Stage]) -> None:
        """Run the stages of one phase, CORES at a time."""
        waiting = list(stages)
        while waiting or self._running:
            while waiting and len(self._running) < CORES:
                self._start(waiting.pop(0))
            self._wait()

    def _start(self, stage: Stage) -> None:
        print(f"--- {stage.name}", flush=True)
        output = None if stage.live else tempfile.TemporaryFile()  # noqa: SIM115  closed when the stage ends
        # Only the pid is kept: this process reaps its children itself, together with those that it adopts.
        process = subprocess.Popen(
            [str(part) for part in stage.command],
            cwd=ROOT,
            env={**os.environ, **stage.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
        )
        process.returncode = 0  # keeps Popen from waiting for it when it is collected
        self._running[process.pid] = (stage, time.monotonic(), output)

    def _wait(self) -> None:
        pid, status = os.waitpid(-1, 0)
        if pid not in self._running:
            return  # an adopted one
        stage, started, output = self._running.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - started
        if output is not None:
            output.seek(0)
            text = output.read().decode(errors="replace").rstrip()
            output.close()
            if text and code != 0:
                print(text)
            print(f"--- {stage.name}: {'fine' if code == 0 else f'FAILED ({code})'}, {seconds:.0f} s", flush=True)
        elif code != 0:
            print(f"--- {stage.name}: FAILED ({code}), {seconds:.0f} s", flush=True)
        if code != 0:
            self.failed.append(stage.name)

    def clear(self) -> bool:
        """Kill every process that is still below us; true when there was one although no stage runs.

        Again until there is none: one that was just killed may have started another.
        """
        left = False
        if not self._running:
            # What ends with the stage by itself, seeing the end of a pipe, may take a moment.
            psutil.wait_procs(psutil.Process().children(recursive=True), timeout=GRACE_S)
        deadline = time.monotonic() + CLEAR_MAX_S
        while time.monotonic() < deadline:
            found = [child for child in psutil.Process().children(recursive=True) if _alive(child)]
            if not found:
                break
            for child in found:
                if not self._running:
                    left = True
                    print(f"--- left behind: {child.pid} {_command(child)}", flush=True)
                _kill(child)
            psutil.wait_procs(found, timeout=1)
        self._running.clear()
        return left


def _cpu_s() -> float:
    """Of all children that have ended, and of theirs; also of those that were adopted."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.Error:
        return "(gone)"


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_all(runner: Runner, plan: Sequence[Sequence[Stage]]) -> int:
    """Run the phases in turn; the exit code."""
    has_interop = any(stage.name == "interop" for stages in plan for stage in stages)
    for number, stages in enumerate(plan, 1):
        tests = all(stage.live for stage in stages)
        if tests and number == len(plan) and not has_interop:
            print(f"--- interop {about_interop()}", flush=True)
        began = time.monotonic(), _cpu_s()
        runner.run(stages)
        left = runner.clear()
        if tests and number < len(plan):  # the last line of all is pytest's own
            took = f"{time.monotonic() - began[0]:.0f} s, {_cpu_s() - began[1]:.0f} s of CPU with all that they started"
            print(f"--- {stages[0].name}: {took}", flush=True)
        if left:
            runner.failed.append(f"processes were left behind ({', '.join(stage.name for stage in stages)})")
        if runner.failed and not tests:
            break
    if runner.failed:
        print("FAILED: " + ", ".join(runner.failed), flush=True)
    return 1 if runner.failed else 0


def _interrupted(number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt(signal.Signals(number).name)


def main() -> int:
    what = sys.argv[1] if len(sys.argv) > 1 else "all"
    if what not in ("all", "static", "tests", "interop"):
        print(__doc__)
        return 2
    adopt_orphans()
    # Started in the background it is ignored, and all that tests start would inherit that; tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupted)
    signal.signal(signal.SIGALRM, _interrupted)
    signal.alarm(TOTAL_MAX_S)
    os.environ |= {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1", "PYTHONUNBUFFERED": "1", "NO_MKDOCS_2_WARNING": "1"}
    runner = Runner()
    try:
        return run_all(runner, phases(what))
    except KeyboardInterrupt as error:
        print(f"stopped by {error or 'Ctrl-C'}", flush=True)
        return 130
    finally:
        runner.clear()


if __name__ == "__main__":
    sys.exit(main())
