"""What a command was called with beside its arguments. Passed down, so that a test can pass another."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from .interrupts import Interrupts
from .shadowing import check_nothing_shadows


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
