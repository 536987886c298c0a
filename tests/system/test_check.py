"""`make test` is only worth something if it fails when it should: on a failing stage, and on a process left behind."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240

START = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("check", {str(ROOT / "tools/check.py")!r})
check = importlib.util.module_from_spec(spec)
sys.modules["check"] = check
spec.loader.exec_module(check)
check.adopt_orphans()
runner = check.Runner()
"""
LEAVES_ONE = "import subprocess, sys; subprocess.Popen(['sleep', '1000'], start_new_session=True)"


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", START + script], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_failing_stage_is_named_and_its_output_shown() -> None:
    out = run(
        "runner.run([check.Stage('good', [sys.executable, '-c', 'print(1)']),"
        " check.Stage('bad', [sys.executable, '-c', 'print(40 + 2); raise SystemExit(3)'])])\n"
        "print(runner.failed, runner.clear())"
    )
    assert "42\n--- bad: FAILED (3)" in out
    assert "--- good: fine" in out
    assert out.splitlines()[-1] == "['bad'] False"


def test_a_process_that_outlives_its_stage_is_found_and_killed() -> None:
    out = run(
        f"runner.run([check.Stage('leaves one', [sys.executable, '-c', {LEAVES_ONE!r}])])\n"
        "left = [child.pid for child in check.psutil.Process().children()]\n"
        "print(runner.failed, left, runner.clear())"
    )
    assert "left behind" in out
    assert "sleep 1000" in out
    last = out.splitlines()[-1]
    assert last.startswith("[] [")
    assert last.endswith("] True")


def stage(name: str, code: int = 0, *, live: bool = True) -> str:
    """One that says its name and ends with that code."""
    script = f"print({name!r}); raise SystemExit({code})"
    return f"check.Stage({name!r}, [sys.executable, '-c', {script!r}], live={live})"


def checked(*phases: str) -> list[str]:
    """What the program prints that has these phases, and its exit code."""
    plan = ", ".join(f"[{stages}]" for stages in phases)
    return run(
        f"check.phases = lambda what: [{plan}]\nsys.argv = ['check.py', 'tests']\ncode = check.main()\nprint(code)"
    ).splitlines()


def test_tests_that_failed_keep_no_later_ones_from_running() -> None:
    """A run of an hour tells of every phase."""
    said = checked(stage("build", live=False), stage("unit", 1), stage("system", 1), stage("last"))
    assert [name for name in ("unit", "system", "last") if name in said] == ["unit", "system", "last"]
    assert said[-2:] == ["FAILED: unit, system", "1"]


def test_after_a_failed_check_or_build_nothing_else_runs() -> None:
    said = checked(f"{stage('checks', 1, live=False)}, {stage('build', live=False)}", stage("unit"))
    assert "unit" not in said
    assert said[-2:] == ["FAILED: checks", "1"]


def test_a_process_left_behind_by_tests_is_named_with_them_and_fails_the_run() -> None:
    leaves = f"check.Stage('unit', [sys.executable, '-c', {LEAVES_ONE!r}], live=True)"
    said = checked(leaves, stage("last"))
    assert "last" in said
    assert said[-2:] == ["FAILED: processes were left behind (unit)", "1"]


def test_a_good_run_ends_with_what_the_last_tests_say() -> None:
    said = checked(stage("build", live=False), stage("unit"), stage("last"))
    assert said[-2:] == ["last", "0"]
    took = [line for line in said if line.endswith("s of CPU with all that they started")]
    assert [line.partition(":")[0] for line in took] == ["--- unit"]
    assert [line for line in said if line.startswith("--- interop ")]


def test_an_interrupt_leaves_no_process() -> None:
    """A stage that ignores TERM, and one it started, are gone when the check is."""
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(1000)"
    )
    script = (
        "import signal\n"
        "signal.signal(signal.SIGTERM, check._interrupted)\n"
        "try:\n"
        f"    runner.run([check.Stage('stubborn', [sys.executable, '-c', {stubborn!r}], live=True)])\n"
        "except KeyboardInterrupt:\n"
        "    runner.clear()\n"
    )
    process = subprocess.Popen([sys.executable, "-u", "-c", START + script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert [process.stdout.readline().strip() for _ in range(2)] == ["--- stubborn", "up"]
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 1
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_modules_are_compiled_before_the_tests_also_those_of_linked_rooms(tmp_path: Path) -> None:
    package = tmp_path / "package"
    for folder in (package, tmp_path / "room/inner"):
        folder.mkdir(parents=True)
        (folder / "one.py").write_text("")
    (package / "room").symlink_to("../room")
    script = (
        "check.os.environ |= {'PYTHONDONTWRITEBYTECODE': '1'}\n"
        "for what in ('all', 'tests', 'interop'):\n"
        "    assert check.phases(what)[0][0].name == 'byte code'\n"
        f"runner.run([check.byte_code(check.Path({str(package)!r}))])\n"
        "print(runner.failed, runner.clear())"
    )
    assert run(script).splitlines()[-1] == "[] False"
    compiled = [importlib.util.cache_from_source(str(tmp_path / name / "one.py")) for name in ("package", "room/inner")]
    assert [Path(file).exists() for file in compiled] == [True, True]


def test_a_failure_is_reported_before_the_last_test_has_run(tmp_path: Path) -> None:
    for name in ("conftest.py", "longest_first.txt"):
        (tmp_path / name).write_text((ROOT / "tests" / name).read_text())
    (tmp_path / "test_few.py").write_text(
        "import pytest\n\ndef test_bad():\n    assert 40 == 2, 'no'\n\n"
        "@pytest.fixture\ndef torn():\n    raise OSError('gone')\n\ndef test_torn(torn):\n    pass\n"
    )
    command = ["pytest", "-q", "-n", "1", "--dist", "loadfile", "--no-loadscope-reorder", "-p", "no:cacheprovider", "."]
    done = subprocess.run(
        [sys.executable, "-Im", *command], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    while_it_runs = done.stdout.partition("= FAILURES =")[0].partition("= ERRORS =")[0]
    said = [line for line in while_it_runs.splitlines() if line.startswith("failed: ")]
    assert [line.split(" (")[0] for line in said] == ["failed: test_few.py::test_bad", "failed: test_few.py::test_torn"]
    assert [line.split(": ", 2)[2] for line in said] == ["AssertionError: no", "OSError: gone"], done.stdout
