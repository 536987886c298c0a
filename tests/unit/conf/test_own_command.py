"""The command line by which processes of this package begin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rocketcrew
from rocketcrew.conf.own_command import own_command

SHADOWED = ("random", "queue", "runpy", "json")
SAYS = "import random, sys; print('loaded', random.__name__, sys.argv[1:], __name__)\n"


def copy_in(folder: Path) -> Path:
    """A package of this name, with one module, in `folder`."""
    package = folder / "rocketcrew"
    (package / "conf").mkdir(parents=True)
    for name in ("__init__.py", "conf/__init__.py"):
        (package / name).write_text("")
    (package / "says.py").write_text(SAYS)
    source = Path(rocketcrew.__file__).parent / "conf" / "own_command.py"
    (package / "conf" / "own_command.py").write_text(source.read_text())
    return folder


def started(folder: Path, script: str) -> list[str]:
    """What the process printed that a script starts, which found its package by a path of its own, in a current folder with
    files that are named like modules of the standard library."""
    for name in SHADOWED:
        (folder / f"{name}.py").write_text(f"print('the file {name}.py')\n")
    begin = "import subprocess, sys\n" + script
    run = "from rocketcrew.conf.own_command import own_command\n"
    run += "subprocess.run(own_command('rocketcrew.says', 'a', 'b'), check=True)\n"
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, "-PS", "-c", begin + run], cwd=folder, env=bare, capture_output=True, text=True, check=True
    )
    return ran.stdout.splitlines()


@pytest.mark.parametrize("way", ["append(", "insert(0, "])
def test_it_is_this_package_whatever_lies_in_the_current_folder(tmp_path: Path, way: str) -> None:
    (tmp_path / "here").mkdir()
    elsewhere = copy_in(tmp_path / "elsewhere")
    assert started(tmp_path / "here", f"sys.path.{way}{str(elsewhere)!r})\n") == ["loaded random ['a', 'b'] __main__"]


def test_the_package_in_use_starts() -> None:
    ran = subprocess.run(own_command("rocketcrew", "--version"), capture_output=True, text=True, check=True)
    assert rocketcrew.__version__ in ran.stdout
