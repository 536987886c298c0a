"""The demo, small: what `make demo` shows to everybody who tries the project first."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, runs, wait_until


def start(folder: Path, *arguments: str, temporary: Path | None = None) -> subprocess.Popen[str]:
    env = {**os.environ, **({"TMPDIR": str(temporary)} if temporary else {})}
    return subprocess.Popen(
        [sys.executable, "-m", "rocketcrew", "demo", "--dir", str(folder), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=env,
    )  # fmt: skip


def test_the_demo_accounts_for_every_file(tmp_path: Path) -> None:
    demo = start(tmp_path / "data", "--files", "150", "--json")
    out, err = demo.communicate(timeout=WAIT_S)
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
    demo = start(folder, "--files", str(files), temporary=tmp_path)
    wait_until(lambda: any(tmp_path.glob(f"data/{moment}")), what=moment)
    started = processes_of(folder)
    assert demo.pid in {process.pid for process in started}
    os.killpg(demo.pid, signal.SIGINT)
    assert demo.wait(WAIT_S) == 130
    wait_until(lambda: not [*filter(runs, started), *processes_of(folder)], what="the end of every process")
