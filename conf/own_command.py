"""The command line of a process that runs a module of this package: as `python -m MODULE`, but of this very package.

`-m` searches the current folder first: a file there that is named like a module of the standard library takes its place.
And where a program has found this package by a `sys.path` of its own, `-m` finds none, or another version of it. So the
process is told where the package is, and searches the standard library before whatever this process searches.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final, cast

PACKAGE: Final = __name__.partition(".")[0]
PACKAGE_ROOT: Final = str(Path(__file__).absolute().parents[2])
"""The folder that the package is in. In a source tree this file is behind a link, which is not followed."""
_START: Final = f"""\
import os, runpy, sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
root, path, sys.argv = sys.argv[1], sys.argv[2], sys.argv[3:]
library = os.path.dirname(os.__file__)
sys.path[:] = [library, library + "/lib-dynload", *path.split(os.pathsep)]
spec = PathFinder.find_spec("{PACKAGE}", [root])
sys.modules["{PACKAGE}"] = package = module_from_spec(spec)
spec.loader.exec_module(package)
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def own_command(module: str, *arguments: str) -> list[str]:
    """Run `module`, of this package, as `__main__` with these arguments in a new interpreter."""
    entries = cast("list[object]", sys.path)
    path = os.pathsep.join(os.path.abspath(entry) for entry in entries if isinstance(entry, str))
    return [sys.executable, "-P", "-c", _START, PACKAGE_ROOT, path, module, *arguments]
