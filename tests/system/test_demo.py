"""The demo, small: what `make demo` shows to everybody who tries the project first."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, runs, wait_until
from light_jvm import light_options

DEMO_S = 600.0
"""For all of it: broker, workers and the loader's Spark start, and in the end another Spark, for the answers."""


@contextlib.contextmanager
def started(
    folder: Path, *arguments: str, temporary: Path | None = None, more: Mapping[str, str] = MappingProxyType({})
) -> Generator[subprocess.Popen[str]]:
    """A demo, which is gone in the end, whatever the test found; what it started goes with it."""
    env = {**os.environ, "ROCKETCREW_SECURITY_TLS_ENABLE": "true", **more}
    if temporary:
        env["TMPDIR"] = str(temporary)
    with subprocess.Popen(
        [sys.executable, "-m", "rocketcrew", "demo", "--dir", str(folder), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=env,
    ) as demo:  # fmt: skip
        try:
            yield demo
        finally:
            demo.kill()


def test_the_demo_accounts_for_every_file(tmp_path: Path) -> None:
    # Spark without the settings of these tests, and with its own archive of pyspark.
    as_it_comes = {"JDK_JAVA_OPTIONS": light_options(), "PYTHONPATH": ""}
    with started(tmp_path / "data", "--files", "150", "--json", more=as_it_comes) as demo:
        out, err = demo.communicate(timeout=DEMO_S)
    assert demo.returncode == 0, err
    figures = json.loads(out.strip().splitlines()[-1])
    assert figures["files_sent"] >= 150
    assert figures["dead_lettered"] >= 2, "files that are bad on purpose are among them"
    assert figures["retried"] >= figures["dead_lettered"] * 2
    assert figures["files_sent"] == figures["done"] + figures["dead_lettered"]
    assert figures["rows"] > 1000
    assert len(figures["most_complex"]) == 10
    assert "The ten most complex functions" in out
    assert "files, " in err, "plain lines of progress where there is no terminal"


def processes_of(folder: Path) -> list[psutil.Process]:
    """Processes that name the demo's folder, and what they started."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter(["cmdline"]):
        if str(folder) in " ".join(process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [process, *process.children(recursive=True)]
    return found


@pytest.mark.parametrize(
    ("moment", "files"),
    [
        ("broker.log", 400),
        ("supervisor.log", 400),
        ("state/demo/0/journal", 400),
        ("../rocketcrew-query-*/log4j2.properties", 40),
    ],
)
def test_ctrl_c_at_any_moment_leaves_nothing(moment: str, files: int, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with started(folder, "--files", str(files), temporary=tmp_path) as demo:
        come = functools.partial(tmp_path.glob, f"data/{moment}")
        wait_until(lambda: demo.poll() is not None or any(come()), DEMO_S, moment)
        assert demo.poll() is None, demo.communicate()
        below = processes_of(folder)
        assert demo.pid in {process.pid for process in below}
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait(WAIT_S) == 130
        wait_until(lambda: not [*filter(runs, below), *processes_of(folder)], what="the end of every process")
