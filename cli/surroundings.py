"""What a command was called with beside its arguments. Passed down, so that a test can pass another.

And the current folder as the place of handlers. It comes first on the path, as with `python -m`. A user's `queue.py` there is
then what every library gets, in the supervisor and in each worker, and what fails is named nowhere near that file:
it is refused at the start, by names alone; nothing is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from ..conf.needed_modules import WHERE_THERE, in_the_way, is_elsewhere
from ..remoting.errors import UsageError
from .exit_codes import Said
from .interrupts import Interrupts


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environment, read once at the start, the folder in which a settings file is looked for, what Ctrl-C does, and how
    failures are said."""

    env: Mapping[str, str]
    folder: Path
    interrupts: Interrupts = field(default_factory=Interrupts)
    said: Said = field(default_factory=Said)


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


def check_nothing_shadows(folder: Path, path: Sequence[str]) -> None:
    """Raise UsageError, with file and remedy, for a module in `folder` that hides a needed one.

    A folder into which packages were installed, or that holds this one, has needed modules itself: there only those are
    refused that other entries of `path` have too.
    """
    here = {one.stem: one for one in folder.glob("*.py") if one.stem != "__init__"}
    here |= {one.parent.name: one.parent for one in folder.glob("*/__init__.py")}
    others = [entry for entry in path if entry and Path(entry).resolve() != folder.resolve()]

    found = in_the_way(here)
    if any(folder.glob("*.dist-info")) or ("rocketcrew" in found and not is_elsewhere("rocketcrew", others)):
        found = [name for name in found if is_elsewhere(name, others)]
    for name in found:
        whose = "of Python" if name in sys.stdlib_module_names else "that rocketcrew needs"
        if name in WHERE_THERE:
            whose = "that a package which rocketcrew needs uses where it is there"
        raise UsageError(
            f"{here[name]} hides the module {name} {whose}: with this folder first on the path, every import of {name}"
            " would get it. Rename it, or start in another folder"
        )
