"""The test kit as its users have it: the page about it, run as it is written, and a plug-in that costs nothing unused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from documented import blocks_of, run_pytest


def test_the_page_on_testing_runs_as_it_is_written(tmp_path: Path) -> None:
    blocks = blocks_of("testing.md")
    tests = sum(text.count("\ndef test_") for text in blocks.values())
    assert {"shop.py", "test_call.py", "test_run.py", "test_broker.py"} <= blocks.keys()
    for name, text in blocks.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tests} passed" in done.stdout


def test_the_plug_in_imports_nothing_of_the_package_before_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n\n\ndef test_nothing():\n    assert not [each for each in sys.modules if 'rocketcrew.' in each]\n"
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_and_the_kit_need_no_pytest() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None; import rocketcrew.testing as k; [getattr(k, n) for n in k.__all__]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
